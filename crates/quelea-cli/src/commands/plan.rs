//! `quelea plan`: which algorithm for this model on this cluster.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_plan::Advice;
use quelea_plan::measured::{ClusterSurvey, survey};
use quelea_plan::scenario::{MODELS, Scenario};
use quelea_run::config::source::Table;
use quelea_run::drive::{self, OpenRendezvous};
use quelea_run::error::RequestError;

use super::{CommandSpec, serve};
use crate::request::{RunArgs, check_address, check_wait};
use crate::text::{bold, bytes, columns, mention, say};

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "plan", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea plan --model resnet-50 --workers 64 --hosts 8 --bandwidth-gbps 25 --compute-ms 120
  quelea plan --parameters 300e6 --workers 4096 --hosts 512 --bandwidth-gbps 100
  quelea plan run.toml --set cluster.slow.3=10 --set cluster.compute_cv=0.2
  quelea plan run.toml --json
  quelea plan --measure --task digits-mlp -n 4      measure this machine, with four processes
  quelea plan --measure --listen 0.0.0.0:7000 -n 4 --save cluster.toml
                                                     measure several machines; on each of them:
  quelea join HOST:7000                             (as often as it has workers)
  quelea plan cluster.toml                          plan again, for what was measured

The model is that of the run's task unless --model or --parameters say otherwise. Steps are
predicted in closed form, which the tests hold against the virtual cluster; up to 64 workers the
fastest are simulated too. \"lost\" is the steps before a method is as good as all-reduce, from theory with
measured constants; the recommendation is the shortest run with them. A star marks mixing so sparse that
they take longer than all of all-reduce.

--measure times round trips and streams between the machines, streams inside them, and the
gradients of the task at every worker; where --model, --parameters or --compute-ms are given, only
the links. It takes a few seconds per machine.";

/// Predict which algorithm is fastest for a model on a cluster
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    #[command(flatten)]
    run: RunArgs,

    /// A known model, for its size
    #[arg(long, value_name = "NAME", conflicts_with = "parameters")]
    model: Option<String>,

    /// The number of parameters, as in 25.5e6
    #[arg(long, value_name = "N")]
    parameters: Option<f64>,

    /// The task whose model is planned for; as `task.name`
    #[arg(long, value_name = "NAME", conflicts_with_all = ["model", "parameters"])]
    task: Option<String>,

    /// How many workers; as `workers` in the file
    #[arg(long, short = 'n', value_name = "N")]
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

    /// Measure links and steps first, with one process per worker on this machine
    #[arg(long, conflicts_with_all = ["hosts", "bandwidth_gbps", "latency_us", "compute_cv"])]
    measure: bool,

    /// Measure with workers that join here from other machines
    #[arg(long, value_name = "ADDRESS:PORT", requires = "measure")]
    listen: Option<String>,

    /// No encryption and no token: whoever can connect may join
    #[arg(long, requires = "listen")]
    insecure: bool,

    /// How long to wait for them, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, requires = "listen")]
    wait: u32,

    /// Write what was measured to this run file, for `plan`, `simulate` and `compare`
    #[arg(long, value_name = "FILE.toml", requires = "measure")]
    save: Option<PathBuf>,

    /// Write plan.json and a plot (SVG, PNG) to this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// List every topology, collective and codec, not only the best of each algorithm
    #[arg(long)]
    all: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn run(registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    let parameters = parameters(&args)?;
    let mut run = args.run.clone();
    let short = [
        ("task.name", &args.task),
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
    let survey =
        args.measure.then(|| measure(registry, &args, &mut run, parameters)).transpose()?;
    let advice = Advice::new(Scenario::new(sized(run, parameters).fresh(registry)?, parameters)?)?;
    let advice = Advice { survey, ..advice };
    if let Some(folder) = &args.out {
        write(folder, &advice)?;
    }
    if args.json {
        say(&serde_json::to_string_pretty(&advice.json())?);
        return Ok(());
    }
    print(&advice, args.all);
    Ok(())
}

/// Where the size is given any task will do, so one that fits any number of workers.
fn sized(mut run: RunArgs, parameters: Option<f64>) -> RunArgs {
    if parameters.is_some() {
        run.settings.push("task.name=quadratic".to_string());
    }
    run
}

/// Measures, puts what was found into the settings of the run, and saves it where asked.
fn measure(
    registry: &Registry,
    args: &Args,
    run: &mut RunArgs,
    parameters: Option<f64>,
) -> anyhow::Result<ClusterSurvey> {
    args.save.as_deref().map(check_ours).transpose()?;
    if parameters.is_some() && args.compute_ms.is_none() {
        let problem = "--measure cannot time the gradient of a model that is only a number of \
                       parameters; give --compute-ms too, or --task instead";
        return Err(RequestError::Conflict(problem.into()).into());
    }
    let plan = survey(&sized(run.clone(), parameters).fresh(registry)?)?;
    let steps = args.compute_ms.is_none();
    let measured = match &args.listen {
        None => {
            plan.check_memory()?;
            mention(&format!(
                "measuring this machine, one process per worker: {}",
                plan.config.workers
            ));
            drive::measure_processes(&plan, &drive::executable()?, steps)?
        }
        Some(address) => {
            check_address("--listen", address)?;
            check_wait(args.wait)?;
            let security = serve::security(args.insecure)?;
            let place = OpenRendezvous::open(address, f64::from(args.wait), security)?;
            serve::invite(&place, None, plan.config.workers);
            let mut begun = |count: u64| {
                let seconds = (count as f64 * SECONDS_EACH).ceil();
                mention(&format!("measuring; that takes about {seconds} s"));
            };
            place.measure(&plan, steps, &mut serve::teller(true), &mut begun)?
        }
    };
    let survey = ClusterSurvey::new(measured);
    let settings = survey.settings();
    run.settings.extend(settings.into_iter().map(|(key, value)| format!("{key}={value}")));
    if let Some(path) = &args.save {
        save(path, &survey, &run.merged(registry)?)?;
    }
    Ok(survey)
}

/// About how long a measurement takes.
const SECONDS_EACH: f64 = 2.5;

/// What files begin with that may be replaced.
const OURS: &str = "# Measured by `quelea plan --measure`";

/// Refuses to replace what somebody else has written, and places where nothing can be.
fn check_ours(path: &Path) -> Result<(), RequestError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) {
        return Err(RequestError::file(path, "there is no such folder"));
    }
    match std::fs::read(path) {
        Ok(bytes) if !bytes.starts_with(OURS.as_bytes()) => Err(RequestError::file(
            path,
            "is there already and was not written by --save; name another file",
        )),
        Err(error) if error.kind() == std::io::ErrorKind::IsADirectory => {
            Err(RequestError::file(path, "is a folder; name a file"))
        }
        _ => Ok(()),
    }
}

