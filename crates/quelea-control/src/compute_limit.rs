//! How long the next gradient of a rank may take, judged by those that it has completed.

use quelea_core::time::Time;

use crate::limits::ComputeLimits;

/// Before so many gradients were completed, only the ceiling counts: the first ones may load data, fill
/// caches or choose kernels.
const LEAST_GRADIENTS: u32 = 5;

/// The gradients of one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComputeLimit {
    limits: ComputeLimits,
    longest: Time,
    seen: u32,
}

impl ComputeLimit {
    pub(crate) fn new(limits: ComputeLimits) -> ComputeLimit {
        ComputeLimit { limits, longest: Time::ZERO, seen: 0 }
    }

    /// A gradient took this long.
    pub(crate) fn note(&mut self, took: Time) {
        self.longest = self.longest.max(took);
        self.seen = self.seen.saturating_add(1);
    }

    /// How many seconds the next one may take.
    pub(crate) fn seconds(&self) -> f64 {
        let ComputeLimits { factor, floor_seconds, ceiling_seconds } = self.limits;
        if self.seen < LEAST_GRADIENTS || factor.is_infinite() {
            return ceiling_seconds;
        }
        let follows = factor * self.longest.seconds();
        follows.max(floor_seconds).min(ceiling_seconds)
    }

    /// Where the limit comes from, after "its gradient takes 61.2 s": nothing if it is the ceiling.
    pub(crate) fn reason(&self) -> String {
        let limit = self.seconds();
        if limit >= self.limits.ceiling_seconds {
            return String::new();
        }
        let longest = self.longest.seconds();
        format!(" (limit {limit:.1} s; its longest gradient before took {longest:.1} s)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ComputeLimits =
        ComputeLimits { factor: 20.0, floor_seconds: 60.0, ceiling_seconds: 3600.0 };

    fn after(gradients: &[f64]) -> ComputeLimit {
        let mut limit = ComputeLimit::new(LIMITS);
        gradients.iter().for_each(|seconds| limit.note(Time::from_seconds(*seconds)));
        limit
    }

    #[test]
    fn the_limit_is_a_multiple_of_the_longest_gradient_between_floor_and_ceiling() {
        assert_eq!(after(&[0.1, 0.3, 0.2, 0.1, 0.1]).seconds(), 60.0);
        assert_eq!(after(&[1.0, 9.0, 2.0, 1.0, 1.0]).seconds(), 180.0);
        assert_eq!(after(&[300.0; 5]).seconds(), 3600.0);
    }

    #[test]
    fn the_first_gradients_may_take_as_long_as_the_ceiling_allows() {
        assert_eq!(after(&[0.1; 4]).seconds(), 3600.0);
        let external = ComputeLimits { factor: f64::INFINITY, ..LIMITS };
        let mut limit = ComputeLimit::new(external);
        (0..10).for_each(|_| limit.note(Time::ZERO));
        assert_eq!(limit.seconds(), 3600.0, "a loop that does other things between two gradients");
    }

    #[test]
    fn a_limit_that_follows_from_what_was_seen_is_explained() {
        let text = after(&[0.1, 0.3, 0.2, 0.1, 0.1]).reason();
        assert_eq!(text, " (limit 60.0 s; its longest gradient before took 0.3 s)");
        assert_eq!(after(&[0.1]).reason(), "");
    }
}
