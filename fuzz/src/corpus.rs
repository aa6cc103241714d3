//! Inputs in files, `fuzz/corpus/TARGET/NAME`: those that failed once, which every campaign repeats, and seeds
//! that cannot be computed, because they have random numbers in them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Where the corpus is.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The names of the targets that have one.
pub fn folders() -> Vec<String> {
    names(&folder())
}

/// The inputs of a target, by name.
pub fn inputs(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = folder().join(target);
    let paths = names(&folder).into_iter().map(|name| folder.join(name));
    paths.filter_map(|path| std::fs::read(&path).ok().map(|bytes| (path, bytes))).collect()
}

/// Keeps an input that failed.
pub fn save(target: &str, seed: u64, number: u64, bytes: &[u8]) -> Result<PathBuf> {
    let folder = folder().join(target);
    std::fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
    let path = folder.join(format!("failed-{seed}-{number}"));
    std::fs::write(&path, bytes).with_context(|| format!("{}", path.display()))?;
    Ok(path)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    names
}
