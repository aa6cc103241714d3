//! `murmura reproduce`: an experiment of a paper, ours beside theirs.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use murmura_experiments::error::ExperimentError;
use murmura_experiments::render::{self, Grid};
use murmura_experiments::report::Report;
use murmura_experiments::{EXPERIMENTS, Experiment, Options, find};
use murmura_run::error::RequestError;

use super::Command;
use crate::text::{bold, columns, mention, pale, say};

/// The row.
pub const COMMAND: Command = Command { name: "reproduce", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  murmura reproduce                                  what there is
  murmura reproduce aladdin-heterogeneity            the table, ours beside theirs
  murmura reproduce aladdin-heterogeneity --out DIR  with a page (report.html), plots and JSON
  murmura reproduce all --out DIR                    everything that takes seconds
  murmura reproduce all --train --out DIR            also what trains networks

A published figure on which a parameter was fitted is printed as fitted; all others are
predictions. The same seed gives the same files, byte for byte.";

/// Reproduce an experiment of a paper: its numbers, ours, the difference
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    /// The experiment, or `all`; without it, the list
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Write report.html, report.json and the plots (SVG, PNG) to this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Write a page of Markdown with its pictures beside it
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// With `all`: also those that train networks
    #[arg(long)]
    train: bool,

    /// A small version: some cells instead of all
    #[arg(long)]
    small: bool,

    /// The seed of everything that is drawn at random
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    let Some(name) = &args.name else {
        list();
        return Ok(());
    };
    let chosen = chosen(name, args.train)?;
    let options = Options { seed: args.seed, small: args.small };
    let mut reports = Vec::new();
    for experiment in &chosen {
        mention(&pale(&format!("{} …", experiment.name)));
        let mut report = (experiment.run)(&options).map_err(told)?;
        report.seed = args.seed;
        if !args.json {
            print(&report);
        }
        reports.push(report);
    }
    if args.json {
        let one_or_all = match reports.as_slice() {
            [one] => render::json(one),
            all => all.iter().map(render::json).collect(),
        };
        say(&serde_json::to_string_pretty(&one_or_all)?);
    }
    if let Some(folder) = &args.out {
        write_folder(folder, &reports)?;
    }
    if let Some(file) = &args.markdown {
        write_markdown(file, &reports)?;
    }
    Ok(())
}

/// A wrong request keeps its exit status.
fn told(error: ExperimentError) -> anyhow::Error {
    match error {
        ExperimentError::Request(error) => error.into(),
        other => other.into(),
    }
}

fn list() {
    let rows = EXPERIMENTS.iter().map(|row| {
        let trains = if row.trains { " (trains)" } else { "" };
        vec![row.name.to_string(), format!("{}{trains}", row.summary)]
    });
    let width = EXPERIMENTS.iter().map(|row| row.name.len()).max().unwrap_or(0);
    rows.for_each(|row| say(&format!("{:width$}  {}", row[0], row[1])));
}

fn chosen(name: &str, train: bool) -> Result<Vec<&'static Experiment>, RequestError> {
    if name == "all" {
        return Ok(EXPERIMENTS.iter().filter(|row| train || !row.trains).collect());
    }
    find(name).map(|row| vec![row]).map_err(|nearest| {
        let names: Vec<&str> = EXPERIMENTS.iter().map(|row| row.name).collect();
        let hint = nearest.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        let problem = format!("must be `all` or one of {}{hint}", names.join(", "));
        RequestError::field("NAME", name, problem)
    })
}

fn print(report: &Report) {
    say(&format!("\n{}\n{}", bold(&report.title), pale(&report.paper)));
    for table in &report.tables {
        let Grid { head, rows } = render::grid(table);
        let lines: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
        say(&format!("\n{}\n{}", bold(&table.title), columns(&lines).trim_end()));
    }
    if !report.claims.is_empty() {
        say(&format!("\n{}", bold("What must hold")));
    }
    for claim in &report.claims {
        say(&format!("{}  {}", if claim.holds { "yes" } else { " NO" }, claim.text));
    }
    say(&format!("\n{}", bold("What it rests on")));
    for parameter in &report.parameters {
        say(&format!("{}: {} ({})", parameter.name, parameter.value, parameter.source));
    }
    report.notes.iter().for_each(|note| say(&format!("\n{note}")));
}

fn write_folder(folder: &Path, reports: &[Report]) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
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

/// The page and, in a folder of its name, its pictures.
fn write_markdown(file: &Path, reports: &[Report]) -> anyhow::Result<()> {
    let stem = file.file_stem().map_or("pictures".into(), |stem| stem.to_string_lossy());
    let folder = file.with_file_name(stem.as_ref());
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let mut page = String::from(
        "# The papers' experiments\n\nPublished figure / ours (relative difference). A figure on \
         which a parameter was fitted is marked as fitted and predicts nothing.\n",
    );
    page.push_str(&format!(
        "\nMade by `murmura reproduce all --markdown {}`, version {}, commit {}, seed {}; do not \
         edit.\n",
        file.display(),
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
    write(file, page.as_bytes())
}

/// The commit of the working tree that this is run in, if there is one.
fn commit() -> String {
    let asked = std::process::Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let answer = asked.ok().filter(|answer| answer.status.success());
    answer.map_or("unknown".into(), |a| String::from_utf8_lossy(&a.stdout).trim().to_string())
}

/// Written beside and renamed, so that there is never half a file.
fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let written = std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}
