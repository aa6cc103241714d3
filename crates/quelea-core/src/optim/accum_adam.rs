//! AccumAdam: Adam whose moments take the mean gradient of s steps (Wang et al., ICLR 2025).
//!
//! ```text
//! m ← β1·m̂ + (1 − β1)·g            m and v serve this step only; m̂, v̂, b start at 0
//! v ← β2·v̂ + (1 − β2)·g²
//! x ← x − η · m/(1 − β1^t̂) / (√(v/(1 − β2^t̂)) + ε)        t̂ = ⌈t/s⌉, t from 1
//! b ← b + g/s
//! every s steps:   m̂ ← β1·m̂ + (1 − β1)·b;   v̂ ← β2·v̂ + (1 − β2)·b²;   b ← 0
//! ```
//!
//! The square of one worker's gradient has the variance of a small batch; the square of a mean
//! over s steps has less of it. About half the number of workers is a good s. The poster prints
//! β1 in the update of v̂; the published code has β2, and so has this. With s = 1 it is Adam.

use std::ops::Range;

use super::adam::{AdamRule, BETA1, BETA2, DECOUPLED, Decay, EPSILON, L2, Moments};
use super::{At, Entry, Optimizer};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::vector::dispatch::{Level, PART_MIN, in_parts, kernel};

pub(super) const ACCUM_ADAM: Entry = Entry {
    meta: Meta {
        name: "accum-adam",
        summary: "Adam whose moments take the mean gradient of several steps; for gossip",
        paper: "Wang et al. 2025 (ICLR)",
        section: "the algorithm named AccumAdam, with β2 in the second moment",
        file: file!(),
        options: &[BETA1, BETA2, EPSILON, L2, ACCUMULATE],
    },
    check: |_| Ok(()),
    build: |options, len| Box::new(AccumAdam::new(options, Decay::L2, len)),
};

pub(super) const ACCUM_ADAMW: Entry = Entry {
    meta: Meta {
        name: "accum-adamw",
        summary: "AdamW whose moments take the mean gradient of several steps; for gossip",
        paper: "Wang et al. 2025 (ICLR)",
        section: "as accum-adam; decoupled decay: Algorithm 2 of Loshchilov and Hutter",
        file: file!(),
        options: &[BETA1, BETA2, EPSILON, DECOUPLED, ACCUMULATE],
    },
    check: |_| Ok(()),
    build: |options, len| Box::new(AccumAdam::new(options, Decay::Decoupled, len)),
};

const ACCUMULATE: OptionSpec = OptionSpec {
    name: "accumulate",
    kind: OptionKind::Whole { default: 4, min: 1, max: 1 << 24 },
    help: "steps whose mean gradient enters the moments; about half the number of workers",
};

/// The state of one rank.
#[derive(Debug)]
struct AccumAdam {
    moments: Moments,
    accumulate: u64,
    /// m̂
    m: Vec<f32>,
    /// v̂
    v: Vec<f32>,
    /// b
    mean: Vec<f32>,
}

impl AccumAdam {
    fn new(options: &Options, decay: Decay, len: usize) -> AccumAdam {
        AccumAdam {
            moments: Moments::new(options, decay),
            accumulate: options.whole("accumulate"),
            m: vec![0.0; len],
            v: vec![0.0; len],
            mean: vec![0.0; len],
        }
    }

    fn rule(&self, at: At) -> AccumRule {
        let adam = self.moments.rule(at.learning_rate, at.step / self.accumulate + 1);
        AccumRule { adam, share: (1.0 / self.accumulate as f64) as f32 }
    }

    /// Whether the moments take the mean after this step.
    fn is_last(&self, at: At) -> bool {
        (at.step + 1).is_multiple_of(self.accumulate)
    }
}

impl Optimizer for AccumAdam {
    fn apply(&mut self, at: At, range: Range<usize>, params: &mut [f32], grad: &mut [f32]) {
        let (rule, level, grad) = (self.rule(at), Level::best(), &*grad);
        let apply = if self.is_last(at) { apply::<true> } else { apply::<false> };
        let [m, v, b] = [&mut self.m, &mut self.v, &mut self.mean];
        let vectors = [params, &mut m[range.clone()], &mut v[range.clone()], &mut b[range]];
        in_parts(vectors, PART_MIN, |at, [x, m, v, b]| {
            let grad = &grad[at..][..x.len()];
            apply(level, rule, x, m, v, b, grad);
        });
    }

    fn displace(&mut self, at: At, range: Range<usize>, params: &[f32], grad: &mut [f32]) {
        let (rule, level) = (self.rule(at), Level::best());
        let displace = if self.is_last(at) { displace::<true> } else { displace::<false> };
        let [m, v, b] = [&mut self.m, &mut self.v, &mut self.mean];
        let vectors = [grad, &mut m[range.clone()], &mut v[range.clone()], &mut b[range]];
        in_parts(vectors, PART_MIN, |at, [g, m, v, b]| {
            let params = &params[at..][..g.len()];
            displace(level, rule, g, m, v, b, params);
        });
    }

