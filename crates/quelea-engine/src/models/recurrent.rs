//! A recurrent language model: layers of long short-term memory between an embedding and an affine map.

use super::language::SequenceModel;
use crate::ops::{Embedding, Linear, Lstm};
use crate::parameters::{Builder, Init, Parameters};
use crate::tape::{Tape, TapeValue};

/// How large a recurrent language model is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentSize {
    /// Different tokens: 256 for bytes.
    pub vocabulary: usize,
    /// Numbers of a token, and of the state of every layer.
    pub width: usize,
    /// Layers.
    pub layers: usize,
    /// Share of numbers that are dropped between layers in training.
    pub dropout: f64,
}

/// A recurrent language model.
pub struct Recurrent {
    size: RecurrentSize,
    tokens: Embedding,
    layers: Vec<Lstm>,
    output: Linear,
}

impl Recurrent {
    /// Declares a model of this size.
    pub fn new(size: RecurrentSize) -> (Recurrent, Parameters) {
        let mut builder = Builder::default();
        let RecurrentSize { vocabulary, width, layers, .. } = size;
        let start = Init::Normal { deviation: 1.0 / (width as f64).sqrt() };
        let tokens = builder.scope("tokens", |b| Embedding::new(b, vocabulary, width, start));
        let layers = (0..layers)
            .map(|number| builder.scope(format!("layers.{number}"), |b| Lstm::new(b, width, width)))
            .collect();
        let output =
            builder.scope("output", |b| Linear::new(b, width, vocabulary, Init::he(width)));
        (Recurrent { size, tokens, layers, output }, builder.finish())
    }
}

impl SequenceModel for Recurrent {
    fn scores(&self, tape: &mut Tape<'_>, tokens: &[u32], length: usize) -> TapeValue {
        let RecurrentSize { width, dropout, .. } = self.size;
        let x = tape.embed(tokens, &self.tokens, 1.0);
        let mut x = tape.reshape(&x, &[tokens.len() / length, length, width]);
        for layer in &self.layers {
            x = tape.dropout(&x, dropout);
            x = tape.lstm(&x, layer);
        }
        let x = tape.dropout(&x, dropout);
        let rows = tape.reshape(&x, &[tokens.len(), width]);
        tape.linear(&rows, &self.output)
    }
}
