//! `quelea chaos`: trains in processes, kills them at random, and checks that nothing is lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_record::Record;
use quelea_run::chaos::{Incident, IncidentKind, ProcessChaos, ProcessChaosRun};
use quelea_run::drive::{self, ProcessOptions};
use quelea_run::error::RequestError;
use quelea_run::execute::{Finished, execute};
use quelea_run::files::directory::Directory;
use quelea_run::prepared::PreparedRun;
use serde_json::json;

use super::CommandSpec;
use crate::progress::Progress;
use crate::request::RunArgs;
use crate::text::{bold, columns, mention, number, pale, say, seconds};

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "chaos", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea chaos run.toml --kills 20 --mean-seconds 2        twenty kills, two seconds apart on average
  quelea chaos run.toml --kills 10 --pauses 5 --seed 7     processes are also stopped for a while
  quelea chaos run.toml --set algorithm.name=ad-psgd --out runs/chaos

Every worker is a process, as with `train --processes`; one that is killed is started again and joins
the running run. The command fails if the run does not finish, if it ends before all kills are done, if a
loss is not noticed, or if the final loss is further from undisturbed runs in the virtual cluster (with
other seeds) than three of their standard deviations. The ledger is chaos.json in the run's folder. The
moments follow from --seed; whom they hit also depends on how fast processes come back. For random faults
in the virtual cluster see `[chaos]` of `quelea simulate`.";

/// Kill processes of a real run at random, and check what it comes to
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    #[command(flatten)]
    run: RunArgs,

    /// How many processes are killed
    #[arg(long, value_name = "K", default_value_t = 10)]
    kills: u32,

    /// How many processes are stopped for a while; those that are taken for lost join again
    #[arg(long, value_name = "K", default_value_t = 0)]
    pauses: u32,

    /// Mean time between two of these
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    mean_seconds: f64,

    /// What the moments follow from; the run's own seed is in its configuration
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// So many workers always take part; without it, half of them
    #[arg(long, value_name = "N")]
    survivors: Option<usize>,

    /// Undisturbed runs in the virtual cluster to compare the final loss with; 0 = none
    #[arg(long, value_name = "N", default_value_t = 8)]
    references: u32,

    /// Where the run's files go; without it, a new folder under runs/
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Replace the run that the folder holds
    #[arg(long, requires = "out")]
    force: bool,

    /// Print the ledger as JSON to standard output, and nothing else there
    #[arg(long)]
    json: bool,

    /// Print nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

fn run(registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    check(&args)?;
    let prepared = PreparedRun::new(args.run.fresh(registry)?)?;
    prepared.check_memory()?;
    let workers = prepared.config.workers;
    let plan = ProcessChaos {
        kills: args.kills,
        pauses: args.pauses,
        mean_seconds: args.mean_seconds,
        survivors: args.survivors.unwrap_or(workers / 2).max(1),
        seed: args.seed,
    };
    if plan.survivors >= workers {
        let problem = format!("must be below the {workers} workers, or nobody could be killed");
        return Err(RequestError::field("--survivors", plan.survivors, problem).into());
    }
    let algorithm = prepared.config.algorithm.entry.meta.name;
    let directory = Directory::claim(args.out.as_deref(), args.force, algorithm)?;
    let chaos = ProcessChaosRun::new(plan, workers);
    let finished = disturbed(&prepared, &chaos, plan, &directory, args.quiet || args.json)?;
    let references = references(registry, &args, directory.path())?;
    let verdict = DisturbedRun {
        plan,
        incidents: chaos.incidents(),
        violations: chaos.violations(),
        median_step_seconds: chaos.median_step_seconds(),
        finished,
        references,
    };
    let text = serde_json::to_string_pretty(&verdict.json())?;
    let path = directory.path().join("chaos.json");
    std::fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    if args.json {
        say(&text);
    } else if !args.quiet {
        verdict.print(&path);
    }
    match verdict.failures().as_slice() {
        [] => Ok(()),
        failures => anyhow::bail!("{}", failures.join("; ")),
    }
}

