//! A worker's process that takes over a run: who records and evaluates it from then on.

use quelea_core::view::ViewChange;
use quelea_record::{Observer, Outcome, SalvagedModel};

use crate::error::NetError;

/// What a process is told that controls the run from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeOver {
    /// Its rank.
    pub rank: u32,
    /// The rank in whose process the run was controlled before; nobody's, if that process had no worker.
    pub before: Option<u32>,
    /// All changes of membership until now.
    pub changes: Vec<ViewChange>,
    /// Where the coordinator was that the run began with.
    pub coordinator: String,
    /// The port at which workers can join from now on, or why none can.
    pub joining: Result<u16, String>,
}

/// Drives the run to its end, with this observer.
pub type DriveOn<'a> = &'a mut dyn FnMut(&mut dyn Observer) -> Result<Outcome, NetError>;

/// What a worker's process does when the one that controls the run is lost.
pub trait Heir {
    /// The run begins; whether it survives the process that controls it.
    fn begins(&mut self, survives: bool);

    /// This process controls the run from now on: `drive` it to its end, and do with the outcome what the
    /// coordinator would have done.
    fn take_over(&mut self, taken: &TakeOver, drive: DriveOn<'_>);

    /// This process ends, because too few others are within reach; this is its model.
    fn left_alone(&mut self, model: SalvagedModel);
}
