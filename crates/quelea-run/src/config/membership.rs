//! `[membership]`: what happens in a real run when processes are lost, leave or join.

use quelea_core::options::{OptionKind, OptionSpec};
use quelea_net::{LossPolicy, NetOptions, QuorumRule, SilenceLimits};

use super::Config;

/// The keys of `[membership]`.
pub const MEMBERSHIP: &[OptionSpec] = &[
    OptionSpec {
        name: "on_loss",
        kind: OptionKind::Choice(&["continue", "stop"]),
        help: "when a worker is lost in `train`, `serve` or `launch`: the others continue, or the run \
               stops and saves what it can",
    },
    OptionSpec {
        name: "min_workers",
        kind: OptionKind::Whole { default: 1, min: 1, max: 100_000 },
        help: "below this many workers the run waits for others to join, and then stops and saves what it can",
    },
    OptionSpec {
        name: "wait_seconds",
        kind: OptionKind::Real { default: 0.0, min: 0.0, max: 1e6 },
        help: "for how long a run with fewer than `min_workers` waits for others to join; 0 = not at all",
    },
    OptionSpec {
        name: "max_workers",
        kind: OptionKind::Whole { default: 0, min: 0, max: 100_000 },
        help: "up to this many workers may take part at a time, those who join later included; 0 = `workers`",
    },
    OptionSpec {
        name: "quorum",
        kind: OptionKind::Choice(&["majority", "any"]),
        help: "who continues when the coordinator is lost or the network parts: more than half of the workers \
               (or half with the coordinator), or those who are left, on a network that does not part",
    },
    OptionSpec {
        name: "reconnect_seconds",
        kind: OptionKind::Real { default: 10.0, min: 0.0, max: 3600.0 },
        help: "for how long a connection between workers of two machines that broke may be restored, while both \
               live; 0 = not at all. The last 16 MiB to each are kept, to be sent again",
    },
    OptionSpec {
        name: "silence_floor_seconds",
        kind: OptionKind::Real { default: 1.5, min: 0.1, max: 30.0 },
        help: "a process that is silent for less is not suspected, however regular its heartbeats were",
    },
    OptionSpec {
        name: "silence_ceiling_seconds",
        kind: OptionKind::Real { default: 30.0, min: 0.1, max: 30.0 },
        help: "a process that is silent for longer is lost, however irregular its heartbeats were",
    },
];

impl Config {
    /// What happens when a worker is lost in a real run.
    pub fn loss_policy(&self) -> LossPolicy {
        match self.membership.text("on_loss") {
            "stop" => LossPolicy::Stop,
            _ => {
                LossPolicy::Continue { min_workers: self.membership.whole("min_workers") as usize }
            }
        }
    }

    /// Who continues in a real run when the coordinator is lost.
    pub fn quorum(&self) -> QuorumRule {
        match self.membership.text("quorum") {
            "any" => QuorumRule::Any,
            _ => QuorumRule::Majority,
        }
    }

    /// How a real run is to survive losses.
    pub fn net_options(&self) -> NetOptions {
        NetOptions {
            on_loss: self.loss_policy(),
            silence: self.silence_limits(),
            quorum: self.quorum(),
            joiner_seconds: self.membership.real("wait_seconds"),
            reconnect_seconds: self.membership.real("reconnect_seconds"),
            transport: self.transport,
            ..NetOptions::default()
        }
    }

    /// How long a process may be silent in a real run.
    pub fn silence_limits(&self) -> SilenceLimits {
        SilenceLimits {
            floor_seconds: self.membership.real("silence_floor_seconds"),
            ceiling_seconds: self.membership.real("silence_ceiling_seconds"),
        }
    }
}
