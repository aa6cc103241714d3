//! The flat parameters and gradient that a pass works on.

use std::ops::Range;

use quelea_core::node::loan::Loan;

/// The flat vectors of a network while one gradient is computed.
pub(crate) trait FlatVectors {
    /// All parameters; before the first hand-over.
    fn params(&self) -> &[f32];

    /// A part of the parameters, and the same part of the gradient.
    fn part(&mut self, range: Range<usize>) -> (&[f32], &mut [f32]);

    /// The elements of the gradient before `end` are final, and neither they nor the parameters
    /// there are needed any more.
    fn hand_over(&mut self, _end: usize) {}
}

/// Vectors that are all here until the end.
pub(crate) struct Slices<'a> {
    pub(crate) params: &'a [f32],
    pub(crate) grad: &'a mut [f32],
}

impl FlatVectors for Slices<'_> {
    fn params(&self) -> &[f32] {
        self.params
    }

    fn part(&mut self, range: Range<usize>) -> (&[f32], &mut [f32]) {
        (&self.params[range.clone()], &mut self.grad[range])
    }
}

/// Vectors that were lent, and go back bucket by bucket if they are `early`.
pub(crate) struct Lent<'a> {
    pub(crate) loan: &'a mut Loan,
    pub(crate) ready: &'a mut dyn FnMut(usize),
    pub(crate) early: bool,
}

impl FlatVectors for Lent<'_> {
    fn params(&self) -> &[f32] {
        self.loan.params(0..self.loan.len())
    }

    fn part(&mut self, range: Range<usize>) -> (&[f32], &mut [f32]) {
        self.loan.vectors_at(range)
    }

    fn hand_over(&mut self, end: usize) {
        if self.early {
            self.loan.hand_over(end, self.ready);
        }
    }
}

/// Vectors that keep a copy of the gradient's beginning whenever it is handed over.
#[cfg(test)]
pub(crate) struct Watched<'a> {
    pub(crate) params: &'a [f32],
    pub(crate) grad: Vec<f32>,
    pub(crate) seen: Vec<Vec<f32>>,
}

#[cfg(test)]
impl Watched<'_> {
    pub(crate) fn new(params: &[f32]) -> Watched<'_> {
        Watched { params, grad: vec![0.0; params.len()], seen: Vec::new() }
    }
}

#[cfg(test)]
impl FlatVectors for Watched<'_> {
    fn params(&self) -> &[f32] {
        self.params
    }

    fn part(&mut self, range: Range<usize>) -> (&[f32], &mut [f32]) {
        (&self.params[range.clone()], &mut self.grad[range])
    }

    fn hand_over(&mut self, end: usize) {
        self.seen.push(self.grad[..end].to_vec());
    }
}
