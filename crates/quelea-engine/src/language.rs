//! Predicting the next byte of a text: a [`Problem`] of the core.

use std::sync::Arc;

use quelea_core::layout::Tensor;
use quelea_core::problems::{Evaluation, GradientSource, Problem};
use quelea_core::random::Rng;
use quelea_data::loader::{Loader, LoaderPool};
use quelea_data::text::{PlainText, WindowBatch, WindowBatches};

use crate::error::EngineError;
use crate::flat::FlatVectors;
use crate::learner::{Learn, Learner};
use crate::models::{Language, LanguageSize, Recurrent, RecurrentSize, SequenceModel};
use crate::ops::loss::{Scored, score, score_with_gradient};
use crate::parameters::Parameters;
use crate::tape::{PassMode, Tape, TapeValue};
use crate::work::{Work, WorkOptions, each, limit};

/// Windows of one forward pass that is not trained on.
const EVALUATION_BATCH: usize = 16;

/// A language model of a text. Every worker draws windows from the whole text.
pub struct NextByte {
    network: Arc<Network>,
    text: PlainText,
    work: Work,
    pool: Arc<LoaderPool>,
    /// Windows that the model is measured on.
    test: usize,
    seed: u64,
}

struct Network {
    network: Box<dyn SequenceModel>,
    parameters: Parameters,
    context: usize,
}

impl NextByte {
    /// A model of this size, which must be for bytes.
    pub fn new(
        size: LanguageSize,
        text: PlainText,
        options: &WorkOptions,
    ) -> Result<NextByte, EngineError> {
        size.check()?;
        let (network, parameters) = Language::new(size);
        NextByte::of(
            Network { network: Box::new(network), parameters, context: size.context },
            text,
            options,
        )
    }

    /// A recurrent model of this size, which must be for bytes, on sequences of `context`.
    pub fn recurrent(
        size: RecurrentSize,
        context: usize,
        text: PlainText,
        options: &WorkOptions,
    ) -> Result<NextByte, EngineError> {
        let (network, parameters) = Recurrent::new(size);
        NextByte::of(Network { network: Box::new(network), parameters, context }, text, options)
    }

    fn of(
        network: Network,
        text: PlainText,
        options: &WorkOptions,
    ) -> Result<NextByte, EngineError> {
        let context = network.context;
        let shortest = text.train.len().min(text.validation.len());
        if shortest <= context {
            return Err(EngineError::Model(format!(
                "`context` = {context} does not fit into a text with {shortest} bytes held out"
            )));
        }
        let windows = (text.train.len() - 1) / context;
        let work = Work::new(&vec![0; windows], options)?;
        let test = limit(options.test_subset, (text.validation.len() - 1) / context);
        let network = Arc::new(network);
        Ok(NextByte { network, text, work, pool: LoaderPool::new(1), test, seed: options.seed })
    }

    /// After how many steps of all workers as many bytes were drawn as there are.
    pub fn steps_per_epoch(&self) -> u64 {
        self.work.steps_per_epoch()
    }
}

impl Problem for NextByte {
    fn dimensions(&self) -> usize {
        self.network.parameters.len()
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.network.parameters.tensors()
    }

    fn initial(&self) -> Vec<f32> {
        self.network.parameters.initial(self.seed)
    }

    fn source(&self, rank: usize) -> Box<dyn GradientSource> {
        let (text, context) = (Arc::clone(&self.text.train), self.network.context);
        let batch = self.work.batch(rank);
        let windows = WindowBatches::shuffled(text, context, batch, self.seed, rank);
        let windows = windows.expect("the text is longer than a window");
        let loader = Loader::new(&self.pool, windows, 0);
        Box::new(Learner::new(&self.network, loader, &self.work, self.seed, rank))
    }

    fn samples(&self) -> Vec<u32> {
        self.work.samples()
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        let (text, context) = (Arc::clone(&self.text.validation), self.network.context);
        let size = EVALUATION_BATCH.min(self.test);
        let windows = WindowBatches::in_turn(text, context, size);
        let windows = windows.expect("the text is longer than a window");
        let steps = (self.test / size) as u64;
        let scored = each(&windows, steps, |batch| {
            let mut tape = Tape::new(&self.network.parameters, params, PassMode::Evaluate);
            let (scores, goal) = self.network.scores(&mut tape, batch);
            score(&scores, &goal, 0.0)
        });
        Scored::sum(&scored).evaluation()
    }
}

impl Network {
    /// The scores of every next byte, and which it is.
    fn scores(&self, tape: &mut Tape<'_>, batch: &WindowBatch) -> (TapeValue, Vec<u32>) {
        let windows = || batch.tokens.chunks_exact(self.context + 1);
        let given: Vec<u32> =
            windows().flat_map(|window| &window[..self.context]).copied().collect();
        let goal = windows().flat_map(|window| &window[1..]).copied().collect();
        (self.network.scores(tape, &given, self.context), goal)
    }
}

impl Learn<WindowBatch> for Network {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn learn(
        &self,
        batch: &WindowBatch,
        share: f32,
        rng: Rng,
        vectors: &mut dyn FlatVectors,
    ) -> f64 {
        let mut tape =
            Tape::new(self.parameters(), vectors.params(), PassMode::Train).with_rng(rng);
        let (scores, goal) = self.scores(&mut tape, batch);
        let divisor = goal.len() as f32 / share;
        let (scored, seed) = score_with_gradient(&scores, &goal, 0.0, divisor);
        tape.finish().backward(self.parameters(), vectors, &scores, seed);
        scored.loss / goal.len() as f64
    }
}
