//! Lists of names that people write or a long run measures, compared with the tables of the core:
//! the table in `README.md`, and `docs/convergence.md`.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Result, ensure};
use quelea_core::algorithms::ALGORITHMS;
use quelea_core::codec::{CODECS, CodecShape};
use quelea_core::collectives::COLLECTIVES;
use quelea_core::meta::Meta;
use quelea_core::optim::OPTIMIZERS;
use quelea_core::topology::TOPOLOGIES;

type Names<'a> = BTreeSet<&'a str>;

/// Reports every name that one of the pages lacks, or has although no table knows it.
pub(super) fn check() -> Result<()> {
    let readme = fs::read_to_string(super::root().join("README.md"))?;
    let convergence = fs::read_to_string(super::page_file("convergence.md"))?;
    let mut wrong = of_readme(&readme);
    wrong.extend(of_convergence(&convergence));
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn names<'a>(entries: impl Iterator<Item = &'a Meta>) -> Names<'a> {
    entries.map(|meta| meta.name).collect()
}

/// The README names every entry of these tables, by the first words of the lines that do.
fn of_readme(page: &str) -> Vec<String> {
    let expected: [(&[&str], Names); 5] = [
        (&["centralized", "gossip", "averaging"], names(ALGORITHMS.iter().map(|e| &e.meta))),
        (&["topologies"], names(TOPOLOGIES.iter().map(|e| &e.meta))),
        (&["all-reduce"], names(COLLECTIVES.iter().map(|e| &e.meta))),
        (&["optimizers"], names(OPTIMIZERS.iter().map(|e| &e.meta))),
        (&["codecs"], names(CODECS.iter().map(|e| &e.meta))),
    ];
    let mut wrong = Vec::new();
    for (lines, expected) in expected {
        let found = page.lines().filter(|line| lines.contains(&first_cell(line)));
        let found = found.flat_map(|line| line.split('`').skip(1).step_by(2)).collect();
        wrong.extend(differences(&format!("README.md, {}", lines.join(" + ")), &found, &expected));
    }
    wrong
}

/// The measured page has every algorithm, every optimizer, and every codec but those that have
/// nothing to do in its problems.
fn of_convergence(page: &str) -> Vec<String> {
    let (mut algorithms, mut codecs, mut optimizers) = (Names::new(), Names::new(), Names::new());
    for line in page.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if first_cell(line) == "algorithm" {
            let named = cells.iter().filter_map(|cell| cell.strip_suffix(" iid"));
            optimizers.extend(named);
        } else {
            algorithms.insert(cells[1]);
            codecs.extend(cells.get(2));
        }
    }
    let trained = CODECS.iter().filter(|entry| entry.shape != CodecShape::LowRank);
    let page = "docs/convergence.md (`cargo xtask matrix` measures it)";
    [
        (algorithms, names(ALGORITHMS.iter().map(|e| &e.meta))),
        (codecs, names(trained.map(|e| &e.meta))),
        (optimizers, names(OPTIMIZERS.iter().map(|e| &e.meta))),
    ]
    .iter()
    .flat_map(|(found, expected)| differences(page, found, expected))
    .collect()
}

/// What stands between the first two bars of a line of a table.
fn first_cell(line: &str) -> &str {
    line.strip_prefix('|').and_then(|line| line.split('|').next()).map_or("", str::trim)
}

fn differences(place: &str, found: &Names, expected: &Names) -> Vec<String> {
    let lacks = expected.difference(found).map(|name| format!("{place}: lacks `{name}`"));
    let unknown = found.difference(expected).map(|name| format!("{place}: no entry `{name}`"));
    lacks.chain(unknown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_and_the_page_of_convergence_name_what_the_tables_have() {
        check().expect("the pages agree with the tables");
    }

    #[test]
    fn a_name_that_is_missing_or_unknown_is_reported() {
        let readme = fs::read_to_string(super::super::root().join("README.md")).expect("there");
        let found = of_readme(&readme.replace("`choco`", "`choko`"));
        let place = "README.md, centralized + gossip + averaging";
        assert_eq!(
            found,
            [format!("{place}: lacks `choco`"), format!("{place}: no entry `choko`")]
        );
        let page = fs::read_to_string(super::super::page_file("convergence.md")).expect("there");
        let found = of_convergence(&page.replace("| sgp |", "| sgpp |").replace(" sgd iid", ""));
        let ends = found.iter().map(|line| line.rsplit(": ").next().unwrap_or_default());
        let expected = ["lacks `sgp`", "no entry `sgpp`", "lacks `sgd`"];
        assert_eq!(ends.collect::<Vec<_>>(), expected);
    }
}
