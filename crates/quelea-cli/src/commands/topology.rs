//! `quelea topology`: what a topology costs, how fast it mixes, and its picture.

use std::path::PathBuf;

use anyhow::Context;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_core::topology::{self, Report, report};
use quelea_plot::topology_svg;
use quelea_run::config::chosen::Chosen;
use quelea_run::config::source;
use quelea_run::error::RequestError;
use quelea_run::prepared::TopologyMaker;
use serde_json::{Value, json};

use super::CommandSpec;
use crate::text::{bold, columns, number, say};

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "topology", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea topology ring --workers 16
  quelea topology one-peer-exponential --workers 16 --svg picture.svg
  quelea topology aer --workers 16 --hosts 4 --json
  quelea topology custom --workers 3 --set file=edges.txt

rho is the contraction of the workers' differences per round: 0 is the exact mean in one round,
1 is none at all. Transient iterations are the steps, up to a constant, before n workers pay off.";

/// Show degrees, mixing speed, transient iterations and a picture of a topology
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    /// Its name; `quelea list topologies` has them all
    #[arg(value_name = "NAME")]
    name: String,

    /// How many workers mix
    #[arg(long, value_name = "N")]
    workers: u32,

    /// How many hosts they are spread over; without it, one each
    #[arg(long, value_name = "H")]
    hosts: Option<u32>,

    /// Set a key of the topology, as in file=edges.txt
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,

    /// The seed of random ones
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Write a picture to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Replace the file of the picture
    #[arg(long, requires = "svg")]
    force: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn run(registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    if let Some(path) = args.svg.as_ref().filter(|path| !args.force && path.exists()) {
        let problem = "is there already and stays as it is; choose another, or use --force";
        return Err(RequestError::file(path, problem).into());
    }
    let schedule = TopologyMaker::new(row(registry, &args)?, args.seed)?.build(&hosts(&args)?)?;
    let report = report(&schedule);
    if let Some(path) = &args.svg {
        std::fs::write(path, topology_svg(&schedule, &report))
            .with_context(|| format!("cannot write the picture to {}", path.display()))?;
    }
    if args.json {
        say(&serde_json::to_string_pretty(&report_json(&report))?);
    } else {
        print(&report);
        if let Some(path) = &args.svg {
            say(&format!("\npicture  {}", path.display()));
        }
    }
    Ok(())
}

fn row(registry: &Registry, args: &Args) -> Result<Chosen<topology::Entry>, RequestError> {
    let mut table = source::Table::new();
    table.insert("name".to_string(), args.name.as_str().into());
    for given in &args.settings {
        let mut setting = source::setting(given)?;
        if setting.path.first().is_some_and(|first| first == "topology") {
            setting.path.remove(0);
        }
        source::apply(&mut table, &setting)?;
    }
    Chosen::read(registry, &table)
}

fn hosts(args: &Args) -> Result<Vec<u32>, RequestError> {
    let (workers, hosts) = (args.workers, args.hosts.unwrap_or(args.workers));
    // The report works with dense matrices.
    if !(1..=4096).contains(&workers) {
        let problem = "must be a whole number from 1 to 4096";
        return Err(RequestError::field("--workers", workers, problem));
    }
    if !(1..=workers).contains(&hosts) {
        let problem = format!("must be a whole number from 1 to the {workers} workers");
        return Err(RequestError::field("--hosts", hosts, problem));
    }
    let host = |worker| (u64::from(worker) * u64::from(hosts) / u64::from(workers)) as u32;
    Ok((0..workers).map(host).collect())
}

fn print(report: &Report) {
    let kind = match (report.is_static, report.period) {
        (true, _) => "the same in every round".to_string(),
        (false, Some(period)) => format!("repeats after {period} rounds"),
        (false, None) => "drawn again in every round".to_string(),
    };
    let direction = if report.is_directed { "directed" } else { "undirected" };
    let title = format!("{} over {} workers", report.name, report.workers);
    say(&format!("{}: {direction}, {kind}\n", bold(&title)));
    let mut rows = vec![["round", "in", "out", "vectors sent", "rho"].map(str::to_string).to_vec()];
    for (place, round) in report.rounds.iter().enumerate() {
        rows.push(vec![
            place.to_string(),
            round.in_degree_max.to_string(),
            round.out_degree_max.to_string(),
            number(round.models_sent_mean),
            format!("{:.4}", round.rho),
        ]);
    }
    say(&columns(&rows));
    let some = |value: Option<f64>| value.map_or("–".to_string(), number);
    let per_round = match report.period {
        Some(2..) => "rho per round (geometric mean over a period)",
        Some(_) => "rho per round",
        None => "rho per round (root of the mean square)",
    };
    let properties = [
        (per_round, format!("{:.6}", report.rho)),
        ("spectral gap", format!("{:.6}", report.spectral_gap)),
        ("rho over a period", report.period_rho.map_or("–".into(), |rho| format!("{rho:.6}"))),
        ("mean-square contraction", some(report.mean_square)),
        ("transient iterations, same data", some(report.transient_iid)),
        ("transient iterations, own data", some(report.transient_non_iid)),
    ];
    let rows: Vec<Vec<String>> =
        properties.into_iter().map(|(name, value)| vec![name.to_string(), value]).collect();
    say(columns(&rows).trim_end());
    if !report.note.is_empty() {
        say(&format!("\nnote  {}", report.note));
    }
}

fn report_json(report: &Report) -> Value {
    let rounds = report.rounds.iter().map(|round| {
        json!({
            "in_degree_max": round.in_degree_max,
            "out_degree_max": round.out_degree_max,
            "models_sent_mean": round.models_sent_mean,
            "rho": round.rho,
        })
    });
    json!({
        "name": report.name,
        "workers": report.workers,
        "is_static": report.is_static,
        "is_symmetric": report.is_symmetric,
        "is_directed": report.is_directed,
        "period": report.period,
        "rho": report.rho,
        "spectral_gap": report.spectral_gap,
        "period_rho": report.period_rho,
        "mean_square": report.mean_square,
        "transient_iid": report.transient_iid,
        "transient_non_iid": report.transient_non_iid,
        "note": report.note,
        "rounds": rounds.collect::<Vec<_>>(),
    })
}
