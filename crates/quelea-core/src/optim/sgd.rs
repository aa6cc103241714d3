//! Stochastic gradient descent with momentum, Nesterov momentum and weight decay.
//!
//! ```text
//! g ← g + λ·x            weight decay
//! v ← μ·v + g            momentum; v starts at 0
//! u ← g + μ·v  or  v     with or without Nesterov
//! x ← x − η·u
//! ```
//!
//! These are the semantics of `torch.optim.SGD` with dampening 0: the learning rate stands
//! outside the velocity, and decay is part of the gradient. Each step is one pass over memory.

use std::ops::Range;

use super::{At, Entry, Optimizer, refused};
use crate::meta::Meta;
use crate::options::{OptionError, OptionKind, OptionSpec, Options};
use crate::vector::dispatch::{Level, PART_MIN, in_parts, kernel};

pub(super) const ENTRY: Entry = Entry {
    meta: Meta {
        name: "sgd",
        summary: "stochastic gradient descent; momentum, Nesterov and weight decay as in PyTorch",
        paper: "Robbins and Monro 1951; Sutskever et al. 2013",
        section: "Section 2 of Sutskever et al. (classical and Nesterov momentum)",
        file: file!(),
        options: &[
            OptionSpec {
                name: "momentum",
                kind: OptionKind::Real { default: 0.0, min: 0.0, max: 1.0 },
                help: "share of the velocity that is kept at each step",
            },
            OptionSpec {
                name: "nesterov",
                kind: OptionKind::Flag(false),
                help: "look ahead along the velocity; needs momentum",
            },
            OptionSpec {
                name: "weight_decay",
                kind: OptionKind::Real { default: 0.0, min: 0.0, max: 1e6 },
                help: "this multiple of the parameters is added to the gradient",
            },
        ],
    },
    check,
    build: |options, len| Box::new(Sgd::new(options, len)),
};

fn check(options: &Options) -> Result<(), OptionError> {
    if options.flag("nesterov") && options.real("momentum") == 0.0 {
        return Err(refused(options, "nesterov", "needs `momentum` above 0"));
    }
    Ok(())
}

/// The state of one rank.
#[derive(Debug)]
pub struct Sgd {
    momentum: f32,
    nesterov: bool,
    weight_decay: f32,
    /// The velocity v; empty without momentum.
    velocity: Vec<f32>,
}

impl Sgd {
    /// For a vector of `len` elements.
    pub fn new(options: &Options, len: usize) -> Sgd {
        let momentum = options.real("momentum") as f32;
        Sgd {
            momentum,
            nesterov: options.flag("nesterov"),
            weight_decay: options.real("weight_decay") as f32,
            velocity: if momentum > 0.0 { vec![0.0; len] } else { Vec::new() },
        }
    }

    fn rule(&self, at: At) -> SgdRule {
        SgdRule { rate: at.learning_rate, momentum: self.momentum, decay: self.weight_decay }
    }
}

impl Optimizer for Sgd {
    fn apply(&mut self, at: At, range: Range<usize>, params: &mut [f32], grad: &mut [f32]) {
        let (rule, level, grad) = (self.rule(at), Level::best(), &*grad);
        let decays = self.weight_decay > 0.0;
        if self.velocity.is_empty() {
            let apply = if decays { apply_plain::<true> } else { apply_plain::<false> };
            return in_parts([params], PART_MIN, |at, [params]| {
                apply(level, rule, params, &grad[at..][..params.len()]);
            });
        }
        let apply = match (decays, self.nesterov) {
            (false, false) => apply_momentum::<false, false>,
            (false, true) => apply_momentum::<false, true>,
            (true, false) => apply_momentum::<true, false>,
            (true, true) => apply_momentum::<true, true>,
        };
        in_parts([params, &mut self.velocity[range]], PART_MIN, |at, [params, velocity]| {
            let grad = &grad[at..][..params.len()];
            apply(level, rule, params, velocity, grad);
        });
    }

