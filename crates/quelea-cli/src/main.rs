//! The `quelea` command with the built-in entries.

use std::process::ExitCode;

use quelea_core::registry::Registry;

fn main() -> ExitCode {
    quelea_cli::main(&Registry::builtin())
}
