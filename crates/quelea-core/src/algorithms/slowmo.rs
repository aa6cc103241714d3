//! SlowMo: local steps with slow momentum over rounds (Wang et al. 2020, Algorithm 1).
//!
//! ```text
//! upon a gradient:     x_i ← x_i − γ·Opt(g_i)
//! every H steps:       a = Σ_i x_i / n;   G = x₀ − a
//!                      u ← β·u + G/γ;   x₀ ← x₀ − α·γ·u;   x_i ← x₀
//! ```
//! γ is the learning rate of the round's last step: when it changes, the momentum is rescaled,
//! unlike BMUF's. Where it is 0 the average is taken as it is. The rounds themselves, and what a
//! lost worker means, are in `periodic.rs`.

use super::periodic::{self, BUFFERS, Every, Outer, OuterRound, Periodic, outer_step, period_key};
use super::{Codecs, Entry};
use crate::collectives::average::COLLECTIVE;
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec};
use crate::properties::{Properties, TopologyRequirement};

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
            BUFFERS,
            COLLECTIVE,
        ],
    },
    sends: "the model around a ring, 2(n−1)/n of it, once per `period` steps; nothing in between",
    lost_peer: periodic::LOST_PEER,
    resized: periodic::RESIZED,
    check: |_| Ok(()),
    codecs: |_| Codecs::OF_MOMENTUM,
    properties: |options| Properties {
        keeps_mean: false,
        reloadable: false,
        ..periodic::properties(options, TopologyRequirement::Nothing)
    },
    traffic: periodic::traffic,
    worker: |options| {
        let outer = SlowMo {
            momentum: options.real("slow_momentum") as f32,
            learning_rate: options.real("slow_lr") as f32,
            velocity: Vec::new(),
        };
        Box::new(Periodic::new(options, Box::new(Every(options.whole("period"))), Box::new(outer)))
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
