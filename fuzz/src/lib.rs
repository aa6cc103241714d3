//! Fuzzing of everything that reads bytes or text from outside, on any toolchain and without coverage
//! instrumentation: inputs are a function of target, seed and number.
//!
//! ```text
//! seeds of a target ─► some changes ─► checksums repaired ─► the reader ─► no panic, no hang, bounded memory
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`target`] | the table of targets: name, function, seeds, limit of memory |
//! | [`targets`] | the targets, by crate |
//! | [`mutation`] | how inputs are made of seeds |
//! | [`corpus`] | inputs in files: those that failed once, and seeds that cannot be computed |
//! | [`campaign`] | runs inputs and reports failures |
//! | [`allocations`] | the allocator that counts |
//!
//! There is no nightly toolchain where the tests run, so libFuzzer cannot be used. Seeds are
//! therefore of every kind of message, and repairing makes changed fields reach the code behind checksums.

pub mod allocations;
pub mod campaign;
pub mod corpus;
pub mod mutation;
pub mod target;
pub mod targets;
