//! A rank whose gradients and optimizer belong to a loop outside: a training script's, for example.
//!
//! ```text
//! loop                                     rank's thread
//! LoopTurn::Gradient                        <- the node lends its vectors
//! …forward; backward…
//! handle.bucket(b), as each is final    -> node.bucket: messages leave
//! handle.gradient(computed)             -> node.gradient
//! LoopTurn::Optimize(mode)                  <- the node has asked for the optimizer on every bucket
//! …the loop's own optimizer…
//! handle.optimized()                    -> node.optimized; then the next LoopTurn::Gradient
//! ```
//!
//! While it waits, the loop may be asked for its own state ([`LoopTurn::Save`]), which a worker that joins
//! begins with: [`LoopHandle::entrance`].
//!
//! The loop reads and writes the node's vectors in place, through [`LoopHandle::vectors`]. Who may
//! touch what follows the contract: a bucket is the loop's until it is handed over, all of them
//! are the loop's again at [`LoopTurn::Optimize`], and after [`LoopHandle::optimized`] none until the next
//! [`LoopTurn::Gradient`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use quelea_core::contract::Mode;
use quelea_core::node::Loan;
use quelea_core::node::loan::SharedVector;
use quelea_core::problems::Computed;
use quelea_core::state::Saved;
use quelea_core::view::ViewChange;
use tokio::sync::mpsc::UnboundedSender;

use crate::compute::{Compute, Gradient};
use crate::rank::Inbox;

/// The rank's side of a loop, whose other side holds the [`LoopHandle`].
#[derive(Clone, Debug)]
pub struct ExternalLoop {
    requests: Sender<LoopRequest>,
    shared: Arc<LoopShared>,
}

/// The loop's side.
#[derive(Debug)]
pub struct LoopHandle {
    requests: Mutex<Receiver<LoopRequest>>,
    loan: Mutex<Option<Loan>>,
    shared: Arc<LoopShared>,
}

/// Whose turn it is: the loop's, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopTurn {
    /// The gradient of this step may be computed.
    Gradient(u64),
    /// The optimizer is to run on every bucket.
    Optimize(Mode),
    /// The loop's own state is wanted, for a worker that joins; then it waits on for what it waited for.
    Save,
}

/// What a rank and its loop begin with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoopEntrance {
    /// The step of the first gradient.
    pub step: u64,
    /// The state of another loop, if this one joins a run that has begun.
    pub state: Option<Vec<u8>>,
}

/// What the state of a loop may have besides what its rank's may: the longest that a worker reads when it joins.
pub(crate) const STATE_BYTES: u64 = 256 << 20;

/// The vector of a rank's state that has the state of its loop.
const LOOP_STATE: &str = "loop";

/// The rank has ended; why is known to whoever runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankEnded;

/// The vectors of a rank. Their memory stays where it is for as long as a clone is held, also
/// after the rank has ended.
#[derive(Clone, Debug)]
pub struct LoopVectors {
    /// The parameters.
    pub params: SharedVector,
    /// The gradient.
    pub grad: SharedVector,
}

#[derive(Debug, Default)]
struct LoopShared {
    inbox: OnceLock<UnboundedSender<Inbox>>,
    /// The loop waits where all loops come together outside the run.
    gathering: AtomicBool,
    /// The step at which all workers are on average, as far as the rank knows.
    global_step: AtomicU64,
    /// Bytes that the loop has allocated on its GPU, as it last said.
    gpu_bytes: AtomicU64,
    /// What it begins with, once that is known.
    entrance: OnceLock<LoopEntrance>,
    /// The workers that take part.
    workers: Mutex<Vec<u32>>,
    /// The changes of membership since the run began.
    changes: Mutex<Vec<ViewChange>>,
}

/// What the rank asks of the loop.
#[derive(Debug)]
enum LoopRequest {
    Gradient(Loan),
    Optimize(Mode),
    Save,
}

impl ExternalLoop {
    /// A loop and its rank.
    pub fn new() -> (ExternalLoop, LoopHandle) {
        let (requests, asked) = channel();
        let shared = Arc::new(LoopShared::default());
        let handle = LoopHandle {
            requests: Mutex::new(asked),
            loan: Mutex::new(None),
            shared: Arc::clone(&shared),
        };
        (ExternalLoop { requests, shared }, handle)
    }

