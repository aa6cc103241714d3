//! `quelea launch`: starts a PyTorch script several times on this machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command as Process, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_page::folder;
use quelea_page::log::RunLog;
use quelea_page::server::{PageServer, PageSource};
use quelea_run::drive;

use super::CommandSpec;
use crate::page::{address_line, token};
use crate::request::check_address;
use crate::text::mention;

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "launch", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea launch -n 4 train.py                       four processes, each one worker
  quelea launch -n 4 train.py --epochs 10           what follows the script is its own
  quelea launch -n 4 --page 127.0.0.1:8600 train.py show the run in a browser

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
    python.args(["-m", "quelea.launch", "-n", &args.processes.to_string()]).args(&args.script);
    let unstarted = || format!("cannot start {}", interpreter.to_string_lossy());
    let status = match &args.page {
        None => python.status().with_context(unstarted)?,
        Some(address) => {
            check_address("--page", address)?;
            let shown = ShownScript::new(address)?;
            let child = python.env(RECORDS, &shown.folder).spawn().with_context(unstarted)?;
            shown.watch(child)?
        }
    };
    match status.code() {
        Some(0) => Ok(()),
        code => std::process::exit(code.unwrap_or(1)),
    }
}

/// Tells the script's rank 0 where to write its records.
const RECORDS: &str = "QUELEA_RECORDS";
/// How often the processes and their first records are looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A script whose run is shown on a page: rank 0 writes its records to a folder of this process.
struct ShownScript {
    folder: PathBuf,
    address: String,
}

impl ShownScript {
    fn new(address: &str) -> anyhow::Result<ShownScript> {
        let folder = std::env::temp_dir().join(format!("quelea-launch-{}", std::process::id()));
        std::fs::create_dir(&folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        Ok(ShownScript { folder, address: address.to_string() })
    }

    /// Serves the page as soon as the run has begun, until the processes have ended.
    fn watch(&self, mut child: Child) -> anyhow::Result<ExitStatus> {
        let mut page: Option<(Arc<RunLog>, PageServer)> = None;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if page.is_none() && self.folder.join(folder::DESCRIPTION).exists() {
                let opened = self.open();
                // Training continues without its page, and says so.
                let failed = |error: &anyhow::Error| mention(&format!("no page: {error:#}"));
                page = Some(match opened.inspect_err(failed) {
                    Ok(page) => page,
                    Err(_) => break child.wait()?,
                });
            }
            std::thread::sleep(POLL_INTERVAL);
        };
        if let Some((log, server)) = page {
            if status.success() {
                log.close();
            } else {
                log.fail(format!("the processes ended with {status}"));
            }
            server.farewell();
        }
        Ok(status)
    }

    fn open(&self) -> anyhow::Result<(Arc<RunLog>, PageServer)> {
        let log = folder::open(&self.folder, None)?;
        let source = PageSource::Run(Arc::clone(&log));
        let server = PageServer::start(&self.address, token(), source)?;
        mention(&address_line(server.address()));
        Ok((log, server))
    }
}

impl Drop for ShownScript {
    fn drop(&mut self) {
        // What cannot be removed stays in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
