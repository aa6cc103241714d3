//! Where a rank stands between its first gradient and the end of the run.

/// A rank's life cycle. Servers begin as finished: they compute no gradients.
///
/// ```text
/// Running  -- drain --> Resting  -- resume --> Running
///    |                     |
///  finish                finish
///    v                     v
/// Finished -- drain --> Draining -- resume --> Finished
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LifeCycle {
    /// It computes gradients.
    Running,
    /// It flushes what is pending for a checkpoint, and will compute again.
    Resting,
    /// It computes no more gradients, and still handles messages.
    Finished,
    /// It computes no more gradients, and flushes what is pending.
    Draining,
}

impl LifeCycle {
    /// The state in which a rank begins.
    pub(crate) fn new(is_server: bool) -> LifeCycle {
        if is_server { LifeCycle::Finished } else { LifeCycle::Running }
    }

    /// There will be no more gradients.
    pub(crate) fn finish(&mut self) {
        *self = if self.is_draining() { LifeCycle::Draining } else { LifeCycle::Finished };
    }

    /// What is pending is to be flushed.
    pub(crate) fn drain(&mut self) {
        *self = if self.is_finished() { LifeCycle::Draining } else { LifeCycle::Resting };
    }

    /// The run continues after a checkpoint. Whether the rank had been drained for it.
    pub(crate) fn resume(&mut self) -> bool {
        let was_draining = self.is_draining();
        *self = if self.is_finished() { LifeCycle::Finished } else { LifeCycle::Running };
        was_draining
    }

    /// Whether it computes no more gradients.
    pub(crate) fn is_finished(self) -> bool {
        matches!(self, LifeCycle::Finished | LifeCycle::Draining)
    }

    /// Whether what is pending is being flushed.
    pub(crate) fn is_draining(self) -> bool {
        matches!(self, LifeCycle::Resting | LifeCycle::Draining)
    }
}
