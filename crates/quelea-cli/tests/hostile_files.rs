//! Files that somebody made to do harm, with the real command: a sentence, no panic, and no memory before it is
//! known to be needed. The address space of the command is limited, so that what it should not take it cannot.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// What the command may map, in KiB: several times what it needs, and far below what the files claim.
const ADDRESS_SPACE_KIB: u64 = 6 << 20;

fn quelea(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new("bash");
    let limited = format!("ulimit -v {ADDRESS_SPACE_KIB}; exec \"$0\" \"$@\"");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_quelea")]).args(words);
    command.current_dir(folder).stdin(Stdio::null());
    command.output().expect("bash can be started")
}

/// Runs the command, which must refuse; what it says.
fn refused(folder: &Path, words: &[&str]) -> String {
    let output = quelea(folder, words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(1 | 2)), "{words:?}: {:?}: {said}", output.status);
    assert!(!said.contains("panicked"), "{words:?}: {said}");
    assert!(said.len() < 4000, "{words:?}: an error is a sentence, not {} bytes", said.len());
    assert!(!said.contains('\u{1b}'), "{words:?}: control characters reach the terminal");
    said
}

/// A file that says to be long and takes no room.
fn sparse(path: &Path, bytes: u64) {
    File::create(path).and_then(|file| file.set_len(bytes)).expect("a sparse file");
}

const RUN: &str =
    "workers = 2\nsteps = 20\n[algorithm]\nname = \"allreduce\"\n[task]\nname = \"quadratic\"\n";

fn place() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[test]
fn run_files_with_absurd_numbers_and_shapes_are_refused() {
    let place = place();
    let folder = place.path();
    let deep = format!("a = {}{}", "[".repeat(100_000), "]".repeat(100_000));
    let dotted = format!("{}b = 1", "a.".repeat(50_000));
    let cases: [(&str, String); 14] = [
        ("workers = -1", RUN.replace("workers = 2", "workers = -1")),
        ("workers beyond all", RUN.replace("workers = 2", "workers = 9223372036854775807")),
        ("too long a number", RUN.replace("workers = 2", "workers = 99999999999999999999999")),
        ("workers = 1e300", RUN.replace("workers = 2", "workers = 1e300")),
        ("workers = nan", RUN.replace("workers = 2", "workers = nan")),
        ("a wrong type", RUN.replace("steps = 20", "steps = [[20]]")),
        ("a table for a value", RUN.replace("steps = 20", "steps = { a = 1 }")),
        ("a date", RUN.replace("steps = 20", "steps = 1979-05-27")),
        ("10 GB of parameters", format!("{RUN}dimensions = 1000000000000\n")),
        ("a control character", RUN.replace("allreduce", "all\\u001b[2Jreduce")),
        ("twice the same key", format!("workers = 3\n{RUN}")),
        ("a file of another kind", "\u{0}\u{1}\u{2}".to_string()),
        ("100,000 brackets", deep),
        ("50,000 dots", dotted),
    ];
    for (what, text) in cases {
        fs::write(folder.join("run.toml"), text).expect("written");
        let said = refused(folder, &["train", "--threads", "run.toml"]);
        assert!(!said.is_empty(), "{what}");
    }
    fs::write(folder.join("run.toml"), [0xff, 0xfe, 0x00]).expect("written");
    assert!(refused(folder, &["train", "--threads", "run.toml"]).contains("is not a text file"));
    sparse(&folder.join("run.toml"), 10 << 30);
    let said = refused(folder, &["train", "--threads", "run.toml"]);
    assert!(said.contains("is longer than 67108864 bytes"), "{said}");
}

#[test]
fn data_files_with_absurd_lengths_are_refused() {
    let place = place();
    let folder = place.path();
    let idx = |count: u32, side: u32| {
        let words = [0x0000_0803, count, side, side];
        words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>()
    };
    let train = |setting: &str| {
        let words =
            ["train", "--threads", "--set", "workers=2", "--set", "steps=2", "--set", setting];
        let more = ["--set", "task.data=data", "--out", "run"];
        refused(folder, &[&words[..], &more].concat())
    };
    fs::create_dir(folder.join("data")).expect("made");
    for (count, side) in [(u32::MAX, 28), (10_000_000, 1024), (2, 0), (2, u32::MAX), (0, 28)] {
        for part in ["train", "t10k"] {
            fs::write(folder.join(format!("data/{part}-images-idx3-ubyte")), idx(count, side))
                .expect("written");
            fs::write(
                folder.join(format!("data/{part}-labels-idx1-ubyte")),
                [0, 0, 8, 1, 0, 0, 0, 2, 0, 1],
            )
            .expect("written");
        }
        let said = train("task.name=fashion-cnn");
        assert!(said.contains("idx3-ubyte"), "{count} images of {side}: {said}");
    }
    fs::remove_dir_all(folder.join("data")).expect("removed");
    for text in
        ["1 1:nan\n", "1 99999999999:1\n", "1 0:1\n", "1 2:1 1:1\n", "7 1:1\n", "1 1:1e999\n", ""]
    {
        fs::write(folder.join("data"), text).expect("written");
        let said = train("task.name=logistic");
        assert!(said.contains("task.data"), "{text:?}: {said}");
    }
    sparse(&folder.join("data"), 10 << 30);
    assert!(train("task.name=logistic").contains("is longer than"), "10 GB of zeros");
}

