//! Ctrl-C, and being asked to stop: the run is saved, and nothing half-written stays.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use quelea_run::execute::{EndingRun, ask_to_leave, ask_to_stop};

use crate::request::INTERRUPTED;
use crate::text::mention;

/// Whether another process decides when this one ends.
static FOLLOWS: AtomicBool = AtomicBool::new(false);

/// Ctrl-C in a terminal reaches every process of a run; from now on this one leaves the decision to
/// the one that coordinates.
pub fn follow() {
    FOLLOWS.store(true, Ordering::Relaxed);
}

/// Whether Ctrl-C is only counted, and how often it came.
static COUNTS: AtomicBool = AtomicBool::new(false);
static COUNTED: AtomicU32 = AtomicU32::new(0);

/// From now on Ctrl-C is only counted, for code that looks at [`counted`] and ends what it has started.
pub fn count_only() {
    COUNTS.store(true, Ordering::Relaxed);
}

/// How often somebody wanted this process to end, since [`count_only`].
pub fn counted() -> u32 {
    COUNTED.load(Ordering::Relaxed)
}

/// From now on Ctrl-C is this process's own again: it has taken over the run.
pub fn lead() {
    FOLLOWS.store(false, Ordering::Relaxed);
}

/// From now on, Ctrl-C and a request to stop let a run save its state and end. A second one, or
/// one without a run, takes away what was begun and ends the process at once; not before the model
/// of a run that has come to its end is written.
pub fn install() {
    let stop = || {
        if FOLLOWS.load(Ordering::Relaxed) {
            return;
        }
        if COUNTS.load(Ordering::Relaxed) {
            COUNTED.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if ask_to_stop() {
            return mention("\nquelea: interrupted; saving the run (again to end at once)");
        }
        let told = match ask_to_leave() {
            EndingRun::WritesModel | EndingRun::LeavesAfterModel => {
                return mention("\nquelea: the run has ended; its model is being written first");
            }
            EndingRun::HasModel(model) => format!("its model is in {}", model.display()),
            EndingRun::None => "what was not saved is lost".to_string(),
        };
        quelea_run::files::directory::abandon_drafts();
        mention(&format!("\nquelea: ended at once; {told}"));
        std::process::exit(i32::from(INTERRUPTED));
    };
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| ctrlc::set_handler(stop).expect("nobody else sets handlers"));
}
