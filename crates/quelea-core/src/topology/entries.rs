//! The table of topologies.

use super::{
    Entry, TopologyProperties, aer, cliques, complete, custom, exponential, hypercube, lattice,
    random_matching, ring, star,
};
use crate::meta::Meta;

/// All built-in topologies, by name.
pub const TOPOLOGIES: &[Entry] = &[
    Entry {
        meta: Meta {
            name: "aer",
            summary: "alternating exponential ring: averages within hosts and across pairs of hosts, \
                  in turn; a power of two hosts, equally many workers on each",
            paper: "Decent-DP, Wang et al., ICLR 2025",
            section: "the section on alternating exponential rings; slots as in the public code",
            file: "crates/quelea-core/src/topology/aer.rs",
            options: &[],
        },
        properties: VARYING,
        make: aer::aer,
    },
    Entry {
        meta: Meta {
            name: "bipartite-exponential",
            summary: "undirected, offsets 1 and 1 + 2^k: even workers meet odd ones only; \
                  an even number of workers",
            paper: "AD-PSGD, arXiv:1710.06952; offsets as in the code of arXiv:1811.10792",
            section: "the paragraphs on deadlock: a bipartite graph, active and passive workers",
            file: "crates/quelea-core/src/topology/exponential.rs",
            options: &[],
        },
        properties: STATIC,
        make: exponential::bipartite,
    },
    Entry {
        meta: Meta {
            name: "complete",
            summary: "everyone with everyone: the exact mean in every round",
            paper: "the limit that all others are measured against",
            section: "W = J, exact averaging",
            file: "crates/quelea-core/src/topology/complete.rs",
            options: &[],
        },
        properties: STATIC,
        make: complete::complete,
    },
    Entry {
        meta: Meta {
            name: "custom",
            summary: "edges or weights from a text file, one round or several",
            paper: "your own",
            section: "your file; undirected edges without weights get Metropolis weights",
            file: "crates/quelea-core/src/topology/custom.rs",
            options: custom::KEYS,
        },
        properties: None,
        make: custom::custom,
    },
    Entry {
        meta: Meta {
            name: "directed-ring",
            summary: "directed, to the next worker only, halves: one model sent and one received \
                  per round",
            paper: "BlueFog, Ying et al. 2021, arXiv:2111.04287",
            section: "`RingGraph` of the public code with one direction",
            file: "crates/quelea-core/src/topology/ring.rs",
            options: &[],
        },
        properties: Some(TopologyProperties {
            is_static: true,
            is_symmetric: false,
            is_directed: true,
        }),
        make: ring::directed,
    },
    Entry {
        meta: Meta {
            name: "dumbbell",
            summary: "two complete halves with one edge between them; \
                  some workers can hang at its ends",
            paper: "He, Karimireddy and Jaggi 2022, arXiv:2202.01545",
            section: "the dumbbell topology of its experiments",
            file: "crates/quelea-core/src/topology/cliques.rs",
            options: cliques::DUMBBELL_KEYS,
        },
        properties: STATIC,
        make: cliques::dumbbell,
    },
    Entry {
        meta: Meta {
            name: "exponential",
            summary: "directed, to the workers 1, 2, 4, 8, … further on",
            paper: "Ying et al. 2021, arXiv:2110.13363",
            section: "the section on static exponential graphs",
            file: "crates/quelea-core/src/topology/exponential.rs",
            options: &[],
        },
        properties: Some(TopologyProperties {
            is_static: true,
            is_symmetric: false,
            is_directed: true,
        }),
        make: exponential::all_hops,
    },
    Entry {
        meta: Meta {
            name: "grid",
            summary: "rows × columns without wrap-around, the closest pair of factors; \
                  a prime number gives a path",
            paper: "Metropolis weights, Xiao and Boyd 2004",
            section: "the Metropolis–Hastings weights",
            file: "crates/quelea-core/src/topology/lattice.rs",
            options: &[],
        },
        properties: STATIC,
        make: lattice::grid,
    },
    Entry {
        meta: Meta {
            name: "hypercube",
            summary: "workers whose numbers differ in one bit; \
                  any number of workers (Metropolis weights where corners are missing)",
            paper: "Ying et al. 2021, arXiv:2110.13363",
            section: "the table of graphs that it compares with",
            file: "crates/quelea-core/src/topology/hypercube.rs",
            options: &[],
        },
        properties: STATIC,
        make: hypercube::all_bits,
    },
    Entry {
        meta: Meta {
            name: "one-peer-exponential",
            summary: "directed, one hop of 1, 2, 4, … a round, in turn; \
                  the exact mean after each period if the number of workers is a power of two",
            paper: "SGP, Assran et al. 2019, arXiv:1811.10792; Ying et al. 2021, arXiv:2110.13363",
            section: "the section on one-peer exponential graphs",
            file: "crates/quelea-core/src/topology/exponential.rs",
            options: &[],
        },
        properties: Some(TopologyProperties {
            is_static: false,
            is_symmetric: false,
            is_directed: true,
        }),
        make: exponential::one_hop,
    },
    Entry {
        meta: Meta {
            name: "one-peer-hypercube",
            summary: "pairs whose numbers differ in one bit, bit after bit; \
                  a worker whose partner does not exist rests",
            paper: "Decent-DP (`one-peer-exp`), Wang et al., ICLR 2025",
            section: "`one-peer-exp` of the public code",
            file: "crates/quelea-core/src/topology/hypercube.rs",
            options: &[],
        },
        properties: VARYING,
        make: hypercube::one_bit,
    },
    Entry {
        meta: Meta {
            name: "one-peer-ring",
            summary: "pairs on a ring, with the left and the right neighbour in turn; \
                  an odd number leaves one worker out, each once a period",
            paper: "Decent-DP (`ring`), Wang et al., ICLR 2025",
            section: "`ring` of the public code",
            file: "crates/quelea-core/src/topology/ring.rs",
            options: &[],
        },
        properties: VARYING,
        make: ring::one_peer,
    },
    Entry {
        meta: Meta {
            name: "random-matching",
            summary: "random pairs, drawn from the seed in every round; \
                  an odd number leaves one random worker out",
            paper: "Boyd et al. 2006, randomized gossip",
            section: "the section on randomized gossip, a whole matching per round",
            file: "crates/quelea-core/src/topology/random_matching.rs",
            options: &[],
        },
        properties: VARYING,
        make: random_matching::random_matching,
    },
    Entry {
        meta: Meta {
            name: "ring",
            summary: "the left and the right neighbour, a third each",
            paper: "D-PSGD, Lian et al. 2017, arXiv:1705.09056",
            section: "the ring of its experiments, weights 1/3",
            file: "crates/quelea-core/src/topology/ring.rs",
            options: &[],
        },
        properties: STATIC,
        make: ring::ring,
    },
    Entry {
        meta: Meta {
            name: "star",
            summary: "worker 0 in the middle, everyone else only with it",
            paper: "Metropolis weights, Xiao and Boyd 2004",
            section: "the Metropolis–Hastings weights",
            file: "crates/quelea-core/src/topology/star.rs",
            options: &[],
        },
        properties: STATIC,
        make: star::star,
    },
    Entry {
        meta: Meta {
            name: "symmetric-exponential",
            summary: "undirected, to the workers 1, b, b², … further on and back, all weights \
                  equal; with b = 4 as many neighbours as `exponential`",
            paper: "BlueFog, Ying et al. 2021, arXiv:2111.04287",
            section: "`SymmetricExponentialGraph` of the public code, base 4",
            file: "crates/quelea-core/src/topology/exponential.rs",
            options: exponential::SYMMETRIC_KEYS,
        },
        properties: STATIC,
        make: exponential::symmetric,
    },
    Entry {
        meta: Meta {
            name: "torus",
            summary: "rows × columns with wrap-around, the closest pair of factors, a fifth each; \
                  Metropolis weights if a side is shorter than 3",
            paper: "Ying et al. 2021, arXiv:2110.13363",
            section: "the table of graphs that it compares with",
            file: "crates/quelea-core/src/topology/lattice.rs",
            options: &[],
        },
        properties: STATIC,
        make: lattice::torus,
    },
    Entry {
        meta: Meta {
            name: "two-worlds",
            summary: "two complete halves, every worker with as many neighbours in the other one; \
                  some workers can be tied to all",
            paper: "Gaucher, Dieuleveut and Hendrikx 2025, arXiv:2410.10418",
            section: "the Two Worlds graphs of the upper bound on the breakdown point",
            file: "crates/quelea-core/src/topology/cliques.rs",
            options: cliques::TWO_WORLDS_KEYS,
        },
        properties: STATIC,
        make: cliques::two_worlds,
    },
];

const STATIC: Option<TopologyProperties> =
    Some(TopologyProperties { is_static: true, is_symmetric: true, is_directed: false });
const VARYING: Option<TopologyProperties> =
    Some(TopologyProperties { is_static: false, is_symmetric: true, is_directed: false });
