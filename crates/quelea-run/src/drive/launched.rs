//! Under a launcher (`mpirun`, `srun`, `torchrun`, Kubernetes): every process is one worker.

use std::net::ToSocketAddrs;
use std::path::Path;
use std::time::Duration;

use quelea_core::registry::Registry;
use quelea_net::launcher;
use quelea_net::{Coordinator, NetOptions, TransportKind};

use super::{Driven, Joining, LeaveNotice, LocalAddress, OpenRendezvous, Security, join, stand_by};
use crate::error::{RequestError, RunError};
use crate::prepared::PreparedRun;
use crate::recorder::RunRecorder;

/// How long the processes may take to find each other.
const WAIT_SECONDS: f64 = 60.0;

/// Between two attempts to resolve a name.
const RESOLVE_PAUSE: Duration = Duration::from_millis(300);

/// How this process was launched.
#[derive(Clone, Debug)]
pub struct LaunchedWorker {
    found: launcher::Launched,
    security: Security,
    local: LocalAddress,
}

/// Whether this process is one of several that a launcher has started.
pub fn launched() -> Result<Option<LaunchedWorker>, RequestError> {
    let found = launcher::detect(|name| std::env::var(name).ok()).map_err(|error| {
        RequestError::Conflict(format!("{error} (--threads leaves launchers out of account)"))
    })?;
    let is_alone = |found: &launcher::Launched| found.world == 1 && found.rank == 0;
    let Some(found) = found.filter(|found| !is_alone(found)) else { return Ok(None) };
    let security = Security::from_env(|name| std::env::var(name).ok());
    let security = security.map_err(|error| RequestError::Conflict(error.to_string()))?;
    let local = LocalAddress::from_env(|name| std::env::var(name).ok());
    let local = local.map_err(|error| RequestError::Conflict(error.to_string()))?;
    Ok(Some(LaunchedWorker { found, security, local }))
}

/// Refuses a run over MPI whose processes are started by no launcher.
pub fn refuse_mpi(prepared: &PreparedRun) -> Result<(), RequestError> {
    let transport = prepared.config.transport;
    if transport != TransportKind::Mpi {
        return Ok(());
    }
    let problem =
        "needs processes that mpirun or srun has started, as in: mpirun -n 4 quelea train run.toml";
    Err(RequestError::field("transport", transport, problem))
}

impl LaunchedWorker {
    /// Refuses a name of rank 0's machine that does not resolve: a process would wait its whole limit for it. In Kubernetes
    /// names come with their pods, so that there is something to wait for.
    pub fn check_name(&self) -> Result<(), RequestError> {
        let found = &self.found;
        let launcher::Rendezvous::Address(address) = &found.rendezvous else { return Ok(()) };
        let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        if in_pod || ["Kubernetes", "Kubeflow"].contains(&found.launcher) {
            return Ok(());
        }
        let is_slurm = found.launcher == "Slurm";
        let resolve = |again: u32| {
            std::thread::sleep(RESOLVE_PAUSE * again);
            address.to_socket_addrs().map(drop)
        };
        // A server of names that is asked by a thousand processes at once may need a moment, and so may a container whose
        // name comes with it. A scheduler's nodes have names from the beginning.
        let attempts = if is_slurm { 3 } else { 6 };
        let mut resolved = resolve(0);
        for again in 1..attempts {
            resolved = resolved.or_else(|_| resolve(again));
        }
        let Err(error) = resolved else { return Ok(()) };
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let advice = format!(
            "add it to DNS or /etc/hosts, or set QUELEA_RENDEZVOUS=ADDRESS:{port} for all processes"
        );
        let launcher = found.launcher;
        Err(RequestError::Conflict(if is_slurm {
            format!(
                "Slurm: the name of the first node, {host}, does not resolve on this node ({error}): {advice} \
                 (`scontrol show node {host}` has its NodeAddr)"
            )
        } else {
            format!(
                "{launcher}: the name of rank 0's machine, {host}, does not resolve on this machine ({error}): {advice}"
            )
        }))
    }

    /// Allows plain connections between machines.
    pub fn insecure(self) -> LaunchedWorker {
        LaunchedWorker { security: Security::Insecure, ..self }
    }

    /// Has the processes exchange messages by `transport`. Over MPI they also meet there.
    pub fn over(mut self, transport: TransportKind) -> Result<LaunchedWorker, RequestError> {
        if transport != TransportKind::Mpi {
            return Ok(self);
        }
        if let Ok(spares) = std::env::var("QUELEA_SPARES")
            && spares != "0"
        {
            return Err(RequestError::Conflict(format!(
                "QUELEA_SPARES={spares}: nobody joins a run over MPI after its start; leave it out, or transport = \
                 \"mpi\""
            )));
        }
        self.found.rendezvous = launcher::Rendezvous::Mpi;
        Ok(self)
    }

    /// Refuses what would leave each process with another idea of where to meet: only the first one reads the
    /// checkpoint that a run resumes from.
    pub fn check_resumed(
        &self,
        prepared: &PreparedRun,
        asked: Option<TransportKind>,
    ) -> Result<(), RequestError> {
        let transport = prepared.config.transport;
        let differs = asked.unwrap_or_default() != transport;
        if !differs || (transport != TransportKind::Mpi && asked != Some(TransportKind::Mpi)) {
            return Ok(());
        }
        let problem = "a run that is resumed over MPI needs --transport mpi, for all processes";
        Err(RequestError::field("transport", transport, problem))
    }

    /// How many processes there are.
    pub fn world(&self) -> usize {
        self.found.world as usize
    }

    /// Whether this process only waits to replace a lost worker.
    pub fn is_spare(&self) -> bool {
        self.found.is_spare()
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
            local: self.local.clone(),
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
        let joining = self.joining(Some(self.found.rank));
        join(registry, &self.found.rendezvous.to_join(), &joining, prepared)
    }

    /// Waits as a spare until a worker is lost, and takes its place. `false` if the run ended before that.
    pub fn stand_by(&self, registry: &Registry) -> Result<bool, RunError> {
        stand_by(registry, &self.found.rendezvous.to_join(), &self.joining(None))
    }

    fn joining(&self, rank: Option<u32>) -> Joining {
        Joining {
            rank,
            wait_seconds: WAIT_SECONDS,
            security: self.security.clone(),
            data: None,
            // A launcher that ends a job gives all its processes notice; the first one saves the run.
            leave: LeaveNotice::default(),
            local: self.local.clone(),
            ..Joining::default()
        }
    }
}
