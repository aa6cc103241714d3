//! Notice to leave a run: given by a program, or by SIGTERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process has received SIGTERM since a notice waits for it.
static TERMINATED: AtomicBool = AtomicBool::new(false);

/// Whether the workers of this process are to leave their run, and whether they have. Clones are the same
/// notice.
#[derive(Clone, Debug, Default)]
pub struct LeaveNotice {
    state: Arc<NoticeState>,
}

#[derive(Debug, Default)]
struct NoticeState {
    follows_sigterm: AtomicBool,
    is_given: AtomicBool,
    has_left: AtomicBool,
}

impl LeaveNotice {
    /// One that SIGTERM gives. While the run lasts, that signal does nothing else to this process.
    pub fn on_sigterm() -> LeaveNotice {
        let notice = LeaveNotice::default();
        notice.state.follows_sigterm.store(true, Ordering::Relaxed);
        notice
    }

    /// The run begins: from now on there is something to leave.
    pub(crate) fn arm(&self) {
        if self.state.follows_sigterm.load(Ordering::Relaxed) {
            install_handler();
        }
    }

    /// Gives notice: the worker leaves as soon as the others can do without it.
    pub fn give(&self) {
        self.state.is_given.store(true, Ordering::Relaxed);
    }

    /// Whether it was given.
    pub fn is_given(&self) -> bool {
        let follows_sigterm = self.state.follows_sigterm.load(Ordering::Relaxed);
        let by_signal = follows_sigterm && TERMINATED.load(Ordering::Relaxed);
        by_signal || self.state.is_given.load(Ordering::Relaxed)
    }

    /// Whether the worker has left, and the others continued.
    pub fn has_left(&self) -> bool {
        self.state.has_left.load(Ordering::Relaxed)
    }

    pub(crate) fn note_left(&self) {
        self.state.has_left.store(true, Ordering::Relaxed);
    }
}

fn install_handler() {
    extern "C" fn note(_signal: libc::c_int) {
        TERMINATED.store(true, Ordering::Relaxed);
    }
    let handler = note as extern "C" fn(libc::c_int);
    // SAFETY: the handler only stores into a static atomic, which is allowed at any moment; the action is
    // zeroed but for the handler, and lives until the call returns. Should it be refused, the signal does
    // what it did before.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGTERM, &raw const action, std::ptr::null_mut());
    }
}

impl PartialEq for LeaveNotice {
    fn eq(&self, other: &LeaveNotice) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_given_to_all_its_clones_and_to_no_other() {
        let (notice, other) = (LeaveNotice::default(), LeaveNotice::default());
        let clone = notice.clone();
        notice.give();
        assert!(clone.is_given() && !other.is_given() && clone == notice && other != notice);
    }

    #[test]
    fn sigterm_gives_the_notice_that_waits_for_it_and_does_not_end_the_process() {
        let (notice, other) = (LeaveNotice::on_sigterm(), LeaveNotice::default());
        notice.arm();
        assert!(!notice.is_given());
        // SAFETY: the signal has a handler.
        assert_eq!(unsafe { libc::raise(libc::SIGTERM) }, 0);
        assert!(notice.is_given() && !other.is_given());
    }
}
