//! What a server of ALADDIN divides the sum of displacements by.

use crate::options::Options;

/// N in `x̃ ← x̃ − D/N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Normaliser {
    Workers,
    Count,
    None,
}

impl Normaliser {
    pub(super) fn new(options: &Options) -> Normaliser {
        match options.text("normaliser") {
            "workers" => Normaliser::Workers,
            "count" => Normaliser::Count,
            _ => Normaliser::None,
        }
    }

    /// N for `workers` workers and a sum of `gradients` gradients.
    pub(super) fn divisor(self, workers: usize, gradients: u64) -> f32 {
        match self {
            Normaliser::Workers => workers as f32,
            Normaliser::Count => gradients.max(1) as f32,
            Normaliser::None => 1.0,
        }
    }
}
