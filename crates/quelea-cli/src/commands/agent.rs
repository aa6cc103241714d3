//! `quelea agent`: what a launch over SSH starts on each of its hosts; not for people.

use clap::{ArgMatches, CommandFactory, Parser};
use quelea_core::registry::Registry;

use super::CommandSpec;
use crate::{interrupt, remote};

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "agent", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea train run.toml --hosts a:4,b:4             starts an agent on a and one on b, over SSH

It reads what to start from standard input, and ends it when that is closed.";

/// Start the processes of a launch on this host; `train --hosts` and `launch -H` do that over SSH
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES, hide = true)]
struct Args {}

fn run(_registry: &Registry, _matches: &ArgMatches) -> anyhow::Result<()> {
    interrupt::follow();
    remote::agent::run()
}
