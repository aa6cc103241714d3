//! What a rank has to do with a loop outside that computes its gradients.

use quelea_control::RankEvent;

use super::RankState;
use crate::external_loop;

impl RankState {
    /// The external loop has run its optimizer.
    pub(crate) fn optimized(&mut self) {
        let now = self.clock.now();
        let asked = std::mem::take(&mut self.asked);
        self.machine.note_optimizing(false);
        for (bucket, _) in asked {
            self.machine.optimized(now, bucket);
        }
        self.settle();
    }

    /// The external loop's own state has come, which goes with that of this rank.
    pub(crate) fn loop_saved(&mut self, state: &[u8]) {
        let Some(mut event) = self.unsaved.take() else { return };
        if let RankEvent::Saved { part, .. } = &mut event {
            external_loop::add_state(&mut part.state, state);
        }
        self.tell(event);
    }

    /// The external loop computes no more gradients; the last that it was asked for is not to be.
    pub(crate) fn loop_finished(&mut self) {
        self.machine.loop_finished(self.clock.now());
        self.settle();
    }

    /// Shows the external loop which workers take part.
    pub(super) fn show_workers(&self) {
        if let Some(external) = &self.external {
            external.show_workers(self.machine.node().view().workers.iter().map(|rank| rank.0));
        }
    }

    /// Whether workers that join begin with the state of this rank and of its external loop.
    pub(super) fn is_sponsor(&self) -> bool {
        let node = self.machine.node();
        self.external.is_some() && node.view().workers.first() == Some(&node.rank)
    }

    /// Shows the external loop how far all are.
    pub(super) fn show_progress(&self) {
        if let Some(external) = &self.external {
            external.show_global_step(self.machine.node().global_step());
        }
    }
}
