//! Gossip-PGA: gossip with a periodic global average (Chen et al. 2021, Algorithm 1).
//!
//! ```text
//! upon a gradient at step k:          x½ ← x_i − η·Opt(g_i)
//!     if (k + 1) mod H = 0:           x_i ← Σ_j x½_j / n            exact average over all
//!     else:                           x_i ← Σ_j W_ij x½_j           over the neighbours
//! ```
//! The rounds themselves, and what a lost worker means, are in `periodic.rs` and `exchange.rs`.

use super::{Codecs, Entry};
use crate::collectives::average::COLLECTIVE;
use crate::kit::periodic::{self, BUFFERS, Every, Periodic, PlainAveraging, period_key};
use crate::meta::Meta;
use crate::properties::TopologyRequirement;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "gossip-pga",
        summary: "gossip, and every `period` steps an exact average over all workers",
        paper: "Chen et al. 2021, arXiv:2105.09080",
        section: "Algorithm 1",
        file: file!(),
        options: &[period_key(6), BUFFERS, COLLECTIVE],
    },
    sends: "the model to every neighbour per step; every `period` steps 2(n−1)/n of it around a \
            ring instead",
    lost_peer: periodic::LOST_NEIGHBOUR,
    resized: periodic::RESIZED,
    check: |_| Ok(()),
    codecs: |_| Codecs::OF_MODELS,
    properties: |options| periodic::properties(options, TopologyRequirement::Mixing),
    traffic: periodic::traffic_with_gossip,
    worker: |options| {
        let period = Box::new(Every(options.whole("period")));
        Box::new(Periodic::new(options, period, Box::new(PlainAveraging)).with_gossip())
    },
    server: None,
};
