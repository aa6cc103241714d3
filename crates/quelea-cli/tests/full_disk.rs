//! Runs on a disk that is too small, with the real command: the model is the last thing to be lost.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use safetensors::SafeTensors;
use tempfile::TempDir;

/// A file system in memory of a given size in bytes; unmounted at the end.
struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// Nothing where this process may not mount.
    fn mount(kibibytes: u64) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let size = format!("size={kibibytes}k");
        let words = ["-t", "tmpfs", "-o", &size, "tmpfs"];
        let mounted =
            Command::new("mount").args(words).arg(folder.path()).stderr(Stdio::null()).status();
        mounted.is_ok_and(|status| status.success()).then_some(SmallDisk { folder })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("run")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.folder.path()).status();
    }
}

/// Three workers with a model of 400 kB: 1.6 MB at the end, checkpoints of 2.4 MB.
const SETTINGS: [&str; 8] = [
    "task.name=quadratic",
    "task.dimensions=100000",
    "algorithm.name=allreduce",
    "workers=3",
    "steps=400",
    "optimizer.momentum=0.9",
    "checkpoint.every=100",
    "evaluations=4",
];

fn train(out: &Path) -> Output {
    train_with(out, &SETTINGS)
}

fn train_with(out: &Path, settings: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quelea"));
    command.args(["train", "--threads", "--out"]).arg(out).stdin(Stdio::null());
    command.args(settings.iter().flat_map(|setting| ["--set", setting]));
    command.current_dir(out.parent().expect("a folder"));
    command.output().expect("the command can be started")
}

fn tensor(file: &[u8], name: &str) -> Option<Vec<u8>> {
    let read = SafeTensors::deserialize(file).expect("a whole file");
    read.tensor(name).ok().map(|tensor| tensor.data().to_vec())
}

#[test]
fn the_model_of_a_run_is_written_whatever_else_has_no_room() {
    let ample = tempfile::tempdir().expect("a temporary folder");
    let reference = train(&ample.path().join("run"));
    assert!(reference.status.success(), "{reference:?}");
    let expected = fs::read(ample.path().join("run/final.safetensors")).expect("written");
    let model = tensor(&expected, "model").expect("there");
    let final_kib = expected.len() as u64 / 1024;
    // From room for the model alone, over every boundary between two files, to room for everything.
    let sizes = [480, 900, final_kib - 4, final_kib + 4, final_kib + 60, 1800, 2100, 2500];
    for kibibytes in sizes.into_iter().chain([2900, 3300, 4000, 4900, 6500, 20_000]) {
        let Some(disk) = SmallDisk::mount(kibibytes) else {
            return eprintln!("skipped: this process may not mount a file system");
        };
        let output = train(&disk.path());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let written = fs::read(disk.path().join("final.safetensors"));
        let written = written.unwrap_or_else(|error| panic!("{kibibytes} KiB: {error}: {said}"));
        assert_eq!(tensor(&written, "model").as_ref(), Some(&model), "{kibibytes} KiB");
        // Beside the best model and the newest checkpoint, which stay.
        if kibibytes > final_kib + 400 + 2400 + 128 {
            assert!(written == expected, "{kibibytes} KiB: every rank's own model is there");
        }
        let has_all = ["records.jsonl", "summary.json", "trace.json", "plots"]
            .iter()
            .all(|name| disk.path().join(name).exists());
        assert_eq!(output.status.code(), Some(i32::from(!has_all)), "{kibibytes} KiB: {said}");
        if !has_all {
            let place = disk.path().join("final.safetensors");
            let ending = format!("its model is in {}", place.display());
            assert!(said.contains("could not be written: "), "{kibibytes} KiB: {said}");
            assert!(said.trim_end().ends_with(&ending), "{kibibytes} KiB: {said}");
        }
        let entries = fs::read_dir(disk.path()).expect("a folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        let hidden = names.filter(|name| name.to_string_lossy().starts_with('.')).count();
        assert_eq!(hidden, 0, "{kibibytes} KiB: nothing half-written stays");
    }
}

#[test]
fn a_disk_without_room_for_the_model_is_told_with_the_file() {
    let Some(disk) = SmallDisk::mount(200) else {
        return eprintln!("skipped: this process may not mount a file system");
    };
    let output = train(&disk.path());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("final.safetensors: No space left on device"), "{said}");
}

/// Three workers with a model of 400 kB whose run is aborted, because it diverges.
const DIVERGING: [&str; 6] = [
    "task.name=quadratic",
    "task.dimensions=100000",
    "algorithm.name=allreduce",
    "workers=3",
    "steps=400",
    "optimizer.lr=1e6",
];

