//! `docs/papers.md`: for every entry of every table, the paper, the place in it, and the file, as
//! its [`Meta`] has them.

use std::fmt::Write as _;

use quelea_core::algorithms::ALGORITHMS;
use quelea_core::codec::CODECS;
use quelea_core::collectives::COLLECTIVES;
use quelea_core::meta::Meta;
use quelea_core::optim::OPTIMIZERS;
use quelea_core::topology::TOPOLOGIES;

/// What belongs to no single entry: name, paper, place, file.
const OTHERS: &[[&str; 4]] = &[
    [
        "error feedback",
        "Karimireddy et al. 2019, arXiv:1901.09847; Stich et al. 2018",
        "the algorithm named EF-SGD, with the error in units of the step",
        "crates/quelea-core/src/codec/error_feedback.rs",
    ],
    [
        "DoubleSqueeze (`sync-ps` with a codec)",
        "Tang et al. 2019, arXiv:1905.05957",
        "the algorithm named DoubleSqueeze",
        "crates/quelea-core/src/algorithms/sync_ps.rs",
    ],
    [
        "the two sums of PowerSGD",
        "Vogels et al. 2019, arXiv:1905.13727",
        "Algorithm 1",
        "crates/quelea-core/src/collectives/low_rank.rs",
    ],
    [
        "push-sum",
        "Kempe, Dobra and Gehrke 2003",
        "the protocol Push-Sum",
        "crates/quelea-core/src/kit/push_sum.rs",
    ],
    [
        "gossip between hosts (`topology.within_host`)",
        "Goyal et al. 2017, arXiv:1706.02677; Wang et al. 2025 (ICLR)",
        "exact averages within a host, any gossip method between hosts",
        "crates/quelea-core/src/algorithms/hierarchy.rs",
    ],
    [
        "Dirichlet partition",
        "Hsu, Qi and Brown 2019, arXiv:1909.06335",
        "the section on non-identical client distributions",
        "crates/quelea-core/src/problems/partition.rs",
    ],
];

/// One line of the page: name, paper, place in it, file.
type Line = [String; 4];

/// The page.
pub(crate) fn page() -> String {
    let mut page = String::from(
        "# Papers\n\nMade from the tables by `cargo xtask docs`; do not edit. For every entry: where \
         it was published, where in the paper it stands, and the file. The name of a method or of a \
         section stands where no number was certain. What quelea does differently is said here \
         in short and in the file in full.\n",
    );
    for (title, lines) in tables() {
        let _ =
            write!(page, "\n## {title}\n\n| name | paper | place | file |\n|---|---|---|---|\n");
        for [name, paper, place, file] in lines {
            let short = file.trim_start_matches("crates/quelea-core/src/");
            let _ = writeln!(page, "| {name} | {paper} | {place} | [{short}](../{file}) |");
        }
    }
    page
}

fn tables() -> Vec<(&'static str, Vec<Line>)> {
    vec![
        ("Algorithms", ALGORITHMS.iter().map(|entry| line(&entry.meta)).collect()),
        ("Optimizers", OPTIMIZERS.iter().map(|entry| line(&entry.meta)).collect()),
        ("Codecs", CODECS.iter().map(|entry| line(&entry.meta)).collect()),
        ("Topologies", TOPOLOGIES.iter().map(|entry| line(&entry.meta)).collect()),
        ("Collectives", COLLECTIVES.iter().map(|entry| line(&entry.meta)).collect()),
        ("And", OTHERS.iter().map(|line| line.map(str::to_string)).collect()),
    ]
}

fn line(meta: &Meta) -> Line {
    let Meta { name, paper, section, file, .. } = *meta;
    [format!("`{name}`"), paper.to_string(), section.to_string(), file.to_string()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_entry_of_every_table_has_a_paper_a_place_in_it_and_a_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent");
        for (title, lines) in tables() {
            assert!(!lines.is_empty(), "{title}");
            for [name, paper, place, file] in lines {
                assert!(!paper.is_empty() && !place.is_empty(), "{name} of {title}");
                assert!(root.join(&file).is_file(), "{name} of {title}: {file}");
            }
        }
    }
}
