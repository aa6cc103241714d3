//! `quelea merge`: the parts of runs whose coordinator was killed, and folders that are no such parts.

use std::collections::BTreeSet;
use std::fs;

use super::*;

fn merge(folder: &Path, words: &[&str]) -> (bool, String) {
    let mut command = quelea(folder, &[&["merge"], words].concat(), &[]);
    let output = command.output().expect("started");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn refused(folder: &Path, words: &[&str], why: &str) {
    let (is_merged, said) = merge(folder, words);
    assert!(!is_merged && said.contains(why), "{words:?}: {said}");
    let names = fs::read_dir(folder).expect("there").flatten().map(|entry| entry.file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().contains(".partial")).collect();
    assert!(left.is_empty(), "nothing is left behind: {left:?}");
}

/// A run whose coordinator was killed, with checkpoints; its parts are in `run` and below it.
fn killed_run(folder: &Path, steps: &str) {
    let settings = task("algorithm.name=d-psgd", "workers=4", steps);
    let settings = [&settings[..], &["checkpoint.every=500", "checkpoint.keep=100"]].concat();
    let (mut run, workers) = begun(folder, &settings);
    until("a checkpoint is there", || folder.join("run/checkpoints/step-500").is_dir());
    // Between two checkpoints: what a take-over makes of one that is being written is not the matter here.
    until("steps after it are recorded", || {
        let lines = whole_lines(&folder.join("run"));
        let steps = lines.iter().filter_map(|line| {
            let line: Value = serde_json::from_str(line).ok()?;
            line["step"].as_u64()
        });
        steps.max() >= Some(560)
    });
    kill(&[run.id()]);
    run.wait().expect("it was killed");
    until("the others have ended", || !workers.iter().any(|pid| lives(*pid)));
    assert!(taken_over(folder, 0).join("summary.json").exists());
}

/// The records that a killed process has left, without half a line at the end.
fn whole_lines(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("there").flatten().map(|entry| entry.path());
    let mut found = entries.filter(|path| path.to_string_lossy().contains("records.jsonl"));
    let text = fs::read_to_string(found.next().expect("it has records")).expect("text");
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    whole.lines().map(str::to_string).collect()
}

fn copy_folder(from: &Path, to: &Path) {
    let copied = Command::new("cp").args(["-r"]).arg(from).arg(to).status().expect("cp is there");
    assert!(copied.success());
}

fn checkpoints(run: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("step-"))
        .collect()
}

#[test]
fn the_parts_of_a_run_whose_coordinator_was_killed_become_one_folder() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    killed_run(folder.path(), "steps=1500");
    let (first, rest) = (folder.path().join("run"), taken_over(folder.path(), 0));
    let parts = [whole_lines(&first), whole_lines(&rest)];
    let (is_merged, said) = merge(folder.path(), &["run"]);
    assert!(is_merged, "{said}");
    let merged = folder.path().join("run-merged");
    // Without doubles, and in order: what a part has comes in its order after that of the part before.
    let mut expected = parts[0].clone();
    let known: BTreeSet<&String> = parts[0].iter().collect();
    expected.extend(parts[1].iter().filter(|line| !known.contains(line)).cloned());
    assert_eq!(whole_lines(&merged), expected);
    let text = expected.join("\n");
    assert_eq!(text.matches("\"kind\":\"took_over\"").count(), 1);
    let read = |place: &Path| fs::read(place.join("final.safetensors")).expect("written");
    assert_eq!(read(&merged), read(&rest));
    let both: BTreeSet<String> = &checkpoints(&first) | &checkpoints(&rest);
    assert!(both.contains("step-500"), "{both:?}");
    assert_eq!(checkpoints(&merged), both);
    let page = summary(&merged);
    let warnings = page["warnings"].to_string();
    assert!(warnings.contains("merged from run, run/taken-over-by-rank-0"), "{warnings}");
    assert_eq!(page["steps"], summary(&rest)["steps"]);
    assert!(!merged.join("part.json").exists(), "it is a whole run");
    // The parts stay as they are.
    assert_eq!([whole_lines(&first), whole_lines(&rest)], parts);
    // Other commands read it like any run, and it can be resumed.
    let report = quelea(folder.path(), &["report", "run-merged"], &[]).output().expect("started");
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
    let words =
        ["train", "--threads", "--resume", "run-merged/checkpoints/step-500", "--out", "again"];
    let again = quelea(folder.path(), &words, &[]).output().expect("started");
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    refused(folder.path(), &["run"], "run-merged: is there already");
    refused(folder.path(), &["run-merged", "--out", "x"], "what is there is a whole run");
}

