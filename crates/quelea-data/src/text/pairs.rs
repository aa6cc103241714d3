//! Sentences and their translations, in batches of about equal length.

use std::path::Path;
use std::sync::Arc;

use quelea_core::random::Rng;

use super::{BEGIN, END, PAD, Vocabulary, lines};
use crate::error::DataError;
use crate::files;
use crate::loader::{BatchSource, Effort};
use crate::order::{Epochs, SampleOrder};

/// Sentences of one language, and line by line those of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentencePairs {
    /// To be translated.
    pub sources: Vec<String>,
    /// The translations.
    pub targets: Vec<String>,
}

impl SentencePairs {
    /// Reads `PART.FROM` and `PART.TO` of a folder, plain or packed: `train.en` and `train.de`.
    pub fn read(
        folder: &Path,
        part: &str,
        from: &str,
        to: &str,
    ) -> Result<SentencePairs, DataError> {
        let path_of = |language| files::require(folder, &format!("{part}.{language}"));
        let (source_path, target_path) = (path_of(from)?, path_of(to)?);
        let (sources, targets) = (lines(&source_path)?, lines(&target_path)?);
        if sources.len() != targets.len() {
            let (ours, theirs) = (targets.len(), sources.len());
            let problem = format!("has {ours} lines, but {} has {theirs}", source_path.display());
            return Err(DataError::damaged(&target_path, problem));
        }
        Ok(SentencePairs { sources, targets })
    }
}

/// Encoded pairs. One copy serves all workers of a process.
#[derive(Clone, Debug)]
pub struct Corpus {
    sources: Sentences,
    targets: Sentences,
}

impl Corpus {
    /// Encodes pairs; of longer sentences only the first `length_max` tokens are kept, with their
    /// end marked ([`BEGIN`] and [`END`] count).
    pub fn new(pairs: &SentencePairs, vocabulary: &Vocabulary, length_max: usize) -> Corpus {
        assert!(length_max > 2, "room for a word between begin and end");
        let targets = |mut tokens: Vec<u32>| {
            tokens.insert(0, BEGIN);
            ended(tokens, length_max)
        };
        Corpus {
            sources: Sentences::new(vocabulary.encode_all(&pairs.sources), |tokens| {
                ended(tokens, length_max)
            }),
            targets: Sentences::new(vocabulary.encode_all(&pairs.targets), targets),
        }
    }

    /// How many pairs there are.
    pub fn len(&self) -> usize {
        self.sources.starts.len() - 1
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tokens of a sentence, ending with [`END`].
    pub fn source(&self, index: usize) -> &[u32] {
        self.sources.at(index)
    }

    /// The tokens of its translation, from [`BEGIN`] to [`END`].
    pub fn target(&self, index: usize) -> &[u32] {
        self.targets.at(index)
    }
}

fn ended(mut tokens: Vec<u32>, length_max: usize) -> Vec<u32> {
    tokens.truncate(length_max - 1);
    tokens.push(END);
    tokens
}

/// Sentences one after the other in one vector.
#[derive(Clone, Debug)]
struct Sentences {
    tokens: Vec<u32>,
    starts: Vec<usize>,
}

impl Sentences {
    fn new(all: Vec<Vec<u32>>, finish: impl Fn(Vec<u32>) -> Vec<u32>) -> Sentences {
        let mut sentences = Sentences { tokens: Vec::new(), starts: vec![0] };
        for tokens in all {
            sentences.tokens.extend(finish(tokens));
            sentences.starts.push(sentences.tokens.len());
        }
        sentences
    }

    fn at(&self, index: usize) -> &[u32] {
        &self.tokens[self.starts[index]..self.starts[index + 1]]
    }
}

/// Pairs of about equal length, padded to the longest of each side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairBatch {
    /// How many pairs.
    pub count: usize,
    /// Tokens of the longest source.
    pub source_len: usize,
    /// Tokens of the longest target.
    pub target_len: usize,
    /// `count` rows of `source_len`.
    pub sources: Vec<u32>,
    /// `count` rows of `target_len`, each with [`BEGIN`] first.
    pub targets: Vec<u32>,
    /// Which pairs of the corpus they are.
    pub samples: Vec<u32>,
}

