//! The project's old name stands only where history is told.

use std::fs;
use std::path::Path;

use anyhow::Result;

/// In halves, so that this file does not contain it.
const OLD_NAME: &[&str] = &["murm", "ura"];

/// Where it may stand: history, and what measurements say of the program that made them.
const ALLOWED: &[&str] = &[
    "CHANGELOG.md",
    "docs/benchmarks.json",
    "docs/decisions/0013-the-name.md",
    "docs/experiments/accuracy.json",
];

pub(super) fn check(root: &Path, tracked: &[String]) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for path in tracked.iter().filter(|path| !ALLOWED.contains(&path.as_str())) {
        wrong.extend(places(path, &fs::read(root.join(path))?));
    }
    Ok(wrong)
}

/// Where a file has the old name: in its path, or in a line.
fn places(path: &str, bytes: &[u8]) -> Vec<String> {
    let old = OLD_NAME.concat();
    let mut found = Vec::new();
    if path.to_lowercase().contains(&old) {
        found.push(format!("{path}: its path"));
    }
    let text = String::from_utf8_lossy(bytes).to_lowercase();
    for (number, _) in text.lines().enumerate().filter(|(_, line)| line.contains(&old)) {
        found.push(format!("{path}:{}", number + 1));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_name_is_found_in_any_case_in_lines_and_paths() {
        let old = OLD_NAME.concat();
        let text = format!("fine\nuse {old}_core;\n{}_HOME=1\n", old.to_uppercase());
        assert_eq!(places("a.rs", text.as_bytes()), ["a.rs:2", "a.rs:3"]);
        let path = format!("docs/{old}.md");
        assert_eq!(places(&path, b"fine"), [format!("{path}: its path")]);
        assert_eq!(places("a.rs", b"quelea \xff"), Vec::<String>::new());
    }
}
