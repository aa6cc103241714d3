//! Reports of experiments as files: a page with its plots, and a page of Markdown.

use std::path::{Path, PathBuf};

use anyhow::Context;
use quelea_papers::report::PaperReport;
use quelea_papers::{EXPERIMENTS, render};

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

/// Writes the page and, in a folder of its name, its pictures. Sections of experiments that were not run
/// now stay as they are in a page that is there: each says at which commit it was made. At the end are
/// links to what other programs have put into that folder.
pub fn write_markdown(file: &Path, reports: &[PaperReport], command: &str) -> anyhow::Result<()> {
    let stem = file.file_stem().map_or("pictures".into(), |stem| stem.to_string_lossy());
    let folder = file.with_file_name(stem.as_ref());
    make(&folder)?;
    let before = if file.exists() { read(file)? } else { String::new() };
    let mut page = format!("# The papers' experiments\n\n{}\n", render::LEGEND);
    page.push_str(
        "\nMade by `quelea reproduce`; do not edit. Every section names the command and the commit that made \
         it, and is renewed by that command.\n",
    );
    for experiment in EXPERIMENTS {
        let name = experiment.meta.name;
        match reports.iter().find(|report| report.name == name) {
            Some(report) => {
                let made = made_by(command, report.seed);
                page.push('\n');
                page.push_str(&render::markdown(report, Some(&stem)));
                page.push_str(&format!("\n{made}\n"));
            }
            None => section(&before, name).into_iter().for_each(|kept| {
                page.push_str(&format!("\n{kept}\n"));
            }),
        }
    }
    for report in reports {
        for (name, chart) in &report.charts {
            let picture = folder.join(format!("{}-{name}.svg", report.name));
            write(&picture, chart.svg().as_bytes())?;
        }
    }
    let others = others(&folder)?;
    if !others.is_empty() {
        page.push_str("\n## Results that take other machines\n\n");
    }
    for other in others {
        let text = read(&other)?;
        let heading = text.lines().find(|line| line.starts_with('#')).unwrap_or_default();
        let file = other.file_name().map_or(String::new(), |name| name.to_string_lossy().into());
        let title = heading.trim_start_matches('#').trim();
        page.push_str(&format!("- [{title}]({stem}/{file})\n"));
    }
    write(file, page.as_bytes())
}

fn made_by(command: &str, seed: u64) -> String {
    format!(
        "{MADE}`{command}`, version {}, commit {}, seed {seed}.",
        env!("CARGO_PKG_VERSION"),
        commit()
    )
}

/// How the last line of a section begins.
const MADE: &str = "Made by ";

/// The section of an experiment in a page, without the space around it.
fn section<'a>(page: &'a str, name: &str) -> Option<&'a str> {
    let heading = format!("## {name}\n");
    let from = page
        .match_indices(&heading)
        .map(|(place, _)| place)
        .find(|place| *place == 0 || page.as_bytes()[place - 1] == b'\n')?;
    let rest = &page[from..];
    let end = rest[heading.len()..].find("\n## ").map_or(rest.len(), |end| heading.len() + end);
    Some(rest[..end].trim_end())
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
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
