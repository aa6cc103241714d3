//! `quelea completions`: what a shell needs to complete the command line.

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use clap_complete::Shell;
use quelea_core::registry::Registry;

use super::CommandSpec;
use crate::text::say;

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "completions", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea completions bash > ~/.local/share/bash-completion/completions/quelea
  quelea completions zsh > ~/.zfunc/_quelea              (a folder of your fpath)
  quelea completions fish > ~/.config/fish/completions/quelea.fish";

/// Print the completions of a shell
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

fn run(_registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::parser(), "quelea", &mut script);
    say(String::from_utf8_lossy(&script).trim_end());
    Ok(())
}
