//! What a rank does about messages with values that no honest rank sends.

use quelea_core::contract::Fact;
use quelea_core::poison::PoisonPolicy;
use quelea_core::time::Time;

use super::RankMachine;
use crate::messages::RankEvent;

impl RankMachine {
    /// After messages were handed to the node: records those that it did not use and names their senders.
    pub(super) fn judge_poisoned(&mut self, now: Time) {
        for poisoned in self.node.take_poisoned() {
            self.note_fact(now, Fact::Poisoned(poisoned.from.0));
            let text = format!("{poisoned}; if all ranks do, the learning rate may be too high");
            match self.poison {
                PoisonPolicy::Refuse | PoisonPolicy::Ignore => {
                    self.events.push(RankEvent::Warning(format!("{poisoned}; it was not used")));
                }
                PoisonPolicy::Drop | PoisonPolicy::Stop => {
                    let (rank, peer) = (self.node.rank.0, poisoned.from.0);
                    self.events.push(RankEvent::Poisoned { rank, peer, reason: text });
                }
            }
        }
    }
}
