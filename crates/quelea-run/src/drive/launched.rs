//! Under a launcher (`mpirun`, `srun`, `torchrun`, Kubernetes): every process is one worker.

use std::path::Path;

use quelea_core::registry::Registry;
use quelea_net::launcher;
use quelea_net::{Coordinator, NetOptions};

use super::{Driven, Joining, LeaveNotice, OpenRendezvous, Security, join};
use crate::error::{RequestError, RunError};
use crate::prepared::PreparedRun;
use crate::recorder::RunRecorder;

/// How long the processes may take to find each other.
const WAIT_SECONDS: f64 = 60.0;

/// How this process was launched.
#[derive(Clone, Debug)]
pub struct LaunchedWorker {
    found: launcher::Launched,
    security: Security,
}

/// Whether this process is one of several that a launcher has started.
pub fn launched() -> Result<Option<LaunchedWorker>, RequestError> {
    let found = launcher::detect(|name| std::env::var(name).ok()).map_err(|error| {
        RequestError::Conflict(format!("{error} (--threads leaves launchers out of account)"))
    })?;
    let Some(found) = found.filter(|found| found.world > 1) else { return Ok(None) };
    let security = Security::from_env(|name| std::env::var(name).ok());
    let security = security.map_err(|error| RequestError::Conflict(error.to_string()))?;
    Ok(Some(LaunchedWorker { found, security }))
}

impl LaunchedWorker {
    /// Allows plain connections between machines.
    pub fn insecure(self) -> LaunchedWorker {
        LaunchedWorker { security: Security::Insecure, ..self }
    }

    /// How many processes there are.
    pub fn world(&self) -> usize {
        self.found.world as usize
    }

    /// Whether this process coordinates the run, writes its files and reports.
    pub fn is_first(&self) -> bool {
        self.found.rank == 0
    }

    /// Refuses what every process would do by itself, all into the same folder.
    pub fn refuse_sharing(&self, out: &Path) -> RequestError {
        let (launcher, world, out) = (self.found.launcher, self.world(), out.display());
        RequestError::Conflict(format!(
            "{launcher} has started {world} processes, and each would write to --out {out}; \
             leave out --out, or leave out --threads and --processes to train together"
        ))
    }

    /// Refuses a prepared run for another number of workers than were launched.
    pub fn check(&self, prepared: &PreparedRun) -> Result<(), RequestError> {
        let (workers, world) = (prepared.config.workers, self.world());
        if workers == world {
            return Ok(());
        }
        let problem = format!(
            "{} has started {world} processes, one per worker; \
             set `workers` = {world}, or leave it out, or run with --threads",
            self.found.launcher
        );
        Err(RequestError::field("workers", workers, problem))
    }

    /// Runs the run as the first process.
    pub fn lead(&self, prepared: &PreparedRun, recorder: &mut RunRecorder<'_>) -> Driven {
        let security = self.security.clone();
        let options = NetOptions {
            connect_seconds: WAIT_SECONDS,
            security,
            survives: true,
            ..NetOptions::default()
        };
        let coordinator = Coordinator::of_launch(&self.found, options)?;
        OpenRendezvous { coordinator }.run(prepared, &[0], recorder, &mut |_, _| Ok(()))
    }

    /// Takes part as one of the others.
    pub fn follow(
        &self,
        registry: &Registry,
        prepared: Option<PreparedRun>,
    ) -> Result<(), RunError> {
        let joining = Joining {
            rank: Some(self.found.rank),
            wait_seconds: WAIT_SECONDS,
            security: self.security.clone(),
            data: None,
            // A launcher that ends a job gives all its processes notice; the first one saves the run.
            leave: LeaveNotice::default(),
            ..Joining::default()
        };
        join(registry, &self.found.rendezvous.to_join(), &joining, prepared)
    }
}
