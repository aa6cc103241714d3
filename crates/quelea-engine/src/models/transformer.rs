//! The encoder–decoder Transformer (Vaswani et al. 2017), normalised after each sum as there.

use super::attention::{MultiHead, sinusoids};
use crate::error::EngineError;
use crate::ops::{AttentionMask, Embedding, LayerNorm, Linear};
use crate::parameters::{Builder, Init, Parameters};
use crate::tape::{Tape, TapeValue};

/// How large a Transformer is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransformerSize {
    /// Different tokens, of both languages together.
    pub vocabulary: usize,
    /// Numbers of a token.
    pub width: usize,
    /// Layers of the encoder, and as many of the decoder.
    pub layers: usize,
    /// Heads of every attention; `width` is a multiple of it.
    pub heads: usize,
    /// Neurons of the hidden layers.
    pub inner: usize,
    /// Share of numbers that are dropped in training.
    pub dropout: f64,
    /// Whether source, target and output have one embedding.
    pub shared: bool,
}

impl TransformerSize {
    /// Refuses what does not add up.
    pub fn check(&self) -> Result<(), EngineError> {
        check_heads(self.width, self.heads)
    }
}

pub(super) fn check_heads(width: usize, heads: usize) -> Result<(), EngineError> {
    if width.is_multiple_of(2 * heads) {
        return Ok(());
    }
    Err(EngineError::Model(format!(
        "`width` = {width} is not a multiple of twice `heads` = {heads}"
    )))
}

/// Sentences, padded to one length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SentenceBatch {
    /// Sentence after sentence.
    pub tokens: Vec<u32>,
    /// How many tokens of each are real.
    pub lengths: Vec<usize>,
}

impl SentenceBatch {
    /// Pads `sentences` with `padding`.
    pub fn pad(sentences: &[&[u32]], padding: u32) -> SentenceBatch {
        let longest = sentences.iter().map(|sentence| sentence.len()).max().unwrap_or(0);
        let mut tokens = Vec::with_capacity(longest * sentences.len());
        for sentence in sentences {
            tokens.extend_from_slice(sentence);
            tokens.resize(tokens.len() + longest - sentence.len(), padding);
        }
        let lengths = sentences.iter().map(|sentence| sentence.len()).collect();
        SentenceBatch { tokens, lengths }
    }

    fn axes(&self, width: usize) -> [usize; 3] {
        [self.lengths.len(), self.tokens.len() / self.lengths.len(), width]
    }
}

struct FeedForward {
    inner: Linear,
    outer: Linear,
}

struct EncoderLayer {
    attention: MultiHead,
    feed: FeedForward,
    norms: [LayerNorm; 2],
}

struct DecoderLayer {
    own: MultiHead,
    across: MultiHead,
    feed: FeedForward,
    norms: [LayerNorm; 3],
}

/// A Transformer.
pub struct Transformer {
    size: TransformerSize,
    source: Embedding,
    target: Embedding,
    encoder: Vec<EncoderLayer>,
    decoder: Vec<DecoderLayer>,
    output: Linear,
}

impl Transformer {
    /// Declares a Transformer of this size.
    pub fn new(size: TransformerSize) -> (Transformer, Parameters) {
        let mut builder = Builder::default();
        let b = &mut builder;
        let TransformerSize { vocabulary, width, .. } = size;
        // Embeddings are multiplied by √width.
        let init = Init::Normal { deviation: (width as f64).powf(-0.5) };
        let embedding = |b: &mut Builder| Embedding::new(b, vocabulary, width, init);
        let source = b.scope("embedding", embedding);
        let target = if size.shared { source } else { b.scope("target_embedding", embedding) };
        let encoder = (0..size.layers)
            .map(|layer| b.scope(format!("encoder.{layer}"), |b| encoder_layer(b, &size)));
        let encoder = encoder.collect();
        let decoder = (0..size.layers)
            .map(|layer| b.scope(format!("decoder.{layer}"), |b| decoder_layer(b, &size)));
        let decoder = decoder.collect();
        let output = if size.shared {
            Linear::shared(source.table, width, vocabulary)
        } else {
            let init = Init::glorot(width, vocabulary);
            b.scope("output", |b| Linear::new(b, width, vocabulary, init))
        };
        (Transformer { size, source, target, encoder, decoder, output }, builder.finish())
    }

