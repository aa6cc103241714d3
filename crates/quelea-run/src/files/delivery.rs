//! The files of a run that has ended, the model first: on a disk that is full everything else is
//! given up before the model is.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use quelea_record::Outcome;

use super::aborted::ABORTED;
use super::directory::{Directory, Draft};
use super::plots;
use super::summary::Summary;
use super::tensors::{self, Export, ModelSlices};
use crate::checkpoint;
use crate::error::RunError;
use crate::prepared::PreparedRun;
use crate::recorder::{BEST, EndedRun, RunRecorder};

/// The file of the deployed model.
pub const FINAL: &str = "final.safetensors";
/// What a disk needs besides the bytes of a file, for its name and its blocks.
const SLACK_BYTES: u64 = 64 << 10;

/// Writes the files of a run that has ended.
pub(crate) struct Delivery<'a> {
    prepared: &'a PreparedRun,
    directory: &'a Directory,
    /// What is not there although it should be, in words.
    given_up: Vec<String>,
}

/// Whether the error is that there is no room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl<'a> Delivery<'a> {
    pub(crate) fn new(prepared: &'a PreparedRun, directory: &'a Directory) -> Delivery<'a> {
        Delivery { prepared, directory, given_up: Vec::new() }
    }

    fn place(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Puts the model in its place: with every rank's own where there is room, else alone.
    pub(crate) fn write_model(
        &mut self,
        outcome: &Outcome,
        recorder: &mut RunRecorder<'_>,
    ) -> Result<(), RunError> {
        let deploy = self.prepared.setup.properties().deploy;
        let model = ModelSlices::of(outcome).deployed(deploy);
        let (layers, buffers) =
            (&self.prepared.setup.layout.tensors, self.prepared.problem.buffers(&model));
        let export = Export { model: &model, layers, buffers: &buffers };
        let directory = self.directory;
        let whole = || -> io::Result<()> {
            let mut draft = directory.draft(FINAL)?;
            tensors::write(&mut draft, &export, outcome)?;
            draft.commit()
        };
        let alone = || -> io::Result<()> {
            let mut draft = directory.draft(FINAL)?;
            export.write(&mut draft)?;
            draft.commit()
        };
        let mut written = whole();
        while written.as_ref().is_err_and(is_full)
            && let Some(name) = recorder.make_room()
        {
            self.given_up.push(name);
            written = whole();
        }
        if written.as_ref().is_err_and(is_full) {
            self.given_up.push("every rank's own model".to_string());
            written = alone();
        }
        let needed = export.bytes() + SLACK_BYTES;
        if written.as_ref().is_err_and(is_full)
            && let Some(name) = checkpoint::remove_last_for(directory.path(), needed)
        {
            self.given_up.push(name);
            written = alone();
        }
        // Of an earlier step, and as long as this one: it gives back what this one needs.
        let best = fs::metadata(self.place(BEST)).map_or(0, |found| found.len());
        if written.as_ref().is_err_and(is_full)
            && best >= export.bytes()
            && fs::remove_file(self.place(BEST)).is_ok()
        {
            self.given_up.push(BEST.to_string());
            written = alone();
        }
        if written.is_ok() {
            // Of an earlier attempt that was broken off; this one has come to its end.
            let _ = fs::remove_file(self.place(ABORTED));
        }
        written.map_err(|source| RunError::Write { path: self.place(FINAL), source })
    }

    /// Writes everything else as far as there is room; the summary comes last. An error tells what
    /// is missing, and where the model is.
    pub(crate) fn write_rest(
        mut self,
        outcome: &Outcome,
        mut summary: Summary,
        ended: EndedRun,
    ) -> Result<Summary, RunError> {
        let recorded = ended.recorded;
        self.keep("records.jsonl", recorded.draft.and_then(Draft::commit));
        if let Some(draft) = ended.best_draft {
            self.keep(draft.name(), draft.commit());
        }
        let trace = self.directory.draft("trace.json").and_then(|mut draft| {
            recorded.timeline.write(&mut draft, outcome)?;
            draft.commit()
        });
        self.keep("trace.json", trace);
        if self.prepared.config.plots {
            let drawn = recorded.curves.write(self.directory.path(), &summary);
            self.keep(plots::FOLDER, drawn);
        }
        let mut page = self.write_summary(&mut summary);
        // One page says more than a picture of it.
        if page.as_ref().is_err_and(is_full) {
            let _ = fs::remove_file(self.place("trace.json"));
            let _ = fs::remove_dir_all(self.place(plots::FOLDER));
            self.given_up.extend(["trace.json".to_string(), plots::FOLDER.to_string()]);
            page = self.write_summary(&mut summary);
        }
        self.keep("summary.json", page);
        if self.given_up.is_empty() {
            return Ok(summary);
        }
        let model = self.place(FINAL);
        Err(RunError::Incomplete { missing: self.given_up.join(", "), model })
    }

    fn write_summary(&self, summary: &mut Summary) -> io::Result<()> {
        let missing = format!("not written: {}", self.given_up.join(", "));
        summary.warnings.extend((!self.given_up.is_empty()).then_some(missing));
        let mut draft = self.directory.draft("summary.json")?;
        serde_json::to_writer_pretty(&mut draft, summary)?;
        writeln!(draft)?;
        draft.commit()
    }

    /// Notes it where a file could not be written.
    fn keep(&mut self, name: &str, written: io::Result<()>) {
        if let Err(error) = written {
            self.given_up.retain(|known| known != name);
            self.given_up.push(format!("{name} ({error})"));
        }
    }
}
