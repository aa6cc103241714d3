//! Small rules that no other tool checks.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

pub(crate) fn check() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent");
    let mut files = Vec::new();
    for folder in ["crates", "fuzz", "guests/quelea-burn", "guests/quelea-candle", "xtask", "tests"]
    {
        collect(&root.join(folder), &mut files)?;
    }
    files.sort();
    let mut wrong = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file)?;
        let name = file.strip_prefix(root).unwrap_or(file).display();
        if file.ends_with("mod.rs") && file.components().any(|part| part.as_os_str() == "src") {
            wrong.push(format!("{name}: a module with files of its own is `foo.rs` beside `foo/`"));
        }
        // The reason for a long file may stand above (see `rules/lengths.rs`).
        let first = text.lines().find(|line| !line.starts_with("// long:"));
        if !first.is_some_and(|line| line.starts_with("//!")) {
            wrong.push(format!("{name}: opens without a sentence that says what is in it"));
        }
        for (number, line) in text.lines().enumerate() {
            if line.trim_end() != line {
                wrong.push(format!("{name}:{}: white space at the end", number + 1));
            }
        }
    }
    if !wrong.is_empty() {
        bail!("tidy:\n  {}", wrong.join("\n  "));
    }
    println!("tidy: {} files", files.len());
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
