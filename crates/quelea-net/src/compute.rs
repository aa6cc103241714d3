//! Who computes the gradients of the workers of a process.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use quelea_core::node::Loan;
use quelea_core::problems::{Computed, GradientSource, Problem};
use tokio::sync::mpsc::UnboundedSender;

use crate::external_loop::ExternalLoop;
use crate::rank::Inbox;

/// Makes the gradient source of a worker.
pub type MakeSource = Box<dyn Fn(usize) -> Box<dyn GradientSource> + Send + Sync>;

/// Gives the loop of a worker.
pub type MakeLoop = Box<dyn Fn(usize) -> ExternalLoop + Send + Sync>;

/// Where the gradients of a process's workers come from.
pub enum Gradients {
    /// Each worker has a source.
    Sources(MakeSource),
    /// A loop outside this crate computes those of each worker, and runs its optimizer.
    External(MakeLoop),
}

impl Gradients {
    /// Whether a loop outside decides how many gradients there are.
    pub(crate) fn are_external(&self) -> bool {
        matches!(self, Gradients::External(_))
    }

    /// The sources of a problem.
    pub fn of(problem: Arc<dyn Problem>) -> Gradients {
        Gradients::Sources(Box::new(move |rank| problem.source(rank)))
    }
}

/// A gradient that is complete.
#[derive(Debug)]
pub(crate) struct Gradient {
    pub(crate) computed: Computed,
    /// How long computing took, where that is known.
    pub(crate) took: Option<Duration>,
}

/// Computes gradients for one rank. Answers come through the rank's inbox: a
/// [bucket](Inbox::Bucket) for each that is ready before the rest, then the
/// [gradient](Inbox::Gradient).
pub(crate) trait Compute {
    /// Begins the gradient of `loan`.
    fn begin(&mut self, loan: Loan);

    /// Whether it is computed on the rank's own thread.
    fn is_inline(&self) -> bool {
        false
    }
}

/// Below so many operations (some tens of microseconds) another thread does not pay.
const SMALL_OPERATIONS: u64 = 100_000;

/// Whether a rank computes a gradient on its own thread, for others to see: counts the beginnings and the
/// ends.
#[derive(Debug, Default)]
pub(crate) struct InlineActivity(AtomicU64);

impl InlineActivity {
    /// The number of the gradient that is being computed on the rank's own thread, if one is.
    pub(crate) fn current(&self) -> Option<u64> {
        let count = self.0.load(Ordering::Relaxed);
        (count % 2 == 1).then_some(count)
    }

    /// A gradient begins, or ends.
    pub(crate) fn toggle(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Computes with `source`, on a thread called `name` unless that does not pay.
pub(crate) fn start(
    name: String,
    mut source: Box<dyn GradientSource>,
    inbox: UnboundedSender<Inbox>,
    activity: Arc<InlineActivity>,
) -> std::io::Result<Box<dyn Compute>> {
    if source.operations() < SMALL_OPERATIONS {
        return Ok(Box::new(Inline { source, inbox, activity }));
    }
    let (loans, asked) = mpsc::channel::<Loan>();
    let work = move || {
        for loan in asked {
            if compute(&mut *source, loan, &inbox).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name(name).spawn(work)?;
    Ok(Box::new(Threaded { loans }))
}

/// On a thread of its own, so that messages are handled meanwhile. It ends when this is dropped,
/// after the gradient that it is computing; nobody waits for that.
struct Threaded {
    loans: mpsc::Sender<Loan>,
}

impl Compute for Threaded {
    fn begin(&mut self, loan: Loan) {
        // A thread that has ended said why before.
        let _ = self.loans.send(loan);
    }
}

/// On the rank's own thread: for gradients that take less time than waking another one.
struct Inline {
    source: Box<dyn GradientSource>,
    inbox: UnboundedSender<Inbox>,
    activity: Arc<InlineActivity>,
}

impl Compute for Inline {
    fn begin(&mut self, loan: Loan) {
        // The rank listens to its own inbox for as long as it lives.
        self.activity.toggle();
        let _ = compute(&mut *self.source, loan, &self.inbox);
        self.activity.toggle();
    }

    fn is_inline(&self) -> bool {
        true
    }
}

/// The rank has ended.
struct Unheard;

fn compute(
    source: &mut dyn GradientSource,
    mut loan: Loan,
    inbox: &UnboundedSender<Inbox>,
) -> Result<(), Unheard> {
    let begun = Instant::now();
    // Whether anybody listens is seen below.
    let mut ready = |bucket| drop(inbox.send(Inbox::Bucket(bucket)));
    let computed = catch_unwind(AssertUnwindSafe(|| source.gradient(&mut loan, &mut ready)));
    drop(loan);
    let answer = match computed {
        Ok(computed) => Inbox::Gradient(Gradient { computed, took: Some(begun.elapsed()) }),
        Err(panic) => Inbox::Broken(format!("its gradient panicked: {}", text(&*panic))),
    };
    inbox.send(answer).map_err(|_| Unheard)
}

/// What a panic said.
pub(crate) fn text(panic: &(dyn Any + Send)) -> &str {
    let string = panic.downcast_ref::<String>().map(String::as_str);
    string.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}