    /// What the decoder looks at: `[batch, length, width]`.
    pub fn encode(&self, tape: &mut Tape<'_>, source: &SentenceBatch) -> TapeValue {
        let mask = AttentionMask { causal: false, lengths: source.lengths.clone() };
        let mut x = self.embed(tape, source, &self.source);
        for layer in &self.encoder {
            let found = layer.attention.apply(tape, &x, &x, &mask);
            x = self.join(tape, &x, &found, &layer.norms[0]);
            let fed = self.feed(tape, &x, &layer.feed);
            x = self.join(tape, &x, &fed, &layer.norms[1]);
        }
        x
    }

    /// Scores of the token after each of `target`: `[batch · length, vocabulary]`. `memory` is
    /// what [`Transformer::encode`] made of `source`.
    pub fn decode(
        &self,
        tape: &mut Tape<'_>,
        memory: &TapeValue,
        source: &SentenceBatch,
        target: &SentenceBatch,
    ) -> TapeValue {
        let earlier = AttentionMask { causal: true, lengths: Vec::new() };
        let real = AttentionMask { causal: false, lengths: source.lengths.clone() };
        let mut x = self.embed(tape, target, &self.target);
        for layer in &self.decoder {
            let found = layer.own.apply(tape, &x, &x, &earlier);
            x = self.join(tape, &x, &found, &layer.norms[0]);
            let found = layer.across.apply(tape, &x, memory, &real);
            x = self.join(tape, &x, &found, &layer.norms[1]);
            let fed = self.feed(tape, &x, &layer.feed);
            x = self.join(tape, &x, &fed, &layer.norms[2]);
        }
        let rows = tape.reshape(&x, &[target.tokens.len(), self.size.width]);
        tape.linear(&rows, &self.output)
    }

    fn embed(
        &self,
        tape: &mut Tape<'_>,
        sentences: &SentenceBatch,
        table: &Embedding,
    ) -> TapeValue {
        let axes = sentences.axes(self.size.width);
        let factor = (self.size.width as f32).sqrt();
        let x = tape.embed(&sentences.tokens, table, factor);
        let x = tape.reshape(&x, &axes);
        let x = tape.add_constant(&x, &sinusoids(axes[1], axes[2]));
        tape.dropout(&x, self.size.dropout)
    }

    fn feed(&self, tape: &mut Tape<'_>, x: &TapeValue, feed: &FeedForward) -> TapeValue {
        let inner = tape.linear(x, &feed.inner);
        let inner = tape.relu(inner);
        tape.linear(&inner, &feed.outer)
    }

    /// `norm(x + dropout(y))`.
    fn join(
        &self,
        tape: &mut Tape<'_>,
        x: &TapeValue,
        y: &TapeValue,
        norm: &LayerNorm,
    ) -> TapeValue {
        let y = tape.dropout(y, self.size.dropout);
        let sum = tape.add(x, &y);
        tape.layer_norm(&sum, norm)
    }
}

fn multi_head(builder: &mut Builder, name: &str, size: &TransformerSize) -> MultiHead {
    let (width, heads) = (size.width, size.heads);
    builder.scope(name, |b| MultiHead::new(b, width, heads, |_| Init::glorot(width, width)))
}

fn feed_forward(builder: &mut Builder, size: &TransformerSize) -> FeedForward {
    let (width, inner) = (size.width, size.inner);
    let init = Init::glorot(width, inner);
    FeedForward {
        inner: builder.scope("inner", |b| Linear::new(b, width, inner, init)),
        outer: builder.scope("outer", |b| Linear::new(b, inner, width, init)),
    }
}

fn norm(builder: &mut Builder, number: usize, width: usize) -> LayerNorm {
    builder.scope(format!("norm{number}"), |b| LayerNorm::new(b, width))
}

fn encoder_layer(b: &mut Builder, size: &TransformerSize) -> EncoderLayer {
    let attention = multi_head(b, "attention", size);
    let first = norm(b, 1, size.width);
    let feed = feed_forward(b, size);
    EncoderLayer { attention, feed, norms: [first, norm(b, 2, size.width)] }
}

fn decoder_layer(b: &mut Builder, size: &TransformerSize) -> DecoderLayer {
    let own = multi_head(b, "attention", size);
    let first = norm(b, 1, size.width);
    let across = multi_head(b, "across", size);
    let second = norm(b, 2, size.width);
    let feed = feed_forward(b, size);
    DecoderLayer { own, across, feed, norms: [first, second, norm(b, 3, size.width)] }
}
