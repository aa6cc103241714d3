//! The `quelea` command as a function, so that other crates can build it with entries of their own.
//!
//! A crate that has an algorithm, topology, codec, optimizer or task of its own registers it and passes
//! the registry on; every command then knows it: `list`, `train`, `simulate`, `compare`, `plan`, `serve`
//! and `join`.
//!
//! ```no_run
//! use quelea_core::registry::Registry;
//!
//! fn main() -> std::process::ExitCode {
//!     let registry = Registry::builtin(); // .with(&MY_ALGORITHM)
//!     quelea_cli::main(&registry)
//! }
//! ```
//!
//! With words of one's own, it does not depend on how the program was started:
//!
//! ```
//! use std::process::ExitCode;
//!
//! use quelea_core::registry::Registry;
//!
//! let words = ["quelea", "topology", "ring", "--workers", "8"];
//! assert_eq!(quelea_cli::main_with(&Registry::builtin(), words), ExitCode::SUCCESS);
//! ```
//!
//! Exit status: 0 done, 1 the run failed, 2 the request was wrong, 130 interrupted.

mod commands;
mod interrupt;
mod page;
mod pages;
mod progress;
mod report;
mod request;
mod session;
mod text;

use std::ffi::OsString;
use std::process::ExitCode;

use quelea_core::registry::Registry;

/// Runs the command that this process was started with, over the entries of a registry.
///
/// `train --processes` starts workers as copies of the running program, so that it must be what
/// `main` returns.
pub fn main(registry: &Registry) -> ExitCode {
    main_with(registry, std::env::args_os())
}

/// Runs the command with these words, of which the first is the name of the program.
pub fn main_with(
    registry: &Registry,
    words: impl IntoIterator<Item = impl Into<OsString>>,
) -> ExitCode {
    interrupt::install();
    let words = request::words(words.into_iter().map(Into::into));
    let ended = match commands::parser().try_get_matches_from(words) {
        Ok(matches) => commands::run(registry, &matches),
        // Help and version come this way too, with status 0.
        Err(message) if !message.use_stderr() => {
            text::say(message.render().to_string().trim_end());
            Ok(())
        }
        Err(message) => {
            let _ = message.print();
            return ExitCode::from(message.exit_code() as u8);
        }
    };
    let said = |()| match text::unsaid() {
        Some(error) => Err(anyhow::anyhow!("cannot write to standard output: {error}")),
        None => Ok(()),
    };
    match ended.and_then(said) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            text::complain(&error);
            ExitCode::from(request::status(&error))
        }
    }
}
