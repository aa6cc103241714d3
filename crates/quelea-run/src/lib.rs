//! From a configuration to a run and its files.
//!
//! ```
//! use quelea_run::config::{Config, source::parse};
//! use quelea_run::prepared::PreparedRun;
//!
//! let file = "workers = 4\nsteps = 50\n[algorithm]\nname = \"allreduce\"\n[task]\nname = \"quadratic\"";
//! let config = Config::read(parse(file).unwrap(), &[], None).unwrap();
//! let run = PreparedRun::new(config).unwrap();
//! let observer = &mut quelea_record::Silent;
//! let outcome = quelea_sim::simulate(&run.setup, &*run.problem, &run.cluster, observer).unwrap();
//! assert!(outcome.ranks.iter().all(|rank| rank.steps == 50));
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`config`] | a run file, checked, every default filled in |
//! | [`tasks`] | the table of tasks: models with their data |
//! | [`prepared`] | a checked configuration with everything that a driver needs |
//! | [`drive`] | the drivers: virtual cluster, threads, processes, machines |
//! | [`memory`] | whether a run fits into this machine |
//! | [`chaos`] | kills of real processes at random, and a ledger of what the run made of them |
//! | [`checkpoint`] | the whole state of a run on the disk, and resuming from it |
//! | [`evaluate`] | how good models are, while a run continues |
//! | [`execute`] | runs a prepared run and writes its files |
//! | [`recorder`] | the observer that records, evaluates and saves a run |
//! | [`files`] | the run's directory and what is in it |
//! | [`merge`] | the parts of a run that was taken over, in one folder |
//! | [`trial`] | one timed run, a small vector standing for a large model |
//! | [`error`] | why a request was refused, why a run failed |

pub mod chaos;
pub mod checkpoint;
pub mod config;
pub mod drive;
pub mod error;
pub mod evaluate;
pub mod execute;
pub mod files;
pub mod memory;
pub mod merge;
pub mod prepared;
pub mod recorder;
pub mod tasks;
pub mod trial;
