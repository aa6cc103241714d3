//! Classifying images: a [`Problem`] of the core.

use std::sync::Arc;

use quelea_core::layout::Tensor;
use quelea_core::problems::{Evaluation, GradientSource, Problem};
use quelea_core::random::Rng;
use quelea_data::augment::{Augmentation, ImageBatch, ImageBatches};
use quelea_data::images::{FlippedLabels, ImageShape, Images, Split};
use quelea_data::loader::{Loader, LoaderPool};

use crate::error::EngineError;
use crate::flat::FlatVectors;
use crate::learner::{Learn, Learner};
use crate::models::ImageModel;
use crate::ops::loss::{Scored, score, score_with_gradient};
use crate::parameters::Parameters;
use crate::tape::{PassMode, Statistics, Tape, TapeValue};
use crate::work::{Work, WorkOptions, each, limit};

/// Images of one forward pass that is not trained on.
const EVALUATION_BATCH: usize = 128;
/// Batches of training images that statistics are measured over.
const CALIBRATION_BATCHES: usize = 8;
/// Batches smaller than this are made faster than another thread wakes up.
const WORTH_A_THREAD: usize = 20_000;

/// Classification of images that are divided among workers.
pub struct Classify {
    network: Arc<Network>,
    data: Split,
    work: Work,
    augmentation: Augmentation,
    pool: Arc<LoaderPool>,
    test: Arc<[u32]>,
    calibration: Arc<[u32]>,
    seed: u64,
}

/// A model with the size of its images.
struct Network {
    model: ImageModel,
    shape: ImageShape,
}

impl Classify {
    /// Divides the training images among the workers.
    pub fn new(
        model: ImageModel,
        data: Split,
        augmentation: Augmentation,
        options: &WorkOptions,
    ) -> Result<Classify, EngineError> {
        let work = Work::new(&data.train.labels(), options)?;
        let test = limit(options.test_subset, data.test.len());
        if test == 0 {
            return Err(EngineError::NothingHeldOut);
        }
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let threads = if data.train.is_decoded_late() { cores } else { 1 };
        let train = limit(options.subset, data.train.len());
        Ok(Classify {
            calibration: calibration(train, options.seed),
            network: Arc::new(Network { model, shape: data.train.shape() }),
            data,
            work,
            augmentation,
            pool: LoaderPool::new(threads),
            test: (0..test as u32).collect(),
            seed: options.seed,
        })
    }

    /// After how many steps of all workers as many samples were drawn as there are.
    pub fn steps_per_epoch(&self) -> u64 {
        self.work.steps_per_epoch()
    }

    /// The gradient source of worker `rank` on `images`.
    fn source_of(&self, rank: usize, images: Arc<dyn Images>) -> Box<dyn GradientSource> {
        let (part, batch) = (self.work.part(rank), self.work.batch(rank));
        let shape = images.shape();
        // Which batch is next is known only when it is handed out, where workers share the data.
        let makes_ahead = batch * shape.len() >= WORTH_A_THREAD && !self.work.shared;
        let ahead = if makes_ahead { 2 } else { 0 };
        let stream = self.work.stream(rank);
        let batches = ImageBatches::shuffled(images, part, batch, self.seed, stream);
        let batches = batches.varied(self.augmentation);
        let loader = Loader::new(&self.pool, batches, ahead);
        Box::new(Learner::new(&self.network, loader, &self.work, self.seed, rank))
    }

    /// Means and variances of the model's batch normalisations over some of the training images.
    fn statistics(&self, params: &[f32]) -> Statistics {
        if self.network.model.parameters.statistics().is_empty() {
            return Statistics::default();
        }
        let part = Arc::clone(&self.calibration);
        let batches = each_batch(&self.data.train, part, |images, _| {
            let mut tape = Tape::new(&self.network.model.parameters, params, PassMode::Calibrate);
            self.network.model.network.scores(&mut tape, images);
            tape.into_statistics()
        });
        Statistics::mean(&batches)
    }
}

