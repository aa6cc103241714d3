//! `quelea token`: prints what lets a worker join a run that is coordinated on this machine.

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_run::drive::PublishedToken;
use quelea_run::error::RequestError;

use super::CommandSpec;
use crate::text::{mention, say};

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "token", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea token                                      of every coordinator of this user on this machine
  quelea token node1:29470                          of the one at port 29470, for workers that reach it as node1

Whoever has the token can join until it expires, a day after `quelea serve` began.";

/// Print the join token of a coordinator on this machine
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    /// Where workers reach it
    #[arg(value_name = "HOST:PORT")]
    address: Option<String>,
}

fn run(_registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    if let Some(address) = &args.address {
        crate::request::check_address("HOST:PORT", address)?;
    }
    let tokens = PublishedToken::find(args.address.as_deref())?;
    if tokens.is_empty() {
        let problem = "no coordinator of this user on this machine has a token; coordinators that \
                       listen on loopback, or with --insecure, need none";
        return Err(RequestError::Conflict(problem.into()).into());
    }
    for token in tokens {
        mention(&format!("coordinator at {}", token.address));
        say(&token.reveal());
    }
    Ok(())
}
