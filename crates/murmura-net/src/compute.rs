//! Gradients of one rank, on a thread of their own.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use murmura_core::node::Lent;
use murmura_core::problems::{Computed, GradientSource};
use tokio::sync::mpsc::UnboundedSender;

use crate::options::Options;
use crate::rank::Inbox;

/// A gradient, with the vectors that were lent for it.
#[derive(Debug)]
pub(crate) struct Gradient {
    pub(crate) lent: Lent,
    pub(crate) computed: Computed,
    pub(crate) took: Duration,
}

/// Emulated slowness.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    factor: f64,
    least_seconds: f64,
}

impl Pace {
    pub(crate) fn of(rank: u32, options: &Options) -> Pace {
        Pace {
            factor: options.slow.get(&rank).copied().unwrap_or(1.0),
            least_seconds: options.compute_ms.unwrap_or(0.0) / 1e3,
        }
    }

    /// How much longer a gradient that took `seconds` is to take.
    fn rest(self, seconds: f64) -> Option<Duration> {
        let rest = seconds.max(self.least_seconds) * self.factor - seconds;
        (rest > 0.0).then(|| Duration::from_secs_f64(rest))
    }
}

/// Starts the thread. It ends when the sender that is returned is dropped, after the gradient
/// that it is computing; nobody waits for that.
pub(crate) fn start(
    name: String,
    mut source: Box<dyn GradientSource>,
    pace: Pace,
    inbox: UnboundedSender<Inbox>,
) -> std::io::Result<mpsc::Sender<Lent>> {
    let (sender, asked) = mpsc::channel::<Lent>();
    let work = move || {
        for mut lent in asked {
            let begun = Instant::now();
            let gradient =
                AssertUnwindSafe(|| source.gradient(lent.step, &lent.params, &mut lent.grad));
            let answer = match catch_unwind(gradient) {
                Ok(computed) => {
                    if let Some(rest) = pace.rest(begun.elapsed().as_secs_f64()) {
                        std::thread::sleep(rest);
                    }
                    Inbox::Gradient(Gradient { lent, computed, took: begun.elapsed() })
                }
                Err(panic) => Inbox::Broken(format!("its gradient panicked: {}", text(&*panic))),
            };
            if inbox.send(answer).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name(name).spawn(work)?;
    Ok(sender)
}

/// What a panic said.
pub(crate) fn text(panic: &(dyn Any + Send)) -> &str {
    let string = panic.downcast_ref::<String>().map(String::as_str);
    string.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}