/// The batches of one worker: a [`BatchSource`] for a [`crate::loader::Loader`].
#[derive(Debug)]
pub struct PairBatches {
    corpus: Arc<Corpus>,
    turn: Turn,
    batch: usize,
}

#[derive(Debug)]
enum Turn {
    Shuffled { order: SampleOrder, epochs: Epochs, seed: u64, stream: String },
    InTurn(Arc<[u32]>),
}

/// So many batches are sorted by length together: enough that a batch is even, few enough that
/// epochs differ.
const SORTED_TOGETHER: usize = 64;

impl PairBatches {
    /// Batches for training, a function of seed, epoch and rank. An epoch has only whole batches;
    /// which pairs are left out changes from epoch to epoch.
    pub fn shuffled(
        corpus: Arc<Corpus>,
        part: Arc<[u32]>,
        batch: usize,
        seed: u64,
        rank: usize,
    ) -> PairBatches {
        assert!(batch > 0, "a batch has at least one pair");
        let batch = batch.min(part.len());
        let (order, epochs) = (SampleOrder::new(part, seed, rank), Epochs::default());
        let turn = Turn::Shuffled { order, epochs, seed, stream: format!("lengths.{rank}") };
        PairBatches { corpus, turn, batch }
    }

    /// Batches for evaluation: the pairs `part` in their order, once.
    pub fn in_turn(corpus: Arc<Corpus>, part: Arc<[u32]>, batch: usize) -> PairBatches {
        assert!(batch > 0, "a batch has at least one pair");
        PairBatches { corpus, turn: Turn::InTurn(part), batch }
    }

    /// Steps of an epoch; for evaluation, the number of batches.
    pub fn steps_per_epoch(&self) -> u64 {
        match &self.turn {
            Turn::Shuffled { order, .. } => (order.epoch_len() / self.batch) as u64,
            Turn::InTurn(part) => part.len().div_ceil(self.batch) as u64,
        }
    }

    fn samples(&self, step: u64, out: &mut Vec<u32>) {
        out.clear();
        let steps = self.steps_per_epoch();
        match &self.turn {
            Turn::InTurn(part) => {
                let begin = (step.min(steps) as usize * self.batch).min(part.len());
                out.extend_from_slice(&part[begin..(begin + self.batch).min(part.len())]);
            }
            Turn::Shuffled { order, epochs, seed, stream } => {
                let epoch = step / steps;
                let order = epochs.of(epoch, || {
                    let rng = Rng::new(*seed, stream, epoch);
                    self.sorted_by_length(order.epoch(epoch), rng)
                });
                let begin = (step % steps) as usize * self.batch;
                out.extend_from_slice(&order[begin..begin + self.batch]);
            }
        }
    }

    /// Puts pairs of about equal length together and shuffles the batches.
    fn sorted_by_length(&self, mut order: Vec<u32>, mut rng: Rng) -> Vec<u32> {
        order.truncate(order.len() / self.batch * self.batch);
        for together in order.chunks_mut(self.batch * SORTED_TOGETHER) {
            together.sort_by_key(|sample| {
                let index = *sample as usize;
                (self.corpus.target(index).len(), self.corpus.source(index).len())
            });
        }
        let mut batches: Vec<&[u32]> = order.chunks_exact(self.batch).collect();
        rng.shuffle(&mut batches);
        batches.concat()
    }
}

impl BatchSource for PairBatches {
    type Batch = PairBatch;

    fn effort(&self) -> Effort {
        Effort::Little
    }

    fn fill(&self, step: u64, batch: &mut PairBatch) -> Result<(), DataError> {
        let mut samples = std::mem::take(&mut batch.samples);
        self.samples(step, &mut samples);
        batch.count = samples.len();
        let corpus = &*self.corpus;
        batch.source_len = pad(&mut batch.sources, &samples, |index| corpus.source(index));
        batch.target_len = pad(&mut batch.targets, &samples, |index| corpus.target(index));
        batch.samples = samples;
        Ok(())
    }
}

