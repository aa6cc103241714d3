//! What the survivors of a broken collective do before they continue.
//!
//! When a member is lost, some survivors may have finished the step and others not: they can
//! stand one step apart, and no protocol without a commit round avoids that.
//!
//! ```text
//! upon a new view at step t:        send t to all others
//! upon t_j from all others:         t* = max t_j
//!     if t = t*, lowest such rank:  send parameters and optimizer state to those behind
//!     if t = t*:                    restart the collectives of step t from the kept gradients
//!     if t < t*:                    wait for that state, take it over, enter at t*
//! ```

use std::collections::BTreeMap;

use crate::contract::{Awaited, Context, Effect};
use crate::message::{Message, Rank};
use crate::payload::Payload;

/// The first of the two message kinds that a recovery uses; owners number theirs below.
pub const FIRST_KIND: u8 = 0xf0;
const STEP: u8 = FIRST_KIND;
const STATE: u8 = FIRST_KIND + 1;

/// One recovery after another; idle in between.
#[derive(Debug, Default)]
pub struct Recovery {
    running: bool,
    /// The steps of the others, as far as they are known.
    steps: BTreeMap<Rank, u64>,
    /// The peer ahead of me whose state I wait for.
    sponsor: Option<Rank>,
    /// Ranks that I owe my state, as soon as no gradient is being computed with it.
    owed: Vec<Rank>,
    /// The state that peers send me, part by part. Only that of the sponsor is taken over.
    parts: BTreeMap<Rank, BTreeMap<u32, Payload>>,
}

/// How a recovery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// Start the collectives of this step again.
    Restart,
    /// A peer's state was taken over: what was kept of the old step is void.
    Entered,
}

impl Recovery {
    /// Whether survivors are still comparing.
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Membership has changed. `None`: not over yet.
    pub fn begin(&mut self, cx: &mut Context<'_>) -> Option<Recovered> {
        *self = Recovery { running: true, ..Recovery::default() };
        let me = cx.outbox.rank;
        for rank in cx.outbox.view.workers.iter().filter(|rank| **rank != me) {
            cx.outbox.send(*rank, Message::new(STEP, cx.step, 0));
        }
        self.compare(cx)
    }

    /// A message of kind [`FIRST_KIND`] or above has arrived. Panics, before anything is changed, if it is
    /// not one that an honest rank sends.
    pub fn on_message(
        &mut self,
        cx: &mut Context<'_>,
        from: Rank,
        message: Message,
    ) -> Option<Recovered> {
        if !self.running {
            return None;
        }
        if message.kind == STEP {
            // Peers could only finish the step with all of my gradient.
            let is_possible = message.step <= cx.step || !cx.computing;
            assert!(is_possible, "it is at step {}, which needs my gradient", message.step);
            self.steps.insert(from, message.step);
            return self.compare(cx);
        }
        expect_part(cx, &message);
        self.parts.entry(from).or_default().insert(message.stage, message.into_values());
        self.take_over(cx)
    }

    /// The gradient that was being computed is here, so my parameters are too.
    pub fn on_gradient(&mut self, cx: &mut Context<'_>) {
        self.hand_over(cx);
    }

    /// Whom it is waiting for.
    pub fn awaiting(&self, others: &[Rank], out: &mut Vec<Awaited>) {
        if let (true, Some(from)) = (self.running, self.sponsor) {
            return out.push(Awaited { from, what: "its state after a loss" });
        }
        let missing = others.iter().filter(|rank| self.running && !self.steps.contains_key(rank));
        out.extend(missing.map(|from| Awaited { from: *from, what: "its step after a loss" }));
    }

    fn compare(&mut self, cx: &mut Context<'_>) -> Option<Recovered> {
        if !self.running || self.steps.len() + 1 < cx.outbox.view.workers.len() {
            return None;
        }
        let most = self.steps.values().copied().max().unwrap_or(cx.step).max(cx.step);
        if cx.step < most {
            self.sponsor =
                self.steps.iter().find(|(_, step)| **step == most).map(|(rank, _)| *rank);
            return self.take_over(cx);
        }
        let me = cx.outbox.rank;
        if !self.steps.iter().any(|(rank, step)| *step == most && *rank < me) {
            let behind = self.steps.iter().filter(|(_, step)| **step < most);
            self.owed = behind.map(|(rank, _)| *rank).collect();
        }
        self.running = false;
        if !cx.computing {
            self.hand_over(cx);
        }
        Some(Recovered::Restart)
    }

    fn hand_over(&mut self, cx: &mut Context<'_>) {
        let owed = std::mem::take(&mut self.owed);
        if owed.is_empty() {
            return;
        }
        let mut parts = vec![cx.outbox.pool.copy(cx.params)];
        parts.extend(cx.optimizer.vectors().into_iter().map(|vector| cx.outbox.pool.copy(vector)));
        for rank in owed {
            for (stage, part) in parts.iter().enumerate() {
                let mut message = Message::new(STATE, cx.step, 0).with(part.clone());
                message.stage = stage as u32;
                message.count = parts.len() as u32;
                cx.outbox.send(rank, message);
            }
        }
    }

    /// Enters with the sponsor's state, if it is here.
    fn take_over(&mut self, cx: &mut Context<'_>) -> Option<Recovered> {
        let sponsor = self.sponsor?;
        if self.parts.get(&sponsor)?.len() < 1 + cx.optimizer.vectors().len() {
            return None;
        }
        // Peers could only finish the step with all of my gradient, so I am not computing one.
        assert!(!cx.computing, "a rank that is behind has handed its whole gradient over");
        let step = self.steps[&sponsor];
        let mut parts = self.parts.remove(&sponsor)?.into_values();
        self.parts.clear();
        cx.params.copy_from_slice(&parts.next().expect("the parameters come first"));
        for (vector, part) in cx.optimizer.vectors().into_iter().zip(parts) {
            vector.copy_from_slice(&part);
        }
        cx.outbox.out.push(Effect::JumpToStep(step));
        self.running = false;
        Some(Recovered::Entered)
    }
}

/// Panics unless this is a part of a state like mine.
fn expect_part(cx: &mut Context<'_>, message: &Message) {
    let vectors = cx.optimizer.vectors();
    let (stage, count) = (message.stage as usize, message.count as usize);
    let total = 1 + vectors.len();
    assert!(stage < total && count == total, "part {stage} of {count} of a state of {total} parts");
    // The parameters themselves may be lent; a vector of the optimizer is empty before its first step.
    let len = if stage == 0 { cx.layout.len() } else { vectors[stage - 1].len() };
    message.expect_length(len);
}
