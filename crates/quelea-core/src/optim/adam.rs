//! Adam, and AdamW with decoupled weight decay.
//!
//! ```text
//! g ← g + λ·x                       adam: decay is part of the gradient
//! m ← β1·m + (1 − β1)·g             m and v start at 0; t counts from 1
//! v ← β2·v + (1 − β2)·g²
//! x ← x − η·λ·x                     adamw: decay is apart from the moments
//! x ← x − η · m/(1 − β1^t) / (√(v/(1 − β2^t)) + ε)
//! ```
//!
//! These are the semantics of `torch.optim.Adam` and `torch.optim.AdamW`. Each step is one pass
//! over memory.

use std::ops::Range;

use super::{At, Entry, Family, Optimizer};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::vector::dispatch::{Level, PART_MIN, in_parts, kernel};

pub(super) const ADAM: Entry = Entry {
    meta: Meta {
        name: "adam",
        summary: "steps of about the learning rate in every coordinate; L2 decay as in PyTorch",
        paper: "Kingma and Ba 2015, arXiv:1412.6980",
        section: "Algorithm 1",
        file: file!(),
        options: &[BETA1, BETA2, EPSILON, L2],
    },
    family: Family::Adaptive,
    check: |_| Ok(()),
    build: |options, len| Box::new(Adam::new(Moments::new(options, Decay::L2), len)),
};

pub(super) const ADAMW: Entry = Entry {
    meta: Meta {
        name: "adamw",
        summary: "Adam with weight decay apart from the moments, as in PyTorch",
        paper: "Loshchilov and Hutter 2019, arXiv:1711.05101",
        section: "Algorithm 2",
        file: file!(),
        options: &[BETA1, BETA2, EPSILON, DECOUPLED],
    },
    family: Family::Adaptive,
    check: |_| Ok(()),
    build: |options, len| Box::new(Adam::new(Moments::new(options, Decay::Decoupled), len)),
};

pub(super) const BETA1: OptionSpec = OptionSpec {
    name: "beta1",
    kind: OptionKind::Real { default: 0.9, min: 0.0, max: BETA_MAX },
    help: "share of the first moment that is kept at each step",
};

pub(super) const BETA2: OptionSpec = OptionSpec {
    name: "beta2",
    kind: OptionKind::Real { default: 0.999, min: 0.0, max: BETA_MAX },
    help: "share of the second moment that is kept at each step",
};

pub(super) const EPSILON: OptionSpec = OptionSpec {
    name: "epsilon",
    kind: OptionKind::Real { default: 1e-8, min: f64::MIN_POSITIVE, max: 1e6 },
    help: "keeps the step finite where gradients vanish",
};

pub(super) const L2: OptionSpec = OptionSpec {
    name: "weight_decay",
    kind: OptionKind::Real { default: 0.0, min: 0.0, max: 1e6 },
    help: "this multiple of the parameters is added to the gradient",
};

pub(super) const DECOUPLED: OptionSpec = OptionSpec {
    name: "weight_decay",
    kind: OptionKind::Real { default: 0.01, min: 0.0, max: 1e6 },
    help: "this multiple of the parameters, times the learning rate, is subtracted from them",
};

/// A moment that forgets nothing never leaves zero.
const BETA_MAX: f64 = 0.999_999_999;

/// Where weight decay acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decay {
    /// In the gradient.
    L2,
    /// On the parameters.
    Decoupled,
}

/// What a person has set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments {
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    weight_decay: f64,
    decay: Decay,
}

impl Moments {
    pub(super) fn new(options: &Options, decay: Decay) -> Moments {
        Moments {
            beta1: options.real("beta1"),
            beta2: options.real("beta2"),
            epsilon: options.real("epsilon"),
            weight_decay: options.real("weight_decay"),
            decay,
        }
    }

    /// The numbers of a step with `updates` updates of the moments, this one included.
    pub(super) fn rule(&self, learning_rate: f32, updates: u64) -> AdamRule {
        let left = |beta: f64| 1.0 - beta.powi(updates.min(1 << 30) as i32);
        let rate = f64::from(learning_rate);
        let (l2, shrink) = match self.decay {
            Decay::L2 => (self.weight_decay, 0.0),
            Decay::Decoupled => (0.0, rate * self.weight_decay),
        };
        AdamRule {
            beta1: [self.beta1 as f32, (1.0 - self.beta1) as f32],
            beta2: [self.beta2 as f32, (1.0 - self.beta2) as f32],
            l2: l2 as f32,
            shrink: shrink as f32,
            rate: (rate / left(self.beta1)) as f32,
            root: (1.0 / left(self.beta2).sqrt()) as f32,
            epsilon: (self.epsilon as f32).max(f32::MIN_POSITIVE),
        }
    }
}

