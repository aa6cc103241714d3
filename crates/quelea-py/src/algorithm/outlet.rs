//! Where exceptions of an algorithm's events go. Drivers know no such errors.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

use crate::model::Raised;

/// Whoever hears that an event has raised an exception.
#[derive(Clone)]
pub(crate) struct Outlet {
    /// Takes the exception.
    pub(crate) raised: Raised,
    /// Ends the run for all ranks with a reason. Without it the driver is unwound: it runs on the thread
    /// that waits for it.
    pub(crate) end: Option<Arc<dyn Fn(String) + Send + Sync>>,
}

thread_local! {
    /// That of the simulation on this thread.
    static SIMULATED: RefCell<Option<Outlet>> = const { RefCell::new(None) };
}

/// That of the process's rank.
static WRAPPED: Mutex<Option<Outlet>> = Mutex::new(None);

/// Does `work`, a simulation on this thread whose events raise into `raised`.
pub(crate) fn simulated<T>(raised: Raised, work: impl FnOnce() -> T) -> T {
    let outlet = Outlet { raised, end: None };
    let before = SIMULATED.with(|slot| slot.replace(Some(outlet)));
    let done = work();
    SIMULATED.with(|slot| slot.replace(before));
    done
}

impl Outlet {
    /// From now on, ranks of this process that are no simulation's raise into this one.
    pub(crate) fn install(self) {
        *WRAPPED.lock().unwrap_or_else(PoisonError::into_inner) = Some(self);
    }

    /// From now on they print what they raise, and end by a panic.
    pub(crate) fn remove() {
        *WRAPPED.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// That of a worker that is made now, on this thread.
    pub(super) fn current() -> Option<Outlet> {
        let wrapped = || WRAPPED.lock().unwrap_or_else(PoisonError::into_inner).clone();
        SIMULATED.with(|slot| slot.borrow().clone()).or_else(wrapped)
    }

    /// An event has raised `error`; `reason` is that in words. Returns only if the run ends by itself.
    pub(super) fn fail(&self, error: PyErr, reason: String) {
        match &self.end {
            Some(end) => {
                self.raised.put(error);
                end(reason);
            }
            None => self.raised.end_with(error),
        }
    }
}
