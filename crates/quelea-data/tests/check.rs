//! Verifying folders: which data set it is, and what is wrong with it.

mod support;

use std::fs;
use std::path::Path;

use quelea_data::check::{CheckReport, FileState, check};
use support::shared;

fn report(path: &Path) -> CheckReport {
    check(path, &mut |_| {}).expect("readable").expect("a data set of the table")
}

#[test]
fn real_copies_are_recognised_by_their_content() {
    let names = ["fashion-mnist", "multi30k"].map(|name| (name, name));
    for (folder, name) in names.into_iter().chain([("tinyshakespeare", "tiny-shakespeare")]) {
        let Some(folder) = shared(folder) else { continue };
        let report = report(&folder);
        assert_eq!((report.data_set.name, report.is_good()), (name, true), "{report:?}");
    }
}

#[test]
fn packed_batches_of_cifar10_are_verified_by_what_they_unpack_to() {
    let Some(folder) = shared("cifar10") else { return };
    // One file is enough here; all of them take ten times as long.
    let mut bytes = 0;
    let report = check(&folder.join("test_batch.bin.xz"), &mut |more| bytes += more);
    let report = report.expect("readable").expect("known");
    assert_eq!((report.data_set.name, report.files.len()), ("cifar10", 1));
    assert!(report.is_good() && bytes == 30_730_000, "{report:?}");
}

#[test]
fn missing_and_changed_files_are_told_apart() {
    let Some(original) = shared("multi30k") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["train.en.gz", "train.de.gz", "val.en.gz", "val.de.gz", "test_2016_flickr.en.gz"] {
        let bytes = fs::read(original.join(name)).expect("a file");
        let kept = if name == "val.en.gz" { bytes.len() - 9 } else { bytes.len() };
        fs::write(folder.path().join(name), &bytes[..kept]).expect("written");
    }
    fs::write(folder.path().join("val.de"), "Hallo\n").expect("written");
    let report = report(folder.path());
    let states: Vec<(&str, &FileState)> =
        report.files.iter().map(|file| (file.name, &file.state)).collect();
    let wrong = |text: &str| FileState::Wrong(text.to_string());
    assert_eq!(
        states,
        [
            ("train.en", &FileState::Good),
            ("train.de", &FileState::Good),
            ("val.en", &wrong("ends too early: the file was cut off")),
            ("val.de", &wrong("holds 6 bytes, not 75981")),
            ("test_2016_flickr.en", &FileState::Good),
            ("test_2016_flickr.de", &FileState::Missing),
        ]
    );
}

#[test]
fn a_folder_of_something_else_is_no_data_set() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("notes.txt"), "hello").expect("written");
    assert!(check(folder.path(), &mut |_| {}).expect("readable").is_none());
    let error = check(&folder.path().join("nowhere"), &mut |_| {}).expect_err("not there");
    assert!(error.to_string().contains("nowhere"), "{error}");
}
