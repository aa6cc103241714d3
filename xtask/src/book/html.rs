//! Links of a book that was built: every one leads to a file beside it, and to an anchor in that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// What is shown for addresses that do not exist knows its links only once it is on a site.
const NOT_FOUND: &str = "404.html";

/// Links that lead nowhere, in sentences.
pub(super) fn dead_links(folder: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    collect(folder, &mut pages)?;
    pages.remove(&folder.join(NOT_FOUND));
    let mut dead = Vec::new();
    for (file, text) in &pages {
        let targets: BTreeSet<&str> = ["href", "src"]
            .iter()
            .flat_map(|name| attributes(text, name))
            .filter(|target| !target.contains(':') && *target != "#")
            .collect();
        for target in targets {
            if let Some(why) = problem(file, target, &pages) {
                let name = file.strip_prefix(folder).unwrap_or(file).display();
                dead.push(format!("{name}: `{target}` {why}"));
            }
        }
    }
    Ok(dead)
}

fn problem(from: &Path, target: &str, pages: &BTreeMap<PathBuf, String>) -> Option<&'static str> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = from.parent()?;
    let file = match path {
        "" => from.to_path_buf(),
        // The folder itself is what a server shows for it.
        path => match folder.join(path).canonicalize() {
            Ok(found) if found.is_dir() => found.join("index.html"),
            Ok(found) => found,
            Err(_) => return Some("is not there"),
        },
    };
    let text = match pages.get(&file) {
        Some(text) => text,
        None if file.is_file() => return None,
        None => return Some("is not there"),
    };
    let has = |anchor: &str| attributes(text, "id").any(|id| id == anchor);
    (!anchor.is_empty() && !has(anchor)).then_some("names an anchor that is not there")
}

/// The values of all attributes of this name.
fn attributes<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let opening = format!(" {name}=\"");
    let places: Vec<usize> = text.match_indices(&opening).map(|(at, _)| at).collect();
    let length = opening.len();
    places.into_iter().filter_map(move |at| text[at + length..].split('"').next())
}

fn collect(folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            let text = fs::read_to_string(&path)?;
            pages.insert(path.canonicalize()?, text);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_and_anchors_of_a_built_page_are_found() {
        let folder = std::env::temp_dir().join(format!("quelea-html-{}", std::process::id()));
        fs::create_dir_all(folder.join("sub")).expect("a temporary folder");
        let folder = folder.canonicalize().expect("it is there");
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).expect("written");
        write(
            "a.html",
            "<h1 id=\"top\"><a href=\"sub/b.html#good\">1</a> <a href=\"sub/b.html#bad\">2</a> \
             <a href=\"#top\">3</a> <img src=\"no.svg\"> <a href=\"https://example.org\">4</a>",
        );
        write("sub/b.html", "<p id=\"good\"><a href=\"../a.html\">5</a>");
        let found = dead_links(&folder).expect("it can be read");
        fs::remove_dir_all(&folder).expect("it can be removed");
        assert_eq!(
            found,
            [
                "a.html: `no.svg` is not there",
                "a.html: `sub/b.html#bad` names an anchor that is not there",
            ]
        );
    }
}
