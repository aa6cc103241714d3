//! How a rank of a script's run begins: with all others, or late, in the place of one that was lost.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::thread::JoinHandle;

use pyo3::prelude::*;
use quelea_core::run_spec::RunSpec;
use quelea_net::external_loop::ExternalLoop;
use quelea_net::process_group::RunUnderWay;
use quelea_net::{
    Coordinator, DriveOn, Gradients, Heir, Hosted, JobError, LeaveNotice, LossPolicy, NetOptions,
    SilenceLimits, TakeOver, TransportKind,
};
use quelea_page::log::LogClock;
use quelea_record::SalvagedModel;
use quelea_run::config::Config;
use serde_json::Value;

use crate::Error;
use crate::group::{PyGroup, difference, first};
use crate::page::{PyPage, ShownRun, folder_name};
use crate::recorder::{RecordFile, ScriptRecorder};

/// What carries frames between processes: `auto` or `tcp`.
const TRANSPORT_VARIABLE: &str = "QUELEA_TRANSPORT";
/// How long a process that comes late waits for its entrance: a script may do other things than steps.
const ENTRANCE_SECONDS: f64 = 3600.0;

/// What happens to a run when processes are lost, leave or come.
#[derive(Clone)]
pub(super) struct Membership {
    pub(super) on_loss: LossPolicy,
    pub(super) silence: SilenceLimits,
    /// For how long a broken connection between two machines may be restored.
    pub(super) reconnect_seconds: f64,
    /// Notice for this process.
    pub(super) leave: LeaveNotice,
}

impl Membership {
    /// As a configuration says it.
    pub(super) fn of(config: &Config) -> Membership {
        let (on_loss, silence) = (config.loss_policy(), config.silence_limits());
        let reconnect_seconds = config.membership.real("reconnect_seconds");
        Membership { on_loss, silence, reconnect_seconds, leave: LeaveNotice::default() }
    }
}

impl Membership {
    /// Whether the others continue when the process that controls the run is lost.
    pub(super) fn survives(&self, setup: &RunSpec) -> bool {
        let options = NetOptions { on_loss: self.on_loss, ..NetOptions::default() };
        quelea_net::survival_refusal(setup, &options).is_none()
    }
}

/// Refuses restarts in a run that nobody could join again.
pub(super) fn check_restarts(
    restarts: u32,
    on_loss: LossPolicy,
    setup: &RunSpec,
) -> Result<(), String> {
    let refuse = |why: &str| Err(format!("--restarts {restarts} would restart nothing: {why}"));
    match setup.join_refusal() {
        _ if restarts == 0 => Ok(()),
        _ if on_loss == LossPolicy::Stop => {
            refuse("on_loss=\"stop\" ends the run with the first process lost")
        }
        Some(why) => refuse(&format!("nobody can join this run: {why}")),
        None => Ok(()),
    }
}

/// What takes the records of the run at rank 0, for its page and its folder.
pub(super) fn recorder(
    group: &PyGroup,
    config: &Value,
    elements: usize,
    page: Option<&PyPage>,
    records: Option<PathBuf>,
) -> PyResult<ScriptRecorder> {
    if group.launched().rank != 0 {
        return Ok(ScriptRecorder::default());
    }
    let file = records.as_ref().map(|folder| {
        RecordFile::create(folder, config).map_err(|error| {
            Error::new_err(format!("cannot write records to {}: {error}", folder.display()))
        })
    });
    let name = records.as_deref().map(folder_name);
    let shown = ShownRun { config, elements, clock: LogClock::Real, name };
    let log = page.map(|page| page.show(shown)).transpose()?;
    Ok(ScriptRecorder { log, file: file.transpose()?, members: group.members().clone() })
}

/// This process's part of a run.
pub(super) struct RankStart {
    pub(super) setup: RunSpec,
    pub(super) script: ExternalLoop,
    pub(super) recorder: ScriptRecorder,
    pub(super) membership: Membership,
    /// Settings and model, in lines: those of a process that comes late must be the same.
    pub(super) described: String,
    /// The run that is under way, if this process comes late.
    pub(super) joinable: Option<RunUnderWay>,
}

impl RankStart {
    fn options(&self, group: &PyGroup) -> PyResult<NetOptions> {
        // The scripts hold their models: nobody needs them reported.
        // What a script does between two steps, such as an evaluation, seems to be a part of its gradient.
        Ok(NetOptions {
            connect_seconds: 60.0,
            entrance_seconds: ENTRANCE_SECONDS,
            report_models: false,
            compute_factor: f64::INFINITY,
            security: group.security(),
            on_loss: self.membership.on_loss,
            survives: true,
            silence: self.membership.silence,
            reconnect_seconds: self.membership.reconnect_seconds,
            leave: self.membership.leave.clone(),
            transport: asked_transport()?,
            ..NetOptions::default()
        })
    }

