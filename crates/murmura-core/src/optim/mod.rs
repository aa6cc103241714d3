//! Optimizers and learning-rate schedules.

use std::ops::Range;

/// Turns a gradient into a step, bucket by bucket.
///
/// It is created for a vector of fixed length and keeps its state (momentum, …) for all of it.
/// `step` counts this rank's optimizer steps from 0; all buckets of one step have the same.
pub trait Optimizer: Send {
    /// `params ← params − η·u` on `range`; `params` and `grad` are the slices of that range.
    fn apply(&mut self, at: At, range: Range<usize>, params: &mut [f32], grad: &mut [f32]);

    /// `grad ← η·u` on `range`, parameters untouched. The same arithmetic as `apply` up to the
    /// final subtraction.
    fn displace(&mut self, at: At, range: Range<usize>, params: &[f32], grad: &mut [f32]);

    /// The state vectors, for checkpoints and for handing them to a joiner.
    fn vectors(&mut self) -> Vec<&mut Vec<f32>>;
}

/// When a step is taken, and how far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct At {
    /// Steps taken before this one.
    pub step: u64,
    /// The learning rate η.
    pub learning_rate: f32,
}

/// The learning rate as a function of the step.
pub type LearningRate = std::sync::Arc<dyn Fn(u64) -> f32 + Send + Sync>;
