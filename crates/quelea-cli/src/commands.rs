//! The table of commands. One file each.

mod agent;
mod chaos;
mod compare;
mod completions;
mod data;
mod doctor;
mod join;
mod launch;
mod list;
mod man;
mod merge;
mod page;
mod plan;
mod probe;
mod report;
mod reproduce;
mod serve;
mod simulate;
mod submit;
mod token;
mod top;
mod topology;
mod train;

use clap::ArgMatches;
use quelea_core::registry::Registry;

/// One row of the table.
pub struct CommandSpec {
    /// The name that people type.
    pub name: &'static str,
    /// What it takes, with help and examples.
    pub parser: fn() -> clap::Command,
    /// Runs it, with names looked up in the registry.
    pub run: fn(&Registry, &ArgMatches) -> anyhow::Result<()>,
}

/// All commands, in the order in which a person meets them.
pub const COMMANDS: &[CommandSpec] = &[
    train::COMMAND,
    simulate::COMMAND,
    compare::COMMAND,
    reproduce::COMMAND,
    plan::COMMAND,
    page::COMMAND,
    top::COMMAND,
    report::COMMAND,
    merge::COMMAND,
    topology::COMMAND,
    list::COMMAND,
    data::COMMAND,
    serve::COMMAND,
    join::COMMAND,
    token::COMMAND,
    submit::COMMAND,
    doctor::COMMAND,
    chaos::COMMAND,
    launch::COMMAND,
    completions::COMMAND,
    man::COMMAND,
    agent::COMMAND,
    probe::COMMAND,
];

const ABOUT: &str = "Train one model on many machines that are not all fast, not all alike and \
                     not all reliable";

const EXAMPLES: &str = "\
Without a command, quelea trains (`quelea -q` is `quelea train -q`): the embedded default is
a small network on handwritten digits that are inside the program, 8 workers, ALADDIN.

Examples:
  quelea                                        train the embedded default
  quelea train run.toml --set workers=4         train what a file says, with four workers
  quelea simulate run.toml --out runs/first     the same run in the virtual cluster
  quelea list algorithms                        what there is to choose from

Exit status: 0 done, 1 the run failed, 2 the request was wrong,
75 too few processes of the run are within reach, 130 interrupted.";

/// The parser of the whole command line.
pub fn parser() -> clap::Command {
    let base = clap::Command::new("quelea")
        .about(ABOUT)
        .after_help(EXAMPLES)
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .infer_subcommands(false);
    COMMANDS.iter().fold(base, |parser, row| parser.subcommand((row.parser)().name(row.name)))
}

/// Runs the command that was asked for.
pub fn run(registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let (name, matches) = matches.subcommand().expect("`train` stands where there was none");
    let row = COMMANDS.iter().find(|row| row.name == name);
    (row.expect("the parser knows the commands of the table").run)(registry, matches)
}