    /// Starts it on its own thread.
    pub(super) fn spawn(
        self,
        py: Python<'_>,
        group: &PyGroup,
    ) -> PyResult<JoinHandle<Result<(), String>>> {
        let (rank, address) = (group.launched().rank, group.assembly().address());
        let options = self.options(group)?;
        let coordinator = if rank == 0 { Some(bind(address, &options)?) } else { None };
        let port = coordinator.as_ref().map_or(0, |coordinator| coordinator.address().port());
        let port = match self.joinable {
            Some(run) => run.port,
            None => agreed_port(py, group, port)?,
        };
        let members = group.members().clone();
        if rank == 0 && options.on_loss != LossPolicy::Stop {
            members.begin_run(RunUnderWay { port });
        }
        let run = move || match coordinator {
            Some(coordinator) => {
                let ended = self.coordinate(coordinator);
                members.end_run();
                ended
            }
            None => self.join(SocketAddr::new(address, port), rank, &options),
        };
        let thread = std::thread::Builder::new().name("quelea".into()).spawn(run);
        thread.map_err(|error| Error::new_err(format!("cannot start a thread: {error}")))
    }

    fn gradients(&self) -> Gradients {
        let script = self.script.clone();
        Gradients::External(Box::new(move |_| script.clone()))
    }

    fn coordinate(mut self, coordinator: Coordinator) -> Result<(), String> {
        let gradients = self.gradients();
        let job = std::mem::take(&mut self.described).into_bytes();
        let hosted = Hosted { workers: vec![0] };
        let ended = coordinator.run(job, &self.setup, &gradients, &hosted, &mut self.recorder);
        ended.map(|_| ()).map_err(|error| error.to_string())
    }

    fn join(mut self, place: SocketAddr, rank: u32, options: &NetOptions) -> Result<(), String> {
        let recorder = std::mem::take(&mut self.recorder);
        let mut heir = ScriptHeir { recorder, failure: None };
        let mut build =
            |job: &[u8]| match difference(&String::from_utf8_lossy(job), &self.described) {
                None => Ok((self.setup.clone(), self.gradients())),
                Some([theirs, own]) => {
                    Err(JobError::from(format!("the run has {theirs}, this process has {own}")))
                }
            };
        let place = place.to_string();
        let ended = quelea_net::join_as_heir(&place, Some(rank), options, &mut build, &mut heir);
        match (heir.failure, ended) {
            (Some(failure), _) => Err(failure),
            (None, ended) => ended.map_err(|error| error.to_string()),
        }
    }
}

/// A script's process that takes over when the one that controls the run is lost. Its script keeps the model.
struct ScriptHeir {
    recorder: ScriptRecorder,
    /// Why the run under this process has not ended well.
    failure: Option<String>,
}

impl Heir for ScriptHeir {
    fn begins(&mut self, _survives: bool) {}

    fn take_over(&mut self, taken: &TakeOver, drive: DriveOn<'_>) {
        let (rank, before) = (taken.rank, taken.before.unwrap_or(0));
        eprintln!(
            "quelea: the process of rank {before}, which controlled the run, was lost; that of rank \
             {rank} controls it from now on"
        );
        self.failure = drive(&mut self.recorder).err().map(|error| error.to_string());
    }

    fn left_alone(&mut self, _model: SalvagedModel) {}
}

/// What `QUELEA_TRANSPORT` asks for.
pub(crate) fn asked_transport() -> PyResult<TransportKind> {
    match std::env::var(TRANSPORT_VARIABLE) {
        Ok(name) => name
            .parse()
            .and_then(|kind| match kind {
                TransportKind::Mpi => Err(quelea_net::NetError::Setup(
                    "scripts exchange messages by auto or tcp; mpi is for quelea train".into(),
                )),
                kind => Ok(kind),
            })
            .map_err(|error| Error::new_err(format!("{TRANSPORT_VARIABLE}={name}: {error}"))),
        Err(_) => Ok(TransportKind::default()),
    }
}

/// Where rank 0's coordinator listens, as all learn together.
fn agreed_port(py: Python<'_>, group: &PyGroup, own: u16) -> PyResult<u16> {
    let answer = group.together(py, "wrap()", own.to_le_bytes().to_vec(), None, first)?;
    let port = <[u8; 2]>::try_from(&answer[..]).map(u16::from_le_bytes);
    port.map_err(|_| Error::new_err("rank 0 did not send the port of its coordinator"))
}

fn bind(address: IpAddr, options: &NetOptions) -> PyResult<Coordinator> {
    Coordinator::bind(&SocketAddr::new(address, 0).to_string(), options.clone())
        .map_err(|error| Error::new_err(error.to_string()))
}
