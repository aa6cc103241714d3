//! One process per worker on this machine, over TCP; the servers stay in this one.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Driven, Place};
use crate::conduct::Listener;
use crate::error::RunError;
use crate::plan::Plan;

/// How long all processes may take to start, load their data and connect.
const WAIT_SECONDS: f64 = 60.0;
/// How long a process may take to end after the run has.
const FAREWELL: Duration = Duration::from_secs(5);

/// Runs every worker as a process of `executable`, which must be the `murmura` command.
pub fn processes(plan: &Plan, executable: &Path, listener: &mut Listener<'_>) -> Driven {
    let place = Place::open("127.0.0.1:0", WAIT_SECONDS)?;
    let address = place.address().to_string();
    let mut crew = Crew::default();
    for rank in 0..plan.config.workers {
        let mut command = Command::new(executable);
        command.args(["join", &address, "--rank", &rank.to_string(), "--quiet"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| {
            let name = executable.display();
            RunError::Process(format!("cannot start worker {rank} as {name}: {error}"))
        })?;
        crew.children.push(child);
    }
    let (clock, mut outcome) = place.run(plan, &[], listener)?;
    outcome.warnings.extend(crew.part());
    Ok((clock, outcome))
}

/// The processes of the workers. None outlives this.
#[derive(Default)]
struct Crew {
    children: Vec<Child>,
}

impl Crew {
    /// Waits until all have ended; says which did not end well.
    fn part(&mut self) -> Vec<String> {
        let until = Instant::now() + FAREWELL;
        let children = std::mem::take(&mut self.children);
        let ended = |(rank, mut child): (usize, Child)| match wait_until(&mut child, until) {
            Some(true) => None,
            Some(false) => Some(format!("the process of worker {rank} ended with an error")),
            None => {
                end(&mut child);
                Some(format!("the process of worker {rank} had to be ended"))
            }
        };
        children.into_iter().enumerate().filter_map(ended).collect()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.children.iter_mut().for_each(end);
    }
}

/// Whether it ended well, if it ended in time.
fn wait_until(child: &mut Child, until: Instant) -> Option<bool> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            _ => return None,
        }
    }
}

fn end(child: &mut Child) {
    // Both fail only where it has ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}
