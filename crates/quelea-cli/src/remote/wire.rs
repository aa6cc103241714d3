//! What a launching command and the agents on its hosts say to each other: one line of JSON each.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How often the launching command says that it is there.
pub const BEAT: Duration = Duration::from_secs(2);
/// An agent that hears nothing for so long ends its processes: the connection is gone.
pub const SILENCE: Duration = Duration::from_secs(10);
/// The longest line that is read.
const LINE_BYTES: u64 = 1 << 20;

/// A line to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentCommand {
    /// Start these processes.
    Start(StartOrder),
    /// Interrupt them, so that they can save what they have.
    Interrupt,
    /// End them now.
    End,
    /// The launching command is there.
    Beat,
}

/// What an agent is to start. It comes over standard input, so that nobody sees its secret in a list of
/// processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOrder {
    /// The folder in which they run.
    pub folder: Option<String>,
    /// The program; without it, the agent's own.
    pub program: Option<String>,
    /// The processes.
    pub processes: Vec<OrderedProcess>,
}

/// One process of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderedProcess {
    /// Its number among all of the launch.
    pub rank: u32,
    /// What follows the program.
    pub words: Vec<String>,
    /// Variables of its environment.
    pub env: BTreeMap<String, String>,
}

/// A line from an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentMessage {
    /// The agent is there.
    Hello {
        /// The version of its program.
        version: String,
    },
    /// A process has printed a line.
    Line {
        /// Which one.
        rank: u32,
        /// Whether to standard error.
        error: bool,
        /// The line.
        text: String,
    },
    /// A process has ended.
    Ended {
        /// Which one.
        rank: u32,
        /// Its exit status; nothing where a signal has ended it.
        status: Option<i32>,
        /// In words.
        how: String,
    },
    /// The order could not be carried out.
    Failed {
        /// Why.
        reason: String,
    },
}

/// The next line; nothing at the end. One that is too long, or that cannot be read, is an error.
pub fn next_line<T: for<'a> Deserialize<'a>>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    let count = from.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line)?;
    if count == 0 {
        return Ok(None);
    }
    if line.pop() != Some(b'\n') {
        return Err(io::Error::other("a line did not end"));
    }
    serde_json::from_slice(&line).map(Some).map_err(io::Error::other)
}

/// A line.
pub fn line_of<T: Serialize>(message: &T) -> Vec<u8> {
    let mut line =
        serde_json::to_vec(message).expect("lines have no maps with other keys than text");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_as_they_were_and_bad_ones_are_errors() {
        let env = [("QUELEA_TOKEN".to_string(), "a\nb".to_string())].into();
        let process = OrderedProcess { rank: 3, words: vec!["join".into()], env };
        let order = StartOrder { folder: None, program: None, processes: vec![process] };
        let lines =
            [line_of(&AgentCommand::Start(order.clone())), line_of(&AgentCommand::Beat)].concat();
        let mut from = &lines[..];
        assert_eq!(next_line(&mut from).expect("a line"), Some(AgentCommand::Start(order)));
        assert_eq!(next_line(&mut from).expect("a line"), Some(AgentCommand::Beat));
        assert_eq!(next_line::<AgentCommand>(&mut from).expect("the end"), None);
        for bad in [&b"\"Beat\""[..], b"{}\n", b"\xff\n"] {
            next_line::<AgentCommand>(&mut &bad[..]).expect_err("no line");
        }
    }
}
