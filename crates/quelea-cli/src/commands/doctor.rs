//! `quelea doctor`: looks whether the hosts of a cluster can train together, and what slows them down.

use std::path::PathBuf;

use anyhow::Context;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_run::error::RequestError;

use super::CommandSpec;
use crate::doctor::Examination;
use crate::doctor::findings::{Finding, FindingWeight, findings};
use crate::doctor::report::Examined;
use crate::remote::fleet::Fleet;
use crate::remote::{RemoteArgs, hosts};
use crate::text::{bold, mention, say};

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "doctor", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea doctor --hosts a,b,c,d                     over SSH; takes a second or two per host
  quelea doctor --hosts gpu[01-16] --json > cluster.json
  quelea doctor --hosts a,b,c,d --save cluster.toml and then, for what was measured:
  quelea plan cluster.toml --model resnet-50 --compute-ms 120
  quelea doctor --hosts a,b --addresses 10.1.0.1,10.1.0.2
                                                     over another network than that of SSH

Every host is reached over SSH and must have the same version of quelea. Hosts answer each other at --port
while it lasts, and only those who know a secret of this examination. The exit status is 1 if some host
does not reach another.";

/// Examine a cluster: who reaches whom, how fast, and what to change
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    /// The hosts, as in a,b,c or n[1-8]
    #[arg(long, short = 'H', value_name = "LIST")]
    hosts: String,

    /// How the hosts reach each other, in the same order; without it, by their names
    #[arg(long, value_name = "LIST")]
    addresses: Option<String>,

    /// The port at which they answer each other
    #[arg(long, value_name = "PORT", default_value_t = 29_469)]
    port: u16,

    #[command(flatten)]
    remote: RemoteArgs,

    /// Write what was measured as a run file, for `plan`, `simulate` and `compare`
    #[arg(long, value_name = "FILE.toml")]
    save: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn run(_registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    let hosts = hosts::parse("--hosts", &args.hosts)?;
    if hosts.len() < 2 {
        return Err(RequestError::field("--hosts", &args.hosts, "must name at least two").into());
    }
    let addresses = addresses(&args, &hosts)?;
    let fleet = Fleet::connect(&hosts, &args.remote.shell()?)?;
    let examination =
        Examination { fleet: &fleet, hosts: &hosts, addresses: &addresses, port: args.port };
    let examined = examination.run(&mut |line| mention(line))?;
    drop(fleet);
    let found = findings(&examined);
    if let Some(path) = &args.save {
        std::fs::write(path, examined.run_file())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        say(&serde_json::to_string_pretty(&examined.json(&found))?);
    } else {
        print(&examined, &found);
    }
    let broken = found.iter().filter(|finding| finding.weight == FindingWeight::Error).count();
    match broken {
        0 => Ok(()),
        1 => anyhow::bail!("1 pair of hosts cannot train together"),
        count => anyhow::bail!("{count} pairs of hosts cannot train together"),
    }
}

/// How each host is reached.
fn addresses(args: &Args, hosts: &[hosts::RemoteHost]) -> Result<Vec<String>, RequestError> {
    let bracketed = |name: &str| {
        let name = name.rsplit_once('@').map_or(name, |(_, name)| name);
        if name.contains(':') { format!("[{name}]") } else { name.to_string() }
    };
    let Some(given) = &args.addresses else {
        return Ok(hosts.iter().map(|host| bracketed(&host.name)).collect());
    };
    let found = hosts::parse("--addresses", given)?;
    if found.len() != hosts.len() {
        let problem = format!("has {} addresses for {} hosts", found.len(), hosts.len());
        return Err(RequestError::field("--addresses", given, problem));
    }
    Ok(found.iter().map(|host| bracketed(&host.name)).collect())
}

fn print(examined: &Examined, found: &[Finding]) {
    say(&examined.host_table());
    say(&examined.bandwidth_map());
    say(&examined.latency_map());
    if found.is_empty() {
        say("nothing to change");
    }
    for Finding { weight, what, change } in found {
        let label = match weight {
            FindingWeight::Error => "error:",
            FindingWeight::Warning => "warning:",
            FindingWeight::Note => "note:",
        };
        say(&format!("{} {what}\n  {change}", bold(label)));
    }
}
