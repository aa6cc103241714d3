//! LARS: SGD with momentum whose rate is adapted to every tensor.
//!
//! ```text
//! for each tensor:
//! q ← c·‖x‖ / (‖g‖ + λ·‖x‖)        1 if ‖x‖ or ‖g‖ is 0
//! v ← μ·v + η·q·(g + λ·x)          v starts at 0
//! x ← x − v
//! ```
//!
//! As in Algorithm 1 of the paper the learning rate stands inside the velocity, unlike in `sgd`. Tensors
//! of one dimension take q = 1 and λ = 0, as in the public implementations, unless `adapt_vectors` is
//! set. A server that holds part of a tensor has the norms of that part.

use std::ops::Range;

use super::tensors::{ADAPT_VECTORS, Tensors};
use super::{At, Entry, Family, Optimizer};
use crate::layout::TensorRange;
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::vector;
use crate::vector::dispatch::{Level, PART_MIN, in_parts, kernel};

pub(super) const ENTRY: Entry = Entry {
    meta: Meta {
        name: "lars",
        summary: "momentum with a rate for every tensor, in proportion to its norm; for large batches",
        paper: "You, Gitman and Ginsburg 2017, arXiv:1708.03888",
        section: "Algorithm 1",
        file: file!(),
        options: &[
            OptionSpec {
                name: "momentum",
                kind: OptionKind::Real { default: 0.9, min: 0.0, max: 1.0 },
                help: "share of the velocity that is kept at each step",
            },
            OptionSpec {
                name: "weight_decay",
                kind: OptionKind::Real { default: 0.0005, min: 0.0, max: 1e6 },
                help: "this multiple of the parameters is added to the gradient",
            },
            OptionSpec {
                name: "trust",
                kind: OptionKind::Real { default: 0.001, min: 0.0, max: 1e6 },
                help: "c: length of a step with learning rate 1, as a share of the tensor's norm",
            },
            ADAPT_VECTORS,
        ],
    },
    family: Family::Adaptive,
    check: |_| Ok(()),
    build: |options, len| Box::new(Lars::new(options, len)),
};

/// The state of one rank.
#[derive(Debug)]
struct Lars {
    momentum: f32,
    weight_decay: f64,
    trust: f64,
    tensors: Tensors,
    velocity: Vec<f32>,
}

impl Lars {
    fn new(options: &Options, len: usize) -> Lars {
        Lars {
            momentum: options.real("momentum") as f32,
            weight_decay: options.real("weight_decay"),
            trust: options.real("trust"),
            tensors: Tensors::new(options.flag(ADAPT_VECTORS.name)),
            velocity: vec![0.0; len],
        }
    }

    /// q.
    fn ratio(&self, params: &[f32], grad: &[f32]) -> f64 {
        let (params, grad) = (vector::norm(params), vector::norm(grad));
        if params > 0.0 && grad > 0.0 {
            self.trust * params / (grad + self.weight_decay * params)
        } else {
            1.0
        }
    }
}

impl Optimizer for Lars {
    fn apply(&mut self, at: At, range: Range<usize>, params: &mut [f32], grad: &mut [f32]) {
        self.displace(at, range, params, grad);
        vector::axpy(-1.0, grad, params);
    }

    fn displace(&mut self, at: At, range: Range<usize>, params: &[f32], grad: &mut [f32]) {
        let level = Level::best();
        for part in self.tensors.parts(&range) {
            let (params, grad) = (&params[part.range.clone()], &mut grad[part.range.clone()]);
            let (ratio, decay) = if part.adapts {
                (self.ratio(params, grad), self.weight_decay)
            } else {
                (1.0, 0.0)
            };
            let rule = LarsRule {
                rate: (f64::from(at.learning_rate) * ratio) as f32,
                momentum: self.momentum,
                decay: decay as f32,
            };
            let held = range.start + part.range.start..range.start + part.range.end;
            in_parts([grad, &mut self.velocity[held]], PART_MIN, |at, [grad, velocity]| {
                displace(level, rule, &params[at..][..grad.len()], grad, velocity);
            });
        }
    }

    fn vectors(&mut self) -> Vec<&mut Vec<f32>> {
        vec![&mut self.velocity]
    }

    fn set_tensors(&mut self, tensors: &[TensorRange]) {
        self.tensors.set(tensors);
    }
}

/// The numbers of one step of one tensor.
#[derive(Clone, Copy)]
struct LarsRule {
    /// η·q.
    rate: f32,
    momentum: f32,
    decay: f32,
}

kernel! {
    fn displace(rule: LarsRule, params: &[f32], grad: &mut [f32], velocity: &mut [f32]) {
        for ((g, v), x) in grad.iter_mut().zip(velocity).zip(params) {
            *v = rule.momentum * *v + rule.rate * (*g + rule.decay * *x);
            *g = *v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::adaptive_tests::{QUADRATIC_START, build, follow, three_tensors};

    /// Worked out in double precision from Algorithm 1, with the middle tensor at q = 1 and λ = 0.
    const STEPS: [[f64; 5]; 3] = [
        [0.998905526, -1.995665024, 0.950000000, 2.994252665, 0.251790369],
        [0.996825950, -1.987437596, 1.670000000, 2.983343137, 0.255187972],
        [0.993859618, -1.975724101, 2.417000000, 2.967807387, 0.260024311],
    ];

    #[test]
    fn three_steps_are_those_of_the_papers_algorithm() {
        let mut lars = build("lars", &[("weight_decay", 0.01), ("trust", 0.02)], 5);
        lars.set_tensors(&three_tensors());
        follow(&mut *lars, 0.1, &STEPS);
    }

    #[test]
    fn a_first_step_is_the_same_share_of_every_tensor_whatever_its_gradient_is_multiplied_by() {
        for scale in [1e-6, 1.0, 1e6] {
            let given = [("weight_decay", 0.0), ("trust", 0.02)];
            let mut lars = build("lars", &given, 5);
            lars.set_tensors(&three_tensors());
            let mut grad = [1.0, -2.0, 3.0, 4.0, 0.5].map(|g: f32| g * scale);
            let at = At { step: 0, learning_rate: 0.5 };
            lars.displace(at, 0..5, &QUADRATIC_START, &mut grad);
            for tensor in [0..2, 3..5] {
                let share =
                    vector::norm(&grad[tensor.clone()]) / vector::norm(&QUADRATIC_START[tensor]);
                assert!((share - 0.5 * 0.02).abs() < 1e-7, "{share}");
            }
        }
    }

    #[test]
    fn a_tensor_of_zeros_takes_the_step_of_sgd() {
        let mut lars = build("lars", &[], 2);
        let mut grad = [3.0, -4.0];
        lars.displace(At { step: 0, learning_rate: 0.1 }, 0..2, &[0.0; 2], &mut grad);
        assert_eq!(grad, [0.1f32 * 3.0, 0.1f32 * -4.0]);
    }
}
