//! Which time the seat of each rank was given, so that former holders are told from the last one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::protocol::Wait;

/// How often it is looked whether a seat is given.
pub(crate) const SEATS_POLL: Duration = Duration::from_millis(2);

/// The seat of a rank, and which time it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankSeat {
    pub(crate) rank: u32,
    pub(crate) times: u32,
}

/// Which time the seat of each rank was given, by rank; nothing before all have one.
#[derive(Debug, Default)]
struct Seats {
    given: Vec<u32>,
    /// Of those who take part, or took part last. A seat that was given later is that of a worker that
    /// joins.
    entered: Vec<u32>,
}

/// What a process knows of the seats of all ranks; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedSeats(Arc<Mutex<Seats>>);

impl SharedSeats {
    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All seats are given: of each rank, this holder counts and none before it.
    pub(crate) fn set(&self, seats: Vec<u32>) {
        *self.seats() = Seats { entered: seats.clone(), given: seats };
    }

    /// A seat was given again, to a worker that joins the running run: from now on that holder counts and
    /// none before it.
    pub(crate) fn give(&self, seat: RankSeat) {
        if let Some(times) = self.seats().given.get_mut(seat.rank as usize) {
            *times = seat.times.max(*times);
        }
    }

    /// The last holder of this rank's seat takes part now.
    pub(crate) fn enter(&self, rank: u32) {
        let mut seats = self.seats();
        let given = seats.given.get(rank as usize).copied();
        if let (Some(given), Some(entered)) = (given, seats.entered.get_mut(rank as usize)) {
            *entered = given;
        }
    }

    /// Whether the seat of this rank was given to somebody who does not take part yet.
    pub(crate) fn is_given_anew(&self, rank: u32) -> bool {
        let (seats, rank) = (self.seats(), rank as usize);
        seats.given.get(rank) > seats.entered.get(rank)
    }

    /// Waits until all seats are given; peers may be a moment ahead of this process.
    pub(crate) fn await_all(&self, wait: &Wait) {
        while self.seats().given.is_empty() && !wait.left().is_zero() {
            std::thread::sleep(SEATS_POLL);
        }
    }

    /// Which time the seat of this rank was given, if all are.
    pub(super) fn times(&self, rank: u32) -> Option<u32> {
        self.seats().given.get(rank as usize).copied()
    }
}
