//! Processes on other machines, started over SSH: which, what they are told, and how they end.
//!
//! Every host has one connection, over which `ssh` starts this program again as an agent. The agent reads
//! its order from standard input, starts its processes, and sends what they print. It ends them when
//! it is asked to, when the connection is closed, and when nothing has come for [`wire::SILENCE`].

pub mod agent;
pub mod fleet;
pub mod hosts;
pub mod scripts;
mod wire;
pub mod workers;

use fleet::RemoteShell;
use quelea_run::error::RequestError;

/// How other machines are reached.
#[derive(Clone, Debug, clap::Args)]
pub struct RemoteArgs {
    /// What reaches the hosts, as in 'ssh -p 2222'; it must not ask for anything
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    ssh: String,

    /// This program on the hosts, as in /opt/quelea/bin/quelea or 'python3 -m quelea'
    #[arg(long, value_name = "COMMAND", default_value = "quelea")]
    remote_program: String,
}

impl RemoteArgs {
    /// The words of both commands.
    pub fn shell(&self) -> Result<RemoteShell, RequestError> {
        let words = |field: &str, text: &str| {
            let words: Vec<String> = text.split_whitespace().map(str::to_string).collect();
            if words.is_empty() {
                return Err(RequestError::field(field, text, "must be a command"));
            }
            Ok(words)
        };
        let program = words("--remote-program", &self.remote_program)?;
        Ok(RemoteShell { words: words("--ssh", &self.ssh)?, program })
    }
}
