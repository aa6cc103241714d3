//! One process per worker on this machine, over TCP; the servers stay in this one.
//!
//! Every process holds one end of a pipe whose other end is here: when this process is gone,
//! however it went, the pipe is closed and they end too ([`end_with_parent`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use quelea_core::message::Rank;
use quelea_net::NetError;
use quelea_net::measure::Measured;

use super::program::restarted;
use super::{Driven, OpenRendezvous, Security};
use crate::error::RunError;
use crate::prepared::PreparedRun;
use crate::recorder::RunRecorder;

/// How long all processes may take to start, load their data and connect.
const WAIT_SECONDS: u32 = 60;
/// How long a process may take to end after the run has.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Runs every worker as a process of `executable`, which must be the `quelea` command.
pub fn processes(
    prepared: &PreparedRun,
    executable: &Path,
    recorder: &mut RunRecorder<'_>,
) -> Driven {
    let (place, mut children) = gather(prepared, executable)?;
    let driven = place.run(prepared, &[], recorder, &mut |_, _| children.check());
    let (clock, mut outcome) = driven.map_err(|error| children.explain(error))?;
    outcome.warnings.extend(children.part());
    Ok((clock, outcome))
}

/// Has a process of `executable` for every worker of the run measure links and steps.
pub fn measure_processes(
    prepared: &PreparedRun,
    executable: &Path,
    steps: bool,
) -> Result<Measured, RunError> {
    let (place, mut children) = gather(prepared, executable)?;
    let measured = place.measure(prepared, steps, &mut |_, _| children.check(), &mut |_| {});
    let measured = measured.map_err(|error| children.explain(error))?;
    children.part();
    Ok(measured)
}

/// Starts a process for every worker, and the place where they join.
fn gather(
    prepared: &PreparedRun,
    executable: &Path,
) -> Result<(OpenRendezvous, ChildProcesses), RunError> {
    let place = OpenRendezvous::open("127.0.0.1:0", f64::from(WAIT_SECONDS), Security::Automatic)?;
    let address = place.address().to_string();
    let mut children = ChildProcesses::default();
    let lost: BTreeSet<Rank> = prepared.start.departed().collect();
    let living = (0..prepared.config.workers).map(Rank::from).filter(|rank| !lost.contains(rank));
    for Rank(rank) in living {
        let mut command = restarted(executable);
        command.args(["join", &address, "--rank", &rank.to_string(), "--quiet"]);
        command.args(["--wait", &WAIT_SECONDS.to_string(), "--with-parent"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| {
            let name = executable.display();
            RunError::Process(format!("cannot start worker {rank} as {name}: {error}"))
        })?;
        children.children.insert(rank, Arc::new(Mutex::new(child)));
    }
    let by_rank = children.children.iter().map(|(rank, child)| (*rank, Arc::downgrade(child)));
    *killable() = by_rank.collect();
    Ok((place, children))
}

/// The processes of the run that is under way, by worker.
static KILLABLE: Mutex<BTreeMap<u32, Weak<Mutex<Child>>>> = Mutex::new(BTreeMap::new());

fn killable() -> MutexGuard<'static, BTreeMap<u32, Weak<Mutex<Child>>>> {
    KILLABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills the process of a worker, to see what the others do then; why not, if it cannot be.
pub fn kill_worker(rank: u32) -> Result<(), String> {
    let child = killable().get(&rank).and_then(Weak::upgrade);
    let child = child.ok_or_else(|| format!("rank {rank} has no process of its own here"))?;
    let killed = locked(&child).kill();
    killed.map_err(|error| format!("cannot kill the process of rank {rank}: {error}"))
}

fn locked(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends this process when standard input is closed, as it is when the parent is gone.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
}

/// The processes of the workers. None outlives this.
#[derive(Default)]
struct ChildProcesses {
    /// By rank.
    children: BTreeMap<u32, Arc<Mutex<Child>>>,
}

impl ChildProcesses {
    /// Whether all are there; none ends by itself before the run has.
    fn check(&mut self) -> Result<(), String> {
        for (rank, child) in &self.children {
            if let Ok(Some(status)) = locked(child).try_wait() {
                return Err(format!("worker {rank} {} before the run began", how(status)));
            }
        }
        Ok(())
    }

    /// Says how the process of a worker that was lost has ended.
    fn explain(&mut self, error: RunError) -> RunError {
        let RunError::Net(NetError::Lost { rank, .. }) = &error else { return error };
        let Some(child) = self.children.get(rank) else { return error };
        match wait_until(child, Instant::now() + Duration::from_secs(1)) {
            Some(status) => RunError::Process(format!("worker {rank} {} ({error})", how(status))),
            None => error,
        }
    }

    /// Waits until all have ended; says which did not end well.
    fn part(&mut self) -> Vec<String> {
        let until = Instant::now() + SHUTDOWN_GRACE;
        let children = std::mem::take(&mut self.children);
        let ended = |(rank, child): (u32, Arc<Mutex<Child>>)| match wait_until(&child, until) {
            Some(status) if status.success() => None,
            Some(status) => Some(format!("worker {rank} {} after the run", how(status))),
            None => {
                end(&child);
                Some(format!("the process of worker {rank} had to be ended"))
            }
        };
        children.into_iter().filter_map(ended).collect()
    }
}

impl Drop for ChildProcesses {
    fn drop(&mut self) {
        self.children.values().for_each(|child| end(child));
    }
}

/// "was killed by signal 9"
fn how(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("was killed by signal {signal}");
    }
    match status.code() {
        Some(code) => format!("ended with status {code}"),
        None => format!("ended: {status}"),
    }
}

/// How it ended, if it ended in time.
fn wait_until(child: &Mutex<Child>, until: Instant) -> Option<ExitStatus> {
    loop {
        let ended = locked(child).try_wait();
        match ended {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            _ => return None,
        }
    }
}

fn end(child: &Mutex<Child>) {
    // Both fail only where it has ended by itself.
    let mut child = locked(child);
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::source::parse;
    use crate::execute::execute;
    use crate::files::directory::Directory;
    use std::os::unix::fs::PermissionsExt;

    fn failure(script: &str) -> String {
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
        let drive = |recorder: &mut RunRecorder<'_>| processes(&prepared, &path, recorder);
        let ended = execute(&prepared, &directory, &mut |_| {}, drive);
        ended.expect_err("nobody joins").to_string()
    }

    /// `$4` is the rank. Those who are well wait until the pipe is closed.
    #[test]
    fn a_worker_that_dies_before_it_joins_is_named_with_how_it_ended() {
        let killed = failure("[ $4 = 2 ] && kill -9 $$; read forever");
        assert_eq!(killed, "worker 2 was killed by signal 9 before the run began");
        let ended = failure("[ $4 = 1 ] && exit 7; read forever");
        assert_eq!(ended, "worker 1 ended with status 7 before the run began");
    }
}
