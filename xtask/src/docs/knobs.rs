//! The table of docs/virtual-cluster.md that lists the knobs of the virtual cluster.

use std::fmt::Write as _;

use quelea_core::options::OptionKind;
use quelea_sim::{KNOBS, Knob};

pub(super) const TABLE: super::PageTable = (
    "virtual-cluster.md",
    "<!-- Made from `KNOBS` of quelea-sim by `cargo xtask docs`; do not edit. -->\n",
    table,
);

fn table() -> String {
    let mut table =
        String::from("| key | unit | default | range | meaning |\n|---|---|---|---|---|\n");
    for knob in KNOBS {
        let Knob { spec, unit, meaning, .. } = knob;
        let (name, default, range) = (spec.name, spec.kind.default(), range(knob));
        let _ = writeln!(table, "| `{name}` | {unit} | {default} | {range} | {} |", meaning.trim());
    }
    table
}

fn range(knob: &Knob) -> String {
    let (min, max) = match knob.spec.kind {
        OptionKind::Real { min, max, .. } => (min, max),
        OptionKind::Whole { min, max, .. } => (min as f64, max as f64),
        OptionKind::Choice(words) => return words.join(", "),
        _ => return "true, false".to_string(),
    };
    let zero = if knob.least > min { "0, " } else { "" };
    format!("{zero}{} … {}", number(knob.least), number(max))
}

/// Large and small numbers as powers of ten.
fn number(value: f64) -> String {
    if value == 0.0 || (1e-3..1e4).contains(&value) {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}
