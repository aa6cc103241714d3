//! The structs of the library's module `typed`, made from the table of algorithms.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use quelea_core::algorithms::{ALGORITHMS, Entry};
use quelea_core::options::{OptionKind, OptionSpec};

/// Above the structs.
const MARK: &str = "// <!-- Made from the table by `cargo xtask docs`; do not edit. -->\n";

/// The file that has them.
pub(super) fn file() -> PathBuf {
    super::root().join("crates/quelea/src/typed.rs")
}

/// That file with the structs renewed.
pub(super) fn renewed() -> Result<String> {
    super::with_table(&fs::read_to_string(file())?, MARK, &declarations())
}

fn declarations() -> String {
    let enums = Enums::of(ALGORITHMS);
    let mut text = String::from("words! {");
    enums.declare(&mut text);
    text.push_str("}\n\nalgorithms! {");
    ALGORITHMS.iter().for_each(|entry| structure(&mut text, entry, &enums));
    // The mark at the end is a comment too.
    text.push_str("}\n// ");
    text
}

/// The enums of options that are one of several words.
struct Enums {
    /// Options that have the same words in all algorithms.
    common: BTreeSet<&'static str>,
    /// Name → the words, and the algorithms that use them with the option's name.
    all: BTreeMap<String, Words>,
}

struct Words {
    option: &'static str,
    words: &'static [&'static str],
    algorithms: Vec<&'static str>,
}

impl Enums {
    fn of(entries: &'static [Entry]) -> Enums {
        let mut lists: BTreeMap<&str, BTreeSet<&[&str]>> = BTreeMap::new();
        let choices = || {
            let of_entry = |entry: &'static Entry| {
                let words = |option: &'static OptionSpec| match option.kind {
                    OptionKind::Choice(words) => Some((entry.meta.name, option.name, words)),
                    _ => None,
                };
                entry.meta.options.iter().filter_map(words)
            };
            entries.iter().flat_map(of_entry)
        };
        for (_, option, words) in choices() {
            lists.entry(option).or_default().insert(words);
        }
        let users = |option: &str| choices().filter(|(_, other, _)| *other == option).count();
        let common = lists.iter().filter(|(name, lists)| lists.len() == 1 && users(name) > 1);
        let common: BTreeSet<&str> = common.map(|(name, _)| *name).collect();
        let mut enums = Enums { common, all: BTreeMap::new() };
        for (algorithm, option, words) in choices() {
            let name = enums.name(algorithm, option);
            let new = || Words { option, words, algorithms: Vec::new() };
            enums.all.entry(name).or_insert_with(new).algorithms.push(algorithm);
        }
        enums
    }

    /// `Collective`, or `DPsgdForm` where other algorithms have other words.
    fn name(&self, algorithm: &str, option: &str) -> String {
        let prefix = if self.common.contains(option) { "" } else { algorithm };
        camel_case(&format!("{prefix}-{option}"))
    }

    fn declare(&self, text: &mut String) {
        for (name, Words { option, words, algorithms }) in &self.all {
            let users: Vec<String> =
                algorithms.iter().map(|name| format!("[`{}`]", camel_case(name))).collect();
            let _ = writeln!(text, "\n    /// The option `{option}` of {}.", users.join(", "));
            let _ = writeln!(text, "    {name} {{");
            for word in *words {
                let _ = writeln!(text, "        {} = \"{word}\",", camel_case(word));
            }
            text.push_str("    }\n");
        }
    }
}

fn structure(text: &mut String, entry: &Entry, enums: &Enums) {
    let (meta, name) = (&entry.meta, entry.meta.name);
    let _ = writeln!(text, "\n    /// `{name}`: {}.", escaped(meta.summary));
    if !meta.paper.is_empty() {
        let _ = writeln!(text, "    ///\n    /// Paper: {}", escaped(meta.paper));
    }
    let _ = writeln!(text, "    {} = \"{name}\" {{", camel_case(name));
    for option in meta.options {
        let typed = match option.kind {
            OptionKind::Real { .. } => "f64".to_string(),
            OptionKind::Whole { .. } => "u64".to_string(),
            OptionKind::Choice(_) => enums.name(name, option.name),
            OptionKind::Flag(_) => "bool".to_string(),
            OptionKind::Text => "String".to_string(),
            OptionKind::Reals => "Vec<f64>".to_string(),
        };
        let (help, default) = (super::sentence(option.help), option.kind.default());
        let _ = writeln!(text, "        /// {} Default: `{default}`.", escaped(&help));
        let _ = writeln!(text, "        {}: {typed},", option.name);
    }
    text.push_str("    }\n");
}

/// Text for a documentation comment.
fn escaped(text: &str) -> String {
    text.replace('[', "\\[").replace('<', "\\<")
}

/// `d-psgd` → `DPsgd`.
fn camel_case(name: &str) -> String {
    let words = name.split(['-', '_']).filter(|word| !word.is_empty());
    words.map(|word| word[..1].to_uppercase() + &word[1..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structs_of_the_library_are_made_from_the_table() {
        let there = fs::read_to_string(file()).expect("the file is there");
        let renewed = renewed().expect("the file has its marks");
        assert!(there == renewed, "typed.rs is out of date: run `cargo xtask docs`");
    }

    #[test]
    fn names_are_written_as_types_are() {
        assert_eq!(camel_case("d-psgd"), "DPsgd");
        assert_eq!(camel_case("-pre_aggregate"), "PreAggregate");
    }
}