    fn displace(&mut self, at: At, range: Range<usize>, params: &[f32], grad: &mut [f32]) {
        let (rule, level) = (self.rule(at), Level::best());
        let decays = self.weight_decay > 0.0;
        if self.velocity.is_empty() {
            let displace = if decays { displace_plain::<true> } else { displace_plain::<false> };
            return in_parts([grad], PART_MIN, |at, [grad]| {
                displace(level, rule, &params[at..][..grad.len()], grad);
            });
        }
        let displace = match (decays, self.nesterov) {
            (false, false) => displace_momentum::<false, false>,
            (false, true) => displace_momentum::<false, true>,
            (true, false) => displace_momentum::<true, false>,
            (true, true) => displace_momentum::<true, true>,
        };
        in_parts([grad, &mut self.velocity[range]], PART_MIN, |at, [grad, velocity]| {
            let params = &params[at..][..grad.len()];
            displace(level, rule, params, grad, velocity);
        });
    }

    fn vectors(&mut self) -> Vec<&mut Vec<f32>> {
        if self.velocity.is_empty() { Vec::new() } else { vec![&mut self.velocity] }
    }

    fn velocity(&mut self) -> Option<&mut [f32]> {
        if self.velocity.is_empty() { None } else { Some(&mut self.velocity) }
    }
}

/// The numbers of one step.
#[derive(Clone, Copy)]
struct SgdRule {
    rate: f32,
    momentum: f32,
    decay: f32,
}

impl SgdRule {
    /// The gradient with weight decay.
    #[inline(always)]
    fn decayed<const DECAYS: bool>(self, grad: f32, param: f32) -> f32 {
        if DECAYS { grad + self.decay * param } else { grad }
    }

    /// The direction u, after the velocity took its step.
    #[inline(always)]
    fn direction<const NESTEROV: bool>(self, grad: f32, velocity: &mut f32) -> f32 {
        *velocity = self.momentum * *velocity + grad;
        if NESTEROV { grad + self.momentum * *velocity } else { *velocity }
    }
}

kernel! {
    fn apply_plain<const DECAYS: bool>(rule: SgdRule, params: &mut [f32], grad: &[f32]) {
        for (x, g) in params.iter_mut().zip(grad) {
            *x -= rule.rate * rule.decayed::<DECAYS>(*g, *x);
        }
    }
}

kernel! {
    fn displace_plain<const DECAYS: bool>(rule: SgdRule, params: &[f32], grad: &mut [f32]) {
        for (g, x) in grad.iter_mut().zip(params) {
            *g = rule.rate * rule.decayed::<DECAYS>(*g, *x);
        }
    }
}

kernel! {
    fn apply_momentum<const DECAYS: bool, const NESTEROV: bool>(
        rule: SgdRule,
        params: &mut [f32],
        velocity: &mut [f32],
        grad: &[f32],
    ) {
        for ((x, v), g) in params.iter_mut().zip(velocity).zip(grad) {
            let g = rule.decayed::<DECAYS>(*g, *x);
            *x -= rule.rate * rule.direction::<NESTEROV>(g, v);
        }
    }
}

