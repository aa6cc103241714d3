//! The table of docs/python.md that says which algorithms have which property.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use quelea_core::algorithms::{ALGORITHMS, Entry};
use quelea_core::options::{OptionKind, OptionSpec, Options, Value};
use quelea_core::properties::{OptimizerRequirement, OptimizerSite, OptimizerState, Properties};

const START: &str = "<!-- Made from the table by `cargo xtask docs`; do not edit. -->\n";
const END: &str = "<!-- End of what is made from the table. -->";

/// A property in words, and whether an algorithm has it.
type Capability = (&'static str, fn(&Properties) -> bool);

const CAPABILITIES: &[Capability] = &[
    ("servers run the optimizer", |properties| properties.optimizer == OptimizerSite::Servers),
    ("gradients are read before the optimizer runs", |properties| properties.reads_gradient),
    ("a script may replace the parameters between two steps", |properties| properties.reloadable),
    ("every rank resumes from its own parameters", |properties| properties.own_start),
    ("`report_loss` must be called at every step", |properties| properties.needs_loss),
    ("the momentum inside `SGD` is replaced", |properties| {
        properties.optimizer_state == OptimizerState::VelocityReplaced
    }),
    ("the optimizer's state is averaged or reset", |properties| {
        properties.optimizer_state == OptimizerState::Synchronized
    }),
    ("the optimizer must be plain `SGD`", |properties| {
        matches!(properties.optimizer_rule, OptimizerRequirement::PlainSgd(_))
    }),
    ("the optimizer must be `SGD`", |properties| properties.optimizer_rule.needs_sgd()),
    ("the optimizer must have no momentum", |properties| {
        properties.optimizer_rule.refused_options().contains(&"momentum")
    }),
];

/// The page with its table as it is now.
pub(super) fn renewed(page: &str) -> Result<String> {
    let (before, rest) = page.split_once(START).context("docs/python.md: no start mark")?;
    let (_, after) = rest.split_once(END).context("docs/python.md: no end mark")?;
    Ok(format!("{before}{START}{}{END}{after}", table()))
}

fn table() -> String {
    let mut table = String::from("| property | algorithms |\n|---|---|\n");
    for (property, holds) in CAPABILITIES {
        let names = ALGORITHMS.iter().filter_map(|entry| described(entry, *holds));
        let _ = writeln!(table, "| {property} | {} |", names.collect::<Vec<_>>().join(", "));
    }
    table
}

/// The name of an algorithm that has the property, with the option values that give it one if it
/// is not there by default.
fn described(entry: &Entry, holds: fn(&Properties) -> bool) -> Option<String> {
    let has = |options: &Options| holds(&(entry.properties)(options));
    let defaults = Options::defaults(entry.meta.options);
    if has(&defaults) {
        return Some(format!("`{}`", entry.meta.name));
    }
    let gives =
        |(key, value): &(&'static str, Value)| has(&defaults.clone().with(key, value.clone()));
    let given: Vec<String> = entry
        .meta
        .options
        .iter()
        .flat_map(choices)
        .filter(gives)
        .map(|(key, value)| format!("`{key}={value}`"))
        .collect();
    (!given.is_empty()).then(|| format!("`{}` with {}", entry.meta.name, given.join(" or ")))
}

/// The values of an option that can be listed.
fn choices(spec: &OptionSpec) -> Vec<(&'static str, Value)> {
    match spec.kind {
        OptionKind::Choice(words) => {
            words.iter().map(|word| (spec.name, Value::Text((*word).to_string()))).collect()
        }
        OptionKind::Flag(default) => vec![(spec.name, Value::Flag(!default))],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docs::page_file;

    #[test]
    fn the_table_of_properties_for_pytorch_users_is_what_the_algorithms_say() {
        let page = std::fs::read_to_string(page_file("python.md")).expect("the page is there");
        let now = renewed(&page).expect("the page has its marks");
        assert!(page == now, "docs/python.md is out of date: run `cargo xtask docs`");
    }

    #[test]
    fn an_option_that_gives_a_property_is_named() {
        let table = table();
        assert!(table.contains("`aladdin` with `payload=\"gradient\"`"), "{table}");
    }
}
