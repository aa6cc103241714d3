//! Ranks that wait for one that has ended: scripts whose loops differ, or that leave half-way.

use super::{Conductor, Phase};

/// After so many pulses of everybody without a message or a computation, nobody moves any more.
const PULSES: u32 = 2;

/// For how long a rank has done nothing but wait, for others or for the end.
#[derive(Debug, Default)]
pub(super) struct Stillness {
    /// Messages sent and received.
    counts: (u64, u64),
    pulses: u32,
}

impl Stillness {
    pub(super) fn hear(&mut self, waits: bool, counts: (u64, u64)) {
        let still = waits && counts == self.counts;
        self.pulses = if still { self.pulses + 1 } else { 0 };
        self.counts = counts;
    }
}

impl Conductor<'_> {
    /// Why nobody will ever move again, if that is certain: some have ended, all others wait for
    /// somebody, no message is on its way.
    pub(super) fn standstill(&self) -> Option<String> {
        let finished = self.seats[..self.workers].iter().filter(|seat| seat.finished).count();
        let may_wait = self.phase != Phase::Running || self.rests_for_cuts();
        if may_wait || finished == 0 || finished == self.workers {
            return None;
        }
        let mut on_way: i128 = 0;
        for seat in &self.seats {
            let Stillness { counts: (sent, received), pulses } = seat.stillness;
            if pulses < PULSES {
                return None;
            }
            on_way += i128::from(sent) - i128::from(received);
        }
        let waiting = self.seats.iter().position(|seat| !seat.finished)?;
        let before = self.finished_before();
        (on_way == 0).then(|| format!("rank {waiting} waits for others' next step{before}"))
    }
}
