//! The table of docs/virtual-cluster.md that lists the knobs of the virtual cluster.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use quelea_core::options::OptionKind;
use quelea_sim::{KNOBS, Knob};

const START: &str =
    "<!-- Made from `KNOBS` of quelea-sim by `cargo xtask docs`; do not edit. -->\n";
const END: &str = "<!-- End of what is made from the table. -->";

/// The page with its table as it is now.
pub(super) fn renewed(page: &str) -> Result<String> {
    let (before, rest) = page.split_once(START).context("virtual-cluster.md: no start mark")?;
    let (_, after) = rest.split_once(END).context("virtual-cluster.md: no end mark")?;
    Ok(format!("{before}{START}{}{END}{after}", table()))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_virtual_cluster_lists_its_knobs() {
        let file = crate::docs::page_file("virtual-cluster.md");
        let page = std::fs::read_to_string(file).expect("the page is there");
        let renewed = renewed(&page).expect("the page has its marks");
        assert!(page == renewed, "docs/virtual-cluster.md is out of date: run `cargo xtask docs`");
    }
}
