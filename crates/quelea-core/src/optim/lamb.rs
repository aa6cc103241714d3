//! LAMB: AdamW whose step is adapted to every tensor.
//!
//! ```text
//! m ← β1·m + (1 − β1)·g             m and v start at 0; t counts from 1
//! v ← β2·v + (1 − β2)·g²
//! for each tensor:
//! u ← m/(1 − β1^t) / (√(v/(1 − β2^t)) + ε) + λ·x
//! x ← x − η · ‖x‖/‖u‖ · u           the ratio is 1 if ‖x‖ or ‖u‖ is 0
//! ```
//!
//! φ of the paper is the identity. Tensors of one dimension take the ratio 1 and λ = 0, as in the public
//! implementations, unless `adapt_vectors` is set. A server that holds part of a tensor has the norms of
//! that part.

use std::ops::Range;

use super::adam::{BETA1, BETA2, DECOUPLED, Decay, Moments, displacements};
use super::tensors::{ADAPT_VECTORS, Tensors};
use super::{At, Entry, Family, Optimizer};
use crate::layout::TensorRange;
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options, Value};
use crate::vector;

pub(super) const ENTRY: Entry = Entry {
    meta: Meta {
        name: "lamb",
        summary: "AdamW with a rate for every tensor, in proportion to its norm; for large batches",
        paper: "You et al. 2020, arXiv:1904.00962",
        section: "Algorithm 2",
        file: file!(),
        options: &[
            BETA1,
            BETA2,
            OptionSpec {
                name: "epsilon",
                kind: OptionKind::Real { default: 1e-6, min: f64::MIN_POSITIVE, max: 1e6 },
                help: "keeps the step finite where gradients vanish",
            },
            DECOUPLED,
            ADAPT_VECTORS,
        ],
    },
    family: Family::Adaptive,
    check: |_| Ok(()),
    build: |options, len| Box::new(Lamb::new(options, len)),
};

/// The state of one rank.
#[derive(Debug)]
struct Lamb {
    /// With and without weight decay.
    decaying: Moments,
    plain: Moments,
    tensors: Tensors,
    m: Vec<f32>,
    v: Vec<f32>,
}

impl Lamb {
    fn new(options: &Options, len: usize) -> Lamb {
        let undecayed = options.clone().with("weight_decay", Value::Number(0.0));
        Lamb {
            decaying: Moments::new(options, Decay::Decoupled),
            plain: Moments::new(&undecayed, Decay::Decoupled),
            tensors: Tensors::new(options.flag(ADAPT_VECTORS.name)),
            m: vec![0.0; len],
            v: vec![0.0; len],
        }
    }
}

impl Optimizer for Lamb {
    fn apply(&mut self, at: At, range: Range<usize>, params: &mut [f32], grad: &mut [f32]) {
        self.displace(at, range, params, grad);
        vector::axpy(-1.0, grad, params);
    }

    fn displace(&mut self, at: At, range: Range<usize>, params: &[f32], grad: &mut [f32]) {
        for part in self.tensors.parts(&range) {
            let (params, grad) = (&params[part.range.clone()], &mut grad[part.range.clone()]);
            let held = range.start + part.range.start..range.start + part.range.end;
            let moments = if part.adapts { &self.decaying } else { &self.plain };
            // The direction u is a step of AdamW with learning rate 1.
            let rule = moments.rule(1.0, at.step + 1);
            displacements(rule, params, grad, &mut self.m[held.clone()], &mut self.v[held]);
            let (length, direction) = (vector::norm(params), vector::norm(grad));
            let has_ratio = part.adapts && length > 0.0 && direction > 0.0;
            let ratio = if has_ratio { length / direction } else { 1.0 };
            vector::scale((f64::from(at.learning_rate) * ratio) as f32, grad);
        }
    }

    fn vectors(&mut self) -> Vec<&mut Vec<f32>> {
        vec![&mut self.m, &mut self.v]
    }

    fn set_tensors(&mut self, tensors: &[TensorRange]) {
        self.tensors.set(tensors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::adaptive_tests::{QUADRATIC_START, build, follow, three_tensors};

    /// Worked out in double precision from Algorithm 2, with the middle tensor at ratio 1 and λ = 0.
    const STEPS: [[f64; 5]; 3] = [
        [0.924451747, -1.917583609, 0.549999989, 2.879584045, 0.340311947],
        [0.852689372, -1.838973773, 0.599952454, 2.763417205, 0.427057589],
        [0.784665488, -1.763840489, 0.649823392, 2.651063107, 0.510266296],
    ];

    #[test]
    fn three_steps_are_those_of_the_papers_algorithm() {
        let mut lamb = build("lamb", &[("beta2", 0.99), ("weight_decay", 0.1)], 5);
        lamb.set_tensors(&three_tensors());
        follow(&mut *lamb, 0.05, &STEPS);
    }

    #[test]
    fn every_step_is_the_learning_rate_as_a_share_of_the_tensors_norm() {
        let mut lamb = build("lamb", &[], 5);
        lamb.set_tensors(&three_tensors());
        let mut grad = [1.0, -2.0, 3.0, 4.0, 0.5];
        lamb.displace(At { step: 0, learning_rate: 0.5 }, 0..5, &QUADRATIC_START, &mut grad);
        for tensor in [0..2, 3..5] {
            let share =
                vector::norm(&grad[tensor.clone()]) / vector::norm(&QUADRATIC_START[tensor]);
            assert!((share - 0.5).abs() < 1e-6, "{share}");
        }
    }

    #[test]
    fn vectors_and_tensors_of_zeros_take_the_step_of_adam_with_the_same_moments() {
        let (mut lamb, mut adam) = (build("lamb", &[], 3), build("adam", &[("epsilon", 1e-6)], 3));
        let vector = TensorRange { range: 0..3, is_vector: true };
        for (tensors, start) in [(vec![vector], [1.0, 2.0, 3.0]), (Vec::new(), [0.0; 3])] {
            lamb.set_tensors(&tensors);
            let at = At { step: 0, learning_rate: 0.1 };
            let (mut of_lamb, mut of_adam) = ([0.5, -1.0, 2.0], [0.5, -1.0, 2.0]);
            lamb.vectors().into_iter().for_each(|state| state.fill(0.0));
            adam.vectors().into_iter().for_each(|state| state.fill(0.0));
            lamb.displace(at, 0..3, &start, &mut of_lamb);
            adam.displace(at, 0..3, &start, &mut of_adam);
            for (a, b) in of_lamb.iter().zip(of_adam) {
                assert!((a - b).abs() < 1e-7, "{a} {b}");
            }
        }
    }
}
