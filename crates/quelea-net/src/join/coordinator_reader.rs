//! What a worker reads from the coordinator before the run.

use quelea_core::time::Time;
use quelea_record::{CheckpointSchedule, RankCheckpoint, ResumePoint};
use quelea_wire::control::{ControlError, Reader};

use crate::error::NetError;
use crate::external_loop::STATE_BYTES;
use crate::measure::Prober;
use crate::options::NetOptions;
use crate::protocol::{self, JOB_BYTES, SMALL_BYTES, SetupMessage, Survival, Wait};
use crate::trust::{ControlStream, RankSeat};
use quelea_control::Command;

/// With what a worker begins.
pub(super) struct RunBeginning {
    pub(super) start: ResumePoint,
    /// The run's zero on the coordinator's clock.
    pub(super) zero: Time,
    pub(super) schedule: CheckpointSchedule,
    /// How the run survives the coordinator, if it does.
    pub(super) survival: Option<Survival>,
}

/// Who hears the coordinator before the run.
pub(super) struct CoordinatorReader<'a> {
    pub(super) stream: &'a ControlStream,
    pub(super) address: &'a str,
    pub(super) options: &'a NetOptions,
}

impl CoordinatorReader<'_> {
    /// What to go on from, if anything, and when the run begins; nothing where it was only to
    /// measure, which it does.
    pub(super) fn hear_start(
        &self,
        mut wait: Wait,
        len: usize,
        prober: &Prober<'_>,
    ) -> Result<Option<RunBeginning>, NetError> {
        let (mut start, rank) = (ResumePoint::default(), prober.links.rank.index());
        let of_loop = if prober.gradients.are_external() { STATE_BYTES } else { 0 };
        let most = protocol::state_bytes(len) + of_loop;
        loop {
            match hear_up_to(self.stream, self.address, wait, most)? {
                SetupMessage::Resume { part, resized, joins, changes } => {
                    start.parts = vec![RankCheckpoint::default(); rank];
                    start.parts.push(*part);
                    (start.resized, start.joins, start.changes) = (resized, joins, changes);
                }
                SetupMessage::Start { zero, schedule, survival } => {
                    return Ok(Some(RunBeginning { start, zero, schedule, survival }));
                }
                SetupMessage::Measure(probe) => {
                    let answer = match prober.measure(&probe) {
                        Ok(values) => SetupMessage::Found { values },
                        Err(reason) => SetupMessage::Unable { reason },
                    };
                    // A coordinator that is gone is noticed where its next word is awaited.
                    let _ = protocol::write(self.stream, &answer);
                    let seconds = self.options.connect_seconds.max(self.options.compute_seconds);
                    wait = Wait::new(seconds, "the next measurement");
                }
                SetupMessage::Measured => return Ok(None),
                other => return Err(unexpected(self.address, &other)),
            }
        }
    }
}

pub(super) fn unexpected(address: &str, word: &SetupMessage) -> NetError {
    NetError::Handshake { address: address.into(), problem: format!("unexpected {word:?}") }
}

/// One word of the coordinator before the run, which may also be that there will be none.
pub(super) fn hear(
    stream: &ControlStream,
    address: &str,
    wait: Wait,
) -> Result<SetupMessage, NetError> {
    hear_up_to(stream, address, wait, SMALL_BYTES + JOB_BYTES)
}

pub(super) fn hear_up_to(
    stream: &ControlStream,
    address: &str,
    wait: Wait,
    most: u64,
) -> Result<SetupMessage, NetError> {
    match protocol::read::<CoordinatorMessage>(stream, most, Some(wait)) {
        Ok(CoordinatorMessage::SetupMessage(setting)) => Ok(setting),
        Ok(CoordinatorMessage::Aborted(reason)) => Err(NetError::Aborted(reason)),
        Err(error) => {
            Err(NetError::LostCoordinator { address: address.into(), reason: error.to_string() })
        }
    }
}

/// What a worker reads from the coordinator during the run.
#[derive(Debug)]
pub(crate) enum RunMessage {
    Command(Command),
    /// A seat was given again.
    Seat(RankSeat),
    /// A worker that joins listens there.
    Moved {
        rank: u32,
        address: String,
    },
    /// The run has ended well.
    Ended,
}

impl protocol::Packet for RunMessage {
    fn encode(&self) -> Vec<u8> {
        match self {
            RunMessage::Command(command) => command.encode(),
            RunMessage::Seat(seat) => SetupMessage::Seat(*seat).encode(),
            RunMessage::Moved { rank, address } => {
                SetupMessage::Moved { rank: *rank, address: address.clone() }.encode()
            }
            RunMessage::Ended => SetupMessage::Ended.encode(),
        }
    }

    fn decode(reader: &mut Reader<'_>, kind: u16) -> Result<RunMessage, ControlError> {
        let mut ahead = reader.clone();
        let word = match SetupMessage::decode(&mut ahead, kind) {
            Ok(SetupMessage::Seat(seat)) => RunMessage::Seat(seat),
            Ok(SetupMessage::Moved { rank, address }) => RunMessage::Moved { rank, address },
            Ok(SetupMessage::Ended) => RunMessage::Ended,
            _ => return Command::decode(reader, kind).map(RunMessage::Command),
        };
        *reader = ahead;
        Ok(word)
    }
}

pub(super) enum CoordinatorMessage {
    SetupMessage(SetupMessage),
    Aborted(String),
}

impl protocol::Packet for CoordinatorMessage {
    fn encode(&self) -> Vec<u8> {
        match self {
            CoordinatorMessage::SetupMessage(setting) => setting.encode(),
            CoordinatorMessage::Aborted(reason) => Command::Abort(reason.clone()).encode(),
        }
    }

    fn decode(reader: &mut Reader<'_>, kind: u16) -> Result<CoordinatorMessage, ControlError> {
        match Command::decode(&mut reader.clone(), kind) {
            Ok(Command::Abort(reason)) => {
                reader.text()?;
                Ok(CoordinatorMessage::Aborted(reason))
            }
            _ => SetupMessage::decode(reader, kind).map(CoordinatorMessage::SetupMessage),
        }
    }
}
