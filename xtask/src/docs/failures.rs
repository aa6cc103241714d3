//! The table of docs/when-machines-fail.md: what every algorithm does when workers are lost and join.

use std::fmt::Write as _;

use quelea_core::algorithms::{ALGORITHMS, Entry};
use quelea_core::contract::JoinRule;
use quelea_core::options::Options;
use quelea_core::properties::Budget;

pub(super) const TABLE: super::PageTable = (
    "when-machines-fail.md",
    "<!-- Made from the table of algorithms by `cargo xtask docs`; do not edit. -->\n",
    table,
);

fn table() -> String {
    let mut table = String::from(
        "| algorithm | a worker is lost | its steps | a worker that joins begins with | more workers |\n\
         |---|---|---|---|---|\n",
    );
    for entry in ALGORITHMS {
        let name = entry.meta.name;
        let options = Options::defaults(entry.meta.options);
        let (steps, more) = match (entry.properties)(&options).budget {
            Budget::Rounds => ("are not taken", "every round has one gradient more"),
            Budget::TotalGradients => {
                ("the others take", "the same gradients are divided among more")
            }
        };
        let begins = begins_with(entry, &options);
        let _ = writeln!(table, "| `{name}` | {} | {steps} | {begins} | {more} |", entry.lost_peer);
    }
    table
}

fn begins_with(entry: &Entry, options: &Options) -> &'static str {
    match (entry.worker)(options).join_rule() {
        JoinRule::Common => "parameters, optimizer and step of the lowest worker",
        JoinRule::Whole => "the whole state of the lowest worker",
        JoinRule::No(why) => why,
    }
}
