//! Properties of an algorithm: what drivers and tools ask of it instead of knowing its name.

use std::sync::Arc;

use crate::optim;
use crate::options::Options;
use crate::topology::{self, Round, Schedule};

/// What drivers need to know of an algorithm, so that none of them knows one by name. Values may
/// depend on the algorithm's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Same bits under any timing.
    pub synchronous: bool,
    /// Parameters may change while a gradient is computed: drivers compute on a copy.
    pub snapshot: bool,
    /// Needs at least one server.
    pub servers: bool,
    /// Whose model is deployed.
    pub deploy: DeployedFrom,
    /// When a run ends.
    pub budget: Budget,
    /// What it asks of the topology.
    pub topology: TopologyRequirement,
    /// Where the optimizer runs.
    pub optimizer: OptimizerSite,
    /// The algorithm looks at gradients before the optimizer does. Where it does not, an optimizer
    /// [outside](crate::node::Node::optimize_outside) may have its gradients from elsewhere.
    pub reads_gradient: bool,
    /// The algorithm clips gradients itself, with [`Context::clip`](crate::contract::Context::clip); the optimizer does not.
    pub clips_itself: bool,
    /// With a zero learning rate the mean of the workers never changes.
    pub keeps_mean: bool,
    /// What it asks of the optimizer.
    pub optimizer_rule: OptimizerRequirement,
    /// A worker may have to wait for a slower one (then idle time before the slower one's
    /// gradient is waiting, not communication).
    pub waits_for_peers: bool,
    /// Workers may start from different parameters. Where they may not, a run that starts from
    /// parameters that differ between workers starts from their mean.
    pub own_start: bool,
    /// Between two steps a worker's parameters are all that determines its model: a training
    /// script may replace them, and the run continues from the new ones. Elsewhere the algorithm
    /// also holds models in messages, sums or at servers, and would mix them with the new ones.
    pub reloadable: bool,
    /// The algorithm uses the loss of every gradient ([`Context::loss`](crate::contract::Context::loss)).
    pub needs_loss: bool,
    /// What the algorithm does to the state of the workers' optimizer.
    pub optimizer_state: OptimizerState,
}

/// Whose model is deployed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeployedFrom {
    /// The mean of the workers.
    Workers,
    /// The servers' shards.
    Servers,
}

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// Every worker does `steps` rounds.
    Rounds,
    /// All workers together do `workers × steps` gradients, in any division.
    TotalGradients,
}

/// What an algorithm asks of the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyRequirement {
    /// None.
    Nothing,
    /// Mixing weights, doubly stochastic.
    Mixing,
    /// Mixing weights that are the same at every step, and the same in both directions.
    StaticSymmetric,
    /// As [`StaticSymmetric`](TopologyRequirement::StaticSymmetric), and no eigenvalue of the weights below −1/3.
    MildlyNegative,
    /// Only who sends to whom: senders divide their mass themselves, so that directed and
    /// irregular graphs do as well.
    Edges,
    /// Pairs between two halves of the workers.
    Pairs,
}

impl TopologyRequirement {
    /// Why this topology does not do, if it does not.
    pub fn refusal(self, schedule: &Schedule) -> Option<String> {
        if !matches!(
            self,
            TopologyRequirement::StaticSymmetric | TopologyRequirement::MildlyNegative
        ) {
            return None;
        }
        let (name, round) = (schedule.name(), schedule.round(0));
        let flaw = match schedule.period() {
            Some(1) if round.is_symmetric() => return self.eigenvalue_refusal(name, &round),
            Some(1) => "its weights differ between the two directions of an edge",
            _ => "its rounds change from step to step",
        };
        Some(format!(
            "needs the same symmetric weights at every step, or it may diverge: `{name}` does \
             not do, {flaw}; `ring`, `star` and `complete` do, and `gradient-tracking` takes any \
             topology"
        ))
    }

    fn eigenvalue_refusal(self, name: &str, round: &Arc<Round>) -> Option<String> {
        if self != TopologyRequirement::MildlyNegative {
            return None;
        }
        let least = topology::least_eigenvalue(round);
        (least < -1.0 / 3.0 - 1e-9).then(|| {
            format!(
                "needs weights without eigenvalues below −1/3, or it diverges: `{name}` has \
                 {least:.3} with {} workers; `ring`, `star` and `complete` do, and \
                 `exact-diffusion` takes any symmetric weights",
                round.workers()
            )
        })
    }
}

