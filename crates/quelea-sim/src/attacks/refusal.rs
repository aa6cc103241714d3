//! Attacks that make no sense in a run.

use quelea_core::algorithms::{Gathers, Traffic};
use quelea_core::codec::CodecShape;
use quelea_core::properties::TopologyRequirement;
use quelea_core::run_spec::RunSpec;
use quelea_core::view::RowGroup;

use super::AttackKind;

/// Why an attack of this kind makes no sense in this run, if it does not.
pub(super) fn refusal(kind: AttackKind, setup: &RunSpec) -> Option<String> {
    let (properties, name) = (setup.properties(), setup.entry.meta.name);
    let gossips = properties.topology != TopologyRequirement::Nothing;
    if setup.codec.entry.shape != CodecShape::Plain {
        return Some("attacks replace plain vectors; use `codec.name` = \"f32\"".into());
    }
    if averages_in_groups(setup) {
        return Some(
            "groups of the topology average by all-reduce, where no vector belongs to one worker; set \
             `topology.groups` = \"send\""
                .into(),
        );
    }
    if !kind.colludes() {
        return None;
    }
    if !properties.synchronous || setup.view.between().is_some() {
        return Some(format!(
            "needs rounds in which every worker sends once, and `{name}` has none here"
        ));
    }
    if kind.needs_topology() && !gossips {
        return Some(format!("needs neighbours, and `{name}` has no topology"));
    }
    if !gossips && !properties.servers {
        return Some(format!(
            "needs vectors that belong to one worker, and those of `{name}` are parts of sums"
        ));
    }
    None
}

/// Rounds that are looked at of a topology that is drawn at random.
const ROUNDS_SEEN: u64 = 8;

/// Whether workers find means by all-reduce in some round.
fn averages_in_groups(setup: &RunSpec) -> bool {
    let traffic = (setup.entry.traffic)(&setup.options);
    if !matches!(traffic, Traffic::Gossip { gathers: Gathers::Means, .. }) {
        return false;
    }
    let view = setup.view.between().unwrap_or(&setup.view);
    (0..ROUNDS_SEEN).any(|step| {
        view.workers.iter().any(|rank| matches!(view.row(step, *rank).group, RowGroup::Whole(_)))
    })
}