fn check(args: &Args) -> Result<(), RequestError> {
    if args.kills + args.pauses == 0 {
        return Err(RequestError::field("--kills", 0, "nothing would happen"));
    }
    if !(args.mean_seconds > 0.0 && args.mean_seconds.is_finite()) {
        let problem = "must be above 0 seconds";
        return Err(RequestError::field("--mean-seconds", args.mean_seconds, problem));
    }
    if args.references == 1 {
        let problem = "one run has no standard deviation; give at least 2, or 0 for none";
        return Err(RequestError::field("--references", 1, problem));
    }
    Ok(())
}

/// Trains in processes to which things happen.
fn disturbed(
    prepared: &PreparedRun,
    chaos: &ProcessChaosRun,
    plan: ProcessChaos,
    directory: &Directory,
    quiet: bool,
) -> anyhow::Result<Finished> {
    let executable = drive::executable()?;
    let options = ProcessOptions {
        executable: &executable,
        // A process may also fail to join a run that is busy with another loss.
        restarts: 2 * (plan.kills + plan.pauses) + 10,
        tell: if quiet { Arc::new(|_| {}) } else { Arc::new(mention) },
    };
    let mut progress = Progress::new(prepared.total_steps(), 0, quiet);
    let mut watch = |record: &Record| {
        chaos.take(record);
        progress.take(record);
    };
    let finished = execute(prepared, directory, &mut watch, |recorder| {
        let _disturbing = chaos.start();
        drive::processes(prepared, &options, recorder)
    });
    progress.finish();
    Ok(finished?)
}

/// The final losses of undisturbed runs with other seeds.
fn references(registry: &Registry, args: &Args, folder: &Path) -> anyhow::Result<Vec<f64>> {
    let own = args.run.fresh(registry)?.seed;
    let mut losses = Vec::new();
    for number in 1..=u64::from(args.references) {
        let mut run = args.run.clone();
        run.settings.push(format!("seed={}", own.wrapping_add(number) % (1 << 32)));
        run.settings.push("chaos.incidents=0".to_string());
        let prepared = PreparedRun::new(run.fresh(registry)?)?;
        let folder = folder.join("references").join(number.to_string());
        let directory = Directory::claim(Some(&folder), true, "")?;
        let finished = execute(&prepared, &directory, &mut |_| {}, |recorder| {
            drive::simulate(&prepared, recorder)
        })?;
        losses.push(finished.summary.loss.unwrap_or(f64::NAN));
    }
    Ok(losses)
}

/// What a disturbed run came to.
struct DisturbedRun {
    plan: ProcessChaos,
    incidents: Vec<Incident>,
    /// What its records do not keep to.
    violations: Vec<String>,
    median_step_seconds: Option<f64>,
    finished: Finished,
    references: Vec<f64>,
}

/// Mean and sample standard deviation.
struct LossSpread {
    mean: f64,
    deviation: f64,
}

impl LossSpread {
    fn of(values: &[f64]) -> LossSpread {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        LossSpread { mean, deviation: (squares / (count - 1.0)).sqrt() }
    }

    /// How many standard deviations of a new value `value` is away. The mean of a few is uncertain too.
    fn distance(&self, value: f64, count: usize) -> f64 {
        (value - self.mean).abs() / (self.deviation * (1.0 + 1.0 / count as f64).sqrt())
    }
}

impl DisturbedRun {
    fn done(&self, kind: IncidentKind) -> usize {
        self.incidents.iter().filter(|incident| incident.kind == kind).count()
    }

    fn spread(&self) -> Option<LossSpread> {
        (self.references.len() > 1).then(|| LossSpread::of(&self.references))
    }

    fn loss(&self) -> f64 {
        self.finished.summary.loss.unwrap_or(f64::NAN)
    }

    /// Kills of workers that took part which nobody has noticed, but for the last moment of the run.
    fn unnoticed(&self) -> usize {
        let last = self.finished.summary.clock_seconds - 5.0;
        let is_unnoticed = |incident: &&Incident| {
            incident.kind == IncidentKind::Kill
                && incident.took_part
                && incident.noticed_seconds.is_none()
                && incident.at_seconds < last
        };
        self.incidents.iter().filter(is_unnoticed).count()
    }

