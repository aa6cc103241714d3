//! `quelea simulate`: a run in the virtual cluster.

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_run::drive;

use super::CommandSpec;
use crate::page::DriverKind;
use crate::request::{Invocation, Output, RunArgs};
use crate::session;

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "simulate", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea simulate                                         the embedded default
  quelea simulate run.toml --set cluster.slow.3=10        worker 3 takes ten times as long
  quelea simulate run.toml --set cluster.bandwidth_gbps=1 --json
  quelea simulate run.toml --set checkpoint.every=100 --out runs/long
  quelea simulate --resume runs/long                      resume from its last checkpoint
  quelea simulate --set algorithm.name=d-psgd --set topology.name=torus --set workers=16

The clock is virtual and the mathematics real: the same file gives the same run with `train`.";

/// Run a configuration in the virtual cluster
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    output: Output,
}

fn run(registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    // Under a launcher one process simulates for all.
    if matches!(drive::launched(), Ok(Some(launched)) if !launched.is_first()) {
        return Ok(());
    }
    let prepared = args.run.prepare(registry, None)?;
    prepared.check_memory()?;
    session::run(
        prepared,
        Invocation { command: "simulate", run: &args.run },
        &args.output,
        DriverKind::Virtual,
        drive::simulate,
    )
}
