//! How long anybody may wait for anything.

use quelea_core::time::Time;

/// How often a process shows that it is alive, where nothing shorter is needed.
const HEARTBEAT_SECONDS: f64 = 0.2;

/// How long anybody may wait for anything, and what is reported at the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlLimits {
    /// How long nothing may move while nobody computes.
    pub peer_seconds: f64,
    /// How long a process may be silent.
    pub silence: SilenceLimits,
    /// How long one gradient may take.
    pub compute: ComputeLimits,
    /// How long what is pending may take to arrive after the last gradient.
    pub drain_seconds: f64,
    /// How long a run with fewer workers than it wants waits for others to join; 0: not at all.
    pub joiner_seconds: f64,
    /// Whether every rank's report has its parameters and its model.
    pub report_models: bool,
}

/// How long a process may be silent: within these bounds, by what was heard of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SilenceLimits {
    /// A shorter silence raises no suspicion, however regular the heartbeats were. The ceiling, if that is
    /// lower.
    pub floor_seconds: f64,
    /// A longer silence is always too long.
    pub ceiling_seconds: f64,
}

impl Default for SilenceLimits {
    fn default() -> SilenceLimits {
        SilenceLimits { floor_seconds: 1.5, ceiling_seconds: 30.0 }
    }
}

/// How long one gradient may take: a multiple of the longest one of that rank so far, within bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ComputeLimits {
    /// How many times as long as the longest gradient before; infinite: only the ceiling counts, for
    /// loops that do other things than computing between two gradients.
    pub factor: f64,
    /// A shorter gradient is never too long. The ceiling, if that is lower.
    pub floor_seconds: f64,
    /// A longer gradient is always too long.
    pub ceiling_seconds: f64,
}

impl Default for ComputeLimits {
    fn default() -> ComputeLimits {
        ComputeLimits { factor: 20.0, floor_seconds: 60.0, ceiling_seconds: 3600.0 }
    }
}

impl ControlLimits {
    /// No limits, for drivers that see everything: nobody is watched by the clock.
    pub const NONE: ControlLimits = ControlLimits {
        peer_seconds: f64::INFINITY,
        silence: SilenceLimits { floor_seconds: f64::INFINITY, ceiling_seconds: f64::INFINITY },
        compute: ComputeLimits {
            factor: f64::INFINITY,
            floor_seconds: f64::INFINITY,
            ceiling_seconds: f64::INFINITY,
        },
        drain_seconds: f64::INFINITY,
        joiner_seconds: 0.0,
        report_models: true,
    };

    /// How often somebody looks at the clock: often enough for the shortest limit.
    pub fn tick_period(&self) -> Time {
        Time::from_seconds((self.peer_seconds / 8.0).clamp(0.01, 1.0))
    }

    /// How often a process shows that it is alive.
    pub fn heartbeat_period(&self) -> Time {
        Time::from_seconds((self.peer_seconds / 8.0).clamp(0.01, HEARTBEAT_SECONDS))
    }
}
