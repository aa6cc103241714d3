//! The `murmura` command. Exit status: 0 done, 1 the run failed, 2 the request was wrong,
//! 130 interrupted.

mod commands;
mod interrupt;
mod progress;
mod report;
mod request;
mod session;
mod text;

use std::process::ExitCode;

fn main() -> ExitCode {
    interrupt::install();
    let matches = match commands::parser().try_get_matches() {
        Ok(matches) => matches,
        Err(message) => {
            // Help and version come this way too, with status 0.
            let _ = message.print();
            return ExitCode::from(message.exit_code() as u8);
        }
    };
    match commands::run(&matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            text::complain(&error);
            ExitCode::from(request::status(&error))
        }
    }
}
