//! The papers' experiments, ours beside theirs, and comparisons of algorithms on one task.
//!
//! [`EXPERIMENTS`] is the table; each experiment makes a [`PaperReport`]. Every number of ours
//! comes out of the virtual cluster with the real algorithms; every parameter is stated by the
//! paper, fitted on a named figure of it, or assumed, and the report says which.
//!
//! ```
//! use quelea_papers::find;
//!
//! let experiment = find("aladdin-heterogeneity").unwrap();
//! assert!(!experiment.trains, "its times come from the virtual cluster in seconds");
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`adpsgd`] | the slow-down table, latency, convergence |
//! | [`aladdin`] | heterogeneity, scaling, breakdown, convergence, Theorem 1 |
//! | [`bowl`] | a quadratic of which every constant of a bound is known |
//! | [`byzantine`] | robust rules against attacks, and where they break down |
//! | [`decentdp`] | time saved against AllReduce, generalization, Theorem 4.1 |
//! | [`gossip_theory`] | communication, transient iterations, spectral gaps, linear speed-up |
//! | [`large_batch`] | SGD, LARS and LAMB with large batches |
//! | [`survival`] | goodput over the mean time between failures |
//! | [`compare`] | several algorithms on one task and one cluster |
//! | [`transients`] | steps until methods are as good as all-reduce, for the advisor |
//! | [`training`] | one run that trains, watched |
//! | [`data`] | where data sets lie |
//! | [`fit`] | one parameter fitted on one figure |
//! | [`report`] | what an experiment came to |
//! | [`render`] | a report as text, JSON and a page |
//! | [`error`] | why there is no result |

pub mod adpsgd;
pub mod aladdin;
pub mod bowl;
pub mod byzantine;
pub mod compare;
pub mod data;
pub mod decentdp;
pub mod error;
pub mod fit;
pub mod gossip_theory;
pub mod large_batch;
pub mod render;
pub mod report;
pub mod survival;
pub mod training;
pub mod transients;

use std::path::PathBuf;

use error::ExperimentError;
use quelea_core::meta::Meta;
use quelea_core::names;
use report::PaperReport;

/// One row of the table.
pub struct Experiment {
    /// Name, summary, paper and options.
    pub meta: Meta,
    /// Whether it trains networks, which takes minutes; the others take seconds.
    pub trains: bool,
    /// The data set that it can use, if any.
    pub data: Option<&'static str>,
    /// Does it.
    pub run: fn(&ReproduceOptions) -> Result<PaperReport, ExperimentError>,
}

impl Experiment {
    /// Does it; where its data set is not there, the report says so and nothing else.
    pub fn attempt(&self, options: &ReproduceOptions) -> Result<PaperReport, ExperimentError> {
        match (self.run)(options) {
            Err(error @ ExperimentError::NoData { .. }) => Ok(PaperReport {
                not_run: Some(error.to_string()),
                ..PaperReport::new(self.meta.name, self.meta.summary, self.meta.paper)
            }),
            done => done,
        }
    }
}

/// How an experiment is run.
#[derive(Clone, Debug)]
pub struct ReproduceOptions {
    /// All that is drawn at random follows from it.
    pub seed: u64,
    /// A small version, for tests: some cells instead of all.
    pub small: bool,
    /// Where data sets lie; without it, where downloads go.
    pub data: Option<PathBuf>,
    /// Hears what is going on, in an experiment of minutes.
    pub tell: fn(&str),
}

impl Default for ReproduceOptions {
    fn default() -> ReproduceOptions {
        ReproduceOptions { seed: 1, small: false, data: None, tell: |_| {} }
    }
}

impl ReproduceOptions {
    /// How many of `all` things a small version takes.
    pub fn size(&self, all: usize, small: usize) -> usize {
        if self.small { small } else { all }
    }
}

/// All experiments, by name.
pub const EXPERIMENTS: &[Experiment] = &[
    adpsgd::convergence::EXPERIMENT,
    adpsgd::latency::EXPERIMENT,
    adpsgd::slowdown::EXPERIMENT,
    aladdin::breakdown::EXPERIMENT,
    aladdin::convergence::EXPERIMENT,
    aladdin::heterogeneity::EXPERIMENT,
    aladdin::scaling::EXPERIMENT,
    aladdin::theorem::EXPERIMENT,
    byzantine::EXPERIMENT,
    decentdp::generalization::EXPERIMENT,
    decentdp::speedup::EXPERIMENT,
    decentdp::theorem::EXPERIMENT,
    large_batch::EXPERIMENT,
    transients::EXPERIMENT,
    survival::EXPERIMENT,
    gossip_theory::communication::EXPERIMENT,
    gossip_theory::spectral::EXPERIMENT,
    gossip_theory::speedup::EXPERIMENT,
    gossip_theory::transient::EXPERIMENT,
];

/// The row of this name, or the nearest name if there is one.
pub fn find(name: &str) -> Result<&'static Experiment, Option<&'static str>> {
    names::find(EXPERIMENTS, |row| row.meta.name, name)
}