#[test]
fn a_token_that_is_none_is_refused_without_being_quoted() {
    let place = place();
    let long = format!("quelea:h:1:{}", "A".repeat(1 << 16));
    for token in [
        "quelea:",
        "quelea:::",
        "quelea:h:99999:AAAA",
        "quelea:h:1:%%%",
        "quelea:\u{1b}[2J:1:AAAA",
        &long,
    ] {
        let said = refused(place.path(), &["join", token]);
        assert!(said.contains("the join token"), "{said}");
    }
}

/// A run with a checkpoint, in `run`.
fn saved_run(folder: &Path) {
    fs::write(folder.join("run.toml"), RUN).expect("written");
    let words = ["simulate", "run.toml", "--out", "run", "-q", "--set", "checkpoint.every=10"];
    let more = ["--set", "plots=false", "--set", "checkpoint.keep=1"];
    let output = quelea(folder, &[&words[..], &more].concat());
    assert!(output.status.success(), "{output:?}");
}

/// Replaces a file of the checkpoint, with the right sum.
fn replace(checkpoint: &Path, name: &str, bytes: &[u8]) {
    fs::write(checkpoint.join(name), bytes).expect("written");
    let sums = fs::read_to_string(checkpoint.join("SHA256SUMS")).expect("there");
    let line = |line: &str| match line.split_once("  ") {
        Some((_, listed)) if listed == name => {
            let digest = Sha256::digest(bytes);
            let sum: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{sum}  {name}\n")
        }
        _ => format!("{line}\n"),
    };
    let sums: String = sums.lines().map(line).collect();
    fs::write(checkpoint.join("SHA256SUMS"), sums).expect("written");
}

#[test]
fn checkpoints_with_absurd_contents_and_the_right_sums_are_refused() {
    let place = place();
    let folder = place.path();
    saved_run(folder);
    let checkpoint = folder.join("run/checkpoints/step-20");
    let checkpoint =
        if checkpoint.is_dir() { checkpoint } else { folder.join("run/checkpoints/step-10") };
    let resume = || refused(folder, &["simulate", "--resume", "run", "--set", "steps=40"]);
    let manifest = fs::read_to_string(checkpoint.join("manifest.json")).expect("there");
    let part = fs::read(checkpoint.join("rank-0.safetensors")).expect("there");
    let number = |key: &str, value: &str| {
        let line =
            manifest.lines().find(|line| line.trim_start().starts_with(&format!("\"{key}\":")));
        let line = line.unwrap_or_else(|| panic!("the manifest has {key}"));
        let comma = if line.ends_with(',') { "," } else { "" };
        manifest.replace(line, &format!("  \"{key}\": {value}{comma}"))
    };
    for (key, value) in [
        ("workers", "18446744073709551615"),
        ("workers", "-1"),
        ("servers", "9999999999"),
        ("dimensions", "1e400"),
        ("dimensions", "\"many\""),
        ("step", "18446744073709551615"),
        ("clock_seconds", "-1.0"),
        ("format", "7"),
    ] {
        replace(&checkpoint, "manifest.json", number(key, value).as_bytes());
        let said = resume();
        assert!(
            said.contains("manifest.json") || said.contains("format"),
            "{key} = {value}: {said}"
        );
    }
    let deep = manifest.replacen("\"config\":", &format!("\"x\": {}", "[".repeat(100_000)), 1);
    replace(&checkpoint, "manifest.json", deep.as_bytes());
    assert!(resume().contains("manifest.json"), "100,000 brackets");
    replace(&checkpoint, "manifest.json", manifest.as_bytes());
    let head = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let huge =
        r#"{"params":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}"#;
    let overflow =
        r#"{"params":{"dtype":"F32","shape":[18446744073709551615,4],"data_offsets":[0,16]}}"#;
    for (what, bytes) in [
        ("empty", Vec::new()),
        ("cut off", part[..part.len() / 2].to_vec()),
        ("a head of 2^64 bytes", [&u64::MAX.to_le_bytes()[..], &part[8..]].concat()),
        ("4 TB claimed", head(huge)),
        ("a shape that overflows", [&head(overflow)[..], &[0; 16]].concat()),
        ("no JSON", head("{{{{")),
    ] {
        replace(&checkpoint, "rank-0.safetensors", &bytes);
        let said = resume();
        assert!(said.contains("rank-0.safetensors"), "{what}: {said}");
    }
    // The sum is not right; it is not even computed.
    sparse(&checkpoint.join("rank-0.safetensors"), 10 << 30);
    assert!(resume().contains("is longer than"), "10 GB");
    // Names in the list of sums are no paths: the files of the ranks have fixed names.
    replace(&checkpoint, "rank-0.safetensors", &part);
    let sums = fs::read_to_string(checkpoint.join("SHA256SUMS")).expect("there");
    let outside = sums.replace("  rank-0.safetensors", "  ../../../../etc/passwd");
    fs::write(checkpoint.join("SHA256SUMS"), outside).expect("written");
    let said = resume();
    assert!(
        said.contains("does not list rank-0.safetensors") || said.contains("files of 1 ranks"),
        "{said}"
    );
    assert!(!said.contains("root:"), "{said}");
    // A link to something without an end.
    fs::write(checkpoint.join("SHA256SUMS"), sums).expect("written");
    fs::remove_file(checkpoint.join("rank-0.safetensors")).expect("removed");
    std::os::unix::fs::symlink("/dev/zero", checkpoint.join("rank-0.safetensors")).expect("linked");
    assert!(resume().contains("rank-0.safetensors"), "an endless file");
}
