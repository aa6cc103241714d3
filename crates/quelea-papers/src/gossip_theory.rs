//! The figures of the Yuan lecture (2021): communication, transient iterations, spectral gaps,
//! linear speed-up.

pub mod communication;
pub mod noisy;
pub mod spectral;
pub mod speedup;
pub mod transient;

/// Whose numbers they are.
pub const PAPER: &str =
    "Yuan: Decentralized Optimization Algorithms for Large-Scale DNN Training (lecture, 2021)";
