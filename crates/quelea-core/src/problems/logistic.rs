//! Binary logistic regression: the mean of `ln(1 + exp(−y·(w·x + b)))` over a mini-batch, plus
//! `½·l2·|w|²`.
//!
//! The vector is the weights, then the bias if there is one. A worker walks through its own
//! samples epoch by epoch, in an order that is a function of (seed, epoch, rank); a mini-batch
//! may span two epochs, so that every one has `batch` samples.

use std::sync::Arc;

use super::dataset::{Dataset, Sample};
use super::partition::Partition;
use super::{ACCURACY, Computed, Evaluation, GradientSource, Problem};
use crate::node::loan::Loan;
use crate::random::Rng;

/// How logistic regression is done.
#[derive(Clone, Debug)]
pub struct LogisticOptions {
    /// How many workers there are.
    pub workers: usize,
    /// Samples in a mini-batch of one worker; 0 means all that it has, and so does more than it
    /// has.
    pub batch: usize,
    /// Who gets which samples.
    pub partition: Partition,
    /// All workers draw from all samples, in one order ([`Problem::shares_data`]).
    pub shared: bool,
    /// Whether there is a bias term.
    pub bias: bool,
    /// Strength of the quadratic penalty on the weights; the bias is free.
    pub l2: f64,
    /// Seeds partition and order.
    pub seed: u64,
}

impl Default for LogisticOptions {
    fn default() -> LogisticOptions {
        LogisticOptions {
            workers: 1,
            batch: 0,
            partition: Partition::Iid,
            shared: false,
            bias: true,
            l2: 0.0,
            seed: 0,
        }
    }
}

/// Why a problem was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LogisticError {
    /// A worker without samples has no gradient.
    #[error("{samples} training samples are too few for {workers} workers: each needs one")]
    TooFewSamples {
        /// Samples there are.
        samples: usize,
        /// Workers there are.
        workers: usize,
    },
    /// Nothing to learn.
    #[error("the samples have no features; lines read `label index:value index:value …`")]
    NoFeatures,
    /// Not a distribution.
    #[error("`concentration` = {given}: must be a number above 0")]
    Concentration {
        /// What was given.
        given: f64,
    },
    /// Not a penalty.
    #[error("`l2` = {given}: must be a number of at least 0")]
    Penalty {
        /// What was given.
        given: f64,
    },
}

/// Logistic regression over a data set that is divided among workers.
#[derive(Debug)]
pub struct Logistic {
    train: Arc<Dataset>,
    test: Option<Dataset>,
    model: Model,
    /// The samples of each worker.
    parts: Vec<Arc<[u32]>>,
    batch: usize,
    shared: bool,
    seed: u64,
}

impl Logistic {
    /// Divides `train` among the workers; accuracy is measured on `test` if it is given.
    pub fn new(
        train: Dataset,
        test: Option<Dataset>,
        options: &LogisticOptions,
    ) -> Result<Logistic, LogisticError> {
        let (samples, workers) = (train.len(), options.workers);
        assert!(workers > 0, "a run has at least one worker");
        if samples < workers {
            return Err(LogisticError::TooFewSamples { samples, workers });
        }
        match options.partition {
            Partition::Dirichlet { concentration: given }
                if !(given > 0.0 && given.is_finite()) =>
            {
                return Err(LogisticError::Concentration { given });
            }
            _ => {}
        }
        if !(options.l2 >= 0.0 && options.l2.is_finite()) {
            return Err(LogisticError::Penalty { given: options.l2 });
        }
        let features = train.features().max(test.as_ref().map_or(0, Dataset::features));
        if features == 0 {
            return Err(LogisticError::NoFeatures);
        }
        let parts = if options.shared {
            vec![(0..samples as u32).collect(); workers]
        } else {
            options.partition.divide(&train, workers, options.seed)
        };
        Ok(Logistic {
            model: Model { features, bias: options.bias, l2: options.l2 as f32 },
            parts: parts.into_iter().map(Arc::from).collect(),
            batch: options.batch,
            shared: options.shared,
            seed: options.seed,
            train: Arc::new(train),
            test,
        })
    }

