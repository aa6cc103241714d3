//! `quelea submit`: writes what a cluster's scheduler takes, and submits it on request.

mod kubernetes;
mod manifests;
mod slurm;
mod slurm_script;

use std::path::Path;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use quelea_core::registry::Registry;
use quelea_run::config::Config;
use quelea_run::error::RequestError;

use super::CommandSpec;
use crate::request::RunArgs;

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "submit", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea submit slurm run.toml --nodes 4 --time 4:00:00           writes run.sbatch
  quelea submit slurm run.toml --nodes 4 --time 4:00:00 --now     and submits it
  quelea submit slurm run.toml --nodes 4 --spares 1 --now         with a node that replaces a lost one
  quelea submit kubernetes run.toml --workers 8 --image registry.example/quelea:1
                                                     writes a folder for `kubectl apply -k`

`quelea submit slurm --help` and `quelea submit kubernetes --help` have all options; docs/slurm.md and
docs/kubernetes.md what happens then.";

/// Write what a scheduler takes: a batch script for Slurm, manifests for Kubernetes
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    #[command(subcommand)]
    engine: EngineArgs,
}

#[derive(Debug, Subcommand)]
enum EngineArgs {
    Slurm(Box<slurm::SlurmArgs>),
    Kubernetes(Box<kubernetes::KubernetesArgs>),
}

fn run(registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    match Args::from_arg_matches(matches)?.engine {
        EngineArgs::Slurm(args) => slurm::run(registry, &args),
        EngineArgs::Kubernetes(args) => kubernetes::run(registry, &args),
    }
}

/// The configuration of a run for this number of workers; refuses what would fail only on the cluster.
fn checked_config(
    registry: &Registry,
    run: &RunArgs,
    workers: usize,
    spares: usize,
) -> Result<Config, RequestError> {
    if let Some(path) = &run.resume {
        let problem = "the job resumes by itself from what is in --out";
        return Err(RequestError::field("--resume", path.display(), problem));
    }
    let config = run.for_workers(registry, workers)?;
    if config.workers != workers {
        let problem = format!(
            "the job starts {workers} processes, one per worker; set `workers` = {workers}, or leave it out"
        );
        return Err(RequestError::field("workers", config.workers, problem));
    }
    if spares > 0 && config.membership.text("on_loss") == "stop" {
        let problem = "spares replace nobody where the run stops with the first worker lost; leave out \
                       --spares, or set \"continue\"";
        return Err(RequestError::field("membership.on_loss", "\"stop\"", problem));
    }
    Ok(config)
}

/// The name of a job, after its run file.
fn job_name(given: Option<&str>, file: Option<&Path>) -> String {
    let of_file = || {
        let stem = file?.file_stem()?.to_string_lossy().into_owned();
        let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let name: String = stem.chars().map(letter).collect();
        Some(name.trim_matches('-').to_string()).filter(|name| !name.is_empty())
    };
    given.map(str::to_string).or_else(of_file).unwrap_or_else(|| "quelea".to_string())
}

/// Refuses a name that a scheduler, a file or a shell could take for something else.
fn check_name(field: &str, name: &str) -> Result<(), RequestError> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_good = !name.is_empty()
        && name.len() <= 50
        && name.chars().all(is_plain)
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-');
    let problem = "must have 1 to 50 lower-case letters, digits and dashes, with a letter first";
    if is_good { Ok(()) } else { Err(RequestError::field(field, name, problem)) }
}