fn save(path: &Path, survey: &ClusterSurvey, table: &Table) -> anyhow::Result<()> {
    let mut table = table.clone();
    if let Some(cluster) = table.get_mut("cluster").and_then(|value| value.as_table_mut()) {
        // What is measured to be nothing need not be said in a file of its own.
        cluster.retain(|_, value| value.as_table().is_none_or(|inside| !inside.is_empty()));
    }
    let text = format!("{OURS}: {}.\n{table}", survey.summary());
    let mut beside = path.as_os_str().to_os_string();
    beside.push(".part");
    std::fs::write(&beside, text)
        .and_then(|()| std::fs::rename(&beside, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn parameters(args: &Args) -> Result<Option<f64>, RequestError> {
    let Some(name) = &args.model else { return Ok(args.parameters) };
    match quelea_core::names::find(MODELS, |model| model.name, name) {
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

fn print(advice: &Advice, all: bool) {
    let s = &advice.scenario;
    if let Some(survey) = &advice.survey {
        say(&format!("{} {}\n", bold("measured:"), survey.summary()));
        say(&columns(&survey.rows()));
        survey.notes().iter().for_each(|note| say(&format!("Note: {note}.")));
    }
    let size = match s.parameters {
        small if small < 1e5 => format!("{small}"),
        large => format!("{:.1} million", large / 1e6),
    };
    let several = |count: usize| if count == 1 { "" } else { "s" };
    let rounded = |value: f64| (value * 1e4).round() / 1e4;
    say(&format!(
        "{} {size} parameters ({}), {} worker{} on {} machine{}, {} Gbit/s, {} ms a gradient\n",
        bold("plan for"),
        bytes(s.bytes() as u64),
        s.workers,
        several(s.workers),
        s.hosts,
        several(s.hosts),
        rounded(s.bandwidth * 8e-9),
        rounded(s.compute * 1e3)
    ));
    let shown = if all { advice.predictions.iter().collect() } else { advice.best_of_each() };
    say(&columns(&advice.rows(&shown)));
    say(&advice.verdict());
    for warning in advice.warnings(&shown) {
        say(&format!("* {warning}"));
    }
    for (name, reason) in &advice.unpredicted {
        say(&format!("not predicted: {name}: {reason}"));
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
