//! `cargo xtask docs`: pages of the manual that are made from the tables.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use murmura_core::algorithms::{ALGORITHMS, Entry};
use murmura_core::contract::{Budget, Deploy, Need};
use murmura_core::params::{Kind, Params};

pub(crate) fn run() -> Result<()> {
    let file = algorithms_file();
    let beside = file.with_extension("md.new");
    fs::write(&beside, algorithms())?;
    fs::rename(&beside, &file)?;
    println!("{} is up to date", file.display());
    Ok(())
}

fn algorithms_file() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent");
    root.join("docs/algorithms.md")
}

fn algorithms() -> String {
    let mut page = String::from(
        "# Algorithms\n\nMade from the table by `cargo xtask docs`; do not edit. `murmura list \
         algorithms` prints the same.\n\n| name | in one line | synchronous | topology | deployed |\n\
         |---|---|---|---|---|\n",
    );
    for entry in ALGORITHMS {
        let facts = (entry.facts)(&Params::defaults(entry.keys));
        let synchronous = if facts.synchronous { "yes" } else { "no" };
        let deployed = match facts.deploy {
            Deploy::Workers => "mean of the workers",
            Deploy::Servers => "the servers' model",
        };
        let (name, summary) = (entry.name, entry.summary);
        let topology = topology(facts.topology);
        let _ = writeln!(
            page,
            "| [`{name}`](#{name}) | {summary} | {synchronous} | {topology} | {deployed} |"
        );
    }
    ALGORITHMS.iter().for_each(|entry| section(&mut page, entry));
    page
}

fn section(page: &mut String, entry: &Entry) {
    let facts = (entry.facts)(&Params::defaults(entry.keys));
    let ends = match facts.budget {
        Budget::Rounds => "after `steps` rounds of every worker",
        Budget::TotalGradients => "after `workers × steps` gradients in all",
    };
    let _ = write!(
        page,
        "\n## {}\n\n{}\n\n- Paper: {}\n- Sends: {}\n- Topology: {}\n- Ends: {ends}\n- Loses a \
         worker: {}\n- File: [{}](../{})\n",
        entry.name,
        sentence(entry.summary),
        entry.paper,
        entry.sends,
        topology(facts.topology),
        entry.lost_peer,
        entry.file.rsplit('/').next().unwrap_or(entry.file),
        entry.file
    );
    if entry.keys.is_empty() {
        return;
    }
    page.push_str("\n| key | default | meaning |\n|---|---|---|\n");
    for key in entry.keys {
        let choices = match key.kind {
            Kind::Choice(words) => format!(" ({})", words.join(", ")),
            _ => String::new(),
        };
        let _ = writeln!(
            page,
            "| `{}` | `{}` | {}{choices} |",
            key.name,
            key.kind.default(),
            key.help.replace('|', "\\|")
        );
    }
}

fn topology(need: Need) -> &'static str {
    match need {
        Need::Nothing => "none",
        Need::Mixing => "any",
        Need::StaticSymmetric => "the same symmetric weights at every step",
        Need::MildlyNegative => "the same symmetric weights at every step, eigenvalues ≥ −1/3",
        Need::Edges => "any, also one-way edges",
        Need::Pairs => "any; its edges between two halves of the workers",
    }
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_algorithms_is_what_the_table_says() {
        let page = fs::read_to_string(algorithms_file()).expect("the page is there");
        assert!(page == algorithms(), "docs/algorithms.md is out of date: run `cargo xtask docs`");
    }

    #[test]
    fn every_row_names_a_file_that_exists() {
        for entry in ALGORITHMS {
            let root =
                algorithms_file().parent().and_then(Path::parent).expect("two up").to_owned();
            assert!(root.join(entry.file).is_file(), "{}: {}", entry.name, entry.file);
        }
    }
}
