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
    let mut command = Command::new(env!("CARGO_BIN_EXE_quelea"));
    command.args(["train", "--threads", "--out"]).arg(out).stdin(Stdio::null());
    command.args(SETTINGS.iter().flat_map(|setting| ["--set", setting]));
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
