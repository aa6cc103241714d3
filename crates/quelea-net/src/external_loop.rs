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
}

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
}

/// What the rank asks of the loop.
#[derive(Debug)]
enum LoopRequest {
    Gradient(Loan),
    Optimize(Mode),
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

    /// The rank is there: what the loop says goes to `inbox`.
    pub(crate) fn attach(&self, inbox: UnboundedSender<Inbox>) {
        let attached = self.shared.inbox.set(inbox);
        debug_assert!(attached.is_ok(), "a loop has one rank");
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
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(RankEnded),
        }
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
