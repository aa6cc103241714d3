//! Gossip-AGA: gossip with global averages that become rarer as the loss falls (Chen et al. 2021,
//! Algorithm 2).
//!
//! ```text
//! upon a gradient:                    x½ ← x_i − η·Opt(g_i);   C ← C + 1
//!     if C < H:                       x_i ← Σ_j W_ij x½_j           over the neighbours
//!     else:                           x_i ← Σ_j x½_j / n;   C ← 0   exact average over all
//!         F = mean loss of all workers since the last average
//!         during warm-up:             F_init ← (F_init + F)/2       the first F as it is
//!         after it:                   H ← ⌈F_init/F · H_init⌉,  from 1 to H_max
//! ```
//! F is averaged with the model, so that all compute the same H. The rounds themselves, and what
//! a lost worker means, are in `periodic.rs` and `exchange.rs`.

use super::{Codecs, Entry};
use crate::collectives::average::COLLECTIVE;
use crate::contract::Context;
use crate::kit::periodic::{self, BUFFERS, Period, Periodic, PlainAveraging};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::properties::{Properties, TopologyRequirement};
use crate::state::Visitor;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "gossip-aga",
        summary: "gossip with exact averages over all workers, rarer as the loss falls",
        paper: "Chen et al. 2021, arXiv:2105.09080",
        section: "Algorithm 2",
        file: file!(),
        options: &[
            OptionSpec {
                name: "period",
                kind: OptionKind::Whole { default: 4, min: 1, max: u64::MAX },
                help: "steps from one exact average to the next at the beginning (H_init)",
            },
            OptionSpec {
                name: "period_max",
                kind: OptionKind::Whole { default: 64, min: 1, max: u64::MAX },
                help: "the most steps from one exact average to the next",
            },
            OptionSpec {
                name: "warmup_steps",
                kind: OptionKind::Whole { default: 100, min: 0, max: u64::MAX },
                help: "steps in which the initial loss is measured and the period stays",
            },
            BUFFERS,
            COLLECTIVE,
        ],
    },
    sends: "the model to every neighbour per step; every H steps 2(n−1)/n of it around a ring \
            instead, with one number for the loss",
    lost_peer: periodic::LOST_NEIGHBOUR,
    resized: "every worker begins with the mean of the models and of the optimizers; the \
              period is reset to its first value",
    check: |options| {
        if options.whole("period") > options.whole("period_max") {
            return Err("`period` must not exceed `period_max`");
        }
        Ok(())
    },
    codecs: |_| Codecs::OF_MODELS,
    properties: |options| Properties {
        needs_loss: true,
        ..periodic::properties(options, TopologyRequirement::Mixing)
    },
    // The period of the beginning: that of later depends on the loss, and is longer.
    traffic: periodic::traffic_with_gossip,
    worker: |options| {
        let period = Box::new(Adaptive::new(options));
        Box::new(Periodic::new(options, period, Box::new(PlainAveraging)).with_gossip())
    },
    server: None,
};

/// A period that follows the loss.
struct Adaptive {
    /// H_init
    initial: u64,
    /// H
    period: u64,
    period_max: u64,
    warmup_steps: u64,
    /// Steps of this round, this one included: C.
    steps: u64,
    /// Steps in all, this one included.
    total: u64,
    /// F: the sum of the losses while the round lasts, then their mean over all workers.
    loss: f32,
    /// F_init; 0 before the first average.
    initial_loss: f64,
}

impl Adaptive {
    fn new(options: &Options) -> Adaptive {
        Adaptive {
            initial: options.whole("period"),
            period: options.whole("period"),
            period_max: options.whole("period_max"),
            warmup_steps: options.whole("warmup_steps"),
            steps: 0,
            total: 0,
            loss: 0.0,
            initial_loss: 0.0,
        }
    }
}

impl Period for Adaptive {
    fn is_due(&mut self, cx: &Context<'_>) -> bool {
        (self.steps, self.total) = (self.steps + 1, cx.step + 1);
        self.steps >= self.period
    }

    fn on_loss(&mut self, loss: f32) {
        // A running mean, so that it is one at the end of the round whatever H is.
        self.loss += (loss - self.loss) / self.steps as f32;
    }

    fn numbers(&mut self) -> &mut [f32] {
        std::slice::from_mut(&mut self.loss)
    }

    fn on_average(&mut self) {
        let loss = f64::from(self.loss);
        if self.initial_loss == 0.0 {
            self.initial_loss = loss;
        } else if self.total <= self.warmup_steps {
            self.initial_loss = (self.initial_loss + loss) / 2.0;
        } else {
            let period = (self.initial_loss / loss * self.initial as f64).ceil();
            self.period = (period as u64).clamp(1, self.period_max);
        }
        (self.steps, self.loss) = (0, 0.0);
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.number("period", &mut self.period);
        visitor.number("steps_of_round", &mut self.steps);
        visitor.real("initial_loss", &mut self.initial_loss);
        let mut loss = f64::from(self.loss);
        visitor.real("loss", &mut loss);
        self.loss = loss as f32;
    }
}
