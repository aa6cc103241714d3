//! `quelea page`: shows a run of the disk, or all runs of a folder, in a browser.

use std::path::PathBuf;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_page::access::PageProtection;
use quelea_page::server::{PageServer, PageSource, RunFolder};
use quelea_page::{folder, forecaster};

use super::CommandSpec;
use crate::page::address_line;
use crate::request::check_address;
use crate::text::mention;

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "page", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea page runs/first                    a finished run, with a time slider
  quelea page runs/                         all runs of a folder, to compare and overlay
  quelea page runs/first --bind 127.0.0.1:9000
  quelea train run.toml --page 127.0.0.1:8600    a run while it lasts

The page is inside the program and needs no network. Addresses that other machines can reach need a
token in QUELEA_PAGE_TOKEN and --insecure, because token and page travel readable; a tunnel (ssh -L
8600:127.0.0.1:8600 HOST) needs neither. Open http://HOST:PORT/?token=TOKEN once.
docs/seeing-a-run.md describes the page and its API.";

/// Show a run, or all runs of a folder, in a browser
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    /// The folder of a run, or a folder of runs
    #[arg(value_name = "RUN", default_value = "runs")]
    folder: PathBuf,

    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8600")]
    bind: String,

    /// Offer the page to other machines although it is not encrypted: its token can be read on the way
    #[arg(long)]
    insecure: bool,
}

fn run(_registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    check_address("--bind", &args.bind)?;
    let source = if folder::holds_run(&args.folder) {
        PageSource::Run(folder::open(&args.folder, forecaster::of_folder(&args.folder))?)
    } else if folder::runs_of(&args.folder).is_empty() {
        return Err(folder::FolderError::NoRun { path: args.folder }.into());
    } else {
        PageSource::Folder(RunFolder::new(args.folder, Box::new(forecaster::of_folder)))
    };
    let server =
        PageServer::start(&args.bind, PageProtection::from_environment(args.insecure), source)?;
    mention(&format!("{} (Ctrl-C ends it)", address_line(server.address())));
    server.wait();
    Ok(())
}
