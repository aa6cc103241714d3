//! The real command between machines: tokens, what is refused, and that no secret is left anywhere.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const QUICK: [&str; 6] = ["--set", "task.name=logistic", "--set", "workers=2", "--set", "steps=20"];

fn quelea(folder: &TempDir, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quelea"));
    command.args(words).current_dir(folder.path()).stdin(Stdio::null());
    command.env("XDG_RUNTIME_DIR", folder.path()).env_remove("QUELEA_TOKEN");
    command
}

fn run(folder: &TempDir, words: &[&str]) -> Output {
    quelea(folder, words).output().expect("the command can be started")
}

fn errors(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("text")
}

/// An address at which other machines reach this one, if it has any.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then(|| ip.to_string())
}

/// Whether any file below `folder` has `part` in it.
fn is_anywhere(folder: &Path, part: &[u8]) -> bool {
    fs::read_dir(folder).expect("a folder").any(|entry| {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            return is_anywhere(&path, part);
        }
        fs::read(&path).expect("a file").windows(part.len()).any(|window| window == part)
    })
}

#[test]
fn workers_of_other_machines_need_the_token_and_nothing_of_it_stays() {
    let Some(ip) = own_address() else {
        return eprintln!("skipped: this machine has no address but loopback");
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bind = format!("{ip}:0");
    let words = ["serve", "--bind", &bind, "--out", "served"];
    let mut serve = quelea(&folder, &[&words[..], &QUICK].concat())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("started");
    let mut said = BufReader::new(serve.stderr.take().expect("piped")).lines();
    let first = said.next().expect("a line").expect("text");
    let token = first.rsplit(' ').next().expect("a token").to_string();
    assert!(token.starts_with(&format!("quelea:{ip}:")), "{first}");
    let address = token["quelea:".len()..].rsplit_once(':').expect("an address").0.to_string();

    let plain = run(&folder, &["join", &address]);
    assert!(errors(&plain).contains("is not this machine"), "{plain:?}");
    let plain = run(&folder, &["join", &address, "--insecure", "--wait", "5"]);
    assert!(errors(&plain).contains("prints a token accepts nothing else"), "{plain:?}");
    let cut = run(&folder, &["join", &token[..token.len() - 9]]);
    assert_eq!(cut.status.code(), Some(2), "{cut:?}");
    assert!(!errors(&cut).contains(&token[token.len() - 40..token.len() - 9]), "{cut:?}");

    let again = run(&folder, &["token", &address]);
    assert_eq!(std::str::from_utf8(&again.stdout).expect("text").trim(), token);
    let by_argument = quelea(&folder, &["join", &token]).spawn();
    let by_variable = quelea(&folder, &["join", "-q"]).env("QUELEA_TOKEN", &token).spawn();
    for worker in [by_argument, by_variable] {
        assert!(worker.expect("started").wait().expect("waited for").success());
    }
    let rest: Vec<String> = said.map(|line| line.expect("text")).collect();
    assert!(serve.wait().expect("waited for").success(), "{rest:?}");
    assert!(!is_anywhere(folder.path(), &token.as_bytes()[token.len() - 30..]));
    let none = run(&folder, &["token"]);
    assert_eq!(none.status.code(), Some(2), "{none:?}");
}

#[test]
fn a_worker_reads_only_below_the_folders_that_its_operator_names() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::create_dir(folder.path().join("data")).expect("a folder");
    let samples: String = (0..60).map(|i| format!("{} 1:{i} 2:1\n", i % 2)).collect();
    fs::write(folder.path().join("data/good.libsvm"), samples).expect("written");
    let serve = |data: &str| {
        let data = format!("task.data={}", folder.path().join(data).display());
        let words = ["serve", "--bind", "127.0.0.1:0", "--out", "run", "--force"];
        let mut serve = quelea(&folder, &[&words[..], &QUICK, &["--set", &data]].concat())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("started");
        let mut said = BufReader::new(serve.stderr.take().expect("piped")).lines();
        let first = said.next().expect("a line").expect("text");
        let address = first.rsplit(' ').next().expect("an address").to_string();
        (serve, said, address)
    };
    let (mut coordinator, said, address) = serve("data/good.libsvm");
    let refused = run(&folder, &["join", &address]);
    assert!(errors(&refused).contains("was given no --data DIR"), "{refused:?}");
    let told: Vec<String> = said.map(|line| line.expect("text")).collect();
    assert!(!coordinator.wait().expect("waited for").success());
    assert!(told.iter().any(|line| line.contains("the worker's own output says why")), "{told:?}");

    let (mut coordinator, said, address) = serve("data/good.libsvm");
    let join = || quelea(&folder, &["join", &address, "-q", "--data", "data"]).spawn();
    for worker in [join(), join()] {
        assert!(worker.expect("started").wait().expect("waited for").success());
    }
    let told: Vec<String> = said.map(|line| line.expect("text")).collect();
    assert!(coordinator.wait().expect("waited for").success(), "{told:?}");
}

#[test]
fn a_coordinator_listens_on_this_machine_only_unless_it_is_told_to() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The port may be taken by another run: then the sentence that says so has the address.
    let words = ["serve", "--wait", "1", "--out", "served"];
    let told = run(&folder, &[&words[..], &QUICK].concat());
    assert!(!told.status.success(), "nobody joins");
    assert!(errors(&told).contains("127.0.0.1:29470"), "{told:?}");
    assert!(!errors(&told).contains("0.0.0.0") && !errors(&told).contains("quelea:"), "{told:?}");
}
