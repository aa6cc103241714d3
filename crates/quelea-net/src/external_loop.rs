//! A rank whose gradients and optimizer are an external loop's: a training script's, for example.
//!
//! ```text
//! loop                                     rank's thread
//! LoopTurn::Gradient                    <- the node lends its vectors
//! …forward; backward…
//! handle.bucket(b), as each is final    -> node.bucket: messages leave
//! handle.gradient(computed)             -> node.gradient
//! LoopTurn::Optimize(mode)              <- the node has asked for the optimizer on every bucket
//! …the loop's own optimizer…
//! handle.optimized()                    -> node.optimized; then the next LoopTurn::Gradient
//! ```
//!
//! The loop reads and writes the node's vectors in place, through [`LoopHandle::vectors`]. Who may
//! touch what follows the contract: a bucket is the loop's until it is handed over, all of them
//! are the loop's again at [`LoopTurn::Optimize`], and after [`LoopHandle::optimized`] none until the next
//! [`LoopTurn::Gradient`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use quelea_core::contract::Mode;
use quelea_core::node::Loan;
use quelea_core::problems::Computed;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::rank::Inbox;

/// The rank's side: a [`Problem`](quelea_core::problems::Problem) whose `outer_loop` is this has
/// its gradients from the loop that holds the [`LoopHandle`].
#[derive(Clone, Debug)]
pub struct ExternalLoop {
    messages: Sender<RankMessage>,
    shared: Arc<LoopShared>,
}

/// The loop's side.
#[derive(Debug)]
pub struct LoopHandle {
    messages: Mutex<Receiver<RankMessage>>,
    lent: Mutex<Option<Loan>>,
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

/// Keeps the memory of a rank's vectors, also after the rank has ended.
#[derive(Clone, Debug)]
pub struct LoopMemory {
    _shared: Arc<LoopShared>,
}

/// Where a rank's vectors are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopVectors {
    /// The parameters.
    pub params: *mut f32,
    /// The gradient.
    pub grad: *mut f32,
    /// Elements of each.
    pub len: usize,
}

#[derive(Debug, Default)]
struct LoopShared {
    inbox: OnceLock<UnboundedSender<Inbox>>,
    /// Vectors of ranks that have ended: somebody may still look at them.
    kept: Mutex<Vec<Vec<f32>>>,
    /// The loop waits where all loops come together outside the run.
    gathering: AtomicBool,
}

impl LoopShared {
    fn keep(&self, vectors: impl IntoIterator<Item = Vec<f32>>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).extend(vectors);
    }

    fn keep_lent(&self, unheard: Inbox) {
        if let Inbox::Given(Given::Bucket(_, Some(lent)) | Given::Finished(Some(lent))) = unheard {
            self.keep([lent.params, lent.grad]);
        }
    }
}

#[derive(Debug)]
enum RankMessage {
    Loan(Loan),
    Asked(Mode),
}

/// What the loop hands over.
#[derive(Debug)]
pub(crate) enum Given {
    /// A bucket of the gradient; with the first, the vectors.
    Bucket(usize, Option<Loan>),
    /// The rest: the gradient is complete.
    Gradient(Computed),
    /// The optimizer has run on every bucket.
    Optimized,
    /// No more gradients.
    Finished(Option<Loan>),
}

impl ExternalLoop {
    /// A loop and its rank.
    pub fn new() -> (ExternalLoop, LoopHandle) {
        let (messages, hearing) = channel();
        let shared = Arc::new(LoopShared::default());
        let handle = LoopHandle {
            messages: Mutex::new(hearing),
            lent: Mutex::new(None),
            shared: Arc::clone(&shared),
        };
        (ExternalLoop { messages, shared }, handle)
    }

    /// The rank is there: what the loop says goes to `inbox`.
    pub(crate) fn attach(&self, inbox: UnboundedSender<Inbox>) {
        let attached = self.shared.inbox.set(inbox);
        debug_assert!(attached.is_ok(), "a loop has one rank");
    }

    pub(crate) fn lend(&self, lent: Loan) {
        if let Err(unheard) = self.messages.send(RankMessage::Loan(lent))
            && let RankMessage::Loan(lent) = unheard.0
        {
            self.keep([lent.params, lent.grad]);
        }
    }

    /// Whether the loop waits where all loops come together outside the run.
    pub(crate) fn is_gathering(&self) -> bool {
        self.shared.gathering.load(Ordering::Relaxed)
    }

    pub(crate) fn ask(&self, mode: Mode) {
        // A loop that is gone has said so before.
        let _ = self.messages.send(RankMessage::Asked(mode));
    }

