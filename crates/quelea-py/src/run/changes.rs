//! Changes of membership as Python sees them.

use quelea_core::view::ViewChange;

/// Ranks that departed with their steps, ranks that joined, and the step from which on it holds.
pub(super) type MembershipChange = (Vec<(u32, u64)>, Vec<u32>, u64);

pub(super) fn shown_change(change: &ViewChange) -> MembershipChange {
    let departed = change.departed.iter().map(|gone| (gone.rank.0, gone.steps)).collect();
    (departed, change.joined.iter().map(|rank| rank.0).collect(), change.from_step)
}
