//! Reports of experiments as files: a page with its plots, and a page of Markdown.

use std::path::{Path, PathBuf};

use anyhow::Context;
use quelea_papers::render;
use quelea_papers::report::PaperReport;

use crate::text::mention;

/// Writes report.html, report.json and the plots to a folder.
pub fn write_folder(folder: &Path, reports: &[PaperReport]) -> anyhow::Result<()> {
    make(folder)?;
    for report in reports {
        for (name, chart) in &report.charts {
            let stem = format!("{}-{name}", report.name);
            write(&folder.join(format!("{stem}.svg")), chart.svg().as_bytes())?;
            write(&folder.join(format!("{stem}.png")), &chart.png())?;
        }
    }
    let all: Vec<_> = reports.iter().map(render::json).collect();
    write(&folder.join("report.json"), serde_json::to_string_pretty(&all)?.as_bytes())?;
    let page = folder.join("report.html");
    write(&page, render::html(reports).as_bytes())?;
    mention(&format!("report  {}", page.display()));
    Ok(())
}

/// Writes the page and, in a folder of its name, its pictures. At its end stands what other
/// programs have put into that folder.
pub fn write_markdown(file: &Path, reports: &[PaperReport], command: &str) -> anyhow::Result<()> {
    let stem = file.file_stem().map_or("pictures".into(), |stem| stem.to_string_lossy());
    let folder = file.with_file_name(stem.as_ref());
    make(&folder)?;
    let mut page = format!("# The papers' experiments\n\n{}\n", render::LEGEND);
    page.push_str(&format!(
        "\nMade by `{command}`, version {}, commit {}, seed {}; do not edit. At the end stands the \
         content of every `.md` file in the folder `{stem}`, by name: results that take other \
         machines.\n",
        env!("CARGO_PKG_VERSION"),
        commit(),
        reports.first().map_or(1, |report| report.seed)
    ));
    for report in reports {
        page.push('\n');
        page.push_str(&render::markdown(report, Some(&stem)));
        for (name, chart) in &report.charts {
            let picture = folder.join(format!("{}-{name}.svg", report.name));
            write(&picture, chart.svg().as_bytes())?;
        }
    }
    for other in others(&folder)? {
        let text = std::fs::read_to_string(&other)
            .with_context(|| format!("cannot read {}", other.display()))?;
        page.push('\n');
        page.push_str(linked(text.trim_end(), &folder, &stem).as_str());
        page.push('\n');
    }
    write(file, page.as_bytes())
}

/// The `.md` files of a folder, by name.
fn others(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let wrong = || format!("cannot read the folder {}", folder.display());
    let entries = std::fs::read_dir(folder).with_context(wrong)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
    let mut pages: Vec<PathBuf> = paths.with_context(wrong)?;
    pages.retain(|path| path.extension().is_some_and(|ending| ending == "md") && path.is_file());
    pages.sort();
    Ok(pages)
}

/// A text that was written inside `folder`, for a page beside it: links to what lies in the folder
/// lead there.
fn linked(text: &str, folder: &Path, stem: &str) -> String {
    let mut parts = text.split("](");
    let mut linked = parts.next().unwrap_or_default().to_string();
    for part in parts {
        linked.push_str("](");
        let target = part.split([')', '#', ' ']).next().unwrap_or_default();
        if !target.is_empty() && folder.join(target).is_file() && !Path::new(target).is_absolute() {
            linked.push_str(&format!("{stem}/"));
        }
        linked.push_str(part);
    }
    linked
}

/// The commit of the working tree that this is run in, if there is one.
fn commit() -> String {
    let asked = std::process::Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let answer = asked.ok().filter(|answer| answer.status.success());
    answer.map_or("unknown".into(), |a| String::from_utf8_lossy(&a.stdout).trim().to_string())
}

fn make(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))
}

/// Written beside and renamed, so that there is never half a file.
fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let written = std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}
