//! Saving and loading a node.

use super::{Node, Phase};
use crate::contract::JoinRule;
use crate::state::{Load, Saved, Visitor};

/// The vector of a saved state that one would deploy, where it is not `params`.
pub const MODEL: &str = "model";

impl Node {
    /// Walks over the whole state.
    pub fn state(&mut self, visitor: &mut dyn Visitor) {
        self.common_state(visitor);
        for (slot, word) in self.rng.words().iter_mut().enumerate() {
            visitor.number(&format!("rng.{slot}"), word);
        }
        self.algorithm.state(visitor);
    }

    /// Whether this node's state is its part of a cut after `step` steps of every worker: a
    /// worker stands before its next gradient, a server has what was sent until then.
    pub fn is_at_cut(&self, step: u64) -> bool {
        if self.is_server {
            return self.algorithm.is_at_cut(step);
        }
        let computes = matches!(self.phase, Phase::Computing | Phase::Exchanging);
        self.step == step && !computes && self.algorithm.is_ready()
    }

    /// Copies the whole state. What one would deploy goes with it where that is not what the
    /// parameters are.
    pub fn save(&mut self) -> Saved {
        let mut saved = Saved::default();
        self.state(&mut saved);
        let model = self.model();
        if model != self.params() {
            saved.vectors.insert(MODEL.to_string(), model);
        }
        saved
    }

    /// Takes over a state that was saved, before the start.
    pub fn load(&mut self, saved: &Saved) -> Result<(), String> {
        assert_eq!(self.phase, Phase::New, "a state is loaded before the start");
        let mut load = Load::new(saved);
        self.state(&mut load);
        load.finish()
    }

    /// Takes over the state of another worker, its random stream apart, before this one joins.
    pub fn load_of_sponsor(&mut self, saved: &Saved) -> Result<(), String> {
        match self.algorithm.join_rule() {
            JoinRule::Whole => {
                let own = self.rng.clone();
                self.load(saved)?;
                self.rng = own;
                Ok(())
            }
            JoinRule::Common => self.load_common(saved),
            JoinRule::No(why) => Err(why.to_string()),
        }
    }

    /// As [`load`](Node::load), but for what only the algorithm knows: it is reset from the
    /// parameters. This is how a run resumes with another number of workers.
    pub fn load_common(&mut self, saved: &Saved) -> Result<(), String> {
        assert_eq!(self.phase, Phase::New, "a state is loaded before the start");
        let mut load = Load::new(saved);
        self.common_state(&mut load);
        load.finish()
    }

    /// Continues in the memory of `before`, the node whose state this one has: whoever knows the addresses of
    /// its vectors, as a loop outside does, finds the vectors there. The optimizer of such a loop stays, too.
    pub fn take_over(&mut self, mut before: Node) {
        assert!(!before.is_lent() && !self.is_lent(), "nobody computes on vectors that move");
        (self.outside, self.inspection.is_on) = (before.outside, before.inspection.is_on);
        let pairs = [(&mut self.params, &before.params), (&mut self.grad, &before.grad)];
        for (own, kept) in pairs {
            // SAFETY: nothing is lent, so that both nodes' vectors are here, and both nodes are borrowed.
            unsafe {
                kept.slice_mut(0..own.len()).copy_from_slice(own.slice(0..own.len()));
            }
            *own = kept.clone();
        }
        self.spare = std::mem::take(&mut before.spare);
        if before.outside {
            let pairs = before.optimizer.vectors().into_iter().zip(self.optimizer.vectors());
            pairs.for_each(|(kept, own)| kept.copy_from_slice(own));
            std::mem::swap(&mut self.optimizer, &mut before.optimizer);
        }
    }

    /// What every rank has, whatever the algorithm.
    fn common_state(&mut self, visitor: &mut dyn Visitor) {
        visitor.number("step", &mut self.step);
        let is_here = self.visible_params() == self.params.len();
        assert!(is_here, "a state is saved and loaded between steps");
        // SAFETY: the parameters are not lent, and this node is borrowed.
        unsafe { self.params.visit(|params| visitor.vector("params", params)) };
        for (slot, count) in self.optimized.iter_mut().enumerate() {
            visitor.number(&format!("optimized.{slot}"), count);
        }
        for (slot, vector) in self.optimizer.vectors().into_iter().enumerate() {
            visitor.vector(&format!("optimizer.{slot}"), vector);
        }
    }
}
