//! The `quelea` command. Exit status: 0 done, 1 the run failed, 2 the request was wrong,
//! 130 interrupted.

mod commands;
mod interrupt;
mod page;
mod pages;
mod progress;
mod report;
mod request;
mod session;
mod text;

use std::process::ExitCode;

fn main() -> ExitCode {
    interrupt::install();
    let ended = match commands::parser().try_get_matches_from(request::words(std::env::args_os())) {
        Ok(matches) => commands::run(&matches),
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
