//! `docs/papers.md`: for every row of every table, the paper, the place in it, and the file.
//!
//! Papers come from the tables; the place in the paper stands here, and a test sees to it that
//! every row has one. A section is named where the number of an equation is not certain.

use std::fmt::Write as _;

use quelea_core::algorithms::ALGORITHMS;
use quelea_core::codec::CODECS;
use quelea_core::collectives::COLLECTIVES;
use quelea_core::optim::OPTIMIZERS;
use quelea_core::topology::TOPOLOGIES;

/// Where in its paper a row is, by the row's name.
type Places = &'static [(&'static str, &'static str)];

const ALGORITHM_PLACES: Places = &[
    ("ad-psgd", "Algorithm 1, in the difference form that lets gradients land during an exchange"),
    (
        "aladdin",
        "Algorithm 1 (worker), Algorithm 2 (server), with every gradient counted once and divided \
         by the number of workers, as Lemma 1 asks; the mixing matrix is equation (6)",
    ),
    (
        "allreduce",
        "Sections 2 and 4 of Goyal et al.; the ring is the schedule of Patarasuk and Yuan",
    ),
    ("asp", "Section 4.1 (Downpour SGD), fetching and pushing at every step"),
    ("bmuf", "the sections on classic and on Nesterov block momentum"),
    ("choco", "after-step: Algorithm 2 of 2019; overlap: Algorithm 1 of 2020"),
    ("d-amsgrad", "the algorithm named decentralized AMSGrad"),
    ("d-psgd", "Algorithm 1 (consensus); adapt-then-combine and combine-then-adapt: Sayed 2014"),
    ("d2", "Algorithm 1, with the step inside the correction, so that the rate may change"),
    ("decentlam", "the algorithm named DecentLaM"),
    ("diloco", "Algorithm 1"),
    ("eamsgd", "Algorithm 2 (asynchronous EAMSGD)"),
    ("easgd", "Algorithm 1 (asynchronous EASGD); synchronous: the update rule of Section 3"),
    ("exact-diffusion", "Algorithm 1 of part I, with (I + W)/2"),
    ("extra", "Algorithm 1"),
    ("gossip-aga", "Algorithm 2"),
    ("gossip-pga", "Algorithm 1"),
    (
        "gradient-tracking",
        "Algorithm 1 (DIGing), Algorithm 2 (Push-DIGing); atc: Aug-DGM of Xu et al.",
    ),
    ("local-sgd", "Algorithm 1 of McMahan et al. with all clients, Algorithm 1 of Stich"),
    ("qg-dmsgd", "Algorithm 1"),
    ("sgp", "Algorithm 1; overlap: Algorithm 2"),
    ("slowmo", "Algorithm 1"),
    ("ssp", "Section 2 (the bounded-staleness model); reads as in its read-my-writes rule"),
    (
        "sync-ps",
        "Algorithm 1 of Li et al. with a barrier; backup workers: the section of that name",
    ),
];

const OPTIMIZER_PLACES: Places = &[
    ("accum-adam", "the algorithm named AccumAdam, with β2 in the second moment"),
    ("accum-adamw", "as accum-adam; decoupled decay: Algorithm 2 of Loshchilov and Hutter"),
    ("adam", "Algorithm 1"),
    ("adamw", "Algorithm 2"),
    ("sgd", "Section 2 of Sutskever et al. (classical and Nesterov momentum)"),
];

const CODEC_PLACES: Places = &[
    ("bf16", "the format itself, rounded to nearest even"),
    ("f16", "the format itself (IEEE 754 binary16), rounded to nearest even"),
    ("f32", "the values as they are"),
    ("power-sgd", "Algorithm 1 (rank-r compression) and Algorithm 2 (with error feedback)"),
    ("qsgd", "Section 3.1 (stochastic quantization)"),
    ("random-k", "the operator rand-k of Section 2, with shared seeds and without rescaling"),
    ("sign", "the scaled sign of the algorithm named EF-signSGD"),
    ("top-k", "the operator top-k of Section 2"),
];

const TOPOLOGY_PLACES: Places = &[
    ("aer", "the section on alternating exponential rings; slots as in the public code"),
    (
        "bipartite-exponential",
        "the paragraphs on deadlock: a bipartite graph, active and passive workers",
    ),
    ("complete", "W = J, exact averaging"),
    ("custom", "your file; undirected edges without weights get Metropolis weights"),
    ("exponential", "the section on static exponential graphs"),
    ("grid", "the Metropolis–Hastings weights"),
    ("hypercube", "the table of graphs that it compares with"),
    ("one-peer-exponential", "the section on one-peer exponential graphs"),
    ("one-peer-hypercube", "`one-peer-exp` of the public code"),
    ("one-peer-ring", "`ring` of the public code"),
    ("random-matching", "the section on randomized gossip, a whole matching per round"),
    ("ring", "the ring of its experiments, weights 1/3"),
    ("star", "the Metropolis–Hastings weights"),
    ("torus", "the table of graphs that it compares with"),
];

