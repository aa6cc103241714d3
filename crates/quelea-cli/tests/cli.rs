//! The real command: exit status, what is printed where, what is left on disk.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

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

fn status(output: &Output) -> i32 {
    output.status.code().expect("it was not killed")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// A quick run of a model with 31 parameters that twenty steps teach something.
const QUICK: [&str; 6] = ["--set", "task.name=logistic", "--set", "workers=3", "--set", "steps=20"];

fn quick(folder: &TempDir, words: &[&str]) -> Output {
    run(folder, &[words, &QUICK].concat())
}

fn summary(folder: &TempDir, out: &str) -> Value {
    let bytes = fs::read(folder.path().join(out).join("summary.json")).expect("a summary");
    serde_json::from_slice(&bytes).expect("JSON")
}

fn files(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

const FILES: [&str; 6] = [
    "best.safetensors",
    "final.safetensors",
    "plots",
    "records.jsonl",
    "summary.json",
    "trace.json",
];

#[test]
fn every_command_has_help_with_examples() {
    let folder = folder();
    let commands = [
        "train",
        "simulate",
        "compare",
        "reproduce",
        "plan",
        "topology",
        "list",
        "data",
        "serve",
        "join",
        "token",
        "submit",
        "doctor",
        "launch",
        "completions",
        "man",
    ];
    for command in commands {
        let output = run(&folder, &[command, "--help"]);
        assert_eq!(status(&output), 0, "{command}");
        assert!(text(&output.stdout).contains("Examples:\n  quelea "), "{command}");
    }
    assert!(text(&run(&folder, &["--help"]).stdout).contains("Exit status: 0 done, 1 "));
}

#[test]
fn wrong_requests_end_with_status_2_and_change_nothing() {
    let folder = folder();
    fs::write(folder.path().join("broken.toml"), "workers = = 3").expect("written");
    for (words, expected) in [
        (vec!["simulat"], "simulate"),
        (vec!["simulate", "--sat", "workers=1"], "--set"),
        (vec!["simulate", "--set", "workers"], "--set workers: must be key=value"),
        (vec!["simulate", "--set", "workers=0"], "`workers` = 0: must be"),
        (vec!["train", "--set", "optimizer.lr=nan"], "`optimizer.lr` = nan"),
        (vec!["simulate", "absent.toml"], "absent.toml: no such file"),
        (vec!["simulate", "."], ".: is a folder, not a file"),
        (vec!["simulate", "broken.toml"], "broken.toml: is not TOML: TOML parse error at line 1"),
        (vec!["simulate", "--out", "broken.toml"], "broken.toml: is a file"),
        (vec!["topology", "rang", "--workers", "4"], "did you mean \"ring\"?"),
        (vec!["topology", "ring", "--workers", "0"], "`--workers` = 0: must be"),
        (vec!["topology", "ring", "--workers", "4", "--hosts", "5"], "`--hosts` = 5: must be"),
        (vec!["topology", "aer", "--workers", "6"], "power of two"),
        (vec!["list", "algorithm"], "algorithms"),
        (vec!["train", "--processes", "--threads"], "cannot be used with"),
        (vec!["serve", "--bind", "127.0.0.1:0", "--out", "broken.toml"], "broken.toml: is a file"),
        (vec!["serve", "--bind", "here"], "`--bind` = here: must be a host and a port"),
        (vec!["join", "coordinator"], "`HOST:PORT` = coordinator: must be a host and a port"),
        (vec!["join", "127.0.0.1:1", "--wait", "0"], "`--wait` = 0: must be at least 1 second"),
        (vec!["serve", "--set", "task.name=digits"], "unknown name"),
    ] {
        let output = run(&folder, &words);
        assert_eq!(status(&output), 2, "{words:?}");
        assert!(output.stdout.is_empty(), "{words:?}");
        let said = text(&output.stderr);
        assert!(said.contains(expected) && !said.contains("waiting for"), "{words:?}: {said}");
    }
    assert_eq!(files(folder.path()), ["broken.toml"]);
}

#[test]
fn a_run_that_fails_ends_with_status_1_and_keeps_what_was_recorded() {
    let folder = folder();
    let crash = "cluster.faults.crashes=[{ rank = 3, at_ms = 500 }]";
    let output = quick(&folder, &["simulate", "--set", crash, "--out", "failed"]);
    assert_eq!(status(&output), 1);
    assert!(text(&output.stderr).contains("error: server rank 3 was lost"), "{output:?}");
    assert!(text(&output.stderr).contains("what was recorded is in failed"), "{output:?}");
    assert_eq!(files(&folder.path().join("failed")), ["best.safetensors", "records.jsonl"]);
    let output = run(&folder, &["join", "127.0.0.1:1", "--wait", "1"]);
    assert_eq!(status(&output), 1);
    assert!(text(&output.stderr).contains("127.0.0.1:1"), "{output:?}");
    assert_eq!(files(folder.path()), ["failed"]);
}

#[test]
fn piped_output_is_plain_with_progress_on_the_other_stream() {
    let folder = folder();
    let output = run(&folder, &["simulate", "--set", "steps=100"]);
    assert_eq!(status(&output), 0);
    let (report, progress) = (text(&output.stdout), text(&output.stderr));
    assert!(!report.contains('\x1b') && !progress.contains('\x1b'));
    for word in ["loss", "accuracy", "compute", "exposed", "waiting", "Files: runs/", "Try next:"] {
        assert!(report.contains(word), "{word} in {report}");
    }
    assert!(progress.lines().count() >= 10, "{progress}");
    assert!(progress.contains("100 %  800 of 800 steps"), "{progress}");
    let quiet = run(&folder, &["simulate", "--set", "steps=100", "--quiet"]);
    assert!(quiet.stdout.is_empty() && quiet.stderr.is_empty(), "{quiet:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_printed_is_an_error_unless_the_reader_is_gone() {
    let folder = folder();
    for words in [
        &["simulate", "--json", "--set", "workers=3", "--set", "steps=20"][..],
        &["simulate", "--set", "workers=3", "--set", "steps=20"],
        &["list", "tasks"],
        &["topology", "ring", "--workers", "4"],
        &["--help"],
    ] {
        let full = fs::File::options().write(true).open("/dev/full").expect("Linux has it");
        let output = quelea(&folder, words).stdout(full).output().expect("started");
        assert_eq!(status(&output), 1, "{words:?}");
        let said = text(&output.stderr);
        assert!(said.contains("cannot write to standard output: No space left"), "{said}");
        let mut command = quelea(&folder, words);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("started");
        drop(child.stdout.take());
        assert!(child.wait().expect("waited for").success(), "{words:?}");
    }
}

#[test]
fn options_without_a_command_are_those_of_train() {
    let folder = folder();
    let output = run(&folder, &["--json", "--set", "steps=5", "--out", "run"]);
    assert_eq!(status(&output), 0, "{output:?}");
    assert_eq!(summary(&folder, "run")["clock"], "real");
    let quiet = run(&folder, &["-q", "--set", "steps=5"]);
    assert_eq!((status(&quiet), quiet.stdout.len()), (0, 0));
}

#[test]
fn what_is_suggested_works() {
    let folder = folder();
    let words = ["simulate", "--set", "steps=30", "--set", "cluster.slow={ \"1\" = 2.0 }"];
    let output = run(&folder, &words);
    let report = text(&output.stdout);
    let me = env!("CARGO_BIN_EXE_quelea");
    let lines: Vec<&str> = report.lines().filter(|line| line.trim().starts_with(me)).collect();
    assert_eq!(lines.len(), 4, "{report}");
    // What has to be downloaded first is not tried here.
    for line in lines.iter().filter(|line| !line.contains(" data get ")) {
        let shell = Command::new("sh").args(["-c", line]).current_dir(folder.path()).output();
        let output = shell.expect("a shell");
        assert_eq!(status(&output), 0, "{line}: {}", text(&output.stderr));
    }
}

#[test]
fn json_is_the_summary_and_nothing_else() {
    let folder = folder();
    let output = quick(&folder, &["simulate", "--json", "--out", "run"]);
    let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(printed, summary(&folder, "run"));
    let keys: Vec<&str> =
        printed.as_object().expect("a table").keys().map(String::as_str).collect();
    let expected = "version clock config loss accuracy clock_seconds steps samples \
        worker_models best resumed_from_step epochs samples_per_second speedup consensus_distance total workers ranks staleness \
        gradients_per_message half_exchanges poisoned in_flight records_stride warnings";
    let mut expected: Vec<&str> = expected.split_whitespace().collect();
    let mut sorted = keys.clone();
    expected.sort_unstable();
    sorted.sort_unstable();
    assert_eq!(sorted, expected);
    assert_eq!(printed["clock"], "virtual");
    assert_eq!(printed["clock_seconds"], 2.0);
    assert_eq!(printed["config"]["steps"], 20);
    assert_eq!(printed["workers"][2]["steps"], 20);
    assert_eq!(printed["workers"][2]["compute_seconds"], 2.0);
    assert_eq!(printed["ranks"][3]["role"], "server");
    assert!(printed["accuracy"].as_f64().expect("a share") > 0.9);
}

#[test]
fn the_files_are_what_the_manual_says() {
    let folder = folder();
    let output = quick(&folder, &["train", "--out", "deep/run"]);
    assert_eq!(status(&output), 0, "{output:?}");
    let path = folder.path().join("deep/run");
    assert_eq!(files(&path), FILES);
    let lines = BufReader::new(fs::File::open(path.join("records.jsonl")).expect("there")).lines();
    let records: Vec<Value> =
        lines.map(|line| serde_json::from_str(&line.expect("text")).expect("JSON")).collect();
    let of_kind = |kind: &str| records.iter().filter(|record| record["kind"] == kind).count();
    assert_eq!(of_kind("step"), 60);
    // Of a real run, those that come too soon after each other are left out.
    assert!((1..=20).contains(&of_kind("evaluation")));
    assert_eq!(of_kind("workers"), 1);
    for record in &records {
        assert!(record["t"].is_number() && record["rank"].is_u64() && record["step"].is_u64());
    }
    let trace: Value =
        serde_json::from_slice(&fs::read(path.join("trace.json")).expect("there")).expect("JSON");
    assert!(trace["traceEvents"].as_array().expect("events").len() > 4);
    let bytes = fs::read(path.join("final.safetensors")).expect("there");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("readable");
    let mut names = tensors.names();
    names.sort_unstable();
    assert_eq!(names, ["model", "server.0", "worker.0", "worker.1", "worker.2"]);
    for name in names {
        let tensor = tensors.tensor(name).expect("there");
        assert_eq!((tensor.dtype(), tensor.shape()), (safetensors::Dtype::F32, &[31][..]));
    }
}

#[test]
fn an_earlier_run_is_neither_overwritten_nor_lost() {
    let folder = folder();
    assert_eq!(status(&quick(&folder, &["simulate", "--out", "run"])), 0);
    let contents =
        || FILES.map(|file| fs::read(folder.path().join("run").join(file)).unwrap_or_default());
    let before = contents();
    let again = quick(&folder, &["simulate", "--out", "run", "--set", "seed=2"]);
    assert_eq!(status(&again), 2);
    assert!(text(&again.stderr).contains("run: holds an earlier run"), "{again:?}");
    assert!(contents() == before);
    let crash = "cluster.faults.crashes=[{ rank = 3, at_ms = 500 }]";
    let failed = quick(&folder, &["simulate", "--out", "run", "--force", "--set", crash]);
    assert_eq!(status(&failed), 1);
    assert!(contents() == before, "a run that fails replaces nothing");
    let forced = quick(&folder, &["simulate", "--out", "run", "--force", "--set", "seed=2"]);
    assert_eq!(status(&forced), 0);
    assert!(contents() != before);
    assert_eq!(files(&folder.path().join("run")), FILES);
    quick(&folder, &["simulate"]);
    quick(&folder, &["simulate"]);
    assert_eq!(files(&folder.path().join("runs")).len(), 2, "each run has its own folder");
}

#[test]
fn a_run_is_repeated_from_its_summary() {
    let folder = folder();
    let words = ["simulate", "-q", "--set", "epochs=2", "--set", "workers=3", "--out", "one"];
    assert_eq!(status(&run(&folder, &words)), 0);
    let again = run(&folder, &["simulate", "one/summary.json", "-q", "--out", "two"]);
    assert_eq!(status(&again), 0, "{again:?}");
    let tensors = |run: &str| fs::read(folder.path().join(run).join("final.safetensors"));
    assert!(tensors("one").expect("there") == tensors("two").expect("there"));
    assert_eq!(summary(&folder, "one")["epochs"], 2.0);
    assert_eq!(summary(&folder, "one")["config"], summary(&folder, "two")["config"]);
    fs::write(folder.path().join("other.json"), "{\"workers\": 3}").expect("written");
    let other = run(&folder, &["simulate", "other.json"]);
    assert_eq!(status(&other), 2);
    assert!(text(&other.stderr).contains("other.json: has no `config`"), "{other:?}");
}

#[test]
fn synchronous_runs_are_the_same_bits_however_they_are_driven() {
    let folder = folder();
    let cases = ["allreduce", "d-psgd", "sync-ps"].map(|name| [1, 2, 3, 4, 8].map(|n| (name, n)));
    for (algorithm, workers) in cases.into_iter().flatten() {
        let (name, count) = (format!("algorithm.name={algorithm}"), format!("workers={workers}"));
        let shared = ["--set", &name, "--set", &count, "--set", "steps=20", "--quiet"];
        let tensors = |mode: &[&str], out: &str| {
            let out = format!("{algorithm}-{workers}-{out}");
            let output = run(&folder, &[mode, &shared, &["--out", &out]].concat());
            assert_eq!(status(&output), 0, "{}", text(&output.stderr));
            fs::read(folder.path().join(&out).join("final.safetensors")).expect("there")
        };
        let slow = ["--set", "cluster.slow.0=3"];
        let simulated = tensors(&["simulate"], "simulated");
        for (mode, out) in [
            (&["simulate"][..], "again"),
            (&["train"], "threads"),
            (&["train", "--processes"], "processes"),
        ] {
            assert!(simulated == tensors(mode, out), "{algorithm}, {workers} workers, {out}");
            let slowed = tensors(&[mode, &slow].concat(), &format!("{out}-slow"));
            assert!(simulated == slowed, "{algorithm}, {workers} workers, {out}, one slow");
        }
    }
}

#[test]
fn workers_join_from_elsewhere() {
    let folder = folder();
    let words = ["serve", "--bind", "127.0.0.1:0", "--out", "served", "--set", "cluster.servers=2"];
    let mut serve = quelea(&folder, &[&words[..], &QUICK].concat())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("started");
    let mut said = BufReader::new(serve.stderr.take().expect("piped")).lines();
    let first = said.next().expect("a line").expect("text");
    let address = first.rsplit(' ').next().expect("an address").to_string();
    assert!(first.starts_with("waiting for 3 workers"), "{first}");
    let beyond = run(&folder, &["join", &address, "--rank", "3"]);
    assert_eq!(status(&beyond), 2, "there are workers 0 to 2 only");
    assert!(text(&beyond.stderr).contains("there is no worker 3"), "{beyond:?}");
    let joined = |rank: &[&str]| quelea(&folder, &[&["join", &address], rank].concat()).spawn();
    let workers = [joined(&["--rank", "2"]), joined(&[]), joined(&["-q"])];
    for worker in workers {
        assert!(worker.expect("started").wait().expect("waited for").success());
    }
    let rest: Vec<String> = said.map(|line| line.expect("text")).collect();
    assert!(rest.iter().any(|line| line == "3 of 3 workers have joined"), "{rest:?}");
    assert!(serve.wait().expect("waited for").success(), "{rest:?}");
    assert_eq!(summary(&folder, "served")["steps"], 60);
}

#[test]
fn a_worker_of_a_parent_that_is_gone_ends_at_once() {
    let folder = folder();
    // Its standard input is at its end from the beginning; it would wait for ten minutes.
    let words = ["join", "127.0.0.1:1", "--quiet", "--with-parent"];
    let output = run(&folder, &words);
    assert_eq!(status(&output), 1);
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn mpirun_starts_one_worker_per_process() {
    let folder = folder();
    let run = |words: &[&str]| {
        Command::new("mpirun")
            .args(["--allow-run-as-root", "--oversubscribe", "-n", "3"])
            .arg(env!("CARGO_BIN_EXE_quelea"))
            .args(words)
            .current_dir(folder.path())
            .output()
    };
    let Ok(output) = run(&["train", "--set", "steps=20", "--out", "mpi", "--json"]) else {
        eprintln!("skipped: mpirun is not here");
        return;
    };
    assert_eq!(status(&output), 0, "{}", text(&output.stderr));
    let printed: Value = serde_json::from_slice(&output.stdout).expect("one summary");
    assert_eq!(
        (printed["config"]["workers"].as_u64(), printed["steps"].as_u64()),
        (Some(3), Some(60))
    );
    let wrong = run(&["train", "--set", "workers=5"]).expect("there");
    assert_eq!(status(&wrong), 2);
    assert!(text(&wrong.stderr).contains("has started 3 processes"), "{wrong:?}");
}

#[test]
fn a_launcher_that_says_too_little_is_refused_unless_threads_are_asked_for() {
    let folder = folder();
    let with = |words: &[&str], variables: &[(&str, &str)]| {
        let mut command = quelea(&folder, &[words, &QUICK, &["-q"]].concat());
        command.envs(variables.iter().copied()).output().expect("started")
    };
    let beyond = [("RANK", "5"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h")];
    let half = [("JOB_COMPLETION_INDEX", "0")];
    for (variables, expected) in [
        (&beyond[..], "error: torchrun: RANK=5: must be below WORLD_SIZE=2 (--threads leaves"),
        (&half, "error: Kubernetes: QUELEA_WORLD_SIZE is not set: set it to the number"),
    ] {
        let refused = with(&["train"], variables);
        assert_eq!(status(&refused), 2, "{refused:?}");
        assert!(text(&refused.stderr).starts_with(expected), "{refused:?}");
        assert_eq!(status(&with(&["train", "--threads"], variables)), 0);
    }
    let second = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h")];
    let other = with(&["simulate", "--out", "run"], &second);
    assert_eq!((status(&other), folder.path().join("run").exists()), (0, false), "{other:?}");
    let racing = with(&["train", "--threads", "--out", "run"], &second);
    assert_eq!(status(&racing), 2);
    assert!(text(&racing.stderr).contains("each would write to --out run"), "{racing:?}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_is_saved_and_can_be_gone_on_with() {
    let folder = folder();
    let words = ["simulate", "--set", "steps=1000000000", "--out", "stopped"];
    let mut child = quelea(&folder, &words)
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("started");
    let path = folder.path().join("stopped");
    // Once something is recorded there is a run that can be saved.
    let is_recorded = |name: &String| {
        let draft = std::fs::metadata(path.join(name));
        name.contains("records") && draft.is_ok_and(|draft| draft.len() > 0)
    };
    while !path.exists() || !files(&path).iter().any(is_recorded) {
        assert!(child.try_wait().expect("asked").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.expect("kill is there").success());
    let output = child.wait_with_output().expect("waited for");
    assert_eq!(status(&output), 130);
    assert!(text(&output.stderr).contains("resume it with --resume stopped"), "{output:?}");
    assert_eq!(files(&path.join("checkpoints")).len(), 1);
    assert!(!path.join("summary.json").exists());
}

#[test]
fn tables_are_printed_for_people_and_for_programs() {
    let folder = folder();
    for (table, name) in [
        ("algorithms", "aladdin"),
        ("topologies", "ring"),
        ("optimizers", "sgd"),
        ("schedules", "cosine"),
        ("tasks", "quadratic"),
        ("collectives", "hierarchical"),
        ("settings", "cluster"),
    ] {
        let output = run(&folder, &["list", table]);
        assert!(text(&output.stdout).contains(name), "{table}");
        let output = run(&folder, &["list", table, "--json"]);
        let rows: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let rows = rows.as_array().expect("rows");
        assert!(rows.iter().any(|row| row["name"] == name), "{table}");
    }
}

#[test]
fn a_topology_is_measured_and_drawn() {
    let folder = folder();
    let words = ["topology", "ring", "--workers", "16", "--json", "--svg", "ring.svg"];
    let output = run(&folder, &words);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rho = report["rho"].as_f64().expect("a number");
    assert!((rho - (1.0 + 2.0 * (std::f64::consts::TAU / 16.0).cos()) / 3.0).abs() < 1e-9);
    assert_eq!(report["rounds"][0]["in_degree_max"], 2);
    let picture = fs::read_to_string(folder.path().join("ring.svg")).expect("drawn");
    assert!(picture.starts_with("<svg"));
    let again = run(&folder, &words);
    assert_eq!(status(&again), 2);
    assert!(text(&again.stderr).contains("ring.svg: is there already"), "{again:?}");
    assert_eq!(status(&run(&folder, &[&words[..], &["--force"]].concat())), 0);
    let plain = run(&folder, &["topology", "aer", "--workers", "8", "--hosts", "4"]);
    assert!(text(&plain.stdout).starts_with("aer over 8 workers"), "{plain:?}");
    assert!(text(&plain.stdout).contains("geometric mean over a period"), "{plain:?}");
}

#[test]
fn a_run_that_diverged_says_so_in_its_table() {
    let folder = folder();
    let words = ["--set", "task.name=quadratic", "--set", "optimizer.lr=1e6"];
    let output = run(&folder, &[&["simulate", "--set", "steps=200"], &words[..]].concat());
    assert_eq!(status(&output), 0, "{output:?}");
    let report = text(&output.stdout);
    assert!(report.lines().any(|line| line.starts_with("loss ") && line.ends_with(" NaN")));
    assert!(report.contains("Note: the run diverged"), "{report}");
}

#[test]
fn as_many_evaluations_are_recorded_as_were_asked_for() {
    let folder = folder();
    for (steps, count) in [("30", "20"), ("40", "20"), ("20", "1"), ("20", "0")] {
        let settings = [format!("steps={steps}"), format!("evaluations={count}")];
        let words = ["simulate", "-q", "--out", "run", "--force"];
        let set = ["--set", &settings[0], "--set", &settings[1]];
        assert_eq!(status(&run(&folder, &[&words[..], &set].concat())), 0);
        let records = fs::read_to_string(folder.path().join("run/records.jsonl")).expect("there");
        let lines = records.lines().filter(|line| line.contains("\"evaluation\"")).count();
        assert_eq!(lines, count.parse::<usize>().expect("a number").max(1), "{settings:?}");
    }
}

#[test]
fn every_example_runs() {
    let folder = folder();
    let examples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut count = 0;
    for name in files(&examples).iter().filter(|name| name.ends_with(".toml")) {
        let path = examples.join(name).canonicalize().expect("there");
        // Where data do not come with the project, embedded ones stand in.
        let data: &[&str] = match name.as_str() {
            "logistic-a9a.toml" => &["--set", "task.data=", "--set", "task.test="],
            "fashion-cnn.toml" | "cifar10.toml" => {
                &["--set", "task.name=digits-mlp", "--set", "task.subset=500"]
            }
            _ => &[],
        };
        let words = ["simulate", path.to_str().expect("text"), "--quiet", "--out", name];
        let output = run(&folder, &[&words, data].concat());
        assert_eq!(status(&output), 0, "{name}: {}", text(&output.stderr));
        count += 1;
    }
    assert!(count >= 4);
}

#[test]
fn the_example_of_a_quadratic_finds_its_known_minimum() {
    let folder = folder();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/quadratic.toml");
    assert_eq!(status(&run(&folder, &["simulate", example, "--quiet", "--out", "run"])), 0);
    let bytes = fs::read(folder.path().join("run/final.safetensors")).expect("there");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("readable");
    let model = tensors.tensor("model").expect("there");
    let words = model.data().as_chunks::<4>().0;
    let values: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    assert!((values[0] - 1.0).abs() < 1e-5 && (values[1] - 2.0).abs() < 1e-5, "{values:?}");
}

#[test]
fn data_sets_are_listed_verified_and_fetched_by_name() {
    let folder = folder();
    let listed = run(&folder, &["data"]);
    assert_eq!(status(&listed), 0);
    for name in ["cifar10", "fashion-mnist", "mnist", "multi30k", "tiny-shakespeare"] {
        assert!(text(&listed.stdout).contains(name), "{name}");
    }
    let here = folder.path().to_str().expect("text");
    fs::write(folder.path().join("input.txt"), "To be, or not to be").expect("written");
    let wrong = run(&folder, &["data", "check", here]);
    assert_eq!(status(&wrong), 1);
    assert!(text(&wrong.stdout).contains("input.txt  holds 19 bytes, not 1115394"));
    assert!(text(&wrong.stderr).contains("1 of 1 file of tiny-shakespeare wrong or missing"));
    for (words, expected) in [
        (vec!["data", "get", "mnsit"], "did you mean mnist?"),
        (vec!["data", "get", "mnist", "--from", "ftp://x"], "must begin with http://"),
        (vec!["data", "get", "mnist", "--to", "input.txt"], "is a file"),
        (vec!["data", "check", "nowhere"], "nowhere: is not there"),
        (vec!["data", "fetch"], "unrecognized subcommand"),
    ] {
        let output = run(&folder, &words);
        assert_eq!(status(&output), 2, "{words:?}");
        assert!(text(&output.stderr).contains(expected), "{words:?}: {}", text(&output.stderr));
    }
    assert_eq!(files(folder.path()), ["input.txt"]);
}
