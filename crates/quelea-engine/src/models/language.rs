//! A decoder-only language model (Radford et al. 2019): normalised before each part, GELU,
//! learned positions, the output's map shared with the embedding.

use super::attention::MultiHead;
use super::transformer::check_heads;
use crate::error::EngineError;
use crate::ops::{AttentionMask, Embedding, LayerNorm, Linear};
use crate::parameters::{Builder, Init, Parameters};
use crate::tape::{Tape, TapeValue};

/// How large a language model is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LanguageSize {
    /// Different tokens: 256 for bytes.
    pub vocabulary: usize,
    /// Tokens that it sees at a time.
    pub context: usize,
    /// Numbers of a token.
    pub width: usize,
    /// Layers.
    pub layers: usize,
    /// Heads of every attention; `width` is a multiple of it.
    pub heads: usize,
    /// Share of numbers that are dropped in training.
    pub dropout: f64,
}

impl LanguageSize {
    /// Refuses what does not add up.
    pub fn check(&self) -> Result<(), EngineError> {
        check_heads(self.width, self.heads)
    }
}

/// A network that gives every token after a given one a score.
pub trait SequenceModel: Send + Sync {
    /// Scores of the token after each of `tokens`, which are sequences of `length`:
    /// `[batch · length, vocabulary]`.
    fn scores(&self, tape: &mut Tape<'_>, tokens: &[u32], length: usize) -> TapeValue;
}

struct Layer {
    norms: [LayerNorm; 2],
    attention: MultiHead,
    inner: Linear,
    outer: Linear,
}

/// A language model.
pub struct Language {
    size: LanguageSize,
    tokens: Embedding,
    positions: Embedding,
    layers: Vec<Layer>,
    norm: LayerNorm,
}

/// As in GPT-2.
const START: Init = Init::Normal { deviation: 0.02 };

impl Language {
    /// Declares a model of this size.
    pub fn new(size: LanguageSize) -> (Language, Parameters) {
        let mut builder = Builder::default();
        let b = &mut builder;
        let width = size.width;
        let tokens = b.scope("tokens", |b| Embedding::new(b, size.vocabulary, width, START));
        let positions = b.scope("positions", |b| Embedding::new(b, size.context, width, START));
        let layers: Vec<Layer> = (0..size.layers)
            .map(|number| b.scope(format!("layers.{number}"), |b| layer(b, &size)))
            .collect();
        let norm = b.scope("norm", |b| LayerNorm::new(b, width));
        (Language { size, tokens, positions, layers, norm }, builder.finish())
    }
}

impl SequenceModel for Language {
    fn scores(&self, tape: &mut Tape<'_>, tokens: &[u32], length: usize) -> TapeValue {
        let LanguageSize { vocabulary, width, dropout, .. } = self.size;
        let mask = AttentionMask { causal: true, lengths: Vec::new() };
        let places: Vec<u32> = (0..length as u32).cycle().take(tokens.len()).collect();
        let x = tape.embed(tokens, &self.tokens, 1.0);
        let positions = tape.embed(&places, &self.positions, 1.0);
        let x = tape.add(&x, &positions);
        let x = tape.reshape(&x, &[tokens.len() / length, length, width]);
        let mut x = tape.dropout(&x, dropout);
        for layer in &self.layers {
            let normal = tape.layer_norm(&x, &layer.norms[0]);
            let found = layer.attention.apply(tape, &normal, &normal, &mask);
            let found = tape.dropout(&found, dropout);
            x = tape.add(&x, &found);
            let normal = tape.layer_norm(&x, &layer.norms[1]);
            let inner = tape.linear(&normal, &layer.inner);
            let inner = tape.gelu(&inner);
            let outer = tape.linear(&inner, &layer.outer);
            let outer = tape.dropout(&outer, dropout);
            x = tape.add(&x, &outer);
        }
        let x = tape.layer_norm(&x, &self.norm);
        let rows = tape.reshape(&x, &[tokens.len(), width]);
        tape.linear(&rows, &Linear::shared(self.tokens.table, width, vocabulary))
    }
}

fn layer(b: &mut Builder, size: &LanguageSize) -> Layer {
    let (width, heads) = (size.width, size.heads);
    // What is added to the sum starts smaller, so that the sum does not grow with the layers.
    let smaller = Init::Normal { deviation: 0.02 / (2.0 * size.layers as f64).sqrt() };
    let first = b.scope("norm1", |b| LayerNorm::new(b, width));
    let start = |last| if last { smaller } else { START };
    let attention = b.scope("attention", |b| MultiHead::new(b, width, heads, start));
    let second = b.scope("norm2", |b| LayerNorm::new(b, width));
    Layer {
        norms: [first, second],
        attention,
        inner: b.scope("inner", |b| Linear::new(b, width, 4 * width, START)),
        outer: b.scope("outer", |b| Linear::new(b, 4 * width, width, smaller)),
    }
}
