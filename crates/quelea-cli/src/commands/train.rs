//! `quelea train`: a run for real, in threads, in processes, or under a launcher.

use std::sync::Arc;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_run::drive::{self, LaunchedWorker, ProcessOptions};
use quelea_run::error::RunError;
use quelea_run::prepared::PreparedRun;

use super::CommandSpec;
use crate::interrupt;
use crate::page::DriverKind;
use crate::request::{Invocation, Output, RunArgs};
use crate::session;
use crate::text::mention;

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "train", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea train                                      the embedded default
  quelea train run.toml --set optimizer.lr=0.1      what a file says, with another learning rate
  quelea train run.toml --processes                 one process per worker, over TCP
  quelea train run.toml --processes --restarts 5    the same, and a process that dies is replaced
  quelea train run.toml --page 127.0.0.1:8600       show it in a browser while it lasts
  quelea train run.toml --set algorithm.name=allreduce --out runs/allreduce
  quelea train run.toml --out runs/long --set checkpoint.every=500
  quelea train --resume runs/long                   resume from its last checkpoint
  quelea train --resume runs/long --set steps=9000  resume, and train for longer
  mpirun -n 4 quelea train run.toml                 one process per worker, started by MPI
                                                     (or srun, torchrun, Kubernetes: docs/launchers.md)

For workers on other machines see `quelea serve` and `quelea join`.";

/// Train for real: threads, processes on this machine, or the processes of a launcher
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    #[command(flatten)]
    run: RunArgs,

    /// One process per worker, over TCP on this machine, instead of threads
    #[arg(long, conflicts_with = "threads")]
    processes: bool,

    /// Start a process again that ends before its time, so many times in all; it joins the running run
    #[arg(long, value_name = "N", default_value_t = 0, requires = "processes")]
    restarts: u32,

    /// All workers as threads of this process, even under a launcher
    #[arg(long)]
    threads: bool,

    /// Under a launcher with several machines: no encryption, and no secret in QUELEA_SECRET
    #[arg(long)]
    insecure: bool,

    #[command(flatten)]
    output: Output,
}

fn run(registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    let asked = Invocation { command: "train", run: &args.run };
    if args.processes || args.threads {
        // What a launcher says is of interest only where its processes would be in each other's way.
        if let (Ok(Some(launched)), Some(out)) = (drive::launched(), &args.output.out) {
            return Err(launched.refuse_sharing(out).into());
        }
    } else if let Some(launched) = drive::launched()? {
        let launched = if args.insecure { launched.insecure() } else { launched };
        return run_launched(registry, &args, &launched);
    }
    let prepared = prepared(registry, &args, None)?;
    prepared.check_memory()?;
    if args.processes {
        session::say_whether_it_survives(&prepared, &args.output);
        let executable = drive::executable()?;
        let kind = DriverKind::Processes;
        return session::run(prepared, asked, &args.output, kind, |prepared, recorder| {
            let options = ProcessOptions {
                executable: &executable,
                restarts: args.restarts,
                tell: if args.output.quiet { Arc::new(|_| {}) } else { Arc::new(mention) },
            };
            drive::processes(prepared, &options, recorder)
        });
    }
    session::run(prepared, asked, &args.output, DriverKind::Threads, drive::threads)
}

fn prepared(
    registry: &Registry,
    args: &Args,
    launched: Option<&LaunchedWorker>,
) -> Result<PreparedRun, RunError> {
    let prepared = args.run.prepare(registry, launched.map(LaunchedWorker::world))?;
    if let Some(launched) = launched {
        launched.check(&prepared)?;
    }
    Ok(prepared)
}

fn run_launched(registry: &Registry, args: &Args, launched: &LaunchedWorker) -> anyhow::Result<()> {
    if !launched.is_first() {
        interrupt::follow();
        // The checkpoint is where the first process is; it sends to each what is its own.
        if args.run.resume.is_some() {
            return Ok(launched.follow(registry, None)?);
        }
    }
    let prepared = prepared(registry, args, Some(launched));
    if launched.is_first() {
        return session::run(
            prepared?,
            Invocation { command: "train", run: &args.run },
            &args.output,
            DriverKind::Joined,
            |prepared, recorder| launched.lead(prepared, recorder),
        );
    }
    // Everybody says what is wrong: a launcher ends the others as soon as one has ended, so that
    // the first process may never come to say it.
    Ok(launched.follow(registry, Some(prepared?))?)
}
