//! Rules of this project that no other tool checks, over the text of all sources.
//!
//! | module | what it checks |
//! |---|---|
//! | [`types`] | a public type's name is unique in the workspace |
//! | [`names`] | no driver, command or Python file knows an algorithm by its name |
//! | [`lengths`] | files and functions stay short |
//! | [`tuples`] | no parameter is a tuple of unrelated things |
//! | [`old_name`] | the project's old name stands only where history is told |
//! | [`packages`] | crates have what a registry asks for |
//! | [`crate::licences`] | every dependency is under a licence that `deny.toml` allows |
//! | [`rust`], [`python`] | sources as tokens |

mod lengths;
mod names;
mod old_name;
mod packages;
mod python;
mod rust;
mod tuples;
mod types;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::{licences, output};

/// One source file.
pub(crate) struct SourceFile {
    /// From the root of the repository, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl SourceFile {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn is_python(&self) -> bool {
        self.path.ends_with(".py")
    }

    /// Whether all of it is a test. The conformance suite is a library.
    fn is_test(&self) -> bool {
        let inside = self.path.strip_prefix("tests/conformance/").unwrap_or(&self.path);
        let in_folder = inside.starts_with("tests/") || inside.contains("/tests/");
        let name = inside.rsplit('/').next().unwrap_or(inside);
        in_folder || name.ends_with("tests.rs") || name.starts_with("test_")
    }
}

/// A rule: what is wrong, line by line.
type Check = fn(&[SourceFile]) -> Vec<String>;

const RULES: &[(&str, Check)] = &[
    ("types", types::check),
    ("names", names::check),
    ("lengths", lengths::check),
    ("tuples", tuples::check),
];

/// `cargo xtask rules [NAME…]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let known: Vec<&str> =
        RULES.iter().map(|(name, _)| *name).chain(["old-name", "packages", "licences"]).collect();
    if let Some(unknown) = words.iter().find(|word| !known.contains(&word.as_str())) {
        bail!("`{unknown}` is not a rule; there are {}", known.join(", "));
    }
    let is_chosen = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    let root = root();
    let files = sources(&root)?;
    let mut wrong = Vec::new();
    for (name, check) in RULES.iter().filter(|(name, _)| is_chosen(name)) {
        report(name, &check(&files), &mut wrong);
    }
    let mut others = Vec::new();
    if is_chosen("old-name") {
        others.push(("old-name", old_name::check(&root, &tracked(&root)?)?));
    }
    if is_chosen("packages") {
        others.push(("packages", packages::check()?));
    }
    if is_chosen("licences") {
        others.push(("licences", licences::check()?));
    }
    for (name, found) in others {
        report(name, &found, &mut wrong);
    }
    if !wrong.is_empty() {
        bail!("{} problems:\n  {}", wrong.len(), wrong.join("\n  "));
    }
    Ok(())
}

/// Says what a rule has found, and adds it to what is wrong.
fn report(name: &str, found: &[String], wrong: &mut Vec<String>) {
    println!("{name}: {}", if found.is_empty() { "good".into() } else { found.len().to_string() });
    wrong.extend(found.iter().map(|problem| format!("{name}: {problem}")));
}

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent").to_path_buf()
}

/// All files that belong to the repository: not what is built or ignored.
pub(crate) fn tracked(root: &Path) -> Result<Vec<String>> {
    let list = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let files = output(Command::new("git").current_dir(root).args(list))?;
    let exists = |path: &&str| root.join(path).is_file();
    Ok(files.lines().filter(exists).map(String::from).collect())
}

/// All Rust and Python of the repository, by path.
fn sources(root: &Path) -> Result<Vec<SourceFile>> {
    let mut paths = tracked(root)?;
    paths.retain(|path| path.ends_with(".rs") || path.ends_with(".py"));
    paths.sort();
    paths
        .into_iter()
        .map(|path| Ok(SourceFile { text: fs::read_to_string(root.join(&path))?, path }))
        .collect()
}

/// A file for a test.
#[cfg(test)]
fn file(path: &str, text: &str) -> SourceFile {
    SourceFile { path: path.to_string(), text: text.to_string() }
}
