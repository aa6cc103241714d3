//! `cargo xtask book`: the pages of `docs/` as a book, without a warning and without a dead link.
//!
//! The pages are copied to `target/book/src`, with links to files outside `docs/` turned to copies of
//! these files, so that the book is complete wherever it is put. mdBook is no dependency of this
//! workspace: it is installed once, outside the repository, in the version below and with the lock file
//! that it was published with.

mod html;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::links::{Destination, Pages};
use crate::rules::root;
use crate::{cargo, environment, execute, links, markdown, shown};

/// What builds the book.
const MDBOOK: &str = "0.5.4";
/// The list of chapters.
const SUMMARY: &str = "docs/SUMMARY.md";
/// Pages that are chapters without being named.
const DECISIONS: &str = "docs/decisions/";
/// Where files outside `docs/` are in the book.
const REPOSITORY: &str = "repository";
/// What stands for a folder: a list of its files.
const LISTING: &str = "files.txt";

/// `cargo xtask book`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    if let Some(word) = words.first() {
        bail!("unknown word `{word}`; usage: cargo xtask book");
    }
    links::check()?;
    let mdbook = provide()?;
    let pages = Pages::read()?;
    let folder = root().join("target/book");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    Sources { pages: &pages, chapters: chapters(&pages)? }.write(&folder)?;
    build(&mdbook, &folder)?;
    let out = folder.join("html");
    let dead = html::dead_links(&out)?;
    if !dead.is_empty() {
        bail!("{} dead links in the book:\n  {}", dead.len(), dead.join("\n  "));
    }
    println!("the book is complete: {}", out.join("index.html").display());
    Ok(())
}

/// The program that builds books, which is installed if need be.
fn provide() -> Result<PathBuf> {
    let folder = environment::cache()?.join(format!("mdbook-{MDBOOK}"));
    let program = folder.join("bin/mdbook");
    if !program.exists() {
        let version = format!("mdbook@{MDBOOK}");
        // Without optimization: compiling it takes longer than what it does.
        let install = ["install", "--locked", "--debug", "--no-default-features"];
        let install = install.into_iter().chain(["--features", "search"]);
        execute(cargo().args(install).arg(version).arg("--root").arg(&folder))?;
    }
    Ok(program)
}

/// Builds it; what mdBook warns of is an error.
fn build(mdbook: &Path, folder: &Path) -> Result<()> {
    let mut command = Command::new(mdbook);
    command.arg("build").arg(folder);
    println!("\n$ {}", shown(&command));
    let output = command.output().with_context(|| format!("cannot start {}", mdbook.display()))?;
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    if !output.status.success() || said.contains("WARN") || said.contains("ERROR") {
        bail!("mdbook is not content with the pages ({})", output.status);
    }
    Ok(())
}

/// The list of chapters with the decisions, by number, below its last line.
fn summary(pages: &Pages) -> Result<String> {
    let mut summary =
        pages.texts.get(SUMMARY).with_context(|| format!("{SUMMARY} is not here"))?.clone();
    for (path, text) in pages.texts.iter().filter(|(path, _)| path.starts_with(DECISIONS)) {
        let title = text.lines().next().unwrap_or_default().trim_start_matches("# ");
        let file = path.trim_start_matches("docs/");
        summary.push_str(&format!("  - [{title}]({file})\n"));
    }
    Ok(summary)
}

/// The pages that the list of chapters names, by path.
fn chapters(pages: &Pages) -> Result<BTreeSet<String>> {
    let mut chapters = BTreeSet::new();
    for link in markdown::links(&summary(pages)?) {
        if let Destination::Here { path, .. } = pages.resolve(SUMMARY, &link.target)
            && !chapters.insert(path)
        {
            bail!("{SUMMARY}:{}: `{}` is a chapter already", link.line, link.target);
        }
    }
    let is_page = |path: &&String| path.starts_with("docs/") && path.ends_with(".md");
    let missing = pages.texts.keys().filter(is_page).filter(|path| *path != SUMMARY);
    let missing: Vec<&String> = missing.filter(|path| !chapters.contains(*path)).collect();
    if !missing.is_empty() {
        bail!("{SUMMARY} lacks {missing:?}");
    }
    Ok(chapters)
}

/// What the book is made of.
struct Sources<'a> {
    pages: &'a Pages,
    /// Pages that are chapters.
    chapters: BTreeSet<String>,
}

