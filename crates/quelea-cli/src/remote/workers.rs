//! The workers of a run on other machines: this process coordinates, and each of them joins with a token.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quelea_run::drive::{Driven, OpenRendezvous, Security};
use quelea_run::error::{RequestError, RunError};
use quelea_run::prepared::PreparedRun;
use quelea_run::recorder::RunRecorder;

use super::fleet::{EndedProcess, Fleet};
use super::hosts::RemoteHost;
use crate::text::mention;

/// How long workers may take to start, load their data and connect.
const WAIT_SECONDS: f64 = 60.0;
/// How often it is looked what the hosts say.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs a prepared run with workers on the hosts of a fleet. `own` is how they reach this machine; without it,
/// its address on the way to each.
pub fn run(
    fleet: Fleet,
    hosts: &[RemoteHost],
    own: Option<&str>,
    is_told: bool,
    prepared: &PreparedRun,
    recorder: &mut RunRecorder<'_>,
) -> Driven {
    let place = OpenRendezvous::open("0.0.0.0:0", WAIT_SECONDS, Security::Automatic)?;
    let mut tokens = BTreeMap::new();
    for host in hosts {
        let reached = own.map_or_else(|| own_address(host), |own| Ok(own.to_string()))?;
        let token = place.token(&reached).expect("it listens beyond this machine");
        tokens.insert(host.name.clone(), token.reveal());
    }
    fleet.start(None, None, |host, rank| {
        let words =
            ["join", "--rank", &rank.to_string(), "--wait", "60", "--quiet", "--with-parent"];
        let env = [("QUELEA_TOKEN".to_string(), tokens[&host.name].clone())];
        (words.map(str::to_string).to_vec(), env.into())
    });
    let watch = FleetWatch::start(fleet, is_told);
    place.run(prepared, &[], recorder, &mut |_, _| watch.check())
}

/// The address of this machine on the way to a host. No packet is sent.
fn own_address(host: &RemoteHost) -> Result<String, RunError> {
    let name = host.name.rsplit_once('@').map_or(&*host.name, |(_, name)| name);
    let refuse = |problem: String| {
        RunError::from(RequestError::Conflict(format!(
            "{name}: {problem}; --address NAME says how the hosts reach this machine"
        )))
    };
    let found = (name, 9).to_socket_addrs();
    let found =
        found.map_err(|error| refuse(format!("its address is not known here ({error})")))?;
    let way_out = |to: SocketAddr| {
        let any = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
        let socket = UdpSocket::bind(any)?;
        socket.connect(to)?;
        socket.local_addr().map(|own| own.ip())
    };
    let own = found.map(way_out).find_map(Result::ok);
    match own.ok_or_else(|| refuse("there is no way to it from here".into()))? {
        IpAddr::V6(ip) => Ok(format!("[{ip}]")),
        ip => Ok(ip.to_string()),
    }
}

/// Shows what the hosts say, as long as it is held; then ends what was started there.
struct FleetWatch {
    ended: Arc<Mutex<Vec<EndedProcess>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl FleetWatch {
    fn start(fleet: Fleet, is_told: bool) -> FleetWatch {
        let (ended, is_over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (kept, over) = (Arc::clone(&ended), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Acquire) {
                let gone = fleet.attend(POLL_INTERVAL, &mut |line| mention(&line.labelled()));
                for process in gone {
                    if is_told && process.status != Some(0) {
                        mention(&process.how);
                    }
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push(process);
                }
            }
        });
        FleetWatch { ended, is_over, thread: Some(thread) }
    }

    /// While workers are awaited: one that has ended will not come.
    fn check(&self) -> Result<(), String> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        match ended.first() {
            Some(process) => Err(format!("{} before the run began", process.how)),
            None => Ok(()),
        }
    }
}

impl Drop for FleetWatch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
