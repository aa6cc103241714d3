//! BMUF: block-wise model-update filtering (Chen and Huo 2016), with classic or Nesterov momentum.
//!
//! ```text
//! upon a gradient:     x_i ← x_i − η·Opt(g_i)
//! every H steps:       a = Σ_i x_i / n;   G = x₀ − a;   Δ ← μ·Δ − ζ·G
//!   classic:           x₀ ← x₀ + Δ
//!   nesterov:          Θ ← Θ + Δ;   x₀ ← Θ + μ·Δ,   that is   x₀ ← x₀ − ζ·G + μ·Δ
//!                      x_i ← x₀
//! ```
//! μ = 1 − 1/n by default, so that a round moves the model about as far as n workers together.
//! The rounds themselves, and what a lost worker means, are in `periodic.rs`.

use super::periodic::{self, BUFFERS, Every, Outer, OuterRound, Periodic, outer_step, period_key};
use super::{Codecs, Entry};
use crate::collectives::average::COLLECTIVE;
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::properties::{Properties, TopologyRequirement};

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "bmuf",
        summary: "Local SGD whose averages are filtered by block momentum",
        paper: "Chen and Huo 2016 (ICASSP)",
        section: "the sections on classic and on Nesterov block momentum",
        file: file!(),
        options: &[
            period_key(16),
            OptionSpec {
                name: "form",
                kind: OptionKind::Choice(&["classic", "nesterov"]),
                help: "block momentum as it is, or looking ahead along it",
            },
            OptionSpec {
                name: "block_momentum",
                kind: OptionKind::Real { default: -1.0, min: -1.0, max: 0.9999 },
                help: "share of the last block's update that is kept (μ); −1 means 1 − 1/n",
            },
            OptionSpec {
                name: "block_lr",
                kind: OptionKind::Real { default: 1.0, min: 0.0, max: 100.0 },
                help: "learning rate of the blocks (ζ)",
            },
            BUFFERS,
            COLLECTIVE,
        ],
    },
    sends: "the model around a ring, 2(n−1)/n of it, once per `period` steps; nothing in between",
    lost_peer: periodic::LOST_PEER,
    resized: periodic::RESIZED,
    check,
    codecs: |_| Codecs::OF_MOMENTUM,
    properties: |options| Properties {
        keeps_mean: false,
        reloadable: false,
        ..periodic::properties(options, TopologyRequirement::Nothing)
    },
    traffic: periodic::traffic,
    worker: |options| {
        let outer = Bmuf {
            nesterov: options.text("form") == "nesterov",
            momentum: options.real("block_momentum"),
            learning_rate: options.real("block_lr") as f32,
            update: Vec::new(),
        };
        Box::new(Periodic::new(options, Box::new(Every(options.whole("period"))), Box::new(outer)))
    },
    server: None,
};

fn check(options: &Options) -> Result<(), &'static str> {
    let momentum = options.real("block_momentum");
    if momentum < 0.0 && momentum != -1.0 {
        return Err("`block_momentum` must be from 0 to 0.9999, or −1 for 1 − 1/n");
    }
    Ok(())
}

struct Bmuf {
    nesterov: bool,
    momentum: f64,
    learning_rate: f32,
    /// −Δ
    update: Vec<f32>,
}

impl Outer for Bmuf {
    fn step(&mut self, round: OuterRound, start: &mut [f32], params: &mut [f32]) {
        let mu = match self.momentum {
            -1.0 => 1.0 - 1.0 / round.workers as f64,
            momentum => momentum,
        } as f32;
        let (zeta, nesterov) = (self.learning_rate, self.nesterov);
        outer_step(start, params, &mut self.update, |g, update| {
            *update = mu * *update + zeta * g;
            if nesterov { zeta * g + mu * *update } else { *update }
        });
    }

    fn vectors(&mut self) -> Vec<&mut Vec<f32>> {
        vec![&mut self.update]
    }
}