    /// Why this is not well, in sentences.
    fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let (kills, pauses) = (self.done(IncidentKind::Kill), self.done(IncidentKind::Pause));
        let planned = (self.plan.kills as usize, self.plan.pauses as usize);
        if (kills, pauses) != planned {
            failures.push(format!(
                "the run ended after {kills} of {} kills and {pauses} of {} pauses; give it more steps",
                planned.0, planned.1
            ));
        }
        failures.extend(self.violations.iter().cloned());
        if let Some(data) = &self.finished.summary.data
            && data.confirmed != data.units
        {
            failures.push(format!(
                "{} of {} batches were confirmed; each must be, once",
                data.confirmed, data.units
            ));
        }
        if self.unnoticed() > 0 {
            failures.push(format!("{} kills were not noticed", self.unnoticed()));
        }
        if let Some(spread) = self.spread() {
            let distance = spread.distance(self.loss(), self.references.len());
            // Also where the distance is not a number.
            if distance.is_nan() || distance > 3.0 {
                failures.push(format!(
                    "the final loss {} is {distance:.1} standard deviations from that of undisturbed \
                     runs, {} ± {}",
                    number(self.loss()),
                    number(spread.mean),
                    number(spread.deviation)
                ));
            }
        }
        failures
    }

    fn json(&self) -> serde_json::Value {
        let spread = self.spread();
        json!({
            "kills": self.done(IncidentKind::Kill),
            "pauses": self.done(IncidentKind::Pause),
            "mean_seconds": self.plan.mean_seconds,
            "survivors": self.plan.survivors,
            "seed": self.plan.seed,
            "clock_seconds": self.finished.summary.clock_seconds,
            "loss": self.loss(),
            "reference_losses": self.references,
            "deviations": spread.map(|spread| spread.distance(self.loss(), self.references.len())),
            "failures": self.failures(),
            "median_step_seconds": self.median_step_seconds,
            "incidents": self.incidents,
        })
    }

    fn print(&self, path: &Path) {
        let times = |name: &str, of: fn(&Incident) -> Option<f64>| {
            let mut all: Vec<f64> = self.incidents.iter().filter_map(of).collect();
            all.sort_by(f64::total_cmp);
            let shown =
                |value: Option<&f64>| value.map_or("–".to_string(), |value| seconds(*value));
            let median = shown(all.get(all.len() / 2));
            vec![name.to_string(), all.len().to_string(), median, shown(all.last())]
        };
        let head = ["seconds after it was done", "count", "median", "slowest"];
        let rows = [
            head.map(String::from).to_vec(),
            times("the loss is acted on", |incident| incident.noticed_seconds),
            times("another worker's next step is done", |incident| incident.next_step_seconds),
            times("a worker has taken the place", |incident| incident.joined_seconds),
            times("its first step is done", |incident| incident.first_step_seconds),
            times("the longest step of another worker took", |incident| {
                incident.longest_step_seconds
            }),
        ];
        let (kills, pauses) = (self.done(IncidentKind::Kill), self.done(IncidentKind::Pause));
        let joining = self.incidents.iter().filter(|incident| !incident.took_part).count();
        say(&format!(
            "{} {kills} kills and {pauses} pauses in {}, {joining} of them of processes that were about \
             to join\n",
            bold("the run finished:"),
            seconds(self.finished.summary.clock_seconds)
        ));
        say(&columns(&rows));
        if let Some(spread) = self.spread() {
            say(&format!(
                "final loss {}; undisturbed {} ± {} ({} runs in the virtual cluster)",
                number(self.loss()),
                number(spread.mean),
                number(spread.deviation),
                self.references.len()
            ));
        }
        say(&pale(&format!("\nledger  {}", path.display())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_from_references_counts_that_their_mean_is_uncertain() {
        let spread = LossSpread::of(&[1.0, 2.0, 3.0]);
        assert_eq!((spread.mean, spread.deviation), (2.0, 1.0));
        // A new value differs from the mean of three by a deviation of √(1 + 1/3).
        assert!((spread.distance(4.0, 3) - 2.0 / (4f64 / 3.0).sqrt()).abs() < 1e-12);
    }
}
