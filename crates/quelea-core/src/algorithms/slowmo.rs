//! SlowMo: local steps with slow momentum over rounds (Wang et al. 2020, Algorithm 1).
//!
//! ```text
//! upon a gradient:     x_i ← x_i − γ·Opt(g_i)
//! every H steps:       a = Σ_i x_i / n;   G = x₀ − a
//!                      u ← β·u + G/γ;   x₀ ← x₀ − α·γ·u;   x_i ← x₀
//! ```
//! γ is the learning rate of the round's last step: when it changes, the momentum is rescaled,
//! unlike BMUF's. Where it is 0 the average is taken as it is. With `base` = "sgp" every step but the
//! last of a round ends with x_i ← Σ_j W_ij x_j over the in-neighbours: SGP, whose push-sum weights
//! stay one where W is doubly stochastic. The rounds themselves, and what a lost worker means, are
//! in `periodic.rs`.

use super::{Codecs, Entry};
use crate::collectives::average::COLLECTIVE;
use crate::kit::periodic::{
    self, BASE, BUFFERS, Outer, OuterRound, Periodic, outer_step, period_key,
};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec};

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "slowmo",
        summary: "Local SGD whose averages move with slow momentum, in units of the learning rate",
        paper: "Wang et al. 2020, arXiv:1910.00643",
        section: "Algorithm 1",
        file: file!(),
        options: &[
            period_key(48),
            OptionSpec {
                name: "slow_momentum",
                kind: OptionKind::Real { default: 0.5, min: 0.0, max: 0.9999 },
                help: "share of the slow momentum that is kept per round (β); more for more workers",
            },
            OptionSpec {
                name: "slow_lr",
                kind: OptionKind::Real { default: 1.0, min: 0.0, max: 100.0 },
                help: "learning rate of the rounds, times that of the steps (α)",
            },
            BASE,
            BUFFERS,
            COLLECTIVE,
        ],
    },
    sends: periodic::SENDS,
    lost_peer: periodic::LOST_EITHER,
    resized: periodic::RESIZED,
    check: |_| Ok(()),
    codecs: |_| Codecs::OF_MOMENTUM,
    properties: periodic::properties_of_outer,
    traffic: periodic::traffic_of_outer,
    worker: |options| {
        let outer = SlowMo {
            momentum: options.real("slow_momentum") as f32,
            learning_rate: options.real("slow_lr") as f32,
            velocity: Vec::new(),
        };
        Box::new(Periodic::with_outer(options, Box::new(outer)))
    },
    server: None,
};

struct SlowMo {
    momentum: f32,
    learning_rate: f32,
    /// u
    velocity: Vec<f32>,
}

impl Outer for SlowMo {
    fn step(&mut self, round: OuterRound, start: &mut [f32], params: &mut [f32]) {
        let (rate, beta) = (round.learning_rate, self.momentum);
        if rate == 0.0 {
            return start.copy_from_slice(params);
        }
        let slow = self.learning_rate * rate;
        outer_step(start, params, &mut self.velocity, |g, u| {
            *u = beta * *u + g / rate;
            slow * *u
        });
    }

    fn vectors(&mut self) -> Vec<&mut Vec<f32>> {
        vec![&mut self.velocity]
    }
}