    fn vectors(&mut self) -> Vec<&mut Vec<f32>> {
        vec![&mut self.m, &mut self.v, &mut self.mean]
    }
}

/// The numbers of one step.
#[derive(Clone, Copy)]
struct AccumRule {
    adam: AdamRule,
    /// 1/s.
    share: f32,
}

impl AccumRule {
    /// How far the parameter moves. `LAST` says that the moments take the mean after this step.
    #[inline(always)]
    fn step<const LAST: bool>(
        self,
        grad: f32,
        param: f32,
        m: &mut f32,
        v: &mut f32,
        b: &mut f32,
    ) -> f32 {
        let grad = self.adam.decayed(grad, param);
        let (m_now, v_now) = self.adam.moments(grad, *m, *v);
        *b += self.share * grad;
        if LAST {
            (*m, *v) = self.adam.moments(*b, *m, *v);
            *b = 0.0;
        }
        self.adam.displacement(param, m_now, v_now)
    }
}

kernel! {
    fn apply<const LAST: bool>(
        rule: AccumRule,
        params: &mut [f32],
        m: &mut [f32],
        v: &mut [f32],
        b: &mut [f32],
        grad: &[f32],
    ) {
        for ((((x, m), v), b), g) in params.iter_mut().zip(m).zip(v).zip(b).zip(grad) {
            *x -= rule.step::<LAST>(*g, *x, m, v, b);
        }
    }
}

kernel! {
    fn displace<const LAST: bool>(
        rule: AccumRule,
        grad: &mut [f32],
        m: &mut [f32],
        v: &mut [f32],
        b: &mut [f32],
        params: &[f32],
    ) {
        for ((((g, m), v), b), x) in grad.iter_mut().zip(m).zip(v).zip(b).zip(params) {
            *g = rule.step::<LAST>(*g, *x, m, v, b);
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

    #[test]
    fn one_accumulated_step_is_adam_to_the_bit() {
        let mut rng = Rng::new(1, "test", 0);
        let mut draw = || (0..50).map(|_| rng.normal() as f32).collect::<Vec<f32>>();
        for (accumulating, plain) in [("accum-adam", "adam"), ("accum-adamw", "adamw")] {
            let decay = ("weight_decay", 0.1);
            let mut accumulating = build(accumulating, &[decay, ("accumulate", 1.0)], 50);
            let mut plain = build(plain, &[decay], 50);
            let mut x = draw();
            let mut y = x.clone();
            for step in 0..20 {
                let (mut g, at) = (draw(), At { step, learning_rate: 0.1 });
                accumulating.apply(at, 0..50, &mut x, &mut g.clone());
                plain.apply(at, 0..50, &mut y, &mut g);
                assert_eq!(x, y, "step {step}");
            }
        }
    }

    /// Seven steps of f(x) = x² / 2 from x = 1 at rate 0.1 with s = 3, in double precision,
    /// worked out from the pseudocode above by a separate program.
    #[test]
    fn seven_steps_are_those_of_the_pseudocode() {
        let moments = [("beta1", 0.9), ("beta2", 0.99), ("epsilon", 1e-3), ("accumulate", 3.0)];
        for (name, decay, expected) in
            [("accum-adam", 0.5, ACCUM_L2_STEPS), ("accum-adamw", 0.5, ACCUM_DECOUPLED_STEPS)]
        {
            let given = [&moments[..], &[("weight_decay", decay)]].concat();
            let mut optimizer = build(name, &given, 1);
            let mut x = [1.0f32];
            for (step, expected) in expected.into_iter().enumerate() {
                let at = At { step: step as u64, learning_rate: 0.1 };
                let mut g = x;
                optimizer.apply(at, 0..1, &mut x, &mut g);
                let error = f64::from(x[0]) - expected;
                assert!(error.abs() < 1e-6, "{name}, step {step}: {x:?}");
            }
        }
    }

    const ACCUM_L2_STEPS: [f64; 7] = [
        0.900_066_622,
        0.800_140_636,
        0.700_223_885,
        0.601_667_402,
        0.504_601_975,
        0.409_732_654,
        0.316_824_547,
    ];
    const ACCUM_DECOUPLED_STEPS: [f64; 7] = [
        0.850_099_900,
        0.707_712_400,
        0.572_467_881,
        0.446_778_852,
        0.330_559_701,
        0.224_638_477,
        0.128_018_098,
    ];

    #[test]
    fn the_moments_move_only_every_s_steps() {
        let mut optimizer = build("accum-adam", &[("accumulate", 3.0)], 1);
        let mut x = [1.0f32];
        for step in 0..6 {
            let at = At { step, learning_rate: 0.1 };
            optimizer.apply(at, 0..1, &mut x, &mut [1.0 + step as f32]);
            let state: Vec<f32> = optimizer.vectors().into_iter().map(|v| v[0]).collect();
            let moments_moved = state[0] != 0.0 && state[1] != 0.0;
            assert_eq!(moments_moved, step >= 2, "step {step}: {state:?}");
            assert_eq!(state[2] == 0.0, step % 3 == 2, "step {step}: {state:?}");
        }
    }
}
