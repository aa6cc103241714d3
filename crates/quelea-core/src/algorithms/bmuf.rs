//! BMUF: block-wise model-update filtering (Chen and Huo 2016), with classic or Nesterov momentum.
//!
//! ```text
//! upon a gradient:     x_i ← x_i − η·Opt(g_i)
//! every H steps:       a = Σ_i x_i / n;   G = x₀ − a;   Δ ← μ·Δ − ζ·G
//!   classic:           x₀ ← x₀ + Δ
//!   nesterov:          Θ ← Θ + Δ;   x₀ ← Θ + μ·Δ,   that is   x₀ ← x₀ − ζ·G + μ·Δ
//!                      x_i ← x₀
//! ```
//! The Nesterov form deploys Θ: rounds start at x₀, which looks ahead of it by μ·Δ.
//! μ = 1 − 1/n by default, so that a round moves the model about as far as n workers together.
//! The rounds themselves, and what a lost worker means, are in `periodic.rs`.

use super::{Codecs, Entry};
use crate::collectives::average::COLLECTIVE;
use crate::kit::periodic::{
    self, BASE, BUFFERS, Outer, OuterRound, Periodic, outer_step, period_key,
};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};

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
            BASE,
            BUFFERS,
            COLLECTIVE,
        ],
    },
    sends: periodic::SENDS,
    lost_peer: periodic::LOST_EITHER,
    resized: periodic::RESIZED,
    check,
    codecs: |_| Codecs::OF_MOMENTUM,
    properties: periodic::properties_of_outer,
    traffic: periodic::traffic_of_outer,
    worker: |options| {
        let outer = Bmuf {
            nesterov: options.text("form") == "nesterov",
            momentum: options.real("block_momentum"),
            learning_rate: options.real("block_lr") as f32,
            update: Vec::new(),
            ahead: Vec::new(),
        };
        Box::new(Periodic::with_outer(options, Box::new(outer)))
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
    /// The μ of the last round, by which x₀ is ahead of Θ; empty before it, and in the classic form.
    ahead: Vec<f32>,
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
        if nesterov {
            self.ahead = vec![mu];
        }
    }

    fn vectors(&mut self) -> Vec<&mut Vec<f32>> {
        if self.nesterov { vec![&mut self.update, &mut self.ahead] } else { vec![&mut self.update] }
    }

    fn vector_len(&self, slot: usize, len: usize) -> usize {
        if slot == 0 { len } else { 1 }
    }

    fn look_back(&self) -> Option<(f32, &[f32])> {
        self.ahead.first().map(|mu| (*mu, &self.update[..]))
    }
}
