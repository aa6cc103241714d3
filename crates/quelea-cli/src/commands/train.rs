//! `quelea train`: a run for real, in threads, in processes, or under a launcher.

use std::sync::Arc;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_run::drive::{self, LaunchedWorker, ProcessOptions, TransportKind};
use quelea_run::error::{RequestError, RunError};
use quelea_run::prepared::PreparedRun;

use super::CommandSpec;
use crate::interrupt;
use crate::page::DriverKind;
use crate::remote::fleet::Fleet;
use crate::remote::{self, RemoteArgs, hosts};
use crate::request::{HealthArgs, Invocation, Output, RunArgs};
use crate::session;
use crate::text::mention;

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "train", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea train                                      the embedded default
  quelea train run.toml --set optimizer.lr=0.1      what a file says, with another learning rate
  quelea train run.toml --processes                 one process per worker, through shared memory
  quelea train run.toml --processes --transport tcp one process per worker, over TCP
  quelea train run.toml --processes --restarts 5    the same, and a process that dies is replaced
  quelea train run.toml --page 127.0.0.1:8600       show it in a browser while it lasts
  quelea train run.toml --set algorithm.name=allreduce --out runs/allreduce
  quelea train run.toml --out runs/long --set checkpoint.every=500
  quelea train --resume runs/long                   resume from its last checkpoint
  quelea train --resume runs/long --set steps=9000  resume, and train for longer
  quelea train run.toml --hosts a:4,b:4             four workers each on two machines, over SSH
  mpirun -n 4 quelea train run.toml                 one process per worker, started by MPI
  mpirun -n 4 quelea train run.toml --transport mpi the same, and messages travel over MPI
                                                     (or srun, torchrun, Kubernetes: docs/launchers.md)

For workers on other machines see `quelea serve` and `quelea join`.";

/// Train for real: threads, processes on this machine, or the processes of a launcher
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    #[command(flatten)]
    run: RunArgs,

    /// One process per worker on this machine, instead of threads
    #[arg(long, conflicts_with = "threads")]
    processes: bool,

    /// Start a process again that ends before its time, so many times in all; it joins the running run
    #[arg(long, value_name = "N", default_value_t = 0, requires = "processes")]
    restarts: u32,

    /// What carries messages between processes, the same as --set transport=KIND: auto (shared memory within
    /// a machine, TCP between machines), tcp, or mpi (messages of MPI, under mpirun)
    #[arg(long, value_name = "KIND")]
    transport: Option<String>,

    /// All workers as threads of this process, even under a launcher
    #[arg(long)]
    threads: bool,

    /// Workers on other machines, started over SSH: hosts with the number of workers on each, as in a:4,b:4
    #[arg(long, value_name = "LIST", conflicts_with_all = ["threads", "processes"])]
    hosts: Option<String>,

    /// How the hosts reach this machine; without it, its address on the way to each
    #[arg(long, value_name = "NAME", requires = "hosts")]
    address: Option<String>,

    #[command(flatten)]
    remote: RemoteArgs,

    /// Under a launcher with several machines: no encryption, and no secret in QUELEA_SECRET
    #[arg(long)]
    insecure: bool,

    #[command(flatten)]
    health: HealthArgs,

    #[command(flatten)]
    output: Output,
}

fn run(registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let mut args = Args::from_arg_matches(matches)?;
    args.run.settings.extend(args.transport.as_ref().map(|kind| format!("transport={kind}")));
    let _health = args.health.serve()?;
    let asked = Invocation { command: "train", run: &args.run };
    if let Some(list) = &args.hosts {
        return run_remote(registry, &args, list);
    }
    if args.processes || args.threads {
        // What a launcher says is of interest only where its processes would be in each other's way.
        if let (Ok(Some(launched)), Some(out)) = (drive::launched(), &args.output.out) {
            return Err(launched.refuse_sharing(out).into());
        }
    } else if let Some(launched) = drive::launched()? {
        launched.check_name()?;
        let launched = if args.insecure { launched.insecure() } else { launched };
        return run_launched(registry, &args, launched);
    }
    let prepared = prepared(registry, &args, None)?;
    prepared.check_memory()?;
    if args.processes {
        drive::refuse_mpi(&prepared)?;
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

/// Coordinates here, with workers on other machines.
fn run_remote(registry: &Registry, args: &Args, list: &str) -> anyhow::Result<()> {
    let hosts = hosts::parse("--hosts", list)?;
    let workers = hosts::total(&hosts);
    let prepared = args.run.prepare(registry, Some(workers))?;
    if prepared.config.workers != workers {
        let problem =
            format!("--hosts {list} has {workers} processes, one per worker; leave `workers` out");
        return Err(RequestError::field("workers", prepared.config.workers, problem).into());
    }
    let fleet = Fleet::connect(&hosts, &args.remote.shell()?)?;
    let (asked, is_told) = (Invocation { command: "train", run: &args.run }, !args.output.quiet);
    session::run(prepared, asked, &args.output, DriverKind::Joined, |prepared, recorder| {
        remote::workers::run(fleet, &hosts, args.address.as_deref(), is_told, prepared, recorder)
    })
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

/// What the command line says of how messages travel.
fn asked_transport(args: &Args) -> anyhow::Result<Option<TransportKind>> {
    let told = args.run.settings.iter().rev().find_map(|one| one.strip_prefix("transport="));
    Ok(told.map(str::parse).transpose()?)
}

fn run_launched(registry: &Registry, args: &Args, launched: LaunchedWorker) -> anyhow::Result<()> {
    let asked = asked_transport(args)?;
    let launched = launched.over(asked.unwrap_or_default())?;
    if launched.is_spare() {
        interrupt::follow();
        if !launched.stand_by(registry)? && !args.output.quiet {
            mention("the run has ended without needing this spare");
        }
        return Ok(());
    }
    if !launched.is_first() {
        interrupt::follow();
        // The checkpoint is where the first process is; it sends to each what is its own.
        if args.run.resume.is_some() {
            return Ok(launched.follow(registry, None)?);
        }
    }
    let prepared = prepared(registry, args, Some(&launched));
    let launched = match &prepared {
        Ok(prepared) if args.run.resume.is_some() => {
            launched.check_resumed(prepared, asked)?;
            launched
        }
        Ok(prepared) => launched.over(prepared.config.transport)?,
        Err(_) => launched,
    };
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