kernel! {
    fn displace_momentum<const DECAYS: bool, const NESTEROV: bool>(
        rule: SgdRule,
        params: &[f32],
        grad: &mut [f32],
        velocity: &mut [f32],
    ) {
        for ((g, v), x) in grad.iter_mut().zip(velocity).zip(params) {
            let decayed = rule.decayed::<DECAYS>(*g, *x);
            *g = rule.rate * rule.direction::<NESTEROV>(decayed, v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::find;
    use crate::options::Value;
    use crate::random::Rng;

    fn sgd(len: usize, momentum: f64, nesterov: bool, weight_decay: f64) -> Sgd {
        let given = [
            ("momentum".to_string(), Value::Number(momentum)),
            ("nesterov".to_string(), Value::Flag(nesterov)),
            ("weight_decay".to_string(), Value::Number(weight_decay)),
        ];
        let entry = find("sgd").expect("in the table");
        Sgd::new(&entry.params(given).expect("good parameters"), len)
    }

    /// Five steps of f(x) = x² / 2 (so g = x) from x = 1 at rate 0.1, in double precision, worked
    /// out from the pseudocode in the documentation of `torch.optim.SGD`.
    #[test]
    fn five_steps_are_those_of_pytorch() {
        let cases: [(f64, bool, f64, [f64; 5]); 5] = [
            (0.0, false, 0.0, [0.9, 0.81, 0.729, 0.6561, 0.59049]),
            (0.0, false, 0.5, [0.85, 0.7225, 0.614_125, 0.522_006_25, 0.443_705_31]),
            (0.9, false, 0.0, [0.9, 0.72, 0.486, 0.2268, -0.02916]),
            (0.9, true, 0.0, [0.81, 0.5751, 0.327_321, 0.093_887_91, -0.104_581_684]),
            (0.9, true, 0.5, [0.715, 0.389_725, 0.082_430_875, -0.165_013_76, -0.329_556_84]),
        ];
        for (momentum, nesterov, decay, expected) in cases {
            let mut sgd = sgd(1, momentum, nesterov, decay);
            let mut x = [1.0f32];
            for (step, expected) in expected.into_iter().enumerate() {
                let at = At { step: step as u64, learning_rate: 0.1 };
                let mut g = x;
                sgd.apply(at, 0..1, &mut x, &mut g);
                let error = f64::from(x[0]) - expected;
                assert!(error.abs() < 1e-6, "{momentum} {nesterov} {decay}: {x:?}");
            }
        }
    }

    #[test]
    fn a_displacement_is_the_step_that_apply_takes() {
        let mut rng = Rng::new(1, "test", 0);
        let mut draw = |len| (0..len).map(|_| rng.normal() as f32).collect::<Vec<f32>>();
        for (momentum, nesterov, decay) in
            [(0.0, false, 0.0), (0.0, false, 0.1), (0.9, false, 0.1), (0.9, true, 0.0)]
        {
            let (mut applies, mut displaces) =
                (sgd(37, momentum, nesterov, decay), sgd(37, momentum, nesterov, decay));
            let mut x = draw(37);
            for step in 0..4 {
                let (mut g, before) = (draw(37), x.clone());
                let at = At { step, learning_rate: 0.3 };
                applies.apply(at, 0..37, &mut x, &mut g.clone());
                displaces.displace(at, 0..37, &before, &mut g);
                let moved: Vec<f32> = before.iter().zip(&g).map(|(x, d)| x - d).collect();
                assert_eq!(moved, x);
            }
        }
    }

    #[test]
    fn buckets_give_the_bits_of_the_whole_vector() {
        let (mut whole, mut cut) = (sgd(10, 0.9, true, 0.01), sgd(10, 0.9, true, 0.01));
        let (mut x, mut y) = ([1.0f32; 10], [1.0f32; 10]);
        for step in 0..3 {
            let at = At { step, learning_rate: 0.1 };
            let mut g: [f32; 10] = std::array::from_fn(|k| k as f32 - 4.5);
            whole.apply(at, 0..10, &mut x, &mut g);
            for range in [0..3, 3..10] {
                cut.apply(at, range.clone(), &mut y[range.clone()], &mut g[range]);
            }
        }
        assert_eq!(x, y);
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let rule = SgdRule { rate: 0.3, momentum: 0.9, decay: 0.01 };
        let mut rng = Rng::new(2, "test", 0);
        let mut draw = |len| (0..len).map(|_| rng.normal() as f32).collect::<Vec<f32>>();
        for len in [0, 1, 7, 8, 9, 31, 33, 100] {
            let (x, v, g) = (draw(len), draw(len), draw(len));
            let results = Level::all().into_iter().map(|level| {
                let (mut x, mut v, mut d) = (x.clone(), v.clone(), g.clone());
                apply_momentum::<true, true>(level, rule, &mut x, &mut v, &g);
                apply_plain::<true>(level, rule, &mut x, &g);
                displace_momentum::<true, false>(level, rule, &x, &mut d, &mut v);
                displace_plain::<true>(level, rule, &x, &mut d);
                (x, v, d)
            });
            let results: Vec<_> = results.collect();
            assert!(results.iter().all(|result| *result == results[0]));
        }
    }

    #[test]
    fn state_is_kept_only_with_momentum() {
        assert_eq!(sgd(5, 0.0, false, 0.1).vectors().len(), 0);
        assert_eq!(sgd(5, 0.9, false, 0.1).vectors().len(), 1);
    }
}
