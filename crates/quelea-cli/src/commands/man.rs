//! `quelea man`: manual pages, made from the table of commands.

use std::path::PathBuf;

use anyhow::Context;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use quelea_core::registry::Registry;
use quelea_run::error::RequestError;

use super::CommandSpec;
use crate::text::{mention, say};

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "man", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea man | man -l -                          the page of the whole command
  quelea man train | man -l -                    that of one command
  quelea man --out ~/.local/share/man/man1       all pages: quelea.1, quelea-train.1, …";

/// Print the manual page of the command or of one of its commands, or write all of them
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    /// One of the commands; without it, the page of the whole command
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    command: Option<String>,

    /// Write all pages to this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// One page.
struct ManualPage {
    /// As in `quelea-train.1`.
    name: String,
    command: Command,
}

fn run(_registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    if let Some(folder) = &args.out {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        for page in pages() {
            let path = folder.join(format!("{}.1", page.name));
            std::fs::write(&path, page.text()?)
                .with_context(|| format!("cannot write {}", path.display()))?;
            mention(&path.display().to_string());
        }
        return Ok(());
    }
    let wanted = args.command.as_ref().map_or("quelea".into(), |name| format!("quelea-{name}"));
    let page = pages().into_iter().find(|page| page.name == wanted).ok_or_else(|| {
        let names: Vec<&str> = super::COMMANDS.iter().map(|row| row.name).collect();
        let problem = format!("must be one of {}", names.join(", "));
        RequestError::field("COMMAND", args.command.as_deref().unwrap_or_default(), problem)
    })?;
    say(String::from_utf8_lossy(&page.text()?).trim_end());
    Ok(())
}

/// The page of the whole command, then one for each of its commands.
fn pages() -> Vec<ManualPage> {
    let mut whole = super::parser();
    // Building gives each command its full name.
    whole.build();
    let of = |command: &Command| ManualPage {
        name: format!("quelea-{}", command.get_name()),
        command: command.clone(),
    };
    let parts: Vec<ManualPage> = whole.get_subcommands().map(of).collect();
    std::iter::once(ManualPage { name: "quelea".into(), command: whole }).chain(parts).collect()
}

impl ManualPage {
    /// As roff.
    fn text(&self) -> anyhow::Result<Vec<u8>> {
        let mut text = Vec::new();
        clap_mangen::Man::new(self.command.clone()).render(&mut text)?;
        Ok(text)
    }
}