/// The numbers of one step.
#[derive(Clone, Copy)]
pub(super) struct AdamRule {
    /// β1 and 1 − β1.
    beta1: [f32; 2],
    beta2: [f32; 2],
    l2: f32,
    /// ηλ of decoupled decay.
    shrink: f32,
    /// η/(1 − β1^t).
    rate: f32,
    /// 1/√(1 − β2^t).
    root: f32,
    epsilon: f32,
}

impl AdamRule {
    /// The gradient with L2 decay.
    #[inline(always)]
    pub(super) fn decayed(self, grad: f32, param: f32) -> f32 {
        grad + self.l2 * param
    }

    /// The moments after one more gradient.
    #[inline(always)]
    pub(super) fn moments(self, grad: f32, m: f32, v: f32) -> (f32, f32) {
        let ([keep1, add1], [keep2, add2]) = (self.beta1, self.beta2);
        (keep1 * m + add1 * grad, keep2 * v + add2 * (grad * grad))
    }

    /// How far the parameter moves.
    #[inline(always)]
    pub(super) fn displacement(self, param: f32, m: f32, v: f32) -> f32 {
        self.shrink * param + self.rate * (m / (v.sqrt() * self.root + self.epsilon))
    }

    #[inline(always)]
    fn step(self, grad: f32, param: f32, m: &mut f32, v: &mut f32) -> f32 {
        (*m, *v) = self.moments(self.decayed(grad, param), *m, *v);
        self.displacement(param, *m, *v)
    }
}

/// The state of one rank.
#[derive(Debug)]
struct Adam {
    moments: Moments,
    m: Vec<f32>,
    v: Vec<f32>,
}

impl Adam {
    fn new(moments: Moments, len: usize) -> Adam {
        Adam { moments, m: vec![0.0; len], v: vec![0.0; len] }
    }
}

impl Optimizer for Adam {
    fn apply(&mut self, at: At, range: Range<usize>, params: &mut [f32], grad: &mut [f32]) {
        let rule = self.moments.rule(at.learning_rate, at.step + 1);
        let (level, grad) = (Level::best(), &*grad);
        let vectors = [params, &mut self.m[range.clone()], &mut self.v[range]];
        in_parts(vectors, PART_MIN, |at, [x, m, v]| {
            let grad = &grad[at..][..x.len()];
            apply(level, rule, x, m, v, grad);
        });
    }

    fn displace(&mut self, at: At, range: Range<usize>, params: &[f32], grad: &mut [f32]) {
        let rule = self.moments.rule(at.learning_rate, at.step + 1);
        displacements(rule, params, grad, &mut self.m[range.clone()], &mut self.v[range]);
    }

    fn vectors(&mut self) -> Vec<&mut Vec<f32>> {
        vec![&mut self.m, &mut self.v]
    }
}

/// `grad ← η·u`, after the moments took their step.
pub(super) fn displacements(
    rule: AdamRule,
    params: &[f32],
    grad: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
) {
    let level = Level::best();
    in_parts([grad, m, v], PART_MIN, |at, [g, m, v]| {
        let params = &params[at..][..g.len()];
        displace(level, rule, g, m, v, params);
    });
}

kernel! {
    fn apply(rule: AdamRule, params: &mut [f32], m: &mut [f32], v: &mut [f32], grad: &[f32]) {
        for (((x, m), v), g) in params.iter_mut().zip(m).zip(v).zip(grad) {
            *x -= rule.step(*g, *x, m, v);
        }
    }
}

