//! What processes say to each other about who controls the run, and the packets of a connection that carries
//! that beside events or commands.

use std::borrow::Cow;

use quelea_control::{
    MemberState, MemberUnits, PeerMessage, RankEvent, RestState, StoredEntry, ViewEntry,
};
use quelea_core::time::Time;
use quelea_wire::control::{ControlError, Reader, Writer};

use super::fields::{read_change, read_record, write_change, write_record};
use super::{Packet, Survival};
use quelea_control::QuorumRule;

const CLAIM: u16 = 301;
const VOTE: u16 = 302;
const OUTDATED: u16 = 303;

/// The longest vote: views and a few thousand records.
const VOTE_BYTES: u64 = 4 << 20;

pub(super) fn write_survival(w: Writer, survival: &Survival) -> Writer {
    let w = w.number(survival.controller).number(survival.min_workers);
    let w = w.number(survival.quorum == QuorumRule::Any).number(survival.term);
    let w = w.number(survival.joiner_wait.0);
    w.list(&survival.ranks, |w, rank| w.number(*rank))
}

pub(super) fn read_survival(r: &mut Reader<'_>) -> Result<Survival, ControlError> {
    let (controller, min_workers) = (r.small()?, r.small()?);
    let quorum = if r.flag()? { QuorumRule::Any } else { QuorumRule::Majority };
    let (term, joiner_wait) = (r.small()?, Time(r.number()?));
    let ranks = r.list(Reader::small)?;
    Ok(Survival { controller, min_workers, joiner_wait, quorum, term, ranks })
}

fn write_entry(w: Writer, entry: &ViewEntry) -> Writer {
    write_change(w.number(entry.controller), &entry.change)
}

fn read_entry(r: &mut Reader<'_>) -> Result<ViewEntry, ControlError> {
    Ok(ViewEntry { controller: r.small()?, change: read_change(r)? })
}

const REST_STATES: [RestState; 4] =
    [RestState::None, RestState::Paused, RestState::Resting, RestState::Saved];

fn write_state(w: Writer, state: &MemberState) -> Writer {
    let rest = REST_STATES.iter().position(|rest| *rest == state.rest).unwrap_or(0);
    let w = w.number(state.rank).list(&state.log, write_entry);
    let w = w.list(state.stored.as_slice(), |w, stored| {
        write_entry(w.number(stored.term), &stored.entry)
    });
    let w = w.number(state.steps_before).number(state.steps).number(state.position);
    let w = w.number(state.granted).number(state.done).number(state.is_finished);
    let w = w.number(rest as u64).number(state.durable).number(state.has_reported);
    let w = w.number(state.is_aborted).number(state.is_leaving);
    write_units(w, &state.units).list(&state.records, write_record)
}

fn write_units(w: Writer, units: &MemberUnits) -> Writer {
    let w = w.number(units.settled).list(&units.held, |w, unit| w.number(*unit));
    w.list(&units.confirmed, |w, unit| w.number(*unit))
}

fn read_units(r: &mut Reader<'_>) -> Result<MemberUnits, ControlError> {
    let (settled, held) = (r.number()?, r.list(Reader::number)?);
    Ok(MemberUnits { settled, held, confirmed: r.list(Reader::number)? })
}

fn read_state(r: &mut Reader<'_>) -> Result<MemberState, ControlError> {
    let (rank, log) = (r.small()?, r.list(read_entry)?);
    let mut stored = r.list(|r| Ok(StoredEntry { term: r.small()?, entry: read_entry(r)? }))?;
    let (steps_before, steps, position) = (r.number()?, r.number()?, r.number()?);
    let (granted, done, is_finished) = (r.number()?, r.number()?, r.flag()?);
    let rest = REST_STATES.get(r.number()? as usize).copied().ok_or_else(|| r.unknown())?;
    Ok(MemberState {
        rank,
        log,
        stored: stored.pop(),
        steps_before,
        steps,
        position,
        granted,
        done,
        is_finished,
        rest,
        durable: r.number()?,
        has_reported: r.flag()?,
        is_aborted: r.flag()?,
        is_leaving: r.flag()?,
        units: read_units(r)?,
        records: r.list(read_record)?,
    })
}

impl Packet for PeerMessage {
    fn longest(kind: u16, most: u64) -> u64 {
        if kind == VOTE { most.min(VOTE_BYTES) } else { most.min(64) }
    }