    /// The rank is there, and begins with `entrance`: what the loop says goes to `inbox`.
    pub(crate) fn attach(&self, inbox: UnboundedSender<Inbox>, entrance: LoopEntrance) {
        let attached = self.shared.inbox.set(inbox).is_ok();
        let entered = self.shared.entrance.set(entrance).is_ok();
        debug_assert!(attached && entered, "a loop has one rank");
    }

    /// Asks for the loop's own state.
    pub(crate) fn save(&self) {
        // A loop that is gone has said so before.
        let _ = self.requests.send(LoopRequest::Save);
    }

    /// Shows the loop which workers take part.
    pub(crate) fn show_workers(&self, workers: impl Iterator<Item = u32>) {
        *self.shared.workers() = workers.collect();
    }

    /// Shows the loop how membership has changed besides.
    pub(crate) fn show_changes(&self, changes: &[ViewChange]) {
        self.shared.changes().extend_from_slice(changes);
    }

    /// Whether the loop waits where all loops come together outside the run.
    pub(crate) fn is_gathering(&self) -> bool {
        self.shared.gathering.load(Ordering::Relaxed)
    }

    /// Bytes that the loop has allocated on its GPU, as it last said; 0 without one.
    pub(crate) fn gpu_bytes(&self) -> u64 {
        self.shared.gpu_bytes.load(Ordering::Relaxed)
    }

    /// Shows the loop at which step all workers are on average.
    pub(crate) fn show_global_step(&self, step: u64) {
        self.shared.global_step.store(step, Ordering::Relaxed);
    }

    /// Asks for the optimizer on every bucket.
    pub(crate) fn optimize(&self, mode: Mode) {
        // A loop that is gone has said so before.
        let _ = self.requests.send(LoopRequest::Optimize(mode));
    }
}

impl LoopShared {
    fn workers(&self) -> MutexGuard<'_, Vec<u32>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changes(&self) -> MutexGuard<'_, Vec<ViewChange>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoopEntrance {
    /// Of a rank that begins with `step`, and with the state of another rank if it joins.
    pub(crate) fn of(step: u64, sponsor: Option<&Saved>) -> LoopEntrance {
        let kept = sponsor.and_then(|saved| saved.vectors.get(LOOP_STATE));
        LoopEntrance { step, state: kept.and_then(|values| bytes_of(values)) }
    }
}

/// Adds the state of its loop to that of a rank.
pub(crate) fn add_state(saved: &mut Saved, state: &[u8]) {
    saved.vectors.insert(LOOP_STATE.to_string(), values_of(state));
}

/// Bytes as the elements of a vector: how many there are, and the bytes, filled up.
fn values_of(bytes: &[u8]) -> Vec<f32> {
    let mut all = (bytes.len() as u64).to_le_bytes().to_vec();
    all.extend_from_slice(bytes);
    all.resize(all.len().next_multiple_of(4), 0);
    let (words, _) = all.as_chunks::<4>();
    words.iter().map(|word| f32::from_ne_bytes(*word)).collect()
}

/// What [`values_of`] was made of.
fn bytes_of(values: &[f32]) -> Option<Vec<u8>> {
    let (length, rest) = bytemuck::cast_slice::<f32, u8>(values).split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    rest.get(..length).map(<[u8]>::to_vec)
}

impl Compute for ExternalLoop {
    fn begin(&mut self, loan: Loan) {
        // A loop that is gone has said so before.
        let _ = self.requests.send(LoopRequest::Gradient(loan));
    }
}

impl LoopHandle {
    /// Waits for the loop's turn, at most for `limit`.
    pub fn wait(&self, limit: Duration) -> Result<Option<LoopTurn>, RankEnded> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        match requests.recv_timeout(limit) {
            Ok(LoopRequest::Gradient(loan)) => {
                let turn = LoopTurn::Gradient(loan.step());
                *self.loan() = Some(loan);
                Ok(Some(turn))
            }
            Ok(LoopRequest::Optimize(mode)) => Ok(Some(LoopTurn::Optimize(mode))),
            Ok(LoopRequest::Save) => Ok(Some(LoopTurn::Save)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(RankEnded),
        }
    }

