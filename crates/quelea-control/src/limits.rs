//! How long anybody may wait for anything.

use quelea_core::time::Time;

/// How long anybody may wait for anything, and what is reported at the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlLimits {
    /// How long nothing may move while nobody computes; and how long a rank may be silent.
    pub peer_seconds: f64,
    /// How long one gradient may take.
    pub compute_seconds: f64,
    /// How long what is pending may take to arrive after the last gradient.
    pub drain_seconds: f64,
    /// Whether every rank's report has its parameters and its model.
    pub report_models: bool,
}

impl ControlLimits {
    /// How often somebody looks at the clock: often enough for the shortest limit.
    pub fn tick_period(&self) -> Time {
        Time::from_seconds((self.peer_seconds / 8.0).clamp(0.01, 1.0))
    }
}
