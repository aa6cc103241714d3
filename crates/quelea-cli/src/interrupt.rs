//! Ctrl-C, and being asked to stop: the run is saved, and nothing half-written stays.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use quelea_run::execute::ask_to_stop;

use crate::request::INTERRUPTED;
use crate::text::mention;

/// Whether another process decides when this one ends.
static FOLLOWS: AtomicBool = AtomicBool::new(false);

/// Ctrl-C in a terminal reaches every process of a run; from now on this one leaves the decision to
/// the one that coordinates.
pub fn follow() {
    FOLLOWS.store(true, Ordering::Relaxed);
}

/// From now on, Ctrl-C and a request to stop let a run save its state and end. A second one, or
/// one without a run, takes away what was begun and ends the process at once.
pub fn install() {
    let stop = || {
        if FOLLOWS.load(Ordering::Relaxed) {
            return;
        }
        if ask_to_stop() {
            return mention("\nquelea: interrupted; saving the run (again to end at once)");
        }
        quelea_run::files::directory::abandon_drafts();
        mention("\nquelea: ended at once; what was not saved is lost");
        std::process::exit(i32::from(INTERRUPTED));
    };
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| ctrlc::set_handler(stop).expect("nobody else sets handlers"));
}
