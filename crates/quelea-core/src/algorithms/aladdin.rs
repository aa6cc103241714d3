//! ALADDIN: asymmetric parameter-server training (Ko et al., CIKM 2021).
//!
//! ```text
//! worker, upon bucket b of g:        Δ = η·Opt(g[b]);  x_i ← x_i − Δ            (local self-update)
//!                                    push Δ; while the last push is not acknowledged, fold into the next
//!                                    if a model x̃ has come:  x_i ← x_i + α(x̃ − x_i)    (triggered by the server)
//!   with `order` = "mix-then-step":  if a model x̃ has come:  x_i ← x_i + α(x̃ − x_i);  then x_i ← x_i − Δ;  push Δ
//! worker, upon an acknowledgement:   push what was folded meanwhile
//! server, upon Δ of k gradients from i:  D ← D + Δ;  c ← c + k;  c_i ← c_i + k;  acknowledge
//!                                    if c_i ≥ π:  x̃ ← x̃ − D/n;  D, c, c_i ← 0;  send x̃ to i     (lazy update)
//!   with `self_update` = false:      x_i ← x_i − Δ is left out: naive asymmetric training, in which gradients are
//!                                    of the model that came last (α = 1), up to π steps old
//! with a codec C:                    a push is C(Δ + e), and e what C left out; the last one is exact
//! upon a lost worker, server:        x̃ ← x̃ − D/n with the old n; then n ← n − 1
//! ```
//! The published pseudocode drops the gradient that triggers an update and normalises after use;
//! with `normaliser = "workers"` every gradient moves x̃ by η/n exactly once, so that x̃ follows
//! the mean of the workers (Lemma 1). The printed order steps, then mixes with a model that does not
//! contain the step, and so takes back a share α of it; `mix-then-step` keeps all of it, and one
//! worker alone is then plain SGD for any α. What servers are sent does not depend on the order. A
//! worker never waits for a server. Every piece (a bucket's
//! part on one server) runs the protocol for itself.

mod barrier;
mod normaliser;
mod server;
mod worker;

use super::{Codecs, Entry, Service, Traffic};
use crate::contract::Mode;
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::properties::{
    Budget, DeployedFrom, OptimizerRequirement, OptimizerSite, OptimizerState, Properties,
    TopologyRequirement,
};
use barrier::{BarrierServer, BarrierWorker};
use server::Server;
use worker::Worker;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "aladdin",
        summary: "workers update themselves and never wait; servers answer with the global model now \
              and then",
        paper: "Ko, Choi, Jei, Lee, Kim 2021 (CIKM)",
        section: "Algorithm 1 (worker), Algorithm 2 (server), with every gradient counted once and divided \
         by the number of workers, as Lemma 1 asks; the mixing matrix is equation (6)",
        file: file!(),
        options: &[
            OptionSpec {
                name: "alpha",
                kind: OptionKind::Real { default: 0.5, min: f64::MIN_POSITIVE, max: 1.0 },
                help: "how far a worker moves to the global model when one comes",
            },
            OptionSpec {
                name: "period",
                kind: OptionKind::Whole { default: 4, min: 1, max: 1 << 32 },
                help: "gradients of a worker per model sent back to it (π)",
            },
            OptionSpec {
                name: "order",
                kind: OptionKind::Choice(&["step-then-mix", "mix-then-step"]),
                help: "as printed, or mixing before the step, so that no share of the newest step \
                       is taken back; better where models come often (small `period`)",
            },
            OptionSpec {
                name: "payload",
                kind: OptionKind::Choice(&["delta", "gradient"]),
                help: "send displacements η·u, or plain gradients that the server scales",
            },
            OptionSpec {
                name: "normaliser",
                kind: OptionKind::Choice(&["workers", "count", "none"]),
                help: "the server divides by n, by the number of gradients, or not (ablations)",
            },
            OptionSpec {
                name: "track_mean",
                kind: OptionKind::Flag(false),
                help: "also report mixing to the server, so that its model is the workers' mean exactly",
            },
            OptionSpec {
                name: "barrier",
                kind: OptionKind::Flag(false),
                help: "synchronous form: everybody mixes every `period` steps with the same model",
            },
            OptionSpec {
                name: "drop_trigger",
                kind: OptionKind::Flag(false),
                help: "lose the gradient that triggers an update, as published (ablation)",
            },
            OptionSpec {
                name: "self_update",
                kind: OptionKind::Flag(true),
                help: "workers take their own steps; without, and with `alpha` = 1, this is naive \
                       asymmetric training (ablation)",
            },
        ],
    },
    sends: "its displacement to the servers per step, folded while one is on its way; a model \
            back per `period` gradients",
    lost_peer: "its displacements stay; the servers continue with one worker less",
    resized: "workers and servers begin with the deployed model, what was pending taken in, \
              and with the mean of the optimizers; ledgers and counts are reset",
    check,
    codecs: |_| Codecs::Feedback,
    properties: |options| {
        let barrier = options.flag("barrier");
        Properties {
            synchronous: barrier,
            snapshot: false,
            servers: true,
            deploy: DeployedFrom::Servers,
            budget: if barrier { Budget::Rounds } else { Budget::TotalGradients },
            topology: TopologyRequirement::Nothing,
            optimizer: OptimizerSite::Workers,
            reads_gradient: options.text("payload") == "gradient",
            clips_itself: options.text("payload") == "gradient",
            keeps_mean: false,
            optimizer_rule: if options.text("payload") == "gradient" {
                OptimizerRequirement::PlainSgd(PLAIN_SGD)
            } else {
                OptimizerRequirement::Any
            },
            waits_for_peers: barrier,
            own_start: false,
            reloadable: false,
            needs_loss: false,
            optimizer_state: OptimizerState::Kept,
        }
    },
    traffic: |options| {
        Traffic::Servers(Service::Folded {
            period: options.whole("period"),
            alpha: options.real("alpha"),
        })
    },
    worker: |options| {
        if options.flag("barrier") {
            Box::new(BarrierWorker::new(options))
        } else {
            Box::new(Worker::new(options))
        }
    },
    server: Some(|options| {
        if options.flag("barrier") {
            Box::new(BarrierServer::new(options))
        } else {
            Box::new(Server::new(options))
        }
    }),
};

