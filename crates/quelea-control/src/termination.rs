//! When nothing is on its way any more: ranks are asked how many messages they have sent and received
//! until two rounds of answers in a row agree.

use quelea_core::time::Time;
use quelea_record::Observer;

use crate::controller::{Controller, RunPhase};

/// The shortest and the longest time between two probes.
const SHORTEST_PAUSE: Time = Time(200_000);
const LONGEST_PAUSE: Time = Time(20_000_000);

/// One rank's answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProbeAnswer {
    pub(crate) is_drained: bool,
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// Counts messages until none is on its way: twice in a row the same sums, and all that were sent were
/// received.
#[derive(Debug)]
pub(crate) struct Probes {
    /// The number of the probe that is being answered.
    number: u64,
    answers: Vec<Option<ProbeAnswer>>,
    /// Messages sent and received in all, by the answers before.
    previous: Option<MessageCount>,
    pause: Time,
    /// When the next probe is due.
    pub(crate) next: Option<Time>,
    /// When the sums last changed.
    pub(crate) changed: Time,
}

/// Messages of all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MessageCount {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

impl Probes {
    pub(crate) fn new(ranks: usize, now: Time) -> Probes {
        Probes {
            number: 0,
            answers: vec![None; ranks],
            previous: None,
            pause: SHORTEST_PAUSE,
            next: None,
            changed: now,
        }
    }

    /// Everything is counted anew.
    pub(crate) fn reset(&mut self, now: Time) {
        (self.previous, self.changed) = (None, now);
    }

    /// The number of a new probe, which is to be sent to all ranks.
    pub(crate) fn start(&mut self) -> u64 {
        self.next = None;
        self.number += 1;
        self.answers.fill(None);
        self.number
    }

    /// A rank answers probe `number`. Whether nothing is on its way any more. Only answers of ranks that
    /// are `living` count.
    pub(crate) fn answer(
        &mut self,
        now: Time,
        number: u64,
        rank: usize,
        said: ProbeAnswer,
        living: impl Fn(usize) -> bool,
    ) -> bool {
        if number != self.number {
            return false;
        }
        self.answers[rank] = Some(said);
        let answers = self.answers.iter().enumerate().filter(|(rank, _)| living(*rank));
        let answers: Option<Vec<ProbeAnswer>> = answers.map(|(_, answer)| *answer).collect();
        let Some(answers) = answers else { return false };
        let is_drained = answers.iter().all(|answer| answer.is_drained);
        let count = MessageCount {
            sent: answers.iter().fold(0, |sum, answer| sum.saturating_add(answer.sent)),
            received: answers.iter().fold(0, |sum, answer| sum.saturating_add(answer.received)),
        };
        let is_same = self.previous == Some(count);
        if is_drained && count.sent == count.received && is_same {
            return true;
        }
        if is_same {
            self.pause = Time(self.pause.0 * 2).min(LONGEST_PAUSE);
        } else {
            (self.changed, self.pause) = (now, SHORTEST_PAUSE);
        }
        self.previous = Some(count);
        self.next = Some(now + self.pause);
        false
    }

    /// "4 were sent, 3 received; still not drained: rank 2"
    pub(crate) fn undrained(&self) -> String {
        let is_drained = |answer: &Option<ProbeAnswer>| answer.is_some_and(|said| said.is_drained);
        let who: Vec<String> = (0..self.answers.len())
            .filter(|rank| !is_drained(&self.answers[*rank]))
            .map(|rank| format!("rank {rank}"))
            .collect();
        let MessageCount { sent, received } = self.previous.unwrap_or_default();
        let who = if who.is_empty() { "nobody".to_string() } else { who.join(", ") };
        format!("{sent} were sent, {received} received; still not drained: {who}")
    }
}

impl Controller {
    /// Lets ranks be asked whether anything is on its way, although they are not watched by the clock: the
    /// driver calls [`poll`](Controller::poll) at [`next_probe`](Controller::next_probe).
    pub fn use_probes(&mut self) {
        self.uses_probes = true;
        if self.phase == RunPhase::Draining {
            self.restart_drain();
        }
    }

    /// When ranks are asked again whether anything is on its way.
    pub fn next_probe(&self) -> Option<Time> {
        self.probes.next.filter(|_| self.is_draining() && !self.members.is_changing())
    }

    /// For how long no message was sent or received while all comes to rest.
    pub fn rests_for(&self, now: Time) -> Time {
        now.since(self.probes.changed)
    }

    /// A rank has answered a probe. While membership changes, and after a loss has interrupted the drain,
    /// answers do not count: they are counted anew.
    pub(crate) fn probed(
        &mut self,
        probe: u64,
        rank: u32,
        said: ProbeAnswer,
        observer: &mut dyn Observer,
    ) {
        self.hear(rank);
        if self.phase != RunPhase::Draining || self.members.is_changing() {
            return;
        }
        let living = |rank: usize| !self.ranks[rank].is_lost();
        if self.probes.answer(self.now, probe, rank as usize, said, living) {
            self.end_drain(observer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(sent: u64, received: u64) -> ProbeAnswer {
        ProbeAnswer { is_drained: true, sent, received }
    }

    #[test]
    fn a_message_on_its_way_is_waited_for_and_equal_sums_count_only_the_second_time() {
        let mut probes = Probes::new(2, Time(0));
        let mut round = |answers: [ProbeAnswer; 2]| {
            let number = probes.start();
            let first = probes.answer(Time(1), number, 0, answers[0], |_| true);
            assert!(!first, "the other has not answered");
            probes.answer(Time(1), number, 1, answers[1], |_| true)
        };
        assert!(!round([said(2, 0), said(1, 2)]));
        assert!(!round([said(2, 0), said(1, 2)]), "one message is on its way");
        assert!(!round([said(2, 1), said(1, 2)]));
        assert!(round([said(2, 1), said(1, 2)]));
    }

    #[test]
    fn an_answer_to_an_older_probe_is_not_counted() {
        let mut probes = Probes::new(1, Time(0));
        let old = probes.start();
        probes.start();
        assert!(!probes.answer(Time(1), old, 0, said(0, 0), |_| true));
        assert!(probes.undrained().ends_with("still not drained: rank 0"));
    }
}
