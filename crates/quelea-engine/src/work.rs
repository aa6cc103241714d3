//! What the problems have in common: who gets which samples in batches of what size.

use std::sync::Arc;

use quelea_core::problems::partition::Partition;
use quelea_data::loader::BatchSource;
use rayon::prelude::*;

use crate::error::EngineError;

/// How the workers share the data.
#[derive(Clone, Debug)]
pub struct WorkOptions {
    /// How many workers there are.
    pub workers: usize,
    /// Samples in a mini-batch.
    pub batch: usize,
    /// Samples in a mini-batch of each worker, where they differ; else empty.
    pub batches: Vec<f64>,
    /// Mini-batches whose gradients are averaged into one.
    pub accumulate: usize,
    /// Who gets which samples.
    pub partition: Partition,
    /// All workers draw from all samples, in one order, in batches of one size.
    pub shared: bool,
    /// Only so many of the training samples are used; 0 means all.
    pub subset: usize,
    /// Only so many of the held-out samples are used; 0 means all.
    pub test_subset: usize,
    /// Seeds all that is drawn.
    pub seed: u64,
}

impl Default for WorkOptions {
    fn default() -> WorkOptions {
        WorkOptions {
            workers: 1,
            batch: 32,
            batches: Vec::new(),
            accumulate: 1,
            partition: Partition::Iid,
            shared: false,
            subset: 0,
            test_subset: 0,
            seed: 0,
        }
    }
}

/// The samples of each worker and the sizes of its batches.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) parts: Vec<Arc<[u32]>>,
    pub(crate) batches: Vec<usize>,
    pub(crate) accumulate: usize,
    pub(crate) shared: bool,
    samples: usize,
}

impl Work {
    /// Divides samples with these labels.
    pub(crate) fn new(labels: &[u32], options: &WorkOptions) -> Result<Work, EngineError> {
        let (workers, given) = (options.workers, &options.batches);
        assert!(workers > 0, "a run has at least one worker");
        let labels = &labels[..limit(options.subset, labels.len())];
        let samples = labels.len();
        if samples < workers {
            return Err(EngineError::TooFewSamples { samples, workers });
        }
        if !given.is_empty() && given.len() != workers {
            return Err(EngineError::Batches { given: given.len(), workers });
        }
        if let Some(given) = given.iter().find(|size| !(**size >= 1.0 && size.fract() == 0.0)) {
            return Err(EngineError::BatchSize { given: *given });
        }
        let parts = if options.shared {
            vec![(0..samples as u32).collect(); workers]
        } else {
            options.partition.divide_labels(labels, workers, options.seed)
        };
        let size = |(rank, part): (usize, &Vec<u32>)| {
            given.get(rank).map_or(options.batch, |size| *size as usize).clamp(1, part.len())
        };
        let batches = parts.iter().enumerate().map(size).collect();
        let parts = parts.into_iter().map(Arc::from).collect();
        let (accumulate, shared) = (options.accumulate.max(1), options.shared);
        Ok(Work { parts, batches, accumulate, shared, samples })
    }

    /// The samples of a worker. One beyond those among whom they were divided shares them with another.
    pub(crate) fn part(&self, rank: usize) -> Arc<[u32]> {
        Arc::clone(&self.parts[rank % self.parts.len()])
    }

    /// Which of the random streams a worker draws from: all from the same one where they share the data.
    pub(crate) fn stream(&self, rank: usize) -> usize {
        if self.shared { 0 } else { rank }
    }

    /// Samples in a mini-batch of a worker.
    pub(crate) fn batch(&self, rank: usize) -> usize {
        self.batches[rank % self.batches.len()]
    }

    /// Samples that a gradient of each worker is averaged over.
    pub(crate) fn samples(&self) -> Vec<u32> {
        self.batches.iter().map(|batch| (batch * self.accumulate) as u32).collect()
    }

    /// After how many steps of all workers as many samples were drawn as there are.
    pub(crate) fn steps_per_epoch(&self) -> u64 {
        let drawn = self.batches.iter().sum::<usize>() * self.accumulate;
        self.samples.div_ceil(drawn) as u64
    }
}

/// Calls `of` with the number of every batch; several at a time, results in order.
pub(crate) fn each<S: BatchSource, T: Send>(
    batches: &S,
    steps: u64,
    of: impl Fn(&S::Batch) -> T + Sync + Send,
) -> Vec<T> {
    let make = |step| {
        let mut batch = S::Batch::default();
        batches.fill(step, &mut batch).unwrap_or_else(|error| panic!("{error}"));
        of(&batch)
    };
    (0..steps).into_par_iter().map(make).collect()
}

/// How many of `len` there are if `subset` are asked for.
pub(crate) fn limit(subset: usize, len: usize) -> usize {
    if subset == 0 { len } else { subset.min(len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(options: &WorkOptions) -> Result<Work, EngineError> {
        let labels: Vec<u32> = (0..100).map(|k| k % 10).collect();
        Work::new(&labels, options)
    }

    #[test]
    fn workers_of_different_speed_have_batches_of_different_size() {
        let batches = vec![4.0, 8.0, 1000.0];
        let options = WorkOptions { workers: 3, batches, accumulate: 2, ..WorkOptions::default() };
        let work = work(&options).expect("good");
        // More than a worker has is all that it has.
        assert_eq!(work.samples(), [8, 16, 68]);
        assert_eq!(work.steps_per_epoch(), 2);
    }

    #[test]
    fn subset_is_what_is_divided() {
        let options = WorkOptions { workers: 2, subset: 30, batch: 5, ..WorkOptions::default() };
        let work = work(&options).expect("good");
        assert_eq!(work.parts.iter().map(|part| part.len()).sum::<usize>(), 30);
        assert!(work.parts.iter().flat_map(|part| part.iter()).all(|sample| *sample < 30));
        assert_eq!(work.steps_per_epoch(), 3);
    }

    #[test]
    fn refusals_say_what_is_wrong() {
        let refusal = |options| work(&options).expect_err("refused").to_string();
        let options = WorkOptions { workers: 2, ..WorkOptions::default() };
        let batches = |sizes: &[f64]| WorkOptions { batches: sizes.to_vec(), ..options.clone() };
        assert!(refusal(batches(&[1.0])).contains("names 1 sizes for 2 workers"));
        assert!(refusal(batches(&[1.0, 0.5])).contains("holds 0.5"));
        assert!(refusal(batches(&[1.0, 0.0])).contains("holds 0;"));
        let many = WorkOptions { workers: 101, ..WorkOptions::default() };
        assert!(refusal(many).starts_with("100 training samples are too few for 101 workers"));
    }
}