const COLLECTIVE_PLACES: Places = &[
    ("auto", "halving-doubling for small vectors, the ring for large ones, as Thakur et al."),
    ("halving-doubling", "the section on reduce-scatter followed by all-gather (Rabenseifner)"),
    ("hierarchical", "the ring between hosts, one chunk per rank of a host"),
    ("ring", "the bandwidth-optimal schedule"),
];

/// Papers of the collectives, whose table does not name any.
const COLLECTIVE_PAPERS: Places = &[
    ("auto", "Thakur, Rabenseifner and Gropp 2005"),
    ("halving-doubling", "Thakur, Rabenseifner and Gropp 2005"),
    ("hierarchical", "Goyal et al. 2017, arXiv:1706.02677"),
    ("ring", "Patarasuk and Yuan 2009"),
];

/// Files of rows that share one, or have another name than their row; the rest are `name.rs`.
const FILES: Places = &[
    ("optim/accum-adamw", "accum_adam"),
    ("optim/adamw", "adam"),
    ("codec/f32", "plain"),
    ("topology/bipartite-exponential", "exponential"),
    ("topology/grid", "lattice"),
    ("topology/one-peer-exponential", "exponential"),
    ("topology/one-peer-hypercube", "hypercube"),
    ("topology/one-peer-ring", "ring"),
    ("topology/torus", "lattice"),
    ("collectives/auto", "mod"),
];

/// What belongs to no single row: name, paper, place, file.
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
        "crates/quelea-core/src/algorithms/push_sum.rs",
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

/// One row of the page: name, paper, place in it, file.
type Line = [String; 4];

/// The page.
pub(crate) fn page() -> String {
    let mut page = String::from(
        "# Papers\n\nMade from the tables by `cargo xtask docs`; do not edit. For every row: where \
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
    let algorithms = ALGORITHMS.iter().map(|entry| {
        let place = found(ALGORITHM_PLACES, entry.name);
        [format!("`{}`", entry.name), entry.paper.into(), place.into(), entry.file.into()]
    });
    let optimizers = OPTIMIZERS.iter().map(|row| (row.name, row.paper));
    let codecs = CODECS.iter().map(|row| (row.name, row.paper));
    let topologies = TOPOLOGIES.iter().map(|row| (row.name, row.paper));
    let collectives = COLLECTIVES.iter().map(|row| (row.name, found(COLLECTIVE_PAPERS, row.name)));
    vec![
        ("Algorithms", algorithms.collect()),
        ("Optimizers", lines("optim", optimizers, OPTIMIZER_PLACES)),
        ("Codecs", lines("codec", codecs, CODEC_PLACES)),
        ("Topologies", lines("topology", topologies, TOPOLOGY_PLACES)),
        ("Collectives", lines("collectives", collectives, COLLECTIVE_PLACES)),
        ("And", OTHERS.iter().map(|line| line.map(str::to_string)).collect()),
    ]
}

fn lines(
    folder: &str,
    rows: impl Iterator<Item = (&'static str, &'static str)>,
    places: Places,
) -> Vec<Line> {
    let line = |(name, paper): (&str, &str)| {
        let own = FILES.iter().find(|(row, _)| *row == format!("{folder}/{name}"));
        let stem = own.map_or(name.replace('-', "_"), |(_, stem)| stem.to_string());
        let file = format!("crates/quelea-core/src/{folder}/{stem}.rs");
        [format!("`{name}`"), paper.to_string(), found(places, name).to_string(), file]
    };
    rows.map(line).collect()
}

/// Empty where there is none; a test refuses that.
fn found(places: Places, name: &str) -> &'static str {
    places.iter().find(|(row, _)| *row == name).map_or("", |(_, place)| place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_row_of_every_table_has_a_paper_a_place_in_it_and_a_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent");
        for (title, lines) in tables() {
            assert!(!lines.is_empty(), "{title}");
            for [name, paper, place, file] in lines {
                assert!(!paper.is_empty() && !place.is_empty(), "{name} of {title}");
                assert!(root.join(&file).is_file(), "{name} of {title}: {file}");
            }
        }
    }

    #[test]
    fn every_place_belongs_to_a_row() {
        let named = |places: Places| places.iter().map(|(name, _)| format!("`{name}`"));
        let places =
            [ALGORITHM_PLACES, OPTIMIZER_PLACES, CODEC_PLACES, TOPOLOGY_PLACES, COLLECTIVE_PLACES];
        for ((title, lines), places) in tables().into_iter().zip(places) {
            let rows: Vec<String> = lines.into_iter().map(|[name, ..]| name).collect();
            let stray = named(places).find(|name| !rows.contains(name));
            assert_eq!(stray, None, "{title}");
        }
    }
}