    /// After how many steps of all workers as many samples were drawn as there are.
    pub fn steps_per_epoch(&self) -> u64 {
        match self.batch {
            0 => 1,
            batch => self.train.len().div_ceil(self.parts.len() * batch) as u64,
        }
    }

    /// How many samples each worker has.
    pub fn samples_per_worker(&self) -> Vec<usize> {
        self.parts.iter().map(|part| part.len()).collect()
    }

    /// The source of worker `rank`, with labels times `sign`.
    fn source_with(&self, rank: usize, sign: f32) -> Source {
        let part = Arc::clone(&self.parts[rank % self.parts.len()]);
        Source {
            train: Arc::clone(&self.train),
            model: self.model,
            batch: self.batch_of(part.len()),
            sign,
            order: Order {
                name: format!("order.{}", if self.shared { 0 } else { rank }),
                seed: self.seed,
                part,
                epoch: None,
                samples: Vec::new(),
            },
        }
    }

    /// Samples in a mini-batch of a worker that has `part` samples.
    fn batch_of(&self, part: usize) -> usize {
        if self.batch == 0 { part } else { self.batch.min(part) }
    }
}

impl Problem for Logistic {
    fn shares_data(&self) -> bool {
        self.shared
    }

    fn samples(&self) -> Vec<u32> {
        self.parts.iter().map(|part| self.batch_of(part.len()) as u32).collect()
    }

    fn dimensions(&self) -> usize {
        self.model.features + usize::from(self.model.bias)
    }

    fn initial(&self) -> Vec<f32> {
        vec![0.0; self.dimensions()]
    }

    fn source(&self, rank: usize) -> Box<dyn GradientSource> {
        Box::new(self.source_with(rank, 1.0))
    }

    fn flipped_source(&self, rank: usize) -> Option<Box<dyn GradientSource>> {
        Some(Box::new(self.source_with(rank, -1.0)))
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        let losses = self.train.samples().map(|sample| self.model.loss(params, sample));
        let loss = losses.sum::<f64>() / self.train.len() as f64 + self.model.penalty(params);
        let accuracy = self.test.as_ref().filter(|test| !test.is_empty()).map(|test| {
            let right = test.samples().filter(|sample| {
                (self.model.score(params, *sample) >= 0.0) == (sample.label > 0.0)
            });
            right.count() as f64 / test.len() as f64
        });
        Evaluation::of_loss(loss).with(ACCURACY, accuracy)
    }
}

/// The gradient source of one worker.
struct Source {
    train: Arc<Dataset>,
    model: Model,
    batch: usize,
    /// What labels are multiplied by: 1, or −1 where they are flipped.
    sign: f32,
    order: Order,
}

impl GradientSource for Source {
    fn gradient(&mut self, loan: &mut Loan, _ready: &mut dyn FnMut(usize)) -> Computed {
        let step = loan.batch();
        let (params, grad) = loan.vectors();
        let share = 1.0 / self.batch as f64;
        let mut loss = self.model.penalty(params);
        self.model.write_penalty_gradient(params, grad);
        for place in 0..self.batch {
            let index = self.draw(step, place);
            let sample = self.train.sample(index);
            let sample = Sample { label: self.sign * sample.label, ..sample };
            loss += share * self.model.loss_with_gradient(params, sample, share, grad);
        }
        Computed { loss: loss as f32, samples: self.batch as u32 }
    }

    fn operations(&self) -> u64 {
        let entries = self.train.entries() / self.train.len();
        (self.batch * (4 * entries + 40) + 2 * self.model.features) as u64
    }
}