/// What an algorithm asks of the optimizer. Each comes with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptimizerRequirement {
    /// Nothing.
    Any,
    /// The step η·g and nothing else: plain SGD.
    PlainSgd(&'static str),
    /// No velocity: SGD without momentum, or an adaptive optimizer.
    NoVelocity(&'static str),
    /// SGD, with or without momentum.
    Sgd(&'static str),
}

impl OptimizerRequirement {
    /// Whether only SGD will do.
    pub fn needs_sgd(self) -> bool {
        !matches!(self, OptimizerRequirement::Any | OptimizerRequirement::NoVelocity(_))
    }

    /// Options of SGD that must be zero.
    pub fn refused_options(self) -> &'static [&'static str] {
        match self {
            OptimizerRequirement::Any | OptimizerRequirement::Sgd(_) => &[],
            OptimizerRequirement::PlainSgd(_) => &["momentum", "weight_decay"],
            OptimizerRequirement::NoVelocity(_) => &["momentum"],
        }
    }

    /// Why; empty where nothing is asked.
    pub fn reason(self) -> &'static str {
        match self {
            OptimizerRequirement::Any => "",
            OptimizerRequirement::PlainSgd(reason)
            | OptimizerRequirement::NoVelocity(reason)
            | OptimizerRequirement::Sgd(reason) => reason,
        }
    }

    /// The option of the optimizer that does not fit, if one does not; `name` is the optimizer
    /// itself.
    pub fn refusal(self, optimizer: &optim::Entry, options: &Options) -> Option<&'static str> {
        if optimizer.family != optim::Family::Sgd && self.needs_sgd() {
            return Some("name");
        }
        let has = |key: &&&str| optimizer.meta.options.iter().any(|option| option.name == **key);
        let mut refused = self.refused_options().iter().filter(has);
        refused.find(|key| options.real(key) > 0.0).copied()
    }
}

/// Where the optimizer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptimizerSite {
    /// At every worker.
    Workers,
    /// At every server.
    Servers,
}

/// What an algorithm does to the state of the workers' optimizer, such as momentum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptimizerState {
    /// Nothing: every worker keeps its own.
    Kept,
    /// All vectors of the state are averaged over the workers, or reset, at certain steps.
    Synchronized,
    /// The velocity of momentum is replaced after every step; there must be one.
    VelocityReplaced,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Value;

    #[test]
    fn what_is_asked_of_the_optimizer_names_the_option_that_does_not_fit() {
        let sgd = optim::find("sgd").expect("in the table");
        let adam = optim::find("adam").expect("in the table");
        let plain = Options::defaults(sgd.meta.options);
        let momentum = plain.clone().with("momentum", Value::Number(0.9));
        let decay = plain.clone().with("weight_decay", Value::Number(0.1));
        let adaptive = Options::defaults(adam.meta.options);
        let lars = optim::find("lars").expect("in the table");
        let layered = Options::defaults(lars.meta.options);
        let no_velocity = OptimizerRequirement::NoVelocity("why");
        assert_eq!(no_velocity.refusal(lars, &layered), Some("momentum"));
        let still = layered.with("momentum", Value::Number(0.0));
        assert_eq!(no_velocity.refusal(lars, &still), None);
        for (requirement, of_momentum, of_decay, of_adam) in [
            (OptimizerRequirement::Any, None, None, None),
            (
                OptimizerRequirement::PlainSgd("why"),
                Some("momentum"),
                Some("weight_decay"),
                Some("name"),
            ),
            (OptimizerRequirement::NoVelocity("why"), Some("momentum"), None, None),
            (OptimizerRequirement::Sgd("why"), None, None, Some("name")),
        ] {
            assert_eq!(requirement.refusal(sgd, &plain), None);
            assert_eq!(requirement.refusal(sgd, &momentum), of_momentum, "{requirement:?}");
            assert_eq!(requirement.refusal(sgd, &decay), of_decay, "{requirement:?}");
            assert_eq!(requirement.refusal(adam, &adaptive), of_adam, "{requirement:?}");
        }
    }

    #[test]
    fn methods_that_need_fixed_symmetric_weights_refuse_all_others_with_the_reason() {
        for entry in topology::TOPOLOGIES.iter().filter(|entry| entry.meta.name != "custom") {
            let params = Options::defaults(entry.meta.options);
            let hosts: Vec<u32> = (0..8).collect();
            let request =
                topology::TopologyRequest { hosts: &hosts, seed: 1, options: &params, text: None };
            let schedule = entry.build(&request).expect("eight workers work everywhere");
            let properties = entry.properties.expect("no file");
            let refusal = TopologyRequirement::StaticSymmetric.refusal(&schedule);
            assert_eq!(
                refusal.is_none(),
                properties.is_static && properties.is_symmetric,
                "{refusal:?}"
            );
            assert!(refusal.is_none_or(|reason| reason.contains(entry.meta.name)));
            let mild =
                ["complete", "dumbbell", "ring", "star", "two-worlds"].contains(&entry.meta.name);
            assert_eq!(
                TopologyRequirement::MildlyNegative.refusal(&schedule).is_none(),
                mild,
                "{}",
                entry.meta.name
            );
            assert_eq!(TopologyRequirement::Mixing.refusal(&schedule), None);
            assert_eq!(TopologyRequirement::Edges.refusal(&schedule), None);
        }
    }
}
