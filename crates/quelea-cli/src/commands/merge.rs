//! `quelea merge`: the parts of a run that was taken over, in one folder.

use std::path::PathBuf;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_run::merge::{MergeRequest, merge};

use super::CommandSpec;
use crate::text::{mention, say, whole};

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "merge", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea merge runs/long                        runs/long and runs/long/taken-over-by-rank-R: writes
                                                runs/long-merged
  quelea merge runs/long /mnt/other/part --out runs/whole
                                                the process that took over wrote on another machine

When the process that controls a run is lost, another one takes over and writes the rest where it is. The new
folder has the records of all parts in order, each once, the final model, the best model and the checkpoints
of all parts, and the summary. The parts stay as they are. Parts of different runs, parts that overlap, and
parts between which one is missing are refused.";

/// Put the parts of a run together that was taken over by another process
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    /// The folder of the run; what processes on the same machine wrote below it is found
    #[arg(value_name = "RUN")]
    run: PathBuf,

    /// Folders of other parts, such as copies of those on other machines
    #[arg(value_name = "PART")]
    others: Vec<PathBuf>,

    /// The folder to write, which must not exist; without it, RUN-merged
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn run(_registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    let Args { run, others, out } = &args;
    let merged = merge(&MergeRequest { run, others, out: out.as_deref() })?;
    merged.notes.iter().for_each(|note| mention(note));
    mention(&format!(
        "{} parts, {} records ({} were in two parts), {} checkpoints",
        merged.parts.len(),
        whole(merged.records),
        whole(merged.doubles),
        merged.checkpoints
    ));
    say(&merged.folder.display().to_string());
    Ok(())
}
