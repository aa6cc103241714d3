//! How the time of a step splits into computing, exposed communication and waiting for peers.
//!
//! A step begins when the one before it is complete and ends when the worker may start its next
//! gradient. What is neither computing nor waiting for a slower peer is communication.

use quelea_core::problems::Computed;
use quelea_core::time::Time;

/// What a gradient took, as the driver measured or modelled it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GradientTime {
    /// Computing itself.
    pub compute: Time,
    /// Communication that held it up, the way of vectors between threads included.
    pub exposed: Time,
    /// Standing still.
    pub waiting: Time,
}

/// A gradient that was handed over, and whose step is not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingStep {
    pub(crate) step: u64,
    /// When the gradient was complete.
    pub(crate) since: Time,
    /// Until then.
    pub(crate) spent: GradientTime,
    pub(crate) computed: Computed,
}

impl PendingStep {
    /// The time of the whole step if it is complete at `now`. `origin`: when the latest computation
    /// that the rank's state depends on was finished; nothing for algorithms that wait for nobody.
    pub(crate) fn split(&self, now: Time, origin: Option<Time>) -> GradientTime {
        let idle = now.since(self.since);
        let late = origin.map_or(Time::ZERO, |origin| origin.since(self.since).min(idle));
        GradientTime {
            compute: self.spent.compute,
            exposed: self.spent.exposed + idle - late,
            waiting: self.spent.waiting + late,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gradient that was complete at 10, after 4 of computing and 1 of communication.
    const STEP: PendingStep = PendingStep {
        step: 3,
        since: Time(10),
        spent: GradientTime { compute: Time(4), exposed: Time(1), waiting: Time(0) },
        computed: Computed { loss: 0.0, samples: 1 },
    };

    #[test]
    fn idle_time_before_a_slower_peers_gradient_is_waiting_and_after_it_communication() {
        let time = STEP.split(Time(16), Some(Time(12)));
        assert_eq!(time, GradientTime { compute: Time(4), exposed: Time(5), waiting: Time(2) });
    }

    #[test]
    fn an_origin_after_the_end_or_before_the_gradient_counts_only_as_far_as_the_step_goes() {
        assert_eq!(STEP.split(Time(16), Some(Time(99))).waiting, Time(6));
        assert_eq!(STEP.split(Time(16), Some(Time(3))).waiting, Time(0));
    }

    #[test]
    fn who_waits_for_nobody_communicates() {
        assert_eq!(STEP.split(Time(16), None).exposed, Time(7));
    }
}
