//! `quelea probe`: what `quelea doctor` starts on hosts; not for people.

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_run::drive;
use quelea_run::error::RequestError;

use super::CommandSpec;
use crate::doctor::facts::HostFacts;
use crate::doctor::probe::{measure, serve};
use crate::interrupt;
use crate::text::say;

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "probe", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea doctor --hosts a,b,c,d                     starts it on all of them, over SSH

QUELEA_PROBE has the secret of the examination.";

/// Answer or measure for `quelea doctor`
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES, hide = true)]
struct Args {
    /// Say what this host has, and answer at this port
    #[arg(long, value_name = "PORT", required_unless_present = "measure")]
    serve: Option<u16>,

    /// Measure the way to this host
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "serve")]
    measure: Option<String>,

    /// Only look whether it is there
    #[arg(long, requires = "measure")]
    only_reach: bool,
}

fn run(_registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    let secret = std::env::var("QUELEA_PROBE").map_err(|_| {
        RequestError::Conflict("QUELEA_PROBE is not set; use `quelea doctor`".into())
    })?;
    interrupt::follow();
    if let Some(target) = &args.measure {
        say(&serde_json::to_string(&measure(target, &secret, args.only_reach))?);
        return Ok(());
    }
    let port = args.serve.expect("the parser asks for one of the two");
    serve(port, &secret)?;
    say(&serde_json::to_string(&HostFacts::here())?);
    drive::end_with_parent();
    loop {
        std::thread::park();
    }
}
