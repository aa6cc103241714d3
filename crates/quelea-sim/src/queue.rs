//! What is going to happen, in order of time; ties in the order in which it was scheduled.
//!
//! Time only goes forward, so the queue is a radix heap: an event waits in the bucket of the highest bit in
//! which its time differs from that of the last event. When the current time has no events left, the
//! lowest bucket that has some is divided among those below it, in order. An event so moves a few times,
//! always to the end of a vector, where a binary heap would compare it with others all over the memory.
//! As events of the same time are always in the same bucket, one behind the other, ties need no
//! number.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use quelea_core::time::Time;

/// Something that is going to happen. Kept small: numbers into the driver's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SimEvent {
    /// The next bucket of this rank's gradient is ready.
    Bucket(u32),
    /// Something that this rank waited for may be over: its processor is free again.
    Wake(u32),
    /// The head of this flight has reached the receiving host.
    Arrive(u32),
    /// This flight has arrived whole.
    Deliver(u32),
    /// This collective may start.
    Open(u32),
    /// This entry of the list of faults takes effect.
    Fault(u32),
    /// The loss of this rank has been noticed.
    Detect(u32),
    /// This rank learns of its next view.
    View(u32),
    /// A worker that joins begins.
    Enter(u32),
    /// The controller has something to do.
    Attend,
    /// This rank looks who controls the run.
    Succession(u32),
    /// It is noticed that this rank, with the controller, is silent.
    Silent(u32),
    /// The head of this control message has reached the receiving host.
    ControlArrive(u32),
    /// This control message has arrived whole.
    ControlDeliver(u32),
}

/// Bits of a time.
const BITS: usize = u64::BITS as usize;

/// The event queue.
#[derive(Debug)]
pub(crate) struct EventQueue {
    /// The time of the events in `current`: that of the last event, unless it was overdue.
    time: Time,
    current: VecDeque<SimEvent>,
    /// Later events, by the highest bit in which their time differs from `time`.
    later: [Vec<(Time, SimEvent)>; BITS],
    /// Which of those have any.
    occupied: u64,
    /// Events that were scheduled for a time before `time`, with a number for ties: where a run resumes
    /// after the time of a fault, for example.
    overdue: BinaryHeap<Reverse<(Time, u64, SimEvent)>>,
    scheduled_overdue: u64,
    len: usize,
}

impl Default for EventQueue {
    fn default() -> EventQueue {
        EventQueue {
            time: Time::ZERO,
            current: VecDeque::new(),
            later: [const { Vec::new() }; BITS],
            occupied: 0,
            overdue: BinaryHeap::new(),
            scheduled_overdue: 0,
            len: 0,
        }
    }
}

impl EventQueue {
    /// `event` happens at `at`.
    pub(crate) fn schedule(&mut self, at: Time, event: SimEvent) {
        self.len += 1;
        if at >= self.time {
            return self.put(at, event);
        }
        self.scheduled_overdue += 1;
        self.overdue.push(Reverse((at, self.scheduled_overdue, event)));
    }

    /// The next event with its time.
    pub(crate) fn pop(&mut self) -> Option<(Time, SimEvent)> {
        if let Some(Reverse((at, _, event))) = self.overdue.pop() {
            self.len -= 1;
            return Some((at, event));
        }
        if self.current.is_empty() {
            self.go_forward();
        }
        let event = self.current.pop_front()?;
        self.len -= 1;
        Some((self.time, event))
    }

    /// How many events are to come.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts an event where it belongs; it is not overdue.
    fn put(&mut self, at: Time, event: SimEvent) {
        match (at.0 ^ self.time.0).checked_ilog2() {
            None => self.current.push_back(event),
            Some(bit) => {
                self.later[bit as usize].push((at, event));
                self.occupied |= 1 << bit;
            }
        }
    }

    /// Goes on to the time of the next event, if there is one.
    fn go_forward(&mut self) {
        if self.occupied == 0 {
            return;
        }
        let bit = self.occupied.trailing_zeros() as usize;
        self.occupied &= !(1 << bit);
        let mut bucket = std::mem::take(&mut self.later[bit]);
        self.time = bucket.iter().map(|(at, _)| *at).min().expect("it is marked as occupied");
        for (at, event) in bucket.drain(..) {
            self.put(at, event);
        }
        // It keeps its memory.
        self.later[bit] = bucket;
    }
}

#[cfg(test)]
mod tests {
    use quelea_core::random::Rng;

    use super::*;

    /// What a sorted list says, with a number for ties.
    #[derive(Default)]
    struct SortedQueue {
        events: Vec<(Time, u64, SimEvent)>,
        scheduled: u64,
    }

    impl SortedQueue {
        fn schedule(&mut self, at: Time, event: SimEvent) {
            self.scheduled += 1;
            self.events.push((at, self.scheduled, event));
        }

        fn pop(&mut self) -> Option<(Time, SimEvent)> {
            let first = (0..self.events.len()).min_by_key(|place| self.events[*place])?;
            let (at, _, event) = self.events.swap_remove(first);
            Some((at, event))
        }
    }

    #[test]
    fn events_come_in_order_of_time_and_ties_as_they_were_scheduled() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed, "queue", 0);
            // From nearly all at once to nearly all apart.
            let spread = 1 << (1 + seed % 40);
            let (mut queue, mut sorted) = (EventQueue::default(), SortedQueue::default());
            let mut now = Time::ZERO;
            for number in 0..600 {
                for _ in 0..rng.below(3) {
                    let at = now + Time(rng.below(spread));
                    queue.schedule(at, SimEvent::Wake(number));
                    sorted.schedule(at, SimEvent::Wake(number));
                }
                assert_eq!(queue.len(), sorted.events.len());
                let next = queue.pop();
                assert_eq!(next, sorted.pop());
                now = next.map_or(now, |(at, _)| at);
            }
        }
    }

    #[test]
    fn what_is_scheduled_for_the_past_comes_first() {
        let mut queue = EventQueue::default();
        queue.schedule(Time(100), SimEvent::Wake(0));
        queue.schedule(Time(100), SimEvent::Wake(1));
        assert_eq!(queue.pop(), Some((Time(100), SimEvent::Wake(0))));
        queue.schedule(Time(50), SimEvent::Wake(2));
        queue.schedule(Time(40), SimEvent::Wake(3));
        queue.schedule(Time(50), SimEvent::Wake(4));
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        let expected = [(40, 3), (50, 2), (50, 4), (100, 1)];
        assert_eq!(rest, expected.map(|(at, number)| (Time(at), SimEvent::Wake(number))));
        assert_eq!(queue.len(), 0);
    }
}