/// Why servers that get gradients need plain SGD at the workers.
const PLAIN_SGD: &str = "with `algorithm.payload` = \"gradient\" the servers take plain SGD steps, \
                         and the workers' steps must be the same; use `optimizer.name` = \"sgd\" \
                         without momentum and weight decay, or `algorithm.payload` = \"delta\"";

fn check(options: &Options) -> Result<(), &'static str> {
    let (gradient, barrier) = (options.text("payload") == "gradient", options.flag("barrier"));
    if options.flag("track_mean") && gradient {
        return Err(
            "`track_mean` needs payload = \"delta\": mixing is a displacement, no gradient",
        );
    }
    let is_ablated = options.flag("drop_trigger") || options.text("normaliser") != "workers";
    if !options.flag("self_update") && (barrier || is_ablated || options.flag("track_mean")) {
        return Err(
            "`self_update` = false is an ablation of the asynchronous form as it is by default: \
                    leave `barrier`, `drop_trigger`, `normaliser` and `track_mean` alone",
        );
    }
    if barrier && gradient {
        return Err("`barrier` needs payload = \"delta\"");
    }
    if barrier && (options.flag("track_mean") || options.flag("drop_trigger")) {
        return Err(
            "`barrier` keeps the mean exactly: `track_mean` and `drop_trigger` make no sense",
        );
    }
    Ok(())
}

/// Which comes first when a model is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MixOrder {
    /// `x ← (x − Δ) + α(x̃ − (x − Δ))`, as printed.
    StepThenMix,
    /// `x ← x + α(x̃ − x) − Δ`.
    MixThenStep,
}

impl MixOrder {
    fn new(options: &Options) -> MixOrder {
        match options.text("order") {
            "step-then-mix" => MixOrder::StepThenMix,
            _ => MixOrder::MixThenStep,
        }
    }

    /// What the optimizer is asked for: mixing comes before the step that it makes of the gradient.
    fn mode(self) -> Mode {
        match self {
            MixOrder::StepThenMix => Mode::ApplyAndReport,
            MixOrder::MixThenStep => Mode::Displace,
        }
    }
}

const PUSH: u8 = 1;
const ACKNOWLEDGE: u8 = 2;
const MODEL: u8 = 3;
/// A push that carries the worker's whole piece of the model; see `track_mean` in the server.
const ANCHOR: u8 = 4;