    fn encode(&self) -> Vec<u8> {
        let w = Writer::default();
        match self {
            PeerMessage::Claim { term } => w.number(*term).packet(CLAIM),
            PeerMessage::Vote { term, state } => write_state(w.number(*term), state).packet(VOTE),
            PeerMessage::Outdated { term } => w.number(*term).packet(OUTDATED),
        }
    }

    fn decode(r: &mut Reader<'_>, kind: u16) -> Result<PeerMessage, ControlError> {
        Ok(match kind {
            CLAIM => PeerMessage::Claim { term: r.small()? },
            VOTE => PeerMessage::Vote { term: r.small()?, state: Box::new(read_state(r)?) },
            OUTDATED => PeerMessage::Outdated { term: r.small()? },
            _ => return Err(r.unknown()),
        })
    }
}

/// Either of two kinds of packets on one connection.
macro_rules! beside_peer_messages {
    ($(#[$doc:meta])* $name:ident, $variant:ident, $packet:ty) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) enum $name {
            /// About who controls the run.
            Peer(PeerMessage),
            /// Anything else.
            $variant($packet),
        }

        impl Packet for $name {
            fn longest(kind: u16, most: u64) -> u64 {
                match kind {
                    CLAIM..=OUTDATED => PeerMessage::longest(kind, most),
                    _ => <$packet>::longest(kind, most),
                }
            }

            fn pieces(&self) -> Option<(u16, Vec<Cow<'_, [u8]>>)> {
                match self {
                    $name::Peer(message) => message.pieces(),
                    $name::$variant(packet) => packet.pieces(),
                }
            }

            fn encode(&self) -> Vec<u8> {
                match self {
                    $name::Peer(message) => message.encode(),
                    $name::$variant(packet) => packet.encode(),
                }
            }

            fn decode(r: &mut Reader<'_>, kind: u16) -> Result<$name, ControlError> {
                match kind {
                    CLAIM..=OUTDATED => PeerMessage::decode(r, kind).map($name::Peer),
                    _ => <$packet>::decode(r, kind).map($name::$variant),
                }
            }
        }
    };
}

beside_peer_messages! {
    /// What a worker says to whoever controls the run or wants to.
    WorkerMessage, Event, RankEvent
}

beside_peer_messages! {
    /// What a worker hears from whoever controls the run or wants to.
    LineMessage, Run, crate::join::RunMessage
}

#[cfg(test)]
mod tests {
    use super::*;
    use quelea_core::message::Rank;
    use quelea_core::view::{DepartedRank, ViewChange};
    use quelea_record::{Record, RecordKind};
    use quelea_wire::control::{self, HEAD_BYTES};

    fn comes_back(message: PeerMessage) {
        let bytes = message.encode();
        let head = bytes[..HEAD_BYTES].try_into().expect("a head");
        let kind = control::decode_head(head, 1 << 20).expect("a good head").kind;
        let mut reader = Reader::new(kind, &bytes[HEAD_BYTES..]);
        assert_eq!(PeerMessage::decode(&mut reader, kind).expect("its own bytes"), message);
        reader.end().expect("nothing follows");
    }

    #[test]
    fn claims_and_votes_come_back_as_they_were() {
        comes_back(PeerMessage::Claim { term: 2 });
        comes_back(PeerMessage::Outdated { term: 3 });
        let departed = vec![DepartedRank { rank: Rank(1), steps: 7, left: false }];
        let change = ViewChange { number: 1, departed, joined: vec![Rank(4)], from_step: 9 };
        let entry = ViewEntry { controller: u32::MAX, change };
        let event = RecordKind::View { number: 3 };
        let state = MemberState {
            rank: 2,
            log: vec![entry.clone()],
            stored: Some(StoredEntry { term: 1, entry }),
            steps_before: 1,
            steps: 2,
            position: 3,
            granted: 4,
            done: 5,
            is_finished: true,
            rest: RestState::Resting,
            durable: 6,
            has_reported: true,
            is_aborted: false,
            is_leaving: true,
            units: MemberUnits { settled: 7, held: vec![9], confirmed: vec![8, 11] },
            records: vec![Record { t: 0.5, rank: 2, step: 3, event }],
        };
        comes_back(PeerMessage::Vote { term: 2, state: Box::new(state) });
    }
}
