//! EAMSGD: EASGD with Nesterov momentum in every worker (Zhang, Choromanska and LeCun 2015).
//!
//! ```text
//! worker, upon g = grad(x_i + δ·v):   v ← δ·v − η·Opt(g);   x_i ← x_i + v
//!     if t mod τ = 0:                 e = α·(x_i − x̃), before that step;  x_i ← x_i − e;  x̃ ← x̃ + e
//! ```
//! Worker, servers and what a lost worker means are those of `easgd.rs`; between steps a worker
//! holds x_i + δ·v, where its gradient is taken.

use super::easgd::{
    self, ElasticServer, FORM, LOST_PEER, MOVING_RATE, PERIOD, PREFETCH, SENDS, Worker,
};
use super::{Codecs, Entry};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec};

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "eamsgd",
        summary: "EASGD whose workers have Nesterov momentum",
        paper: "Zhang, Choromanska, LeCun 2015, arXiv:1412.6651",
        section: "Algorithm 2 (asynchronous EAMSGD)",
        file: file!(),
        options: &[
            MOVING_RATE,
            PERIOD,
            FORM,
            PREFETCH,
            OptionSpec {
                name: "momentum",
                kind: OptionKind::Real { default: 0.99, min: 0.0, max: 0.9999 },
                help: "share of the velocity that is kept at each step (δ)",
            },
        ],
    },
    sends: SENDS,
    lost_peer: LOST_PEER,
    resized: "workers begin at the centre with the mean of the optimizers; velocities are \
              reset to zero, and so are exchanges with the centre",
    check: |_| Ok(()),
    codecs: |_| Codecs::OF_MODELS,
    properties: easgd::properties,
    traffic: easgd::traffic,
    worker: |options| Box::new(Worker::new(options, options.real("momentum"))),
    server: Some(|options| Box::new(ElasticServer::new(options))),
};
