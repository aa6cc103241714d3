//! `quelea serve`: coordinates a run whose workers join from other machines.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_run::drive::{OpenRendezvous, PublishedToken, Security};
use quelea_run::error::RequestError;

use super::CommandSpec;
use crate::page::DriverKind;
use crate::request::{
    HealthArgs, Invocation, LocalArgs, Output, RunArgs, check_address, check_wait,
};
use crate::session;
use crate::text::mention;

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "serve", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea serve run.toml --bind 0.0.0.0:29470     prints a token; then, on each of the machines:
  quelea join TOKEN                              (as often as the run has workers)
  quelea serve run.toml --bind 10.0.0.1:4000 --set workers=2 --out runs/two
  quelea serve run.toml                          for workers on this machine only

Beyond this machine all connections are encrypted, and only those who have the token can join; keep
it secret. `quelea token` prints it again. --insecure leaves all that out.

This process hosts the servers of the run, if it has any, and no worker. A data file that the run
names must be at the same path on every machine.";

/// Coordinate a run whose workers join from other machines
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    #[command(flatten)]
    run: RunArgs,

    /// Where to listen; 0.0.0.0:PORT for all addresses of this machine
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:29470")]
    bind: String,

    /// How workers reach this machine, for the token; without it, its own address
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    #[command(flatten)]
    local: LocalArgs,

    /// No encryption and no token: whoever can connect may join
    #[arg(long)]
    insecure: bool,

    /// How long to wait for the workers to join, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    wait: u32,

    #[command(flatten)]
    health: HealthArgs,

    #[command(flatten)]
    output: Output,
}

fn run(registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    check_address("--bind", &args.bind)?;
    check_wait(args.wait)?;
    let _health = args.health.serve()?;
    let prepared = args.run.prepare(registry, None)?;
    let (wait, security) = (f64::from(args.wait), security(args.insecure)?);
    let place = OpenRendezvous::open_at(&args.bind, wait, security, args.local.resolve()?)?;
    let host = args.host.as_deref();
    let _published = publish(&place, host);
    let is_told = !args.output.quiet;
    session::run(
        prepared,
        Invocation { command: "serve", run: &args.run },
        &args.output,
        DriverKind::Joined,
        |prepared, recorder| {
            if is_told {
                invite(&place, host, prepared.config.workers);
                session::say_whether_it_survives(prepared, &args.output);
            }
            let mut tell = teller(is_told);
            place.run(prepared, &[], recorder, &mut tell)
        },
    )
}

/// Plain connections between machines must be asked for; a secret of the environment takes the place of tokens.
pub fn security(insecure: bool) -> Result<Security, RequestError> {
    if insecure {
        return Ok(Security::Insecure);
    }
    let found = Security::from_env(|name| std::env::var(name).ok());
    found.map_err(|error| RequestError::Conflict(error.to_string()))
}

/// Says how workers join.
pub fn invite(place: &OpenRendezvous, host: Option<&str>, workers: usize) {
    let how = match place.token(&host_name(place, host)) {
        Some(token) => format!("on each machine run: quelea join {}", token.reveal()),
        None => format!("on each machine run: quelea join {}", reachable(place.address())),
    };
    mention(&format!("waiting for {workers} workers; {how}"));
}

/// Leaves the token where `quelea token` finds it, as long as this is held.
fn publish(place: &OpenRendezvous, host: Option<&str>) -> Option<PublishedToken> {
    let token = place.token(&host_name(place, host))?;
    let published = PublishedToken::new(&token);
    published
        .inspect_err(|error| mention(&format!("`quelea token` will not know it: {error}")))
        .ok()
}

/// How others reach this machine.
fn host_name(place: &OpenRendezvous, host: Option<&str>) -> String {
    match (host, reachable(place.address()).ip()) {
        (Some(host), _) => host.to_string(),
        (None, IpAddr::V6(ip)) => format!("[{ip}]"),
        (None, ip) => ip.to_string(),
    }
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
    let way = |from: &str, to: &str| {
        let socket = UdpSocket::bind(from)?;
        socket.connect(to)?;
        socket.local_addr()
    };
    let six = || way("[::]:0", "[2001:db8::1]:9");
    let way_out = if address.is_ipv6() {
        six().or_else(|_| way("0.0.0.0:0", "192.0.2.1:9"))
    } else {
        way("0.0.0.0:0", "192.0.2.1:9")
    };
    way_out.map_or(address, |own| SocketAddr::new(own.ip(), address.port()))
}
