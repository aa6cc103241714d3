//! `[chaos]`: random faults of a simulated run.

use quelea_core::options::{OptionKind, OptionSpec, Options};
use quelea_sim::Faults;
use quelea_sim::chaos::{ChaosOptions, ChaosTarget};

/// The keys of `[chaos]`.
pub const KEYS: &[OptionSpec] = &[
    OptionSpec {
        name: "incidents",
        kind: OptionKind::Whole { default: 0, min: 0, max: 1_000_000 },
        help: "how often something goes wrong in `simulate`: two faults at about the same time; 0 = never",
    },
    OptionSpec {
        name: "mean_ms",
        kind: OptionKind::Real { default: 1000.0, min: 1e-3, max: 1e8 },
        help: "mean time between two incidents, exponentially distributed",
    },
    OptionSpec {
        name: "crashes",
        kind: OptionKind::Flag(true),
        help: "workers are lost: they crash, or nobody reaches them any more",
    },
    OptionSpec { name: "leaves", kind: OptionKind::Flag(true), help: "workers leave with notice" },
    OptionSpec {
        name: "joins",
        kind: OptionKind::Flag(false),
        help: "workers join in the place of those who were lost or have left; they may be lost again",
    },
    OptionSpec {
        name: "pauses",
        kind: OptionKind::Flag(true),
        help: "ranks stand still for a while",
    },
    OptionSpec {
        name: "links",
        kind: OptionKind::Flag(true),
        help: "links become slow, or two ranks do not reach each other for a while",
    },
    OptionSpec {
        name: "control",
        kind: OptionKind::Flag(true),
        help: "control messages arrive late; not with cluster.control = \"free\"",
    },
    OptionSpec {
        name: "splits",
        kind: OptionKind::Flag(false),
        help: "the cluster falls into two sides; only with cluster.control = \"worker\"",
    },
    OptionSpec {
        name: "survivors",
        kind: OptionKind::Whole { default: 1, min: 1, max: 100_000 },
        help: "this many workers are never lost and never leave",
    },
];

/// Adds the random faults of a run with this `seed` to those that were written.
pub fn add(options: &Options, seed: u64, target: ChaosTarget, faults: &mut Faults) {
    let chaos = ChaosOptions {
        incidents: options.whole("incidents") as u32,
        mean_ms: options.real("mean_ms"),
        crashes: options.flag("crashes"),
        leaves: options.flag("leaves"),
        joins: options.flag("joins"),
        pauses: options.flag("pauses"),
        links: options.flag("links"),
        control: options.flag("control"),
        splits: options.flag("splits"),
        survivors: options.whole("survivors") as u32,
    };
    let drawn = chaos.draw(seed, target);
    faults.crashes.extend(drawn.crashes);
    faults.leaves.extend(drawn.leaves);
    faults.joins.extend(drawn.joins);
    faults.pauses.extend(drawn.pauses);
    faults.partitions.extend(drawn.partitions);
    faults.pair_partitions.extend(drawn.pair_partitions);
    faults.control_delays.extend(drawn.control_delays);
    faults.splits.extend(drawn.splits);
    faults.rules.extend(drawn.rules);
}
