//! Outer rules: what becomes of an exact average.

/// Where the next round starts, given where this one started and the average it ended with.
pub trait Outer: Send {
    /// `params` holds the average a; writes the start of the next round over it and over `start`.
    fn step(&mut self, round: OuterRound, start: &mut [f32], params: &mut [f32]);

    /// State vectors: empty before the first round, then of [these lengths](Outer::vector_len).
    fn vectors(&mut self) -> Vec<&mut Vec<f32>> {
        Vec::new()
    }

    /// How long state vector number `slot` is after a round, for a model of `len` elements.
    fn vector_len(&self, _slot: usize, len: usize) -> usize {
        len
    }

    /// Where rounds start ahead of the model that is deployed: the model is `params + a·v` for this
    /// `a` and `v`.
    fn look_back(&self) -> Option<(f32, &[f32])> {
        None
    }
}

/// What an outer rule may want to know.
#[derive(Clone, Copy, Debug)]
pub struct OuterRound {
    /// The learning rate of the step that ended it.
    pub learning_rate: f32,
    /// How many workers took part.
    pub workers: usize,
}

/// `x₀ ← a`: plain averaging.
pub struct PlainAveraging;

impl Outer for PlainAveraging {
    fn step(&mut self, _round: OuterRound, start: &mut [f32], params: &mut [f32]) {
        start.copy_from_slice(params);
    }
}

/// `x₀ ← x₀ − rule(G, v)` with `G = x₀ − a` for every element, in one pass; `v` starts at 0.
pub fn outer_step(
    start: &mut [f32],
    params: &mut [f32],
    velocity: &mut Vec<f32>,
    rule: impl Fn(f32, &mut f32) -> f32,
) {
    velocity.resize(start.len(), 0.0);
    for ((start, x), v) in start.iter_mut().zip(params).zip(velocity) {
        *start -= rule(*start - *x, v);
        *x = *start;
    }
}
