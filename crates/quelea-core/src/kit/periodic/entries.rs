//! What the entries of all methods with periodic averages have in common.

use crate::algorithms::{Gathers, Traffic, When};
use crate::options::{OptionKind, OptionSpec, Options};
use crate::properties::{
    Budget, DeployedFrom, OptimizerRequirement, OptimizerSite, OptimizerState, Properties,
    TopologyRequirement,
};

/// The option of all methods that average.
pub const BUFFERS: OptionSpec = OptionSpec {
    name: "buffers",
    kind: OptionKind::Choice(&["keep", "reset", "average"]),
    help: "what an average does to the optimizer's own vectors (momentum, moments)",
};

/// The option of methods with an outer optimizer.
pub const BASE: OptionSpec = OptionSpec {
    name: "base",
    kind: OptionKind::Choice(&["local", "sgp"]),
    help: "what workers do between averages: steps of their own, or SGP, which pushes the model \
           along the topology at every step (weights must be doubly stochastic; they are on \
           exponential graphs)",
};

/// What a run resumed with another number of workers starts from.
pub const RESIZED: &str = "every worker starts a round from the mean of the models and of the \
                                  optimizers; the outer rule's momentum is reset";

/// What a lost worker means where nothing is exchanged between averages.
pub const LOST_PEER: &str = "the average is restarted among the survivors from their kept \
    models; a worker that missed an average which others have finished gets their result";

/// What a lost worker means where there may be gossip between averages.
pub const LOST_EITHER: &str = "the average is restarted among the survivors from their kept \
    models; a worker that missed an average which others have finished gets their result; with \
    base = \"sgp\" its weight goes to the receivers at once, and the topology is rebuilt over the \
    survivors from an agreed step on";

/// What methods with an outer optimizer send.
pub const SENDS: &str = "the model around a ring, 2(n−1)/n of it, once per `period` steps; nothing in \
    between, or with base = \"sgp\" the model to every out-neighbour per step";

/// What a lost worker means where there is gossip between averages.
pub const LOST_NEIGHBOUR: &str = "its weight goes to the receivers at once, and the \
    topology is rebuilt over the survivors from an agreed step on; an exact average is restarted \
    among the survivors, and a worker that missed one which others have finished gets their result";

/// The properties of all these methods.
pub fn properties(options: &Options, topology: TopologyRequirement) -> Properties {
    let keeps_state = options.text(BUFFERS.name) == "keep";
    Properties {
        synchronous: true,
        snapshot: false,
        servers: false,
        deploy: DeployedFrom::Workers,
        budget: Budget::Rounds,
        topology,
        optimizer: OptimizerSite::Workers,
        reads_gradient: false,
        clips_itself: false,
        keeps_mean: true,
        optimizer_rule: OptimizerRequirement::Any,
        waits_for_peers: true,
        own_start: false,
        reloadable: true,
        needs_loss: false,
        optimizer_state: if keeps_state {
            OptimizerState::Kept
        } else {
            OptimizerState::Synchronized
        },
    }
}

/// The properties of methods with an outer optimizer.
pub fn properties_of_outer(options: &Options) -> Properties {
    let gossips = options.text(BASE.name) == "sgp";
    let topology = if gossips { TopologyRequirement::Mixing } else { TopologyRequirement::Nothing };
    Properties { keeps_mean: false, reloadable: false, ..properties(options, topology) }
}

/// The traffic of methods with an outer optimizer.
pub fn traffic_of_outer(options: &Options) -> Traffic {
    match options.text(BASE.name) {
        "sgp" => traffic_with_gossip(options),
        _ => traffic(options),
    }
}

/// The traffic of methods without gossip.
pub fn traffic(options: &Options) -> Traffic {
    Traffic::Average { period: options.whole("period") }
}

/// That of methods with gossip.
pub fn traffic_with_gossip(options: &Options) -> Traffic {
    let average = Some(options.whole("period"));
    Traffic::Gossip {
        vectors: 1,
        when: When::AfterGradient,
        every: 1,
        average,
        gathers: Gathers::Means,
    }
}
