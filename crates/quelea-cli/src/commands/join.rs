//! `quelea join`: takes part in a run as one worker.

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_run::drive::{self, LeaveNotice};

use super::CommandSpec;
use crate::interrupt;
use crate::request::{check_address, check_wait};
use crate::text::mention;

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "join", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea join coordinator.example:29470             as any worker that is still missing
  quelea join 10.0.0.1:4000 --rank 3                as worker 3

The coordinator (`quelea serve`) sends the configuration and keeps the results. SIGTERM gives notice: the
worker finishes its step and leaves, and the others continue; where the run cannot do without it, the run
is saved and ends.";

/// Take part in a run as one worker
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    /// Where the coordinator listens
    #[arg(value_name = "HOST:PORT")]
    address: String,

    /// Which worker to be; without it, any that is missing
    #[arg(long)]
    rank: Option<u32>,

    /// How long to wait for the coordinator and the other workers, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    wait: u32,

    /// End when standard input is closed
    #[arg(long, hide = true)]
    with_parent: bool,

    /// Print nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    if args.with_parent {
        drive::end_with_parent();
        interrupt::follow();
    }
    check_address("HOST:PORT", &args.address)?;
    check_wait(args.wait)?;
    if !args.quiet {
        mention(&format!("joining the run at {}", args.address));
    }
    let leave = LeaveNotice::on_sigterm();
    drive::join(&args.address, args.rank, f64::from(args.wait), None, &leave)?;
    if !args.quiet {
        mention(if leave.has_left() {
            "left the run as asked, between two steps; the others continue"
        } else {
            "the run has ended; its results are with the coordinator"
        });
    }
    Ok(())
}