/// The images that statistics are measured over: whole batches if there are enough images.
fn calibration(train: usize, seed: u64) -> Arc<[u32]> {
    let mut order: Vec<u32> = (0..train as u32).collect();
    Rng::new(seed, "calibration", 0).shuffle(&mut order);
    let whole = train / EVALUATION_BATCH * EVALUATION_BATCH;
    order.truncate(
        whole.min(CALIBRATION_BATCHES * EVALUATION_BATCH).max(train.min(EVALUATION_BATCH)),
    );
    order.into()
}

/// Calls `of` with every batch of the images `part`; several at a time, results in order.
fn each_batch<T: Send>(
    images: &Arc<dyn Images>,
    part: Arc<[u32]>,
    of: impl Fn(TapeValue, &[u32]) -> T + Sync + Send,
) -> Vec<T> {
    let shape = images.shape();
    let batches = ImageBatches::in_turn(Arc::clone(images), part, EVALUATION_BATCH);
    each(&batches, batches.steps_per_epoch(), |batch| of(input(batch, shape), &batch.labels))
}

fn input(batch: &ImageBatch, ImageShape { channels, height, width }: ImageShape) -> TapeValue {
    TapeValue::constant(batch.inputs.clone(), &[batch.labels.len(), channels, height, width])
}

impl Problem for Classify {
    fn dimensions(&self) -> usize {
        self.network.model.parameters.len()
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.network.model.parameters.tensors()
    }

    fn initial(&self) -> Vec<f32> {
        self.network.model.parameters.initial(self.seed)
    }

    fn shares_data(&self) -> bool {
        self.work.shared
    }

    fn source(&self, rank: usize) -> Box<dyn GradientSource> {
        self.source_of(rank, Arc::clone(&self.data.train))
    }

    fn flipped_source(&self, rank: usize) -> Option<Box<dyn GradientSource>> {
        Some(self.source_of(rank, Arc::new(FlippedLabels::new(Arc::clone(&self.data.train)))))
    }

    fn samples(&self) -> Vec<u32> {
        self.work.samples()
    }

    fn buffers(&self, params: &[f32]) -> Vec<(Tensor, Vec<f32>)> {
        let names = self.network.model.parameters.statistics().iter();
        let moments = self.statistics(params).moments;
        let named = |((scope, channels), (means, variances)): (&(String, usize), _)| {
            let tensor = |name| Tensor { name: format!("{scope}.{name}"), shape: vec![*channels] };
            [(tensor("running_mean"), means), (tensor("running_var"), variances)]
        };
        names.zip(moments).flat_map(named).collect()
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        let statistics = self.statistics(params);
        let scored = each_batch(&self.data.test, Arc::clone(&self.test), |images, labels| {
            let tape = Tape::new(&self.network.model.parameters, params, PassMode::Evaluate);
            let mut tape = tape.with_statistics(&statistics);
            score(&self.network.model.network.scores(&mut tape, images), labels, 0.0)
        });
        Scored::sum(&scored).evaluation()
    }
}

impl Learn<ImageBatch> for Network {
    fn parameters(&self) -> &Parameters {
        &self.model.parameters
    }

    fn learn(
        &self,
        batch: &ImageBatch,
        share: f32,
        rng: Rng,
        vectors: &mut dyn FlatVectors,
    ) -> f64 {
        let mut tape =
            Tape::new(self.parameters(), vectors.params(), PassMode::Train).with_rng(rng);
        let count = batch.labels.len() as f32;
        let scores = self.model.network.scores(&mut tape, input(batch, self.shape));
        let (scored, seed) = score_with_gradient(&scores, &batch.labels, 0.0, count / share);
        tape.finish().backward(self.parameters(), vectors, &scores, seed);
        scored.loss / f64::from(count)
    }
}
