//! `quelea report`: a run as one HTML file.

use std::path::PathBuf;

use anyhow::Context;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_page::{folder, forecaster, report};

use super::CommandSpec;
use crate::text::say;

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "report", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea report runs/first                      writes runs/first/report.html
  quelea report runs/first --out first.html

The file has figures, plots, how every worker's time was spent, losses with how long the others took to
continue, and the configuration. It loads nothing, so it can be sent to somebody.";

/// Write a run as one HTML file that can be sent to somebody
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    /// The folder of the run
    #[arg(value_name = "RUN")]
    folder: PathBuf,

    /// The file to write; without it, report.html in the folder of the run
    #[arg(long, value_name = "FILE.html")]
    out: Option<PathBuf>,
}

fn run(_registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    let log = folder::open(&args.folder, forecaster::of_folder(&args.folder))?;
    let path = args.out.unwrap_or_else(|| args.folder.join("report.html"));
    std::fs::write(&path, report::html(&log))
        .with_context(|| format!("cannot write {}", path.display()))?;
    say(&path.display().to_string());
    Ok(())
}
