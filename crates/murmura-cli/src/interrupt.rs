//! Ctrl-C, and being asked to stop: nothing half-written stays.

/// What shells report for a command that was ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

/// From now on, Ctrl-C and a request to stop take away what was begun and end the process.
pub fn install() {
    let stop = || {
        murmura_run::files::directory::abandon_drafts();
        crate::text::mention("\nmurmura: interrupted; this run left no files");
        std::process::exit(INTERRUPTED);
    };
    ctrlc::set_handler(stop).expect("handlers are installed once, at the start");
}