impl Source {
    /// The sample at this place of the mini-batch of this step.
    fn draw(&mut self, step: u64, place: usize) -> usize {
        if self.batch == self.order.part.len() {
            // All of them, whatever the order.
            return self.order.part[place] as usize;
        }
        self.order.at(step * self.batch as u64 + place as u64)
    }
}

/// The endless sequence of a worker's samples: one epoch after the other, each in its own order.
struct Order {
    seed: u64,
    name: String,
    part: Arc<[u32]>,
    /// The epoch whose order is in `samples`.
    epoch: Option<u64>,
    samples: Vec<u32>,
}

impl Order {
    fn at(&mut self, position: u64) -> usize {
        let len = self.part.len() as u64;
        if self.epoch != Some(position / len) {
            self.samples.clear();
            self.samples.extend_from_slice(&self.part);
            Rng::new(self.seed, &self.name, position / len).shuffle(&mut self.samples);
            self.epoch = Some(position / len);
        }
        self.samples[(position % len) as usize] as usize
    }
}

/// The function itself.
#[derive(Clone, Copy, Debug)]
struct Model {
    features: usize,
    bias: bool,
    l2: f32,
}

impl Model {
    /// `w·x + b`.
    fn score(self, params: &[f32], sample: Sample<'_>) -> f64 {
        let entries = sample.indices.iter().zip(sample.values);
        let products = entries.map(|(k, x)| f64::from(params[*k as usize]) * f64::from(*x));
        let bias = if self.bias { f64::from(params[self.features]) } else { 0.0 };
        products.sum::<f64>() + bias
    }

    fn loss(self, params: &[f32], sample: Sample<'_>) -> f64 {
        loss_and_doubt(f64::from(sample.label) * self.score(params, sample)).0
    }

    /// Adds `share` of the sample's gradient to `grad` and returns the sample's loss.
    fn loss_with_gradient(
        self,
        params: &[f32],
        sample: Sample<'_>,
        share: f64,
        grad: &mut [f32],
    ) -> f64 {
        let label = f64::from(sample.label);
        let (loss, doubt) = loss_and_doubt(label * self.score(params, sample));
        let slope = (-label * share * doubt) as f32;
        for (k, x) in sample.indices.iter().zip(sample.values) {
            grad[*k as usize] += slope * x;
        }
        if self.bias {
            grad[self.features] += slope;
        }
        loss
    }

    fn penalty(self, params: &[f32]) -> f64 {
        if self.l2 == 0.0 {
            return 0.0;
        }
        0.5 * f64::from(self.l2) * crate::vector::sum_of_squares(&params[..self.features])
    }

    fn write_penalty_gradient(self, params: &[f32], grad: &mut [f32]) {
        if self.l2 == 0.0 {
            return grad.fill(0.0);
        }
        let (weights, bias) = grad.split_at_mut(self.features);
        crate::vector::scaled(self.l2, &params[..self.features], weights);
        bias.fill(0.0);
    }
}

