//! DiLoCo: many local steps, then one step of Nesterov SGD on the way they went together
//! (Douillard et al. 2023, Algorithm 1).
//!
//! ```text
//! upon a gradient:     x_i ← x_i − η·Opt(g_i)                the paper's Opt is AdamW
//! every H steps:       a = Σ_i x_i / n;   G = x₀ − a
//!                      v ← μ·v + G;   x₀ ← x₀ − lr·(G + μ·v);   x_i ← x₀
//! ```
//! With `nesterov = false` the last line is x₀ − lr·v. The optimizer's state stays local. The
//! rounds themselves, and what a lost worker means, are in `periodic.rs`.

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
        name: "diloco",
        summary: "hundreds of local steps, then one Nesterov step on what they achieved together",
        paper: "Douillard et al. 2023, arXiv:2311.08105",
        section: "Algorithm 1",
        file: file!(),
        options: &[
            period_key(500),
            OptionSpec {
                name: "outer_lr",
                kind: OptionKind::Real { default: 0.7, min: 0.0, max: 100.0 },
                help: "learning rate of the outer step",
            },
            OptionSpec {
                name: "outer_momentum",
                kind: OptionKind::Real { default: 0.9, min: 0.0, max: 0.9999 },
                help: "share of the outer velocity that is kept per round (μ)",
            },
            OptionSpec {
                name: "nesterov",
                kind: OptionKind::Flag(true),
                help: "look ahead along the outer velocity; false is heavy-ball momentum",
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
        let outer = DiLoCo {
            learning_rate: options.real("outer_lr") as f32,
            momentum: options.real("outer_momentum") as f32,
            nesterov: options.flag("nesterov"),
            velocity: Vec::new(),
        };
        Box::new(Periodic::with_outer(options, Box::new(outer)))
    },
    server: None,
};

struct DiLoCo {
    learning_rate: f32,
    momentum: f32,
    nesterov: bool,
    /// v
    velocity: Vec<f32>,
}

impl Outer for DiLoCo {
    fn step(&mut self, _round: OuterRound, start: &mut [f32], params: &mut [f32]) {
        let (lr, mu, nesterov) = (self.learning_rate, self.momentum, self.nesterov);
        outer_step(start, params, &mut self.velocity, |g, v| {
            *v = mu * *v + g;
            lr * if nesterov { g + mu * *v } else { *v }
        });
    }

    fn vectors(&mut self) -> Vec<&mut Vec<f32>> {
        vec![&mut self.velocity]
    }
}
