//! What is going to happen, in order of time; ties in the order in which it was scheduled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

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

/// The event queue.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    heap: BinaryHeap<Reverse<(Time, u64, SimEvent)>>,
    scheduled: u64,
}

impl EventQueue {
    /// `event` happens at `at`.
    pub(crate) fn schedule(&mut self, at: Time, event: SimEvent) {
        self.scheduled += 1;
        self.heap.push(Reverse((at, self.scheduled, event)));
    }

    /// The next event with its time.
    pub(crate) fn pop(&mut self) -> Option<(Time, SimEvent)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }

    /// How many events are to come.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}
