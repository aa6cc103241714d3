//! `quelea reproduce`: an experiment of a paper, ours beside theirs.

use std::path::{Path, PathBuf};

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_papers::error::ExperimentError;
use quelea_papers::render::{self, Grid};
use quelea_papers::report::PaperReport;
use quelea_papers::{EXPERIMENTS, Experiment, ReproduceOptions, data, find};
use quelea_run::error::RequestError;

use super::CommandSpec;
use crate::pages;
use crate::text::{bold, columns, mention, pale, say};

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "reproduce", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea reproduce                                  list the experiments
  quelea reproduce aladdin-heterogeneity            the table, ours beside theirs
  quelea reproduce aladdin-heterogeneity --out DIR  with a page (report.html), plots and JSON
  quelea reproduce all --no-training --out DIR      everything that takes seconds
  quelea reproduce all --data /data --out DIR       everything, with /data/multi30k, /data/cifar10
  quelea reproduce decentdp-generalization --data /data/multi30k

Experiments that train networks take some minutes each, and are marked in the list.

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

    /// With `all`: leave out those that train networks
    #[arg(long)]
    no_training: bool,

    /// Where data sets are: the folder of one, or one that holds them by name (PATH/multi30k);
    /// without it, where `quelea data get` puts them, and CIFAR-10 is not used
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,

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

fn run(_registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    let Some(name) = &args.name else {
        list();
        return Ok(());
    };
    let chosen = chosen(name, args.no_training)?;
    check_data(args.data.as_deref(), &chosen)?;
    let options = ReproduceOptions {
        seed: args.seed,
        small: args.small,
        data: args.data.clone(),
        tell: |text| mention(&pale(text)),
    };
    let mut reports = Vec::new();
    for experiment in &chosen {
        mention(&pale(&format!("{} …", experiment.meta.name)));
        let report = match name.as_str() {
            "all" => experiment.attempt(&options),
            _ => (experiment.run)(&options),
        };
        let report = PaperReport { seed: args.seed, ..report.map_err(|error| told(name, error))? };
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
        pages::write_folder(folder, &reports)?;
    }
    if let Some(file) = &args.markdown {
        pages::write_markdown(file, &reports, &command(&args, file))?;
    }
    Ok(())
}

/// The command that makes the same page; where the data lie does not matter.
fn command(args: &Args, file: &Path) -> String {
    let name = args.name.as_deref().unwrap_or("all");
    let mut words = vec![format!("quelea reproduce {name} --markdown {}", file.display())];
    let flags = [(args.no_training, "--no-training"), (args.small, "--small")];
    words.extend(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.to_string()));
    words.extend(args.data.as_ref().map(|_| "--data PATH".to_string()));
    words.join(" ")
}

/// A wrong request keeps its exit status.
fn told(name: &str, error: ExperimentError) -> anyhow::Error {
    match error {
        ExperimentError::Request(error) => error.into(),
        ExperimentError::NoData { .. } => RequestError::Conflict(format!("{name} {error}")).into(),
        other => other.into(),
    }
}

fn list() {
    let rows = EXPERIMENTS.iter().map(|row| {
        let trains = if row.trains { " (trains)" } else { "" };
        vec![row.meta.name.to_string(), format!("{}{trains}", row.meta.summary)]
    });
    let width = EXPERIMENTS.iter().map(|row| row.meta.name.len()).max().unwrap_or(0);
    rows.for_each(|row| say(&format!("{:width$}  {}", row[0], row[1])));
}

fn chosen(name: &str, no_training: bool) -> Result<Vec<&'static Experiment>, RequestError> {
    if name == "all" {
        return Ok(EXPERIMENTS.iter().filter(|row| !(row.trains && no_training)).collect());
    }
    if no_training {
        return Err(RequestError::Conflict("--no-training goes with `all` only".to_string()));
    }
    find(name).map(|row| vec![row]).map_err(|nearest| {
        let names: Vec<&str> = EXPERIMENTS.iter().map(|row| row.meta.name).collect();
        let hint = nearest.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        let problem = format!("must be `all` or one of {}{hint}", names.join(", "));
        RequestError::field("NAME", name, problem)
    })
}

/// Refuses data that nobody would look at.
fn check_data(folder: Option<&Path>, chosen: &[&Experiment]) -> Result<(), RequestError> {
    let Some(folder) = folder else { return Ok(()) };
    let refuse = |problem: String| Err(RequestError::field("--data", folder.display(), problem));
    let wanted: Vec<&str> = chosen.iter().filter_map(|row| row.data).collect();
    if wanted.is_empty() {
        return refuse("nothing of what is to be run uses a data set".into());
    }
    if !wanted.iter().any(|name| data::under(folder, name).is_some()) {
        let names = wanted.join(" nor ");
        return refuse(format!("holds no {names}, neither itself nor in a folder of that name"));
    }
    Ok(())
}

fn print(report: &PaperReport) {
    say(&format!("\n{}\n{}", bold(&report.title), pale(&report.paper)));
    if let Some(reason) = &report.not_run {
        return say(&format!("\n{}: {reason}", bold("Not run")));
    }
    for table in &report.tables {
        let Grid { head, rows } = render::grid(table);
        let lines: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
        say(&format!("\n{}\n{}", bold(&table.title), columns(&lines).trim_end()));
    }
    if !report.claims.is_empty() {
        say(&format!("\n{}", bold("What must hold")));
    }
    for claim in &report.claims {
        let answer = if claim.holds == Some(false) { "NO" } else { claim.answer() };
        say(&format!("{answer:>3}  {}", claim.text));
    }
    say(&format!("\n{}", bold("What it rests on")));
    for parameter in &report.parameters {
        say(&format!("{}: {} ({})", parameter.name, parameter.value, parameter.source));
    }
    report.notes.iter().for_each(|note| say(&format!("\n{note}")));
}
