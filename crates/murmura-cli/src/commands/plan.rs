//! `murmura plan`: which algorithm for this model on this cluster.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use murmura_experiments::advisor::Advice;
use murmura_experiments::advisor::situation::{MODELS, Situation};
use murmura_experiments::error::ExperimentError;
use murmura_run::error::RequestError;

use super::Command;
use crate::request::Run;
use crate::text::{bold, columns, say};

/// The row.
pub const COMMAND: Command = Command { name: "plan", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  murmura plan --model resnet-50 --workers 64 --hosts 8 --bandwidth-gbps 25 --compute-ms 120
  murmura plan --parameters 300e6 --workers 4096 --hosts 512 --bandwidth-gbps 100
  murmura plan run.toml --set cluster.slow.3=10 --set cluster.compute_cv=0.2
  murmura plan run.toml --json

The model is that of the run's task unless --model or --parameters say otherwise. Steps are
predicted in closed form, which the tests hold against the virtual cluster; up to 64 workers the
fastest are simulated too. A star marks what theory warns of: so sparse a mixing that it costs more
iterations than the run has.";

/// Predict which algorithm is fastest for a model on a cluster
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    #[command(flatten)]
    run: Run,

    /// A known model, for its size
    #[arg(long, value_name = "NAME", conflicts_with = "parameters")]
    model: Option<String>,

    /// The number of parameters, as in 25.5e6
    #[arg(long, value_name = "N")]
    parameters: Option<f64>,

    /// How many workers; as `workers` in the file
    #[arg(long, value_name = "N")]
    workers: Option<String>,

    /// How many machines they are spread over; as `cluster.hosts`
    #[arg(long, value_name = "N")]
    hosts: Option<String>,

    /// Bandwidth of a machine's card; as `cluster.bandwidth_gbps`
    #[arg(long, value_name = "GBPS")]
    bandwidth_gbps: Option<String>,

    /// Latency between machines; as `cluster.latency_us`
    #[arg(long, value_name = "US")]
    latency_us: Option<String>,

    /// Time of one gradient; as `cluster.compute_ms`
    #[arg(long, value_name = "MS")]
    compute_ms: Option<String>,

    /// Coefficient of variation of that; as `cluster.compute_cv`
    #[arg(long, value_name = "CV")]
    compute_cv: Option<String>,

    /// Write plan.json and a plot (SVG, PNG) to this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    let parameters = parameters(&args)?;
    let mut run = args.run.clone();
    let short = [
        ("workers", &args.workers),
        ("cluster.hosts", &args.hosts),
        ("cluster.bandwidth_gbps", &args.bandwidth_gbps),
        ("cluster.latency_us", &args.latency_us),
        ("cluster.compute_ms", &args.compute_ms),
        ("cluster.compute_cv", &args.compute_cv),
    ];
    for (key, value) in short {
        run.settings.extend(value.as_ref().map(|value| format!("{key}={value}")));
    }
    if parameters.is_some() {
        // The size is given; any task will do, so one that fits any number of workers.
        run.settings.push("task.name=quadratic".to_string());
    }
    let situation = Situation::new(run.fresh()?, parameters)?;
    let advice = Advice::new(situation).map_err(told)?;
    if let Some(folder) = &args.out {
        write(folder, &advice)?;
    }
    if args.json {
        say(&serde_json::to_string_pretty(&advice.json())?);
        return Ok(());
    }
    print(&advice);
    Ok(())
}

fn told(error: ExperimentError) -> anyhow::Error {
    match error {
        ExperimentError::Request(error) => error.into(),
        other => other.into(),
    }
}

fn parameters(args: &Args) -> Result<Option<f64>, RequestError> {
    let Some(name) = &args.model else { return Ok(args.parameters) };
    match murmura_core::names::find(MODELS, |model| model.name, name) {
        Ok(model) => Ok(Some(model.parameters)),
        Err(nearest) => {
            let names: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
            let hint = nearest.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            let problem =
                format!("must be one of {}{hint}; for others give --parameters", names.join(", "));
            Err(RequestError::field("--model", name, problem))
        }
    }
}

fn print(advice: &Advice) {
    let s = &advice.situation;
    say(&format!(
        "{} {:.1} million parameters ({:.0} MB), {} workers on {} machines, {} Gbit/s, {} ms a gradient\n",
        bold("plan for"),
        s.parameters / 1e6,
        s.bytes() / 1e6,
        s.workers,
        s.hosts,
        s.bandwidth * 8e-9,
        s.compute * 1e3
    ));
    say(&columns(&advice.rows()));
    say(&advice.verdict());
    for warning in advice.warnings() {
        say(&format!("* {warning}"));
    }
}

fn write(folder: &Path, advice: &Advice) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let put = |name: String, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    for (name, chart) in advice.charts() {
        put(format!("{name}.svg"), chart.svg().as_bytes())?;
        put(format!("{name}.png"), &chart.png())?;
    }
    put("plan.json".into(), serde_json::to_string_pretty(&advice.json())?.as_bytes())
}
