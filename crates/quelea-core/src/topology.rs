//! Who mixes with whom, with what weights, at which step.
//!
//! [`TOPOLOGIES`] is the table; [`Entry::build`] makes a checked [`Schedule`] from an entry and a
//! [`TopologyRequest`]; [`report()`] measures it; [`Schedule::pairs`] splits its workers into
//! those that ask and those that answer. `quelea-plot` draws it.

mod aer;
mod cliques;
mod complete;
mod custom;
mod entries;
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

pub use entries::TOPOLOGIES;
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
