//! Records of a script's run, for whoever looks at it: rank 0 hands them to the page of its process, writes to
//! a folder what `quelea train` writes to `records.jsonl`, and learns from them who is lost and who has joined.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quelea_core::time::Time;
use quelea_net::process_group::GroupMembers;
use quelea_page::folder::DESCRIPTION;
use quelea_page::log::{RunLog, SURVEY_WATCHED};
use quelea_record::{Observer, Record, RecordKind};
use quelea_run::files::records::write_line;
use serde_json::Value;

/// The longest that a record stays in this process.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// Takes the records of a run as they come.
#[derive(Default)]
pub(crate) struct ScriptRecorder {
    /// The page that shows them.
    pub(crate) log: Option<Arc<RunLog>>,
    /// The file that keeps them.
    pub(crate) file: Option<RecordFile>,
    /// Who makes calls outside the run.
    pub(crate) members: GroupMembers,
}

/// `records.jsonl` of a run that is under way.
pub(crate) struct RecordFile {
    out: BufWriter<File>,
    flushed: Instant,
}

impl RecordFile {
    /// Begins the records of a run with this configuration in `folder`, which is made.
    pub(crate) fn create(folder: &Path, config: &Value) -> io::Result<RecordFile> {
        fs::create_dir_all(folder)?;
        let file = File::create(folder.join("records.jsonl"))?;
        let beside = folder.join(".run.json.partial");
        fs::write(&beside, config.to_string())?;
        fs::rename(beside, folder.join(DESCRIPTION))?;
        Ok(RecordFile { out: BufWriter::new(file), flushed: Instant::now() })
    }

    fn write(&mut self, record: &Record) {
        // A full disk ends the records, not the training.
        let _ = write_line(&mut self.out, record);
        if self.flushed.elapsed() >= FLUSH_INTERVAL {
            let _ = self.out.flush();
            self.flushed = Instant::now();
        }
    }
}

impl Observer for ScriptRecorder {
    fn record(&mut self, record: Record) {
        let Record { rank, step, .. } = record;
        let happened = match record.event {
            RecordKind::Lost => Some(("was lost", "; the others continue")),
            RecordKind::Left => Some(("has left", "; the others continue")),
            RecordKind::Joined => Some(("has joined", "")),
            _ => None,
        };
        if let Some((what, then)) = happened {
            match record.event {
                RecordKind::Joined => self.members.enter(rank, step),
                _ => self.members.lose(rank),
            }
            eprintln!("quelea: rank {rank} {what} after {step} steps{then}");
        }
        if let Some(log) = &self.log {
            log.take(&record);
        }
        if let Some(file) = &mut self.file {
            file.write(&record);
        }
    }

    fn survey_interval(&self) -> Option<Time> {
        let for_file = self.file.as_ref().map(|_| SURVEY_WATCHED);
        for_file.or(self.log.as_ref().map(|log| log.survey_interval()))
    }
}