    /// What the rank began with, from the first turn on.
    pub fn entrance(&self) -> LoopEntrance {
        self.shared.entrance.get().cloned().unwrap_or_default()
    }

    /// The workers that take part, as far as the rank knows.
    pub fn workers(&self) -> Vec<u32> {
        self.shared.workers().clone()
    }

    /// The changes of membership since the run began, in order. At the turn for a gradient, every change that
    /// holds from its step or an earlier one on is among them.
    pub fn changes(&self) -> Vec<ViewChange> {
        self.shared.changes().clone()
    }

    /// The loop's own state, as [`LoopTurn::Save`] asked.
    pub fn saved(&self, state: Vec<u8>) -> Result<(), RankEnded> {
        self.tell(Inbox::LoopState(state))
    }

    /// The step at which all workers are on average, as far as the rank knows; in synchronous
    /// algorithms, its own. It never falls.
    pub fn global_step(&self) -> u64 {
        self.shared.global_step.load(Ordering::Relaxed)
    }

    /// Says how many bytes the loop has allocated on its GPU, for those who look at the run.
    pub fn note_gpu_bytes(&self, bytes: u64) {
        self.shared.gpu_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The vectors, at the turn for a gradient.
    pub fn vectors(&self) -> Option<LoopVectors> {
        let shared = |loan: &Loan| {
            let (params, grad) = loan.shared();
            LoopVectors { params, grad }
        };
        self.loan().as_ref().map(shared)
    }

    /// Bucket `b` of the gradient is final; all before it were handed over.
    pub fn bucket(&self, b: usize) -> Result<(), RankEnded> {
        let mut loan = self.loan();
        let loan = loan.as_mut().expect("buckets are handed over at the turn for a gradient");
        let mut told = Ok(());
        let end = loan.layout().range(b).end;
        loan.hand_over(end, &mut |b| told = self.tell(Inbox::Bucket(b)));
        told
    }

    /// All buckets are handed over.
    pub fn gradient(&self, computed: Computed) -> Result<(), RankEnded> {
        self.end_loan();
        self.tell(Inbox::Gradient(Gradient { computed, took: None }))
    }

    /// The optimizer has run: parameters have taken the step, or the gradient has been replaced by
    /// the displacement, as was asked.
    pub fn optimized(&self) -> Result<(), RankEnded> {
        self.tell(Inbox::Optimized)
    }

    /// There will be no more gradients. Said at the loop's turn for one.
    pub fn finish(&self) -> Result<(), RankEnded> {
        self.end_loan();
        self.tell(Inbox::Finished)
    }

    /// The loop enters a collective call outside the run, or leaves it: a run of which some loops
    /// are there while others wait in a step cannot continue.
    pub fn gather(&self, is_there: bool) {
        self.shared.gathering.store(is_there, Ordering::Relaxed);
    }

    /// The loop has failed: the run ends for everybody.
    pub fn fail(&self, reason: String) {
        // A rank that has ended needs no telling.
        let _ = self.tell(Inbox::Broken(reason));
    }

    fn end_loan(&self) {
        drop(self.loan().take());
    }

    fn loan(&self) -> MutexGuard<'_, Option<Loan>> {
        self.loan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, what: Inbox) -> Result<(), RankEnded> {
        let inbox = self.shared.inbox.get().ok_or(RankEnded)?;
        inbox.send(what).map_err(|_| RankEnded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loops_state_travels_as_a_vector_whatever_its_length_and_its_bits() {
        for length in 0..9 {
            let state: Vec<u8> = (0..length).map(|at| 255 - at).collect();
            let mut saved = Saved::default();
            add_state(&mut saved, &state);
            assert_eq!(
                LoopEntrance::of(7, Some(&saved)),
                LoopEntrance { step: 7, state: Some(state) }
            );
        }
        let cut_off =
            Saved { vectors: [(LOOP_STATE.to_string(), vec![1.0])].into(), ..Saved::default() };
        assert_eq!(LoopEntrance::of(0, Some(&cut_off)).state, None);
    }
}
