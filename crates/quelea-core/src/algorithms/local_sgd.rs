//! Local SGD (McMahan et al. 2017, Stich 2019) and post-local SGD (Lin et al. 2020).
//!
//! ```text
//! upon a gradient:               x_i ← x_i − η·Opt(g_i)
//! every H steps:                 x_i ← Σ_j x_j / n
//! post-local:                    H = 1 until `start_step`, or until η first drops; then H
//! ```
//! The rounds themselves, and what a lost worker means, are in `periodic.rs`. With plain SGD and
//! H = 1 this is AllReduce SGD.

use super::{Codecs, Entry};
use crate::collectives::average::COLLECTIVE;
use crate::contract::Context;
use crate::kit::periodic::{self, BUFFERS, Period, Periodic, PlainAveraging, period_key};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::properties::TopologyRequirement;
use crate::state::Visitor;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "local-sgd",
        summary: "local steps; every `period` steps all models are averaged exactly",
        paper: "McMahan et al. 2017, arXiv:1602.05629; Stich 2019, arXiv:1805.09767; post-local: Lin \
            et al. 2020, arXiv:1808.07217",
        section: "Algorithm 1 of McMahan et al. with all clients, Algorithm 1 of Stich",
        file: file!(),
        options: &[
            period_key(8),
            OptionSpec {
                name: "start_step",
                kind: OptionKind::Whole { default: 0, min: 0, max: u64::MAX },
                help: "post-local: average at every step before this one",
            },
            OptionSpec {
                name: "after_drop",
                kind: OptionKind::Flag(false),
                help: "post-local: average at every step until the learning rate first drops",
            },
            BUFFERS,
            COLLECTIVE,
        ],
    },
    sends: "the model around a ring, 2(n−1)/n of it, once per `period` steps; nothing in between",
    lost_peer: periodic::LOST_PEER,
    resized: periodic::RESIZED,
    check: |_| Ok(()),
    codecs: |_| Codecs::All,
    properties: |options| periodic::properties(options, TopologyRequirement::Nothing),
    traffic: periodic::traffic,
    worker: |options| {
        Box::new(Periodic::new(
            options,
            Box::new(PostLocal::new(options)),
            Box::new(PlainAveraging),
        ))
    },
    server: None,
};

/// Every step at first, every H steps later.
struct PostLocal {
    period: u64,
    start_step: u64,
    /// Whether the learning rate has not dropped yet, where that is waited for.
    before_drop: bool,
    /// The highest learning rate so far.
    highest: f32,
}

impl PostLocal {
    fn new(options: &Options) -> PostLocal {
        PostLocal {
            period: options.whole("period"),
            start_step: options.whole("start_step"),
            before_drop: options.flag("after_drop"),
            highest: 0.0,
        }
    }
}

impl Period for PostLocal {
    fn is_due(&mut self, cx: &Context<'_>) -> bool {
        self.before_drop &= cx.learning_rate >= self.highest;
        self.highest = self.highest.max(cx.learning_rate);
        let every_step = self.before_drop || cx.step < self.start_step;
        every_step || (cx.step + 1).is_multiple_of(self.period)
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        let mut highest = f64::from(self.highest);
        visitor.flag("before_drop", &mut self.before_drop);
        visitor.real("highest_rate", &mut highest);
        self.highest = highest as f32;
    }
}
