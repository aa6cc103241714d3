//! `quelea join`: takes part in a run as one worker.

use std::path::{Path, PathBuf};

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_run::drive::{self, JoinToken, Joining, LeaveNotice};
use quelea_run::error::RequestError;

use super::CommandSpec;
use super::serve::security;
use crate::interrupt;
use crate::request::{HealthArgs, LocalArgs, check_address, check_resolves, check_wait};
use crate::text::mention;

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "join", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea join TOKEN                                 as any worker that is still missing
  quelea join TOKEN --rank 3                        as worker 3
  QUELEA_TOKEN=TOKEN quelea join                    the same, and `ps` does not show the token
  quelea join TOKEN --interface ib0                 over this interface; or --interface 10.0.0.0/8
  quelea join TOKEN --listen-port 7001 --advertise 203.0.113.5
                                                     others reach this worker through a gateway
  quelea join 127.0.0.1:29470                       a coordinator on this machine

The coordinator (`quelea serve`) prints the token, sends the configuration and keeps the results. A run
that has begun takes a worker in the place of one that was lost or has left, with the same token. SIGTERM
gives notice: the worker finishes its step and leaves, and the others continue; where the run cannot do
without it, the run is saved and ends.";

/// Take part in a run as one worker
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    /// The coordinator's token, or where it listens; without it, the token in QUELEA_TOKEN
    #[arg(value_name = "TOKEN")]
    place: Option<String>,

    /// Read data only below this folder, whatever the coordinator says; may be given several times
    #[arg(long, value_name = "DIR")]
    data: Vec<PathBuf>,

    /// Join a coordinator on another machine without encryption and without knowing who it is
    #[arg(long)]
    insecure: bool,

    #[command(flatten)]
    local: LocalArgs,

    #[command(flatten)]
    health: HealthArgs,

    /// Which worker to be; without it, any that is missing
    #[arg(long)]
    rank: Option<u32>,

    /// How long to wait for the coordinator and the other workers, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    wait: u32,

    /// Where to write the rest of the run, should this process take over from the coordinator; without it, a new
    /// folder under runs/
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Start up to this many processes on this machine in the place of lost ones, should this process take over
    #[arg(long, value_name = "N", default_value_t = 0)]
    restarts: u32,

    /// End when standard input is closed
    #[arg(long, hide = true)]
    with_parent: bool,

    /// Print nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

/// This process controls the run from now on.
fn took_over(sentence: &str) {
    interrupt::lead();
    mention(sentence);
}

fn run(registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    if args.with_parent {
        drive::end_with_parent();
        interrupt::follow();
    }
    let given = args.place.or_else(|| std::env::var("QUELEA_TOKEN").ok());
    let place = given.ok_or_else(|| {
        RequestError::Conflict("give the coordinator's token, or set QUELEA_TOKEN".into())
    })?;
    let shown = if JoinToken::is_token(&place) {
        let token: JoinToken =
            place.parse().map_err(|error| RequestError::Conflict(format!("{error}")))?;
        token.address
    } else {
        check_address("HOST:PORT", &place)?;
        check_resolves("HOST:PORT", &place)?;
        place.clone()
    };
    check_wait(args.wait)?;
    if !args.quiet {
        mention(&format!("joining the run at {shown}"));
    }
    // A parent answers for its processes.
    let health = if args.with_parent { None } else { args.health.serve()? };
    let leave = LeaveNotice::on_sigterm();
    let joining = Joining {
        rank: args.rank,
        wait_seconds: f64::from(args.wait),
        security: security(args.insecure)?,
        // A parent is the same operator.
        data: (!args.with_parent).then_some(args.data),
        leave: leave.clone(),
        local: args.local.resolve()?,
        coordinator_out: args
            .out
            .as_deref()
            .and_then(Path::parent)
            .filter(|_| args.with_parent)
            .map(Path::to_path_buf),
        out: args.out,
        took_over: Some(took_over),
        restarts: args.restarts,
    };
    drive::join(registry, &place, &joining, None)?;
    drop(health);
    if !args.quiet {
        mention(if leave.has_left() {
            "left the run as asked, between two steps; the others continue"
        } else {
            "the run has ended; its results are with the coordinator"
        });
    }
    Ok(())
}