    /// The rank listens no more: vectors in what it has not heard are kept.
    pub(crate) fn keep_unheard(&self, inbox: &mut UnboundedReceiver<Inbox>) {
        inbox.close();
        while let Ok(unheard) = inbox.try_recv() {
            self.shared.keep_lent(unheard);
        }
    }

    pub(crate) fn keep(&self, vectors: impl IntoIterator<Item = Vec<f32>>) {
        self.shared.keep(vectors);
    }
}

impl LoopHandle {
    /// Waits for the loop's turn, at most for `limit`.
    pub fn wait(&self, limit: Duration) -> Result<Option<LoopTurn>, RankEnded> {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        match messages.recv_timeout(limit) {
            Ok(RankMessage::Loan(lent)) => {
                let turn = LoopTurn::Gradient(lent.step);
                *self.lent() = Some(lent);
                Ok(Some(turn))
            }
            Ok(RankMessage::Asked(mode)) => Ok(Some(LoopTurn::Optimize(mode))),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(RankEnded),
        }
    }

    /// Where the vectors are. They stay there for as long as [`LoopHandle::memory`] is held.
    /// `None` before the first gradient.
    pub fn vectors(&self) -> Option<LoopVectors> {
        self.lent().as_mut().map(|lent| LoopVectors {
            params: lent.params.as_mut_ptr(),
            grad: lent.grad.as_mut_ptr(),
            len: lent.params.len(),
        })
    }

    /// Keeps the memory of the vectors.
    pub fn memory(&self) -> LoopMemory {
        LoopMemory { _shared: Arc::clone(&self.shared) }
    }

    /// Bucket `b` of the gradient is final; all before it were handed over.
    pub fn bucket(&self, b: usize) -> Result<(), RankEnded> {
        let lent = self.lent().take();
        self.give(Given::Bucket(b, lent))
    }

    /// All buckets are handed over.
    pub fn gradient(&self, computed: Computed) -> Result<(), RankEnded> {
        self.give(Given::Gradient(computed))
    }

    /// The optimizer has run: parameters have taken the step, or the gradient has been replaced by
    /// the displacement, as was asked.
    pub fn optimized(&self) -> Result<(), RankEnded> {
        self.give(Given::Optimized)
    }

    /// There will be no more gradients. Said at the loop's turn for one.
    pub fn finish(&self) -> Result<(), RankEnded> {
        let lent = self.lent().take();
        self.give(Given::Finished(lent))
    }

    /// The loop goes where all loops come together outside the run, or comes back: a run of which
    /// some loops are there while others wait in a step cannot go on.
    pub fn gather(&self, is_there: bool) {
        self.shared.gathering.store(is_there, Ordering::Relaxed);
    }

    /// The loop cannot go on: the run ends for everybody.
    pub fn fail(&self, reason: String) {
        if let Some(inbox) = self.shared.inbox.get() {
            // A rank that has ended needs no telling.
            let _ = inbox.send(Inbox::Broken(reason));
        }
    }

    fn lent(&self) -> std::sync::MutexGuard<'_, Option<Loan>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, given: Given) -> Result<(), RankEnded> {
        let inbox = self.shared.inbox.get().ok_or(RankEnded)?;
        inbox.send(Inbox::Given(given)).map_err(|unheard| {
            self.shared.keep_lent(unheard.0);
            RankEnded
        })
    }
}

impl Drop for LoopHandle {
    fn drop(&mut self) {
        let messages = self.messages.get_mut().unwrap_or_else(PoisonError::into_inner);
        let lent = self.lent.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let unheard = messages.try_iter().filter_map(|word| match word {
            RankMessage::Loan(lent) => Some(lent),
            RankMessage::Asked(_) => None,
        });
        for lent in lent.into_iter().chain(unheard) {
            self.shared.keep([lent.params, lent.grad]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop that has handed its vectors over may still look at them when the rank has ended.
    #[test]
    fn vectors_that_a_rank_has_not_heard_of_are_kept() {
        let (external, handle) = ExternalLoop::new();
        let (sender, mut inbox) = tokio::sync::mpsc::unbounded_channel();
        external.attach(sender);
        external.lend(Loan { params: vec![1.0; 3], grad: vec![2.0; 3], step: 0 });
        let turn = handle.wait(Duration::from_secs(10)).expect("the rank lives");
        assert_eq!(turn, Some(LoopTurn::Gradient(0)));
        let vectors = handle.vectors().expect("they are lent");
        handle.bucket(0).expect("it is listening");
        external.keep_unheard(&mut inbox);
        assert_eq!(handle.bucket(1), Err(RankEnded));
        drop((inbox, external));
        let kept = handle.shared.kept.lock().expect("nobody panicked");
        let addresses: Vec<_> = kept.iter().map(|vector| vector.as_ptr().cast_mut()).collect();
        assert_eq!(addresses, [vectors.params, vectors.grad]);
    }
}
