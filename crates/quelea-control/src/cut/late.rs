//! Cuts that do not come about: who is waited for.

use super::Stage;
use crate::controller::Controller;

impl Controller {
    /// A checkpoint that was agreed on and does not come about, although no rank computes: who is
    /// waited for.
    pub(crate) fn late_cut(&self) -> Option<String> {
        let cutting = &self.cutting;
        let (missing, what) = match &cutting.stage {
            Stage::None | Stage::Resting { .. } | Stage::Writing { .. } | Stage::Holding => {
                return None;
            }
            Stage::Proposing(answers) => {
                let answered = |rank: &usize| answers.contains_key(&(*rank as u32));
                let silent = (0..self.ranks.len()).find(|rank| !answered(rank));
                (silent, "the step at which it can be saved".to_string())
            }
            Stage::Saving { step, .. } => (None, format!("the checkpoint of step {step}")),
            Stage::Pausing { step, .. } => (None, format!("the pause after {step} steps")),
        };
        let is_written =
            cutting.saved.keys().next_back().is_none_or(|last| *last <= cutting.durable);
        let moved = self.ranks.iter().map(|rank| rank.moved).max()?;
        let waited = self.now.since(moved).seconds();
        let is_late = waited >= 2.0 * self.limits.peer_seconds
            && is_written
            && self.ranks.iter().all(|rank| rank.computing.is_none());
        is_late.then(|| {
            let who = missing.map_or("all ranks".to_string(), |rank| format!("rank {rank}"));
            format!("waited {waited:.1} s for {who}: {what}")
        })
    }
}