impl Sources<'_> {
    /// Writes the sources and everything that they link to.
    fn write(&self, folder: &Path) -> Result<()> {
        let (root, src) = (root(), folder.join("src"));
        let mut linked: BTreeSet<String> = BTreeSet::new();
        let texts = self.chapters.iter().map(|path| (path.as_str(), &self.pages.texts[path]));
        let summary = summary(self.pages)?;
        for (path, text) in texts.chain([(SUMMARY, &summary)]) {
            let (text, targets) = self.turned(path, text);
            linked.extend(targets);
            write(&src.join(self.place(path)), text.as_bytes())?;
        }
        for path in linked.iter().filter(|path| !self.chapters.contains(*path)) {
            let content = if self.pages.files.contains(path) {
                fs::read(root.join(path))?
            } else {
                self.listing(path).into_bytes()
            };
            write(&src.join(self.place(path)), &content)?;
        }
        write(&folder.join("book.toml"), &fs::read(root.join("docs/book.toml"))?)
    }

    /// A page with its links turned to where their targets are in the book, and these targets.
    fn turned(&self, path: &str, text: &str) -> (String, Vec<String>) {
        let (mut out, mut done, mut targets) = (String::new(), 0, Vec::new());
        let from = self.place(path);
        for link in markdown::links(text) {
            let Destination::Here { path, anchor } = self.pages.resolve(path, &link.target) else {
                continue;
            };
            out.push_str(&text[done..link.place.start]);
            out.push_str(&relative(&from, &self.place(&path)));
            if let Some(anchor) = anchor {
                out.push('#');
                out.push_str(&anchor);
            }
            done = link.place.end;
            targets.push(path);
        }
        out.push_str(&text[done..]);
        (out, targets)
    }

    /// Where a file or folder of the repository is in the book.
    fn place(&self, path: &str) -> String {
        if !self.pages.files.contains(path) {
            return format!("{REPOSITORY}/{path}/{LISTING}");
        }
        if let Some(inside) = path.strip_prefix("docs/") {
            return inside.to_string();
        }
        if self.chapters.contains(path) {
            return format!("{REPOSITORY}/{path}");
        }
        // Sources are shown by a browser if they are plain text.
        format!("{REPOSITORY}/{path}.txt")
    }

    /// The files of a folder, one a line.
    fn listing(&self, folder: &str) -> String {
        let inside = |path: &&String| path.starts_with(&format!("{folder}/"));
        let lines = self.pages.files.iter().filter(inside).map(|path| format!("{path}\n"));
        lines.collect()
    }
}

fn write(file: &Path, content: &[u8]) -> Result<()> {
    fs::create_dir_all(file.parent().context("a file is in a folder")?)?;
    fs::write(file, content).with_context(|| format!("cannot write {}", file.display()))
}

/// The way from one file to another, with `/`.
fn relative(from: &str, to: &str) -> String {
    let folder: Vec<&str> = from.split('/').collect();
    let folder = &folder[..folder.len() - 1];
    let to: Vec<&str> = to.split('/').collect();
    let common = folder.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = folder[common..].iter().map(|_| "..");
    up.chain(to[common..].iter().copied()).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_docs_is_a_chapter_of_the_book_once() {
        let pages = Pages::read().expect("the pages can be read");
        chapters(&pages).expect("the list of chapters is complete");
    }

    #[test]
    fn links_out_of_the_book_lead_to_copies() {
        let texts = [
            (SUMMARY, "[A](sub/a.md) [Changes](../CHANGELOG.md)"),
            ("docs/sub/a.md", "[x](../../src/x.rs) [all](../../src) [c](../../CHANGELOG.md#new)"),
            ("CHANGELOG.md", "# New\n[a](docs/sub/a.md)"),
        ];
        let texts = texts.map(|(path, text)| (path.to_string(), text.to_string()));
        let files = texts.iter().map(|(path, _)| path.clone()).chain(["src/x.rs".to_string()]);
        let pages = Pages { files: files.collect(), texts: texts.clone().into() };
        let chapters = chapters(&pages).expect("all pages are named");
        let sources = Sources { pages: &pages, chapters };
        let turned = |path: &str| sources.turned(path, &pages.texts[path]).0;
        assert_eq!(turned(SUMMARY), "[A](sub/a.md) [Changes](repository/CHANGELOG.md)");
        assert_eq!(
            turned("docs/sub/a.md"),
            "[x](../repository/src/x.rs.txt) [all](../repository/src/files.txt) \
             [c](../repository/CHANGELOG.md#new)"
        );
        assert_eq!(turned("CHANGELOG.md"), "# New\n[a](../sub/a.md)");
        assert_eq!(sources.listing("src"), "src/x.rs\n");
    }

    #[test]
    fn a_page_that_is_no_chapter_is_named() {
        let texts = [(SUMMARY, "[A](a.md)"), ("docs/a.md", ""), ("docs/b.md", "")];
        let texts = texts.map(|(path, text)| (path.to_string(), text.to_string()));
        let files = texts.iter().map(|(path, _)| path.clone()).collect();
        let error = chapters(&Pages { files, texts: texts.into() }).expect_err("b.md is missing");
        assert_eq!(error.to_string(), "docs/SUMMARY.md lacks [\"docs/b.md\"]");
    }
}
