//! Vectors for tokens.

use crate::parameters::{Builder, Init, Param};
use crate::tape::{Tape, TapeValue, tensor};

/// A table of vectors.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    /// `[tokens, width]`.
    pub table: Param,
    width: usize,
}

impl Embedding {
    /// Declares `weight` with this start.
    pub fn new(builder: &mut Builder, tokens: usize, width: usize, init: Init) -> Embedding {
        Embedding { table: builder.param("weight", &[tokens, width], init), width }
    }
}

impl Tape<'_> {
    /// The vectors of `tokens`, times `factor`: `[tokens, width]`.
    pub fn embed(&mut self, tokens: &[u32], embedding: &Embedding, factor: f32) -> TapeValue {
        let Embedding { table, width } = *embedding;
        let rows = self.param(table);
        let row = |token: &u32| &rows[*token as usize * width..][..width];
        let vectors = tokens.iter().flat_map(row).map(|x| x * factor).collect();
        let tokens = tokens.to_vec();
        self.record(&[table], tensor(vectors, &[tokens.len(), width]), move |dy, backward| {
            let grad = backward.param(table).1;
            for (token, dy) in tokens.iter().zip(dy.values().chunks_exact(width)) {
                let row = &mut grad[*token as usize * width..][..width];
                row.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += factor * dy);
            }
        })
    }
}
