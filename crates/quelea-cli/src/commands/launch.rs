//! `quelea launch`: starts a PyTorch script several times on this machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command as Process;

use anyhow::Context;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_run::drive;

use super::CommandSpec;
use crate::request::check_address;

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "launch", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea launch -n 4 train.py                       four processes, each one worker
  quelea launch -n 4 train.py --epochs 10           what follows the script is its own
  quelea launch -n 4 --page 127.0.0.1:8600 train.py show the run in a browser, from rank 0
  quelea launch -n 4 --records runs/first train.py  keep what is measured: quelea page runs/first

Needs the Python package, which has this command too. Rank 0 hosts the servers of the
centralized algorithms. A process that fails ends the others; the last line names it.";

/// Start a PyTorch script several times on this machine
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    /// How many processes
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    processes: u32,

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
    let own = || drive::interpreter().map_or("python3".into(), |own| own.as_os_str().to_owned());
    let interpreter = args.python.unwrap_or_else(own);
    let mut python = Process::new(&interpreter);
    python.args(["-m", "quelea.launch", "-n", &args.processes.to_string()]);
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
