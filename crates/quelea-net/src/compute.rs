//! Who computes the gradients of one rank.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use quelea_core::node::Loan;
use quelea_core::problems::{Computed, GradientSource};
use tokio::sync::mpsc::UnboundedSender;

use crate::external_loop::ExternalLoop;
use crate::rank::Inbox;

/// A gradient, with the vectors that were lent for it.
#[derive(Debug)]
pub(crate) struct Gradient {
    pub(crate) lent: Loan,
    pub(crate) computed: Computed,
    pub(crate) took: Duration,
}

/// Who computes the gradients of a rank.
pub(crate) enum Compute {
    /// A thread of their own, so that messages are handled meanwhile. It ends when this is
    /// dropped, after the gradient that it is computing; nobody waits for that.
    Beside(mpsc::Sender<Loan>),
    /// The rank's own thread: for gradients that take less time than waking another thread.
    Here(Box<dyn GradientSource>, UnboundedSender<Inbox>),
    /// A loop that is not ours.
    Outside(ExternalLoop),
}

/// Below so many operations (some tens of microseconds) another thread does not pay.
const SMALL_OPERATIONS: u64 = 100_000;

impl Compute {
    /// Answers go to `inbox`.
    pub(crate) fn start(
        name: String,
        mut source: Box<dyn GradientSource>,
        inbox: UnboundedSender<Inbox>,
    ) -> std::io::Result<Compute> {
        if source.operations() < SMALL_OPERATIONS {
            return Ok(Compute::Here(source, inbox));
        }
        let (sender, asked) = mpsc::channel::<Loan>();
        let work = move || {
            for lent in asked {
                if inbox.send(gradient(&mut *source, lent)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name(name).spawn(work)?;
        Ok(Compute::Beside(sender))
    }

    /// Asks for the gradient of `lent`; the answer comes through the inbox in either case, so
    /// that messages have their turn in between.
    pub(crate) fn ask(&mut self, lent: Loan) {
        // Whoever is gone said why before.
        match self {
            Compute::Beside(thread) => drop(thread.send(lent)),
            Compute::Here(source, inbox) => drop(inbox.send(gradient(&mut **source, lent))),
            Compute::Outside(external) => external.lend(lent),
        }
    }
}

fn gradient(source: &mut dyn GradientSource, mut lent: Loan) -> Inbox {
    let begun = Instant::now();
    let compute = AssertUnwindSafe(|| source.gradient(lent.step, &lent.params, &mut lent.grad));
    match catch_unwind(compute) {
        Ok(computed) => Inbox::Gradient(Gradient { lent, computed, took: begun.elapsed() }),
        Err(panic) => Inbox::Broken(format!("its gradient panicked: {}", text(&*panic))),
    }
}

/// What a panic said.
pub(crate) fn text(panic: &(dyn Any + Send)) -> &str {
    let string = panic.downcast_ref::<String>().map(String::as_str);
    string.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}
