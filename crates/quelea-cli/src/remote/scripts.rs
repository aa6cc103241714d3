//! A script on other machines: one process per rank, which meet at the first host.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quelea_run::drive::RunSecret;

use super::fleet::{EndedProcess, Fleet, RemoteLine};
use super::hosts::{self, RemoteHost};
use crate::interrupt;
use crate::text::{mention, say};

/// How often it is looked whether somebody has pressed Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the others may take to end by themselves after one has failed.
const FAILED_GRACE: Duration = Duration::from_secs(5);
/// How long all may take after Ctrl-C; their hosts end them a little earlier.
const INTERRUPT_GRACE: Duration = Duration::from_secs(35);

/// What is started on every host.
#[derive(Clone, Debug)]
pub struct RemoteScript {
    /// The interpreter.
    pub program: String,
    /// The script and its arguments.
    pub words: Vec<String>,
    /// The folder in which it runs, the same on all hosts.
    pub folder: String,
    /// `HOST:PORT` where the processes meet.
    pub rendezvous: String,
    /// Further variables, for rank 0 only.
    pub first_env: BTreeMap<String, String>,
}

/// Runs the script on all hosts; the exit status.
pub fn run(fleet: &Fleet, hosts: &[RemoteHost], script: &RemoteScript) -> anyhow::Result<u8> {
    let secret = RunSecret::random_text()?;
    let world = hosts::total(hosts);
    interrupt::count_only();
    fleet.start(Some(&script.folder), Some(&script.program), |host, rank| {
        let mut env = BTreeMap::new();
        let mut set = |name: &str, value: String| env.insert(name.to_string(), value);
        set("QUELEA_RANK", rank.to_string());
        set("QUELEA_WORLD_SIZE", world.to_string());
        set("QUELEA_LOCAL_RANK", (rank - host.first_rank).to_string());
        set("QUELEA_LOCAL_SIZE", host.slots.to_string());
        set("QUELEA_RENDEZVOUS", script.rendezvous.clone());
        set("QUELEA_SECRET", secret.clone());
        if rank == 0 {
            env.extend(script.first_env.clone());
        }
        (script.words.clone(), env)
    });
    Ok(watch(fleet))
}

/// Shows what the hosts say until all processes have ended.
fn watch(fleet: &Fleet) -> u8 {
    let mut failed: Option<EndedProcess> = None;
    let (mut deadline, mut heard) = (None::<Instant>, 0);
    while fleet.is_running() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
        let mut show = |line: RemoteLine| {
            if line.error { mention(&line.labelled()) } else { say(&line.labelled()) }
        };
        for process in fleet.attend(POLL_INTERVAL, &mut show) {
            if process.status != Some(0) && failed.is_none() {
                failed = Some(process);
                deadline.get_or_insert(Instant::now() + FAILED_GRACE);
            }
        }
        let pressed = interrupt::counted();
        if pressed > heard {
            if pressed > 1 {
                break;
            }
            mention(
                "quelea: interrupted; the scripts have 30 s to end; Ctrl-C again ends them now",
            );
            fleet.interrupt();
            deadline = Some(Instant::now() + INTERRUPT_GRACE);
        }
        heard = pressed;
    }
    if heard > 0 {
        return crate::request::INTERRUPTED;
    }
    let Some(process) = failed else { return 0 };
    mention(&format!("quelea: {}; the others were ended", process.how));
    process
        .status
        .and_then(|status| u8::try_from(status).ok())
        .filter(|status| *status > 0)
        .unwrap_or(1)
}
