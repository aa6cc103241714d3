//! The process of one worker: how it is started, signalled and ended, and what it said last.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use quelea_net::{WARNING_CHARS, shown};

use super::super::program::restarted;
use super::WAIT_SECONDS;
use crate::files::part_note::TAKEN_OVER;

/// As much as is kept of what a process said.
const KEPT_BYTES: usize = 4096;
/// How often it is looked whether a process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// How processes are started.
#[derive(Clone, Debug)]
pub(super) struct Starter {
    /// The `quelea` command.
    pub(super) executable: PathBuf,
    /// Where they join.
    pub(super) address: SocketAddr,
    /// Where the run is written: a process that takes over writes below.
    pub(super) folder: Option<PathBuf>,
    /// How many processes one that takes over may start in the place of others.
    pub(super) restarts: u32,
}

impl Starter {
    /// Starts the process of worker `rank`, or says why it cannot.
    pub(super) fn start(&self, rank: u32) -> Result<Arc<WorkerProcess>, String> {
        let mut command = restarted(&self.executable);
        command.args(["join", &self.address.to_string(), "--rank", &rank.to_string(), "--quiet"]);
        command.args(["--wait", &WAIT_SECONDS.to_string(), "--with-parent"]);
        if self.restarts > 0 {
            command.args(["--restarts", &self.restarts.to_string()]);
        }
        if let Some(folder) = &self.folder {
            command.arg("--out").arg(folder.join(format!("{TAKEN_OVER}{rank}")));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            let name = self.executable.display();
            format!("cannot start worker {rank} as {name}: {error}")
        })?;
        let said = Arc::new(Mutex::new(Vec::new()));
        if let Some(stderr) = child.stderr.take() {
            let kept = Arc::clone(&said);
            // Without the thread nothing is known of its last words, and it must not wait for a reader.
            let _ = std::thread::Builder::new().spawn(move || keep_last(stderr, &kept));
        }
        let process = Arc::new(WorkerProcess {
            child: Mutex::new(child),
            started: Instant::now(),
            was_killed_here: AtomicBool::new(false),
            is_released: AtomicBool::new(false),
            said,
        });
        running().insert(rank, Arc::downgrade(&process));
        Ok(process)
    }
}

/// Reads what a process says until it ends; the end of it is kept.
fn keep_last(mut stderr: ChildStderr, kept: &Mutex<Vec<u8>>) {
    let mut piece = [0; 1024];
    while let Ok(count @ 1..) = stderr.read(&mut piece) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&piece[..count]);
        let beyond = kept.len().saturating_sub(KEPT_BYTES);
        kept.drain(..beyond);
    }
}

/// One process. It ends when this is dropped, unless it was released.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    child: Mutex<Child>,
    started: Instant,
    /// Somebody here has killed it, to see what the others do then.
    was_killed_here: AtomicBool,
    /// It may go on without this process.
    is_released: AtomicBool,
    said: Arc<Mutex<Vec<u8>>>,
}

impl WorkerProcess {
    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it ended, if it has.
    pub(super) fn ended(&self) -> Option<ExitStatus> {
        self.child().try_wait().ok().flatten()
    }

    /// How it ended, if it ended in time.
    pub(super) fn wait_until(&self, until: Instant) -> Option<ExitStatus> {
        loop {
            match self.ended() {
                Some(status) => return Some(status),
                None if Instant::now() < until => std::thread::sleep(POLL_INTERVAL),
                None => return None,
            }
        }
    }

    /// Ends it.
    pub(super) fn end(&self) {
        // Both fail only where it has ended by itself.
        let mut child = self.child();
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Lets it go on without this process.
    pub(super) fn release(&self) {
        self.is_released.store(true, Ordering::Relaxed);
    }

    /// How long it has been there.
    pub(super) fn lived(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    /// Whether it was killed by [`kill_worker`].
    pub(super) fn was_killed_here(&self) -> bool {
        self.was_killed_here.load(Ordering::Relaxed)
    }

    /// "ended with status 1 (error: …)", with the last line that it wrote, if there is one.
    pub(super) fn how(&self, status: ExitStatus) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = String::from_utf8_lossy(&said).into_owned();
        let last = said.lines().rev().map(str::trim).find(|line| !line.is_empty());
        match last {
            Some(line) if !was_signalled(status) => {
                format!("{} ({})", how(status), shown(line, WARNING_CHARS))
            }
            _ => how(status),
        }
    }

    fn signal(&self, signal: ProcessSignal) -> Result<(), String> {
        let mut child = self.child();
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!("it {} already", how(status)));
        }
        if signal == ProcessSignal::Kill {
            self.was_killed_here.store(true, Ordering::Relaxed);
            return child.kill().map_err(|error| error.to_string());
        }
        // While the lock is held nobody reaps it, so the number is still its own.
        let number = child.id().to_string();
        let told = Command::new("kill").args([signal.option(), &number]).status();
        match told {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("`kill` {}", how(status))),
            Err(error) => Err(format!("cannot start `kill`: {error}")),
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        if !self.is_released.load(Ordering::Relaxed) {
            self.end();
        }
    }
}

fn was_signalled(status: ExitStatus) -> bool {
    status.code().is_none()
}

/// "was killed by signal 9"
pub(super) fn how(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("was killed by signal {signal}");
    }
    match status.code() {
        Some(code) => format!("ended with status {code}"),
        None => format!("ended: {status}"),
    }
}

/// What can be done to the process of a worker, to see what the others do then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessSignal {
    /// It ends at once.
    Kill,
    /// It stands still.
    Stop,
    /// It continues.
    Continue,
}

impl ProcessSignal {
    fn option(self) -> &'static str {
        match self {
            ProcessSignal::Kill => "-KILL",
            ProcessSignal::Stop => "-STOP",
            ProcessSignal::Continue => "-CONT",
        }
    }
}

/// The processes of the run that is under way, by worker.
static RUNNING: Mutex<BTreeMap<u32, Weak<WorkerProcess>>> = Mutex::new(BTreeMap::new());

fn running() -> MutexGuard<'static, BTreeMap<u32, Weak<WorkerProcess>>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The workers whose processes were started here and have not ended.
pub fn workers_with_processes() -> Vec<u32> {
    let all: Vec<_> = running().iter().map(|(rank, process)| (*rank, process.upgrade())).collect();
    let runs = |process: &Arc<WorkerProcess>| process.ended().is_none();
    all.into_iter()
        .filter(|(_, process)| process.as_ref().is_some_and(runs))
        .map(|(rank, _)| rank)
        .collect()
}

/// Kills the process of a worker, to see what the others do then; why not, if it cannot be.
pub fn kill_worker(rank: u32) -> Result<(), String> {
    signal_worker(rank, ProcessSignal::Kill)
        .map_err(|error| format!("cannot kill the process of rank {rank}: {error}"))
}

/// Sends a signal to the process of a worker; why not, if it cannot be.
pub fn signal_worker(rank: u32, signal: ProcessSignal) -> Result<(), String> {
    let process = running().get(&rank).and_then(Weak::upgrade);
    let process = process.ok_or_else(|| format!("rank {rank} has no process of its own here"))?;
    process.signal(signal)
}
