//! Links of the repository's pages: every one leads to a file of the repository, and to a heading of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Result, bail};

use crate::markdown;
use crate::rules::{root, tracked};

/// All pages of the repository, by path.
pub(crate) struct Pages {
    /// The text of every Markdown file.
    pub(crate) texts: BTreeMap<String, String>,
    /// Every file of the repository.
    pub(crate) files: BTreeSet<String>,
}

impl Pages {
    /// Reads the pages of the repository.
    pub(crate) fn read() -> Result<Pages> {
        let root = root();
        let files: BTreeSet<String> = tracked(&root)?.into_iter().collect();
        let pages = files.iter().filter(|path| path.ends_with(".md"));
        let texts = pages.map(|path| Ok((path.clone(), fs::read_to_string(root.join(path))?)));
        Ok(Pages { texts: texts.collect::<Result<_>>()?, files })
    }

    /// What a link of the page `from` leads to.
    pub(crate) fn resolve(&self, from: &str, target: &str) -> Destination {
        if ["http://", "https://", "mailto:"].iter().any(|scheme| target.starts_with(scheme)) {
            return Destination::Elsewhere;
        }
        let (path, anchor) = match target.split_once('#') {
            Some((path, anchor)) => (path, Some(anchor.to_string())),
            None => (target, None),
        };
        if path.is_empty() {
            return Destination::Here { path: from.to_string(), anchor };
        }
        match joined(from, path) {
            Some(path) => Destination::Here { path, anchor },
            None => Destination::Outside,
        }
    }

    /// Links that lead nowhere, in sentences.
    pub(crate) fn dead_links(&self) -> Vec<String> {
        let of_page = |(path, text): (&String, &String)| {
            let problem = |link: markdown::Link| {
                let why = self.problem(path, &link.target)?;
                Some(format!("{path}:{}: `{}` {why}", link.line, link.target))
            };
            markdown::links(text).into_iter().filter_map(problem).collect::<Vec<_>>()
        };
        self.texts.iter().flat_map(of_page).collect()
    }

    fn problem(&self, from: &str, target: &str) -> Option<&'static str> {
        let (path, anchor) = match self.resolve(from, target) {
            Destination::Elsewhere => return None,
            Destination::Outside => return Some("leads out of the repository"),
            Destination::Here { path, anchor } => (path, anchor),
        };
        if !self.files.contains(&path) && !self.is_folder(&path) {
            return Some("is not a file of the repository");
        }
        let anchors = self.texts.get(&path).map(|text| markdown::anchors(text));
        match (anchor, anchors) {
            (None, _) => None,
            (Some(anchor), Some(anchors)) if anchors.contains(&anchor) => None,
            (Some(_), Some(_)) => Some("names a heading that the page does not have"),
            (Some(_), None) => Some("names a heading of what is not a page"),
        }
    }

    /// Whether files of the repository are below this path.
    pub(crate) fn is_folder(&self, path: &str) -> bool {
        let inside = format!("{}/", path.trim_end_matches('/'));
        self.files.range(inside.clone()..).next().is_some_and(|file| file.starts_with(&inside))
    }
}

/// Where a link leads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// To another site.
    Elsewhere,
    /// Above the root of the repository.
    Outside,
    /// To this path of the repository.
    Here { path: String, anchor: Option<String> },
}

/// The path of `target` seen from the page `from`; nothing above the root.
fn joined(from: &str, target: &str) -> Option<String> {
    let folder = Path::new(from).parent()?.to_str()?;
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// An error that lists all dead links.
pub(crate) fn check() -> Result<()> {
    let dead = Pages::read()?.dead_links();
    if !dead.is_empty() {
        bail!("{} dead links:\n  {}", dead.len(), dead.join("\n  "));
    }
    println!("links: good");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(texts: &[(&str, &str)], files: &[&str]) -> Pages {
        let texts: BTreeMap<String, String> =
            texts.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
        let files = files.iter().map(|path| path.to_string()).chain(texts.keys().cloned());
        Pages { files: files.collect(), texts }
    }

    #[test]
    fn every_link_of_the_repository_leads_somewhere() {
        check().expect("no link is dead");
    }

    #[test]
    fn a_link_that_leads_nowhere_is_named_with_its_line_and_the_reason() {
        let found = pages(
            &[
                ("docs/a.md", "[1](b.md#good)\n[2](b.md#bad)\n[3](../src/x.rs) [4](../src)\n"),
                ("docs/b.md", "# Good\n[5](#good) [6](c.md) [7](../../up) [8](https://x.org)\n"),
            ],
            &["src/x.rs"],
        );
        assert_eq!(
            found.dead_links(),
            [
                "docs/a.md:2: `b.md#bad` names a heading that the page does not have",
                "docs/b.md:2: `c.md` is not a file of the repository",
                "docs/b.md:2: `../../up` leads out of the repository",
            ]
        );
    }
}