#[test]
fn an_aborted_run_keeps_the_model_where_there_is_no_room_for_that_of_every_rank() {
    for (kibibytes, has_all) in [(900, false), (4000, true)] {
        let Some(disk) = SmallDisk::mount(kibibytes) else {
            return eprintln!("skipped: this process may not mount a file system");
        };
        let output = train_with(&disk.path(), &DIVERGING);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let file = fs::read(disk.path().join("aborted.safetensors"));
        let file = file.unwrap_or_else(|error| panic!("{kibibytes} KiB: {error}: {said}"));
        assert_eq!(tensor(&file, "model").map(|model| model.len()), Some(400_000), "{said}");
        assert_eq!(tensor(&file, "worker.2").is_some(), has_all, "{said}");
        assert_eq!(said.contains("without the ranks' own"), !has_all, "{said}");
    }
}

/// Two workers with a model of 40 kB: small, so that many sizes can be tried.
const SMALL: [&str; 8] = [
    "task.name=quadratic",
    "task.dimensions=10000",
    "algorithm.name=allreduce",
    "workers=2",
    "steps=40",
    "optimizer.momentum=0.9",
    "checkpoint.every=10",
    "evaluations=2",
];

/// A page of the file system, and of what is tried on both sides of a boundary.
const PAGE: u64 = 4096;

/// The sizes of all files below a folder in pages, by the time at which they were written.
fn sizes(folder: &Path) -> Vec<u64> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
            let about = entry.metadata().expect("it is there");
            if about.is_dir() {
                folders.push(entry.path());
            } else {
                found.push((about.modified().expect("a time"), about.len().div_ceil(PAGE) * PAGE));
            }
        }
    }
    found.sort();
    found.into_iter().map(|(_, bytes)| bytes).collect()
}

/// Every checkpoint that stands under its name has the sums that it lists.
fn checkpoints_are_whole(run: &Path) -> usize {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("step-"));
    let check = |folder: PathBuf| {
        let mut sums = Command::new("sha256sum");
        sums.args(["--check", "--quiet", "SHA256SUMS"]).current_dir(&folder);
        let checked = sums.output().expect("sha256sum is there");
        assert!(checked.status.success(), "{}: {checked:?}", folder.display());
    };
    named.map(|entry| check(entry.path())).count()
}

#[test]
fn at_every_boundary_between_two_files_the_model_is_there_and_whole_or_the_disk_has_no_room_for_it()
{
    let ample = tempfile::tempdir().expect("a temporary folder");
    let run = ample.path().join("run");
    let reference = train_with(&run, &SMALL);
    assert!(reference.status.success(), "{reference:?}");
    let expected = fs::read(run.join("final.safetensors")).expect("written");
    let model = tensor(&expected, "model").expect("there");
    // Sums in the order of writing, and of the model first: which files are there at once depends on the size.
    let written = sizes(&run);
    let sums = |first: u64| {
        written.iter().scan(first, |sum, bytes| {
            *sum += bytes;
            Some(*sum)
        })
    };
    let mut limits: Vec<u64> =
        sums(0).chain(sums(expected.len().div_ceil(4096) as u64 * PAGE)).collect();
    limits.extend([model.len() as u64, 2 * model.len() as u64]);
    limits.sort_unstable();
    limits.dedup();
    let around = |limit: u64| [limit.saturating_sub(PAGE).max(PAGE), limit, limit + PAGE];
    let (mut kept, mut refused) = (0, 0);
    for bytes in limits.into_iter().flat_map(around) {
        let Some(disk) = SmallDisk::mount(bytes / 1024) else {
            return eprintln!("skipped: this process may not mount a file system");
        };
        let output = train_with(&disk.path(), &SMALL);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let checkpoints = checkpoints_are_whole(&disk.path());
        match fs::read(disk.path().join("final.safetensors")) {
            Ok(file) => {
                kept += 1;
                assert_eq!(tensor(&file, "model").as_ref(), Some(&model), "{bytes} bytes: {said}");
                assert!(matches!(output.status.code(), Some(0 | 1)), "{bytes} bytes: {said}");
                let place = disk.path().join("final.safetensors");
                let names_it = said.contains(&format!("its model is in {}", place.display()));
                assert!(output.status.success() || names_it, "{bytes} bytes: {said}");
            }
            Err(error) => {
                refused += 1;
                // A folder and a file take some pages beside the model itself.
                let needed = model.len() as u64 + 16 * PAGE;
                assert!(bytes < needed || checkpoints > 0, "{bytes} bytes: {error}: {said}");
                assert_eq!(output.status.code(), Some(1), "{bytes} bytes: {said}");
                assert!(said.contains("No space left on device"), "{bytes} bytes: {said}");
            }
        }
    }
    assert!(kept > 20 && refused > 0, "{kept} kept, {refused} refused");
}
