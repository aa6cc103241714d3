//! `cargo xtask tutorials`: runs what the tutorials and the README print, as a reader would.
//!
//! A page is followed from top to bottom in one folder that looks like a clone of the repository. Of its
//! fenced blocks,
//!
//! - one whose first line is a comment with nothing but the name of a file is written to that file;
//! - those in `sh` are run, in the folder in which the one before ended;
//! - the one in `diff` of the README changes a script that a reader has, [`TRAIN`], which is there from the start;
//! - those in `text` directly after one in `sh` show a part of what it prints: each of their lines must be
//!   in the output, with anything in place of `…`.
//!
//! Commands that cannot be run like this are listed in [`EXCEPTIONS`], with the reason.

mod diff;
mod exceptions;
mod follow;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::rules::root;
use crate::{cargo, environment, execute, markdown, python};
use exceptions::EXCEPTIONS;
use follow::{Follower, Step};

/// What is followed.
const PAGES: &[&str] = &[
    "docs/tutorials/pytorch.md",
    "README.md",
    "docs/tutorials/planning.md",
    "docs/tutorials/rust.md",
    "docs/tutorials/research.md",
];

/// The script that a diff shows.
const TRAIN: &str = "train.py";

/// The program and the Python module are there.
const BUILT: &str = "--built";

/// `cargo xtask tutorials [--built] [PAGE…]`: builds what is needed unless it is there, and follows all
/// pages or these.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let (flags, names): (Vec<String>, Vec<String>) =
        words.iter().cloned().partition(|word| word.starts_with("--"));
    if let Some(flag) = flags.iter().find(|flag| *flag != BUILT) {
        bail!("unknown option `{flag}`; there is {BUILT}");
    }
    let is_known = |name: &&String| PAGES.iter().any(|page| page.contains(name.as_str()));
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        bail!("no page `{unknown}`; there are {}", PAGES.join(", "));
    }
    let python = environment::provide()?;
    if flags.is_empty() {
        execute(cargo().args(["build", "-q", "-p", "quelea-cli", "-p", "quelea-py"]))?;
    }
    follow(Some(&python), &names)
}

/// Follows the pages, or those that contain one of `names`; those that need Python only where it is.
/// The program and the Python module have been built before. Returns nothing but an error that names the
/// page, the line and what was printed.
pub(crate) fn follow(python: Option<&Path>, names: &[String]) -> Result<()> {
    let package = python.map(|_| python::lay_out("debug")).transpose()?;
    let target = python::target_folder()?;
    let is_chosen =
        |page: &&&str| names.is_empty() || names.iter().any(|name| page.contains(name.as_str()));
    for page in PAGES.iter().filter(is_chosen) {
        let text = fs::read_to_string(root().join(page))?;
        let steps = steps(page, &text)?;
        let place = scratch()?;
        let follower =
            Follower { place: &place, target: &target, python, package: package.as_deref() };
        let begin = std::time::Instant::now();
        let left_out = follower.follow(page, &steps)?;
        let note = if left_out { ", without what needs Python" } else { "" };
        println!("{page}: followed in {:.1} s{note}", begin.elapsed().as_secs_f64());
    }
    Ok(())
}

/// What a reader does with a page, in order.
fn steps(page: &str, text: &str) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut end_of_run = None;
    let blocks = markdown::blocks(text);
    for block in blocks.iter().filter(|block| block.language == "diff") {
        steps.push(Step::Write { name: TRAIN.to_string(), text: diff::applied(&block.text)? });
    }
    for block in blocks {
        // With at most an empty line between them.
        let is_after_run = end_of_run.is_some_and(|end| block.line <= end + 2);
        let end = block.line + block.text.lines().count() + 1;
        end_of_run = (block.language == "sh").then_some(end);
        if block.language == "sh" {
            steps.push(Step::Run { line: block.line, script: script(page, &block.text) });
        } else if block.language == "text" && is_after_run {
            steps.push(Step::Expect { line: block.line, shown: block.text });
        } else if let Some(name) = file_name(&block.text) {
            steps.push(Step::Write { name: name.to_string(), text: block.text.clone() });
        }
    }
    Ok(steps)
}

/// The commands of a block, with what is run instead of those that cannot be.
fn script(page: &str, text: &str) -> String {
    let lines = text.lines().map(|line| {
        let exception = EXCEPTIONS.iter().find(|exception| exception.is_for(page, line));
        exception.map_or(line, |exception| exception.instead)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The file that a block is to be written to.
fn file_name(text: &str) -> Option<&str> {
    let line = text.lines().next()?;
    let name = line.strip_prefix("# ").or_else(|| line.strip_prefix("// "))?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    (name.chars().all(is_name) && name.contains('.')).then_some(name)
}

/// An empty folder with what looks like a clone of the repository. It is outside the repository, whose
/// workspace a new project would become a part of, and always at the same place: what cargo builds there
/// can be used again.
fn scratch() -> Result<PathBuf> {
    let repository = root().display().to_string().replace(['/', '.'], "-");
    let folder = std::env::temp_dir().join(format!("quelea-tutorials{repository}"));
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let clone = folder.join("quelea");
    fs::create_dir_all(&clone)?;
    for name in ["Cargo.toml", "Cargo.lock", "crates", "tests", "xtask", "examples"] {
        symlink(root().join(name), clone.join(name))
            .with_context(|| format!("cannot link {name}"))?;
    }
    // Quick to build: nothing here trains for long.
    fs::create_dir_all(folder.join(".cargo"))?;
    fs::write(
        folder.join(".cargo/config.toml"),
        "[profile.dev]\ndebug = false\nincremental = false\n",
    )?;
    Ok(clone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exception_is_still_needed() {
        for exception in EXCEPTIONS {
            let text = fs::read_to_string(root().join(exception.page)).expect("the page is there");
            let blocks = markdown::blocks(&text);
            let commands = blocks
                .iter()
                .filter(|block| block.language == "sh")
                .flat_map(|block| block.text.lines());
            let found = commands.filter(|line| line.starts_with(exception.command)).count();
            assert_eq!(found, 1, "{}: `{}`", exception.page, exception.command);
        }
    }

    #[test]
    fn every_tutorial_is_followed() {
        let folder = fs::read_dir(root().join("docs/tutorials")).expect("there are tutorials");
        for file in folder {
            let name = file.expect("an entry").file_name().to_string_lossy().into_owned();
            assert!(PAGES.contains(&format!("docs/tutorials/{name}").as_str()), "{name}");
        }
    }

    #[test]
    fn a_page_is_read_as_files_commands_and_what_they_print() {
        let page = "```toml\n# run.toml\na = 1\n```\n```toml\n# Not a file\n```\n```sh\nls  # look\n```\n\n\
                    ```text\nrun.toml\n```\n\nText.\n\n```sh\npwd\n```\n\nMore.\n\n```text\nno output\n```\n";
        assert_eq!(
            steps("a.md", page).expect("it can be read"),
            [
                Step::Write { name: "run.toml".into(), text: "# run.toml\na = 1\n".into() },
                Step::Run { line: 8, script: "ls  # look".into() },
                Step::Expect { line: 12, shown: "run.toml\n".into() },
                Step::Run { line: 18, script: "pwd".into() },
            ]
        );
    }
}
