//! `quelea plan --measure`: real processes over loopback, the file that it saves, wrong uses.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn quelea(folder: &TempDir, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quelea"));
    command.args(words).current_dir(folder.path()).stdin(Stdio::null());
    command
}

fn run(folder: &TempDir, words: &[&str]) -> Output {
    quelea(folder, words).output().expect("the command can be started")
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn is_positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number.is_finite() && number > 0.0)
}

#[test]
fn this_machine_is_measured_and_planned_for_again_from_the_file() {
    let folder = folder();
    let words = ["plan", "--measure", "--task", "logistic", "-n", "2", "--json"];
    let plan = json(&run(&folder, &[&words[..], &["--save", "cluster.toml"]].concat()));
    let hosts = plan["measured"]["hosts"].as_array().expect("a list");
    assert_eq!((hosts.len(), &hosts[0]["workers"]), (1, &Value::from(2)));
    assert!(is_positive(&hosts[0]["internal_bytes_per_second"]), "{hosts:?}");
    assert!(is_positive(&hosts[0]["internal_latency_seconds"]), "{hosts:?}");
    let workers = plan["measured"]["workers"].as_array().expect("a list");
    assert_eq!(workers.len(), 2);
    assert!(workers.iter().all(|worker| is_positive(&worker["compute_seconds"])), "{workers:?}");
    assert_eq!(plan["situation"]["hosts"], 1);
    assert!(plan["verdict"].as_str().is_some_and(|text| text.starts_with("Take ")));

    // Everybody else understands the file.
    let again = json(&run(&folder, &["plan", "cluster.toml", "--json"]));
    assert_eq!(again["situation"], plan["situation"]);
    let simulated = run(&folder, &["simulate", "cluster.toml", "--set", "steps=3", "--json"]);
    let config = &json(&simulated)["config"];
    assert_eq!((&config["workers"], &config["task"]["name"]), (&2.into(), &"logistic".into()));
    // What it wrote may be replaced, what others wrote may not.
    fs::write(folder.path().join("mine.toml"), "workers = 3\n").expect("written");
    let refused = run(&folder, &[&words[..], &["--save", "mine.toml"]].concat());
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("mine.toml: is there already"), "{refused:?}");
}

/// A plan that waits for workers, and where.
fn waiting(
    folder: &TempDir,
    words: &[&str],
) -> (Child, String, impl Iterator<Item = String> + use<>) {
    let words = [&["plan", "--measure", "--listen", "127.0.0.1:0"], words].concat();
    let mut plan = quelea(folder, &words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let said = BufReader::new(plan.stderr.take().expect("piped")).lines();
    let mut said = said.map(|line| line.expect("text"));
    let invitation = said.next().expect("an invitation");
    let address = invitation.rsplit(' ').next().expect("an address").to_string();
    (plan, address, said)
}

#[test]
fn workers_join_to_be_measured() {
    let folder = folder();
    let words = ["-n", "2", "--parameters", "1e6", "--compute-ms", "20", "--json"];
    let (plan, address, said) = waiting(&folder, &words);
    let join = || quelea(&folder, &["join", &address, "-q"]).spawn().expect("it starts");
    let mut workers = [join(), join()];
    let output = plan.wait_with_output().expect("waited for");
    assert!(output.status.success(), "{:?}", said.collect::<Vec<_>>());
    let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(workers.iter_mut().all(|worker| worker.wait().expect("waited for").success()));
    // What was stated is not measured.
    assert_eq!(plan["measured"]["workers"], Value::Array(Vec::new()));
    assert_eq!(plan["situation"]["compute_seconds"], 0.02);
    assert!(is_positive(&plan["situation"]["internal_bytes_per_second"]));
}

#[test]
fn a_worker_that_does_not_come_and_one_that_dies_are_named() {
    let folder = folder();
    let (plan, address, said) = waiting(&folder, &["-n", "2", "--wait", "1"]);
    let mut worker = quelea(&folder, &["join", &address, "--rank", "1"])
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let output = plan.wait_with_output().expect("waited for");
    assert_eq!(output.status.code(), Some(1));
    let told: Vec<String> = said.collect();
    assert!(told.iter().any(|line| line.contains("for worker 0 to join")), "{told:?}");
    assert!(!worker.wait().expect("waited for").success());

    let (plan, address, mut said) = waiting(&folder, &["-n", "2", "--wait", "60"]);
    let join = |rank| {
        let mut join = quelea(&folder, &["join", &address, "-q", "--rank", rank]);
        join.stderr(Stdio::null()).spawn().expect("it starts")
    };
    let (mut first, mut second) = (join("0"), join("1"));
    said.find(|line| line.starts_with("measuring;")).expect("both have joined");
    second.kill().expect("killed");
    let output = plan.wait_with_output().expect("waited for");
    assert_eq!(output.status.code(), Some(1));
    let told: Vec<String> = said.collect();
    assert!(told.iter().any(|line| line.contains("lost rank 1")), "{told:?}");
    assert!(!first.wait().expect("waited for").success());
    second.wait().expect("waited for");
}

#[test]
fn wrong_uses_are_refused() {
    let cases: [(&[&str], &str); 9] = [
        (&["--listen", "127.0.0.1:0"], "--measure"),
        (&["--save", "x.toml"], "--measure"),
        (&["--measure", "--save", "no/x.toml"], "no/x.toml: there is no such folder"),
        (&["--measure", "--hosts", "2"], "cannot be used with '--hosts"),
        (&["--measure", "--bandwidth-gbps", "2"], "cannot be used with '--bandwidth-gbps"),
        (&["--measure", "--model", "resnet-50"], "give --compute-ms too, or --task instead"),
        (&["--measure", "--listen", "here"], "`--listen` = here: must be a host and a port"),
        (&["--measure", "--listen", "127.0.0.1:0", "--wait", "0"], "`--wait` = 0"),
        (&["--measure", "--task", "logistik"], "did you mean \"logistic\"?"),
    ];
    for (words, said) in cases {
        let folder = folder();
        let output = run(&folder, &[&["plan"], words].concat());
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {told}");
        assert!(told.contains(said), "{words:?}: {told}");
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 0);
    }
}