kernel! {
    fn displace(rule: AdamRule, grad: &mut [f32], m: &mut [f32], v: &mut [f32], params: &[f32]) {
        for (((g, m), v), x) in grad.iter_mut().zip(m).zip(v).zip(params) {
            *g = rule.step(*g, *x, m, v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::find;
    use crate::options::Value;
    use crate::random::Rng;

    fn build(name: &str, given: &[(&str, f64)], len: usize) -> Box<dyn Optimizer> {
        let entry = find(name).expect("in the table");
        let given = given.iter().map(|(name, value)| (name.to_string(), Value::Number(*value)));
        (entry.build)(&entry.params(given).expect("good parameters"), len)
    }

    /// Five steps of f(x) = x² / 2 (so g = x) from x = 1 at rate 0.1, in double precision, worked
    /// out from the pseudocode in the documentation of `torch.optim.Adam` and `AdamW`.
    #[test]
    fn five_steps_are_those_of_pytorch() {
        let moments = [("beta1", 0.9), ("beta2", 0.99), ("epsilon", 1e-3)];
        for (name, decay, expected) in
            [("adam", 0.0, ADAM_STEPS), ("adam", 0.5, ADAM_L2_STEPS), ("adamw", 0.5, ADAMW_STEPS)]
        {
            let given = [&moments[..], &[("weight_decay", decay)]].concat();
            let mut adam = build(name, &given, 1);
            let mut x = [1.0f32];
            for (step, expected) in expected.into_iter().enumerate() {
                let at = At { step: step as u64, learning_rate: 0.1 };
                let mut g = x;
                adam.apply(at, 0..1, &mut x, &mut g);
                let error = f64::from(x[0]) - expected;
                assert!(error.abs() < 1e-6, "{name}, decay {decay}, step {step}: {x:?}");
            }
        }
    }

    const ADAM_STEPS: [f64; 5] =
        [0.900_099_900, 0.800_592_536, 0.701_808_794, 0.604_145_560, 0.508_075_653];
    const ADAM_L2_STEPS: [f64; 5] =
        [0.900_066_622, 0.800_524_594, 0.701_704_994, 0.604_005_026, 0.507_897_986];
    const ADAMW_STEPS: [f64; 5] =
        [0.850_099_900, 0.708_413_315, 0.575_142_965, 0.450_602_528, 0.335_217_373];

    #[test]
    fn a_displacement_is_the_step_that_apply_takes_in_any_cut() {
        let mut rng = Rng::new(1, "test", 0);
        let mut draw = || (0..37).map(|_| rng.normal() as f32).collect::<Vec<f32>>();
        for name in ["adam", "adamw", "accum-adam", "accum-adamw"] {
            let given = [("weight_decay", 0.1)];
            let (mut applies, mut displaces) = (build(name, &given, 37), build(name, &given, 37));
            let mut x = draw();
            for step in 0..9 {
                let (mut g, before) = (draw(), x.clone());
                let at = At { step, learning_rate: 0.3 };
                applies.apply(at, 0..37, &mut x, &mut g.clone());
                for range in [0..5, 5..37] {
                    let params = &before[range.clone()];
                    displaces.displace(at, range.clone(), params, &mut g[range]);
                }
                let moved: Vec<f32> = before.iter().zip(&g).map(|(x, d)| x - d).collect();
                assert_eq!(moved, x, "{name}");
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let rule = Moments {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.1,
            decay: Decay::Decoupled,
        }
        .rule(0.1, 3);
        let mut rng = Rng::new(2, "test", 0);
        let mut draw = |len| (0..len).map(|_| rng.normal() as f32).collect::<Vec<f32>>();
        for len in [0, 1, 7, 8, 9, 31, 33, 100] {
            let (x, m, g) = (draw(len), draw(len), draw(len));
            let v: Vec<f32> = draw(len).iter().map(|v| v * v).collect();
            let results = Level::all().into_iter().map(|level| {
                let (mut x, mut m, mut v, mut d) = (x.clone(), m.clone(), v.clone(), g.clone());
                apply(level, rule, &mut x, &mut m, &mut v, &g);
                displace(level, rule, &mut d, &mut m, &mut v, &x);
                (x, m, v, d)
            });
            let results: Vec<_> = results.collect();
            assert!(results.iter().all(|result| *result == results[0]));
        }
    }

    #[test]
    fn coordinates_without_a_gradient_stay_where_they_are() {
        let mut adam = build("adam", &[], 2);
        let mut x = [1.0f32, 2.0];
        for step in 0..3 {
            adam.apply(At { step, learning_rate: 0.1 }, 0..2, &mut x, &mut [0.0, 1.0]);
        }
        assert_eq!(x[0], 1.0);
        assert!((x[1] - 1.7).abs() < 1e-6, "{x:?}");
    }
}
