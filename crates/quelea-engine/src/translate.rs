//! Translating sentences: a [`Problem`] of the core.

use std::sync::Arc;

use quelea_core::layout::Tensor;
use quelea_core::problems::{Evaluation, GradientSource, Problem};
use quelea_core::random::Rng;
use quelea_data::bleu::bleu;
use quelea_data::loader::{Loader, LoaderPool};
use quelea_data::text::{
    BEGIN, Corpus, END, PAD, PairBatch, PairBatches, SentencePairs, Vocabulary,
};

use crate::error::EngineError;
use crate::flat::FlatVectors;
use crate::learner::{Learn, Learner};
use crate::models::{SentenceBatch, Transformer, TransformerSize};
use crate::ops::loss::{NO_TARGET, Scored, score, score_with_gradient};
use crate::parameters::Parameters;
use crate::tape::{PassMode, Tape, TapeValue};
use crate::work::{Work, WorkOptions, each, limit};

/// Sentences of one forward pass that is not trained on.
const EVALUATION_BATCH: usize = 32;

/// Sentences to learn from, others to measure with, and the vocabulary of both languages.
pub struct Translations {
    /// Encoded, to learn from.
    pub train: Corpus,
    /// To measure with.
    pub test: SentencePairs,
    /// What both were encoded with.
    pub vocabulary: Vocabulary,
}

/// How translation is learnt and measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TranslateOptions {
    /// Share of the goal that is spread over all tokens (label smoothing).
    pub smoothing: f64,
    /// Tokens of the longest sentence.
    pub length_max: usize,
    /// Sentences that are translated for BLEU; 0 means none.
    pub bleu: usize,
}

/// Translation by a Transformer.
pub struct Translate {
    network: Arc<Network>,
    train: Arc<Corpus>,
    test: Arc<Corpus>,
    references: Vec<String>,
    vocabulary: Vocabulary,
    work: Work,
    pool: Arc<LoaderPool>,
    options: TranslateOptions,
    seed: u64,
}

struct Network {
    network: Transformer,
    parameters: Parameters,
    smoothing: f32,
}

impl Translate {
    /// A Transformer of this size; `vocabulary` is that of the data.
    pub fn new(
        size: TransformerSize,
        data: Translations,
        options: TranslateOptions,
        work: &WorkOptions,
    ) -> Result<Translate, EngineError> {
        size.check()?;
        let seed = work.seed;
        let test = limit(work.test_subset, data.test.sources.len());
        if test == 0 {
            return Err(EngineError::NothingHeldOut);
        }
        let work = Work::new(&vec![0; data.train.len()], work)?;
        let SentencePairs { mut sources, mut targets } = data.test;
        sources.truncate(test);
        targets.truncate(test);
        let pairs = SentencePairs { sources, targets };
        let test = Corpus::new(&pairs, &data.vocabulary, options.length_max);
        let size = TransformerSize { vocabulary: data.vocabulary.size(), ..size };
        let (network, parameters) = Transformer::new(size);
        let smoothing = options.smoothing as f32;
        Ok(Translate {
            network: Arc::new(Network { network, parameters, smoothing }),
            train: Arc::new(data.train),
            test: Arc::new(test),
            references: pairs.targets,
            vocabulary: data.vocabulary,
            work,
            pool: LoaderPool::new(1),
            options,
            seed,
        })
    }

    /// After how many steps of all workers as many sentences were drawn as there are.
    pub fn steps_per_epoch(&self) -> u64 {
        self.work.steps_per_epoch()
    }

    fn batches(&self, sentences: usize) -> (PairBatches, u64) {
        let part: Arc<[u32]> = (0..sentences as u32).collect();
        let batches = PairBatches::in_turn(Arc::clone(&self.test), part, EVALUATION_BATCH);
        let steps = batches.steps_per_epoch();
        (batches, steps)
    }

    /// BLEU of greedy translations of the first sentences that are held out.
    fn bleu(&self, params: &[f32]) -> Option<f64> {
        let sentences = self.options.bleu.min(self.test.len());
        if sentences == 0 {
            return None;
        }
        let (batches, steps) = self.batches(sentences);
        let translations = each(&batches, steps, |batch| {
            let tokens = self.network.translate(params, batch, self.options.length_max);
            tokens.iter().map(|tokens| self.vocabulary.decode(tokens)).collect::<Vec<String>>()
        });
        let references = &self.references[..sentences];
        Some(bleu(&translations.concat(), &[references]).score)
    }
}

