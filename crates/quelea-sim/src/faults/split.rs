//! Two sides that do not reach each other.

use quelea_core::time::Time;

use super::Faults;

/// Some ranks reach each other and nobody else. If that lasts longer than the cluster's `detect_ms`, both
/// sides take each other for lost, and close their connections; else what they send each other arrives when
/// it is over.
#[derive(Clone, Debug, PartialEq)]
pub struct SidePartition {
    /// One side.
    pub ranks: Vec<u32>,
    /// Since when.
    pub from_ms: f64,
    /// Until when.
    pub until_ms: f64,
}

impl SidePartition {
    /// Whether both sides take each other for lost.
    pub(crate) fn is_final(&self, detect_ms: f64) -> bool {
        self.until_ms - self.from_ms > detect_ms
    }

    /// Whether these are on different sides.
    pub(crate) fn separates(&self, a: u32, b: u32) -> bool {
        self.ranks.contains(&a) != self.ranks.contains(&b)
    }
}

/// A connection that a split may cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplitLink {
    /// Both ranks.
    pub(crate) ends: [u32; 2],
    /// Since when both of them take part: what was over by then does not concern it.
    pub(crate) since: Time,
}

impl Faults {
    /// How much later a message between these arrives because their sides are split; never, if both sides
    /// take each other for lost.
    pub(crate) fn split_delay(&self, link: SplitLink, now: Time, detect_ms: f64) -> Option<Time> {
        let SplitLink { ends: [a, b], since } = link;
        let mut longest = Time::ZERO;
        for split in self.splits.iter().filter(|split| split.separates(a, b)) {
            let (from, until) = (Time::from_ms(split.from_ms), Time::from_ms(split.until_ms));
            if until <= since {
                continue;
            }
            if split.is_final(detect_ms) && from <= now {
                return None;
            }
            if (from..until).contains(&now) {
                longest = longest.max(until.since(now));
            }
        }
        Some(longest)
    }
}
