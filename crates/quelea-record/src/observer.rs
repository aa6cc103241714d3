//! Who watches a run, whoever drives it.

use quelea_core::message::Rank;
use quelea_core::time::Time;

use crate::{Cuts, Nowhere, Part, Record, Sink};

/// Watches a run.
pub trait Observer: Send {
    /// Takes a record.
    fn record(&mut self, record: Record);

    /// Whether the detailed records for the timeline are wanted.
    fn wants_timeline(&self) -> bool {
        false
    }

    /// So many of all `total` steps (of all workers together) are done.
    fn progress(&mut self, _done: u64, _total: u64, _now: Time) {}

    /// While workers are awaited, now and then: so many of those who must join have joined. A
    /// reason ends the waiting.
    fn gathering(&mut self, _there: usize, _expected: usize) -> Result<(), String> {
        Ok(())
    }

    /// When models are shown and states saved; asked once.
    fn cuts(&self) -> Cuts {
        Cuts::default()
    }

    /// What all living ranks would deploy after `step` steps each: exactly for synchronous
    /// algorithms, on average for others.
    fn shown(&mut self, _now: Time, _step: u64, _models: Models) {}

    /// One rank's part of the cut after `step` steps. Those of one cut come in any order; the cut
    /// is whole when every rank's is there.
    fn saved(&mut self, _now: Time, _step: u64, _rank: Rank, _part: Part) {}

    /// Asked now and then: until which step cuts are where they cannot be lost. In a real run
    /// nobody passes a cut before it is written, so that never more than the work between two cuts
    /// is lost.
    fn safe(&mut self) -> u64 {
        u64::MAX
    }

    /// Asked now and then: whether a cut is wanted besides those of [`cuts`](Observer::cuts).
    fn wish(&mut self) -> Wish {
        Wish::GoOn
    }
}

/// What an observer wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// Nothing.
    #[default]
    GoOn,
    /// The state saved soon.
    Save,
    /// The state saved soon, and the run ended there.
    Stop,
}

/// What all living ranks would deploy at one moment, by rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Models {
    /// Whole models.
    pub workers: Vec<(Rank, Vec<f32>)>,
    /// Shards.
    pub servers: Vec<(Rank, Vec<f32>)>,
}

impl Observer for Nowhere {
    fn record(&mut self, _record: Record) {}
}

impl Observer for Vec<Record> {
    fn record(&mut self, record: Record) {
        self.push(record);
    }

    fn wants_timeline(&self) -> bool {
        Sink::wants_timeline(self)
    }
}
