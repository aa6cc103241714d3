//! Asking the processor for memory that is needed soon.
//!
//! With thousands of ranks their states do not fit into the near caches, and every event is of another rank.
//! The queue knows what comes next: the memory that it needs is asked for while earlier events are handled.

use crate::driver::Driver;
use crate::queue::SimEvent;

/// Bytes that travel between memory and caches at a time.
const LINE: usize = 64;
/// Events ahead of the present one for which a message on its way, the state of a rank, and what that points
/// to are asked for: each must be there before the next can be followed.
const TRANSIT_AHEAD: usize = 7;
const STATE_AHEAD: usize = 4;
const NODE_AHEAD: usize = 1;

impl Driver<'_> {
    /// Asks for what the next events need.
    pub(crate) fn prefetch(&self) {
        if let Some(SimEvent::Arrive(number) | SimEvent::Deliver(number)) =
            self.queue.ahead(TRANSIT_AHEAD)
        {
            prefetch(self.network.transit(number));
        }
        if let Some(rank) = self.rank_ahead(STATE_AHEAD) {
            prefetch(&self.ranks[rank]);
        }
        if let Some(SimEvent::Deliver(number)) = self.queue.ahead(STATE_AHEAD) {
            prefetch(&*self.network.transit(number).message);
        }
        if let Some(rank) = self.rank_ahead(NODE_AHEAD) {
            for place in self.ranks[rank].machine.node().hot_memory() {
                prefetch_line(place);
            }
        }
    }

    /// The rank of a later event.
    fn rank_ahead(&self, places: usize) -> Option<usize> {
        match self.queue.ahead(places)? {
            SimEvent::Bucket(rank) | SimEvent::Wake(rank) => Some(rank as usize),
            SimEvent::Deliver(number) => Some(self.network.transit(number).to.index()),
            _ => None,
        }
    }
}

/// Asks for the memory of `value`. It changes nothing but how long it takes to read it.
#[inline]
fn prefetch<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    for offset in (0..size_of::<T>()).step_by(LINE) {
        prefetch_line(start.wrapping_byte_add(offset));
    }
}

#[inline]
fn prefetch_line(place: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint: it reads nothing that the program could see, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
