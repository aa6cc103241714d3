//! One process per worker on this machine; the servers stay in this one.
//!
//! Every process holds one end of a pipe whose other end is here: when this process is gone,
//! however it went, the pipe is closed and they end too ([`end_with_parent`]), unless the run survives this
//! process: then one of them takes over. A process that ends before its time may be started again; the new one
//! joins in the place of the lost worker.

mod supervisor;
mod worker_process;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quelea_core::message::Rank;
use quelea_net::measure::Measured;
use quelea_record::Outcome;

use super::{Driven, OpenRendezvous, Security};
use crate::error::{RequestError, RunError};
use crate::prepared::PreparedRun;
use crate::recorder::RunRecorder;

pub(super) use supervisor::{Supervisor, Watching};
use worker_process::Starter;
pub use worker_process::{ProcessSignal, kill_worker, signal_worker, workers_with_processes};

/// How long all processes may take to start, load their data and connect.
const WAIT_SECONDS: u32 = 60;

/// Hears sentences for whoever watches the run.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// How the processes of a run are started.
#[derive(Clone)]
pub struct ProcessOptions<'a> {
    /// The `quelea` command.
    pub executable: &'a Path,
    /// How many processes may be started in the place of others, in all.
    pub restarts: u32,
    /// Hears when one ends, and when another is started.
    pub tell: Tell,
}

impl<'a> ProcessOptions<'a> {
    /// Processes of `executable`; none is started again.
    pub fn new(executable: &'a Path) -> ProcessOptions<'a> {
        ProcessOptions { executable, restarts: 0, tell: Arc::new(|_| {}) }
    }
}

/// Runs every worker as a process.
pub fn processes(
    prepared: &PreparedRun,
    options: &ProcessOptions<'_>,
    recorder: &mut RunRecorder<'_>,
) -> Driven {
    check_restarts(prepared, options.restarts)?;
    let (place, supervisor) = gather(prepared, options, Some(recorder.folder()))?;
    let watching = supervisor.watch();
    let driven = place.run(prepared, &[], recorder, &mut |_, _| supervisor.check());
    drop(watching);
    if driven.as_ref().is_err_and(RunError::is_missing_quorum) {
        supervisor.release();
    }
    let (clock, mut outcome) = driven.map_err(|error| supervisor.explain(error))?;
    let warnings = supervisor.part(&absent(&outcome));
    outcome.warnings.extend(warnings);
    Ok((clock, outcome))
}

/// Refuses restarts in a run that nobody could join again.
fn check_restarts(prepared: &PreparedRun, restarts: u32) -> Result<(), RequestError> {
    let refuse = |why: &str| {
        Err(RequestError::Conflict(format!("--restarts {restarts} would restart nothing: {why}")))
    };
    if restarts == 0 {
        return Ok(());
    }
    if prepared.loss_policy() == quelea_net::LossPolicy::Stop {
        return refuse("`membership.on_loss` = \"stop\" ends the run with the first worker lost");
    }
    match prepared.setup.join_refusal() {
        Some(why) => refuse(&format!("nobody can join this run: {why}")),
        None => Ok(()),
    }
}

/// The workers that take no part any more.
pub(super) fn absent(outcome: &Outcome) -> BTreeSet<u32> {
    outcome.ranks.iter().filter(|rank| rank.lost).map(|rank| rank.rank).collect()
}

/// Has a process of `executable` for every worker of the run measure links and steps.
pub fn measure_processes(
    prepared: &PreparedRun,
    executable: &Path,
    steps: bool,
) -> Result<Measured, RunError> {
    let (place, supervisor) = gather(prepared, &ProcessOptions::new(executable), None)?;
    let measured = place.measure(prepared, steps, &mut |_, _| supervisor.check(), &mut |_| {});
    let measured = measured.map_err(|error| supervisor.explain(error))?;
    supervisor.part(&BTreeSet::new());
    Ok(measured)
}

/// Who starts processes in the place of lost ones, which were not started from here: they join at `address`. One
/// that takes over writes below `folder`.
pub(super) fn heir_supervisor(
    options: &ProcessOptions<'_>,
    address: SocketAddr,
    folder: Option<PathBuf>,
) -> Supervisor {
    let executable = options.executable.to_path_buf();
    Supervisor::new(Starter { executable, address, folder, restarts: options.restarts }, options)
}

/// Starts a process for every worker, and the place where they join. One that takes over writes below
/// `folder`.
fn gather(
    prepared: &PreparedRun,
    options: &ProcessOptions<'_>,
    folder: Option<&Path>,
) -> Result<(OpenRendezvous, Supervisor), RunError> {
    let place = OpenRendezvous::open("127.0.0.1:0", f64::from(WAIT_SECONDS), Security::Automatic)?;
    let starter = Starter {
        executable: options.executable.to_path_buf(),
        address: place.address(),
        folder: folder.map(Path::to_path_buf),
        restarts: options.restarts,
    };
    let supervisor = Supervisor::new(starter, options);
    let lost = prepared.start.absent(&prepared.setup);
    let living = (0..prepared.setup.seats()).map(Rank::from).filter(|rank| !lost.contains(rank));
    for Rank(rank) in living {
        supervisor.start(rank).map_err(RunError::Process)?;
    }
    Ok((place, supervisor))
}

/// Whether this process goes on without its parent.
static OUTLIVES: AtomicBool = AtomicBool::new(false);

/// Ends this process when standard input is closed, as it is when the parent is gone, unless it takes part in
/// a run by then that survives that.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        if !OUTLIVES.load(Ordering::Acquire) {
            std::process::exit(1);
        }
    });
}

/// From now on this process goes on without its parent.
pub(super) fn outlive_parent() {
    OUTLIVES.store(true, Ordering::Release);
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::source::parse;
    use crate::execute::execute;
    use crate::files::directory::Directory;
    use std::os::unix::fs::PermissionsExt;

    fn failure(script: &str, restarts: u32) -> String {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("worker");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, mode).expect("permitted");
        let table = parse("workers = 3\nsteps = 5").expect("TOML");
        let prepared =
            PreparedRun::new(Config::read(table, &[], None).expect("good")).expect("good");
        let out = folder.path().join("run");
        let directory = Directory::claim(Some(&out), false, "").expect("new");
        let drive = |recorder: &mut RunRecorder<'_>| {
            let options = ProcessOptions { restarts, ..ProcessOptions::new(&path) };
            processes(&prepared, &options, recorder)
        };
        let ended = execute(&prepared, &directory, &mut |_| {}, drive);
        ended.expect_err("nobody joins").to_string()
    }

    /// `$4` is the rank. Those who are well wait until the pipe is closed.
    #[test]
    fn a_worker_that_dies_before_it_joins_is_named_with_how_it_ended() {
        let killed = failure("[ $4 = 2 ] && kill -9 $$; read forever", 0);
        assert_eq!(killed, "worker 2 was killed by signal 9 before the run began");
        let ended = failure("[ $4 = 1 ] && exit 7; read forever", 0);
        assert_eq!(ended, "worker 1 ended with status 7 before the run began");
    }
}
