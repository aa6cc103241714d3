//! Ranks that wait for one that has ended, or that is somewhere else: scripts whose loops differ, that
//! leave half-way, or that come together with some of the ranks only.

use super::{Controller, RunPhase};

/// After so many heartbeats of everybody without a message or a computation, nobody moves any more.
const HEARTBEATS: u32 = 2;

/// For how long a rank has done nothing but wait, for others or for the end.
#[derive(Debug, Default)]
pub(super) struct Stillness {
    /// Messages sent, and received.
    sent: u64,
    received: u64,
    heartbeats: u32,
}

impl Stillness {
    pub(super) fn hear(&mut self, waits: bool, sent: u64, received: u64) {
        let still = waits && sent == self.sent && received == self.received;
        self.heartbeats = if still { self.heartbeats + 1 } else { 0 };
        (self.sent, self.received) = (sent, received);
    }
}

impl Controller<'_> {
    /// Why nobody will ever move again, if that is certain: some have ended or wait where all come
    /// together, all others wait for somebody, no message is on its way.
    pub(super) fn standstill(&self) -> Option<String> {
        let workers = &self.ranks[..self.workers];
        let finished = workers.iter().filter(|progress| progress.finished).count();
        let gathering = workers.iter().filter(|progress| progress.gathering).count();
        let may_wait = self.phase != RunPhase::Running || self.rests_for_cuts();
        let all = [finished, gathering].contains(&self.workers);
        if may_wait || all || finished + gathering == 0 {
            return None;
        }
        let mut on_way: i128 = 0;
        for progress in &self.ranks {
            let Stillness { sent, received, heartbeats } = progress.stillness;
            if heartbeats < HEARTBEATS {
                return None;
            }
            on_way += i128::from(sent) - i128::from(received);
        }
        if on_way != 0 {
            return None;
        }
        let before = self.finished_before();
        if let Some(rank) = workers.iter().position(|progress| progress.gathering) {
            let others =
                workers.iter().position(|progress| !progress.finished && !progress.gathering);
            let others = others.map(|rank| format!(", but rank {rank} waits in a step"));
            let others = others.unwrap_or_default() + &before;
            let where_all_come = "is in a call that all ranks must make together";
            return Some(format!("rank {rank} {where_all_come}{others}"));
        }
        let waiting = workers.iter().position(|progress| !progress.finished)?;
        Some(format!("rank {waiting} waits for others' next step{before}"))
    }
}
