//! A worker's process that takes over a run: it writes the rest of the run, and the final files, where it is.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use quelea_net::{DriveOn, Heir, TakeOver};
use quelea_record::{Record, RecordKind, ResumePoint, SalvagedModel};

use super::Joining;
use super::processes::{self, ProcessOptions, Supervisor, Watching};
use crate::error::RunError;
use crate::execute::{begin, execute};
use crate::files::aborted::{ABORTED, Salvaged};
use crate::files::directory::Directory;
use crate::files::part_note::{PartNote, Predecessor, RunId};
use crate::files::summary::ClockKind;
use crate::prepared::PreparedRun;

/// Processes in the place of lost ones. The watch ends first.
struct Replacements {
    _watching: Watching,
    supervisor: Supervisor,
}

/// What a worker's process does when the one that controls the run is lost.
pub(super) struct RunHeir<'a> {
    /// The run, once it was made from the coordinator's job.
    pub(super) prepared: &'a RefCell<Option<PreparedRun>>,
    /// The name of the run, once its job has come.
    pub(super) run: &'a RefCell<Option<RunId>>,
    pub(super) joining: &'a Joining,
    /// How the run has ended under this process, if it has taken over.
    pub(super) ended: Option<Result<(), RunError>>,
    /// What is kept where this process ends for want of a quorum, in words.
    pub(super) kept: Option<String>,
}

impl RunHeir<'_> {
    /// Where the rest of the run goes: the folder that was named, unless it holds another run.
    fn folder(&self, prepared: &PreparedRun) -> Result<Directory, RunError> {
        let algorithm = prepared.config.algorithm.entry.meta.name;
        let asked = Directory::claim(self.joining.out.as_deref(), false, algorithm);
        Ok(asked.or_else(|_| Directory::claim(None, false, algorithm))?)
    }

    fn drive_on(&self, taken: &TakeOver, drive: DriveOn<'_>) -> Result<(), RunError> {
        let prepared = self.prepared.borrow_mut().take();
        let mut prepared = prepared.expect("the run was made before it began");
        let changes = taken.changes.clone();
        prepared.start = Arc::new(ResumePoint { changes, ..ResumePoint::default() });
        let directory = self.folder(&prepared)?;
        let told = self.sentence(taken, directory.path());
        if let Some(run) = self.run.borrow_mut().take() {
            let before = Predecessor { controller: taken.before };
            // Without it the parts cannot be merged; the run itself does not need it.
            let _ = PartNote::new(run, Some(taken.rank), Some(before)).write(&directory);
        }
        if let Some(tell) = self.joining.took_over {
            tell(&told);
        }
        let replacements = self.replacements(taken);
        let mut watch = |record: &Record| {
            if let (RecordKind::Lost, Some(replacements)) = (&record.event, &replacements) {
                replacements.supervisor.replace_stranger(record.rank);
            }
        };
        execute(&prepared, &directory, &mut watch, |recorder| {
            let mut outcome = drive(recorder)?;
            outcome.warnings.push(told);
            if let Some(replacements) = &replacements {
                outcome.warnings.extend(replacements.supervisor.part(&processes::absent(&outcome)));
            }
            Ok((ClockKind::Real, outcome))
        })?;
        Ok(())
    }

    /// Who starts processes in the place of lost ones from now on, if the run was to have some.
    fn replacements(&self, taken: &TakeOver) -> Option<Replacements> {
        let (restarts, port) = (self.joining.restarts, taken.joining.as_ref().ok()?);
        let executable = super::executable().ok().filter(|_| restarts > 0)?;
        let tell = self.joining.took_over.unwrap_or(|_| {});
        let options = ProcessOptions {
            restarts,
            tell: Arc::new(move |sentence: &str| tell(sentence)),
            ..ProcessOptions::new(&executable)
        };
        let address = SocketAddr::from(([127, 0, 0, 1], *port));
        let supervisor =
            processes::heir_supervisor(&options, address, self.joining.coordinator_out.clone());
        let watching = supervisor.watch();
        Some(Replacements { _watching: watching, supervisor })
    }

    /// Where both parts of the run are.
    fn sentence(&self, taken: &TakeOver, here: &Path) -> String {
        let before = match &self.joining.coordinator_out {
            Some(folder) => format!("in {}", folder.display()),
            None => format!("with the coordinator at {}", taken.coordinator),
        };
        let (rank, here) = (taken.rank, here.display());
        let joining = match &taken.joining {
            Ok(port) => format!("workers can join at port {port} of its machine"),
            Err(why) => format!("nobody can join any more: {why}"),
        };
        format!(
            "the coordinator was lost, and the process of rank {rank} controls the run: what was \
             recorded before is {before}, the rest and the final model are in {here}; `quelea merge` \
             makes one folder of them; {joining}"
        )
    }
}

impl Heir for RunHeir<'_> {
    fn begins(&mut self, survives: bool) {
        begin();
        if survives {
            processes::outlive_parent();
        }
    }

    fn take_over(&mut self, taken: &TakeOver, drive: DriveOn<'_>) {
        self.ended = Some(self.drive_on(taken, drive));
    }

    fn left_alone(&mut self, model: SalvagedModel) {
        let Some(prepared) = self.prepared.borrow_mut().take() else { return };
        let salvaged = Salvaged { prepared: &prepared, models: vec![model] };
        let written = self.folder(&prepared).and_then(|directory| {
            let path = directory.path().join(ABORTED);
            match salvaged.write(&directory) {
                Ok(()) => Ok(path),
                Err(source) => Err(RunError::Write { path, source }),
            }
        });
        self.kept = Some(match written {
            Ok(path) => format!("{} in {}", salvaged.describe(), path.display()),
            Err(error) => error.to_string(),
        });
    }
}
