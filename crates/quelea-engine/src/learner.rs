//! The gradients of one worker: batches in, gradients out.

use std::sync::Arc;

use quelea_core::node::Loan;
use quelea_core::problems::{Computed, GradientSource};
use quelea_core::random::Rng;
use quelea_data::loader::{BatchSource, Loader};

use crate::flat::{FlatVectors, Lent};
use crate::parameters::Parameters;
use crate::work::Work;

/// A network that learns from batches.
pub(crate) trait Learn<B>: Send + Sync {
    /// What it trains.
    fn parameters(&self) -> &Parameters;

    /// Adds `share` times the gradient of the batch's mean loss to that of `vectors`; returns that
    /// loss. Dropout draws from `rng`.
    fn learn(&self, batch: &B, share: f32, rng: Rng, vectors: &mut dyn FlatVectors) -> f64;
}

/// One worker.
pub(crate) struct Learner<S: BatchSource, N> {
    network: Arc<N>,
    loader: Loader<S>,
    batch: usize,
    accumulate: u64,
    /// Seed and name of the stream that dropout draws from.
    dropout: (u64, String),
}

impl<S: BatchSource, N: Learn<S::Batch>> Learner<S, N> {
    /// The worker `rank`, which learns from the batches of `loader`.
    pub(crate) fn new(
        network: &Arc<N>,
        loader: Loader<S>,
        work: &Work,
        seed: u64,
        rank: usize,
    ) -> Learner<S, N> {
        Learner {
            network: Arc::clone(network),
            loader,
            batch: work.batch(rank),
            accumulate: work.accumulate as u64,
            dropout: (seed, format!("dropout.{}", work.stream(rank))),
        }
    }
}

impl<S: BatchSource, N: Learn<S::Batch>> GradientSource for Learner<S, N> {
    /// Of the mini-batches whose gradients are averaged, the last one makes buckets final.
    fn gradient(&mut self, loan: &mut Loan, ready: &mut dyn FnMut(usize)) -> Computed {
        loan.vectors().1.fill(0.0);
        let share = 1.0 / self.accumulate as f32;
        let mut loss = 0.0;
        let last = (loan.batch() + 1) * self.accumulate - 1;
        for place in loan.batch() * self.accumulate..=last {
            // Drivers report a panic of a gradient, with its message.
            let batch = self.loader.batch(place).unwrap_or_else(|error| panic!("{error}"));
            let rng = Rng::new(self.dropout.0, &self.dropout.1, place);
            let mut lent = Lent { loan, ready, early: place == last };
            loss += self.network.learn(batch, share, rng, &mut lent);
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

#[cfg(test)]
mod tests {
    use quelea_core::layout::Layout;
    use quelea_core::problems::partition::Partition;
    use quelea_data::error::DataError;
    use quelea_data::loader::LoaderPool;

    use super::*;
    use crate::ops::Linear;
    use crate::parameters::{Builder, Init};
    use crate::tape::{PassMode, Tape, TapeValue};
    use crate::work::WorkOptions;

    /// Batches of one number, which is that of the batch.
    struct Counting;

    impl BatchSource for Counting {
        type Batch = f32;

        fn fill(&self, step: u64, batch: &mut f32) -> Result<(), DataError> {
            *batch = step as f32;
            Ok(())
        }
    }

    /// Two maps of one number each, without a loss: the result's gradient is 1.
    struct TwoMaps {
        maps: [Linear; 2],
        parameters: Parameters,
    }

    impl Learn<f32> for TwoMaps {
        fn parameters(&self) -> &Parameters {
            &self.parameters
        }

        fn learn(&self, batch: &f32, share: f32, rng: Rng, vectors: &mut dyn FlatVectors) -> f64 {
            let tape = Tape::new(&self.parameters, vectors.params(), PassMode::Train);
            let mut tape = tape.with_rng(rng);
            let x = TapeValue::constant(vec![*batch], &[1, 1]);
            let y = self.maps.iter().fold(x, |x, map| tape.linear(&x, map));
            tape.finish().backward(&self.parameters, vectors, &y, vec![share]);
            f64::from(*batch)
        }
    }

    /// With weights 2 and 3 and biases 0, the mean over the batches 8 to 11 of the gradients is 19
    /// for the last weight, 28.5 for the first, and 1 and 3 for the biases.
    #[test]
    fn of_accumulated_batches_only_the_last_hands_buckets_over() {
        let mut builder = Builder::default();
        let maps = [2.0, 3.0].map(|weight| {
            let init = Init::Constant(weight);
            builder.scope(weight, |b| Linear::new(b, 1, 1, init))
        });
        let network = Arc::new(TwoMaps { maps, parameters: builder.finish() });
        let params = network.parameters.initial(0);
        let options = WorkOptions {
            batch: 1,
            accumulate: 4,
            partition: Partition::Iid,
            ..WorkOptions::default()
        };
        let work = Work::new(&[0; 16], &options).expect("good options");
        let loader = Loader::new(&LoaderPool::new(1), Counting, 0);
        let mut learner = Learner::new(&network, loader, &work, 0, 0);
        // A bucket for each map.
        let mut loan = Loan::detached(params.clone(), Arc::new(Layout::plain(4, 8)), 2);
        let mut ready = Vec::new();
        let computed = learner.gradient(&mut loan, &mut |b| ready.push(b));
        assert_eq!((computed.loss, computed.samples), (9.5, 4));
        assert_eq!(ready, [0, 1]);
        assert_eq!(loan.into_gradient(), [1.0, 19.0, 3.0, 28.5]);
    }
}
