//! `quelea compare`: several algorithms on the same data in the same virtual cluster.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_papers::compare::{Comparison, Entrant, Target};
use quelea_run::error::RequestError;
use quelea_run::files::directory::Directory;

use super::CommandSpec;
use crate::request::RunArgs;
use crate::text::{bold, columns, mention, pale, say};

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "compare", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea compare --algorithms aladdin,allreduce,d-psgd
  quelea compare run.toml --algorithms aladdin,asp --set cluster.slow.3=10 --out DIR
  quelea compare run.toml --algorithms sgp,ad-psgd --target-accuracy 0.95 --json

All run in the virtual cluster, on the same data in the same order. Without a target they are
measured by the lowest loss that all of them reach.";

/// Compare algorithms on one task and one cluster: time to a target, and what it is spent on
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    #[command(flatten)]
    run: RunArgs,

    /// The algorithms, separated by commas
    #[arg(long, value_name = "A,B,…", value_delimiter = ',', required = true)]
    algorithms: Vec<String>,

    /// Measure the time until the loss is this or less
    #[arg(long, value_name = "LOSS", conflicts_with = "target_accuracy")]
    target_loss: Option<f64>,

    /// Measure the time until the accuracy is this or more
    #[arg(long, value_name = "SHARE")]
    target_accuracy: Option<f64>,

    /// Where the runs' files and the plots go; without it, a new folder under runs/
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Evaluations of a run, unless the file or a setting says otherwise.
const EVALUATIONS: &str = "evaluations=100";

fn run(registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    let target = target(&args)?;
    let mut configs = Vec::new();
    for name in &args.algorithms {
        let mut run = args.run.clone();
        run.settings.insert(0, EVALUATIONS.to_string());
        run.settings.push(format!("algorithm.name={name}"));
        configs.push(run.fresh(registry)?);
    }
    let names: Vec<&str> = configs.iter().map(|config| config.algorithm.entry.meta.name).collect();
    if let Some(twice) = names.iter().enumerate().find(|(k, name)| names[..*k].contains(name)) {
        let problem = "is named twice";
        return Err(RequestError::field("--algorithms", twice.1, problem).into());
    }
    // The folder of all runs is claimed first, so that nothing runs in vain.
    let folder = match &args.out {
        Some(folder) => folder.clone(),
        None => PathBuf::from("runs").join(format!("compare-{}", names.join("-"))),
    };
    let mut entrants = Vec::new();
    for config in configs {
        let name = config.algorithm.entry.meta.name;
        mention(&pale(&format!("{name} …")));
        let directory = Directory::claim(Some(&folder.join(name)), args.out.is_none(), name)?;
        entrants.push(Entrant::run(config, &directory)?);
    }
    let comparison = Comparison::new(entrants, target)?;
    write(&folder, &comparison)?;
    if args.json {
        say(&serde_json::to_string_pretty(&comparison.json())?);
        return Ok(());
    }
    say(&format!("{} {}\n", bold("target:"), comparison.goal()));
    say(&columns(&comparison.rows()));
    say(&comparison.verdict());
    say(&pale(&format!("\nfiles and plots  {}", folder.display())));
    Ok(())
}

fn target(args: &Args) -> Result<Option<Target>, RequestError> {
    if let Some(loss) = args.target_loss.filter(|loss| !loss.is_finite()) {
        return Err(RequestError::field("--target-loss", loss, "must be a number"));
    }
    if let Some(share) = args.target_accuracy.filter(|share| !(0.0..=1.0).contains(share)) {
        return Err(RequestError::field("--target-accuracy", share, "must be from 0 to 1"));
    }
    let accuracy = args.target_accuracy.map(Target::Accuracy);
    Ok(args.target_loss.map(Target::Loss).or(accuracy))
}

fn write(folder: &Path, comparison: &Comparison) -> anyhow::Result<()> {
    let put = |name: String, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    for (name, chart) in comparison.charts() {
        put(format!("{name}.svg"), chart.svg().as_bytes())?;
        put(format!("{name}.png"), &chart.png())?;
    }
    put("comparison.json".into(), serde_json::to_string_pretty(&comparison.json())?.as_bytes())
}
