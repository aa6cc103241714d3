//! What the tests share: the folder of real data sets, where there is one.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod server;

use std::path::PathBuf;

/// A folder of `../shared/data` beside the repository; says so where it is not there.
pub fn shared(name: &str) -> Option<PathBuf> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
    let folder = std::env::var_os("QUELEA_TEST_DATA").map_or(root.into(), PathBuf::from);
    let folder = folder.join(name);
    if !folder.is_dir() {
        eprintln!("skipped: there is no {}", folder.display());
        return None;
    }
    Some(folder)
}
