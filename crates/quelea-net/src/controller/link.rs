//! How the controller reaches a rank: in this process, over a connection, or after its state.

use std::net::Shutdown;

use quelea_control::Command;
use quelea_record::Record;
use tokio::sync::mpsc::UnboundedSender;

use crate::protocol::{self, PacketError, SetupMessage};
use crate::rank::Inbox;
use crate::trust::ControlStream;

/// How a rank receives commands.
#[derive(Debug)]
pub(crate) enum ControlLink {
    /// It lives here.
    Local(UnboundedSender<Inbox>),
    /// It has joined.
    Remote(ControlStream),
    /// Its state is being sent to it; then what was said to it meanwhile.
    Entering(EnteringLink),
    /// Writing to it failed; it receives nothing more.
    Broken,
}

/// What became of a command.
pub(super) enum Delivery {
    /// It is on its way.
    Sent,
    /// The rank receives nothing any more; why is seen where it is read.
    Closed,
    /// The rank is gone for this reason, which is not seen elsewhere.
    Failed(String),
}

impl ControlLink {
    pub(super) fn tell(&mut self, command: &Command) -> Delivery {
        let told = match self {
            ControlLink::Local(_) if *command == Command::Heartbeat => return Delivery::Sent,
            ControlLink::Local(inbox) => {
                let sent = inbox.send(Inbox::Command(command.clone()));
                return if sent.is_ok() { Delivery::Sent } else { Delivery::Closed };
            }
            ControlLink::Remote(stream) => protocol::write(stream, command),
            ControlLink::Entering(_) if *command == Command::Heartbeat => return Delivery::Sent,
            ControlLink::Entering(link) => {
                link.unsaid.push(UnsaidWord::Command(command.clone()));
                return Delivery::Sent;
            }
            ControlLink::Broken => return Delivery::Closed,
        };
        let Err(error) = told else { return Delivery::Sent };
        *self = ControlLink::Broken;
        if matches!(error, PacketError::Closed) {
            Delivery::Closed
        } else {
            Delivery::Failed(error.to_string())
        }
    }
}

impl ControlLink {
    /// Says something about others who join. A process that is gone is noticed by its reader.
    pub(crate) fn mention(&mut self, word: &SetupMessage) {
        match self {
            ControlLink::Remote(stream) => drop(protocol::write(stream, word)),
            ControlLink::Entering(link) => link.unsaid.push(UnsaidWord::Setup(word.clone())),
            ControlLink::Local(_) | ControlLink::Broken => {}
        }
    }

    /// Whether the state of transfer `number` is being sent over it.
    pub(super) fn is_entering(&self, number: u64) -> bool {
        matches!(self, ControlLink::Entering(link) if link.number == number)
    }

    /// The state is on its way: what was said meanwhile follows it.
    pub(super) fn complete(&mut self) -> Result<(), String> {
        let ControlLink::Entering(link) = self else { return Ok(()) };
        let Some(stream) = link.stream.take() else { return Ok(()) };
        for word in &link.unsaid {
            let told = match word {
                UnsaidWord::Command(command) => protocol::write(&stream, command),
                UnsaidWord::Setup(word) => protocol::write(&stream, word),
            };
            told.map_err(|error| error.to_string())?;
        }
        *self = ControlLink::Remote(stream);
        Ok(())
    }
}

/// The way to a worker whose state is being sent to it by another thread.
#[derive(Debug)]
pub(crate) struct EnteringLink {
    /// Which of all transfers this is.
    number: u64,
    /// Until it is an ordinary one.
    stream: Option<ControlStream>,
    unsaid: Vec<UnsaidWord>,
}

impl EnteringLink {
    pub(crate) fn new(number: u64, stream: ControlStream) -> EnteringLink {
        EnteringLink { number, stream: Some(stream), unsaid: Vec::new() }
    }
}

/// What follows the state.
#[derive(Debug)]
enum UnsaidWord {
    Command(Command),
    Setup(SetupMessage),
}

/// The state of a worker that enters, as it went out.
#[derive(Debug)]
pub(crate) struct TransferredState {
    pub(crate) rank: u32,
    /// Which of all transfers it was.
    pub(crate) number: u64,
    /// What is recorded of it, or why it did not go out.
    pub(crate) sent: Result<Record, String>,
}

impl Drop for ControlLink {
    fn drop(&mut self) {
        let stream = match self {
            ControlLink::Remote(stream) => stream,
            ControlLink::Entering(EnteringLink { stream: Some(stream), .. }) => stream,
            ControlLink::Entering(_) | ControlLink::Local(_) | ControlLink::Broken => return,
        };
        // What was written still arrives; then the worker sees that this was all.
        let _ = stream.shutdown(Shutdown::Write);
    }
}
