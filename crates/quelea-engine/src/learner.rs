//! The gradients of one worker: batches in, gradients out.

use std::sync::Arc;

use quelea_core::problems::{Computed, GradientSource};
use quelea_core::random::Rng;
use quelea_data::loader::{Loader, Pool, Source};

use crate::parameters::Parameters;
use crate::tape::{Mode, Tape};
use crate::work::Work;

/// A network that learns from batches.
pub(crate) trait Learn<B>: Send + Sync {
    /// What it trains.
    fn parameters(&self) -> &Parameters;

    /// Adds `share` times the gradient of the batch's mean loss to `grad`; returns that loss.
    fn learn(&self, tape: Tape<'_>, batch: &B, share: f32, grad: &mut [f32]) -> f64;
}

/// One worker.
pub(crate) struct Learner<S: Source, N> {
    network: Arc<N>,
    loader: Loader<S>,
    batch: usize,
    accumulate: u64,
    /// Seed and name of the stream that dropout draws from.
    dropout: (u64, String),
}

impl<S: Source, N: Learn<S::Batch>> Learner<S, N> {
    /// The worker `rank`, whose next `ahead` batches are made by the threads of `pool`.
    pub(crate) fn new(
        network: &Arc<N>,
        (pool, batches, ahead): (&Arc<Pool>, S, usize),
        work: &Work,
        (seed, rank): (u64, usize),
    ) -> Learner<S, N> {
        Learner {
            network: Arc::clone(network),
            loader: Loader::new(pool, batches, ahead),
            batch: work.batches[rank],
            accumulate: work.accumulate as u64,
            dropout: (seed, format!("dropout.{rank}")),
        }
    }
}

impl<S: Source, N: Learn<S::Batch>> GradientSource for Learner<S, N> {
    fn gradient(&mut self, step: u64, params: &[f32], grad: &mut [f32]) -> Computed {
        grad.fill(0.0);
        let share = 1.0 / self.accumulate as f32;
        let mut loss = 0.0;
        for place in step * self.accumulate..(step + 1) * self.accumulate {
            // Drivers report a panic of a gradient, with its message.
            let batch = self.loader.batch(place).unwrap_or_else(|error| panic!("{error}"));
            let rng = Rng::new(self.dropout.0, &self.dropout.1, place);
            let tape = Tape::new(self.network.parameters(), params, Mode::Train).with_rng(rng);
            loss += self.network.learn(tape, batch, share, grad);
        }
        let samples = self.batch as u64 * self.accumulate;
        Computed { loss: (loss / self.accumulate as f64) as f32, samples: samples as u32 }
    }

    fn operations(&self) -> u64 {
        // Two for each weight and pass, at least: most are used more than once.
        let weights = self.network.parameters().len() as u64;
        6 * weights * self.batch as u64 * self.accumulate
    }
}
