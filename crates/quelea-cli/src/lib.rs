//! The `quelea` command as a function, so that other crates can build it with entries of their own.
//!
//! A crate that has an algorithm, topology, codec, optimizer or task of its own registers it and passes
//! the registry on; every command then knows it: `list`, `train`, `simulate`, `compare`, `plan`, `serve`
//! and `join`.
//!
//! ```
//! use quelea_cli::Call;
//! use quelea_core::registry::Registry;
//!
//! let registry = Registry::builtin(); // .with(&MY_ALGORITHM)
//! let words = ["topology", "ring", "--workers", "4"].map(Into::into).to_vec();
//! assert_eq!(quelea_cli::call(&registry, Call { words, ..Call::default() }), 0);
//! ```
//!
//! A program of its own ends with [`main`], which takes the words that it was started with.
//!
//! Exit status: 0 done, 1 the run failed, 2 the request was wrong, 75 too few processes of the
//! run are within reach, 130 interrupted.

mod commands;
mod doctor;
mod interrupt;
mod page;
mod pages;
mod progress;
mod remote;
mod report;
mod request;
mod session;
mod text;
mod yaml;

use std::ffi::OsString;
use std::process::ExitCode;

use quelea_core::registry::Registry;
use quelea_run::drive;

/// Runs the command that this process was started with, over the entries of a registry.
///
/// `train --processes` starts workers as copies of the running program, so that it must be what
/// `main` returns.
pub fn main(registry: &Registry) -> ExitCode {
    let words = std::env::args_os().skip(1).collect();
    ExitCode::from(call(registry, Call { program: Vec::new(), words }))
}

/// One call of the command.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// What starts this program again, where that is not its executable: an interpreter and a script.
    pub program: Vec<OsString>,
    /// What follows the name of the command.
    pub words: Vec<OsString>,
}

/// Runs the command with these words; its exit status.
///
/// For programs that are no executable of their own, such as a module of Python; others have
/// [`main`]. A process may call it several times, one after another.
///
/// ```
/// use quelea_cli::Call;
/// use quelea_core::registry::Registry;
///
/// let status = |words: &[&str]| {
///     let words = words.iter().map(Into::into).collect();
///     quelea_cli::call(&Registry::builtin(), Call { words, ..Call::default() })
/// };
/// assert_eq!(status(&["list", "codecs"]), 0);
/// assert_eq!(status(&["list", "codec"]), 2);
/// ```
pub fn call(registry: &Registry, call: Call) -> u8 {
    interrupt::install();
    drive::started_by(call.program);
    let words = std::iter::once("quelea".into()).chain(call.words);
    let ended = match commands::parser().try_get_matches_from(request::words(words)) {
        Ok(matches) => commands::run(registry, &matches),
        // Help and version come this way too, with status 0.
        Err(message) if !message.use_stderr() => {
            text::say(message.render().to_string().trim_end());
            Ok(())
        }
        Err(message) => {
            let _ = message.print();
            return message.exit_code() as u8;
        }
    };
    let said = |()| match text::unsaid() {
        Some(error) => Err(anyhow::anyhow!("cannot write to standard output: {error}")),
        None => Ok(()),
    };
    match ended.and_then(said) {
        Ok(()) => 0,
        Err(error) => {
            text::complain(&error);
            request::status(&error)
        }
    }
}
