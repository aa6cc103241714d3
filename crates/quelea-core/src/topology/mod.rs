//! Who mixes with whom, with what weights, at which step.
//!
//! [`TOPOLOGIES`] is the table; [`Entry::build`] makes a checked [`Schedule`] from an entry and a
//! [`TopologyRequest`]; [`report()`] measures it; [`Schedule::pairs`] splits its workers into
//! those that ask and those that answer. `quelea-plot` draws it.

mod aer;
mod cliques;
mod complete;
mod custom;
mod exponential;
mod groups;
mod hypercube;
mod lattice;
mod pairs;
mod random_matching;
mod report;
mod ring;
mod schedule;
mod spectrum;
mod star;
mod symmetric;
mod validate;
mod weights;

#[cfg(test)]
mod tests;

use crate::meta::Meta;
use crate::names;
use crate::options::Options;

pub use groups::{GROUPS, GroupExchange, MEMBERS_MIN};
pub use pairs::Pairs;
pub use report::{Report, RoundReport, report};
pub use schedule::{Round, Schedule, TopologyShape};
pub use spectrum::least_eigenvalue;
pub use validate::{Flaw, validate, validate_edges};

/// One entry of the table.
pub struct Entry {
    /// Name, summary, paper and options.
    pub meta: Meta,
    /// What holds from three workers on (`aer`: from two hosts on); `None` where a file decides.
    pub properties: Option<TopologyProperties>,
    /// Makes the rounds; [`Entry::build`] also checks them.
    pub make: fn(&TopologyRequest) -> Result<Schedule, TopologyError>,
}

/// What is true of a topology whatever its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopologyProperties {
    /// Every round is the same.
    pub is_static: bool,
    /// `W_ij = W_ji` in every round.
    pub is_symmetric: bool,
    /// Somebody sends to a worker that does not send back in the same round.
    pub is_directed: bool,
}

/// What a topology is made for.
#[derive(Clone, Copy, Debug)]
pub struct TopologyRequest<'a> {
    /// The host of each worker; as many as there are workers.
    pub hosts: &'a [u32],
    /// The run's seed.
    pub seed: u64,
    /// The entry's options, checked.
    pub options: &'a Options,
    /// The contents of the file of a `custom` topology.
    pub text: Option<&'a str>,
}

/// Why a topology cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TopologyError {
    /// There is nobody to connect.
    #[error("`{topology}` needs at least one worker")]
    NoWorkers {
        /// The topology.
        topology: &'static str,
    },
    /// It does not exist for this number of workers.
    #[error("`{topology}` needs {needs}: {workers} workers do not work, {works} do")]
    Workers {
        /// The topology.
        topology: &'static str,
        /// What it asks for.
        needs: &'static str,
        /// How many there are.
        workers: usize,
        /// The nearest numbers that work.
        works: String,
    },
    /// It does not exist for workers placed like this.
    #[error("`{topology}` {problem}")]
    Hosts {
        /// The topology.
        topology: &'static str,
        /// What is wrong, and what would work.
        problem: String,
    },
    /// No file was given.
    #[error("`custom` needs `file`: a text file with one edge `i j [weight]` a line, or a matrix")]
    NoFile,
    /// The file cannot be understood.
    #[error("line {line} of the topology file: {problem}")]
    File {
        /// Counted from 1.
        line: usize,
        /// What is wrong, and what is allowed.
        problem: String,
    },
    /// The weights do not keep the mean, or do not connect the workers.
    #[error("`{topology}`: {flaw}")]
    Flaw {
        /// The topology.
        topology: &'static str,
        /// What is wrong, and where.
        flaw: Flaw,
    },
}

impl Entry {
    /// The rounds for these workers, checked.
    pub fn build(&self, request: &TopologyRequest) -> Result<Schedule, TopologyError> {
        self.build_checked(request, validate)
    }

    /// The rounds for methods that use the edges and not the weights: senders divide by
    /// themselves, so edges may go one way, and degrees differ.
    pub fn build_edges(&self, request: &TopologyRequest) -> Result<Schedule, TopologyError> {
        self.build_checked(request, validate_edges)
    }

    fn build_checked(
        &self,
        request: &TopologyRequest,
        check: fn(&Schedule) -> Result<(), Flaw>,
    ) -> Result<Schedule, TopologyError> {
        if request.hosts.is_empty() {
            return Err(TopologyError::NoWorkers { topology: self.meta.name });
        }
        let schedule = (self.make)(request)?.named(self.meta.name);
        check(&schedule).map_err(|flaw| TopologyError::Flaw { topology: self.meta.name, flaw })?;
        Ok(schedule)
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({})", self.meta.name)
    }
}

/// The built-in entry of this name, or the nearest name if there is one.
pub fn find(name: &str) -> Result<&'static Entry, Option<&'static str>> {
    names::find(TOPOLOGIES, |entry| entry.meta.name, name)
}

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
