//! `quelea launch`: starts a PyTorch script several times on this machine.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command as Process;

use anyhow::Context;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_run::drive;
use quelea_run::error::RequestError;

use super::CommandSpec;
use crate::remote::fleet::Fleet;
use crate::remote::scripts::{self, RemoteScript};
use crate::remote::{RemoteArgs, hosts};
use crate::request::check_address;

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "launch", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea launch -n 4 train.py                       four processes, each one worker
  quelea launch -n 4 train.py --epochs 10           what follows the script is its own
  quelea launch -n 4 --page 127.0.0.1:8600 train.py show the run in a browser, from rank 0
  quelea launch -n 4 --records runs/first train.py  keep what is measured: quelea page runs/first
  quelea launch -n 4 --restarts 5 train.py          a process that is lost is started again and joins
  quelea launch -H a:4,b:4 train.py                 eight processes on two machines, over SSH

Nothing is copied to other machines: the script, its data and the packages must be there, in the same
folder. -H compares the versions first, and a lost connection or Ctrl-C ends all processes; the secret that
encrypts their connections travels over SSH.

Needs the Python package, which has this command too. Rank 0 hosts the controller and the servers of
the centralized algorithms. While a run lasts the others continue without a process that is lost,
unless the script says on_loss=\"stop\", or that is rank 0's and the run has servers or fewer than three
processes; at any other time a process that fails ends the others, and the last line names it.";

/// Start a PyTorch script several times, on this machine or on others
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    /// How many processes on this machine
    #[arg(short = 'n', long, alias = "nproc", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(required_unless_present = "hosts", conflicts_with = "hosts")]
    processes: Option<u32>,

    /// Hosts with the number of processes on each, as in a:4,b:4, started over SSH
    #[arg(short = 'H', long, value_name = "LIST")]
    hosts: Option<String>,

    /// Where the processes on several hosts meet; without it, the first host, port 29470
    #[arg(long, value_name = "HOST:PORT", requires = "hosts")]
    rendezvous: Option<String>,

    #[command(flatten)]
    remote: RemoteArgs,

    /// Start a process that is lost again, K times in all; it joins the run (docs/python.md)
    #[arg(long, value_name = "K", default_value_t = 0, conflicts_with = "hosts")]
    restarts: u32,

    /// Show the run on a page at this address while it lasts (docs/seeing-a-run.md)
    #[arg(long, value_name = "ADDRESS:PORT")]
    page: Option<String>,

    /// Write what is measured to this folder, for `quelea page FOLDER`
    #[arg(long, value_name = "FOLDER")]
    records: Option<PathBuf>,

    /// The interpreter; without it, the one that runs this command, or python3
    #[arg(long, value_name = "PROGRAM")]
    python: Option<OsString>,

    /// The script and its own arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_name = "SCRIPT")]
    script: Vec<OsString>,
}

fn run(_registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    if let Some(list) = &args.hosts {
        return run_remote(&args, list);
    }
    let own = || drive::interpreter().map_or("python3".into(), |own| own.as_os_str().to_owned());
    let interpreter = args.python.unwrap_or_else(own);
    let mut python = Process::new(&interpreter);
    let processes = args.processes.expect("the parser asks for it");
    python.args(["-m", "quelea.launch", "-n", &processes.to_string()]);
    if args.restarts > 0 {
        python.args(["--restarts", &args.restarts.to_string()]);
    }
    if let Some(address) = &args.page {
        check_address("--page", address)?;
        python.args(["--page", address]);
    }
    if let Some(folder) = &args.records {
        python.arg("--records").arg(folder);
    }
    let status = python.args(&args.script).status();
    let status =
        status.with_context(|| format!("cannot start {}", interpreter.to_string_lossy()))?;
    match status.code() {
        Some(0) => Ok(()),
        code => std::process::exit(code.unwrap_or(1)),
    }
}

/// One process per rank on other machines.
fn run_remote(args: &Args, list: &str) -> anyhow::Result<()> {
    let hosts = hosts::parse("--hosts", list)?;
    let rendezvous = match &args.rendezvous {
        Some(given) => {
            check_address("--rendezvous", given)?;
            given.clone()
        }
        None => meeting_place(&hosts[0].name),
    };
    let mut first_env = BTreeMap::new();
    if let Some(address) = &args.page {
        check_address("--page", address)?;
        first_env.insert("QUELEA_PAGE".to_string(), address.clone());
    }
    if let Some(folder) = &args.records {
        first_env.insert("QUELEA_RECORDS".to_string(), text(folder.as_os_str(), "--records")?);
    }
    let python = args.python.as_deref().unwrap_or(OsStr::new("python3"));
    let words = args.script.iter().map(|word| text(word, "SCRIPT"));
    let script = RemoteScript {
        program: text(python, "--python")?,
        words: std::iter::once(Ok("-u".to_string())).chain(words).collect::<Result<_, _>>()?,
        folder: text(std::env::current_dir()?.as_os_str(), "the current folder")?,
        rendezvous,
        first_env,
    };
    let fleet = Fleet::connect(&hosts, &args.remote.shell()?)?;
    let status = scripts::run(&fleet, &hosts, &script)?;
    // Everything that was started ends before this process does.
    drop(fleet);
    if status == 0 { Ok(()) } else { std::process::exit(i32::from(status)) }
}

/// The first host as the others know it, without the user's name.
fn meeting_place(first: &str) -> String {
    let name = first.rsplit_once('@').map_or(first, |(_, name)| name);
    let name = if name.contains(':') { format!("[{name}]") } else { name.to_string() };
    format!("{name}:{}", drive::RENDEZVOUS_PORT)
}

/// A word that can be sent as text.
fn text(word: &OsStr, field: &str) -> Result<String, RequestError> {
    let problem = "must be text, to be sent to other machines";
    let shown = || word.to_string_lossy().into_owned();
    word.to_str().map(str::to_string).ok_or_else(|| RequestError::field(field, shown(), problem))
}
