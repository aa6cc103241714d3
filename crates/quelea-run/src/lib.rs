//! From a configuration to a run and its files.
//!
//! | module | what is in it |
//! |---|---|
//! | [`config`] | a run file, checked, every default filled in |
//! | [`tasks`] | the table of tasks: models with their data |
//! | [`plan`] | configuration to everything that a driver needs |
//! | [`drive`] | the ways to run a plan: virtual cluster, threads, processes, machines |
//! | [`memory`] | whether a run fits into this machine |
//! | [`checkpoint`] | the whole state of a run on the disk, and going on from it |
//! | [`evaluate`] | how good models are, while a run goes on |
//! | [`conduct`] | a run from its plan to its files, whoever drives it |
//! | [`listen`] | what a driver says of a run |
//! | [`files`] | the run's directory and what is in it |
//! | [`trial`] | one timed run, a small vector standing for a large model |
//! | [`error`] | why a request was refused, why a run failed |

pub mod checkpoint;
pub mod conduct;
pub mod config;
pub mod drive;
pub mod error;
pub mod evaluate;
pub mod files;
pub mod listen;
pub mod memory;
pub mod plan;
pub mod tasks;
pub mod trial;
