//! `quelea reproduce`, `compare` and `plan`: exit status, what is printed, what is left on disk.

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn run(folder: &TempDir, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quelea"));
    command.args(words).current_dir(folder.path()).stdin(Stdio::null());
    command.output().expect("the command can be started")
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// What a wrong request says, and that it has status 2 and leaves nothing behind.
fn refusal(words: &[&str]) -> String {
    let folder = folder();
    let output = run(&folder, words);
    assert_eq!(output.status.code(), Some(2), "{words:?}: {}", text(&output.stderr));
    assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 0, "{words:?} leaves nothing");
    text(&output.stderr).to_string()
}

#[test]
fn reproduce_lists_what_there_is() {
    let output = run(&folder(), &["reproduce"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("aladdin-heterogeneity"));
}

#[test]
fn a_report_is_the_same_byte_for_byte_and_needs_no_other_file() {
    let folder = folder();
    for out in ["one", "two"] {
        let output = run(&folder, &["reproduce", "yuan-communication", "--small", "--out", out]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    let mut names: Vec<_> = fs::read_dir(folder.path().join("one"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    names.sort();
    assert_eq!(names.len(), 4, "{names:?}");
    for name in names {
        let read = |out: &str| fs::read(folder.path().join(out).join(&name)).expect("there");
        assert!(read("one") == read("two"), "{name:?}");
    }
    let page = fs::read_to_string(folder.path().join("one/report.html")).expect("a page");
    assert!(page.contains("<svg") && !page.contains("<img") && !page.contains("src="));
}

#[test]
fn cells_and_parameters_are_there_for_machines() {
    let output = run(&folder(), &["reproduce", "yuan-communication", "--small", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let cell = &report["cells"][0];
    for key in ["row", "column", "paper", "ours", "error", "fitted"] {
        assert!(cell.get(key).is_some(), "{key}");
    }
    assert_eq!((&cell["fitted"], &cell["error"]), (&Value::Bool(true), &Value::Null));
    assert!(report["parameters"][0]["source"].is_string());
}

#[test]
fn an_unknown_experiment_is_refused_with_the_nearest_name() {
    assert!(refusal(&["reproduce", "aladin-scaling"]).contains("did you mean `aladdin-scaling`?"));
}

#[test]
fn data_that_are_missing_or_of_no_use_are_refused_in_one_line() {
    let folder = folder();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quelea"));
    command.args(["reproduce", "decentdp-generalization"]).env("XDG_DATA_HOME", folder.path());
    let output = command.output().expect("the command can be started");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`quelea data get multi30k` fetches it"));
    let told = refusal(&["reproduce", "decentdp-generalization", "--data", "nowhere"]);
    assert!(told.contains("`--data` = nowhere: holds no multi30k"), "{told}");
    let told = refusal(&["reproduce", "yuan-spectral", "--data", "."]);
    assert!(told.contains("nothing of what is to be run uses a data set"), "{told}");
    let told = refusal(&["reproduce", "yuan-spectral", "--no-training"]);
    assert!(told.contains("goes with `all` only"), "{told}");
}

#[test]
fn a_page_keeps_the_sections_of_other_experiments_and_links_to_what_is_in_its_folder() {
    let folder = folder();
    let pictures = folder.path().join("page");
    fs::create_dir(&pictures).expect("made");
    fs::write(pictures.join("b.md"), "# Later\n\ntext\n").expect("written");
    fs::write(pictures.join("a.md"), "# First\n").expect("written");
    let before = "# Old\n\n## aladdin-scaling\n\nkept, as of commit 1\n\n## gone\n\nnot an experiment\n\n\
                  ## yuan-communication\n\nrenewed\n\n## yuan-spectral\n\nkept too\n";
    fs::write(folder.path().join("page.md"), before).expect("written");
    let words = ["reproduce", "yuan-communication", "--small", "--markdown", "page.md"];
    let mut pages = Vec::new();
    for _ in 0..2 {
        let output = run(&folder, &words);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        pages.push(fs::read_to_string(folder.path().join("page.md")).expect("a page"));
    }
    let page = &pages[1];
    assert_eq!(&pages[0], page, "the same command changes nothing");
    assert!(
        page.contains("\n## aladdin-scaling\n\nkept, as of commit 1\n\n## yuan-communication\n")
    );
    assert!(page.contains("\n## yuan-spectral\n\nkept too\n") && !page.contains("renewed\n\n##"));
    assert!(!page.contains("not an experiment") && !page.contains("\nrenewed\n"));
    let made =
        "\nMade by `quelea reproduce yuan-communication --markdown page.md --small`, version ";
    assert!(page.contains(made), "{page}");
    assert!(page.ends_with("\n- [First](page/a.md)\n- [Later](page/b.md)\n"), "{page}");
}

#[test]
fn compare_says_which_one_to_take() {
    let folder = folder();
    let words = ["compare", "--algorithms", "aladdin,allreduce", "--out", "both", "--json"];
    let set = ["--set", "steps=60", "--set", "workers=4", "--set", "cluster.slow.1=8"];
    let output = run(&folder, &[&words[..], &set].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let comparison: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let verdict = comparison["verdict"].as_str().expect("a sentence");
    assert!(verdict.starts_with("Take aladdin"), "{verdict}");
    for file in
        ["aladdin/summary.json", "allreduce/summary.json", "loss-time.svg", "loss-steps.png"]
    {
        assert!(folder.path().join("both").join(file).exists(), "{file}");
    }
}

#[test]
fn comparisons_that_make_no_sense_are_refused() {
    assert!(refusal(&["compare", "--algorithms", "aladin"]).contains("aladdin"));
    assert!(refusal(&["compare", "--algorithms", "asp,asp"]).contains("twice"));
    let words = ["compare", "--algorithms", "asp", "--target-accuracy", "2"];
    assert!(refusal(&words).contains("from 0 to 1"));
}

#[test]
fn a_plan_ranks_and_decides() {
    let words = ["plan", "--model", "vgg-16", "--workers", "8", "--hosts", "4", "--json"];
    let output = run(&folder(), &[&words[..], &["--set", "cluster.slow.3=10"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let steps: Vec<f64> = plan["predictions"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|prediction| prediction["step_seconds"].as_f64())
        .collect();
    assert!(steps.len() > 8 && steps.is_sorted(), "{steps:?}");
    assert!(plan["verdict"].as_str().is_some_and(|text| text.starts_with("Take ")));
}

#[test]
fn plans_that_make_no_sense_are_refused_with_field_and_reason() {
    let cases: [(&[&str], &str); 6] = [
        (&["--model", "resnet-5"], "did you mean `resnet-50`?"),
        (&["--workers", "4", "--hosts", "8"], "`cluster.hosts` = 8: must be at most `workers` = 4"),
        (&["--bandwidth-gbps", "0"], "`cluster.bandwidth_gbps` = 0: must be a number from"),
        (&["--parameters", "0"], "`--parameters` = 0"),
        (&["--workers", "5000"], "at most 4096"),
        (&["--compute-ms", "0"], "`cluster.compute_ms` = 0: must be above 0"),
    ];
    for (words, said) in cases {
        let told = refusal(&[&["plan"], words].concat());
        assert!(told.contains(said), "{words:?}: {told}");
    }
}