#[test]
fn three_parts_are_merged_and_none_between_them_may_be_missing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = task("algorithm.name=d-psgd", "workers=5", "steps=3000");
    let (mut run, workers) = begun(folder.path(), &settings);
    kill(&[run.id()]);
    run.wait().expect("it was killed");
    until("rank 0 has taken over", || recorded(&taken_over(folder.path(), 0)) > 0);
    kill(&[workers[0]]);
    until("the others have ended", || !workers.iter().any(|pid| lives(*pid)));
    let (is_merged, said) = merge(folder.path(), &["run", "--out", "whole"]);
    assert!(is_merged, "{said}");
    let text = whole_lines(&folder.path().join("whole")).join("\n");
    assert_eq!(text.matches("\"kind\":\"took_over\"").count(), 2);
    fs::rename(taken_over(folder.path(), 0), folder.path().join("elsewhere")).expect("moved");
    let missing = "run/taken-over-by-rank-1 continues what the process of rank 0 wrote";
    refused(folder.path(), &["run"], missing);
    // Wherever it is, naming it is enough.
    let (is_merged, said) = merge(folder.path(), &["run", "elsewhere", "--out", "again"]);
    assert!(is_merged, "{said}");
    assert_eq!(whole_lines(&folder.path().join("again")).join("\n"), text);
}

#[test]
fn what_a_coordinator_records_that_was_stopped_and_wakes_up_too_late_is_left_out() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = task("algorithm.name=d-psgd", "workers=4", "steps=3000");
    let (mut run, workers) = begun(folder.path(), &settings);
    stop(run.id());
    let rest = taken_over(folder.path(), 0);
    until("rank 0 has taken over", || rest.join("part.json").exists());
    signal("CONT", &[run.id()]);
    assert_eq!(run.wait().expect("it ends").code(), Some(75));
    until("the others have ended", || !workers.iter().any(|pid| lives(*pid)));
    let (is_merged, said) = merge(folder.path(), &["run"]);
    assert!(is_merged, "{said}");
    let text = whole_lines(&folder.path().join("run-merged")).join("\n");
    assert_eq!(text.matches("\"kind\":\"took_over\"").count(), 1);
    assert_eq!(text.matches("\"kind\":\"lost\"").count(), 0, "nobody was lost");
}

#[test]
fn folders_that_are_not_the_parts_of_one_run_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    killed_run(folder.path(), "steps=1500");
    let (path, rest) = (folder.path(), taken_over(folder.path(), 0));
    let note = fs::read_to_string(rest.join("part.json")).expect("written");
    // A copy of a part, the rest alone, the beginning alone.
    copy_folder(&rest, &path.join("copy"));
    refused(path, &["run", "copy"], "overlap: both follow on the same part");
    refused(path, &["copy"], "the part with which the run began is missing");
    copy_folder(&path.join("run"), &path.join("alone"));
    fs::remove_dir_all(path.join("alone/taken-over-by-rank-0")).expect("removed");
    refused(path, &["alone"], "the last part is missing: what the coordinator wrote to alone");
    // A part of another run.
    let page: Value = serde_json::from_str(&note).expect("JSON");
    let id = page["run"].as_str().expect("a name").to_string();
    let other = note.replace(&id, &"0".repeat(32));
    fs::write(path.join("copy/part.json"), &other).expect("written");
    refused(path, &["alone", "copy"], "alone and copy are parts of different runs");
    // What is no note, no folder, or nothing.
    for (text, why) in [("{", "part.json"), ("[]", "part.json"), ("", "part.json")] {
        fs::write(path.join("copy/part.json"), text).expect("written");
        refused(path, &["alone", "copy"], why);
    }
    let endless = fs::File::create(path.join("copy/part.json")).expect("created");
    endless.set_len(10 << 30).expect("sparse");
    refused(path, &["alone", "copy"], "is longer than");
    fs::write(path.join("copy/part.json"), &note).expect("written");
    refused(path, &["alone", "nowhere"], "nowhere");
    refused(path, &["alone/part.json"], "is a file");
    fs::create_dir(path.join("empty")).expect("created");
    refused(path, &["empty"], "it has no part.json");
    // Records that are none, and records that another part has too, with other numbers.
    let records = path.join("copy/records.jsonl");
    let kept = fs::read_to_string(&records).expect("written");
    fs::write(&records, format!("garbage\n{kept}")).expect("written");
    refused(path, &["alone", "copy"], "line 1 is no record");
    let step = whole_lines(&path.join("alone"));
    let step = step.iter().find(|line| line.contains("\"kind\":\"step\"")).expect("a step");
    let forged = step.replace("\"kind\":\"step\",", "\"kind\":\"step\",\"forged\":1,");
    fs::write(&records, format!("{kept}{forged}\n")).expect("written");
    refused(path, &["alone", "copy"], "the records of copy overlap with those of a part before it");
    fs::write(&records, &kept).expect("written");
    // A link in place of the model leads nowhere.
    fs::remove_file(path.join("copy/final.safetensors")).expect("removed");
    std::os::unix::fs::symlink("/etc/hostname", path.join("copy/final.safetensors"))
        .expect("linked");
    refused(path, &["alone", "copy"], "is no plain file");
}

#[test]
fn a_run_that_is_still_being_written_is_not_merged() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = task("algorithm.name=d-psgd", "workers=3", "steps=1000000");
    let (mut run, workers) = begun(folder.path(), &settings);
    refused(folder.path(), &["run"], "is still being written");
    kill(&workers);
    kill(&[run.id()]);
    run.wait().expect("it was killed");
}