/// `ln(1 + exp(−margin))` and `1 / (1 + exp(margin))`, without overflow.
fn loss_and_doubt(margin: f64) -> (f64, f64) {
    let small = (-margin.abs()).exp();
    let doubt = if margin > 0.0 { small / (1.0 + small) } else { 1.0 / (1.0 + small) };
    ((-margin).max(0.0) + small.ln_1p(), doubt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problems::gradient_at;
    use crate::vector::axpy;

    const WDBC: &[u8] = include_bytes!("../../../quelea-run/data/wdbc.libsvm");

    fn wdbc(options: &LogisticOptions) -> Logistic {
        let (train, test) = Dataset::parse(WDBC).expect("good text").hold_out(0.2, 1);
        Logistic::new(train, Some(test), options).expect("good options")
    }

    fn gradient(source: &mut dyn GradientSource, step: u64, params: &[f32]) -> (f32, Vec<f32>) {
        let (computed, grad) = gradient_at(source, step, params);
        (computed.loss, grad)
    }

    #[test]
    fn gradients_are_the_slopes_of_the_loss() {
        for (bias, l2) in [(false, 0.0), (true, 0.0), (true, 0.3)] {
            let problem = wdbc(&LogisticOptions { bias, l2, ..LogisticOptions::default() });
            let mut rng = Rng::new(1, "test", 0);
            let x: Vec<f32> =
                (0..problem.dimensions()).map(|_| 0.3 * rng.normal() as f32).collect();
            let (loss, grad) = gradient(&mut *problem.source(0), 0, &x);
            assert!((f64::from(loss) - problem.evaluate(&x).loss).abs() < 1e-6);
            for k in 0..x.len() {
                let at = |shift: f32| {
                    let mut x = x.clone();
                    x[k] += shift;
                    (f64::from(x[k]), problem.evaluate(&x).loss)
                };
                let ((left, low), (right, high)) = (at(-1e-2), at(1e-2));
                let slope = (high - low) / (right - left);
                assert!((f64::from(grad[k]) - slope).abs() < 1e-4, "{k}: {} {slope}", grad[k]);
            }
        }
    }

    #[test]
    fn full_batch_descent_on_the_embedded_set_predicts_what_it_has_not_seen() {
        let problem = wdbc(&LogisticOptions::default());
        let mut source = problem.source(0);
        let mut x = problem.initial();
        for step in 0..200 {
            let (_, grad) = gradient(&mut *source, step, &x);
            axpy(-0.5, &grad, &mut x);
        }
        let end = problem.evaluate(&x);
        assert!(end.loss < 0.1 && end.accuracy() > Some(0.95), "{end:?}");
    }

    #[test]
    fn an_epoch_draws_every_sample_once() {
        let text: String = (1..=7).map(|k| format!("{} {k}:1\n", k % 2)).collect();
        let train = Dataset::parse(text.as_bytes()).expect("good text");
        let options = LogisticOptions { batch: 3, bias: false, ..LogisticOptions::default() };
        let problem = Logistic::new(train, None, &options).expect("good options");
        assert_eq!(problem.steps_per_epoch(), 3);
        let mut source = problem.source(0);
        // At 0 every sample has slope ±½ in its own feature: seven batches of three are three epochs.
        let mut drawn = [0.0; 7];
        for step in 0..7 {
            let (_, grad) = gradient(&mut *source, step, &[0.0; 7]);
            for (drawn, grad) in drawn.iter_mut().zip(grad) {
                *drawn += (grad * 6.0).abs();
            }
        }
        assert!(drawn.iter().all(|drawn| (drawn - 3.0f32).abs() < 1e-5), "{drawn:?}");
    }

    #[test]
    fn workers_that_share_the_data_draw_every_sample_once_in_an_epoch_whoever_takes_which_batch() {
        let text: String = (1..=7).map(|k| format!("{} {k}:1\n", k % 2)).collect();
        let train = Dataset::parse(text.as_bytes()).expect("good text");
        let options = LogisticOptions {
            workers: 2,
            batch: 3,
            bias: false,
            shared: true,
            ..LogisticOptions::default()
        };
        let problem = Logistic::new(train, None, &options).expect("good options");
        assert!(problem.shares_data());
        let mut sources = [0, 1].map(|rank| problem.source(rank));
        let mut drawn = [0.0; 7];
        // Each takes steps of its own; which batch that is, is in the loan.
        for (step, unit) in [0, 3, 1, 2, 6, 4, 5].into_iter().enumerate() {
            let layout = std::sync::Arc::new(crate::layout::Layout::plain(7, 0));
            let mut loan = Loan::detached(vec![0.0; 7], layout, step as u64).of_unit(Some(unit));
            sources[step % 2].gradient(&mut loan, &mut |_| {});
            for (drawn, grad) in drawn.iter_mut().zip(loan.into_gradient()) {
                *drawn += (grad * 6.0).abs();
            }
        }
        assert!(drawn.iter().all(|drawn| (drawn - 3.0f32).abs() < 1e-5), "{drawn:?}");
    }

    #[test]
    fn a_gradient_depends_on_the_step_and_not_on_those_before() {
        let options = LogisticOptions { workers: 3, batch: 16, seed: 5, ..Default::default() };
        let problem = wdbc(&options);
        let x = vec![0.1; problem.dimensions()];
        let mut walked = problem.source(1);
        for step in 0..30 {
            gradient(&mut *walked, step, &x);
        }
        let again = gradient(&mut *walked, 30, &x);
        assert_eq!(again, gradient(&mut *problem.source(1), 30, &x));
        assert_ne!(again, gradient(&mut *problem.source(2), 30, &x));
        assert_ne!(again, gradient(&mut *problem.source(1), 31, &x));
        let reseeded = wdbc(&LogisticOptions { seed: 6, ..options });
        assert_ne!(again, gradient(&mut *reseeded.source(1), 30, &x));
    }

    #[test]
    fn a_batch_larger_than_the_part_is_the_whole_part() {
        let problem = wdbc(&LogisticOptions { workers: 50, batch: 64, ..Default::default() });
        let (computed, _) = gradient_at(&mut *problem.source(0), 0, &problem.initial());
        assert_eq!(computed.samples as usize, problem.samples_per_worker()[0]);
    }

    /// At zero every sample's gradient is −½·label·x, so that flipped labels turn the gradient around.
    #[test]
    fn a_source_with_flipped_labels_turns_the_gradient_at_zero_around() {
        let problem = wdbc(&LogisticOptions { workers: 4, batch: 16, ..Default::default() });
        let zero = vec![0.0; problem.dimensions()];
        let mut flipped = problem.flipped_source(1).expect("there are labels");
        let (loss, grad) = gradient(&mut *problem.source(1), 3, &zero);
        let (flipped_loss, flipped_grad) = gradient(&mut *flipped, 3, &zero);
        assert_eq!(loss, flipped_loss);
        assert!(grad.iter().zip(&flipped_grad).all(|(a, b)| *a == -*b));
    }

    #[test]
    fn huge_scores_stay_finite() {
        let problem = wdbc(&LogisticOptions::default());
        let x = vec![1e30; problem.dimensions()];
        let (loss, grad) = gradient(&mut *problem.source(0), 0, &x);
        assert!(loss.is_finite() && grad.iter().all(|grad| grad.is_finite()));
    }

    #[test]
    fn features_that_only_the_test_set_has_are_part_of_the_model() {
        let parse = |text: &[u8]| Dataset::parse(text).expect("good text");
        let (train, test) = (parse(b"1 1:1\n-1 2:1\n"), parse(b"1 5:1\n-1 1:1\n"));
        let problem = Logistic::new(train, Some(test), &LogisticOptions::default());
        let problem = problem.expect("good options");
        assert_eq!(problem.dimensions(), 6);
        assert_eq!(problem.evaluate(&[-1.0, 0.0, 0.0, 0.0, 1.0, 0.0]).accuracy(), Some(1.0));
    }

    #[test]
    fn impossible_options_are_refused_with_a_reason() {
        let refusal = |options: LogisticOptions| {
            let train = Dataset::parse(b"1 1:1\n-1 2:1\n").expect("good text");
            Logistic::new(train, None, &options).expect_err("refused").to_string()
        };
        let skewed = |concentration| Partition::Dirichlet { concentration };
        assert!(
            refusal(LogisticOptions { workers: 3, ..Default::default() })
                .contains("2 training samples are too few for 3 workers")
        );
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let options = LogisticOptions { partition: skewed(bad), ..Default::default() };
            assert!(refusal(options).contains("`concentration`"));
        }
        assert!(
            refusal(LogisticOptions { l2: -0.1, ..Default::default() }).contains("`l2` = -0.1")
        );
    }
}
