//! What is measured in a run: records as they happen, totals at the end, and the [`Observer`] that
//! a driver hands models to evaluate and states to save. Nothing here writes files.
//!
//! ```
//! use quelea_record::CheckpointSchedule;
//!
//! let schedule = CheckpointSchedule { save_every: 5, evaluations: 2, steps: 20 };
//! assert!(schedule.saves_at(15) && schedule.evaluates_at(10));
//! assert_eq!(schedule.next(10), Some(15));
//! ```

#![warn(clippy::disallowed_methods, clippy::disallowed_types)]

mod checkpoints;
mod facts;
mod models;
mod observer;

pub use checkpoints::{
    BUFFERS, CheckpointSchedule, DATA_BOOKS, PartTurn, RankCheckpoint, ResumePoint,
};
pub use facts::{
    FACTS, FOLDED, FactKind, FactSummary, FactTotals, HALF_EXCHANGE, POISONED, STALENESS,
    SummaryForm,
};
pub use models::ModelSlices;
pub use observer::{Models, Observer, Request, SalvagedModel, Silent};

/// One measured fact.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Seconds since the run began, on its clock (virtual or real).
    pub t: f64,
    /// The rank that it is about.
    pub rank: u32,
    /// That rank's step.
    pub step: u64,
    /// What happened.
    pub event: RecordKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordKind {
    /// A worker finished a step: its gradient was computed and it may start the next.
    Step {
        /// Loss over the mini-batch.
        loss: f32,
        /// Samples of the mini-batch.
        samples: u32,
        /// Seconds of computing.
        compute: f64,
        /// Seconds of communication that compute did not hide.
        exposed: f64,
        /// Seconds of waiting for slower peers.
        waiting: f64,
    },
    /// A span of computing, for the timeline. `t` is its start.
    Compute {
        /// How long, in seconds.
        seconds: f64,
    },
    /// A message on its way, for the timeline. `t` is when it was handed over.
    Transfer {
        /// The receiver.
        to: u32,
        /// Bytes, header included.
        bytes: u64,
        /// Until it was delivered, in seconds.
        seconds: f64,
    },
    /// The deployed model was evaluated.
    Evaluation {
        /// Loss on all training data.
        loss: f64,
        /// Share of right answers on held-out data.
        accuracy: Option<f64>,
        /// Consensus distance of the workers.
        consensus: f64,
    },
    /// Every worker's own model was evaluated.
    Workers {
        /// Loss on all training data: the mean and the worst.
        loss: [f64; 2],
        /// Share of right answers on held-out data: the mean and the worst.
        accuracy: Option<[f64; 2]>,
    },
    /// The state of the run was saved.
    Checkpoint {
        /// Why it could not be, if it could not.
        failure: Option<String>,
    },
    /// The algorithm measured something.
    Measured {
        /// What.
        kind: &'static FactKind,
        /// Its number.
        number: u64,
    },
    /// What a rank said of itself when it was asked: whom it waits for, what it has exchanged, how much
    /// memory its process holds.
    Account {
        /// Whom it waits for.
        awaiting: Vec<AwaitedRank>,
        /// What it has exchanged with each peer so far.
        links: Vec<LinkTotal>,
        /// What its process holds.
        memory: ProcessMemory,
    },
    /// How far a rank's model is from the mean of all, estimated from a random subset of its elements.
    Deviation {
        /// The estimate.
        distance: f64,
        /// Its standard error.
        error: f64,
    },
    /// A rank was lost (crashed, cut off, declared dead).
    Lost,
    /// A rank left with notice.
    Left,
    /// A worker joined.
    Joined,
    /// A worker that joined received its state.
    StateTransferred {
        /// Of its state's vectors.
        bytes: u64,
        /// Until its connection had taken the last of it, in seconds.
        seconds: f64,
    },
    /// A broken connection of this rank was restored; nothing was lost or doubled.
    Reconnected {
        /// With which rank.
        peer: u32,
    },
    /// The process of this rank took over the control of the run.
    TookOver,
    /// A rank entered this view.
    View {
        /// The view's number.
        number: u32,
    },
}

/// A rank that another one waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedRank {
    /// Which.
    pub rank: u32,
    /// What for, in words.
    pub what: String,
}

/// What a rank has exchanged with one peer since its process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTotal {
    /// The peer.
    pub peer: u32,
    /// Messages sent to it.
    pub sent: u64,
    /// Messages received from it.
    pub received: u64,
    /// Bytes sent to it, headers included.
    pub bytes_sent: u64,
    /// Bytes received from it, headers included.
    pub bytes_received: u64,
    /// Microseconds of a round trip to it, smoothed, as the system measures it on the connection; 0
    /// where there is no connection, or the system does not say.
    pub round_trip_micros: u64,
    /// Segments that the system has sent to it again.
    pub resent: u64,
}

/// The memory of a rank's process. Ranks of one process share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Bytes of the machine's memory; 0 where the system does not say.
    pub resident_bytes: u64,
    /// Bytes that its framework has allocated on its GPU; 0 without one.
    pub gpu_bytes: u64,
}

/// What one rank did in the whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankReport {
    /// Its number.
    pub rank: u32,
    /// Whether it is a server.
    pub is_server: bool,
    /// Whether it took no part any more at the end.
    pub lost: bool,
    /// Whether that was because it left with notice.
    pub left: bool,
    /// Steps completed.
    pub steps: u64,
    /// Samples used.
    pub samples: u64,
    /// Seconds of computing.
    pub compute_seconds: f64,
    /// Seconds of communication that compute did not hide.
    pub exposed_seconds: f64,
    /// Seconds of waiting for slower peers.
    pub waiting_seconds: f64,
    /// Bytes sent, headers included.
    pub bytes_sent: u64,
    /// Bytes received, headers included.
    pub bytes_received: u64,
    /// Messages sent.
    pub messages_sent: u64,
    /// What its algorithm measured.
    pub facts: FactTotals,
    /// Loss of the last gradient.
    pub last_loss: f32,
    /// The parameters at the end, drained.
    pub params: Vec<f32>,
    /// What one would deploy from this rank.
    pub model: Vec<f32>,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Seconds on the run's clock until the last worker had finished its last step.
    pub clock_seconds: f64,
    /// Every rank, in order.
    pub ranks: Vec<RankReport>,
    /// What went wrong without ending the run, in sentences.
    pub warnings: Vec<String>,
    /// How much was on its way, where the driver can tell.
    pub in_flight: InFlight,
    /// The books of the data, where workers share them.
    pub data: Option<DataBooks>,
}

/// The books of data that all workers share. A unit is the data of one gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataBooks {
    /// Units of the whole run.
    pub units: u64,
    /// Units that a worker has confirmed with the step that used them; none twice.
    pub confirmed: u64,
    /// Units that were handed out again because their worker was lost. What it had sent of them before may
    /// count twice in effect.
    pub handed_out_again: u64,
}

/// How much was on its way: handed over by its sender, not yet taken in by its receiver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InFlight {
    /// Most messages at any moment.
    pub peak_messages: u64,
    /// Most bytes at any moment, headers included.
    pub peak_bytes: u64,
    /// The same for consecutive stretches of the run, all of one length.
    pub series: Vec<Peak>,
}

/// The most that was on its way in one stretch of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peak {
    /// When the stretch ended.
    pub until_seconds: f64,
    /// Messages.
    pub messages: u64,
    /// Bytes, headers included.
    pub bytes: u64,
}
