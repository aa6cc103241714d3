//! What somebody between two hosts sees: a worker in a network namespace of its own, joined over a virtual
//! cable that is recorded. Needs root and `ip`; elsewhere it is left out.

mod common;

use std::net::IpAddr;
use std::process::{Child, Command, Stdio};

use common::capture::{Capture, has};
use common::{Run, Watch, bits, worker_with};
use quelea_net::{Coordinator, Hosted, NetOptions, Security};
use quelea_record::Outcome;

const HERE: &str = "10.213.77.1";
const THERE: &str = "10.213.77.2";
const MARK: &str = "mark-of-this-job";

/// A host at the other end of a cable; taken down when dropped.
struct Host {
    name: String,
}

impl Host {
    fn new() -> Option<Host> {
        // Names of interfaces have at most 15 letters.
        let host = Host { name: format!("qw{}", std::process::id()) };
        let cable = format!("{}v", host.name);
        let name = &host.name.clone();
        let commands: [&[&str]; 7] = [
            &["netns", "add", name],
            &["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", name],
            &["addr", "add", &format!("{HERE}/24"), "dev", &cable],
            &["link", "set", &cable, "up"],
            &["-n", name, "addr", "add", &format!("{THERE}/24"), "dev", "eth0"],
            &["-n", name, "link", "set", "eth0", "up"],
            &["-n", name, "link", "set", "lo", "up"],
        ];
        let is_up = commands.into_iter().all(ip);
        is_up.then_some(host)
    }

    /// Joins from there. What opens the run is in its environment.
    fn worker(&self, place: &str, insecure: bool) -> Child {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(std::env::current_exe().expect("a test"));
        command.args(["--exact", "worker_process", "--nocapture"]).env("QUELEA_TEST_PLACE", place);
        if insecure {
            command.env("QUELEA_INSECURE", "1");
        }
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("ip was there before")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Its end of the cable goes with it.
        ip(&["netns", "del", &self.name]);
    }
}

fn ip(words: &[&str]) -> bool {
    let done = Command::new("ip").args(words).stdout(Stdio::null()).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}

/// Not a test by itself: what runs on the other host.
#[test]
fn worker_process() {
    let Ok(place) = std::env::var("QUELEA_TEST_PLACE") else { return };
    let security = Security::from_env(|name| std::env::var(name).ok()).expect("good");
    let options = NetOptions { security, ..NetOptions::default() };
    worker_with(&place, Some(1), &options).expect("it takes part");
}

/// What is on the cable during a run, what it came to, and what opened it.
fn recorded(host: &Host, security: Security) -> Option<(Vec<u8>, Outcome, String)> {
    let run = Run { dimensions: 20_000, ..Run::of("d-psgd", 2) };
    let ip: IpAddr = HERE.parse().expect("an address");
    let capture = Capture::start(ip)?;
    let insecure = security == Security::Insecure;
    let options = NetOptions { security, ..NetOptions::default() };
    let coordinator = Coordinator::bind(&format!("{HERE}:0"), options).expect("a free port");
    let token = coordinator.token(HERE).map(|token| token.reveal());
    let place = token.unwrap_or_else(|| coordinator.address().to_string());
    let mut worker = host.worker(&place, insecure);
    let job = [&run.job()[..], b" ", MARK.as_bytes()].concat();
    let hosted = Hosted { workers: vec![0] };
    let outcome = coordinator.run(job, &run.setup(), &run.gradients(), &hosted, &mut Watch::new());
    let _ = worker.wait();
    let outcome = outcome.expect("it ends well");
    assert_eq!(bits(&outcome), bits(&run.threads().expect("threads")));
    Some((capture.finish(), outcome, place))
}

/// A few parameters of worker 1, which sends all of them in its report.
fn parameters(outcome: &Outcome) -> Vec<Vec<u8>> {
    let values = outcome.ranks[1].params.chunks_exact(4).step_by(500);
    values.map(|four| four.iter().flat_map(|value| value.to_le_bytes()).collect()).collect()
}

#[test]
fn nothing_on_the_cable_between_two_hosts_can_be_read() {
    let Some(host) = Host::new() else {
        return eprintln!("skipped: needs root and `ip`, for a network namespace");
    };
    let Some((plain, outcome, _)) = recorded(&host, Security::Insecure) else {
        return eprintln!("skipped: this process may not see packets (it needs CAP_NET_RAW)");
    };
    // The recording shows what it should not show below.
    assert!(has(&plain, MARK.as_bytes()) && has(&plain, b"QLEA") && has(&plain, b"d-psgd"));
    assert!(parameters(&outcome).iter().any(|part| has(&plain, part)));

    let (bytes, outcome, token) = recorded(&host, Security::Automatic).expect("as before");
    assert!(bytes.len() > plain.len() / 2, "{} and {}", bytes.len(), plain.len());
    for text in [MARK, "QLEA", "QLEC", "d-psgd", "quelea", "rank-", "coordinator"] {
        assert!(!has(&bytes, text.as_bytes()), "{text}");
    }
    let secrets = token.as_bytes().windows(16).skip("quelea:".len() + HERE.len() + 6);
    for part in secrets.step_by(4).map(<[u8]>::to_vec).chain(parameters(&outcome)) {
        assert!(!has(&bytes, &part), "{part:?}");
    }
    println!("{} bytes on the cable with TLS, {} without", bytes.len(), plain.len());
}
