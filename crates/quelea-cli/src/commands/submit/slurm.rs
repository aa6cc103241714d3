//! `quelea submit slurm`: a batch script that starts, survives, saves and resumes a run.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command as Process;

use anyhow::Context;
use quelea_core::registry::Registry;
use quelea_run::error::RequestError;

use super::slurm_script::{SlurmScript, seconds_of_time};
use super::{check_name, checked_config, job_name};
use crate::request::RunArgs;
use crate::text::{mention, say};

const EXAMPLES: &str = "\
Examples:
  quelea submit slurm run.toml --nodes 4 --time 4:00:00            writes run.sbatch
  quelea submit slurm run.toml --nodes 4 --time 4:00:00 --now      and submits it
  quelea submit slurm run.toml --nodes 4 --spares 1 --now          five nodes; the last replaces a lost one
  quelea submit slurm run.toml --nodes 2 --workers-per-node 16 --option --partition=long
  quelea submit slurm run.toml --nodes 4 --script -                only prints it

A worker that is lost does not end the others; a spare takes its place. Before the time limit the run is
saved and the job requeued, and it resumes where it was; a synchronous algorithm comes to the same bits as
without the interruption. --out must be on a file system that all nodes share.";

/// Write a batch script for Slurm, and submit it with --now
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct SlurmArgs {
    #[command(flatten)]
    run: RunArgs,

    /// How many nodes train
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    nodes: u32,

    /// How many nodes more wait to take the place of lost ones
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    spares: u32,

    /// How many workers a node has; without it, one per GPU, or one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    workers_per_node: Option<u32>,

    /// How many GPUs of each node the job asks for
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus_per_node: Option<u32>,

    /// The time limit as Slurm writes it, as in 30, 4:00:00 or 2-12; without it, the partition's
    #[arg(long, value_name = "TIME")]
    time: Option<String>,

    /// How many seconds before the time limit the run is saved; Slurm may be a minute early
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    save_before: u32,

    /// The job's name; without it, that of the run file
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Where the run's files go; without it, runs/NAME
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// An option for sbatch, as in --partition=gpu; may be given several times
    #[arg(long = "option", value_name = "--NAME=VALUE", allow_hyphen_values = true)]
    options: Vec<String>,

    /// A command that the job runs first, as in 'module load quelea'; may be given several times
    #[arg(long = "before", value_name = "COMMAND")]
    before: Vec<String>,

    /// The program that the nodes run
    #[arg(long, value_name = "PROGRAM", default_value = "quelea")]
    program: String,

    /// Where the script goes, `-` for standard output; without it, NAME.sbatch
    #[arg(long, value_name = "FILE", conflicts_with = "now")]
    script: Option<PathBuf>,

    /// Replace a script that is there
    #[arg(long)]
    force: bool,

    /// Submit the script too
    #[arg(long)]
    now: bool,
}

/// Writes the script.
pub fn run(registry: &Registry, args: &SlurmArgs) -> anyhow::Result<()> {
    let script = script_of(registry, args)?;
    if args.script.as_deref().is_some_and(|path| path.as_os_str() == "-") {
        say(script.text().trim_end());
        return Ok(());
    }
    let path = args.script.clone().unwrap_or_else(|| PathBuf::from(&script.file));
    let mut options = OpenOptions::new();
    let replace = args.force || args.now;
    options.write(true).create(true).truncate(replace).create_new(!replace);
    let mut file = options.open(&path).map_err(|error| {
        let problem = match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                "is there already; choose another --script, or replace it with --force".to_string()
            }
            _ => error.to_string(),
        };
        RequestError::file(&path, problem)
    })?;
    file.write_all(script.text().as_bytes())?;
    drop(file);
    if !args.now {
        mention(&format!("wrote {0}; submit it with: sbatch {0}", path.display()));
        return Ok(());
    }
    let submitted = Process::new("sbatch").arg("--parsable").arg(&path).output();
    let submitted = submitted.context("cannot start sbatch; is this a node of a Slurm cluster?")?;
    if !submitted.status.success() {
        let told = String::from_utf8_lossy(&submitted.stderr);
        anyhow::bail!("sbatch refused {}: {}", path.display(), told.trim());
    }
    let told = String::from_utf8_lossy(&submitted.stdout);
    let job = told.trim().split(';').next().unwrap_or_default();
    mention(&format!(
        "submitted {} as job {job}; its output is in {}-{job}.out, its files will be in {}",
        path.display(),
        script.name,
        script.out
    ));
    say(job);
    Ok(())
}

/// What was asked for, checked.
fn script_of(registry: &Registry, args: &SlurmArgs) -> Result<SlurmScript, RequestError> {
    let per_node = args.workers_per_node.or(args.gpus_per_node).unwrap_or(1);
    let workers = args.nodes as usize * per_node as usize;
    let spares = args.spares as usize * per_node as usize;
    checked_config(registry, &args.run, workers, spares)?;
    let name = job_name(args.name.as_deref(), args.run.file.as_deref());
    check_name("--name", &name)?;
    if let Some(time) = &args.time {
        check_time(time, args.save_before)?;
    }
    if let Some(wrong) = args.options.iter().find(|option| !is_option(option)) {
        let problem = "must be one option of sbatch in one line, as in --partition=gpu";
        return Err(RequestError::field("--option", wrong, problem));
    }
    if let Some(wrong) = args.before.iter().find(|before| before.contains('\n')) {
        return Err(RequestError::field("--before", wrong, "must be one line"));
    }
    let out = match &args.out {
        Some(out) => out.to_string_lossy().into_owned(),
        None => format!("runs/{name}"),
    };
    if fs::exists(std::path::Path::new(&out).join("summary.json")).unwrap_or(false) {
        let problem = "holds a run that has finished; choose another --out";
        return Err(RequestError::file(&out, problem));
    }
    let is_file = |path: &PathBuf| path.as_os_str() != "-";
    let script = args.script.clone().filter(is_file);
    let script = script.unwrap_or_else(|| PathBuf::from(format!("{name}.sbatch")));
    Ok(SlurmScript {
        file: script.to_string_lossy().into_owned(),
        out,
        run: args.run.as_typed(&[]),
        nodes: args.nodes,
        spare_nodes: args.spares,
        workers_per_node: per_node,
        gpus_per_node: args.gpus_per_node,
        time: args.time.clone(),
        save_before: args.save_before,
        options: args.options.clone(),
        before: args.before.clone(),
        program: args.program.clone(),
        name,
    })
}

/// Refuses a time limit that Slurm does not know or that leaves no time to train.
fn check_time(time: &str, save_before: u32) -> Result<(), RequestError> {
    let Some(seconds) = seconds_of_time(time) else {
        let problem = "must be MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, \
                       DAYS-HOURS:MINUTES or DAYS-HOURS:MINUTES:SECONDS";
        return Err(RequestError::field("--time", time, problem));
    };
    if seconds <= u64::from(save_before) {
        let problem = format!(
            "leaves no time to train: the run is saved {save_before} s before (--save-before)"
        );
        return Err(RequestError::field("--time", time, problem));
    }
    Ok(())
}

/// Whether a text is one option and nothing else.
fn is_option(text: &str) -> bool {
    text.starts_with('-') && !text.chars().any(char::is_control)
}