impl Problem for Translate {
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
        let (part, batch) = (self.work.part(rank), self.work.batch(rank));
        let corpus = Arc::clone(&self.train);
        let batches = PairBatches::shuffled(corpus, part, batch, self.seed, rank);
        let loader = Loader::new(&self.pool, batches, 0);
        Box::new(Learner::new(&self.network, loader, &self.work, self.seed, rank))
    }

    fn samples(&self) -> Vec<u32> {
        self.work.samples()
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        let (batches, steps) = self.batches(self.test.len());
        let scored = each(&batches, steps, |batch| {
            let mut tape = Tape::new(&self.network.parameters, params, PassMode::Evaluate);
            let (scores, goal) = self.network.scores(&mut tape, batch);
            score(&scores, &goal, 0.0)
        });
        Scored::sum(&scored).evaluation().with("bleu", self.bleu(params))
    }
}

fn sources(batch: &PairBatch) -> SentenceBatch {
    let rows = batch.sources.chunks_exact(batch.source_len);
    let lengths = rows.map(|row| row.iter().filter(|token| **token != PAD).count()).collect();
    SentenceBatch { tokens: batch.sources.clone(), lengths }
}

impl Network {
    /// The scores of every next token, and which it is.
    fn scores(&self, tape: &mut Tape<'_>, batch: &PairBatch) -> (TapeValue, Vec<u32>) {
        let rows = || batch.targets.chunks_exact(batch.target_len);
        let length = batch.target_len - 1;
        let given = rows().flat_map(|row| &row[..length]).copied().collect();
        let target = SentenceBatch { tokens: given, lengths: vec![length; batch.count] };
        let goal = rows().flat_map(|row| &row[1..]);
        let goal = goal.map(|token| if *token == PAD { NO_TARGET } else { *token }).collect();
        let source = sources(batch);
        let memory = self.network.encode(tape, &source);
        (self.network.decode(tape, &memory, &source, &target), goal)
    }

    /// Greedy translations: always the likeliest token, until [`END`].
    fn translate(&self, params: &[f32], batch: &PairBatch, length_max: usize) -> Vec<Vec<u32>> {
        let mut tape = Tape::new(&self.parameters, params, PassMode::Evaluate);
        let source = sources(batch);
        let memory = self.network.encode(&mut tape, &source);
        let mut found = vec![vec![BEGIN]; batch.count];
        for length in 1..length_max {
            if found.iter().all(|tokens| tokens.contains(&END)) {
                break;
            }
            let tokens = found.iter().flatten().copied().collect();
            let target = SentenceBatch { tokens, lengths: vec![length; batch.count] };
            let scores = self.network.decode(&mut tape, &memory, &source, &target);
            let classes = scores.shape()[1];
            let rows = scores.values().chunks_exact(classes);
            let last = rows.skip(length - 1).step_by(length);
            found.iter_mut().zip(last).for_each(|(tokens, row)| tokens.push(likeliest(row)));
        }
        found
    }
}

/// The first of the highest scores.
fn likeliest(scores: &[f32]) -> u32 {
    let mut best = 0;
    for (token, score) in scores.iter().enumerate() {
        if *score > scores[best] {
            best = token;
        }
    }
    best as u32
}

impl Learn<PairBatch> for Network {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn learn(&self, batch: &PairBatch, share: f32, rng: Rng, vectors: &mut dyn FlatVectors) -> f64 {
        let mut tape =
            Tape::new(self.parameters(), vectors.params(), PassMode::Train).with_rng(rng);
        let (scores, goal) = self.scores(&mut tape, batch);
        let count = goal.iter().filter(|token| **token != NO_TARGET).count().max(1);
        let divisor = count as f32 / share;
        let (scored, seed) = score_with_gradient(&scores, &goal, self.smoothing, divisor);
        tape.finish().backward(self.parameters(), vectors, &scores, seed);
        scored.loss / count as f64
    }
}
