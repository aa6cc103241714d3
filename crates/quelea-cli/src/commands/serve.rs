//! `quelea serve`: coordinates a run whose workers join from other machines.

use std::net::{SocketAddr, UdpSocket};

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_run::drive::OpenRendezvous;

use super::CommandSpec;
use crate::page::DriverKind;
use crate::request::{Invocation, Output, RunArgs, check_address, check_wait};
use crate::session;
use crate::text::mention;

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "serve", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea serve run.toml                          then, on each of the machines:
  quelea join coordinator.example:29470          (as often as the run has workers)
  quelea serve run.toml --bind 10.0.0.1:4000 --set workers=2 --out runs/two

This process hosts the servers of the run, if it has any, and no worker. A data file that the run
names must be at the same path on every machine.";

/// Coordinate a run whose workers join from other machines
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    #[command(flatten)]
    run: RunArgs,

    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:29470")]
    bind: String,

    /// How long to wait for the workers to join, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    wait: u32,

    #[command(flatten)]
    output: Output,
}

fn run(registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    check_address("--bind", &args.bind)?;
    check_wait(args.wait)?;
    let prepared = args.run.prepare(registry, None)?;
    let place = OpenRendezvous::open(&args.bind, f64::from(args.wait))?;
    let is_told = !args.output.quiet;
    session::run(
        prepared,
        Invocation { command: "serve", run: &args.run },
        &args.output,
        DriverKind::Joined,
        |prepared, recorder| {
            if is_told {
                invite(&place, prepared.config.workers);
            }
            let mut tell = teller(is_told);
            place.run(prepared, &[], recorder, &mut tell)
        },
    )
}

/// Says how workers join.
pub fn invite(place: &OpenRendezvous, workers: usize) {
    let address = reachable(place.address());
    let how = format!("on each machine run: quelea join {address}");
    mention(&format!("waiting for {workers} workers; {how}"));
}

/// Says how many have joined, whenever somebody has.
pub fn teller(is_told: bool) -> impl FnMut(usize, usize) -> Result<(), String> + Send {
    let mut before = 0;
    move |there, expected| {
        if is_told && there > before {
            mention(&format!("{there} of {expected} workers have joined"));
        }
        before = there;
        Ok(())
    }
}

/// The address that others can use: of a machine that listens everywhere, its own.
fn reachable(address: SocketAddr) -> SocketAddr {
    if !address.ip().is_unspecified() {
        return address;
    }
    // Connecting a datagram socket sends nothing; it only chooses the way out.
    let way_out = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    way_out.map_or(address, |own| SocketAddr::new(own.ip(), address.port()))
}