/// Writes sentences as rows of the length of the longest, and returns that.
fn pad<'a>(out: &mut Vec<u32>, samples: &[u32], at: impl Fn(usize) -> &'a [u32]) -> usize {
    let len = samples.iter().map(|sample| at(*sample as usize).len()).max().unwrap_or(0);
    out.clear();
    for sample in samples {
        let tokens = at(*sample as usize);
        out.extend_from_slice(tokens);
        out.resize(out.len() + len - tokens.len(), PAD);
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(count: usize) -> Arc<Corpus> {
        let sentence = |k: usize| "word ".repeat(1 + k * 7 % 23) + &k.to_string();
        let sources = (0..count).map(sentence).collect();
        let targets = (0..count).map(|k| sentence(k + 1)).collect();
        let pairs = SentencePairs { sources, targets };
        let vocabulary = Vocabulary::train(["word word word 1 2 3"], 270);
        Arc::new(Corpus::new(&pairs, &vocabulary, 64))
    }

    fn fill(batches: &PairBatches, step: u64) -> PairBatch {
        let mut batch = PairBatch { sources: vec![7; 1000], ..PairBatch::default() };
        batches.fill(step, &mut batch).expect("in memory");
        batch
    }

    #[test]
    fn rows_are_the_sentences_with_their_marks_and_padding() {
        let corpus = corpus(10);
        let batch = fill(&PairBatches::in_turn(Arc::clone(&corpus), (0..10).collect(), 4), 1);
        assert_eq!(batch.samples, [4, 5, 6, 7]);
        for (row, sample) in (0..4).zip(4..8) {
            let source = &batch.sources[row * batch.source_len..][..batch.source_len];
            let target = &batch.targets[row * batch.target_len..][..batch.target_len];
            let (expected, rest) = source.split_at(corpus.source(sample).len());
            assert_eq!((expected, expected.last()), (corpus.source(sample), Some(&END)));
            assert!(rest.iter().all(|token| *token == PAD));
            assert_eq!(
                (target[0], &target[..corpus.target(sample).len()]),
                (BEGIN, corpus.target(sample))
            );
        }
        assert_eq!(batch.sources.len(), 4 * batch.source_len);
    }

    #[test]
    fn an_epoch_holds_every_pair_once_in_batches_of_like_length() {
        let corpus = corpus(200);
        let batches = PairBatches::shuffled(Arc::clone(&corpus), (0..200).collect(), 10, 1, 0);
        let steps = batches.steps_per_epoch();
        let epoch: Vec<PairBatch> = (0..steps).map(|step| fill(&batches, step)).collect();
        let mut seen: Vec<u32> = epoch.iter().flat_map(|batch| batch.samples.clone()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..200).collect::<Vec<u32>>());
        let tokens: usize = (0..200).map(|index| corpus.target(index).len()).sum();
        let padded: usize = epoch.iter().map(|batch| batch.targets.len()).sum();
        assert!(padded < tokens * 12 / 10, "{padded} for {tokens} tokens");
        assert_ne!(fill(&batches, steps).samples, epoch[0].samples);
    }

    #[test]
    fn batches_depend_on_seed_rank_and_step_alone() {
        let corpus = corpus(57);
        let batches = |seed, rank| {
            PairBatches::shuffled(Arc::clone(&corpus), (0..57).collect(), 10, seed, rank)
        };
        let all: Vec<PairBatch> = (0..20).map(|step| fill(&batches(1, 0), step)).collect();
        let again = batches(1, 0);
        for step in [19, 4, 5, 0] {
            assert_eq!(fill(&again, step), all[step as usize]);
        }
        assert_ne!(fill(&batches(2, 0), 0), all[0]);
        assert_ne!(fill(&batches(1, 1), 0), all[0]);
    }

    #[test]
    fn long_sentences_are_cut_and_a_small_part_is_one_batch() {
        let pairs =
            SentencePairs { sources: vec!["a b c d e f".into()], targets: vec!["x".repeat(99)] };
        let corpus = Arc::new(Corpus::new(&pairs, &Vocabulary::train([], 0), 8));
        assert_eq!((corpus.source(0).len(), corpus.target(0).len()), (8, 8));
        assert_eq!((corpus.target(0)[0], corpus.target(0)[7]), (BEGIN, END));
        let batches = PairBatches::shuffled(corpus, [0].into(), 32, 1, 0);
        assert_eq!((batches.steps_per_epoch(), fill(&batches, 5).count), (1, 1));
    }
}
