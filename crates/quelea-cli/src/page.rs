//! The page of a run that is under way, and the event file for TensorBoard: both see the records that
//! also go to `records.jsonl`.

use std::fs::File;
use std::io::{self, BufWriter};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use quelea_page::access::PageProtection;
use quelea_page::description::RunDescription;
use quelea_page::folder;
use quelea_page::forecaster::{self, GradientTimes};
use quelea_page::kubeflow::{StatusServer, TrainJobReporter};
use quelea_page::log::{LogClock, RunControls, RunLog};
use quelea_page::server::{PageServer, PageSource};
use quelea_page::tensorboard::TensorboardWriter;
use quelea_record::Record;
use quelea_run::drive;
use quelea_run::error::RunError;
use quelea_run::execute::{self, Finished, SurveyPace};
use quelea_run::prepared::PreparedRun;

use crate::request::Output;
use crate::text::mention;

/// How a run is driven, as far as its page shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// In the virtual cluster.
    Virtual,
    /// Ranks that can neither be dropped nor killed: threads of this process.
    Threads,
    /// Processes of this machine.
    Processes,
    /// Processes that have joined.
    Joined,
}

/// "the page is at http://127.0.0.1:8600/"
pub fn address_line(address: SocketAddr) -> String {
    format!("the page is at http://{address}/")
}

/// Observes a run from outside.
#[derive(Default)]
pub struct Onlookers {
    page: Option<LivePage>,
    tensorboard: Option<TensorboardWriter<BufWriter<File>>>,
    /// In a pod of a TrainJob.
    train_job: Option<TrainJobReporter>,
}

/// Where a page is, and who may see it.
struct PagePlace<'a> {
    address: &'a str,
    protection: PageProtection,
}

struct LivePage {
    log: Arc<RunLog>,
    server: PageServer,
}

impl Onlookers {
    /// Those that were asked for.
    pub fn start(
        prepared: &PreparedRun,
        directory: &Path,
        output: &Output,
        kind: DriverKind,
    ) -> anyhow::Result<Onlookers> {
        let page = output.page.as_deref().map(|address| {
            let protection = PageProtection::from_environment(output.page_insecure);
            let place = PagePlace { address, protection };
            let page = LivePage::start(prepared, directory, place, kind)?;
            if !output.quiet {
                mention(&address_line(page.server.address()));
            }
            anyhow::Ok(page)
        });
        let tensorboard =
            output.tensorboard.then(|| TensorboardWriter::create(directory, prepared.setup.steps));
        let train_job = train_job(prepared, kind).transpose()?;
        Ok(Onlookers { page: page.transpose()?, tensorboard: tensorboard.transpose()?, train_job })
    }

    /// How often ranks shall be surveyed for them, if at all.
    pub fn survey_pace(&self) -> Option<SurveyPace> {
        let log = Arc::clone(&self.page.as_ref()?.log);
        Some(Box::new(move || log.survey_interval()))
    }

    /// Takes a record.
    pub fn take(&mut self, record: &Record) {
        if let Some(page) = &self.page {
            page.log.take(record);
        }
        if let Some(tensorboard) = &mut self.tensorboard {
            tensorboard.take(record);
        }
        if let Some(train_job) = &mut self.train_job {
            train_job.take(record);
        }
    }

    /// The run has ended. Who looks at its page sees that.
    pub fn finish(self, finished: &Result<Finished, RunError>) -> anyhow::Result<()> {
        if let Some(LivePage { log, server }) = self.page {
            match finished {
                Ok(finished) => log.finish(serde_json::to_value(&finished.summary)?),
                Err(error) => log.fail(error.to_string()),
            }
            server.farewell();
        }
        if let Some(train_job) = self.train_job {
            train_job.finish(finished.is_ok());
        }
        self.tensorboard.map(TensorboardWriter::finish).transpose()?;
        Ok(())
    }
}

/// Tells the controller of a TrainJob how far a real run is, where it wants to know.
fn train_job(prepared: &PreparedRun, kind: DriverKind) -> Option<io::Result<TrainJobReporter>> {
    let server = StatusServer::from_env(|name| std::env::var(name).ok());
    let server = server.filter(|_| kind != DriverKind::Virtual)?;
    let done = prepared.start.steps(prepared.config.workers);
    Some(TrainJobReporter::start(server, prepared.total_steps(), done, mention))
}

impl LivePage {
    fn start(
        prepared: &PreparedRun,
        directory: &Path,
        place: PagePlace<'_>,
        kind: DriverKind,
    ) -> anyhow::Result<LivePage> {
        let clock = if kind == DriverKind::Virtual { LogClock::Recorded } else { LogClock::Real };
        let description = RunDescription::of(prepared, &folder::name(directory));
        let mut log =
            RunLog::live(description, clock).with_controls(Box::new(SessionControls { kind }));
        let times = match kind {
            DriverKind::Virtual => GradientTimes::Configured,
            _ => GradientTimes::Measured,
        };
        if let Some(adviser) = forecaster::of_prepared(prepared, times) {
            log = log.with_adviser(adviser);
        }
        let log = Arc::new(log);
        let server =
            PageServer::start(place.address, place.protection, PageSource::Run(Arc::clone(&log)))?;
        Ok(LivePage { log, server })
    }
}

/// What the buttons of the page do.
struct SessionControls {
    kind: DriverKind,
}

impl RunControls for SessionControls {
    fn actions(&self) -> Vec<&'static str> {
        match self.kind {
            DriverKind::Virtual | DriverKind::Threads => vec!["checkpoint", "stop"],
            DriverKind::Joined => vec!["checkpoint", "stop", "drop"],
            DriverKind::Processes => vec!["checkpoint", "stop", "drop", "kill"],
        }
    }

    fn act(&self, action: &str, rank: Option<u32>) -> Result<String, String> {
        let needed = || rank.ok_or_else(|| "select a rank first".to_string());
        let no_run = || "the run does not take orders now".to_string();
        let done = |was_done: bool, text: String| was_done.then_some(text).ok_or_else(no_run);
        match action {
            "checkpoint" => {
                done(execute::ask_for_checkpoint(), "a checkpoint is being written".to_string())
            }
            "stop" => done(execute::ask_to_stop(), "the run saves its state and ends".to_string()),
            "drop" => {
                let rank = needed()?;
                let asked = format!("the run was asked to continue without rank {rank}");
                done(execute::ask_to_drop(rank), asked)
            }
            "kill" => {
                let rank = needed()?;
                drive::kill_worker(rank)?;
                Ok(format!("the process of rank {rank} was killed"))
            }
            other => Err(format!("there is no action `{other}`")),
        }
    }
}
