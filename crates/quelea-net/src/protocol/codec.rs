//! How packets are laid out: a number for each kind, then its fields in order.

use std::borrow::Cow;

use quelea_control::{Account, AwaitedPeer, Command, REASON_CHARS, RankEvent, shown};
use quelea_core::time::Time;
use quelea_record::CheckpointSchedule;
use quelea_wire::control::{self, ControlError, Reader, Writer};

use super::fields::{
    read_change, read_part, read_record, read_report, saved_pieces, write_change, write_part,
    write_record, write_report,
};
use super::succession::{read_survival, write_survival};
use super::surveys::{read_survey, write_survey};
use super::{Packet, SetupMessage};
use crate::measure::Probe;
use crate::transport::SharedOffer;
use crate::trust::RankSeat;

/// A sentence of another process, fit to be shown.
pub(super) fn reason(r: &mut Reader<'_>) -> Result<String, ControlError> {
    Ok(shown(&r.text()?, REASON_CHARS))
}

impl Packet for SetupMessage {
    // long: a line for every message
    fn encode(&self) -> Vec<u8> {
        let w = Writer::default();
        match self {
            SetupMessage::Join { rank, key } => {
                let rank = rank.map_or(u64::MAX, u64::from);
                w.number(rank).text(key).packet(1)
            }
            SetupMessage::Welcome { run, rank, open, timeline, late, shares, reconnect, job } => {
                let w = w.number(*run).number(*rank).number(*open).number(*timeline);
                let w = w.number(*late).number(*shares).number(reconnect.0);
                w.bytes(job).packet(2)
            }
            SetupMessage::Refused { reason, elsewhere } => {
                w.text(reason).number(*elsewhere).packet(3)
            }
            SetupMessage::Unable { reason } => w.text(reason).packet(4),
            SetupMessage::Listening { port } => w.number(*port).packet(5),
            SetupMessage::Ping => w.packet(6),
            SetupMessage::Pong { now } => w.number(now.0).packet(7),
            SetupMessage::Peers { addresses, seats } => {
                let w = w.list(addresses, |w, address| w.text(address));
                w.list(seats, |w, times| w.number(*times)).packet(8)
            }
            SetupMessage::Meshed => w.packet(9),
            SetupMessage::Start { zero, schedule, survival } => {
                let w = w.number(zero.0).number(schedule.save_every);
                let w = w.number(schedule.evaluations).number(schedule.steps);
                w.list(survival.as_slice(), write_survival).packet(10)
            }
            SetupMessage::Hello { run, from, to } => {
                w.number(*run).number(*from).number(*to).packet(11)
            }
            SetupMessage::Accepted => w.packet(12),
            SetupMessage::Resume { part, resized, joins, changes } => {
                let w = w.number(*resized).number(*joins).list(changes, write_change);
                write_part(w, part).packet(13)
            }
            SetupMessage::Measure(probe) => probe.write(w).packet(14),
            SetupMessage::Found { values } => w.list(values, |w, value| w.real(*value)).packet(15),
            SetupMessage::Measured => w.packet(16),
            SetupMessage::Reconnect { run, from, to, received } => {
                w.number(*run).number(*from).number(*to).number(*received).packet(17)
            }
            SetupMessage::Reconnected { received } => w.number(*received).packet(18),
            SetupMessage::Certify { key } => w.bytes(key).packet(19),
            SetupMessage::Certified { certificate, root } => {
                w.bytes(certificate).bytes(root).packet(20)
            }
            SetupMessage::Alive => w.packet(21),
            SetupMessage::Seat(seat) => w.number(seat.rank).number(seat.times).packet(22),
            SetupMessage::HelloNear { run, from, to, offer } => {
                offer.write(w.number(*run).number(*from).number(*to)).packet(23)
            }
            SetupMessage::AcceptedNear { offer } => offer.write(w).packet(24),
            SetupMessage::Separate { problem } => w.text(problem).packet(25),
            SetupMessage::Shared { problem } => w.text(problem).packet(26),
            SetupMessage::StandBy { key } => w.text(key).packet(27),
            SetupMessage::ListeningAt { address } => w.text(&address.to_string()).packet(28),
            SetupMessage::Control { run, from, to } => {
                w.number(*run).number(*from).number(*to).packet(29)
            }
            SetupMessage::Ended => w.packet(30),
            SetupMessage::Moved { rank, address } => w.number(*rank).text(address).packet(31),
            SetupMessage::Redirect { address } => w.text(address).packet(32),
        }
    }

    // long: as above
    fn decode(r: &mut Reader<'_>, kind: u16) -> Result<SetupMessage, ControlError> {
        Ok(match kind {
            1 => SetupMessage::Join { rank: u32::try_from(r.number()?).ok(), key: r.text()? },
            2 => SetupMessage::Welcome {
                run: r.number()?,
                rank: r.small()?,
                open: r.flag()?,
                timeline: r.flag()?,
                late: r.flag()?,
                shares: r.flag()?,
                reconnect: Time(r.number()?),
                job: r.bytes()?.to_vec(),
            },
            3 => SetupMessage::Refused { reason: reason(r)?, elsewhere: r.flag()? },
            4 => SetupMessage::Unable { reason: reason(r)? },
            5 => SetupMessage::Listening { port: r.small()? },
            6 => SetupMessage::Ping,
            7 => SetupMessage::Pong { now: Time(r.number()?) },
            8 => SetupMessage::Peers { addresses: r.list(reason)?, seats: r.list(Reader::small)? },
            9 => SetupMessage::Meshed,
            10 => SetupMessage::Start {
                zero: Time(r.number()?),
                schedule: CheckpointSchedule {
                    save_every: r.number()?,
                    evaluations: r.number()?,
                    steps: r.number()?,
                },
                survival: r.list(read_survival)?.pop(),
            },
            11 => SetupMessage::Hello { run: r.number()?, from: r.small()?, to: r.small()? },
            12 => SetupMessage::Accepted,
            13 => {
                let (resized, joins, changes) = (r.flag()?, r.flag()?, r.list(read_change)?);
                SetupMessage::Resume { resized, joins, changes, part: Box::new(read_part(r)?) }
            }
            14 => SetupMessage::Measure(Probe::read(r)?),
            15 => SetupMessage::Found { values: r.list(Reader::real)? },
            16 => SetupMessage::Measured,
            17 => SetupMessage::Reconnect {
                run: r.number()?,
                from: r.small()?,
                to: r.small()?,
                received: r.number()?,
            },
            18 => SetupMessage::Reconnected { received: r.number()? },
            19 => SetupMessage::Certify { key: r.bytes()?.to_vec() },
            20 => SetupMessage::Certified {
                certificate: r.bytes()?.to_vec(),
                root: r.bytes()?.to_vec(),
            },
            21 => SetupMessage::Alive,
            22 => SetupMessage::Seat(RankSeat { rank: r.small()?, times: r.small()? }),
            23 => SetupMessage::HelloNear {
                run: r.number()?,
                from: r.small()?,
                to: r.small()?,
                offer: SharedOffer::read(r)?,
            },
            24 => SetupMessage::AcceptedNear { offer: SharedOffer::read(r)? },
            25 => SetupMessage::Separate { problem: reason(r)? },
            26 => SetupMessage::Shared { problem: reason(r)? },
            27 => SetupMessage::StandBy { key: r.text()? },
            28 => {
                let address = r.text()?.parse().map_err(|_| r.unknown())?;
                SetupMessage::ListeningAt { address }
            }
            29 => SetupMessage::Control { run: r.number()?, from: r.small()?, to: r.small()? },
            30 => SetupMessage::Ended,
            31 => SetupMessage::Moved { rank: r.small()?, address: reason(r)? },
            32 => SetupMessage::Redirect { address: r.text()? },
            _ => return Err(r.unknown()),
        })
    }
}

impl Packet for Command {
    fn encode(&self) -> Vec<u8> {
        let w = Writer::default();
        match self {
            Command::Grant { done } => w.number(*done).packet(101),
            Command::Unit { done, unit, settled } => {
                w.number(*done).number(*unit).number(*settled).packet(123)
            }
            Command::Deny => w.packet(102),
            Command::Drain => w.packet(103),
            Command::Probe(probe) => w.number(*probe).packet(104),
            Command::Finish => w.packet(105),
            Command::Abort(reason) => w.text(reason).packet(106),
            Command::Heartbeat => w.packet(107),
            Command::ProposeCut => w.packet(108),
            Command::SaveAt { step, last } => w.number(*step).number(*last).packet(109),
            Command::SendModel(step) => w.number(*step).packet(110),
            Command::Pause => w.packet(111),
            Command::Save(step) => w.number(*step).packet(112),
            Command::Continue => w.packet(113),
            Command::Durable(step) => w.number(*step).packet(114),
            Command::Explain => w.packet(115),
            Command::Progress { done } => w.number(*done).packet(119),
            Command::Freeze(number) => w.number(*number).packet(117),
            Command::View(change) => write_change(w, change).packet(118),
            Command::Store(change) => write_change(w, change).packet(122),
            Command::Salvage => w.packet(116),
            Command::HandOver => w.packet(120),
            Command::Leave => w.packet(121),
            Command::Survey { sample_every } => w.number(*sample_every).packet(131),
        }
    }

    fn decode(r: &mut Reader<'_>, kind: u16) -> Result<Command, ControlError> {
        Ok(match kind {
            101 => Command::Grant { done: r.number()? },
            123 => Command::Unit { done: r.number()?, unit: r.number()?, settled: r.number()? },
            102 => Command::Deny,
            103 => Command::Drain,
            104 => Command::Probe(r.number()?),
            105 => Command::Finish,
            106 => Command::Abort(reason(r)?),
            107 => Command::Heartbeat,
            108 => Command::ProposeCut,
            109 => Command::SaveAt { step: r.number()?, last: r.flag()? },
            110 => Command::SendModel(r.number()?),
            111 => Command::Pause,
            112 => Command::Save(r.number()?),
            113 => Command::Continue,
            114 => Command::Durable(r.number()?),
            115 => Command::Explain,
            116 => Command::Salvage,
            120 => Command::HandOver,
            121 => Command::Leave,
            131 => Command::Survey { sample_every: r.number()? },
            119 => Command::Progress { done: r.number()? },
            117 => Command::Freeze(r.small()?),
            118 => Command::View(read_change(r)?),
            122 => Command::Store(read_change(r)?),
            _ => return Err(r.unknown()),
        })
    }
}

/// The kind of a part of a checkpoint.
pub(crate) const SAVED: u16 = 212;
/// The longest record, and the longest event of a few numbers.
const RECORD_BYTES: u64 = 4 << 10;
/// The longest sentence: what is shown of it is shorter.
const SENTENCE_BYTES: u64 = 16 << 10;

impl Packet for RankEvent {
    /// Vectors and accounts may be long; numbers and sentences are not.
    fn longest(kind: u16, most: u64) -> u64 {
        match kind {
            204 | 211 | SAVED | 217 => most,
            216 | 231 => most.min(4 << 20),
            207..=210 | 221 => SENTENCE_BYTES,
            _ => RECORD_BYTES,
        }
    }

    /// The state of a rank is as long as its model, or longer.
    fn pieces(&self) -> Option<(u16, Vec<Cow<'_, [u8]>>)> {
        let RankEvent::Saved { rank, step, view, part } = self else { return None };
        let w = Writer::default().number(*rank).number(*step).number(*view);
        Some((SAVED, saved_pieces(w, part)))
    }

    fn encode(&self) -> Vec<u8> {
        let w = Writer::default();
        match self {
            RankEvent::Ticket { rank, number, urgent } => {
                w.number(*rank).number(*number).number(*urgent).packet(201)
            }
            RankEvent::Confirmed { rank, unit } => w.number(*rank).number(*unit).packet(223),
            RankEvent::Finished { rank, at } => w.number(*rank).number(at.0).packet(202),
            RankEvent::Probed { rank, probe, drained, sent, received } => w
                .number(*rank)
                .number(*probe)
                .number(*drained)
                .number(*sent)
                .number(*received)
                .packet(203),
            RankEvent::Report(report) => write_report(w, report).packet(204),
            RankEvent::Record(record) => write_record(w, record).packet(205),
            RankEvent::Heartbeat { rank, computing, waiting, gathering, sent, received } => {
                let w = w.number(*rank).number(*computing).number(*waiting).number(*gathering);
                w.number(*sent).number(*received).packet(206)
            }
            RankEvent::Alive { rank, computing } => w.number(*rank).number(*computing).packet(220),
            RankEvent::Stalled { rank, complaint } => w.number(*rank).text(complaint).packet(207),
            RankEvent::Lost { rank, peer, reason } => {
                w.number(*rank).number(*peer).text(reason).packet(208)
            }
            RankEvent::Poisoned { rank, peer, reason } => {
                w.number(*rank).number(*peer).text(reason).packet(221)
            }
            RankEvent::Failed { rank, reason } => w.number(*rank).text(reason).packet(209),
            RankEvent::Warning(text) => w.text(text).packet(210),
            RankEvent::Model { rank, step, model } => {
                w.number(*rank).number(*step).values(model).packet(211)
            }
            RankEvent::Saved { rank, step, view, part } => {
                let pieces = saved_pieces(w.number(*rank).number(*step).number(*view), part);
                control::encode(SAVED, &pieces.concat())
            }
            RankEvent::CutProposal { rank, step } => w.number(*rank).number(*step).packet(213),
            RankEvent::CutAgreed { rank } => w.number(*rank).packet(214),
            RankEvent::Leaving { rank } => w.number(*rank).packet(219),
            RankEvent::Paused { rank } => w.number(*rank).packet(215),
            RankEvent::Frozen { rank, number, step } => {
                w.number(*rank).number(*number).number(*step).packet(218)
            }
            RankEvent::Stored { rank, number } => w.number(*rank).number(*number).packet(222),
            RankEvent::Account { rank, account } => {
                let w = w.number(*rank).number(account.step);
                let w = w.list(&account.awaiting, |w, peer| w.number(peer.from).text(&peer.what));
                let w = w.list(&account.sent, |w, count| w.number(*count));
                w.list(&account.received, |w, count| w.number(*count)).packet(216)
            }
            RankEvent::Salvaged { rank, step, model } => {
                w.number(*rank).number(*step).values(model).packet(217)
            }
            RankEvent::Surveyed { rank, survey } => {
                write_survey(w.number(*rank), survey).packet(231)
            }
        }
    }

    fn decode(r: &mut Reader<'_>, kind: u16) -> Result<RankEvent, ControlError> {
        Ok(match kind {
            201 => RankEvent::Ticket { rank: r.small()?, number: r.number()?, urgent: r.flag()? },
            223 => RankEvent::Confirmed { rank: r.small()?, unit: r.number()? },
            202 => RankEvent::Finished { rank: r.small()?, at: Time(r.number()?) },
            203 => RankEvent::Probed {
                rank: r.small()?,
                probe: r.number()?,
                drained: r.flag()?,
                sent: r.number()?,
                received: r.number()?,
            },
            204 => RankEvent::Report(Box::new(read_report(r)?)),
            205 => RankEvent::Record(read_record(r)?),
            206 => RankEvent::Heartbeat {
                rank: r.small()?,
                computing: r.flag()?,
                waiting: r.flag()?,
                gathering: r.flag()?,
                sent: r.number()?,
                received: r.number()?,
            },
            220 => RankEvent::Alive { rank: r.small()?, computing: r.flag()? },
            207 => RankEvent::Stalled { rank: r.small()?, complaint: reason(r)? },
            208 => RankEvent::Lost { rank: r.small()?, peer: r.small()?, reason: reason(r)? },
            221 => RankEvent::Poisoned { rank: r.small()?, peer: r.small()?, reason: reason(r)? },
            209 => RankEvent::Failed { rank: r.small()?, reason: reason(r)? },
            210 => RankEvent::Warning(reason(r)?),
            211 => RankEvent::Model { rank: r.small()?, step: r.number()?, model: r.values()? },
            SAVED => RankEvent::Saved {
                rank: r.small()?,
                step: r.number()?,
                view: r.small()?,
                part: Box::new(read_part(r)?),
            },
            213 => RankEvent::CutProposal { rank: r.small()?, step: r.number()? },
            214 => RankEvent::CutAgreed { rank: r.small()? },
            219 => RankEvent::Leaving { rank: r.small()? },
            215 => RankEvent::Paused { rank: r.small()? },
            216 => RankEvent::Account {
                rank: r.small()?,
                account: Box::new(Account {
                    step: r.number()?,
                    awaiting: r.list(|r| Ok(AwaitedPeer { from: r.small()?, what: reason(r)? }))?,
                    sent: r.list(Reader::number)?,
                    received: r.list(Reader::number)?,
                }),
            },
            222 => RankEvent::Stored { rank: r.small()?, number: r.small()? },
            218 => RankEvent::Frozen { rank: r.small()?, number: r.small()?, step: r.number()? },
            217 => RankEvent::Salvaged { rank: r.small()?, step: r.number()?, model: r.values()? },
            231 => {
                let (rank, survey) = (r.small()?, read_survey(r)?);
                RankEvent::Surveyed { rank, survey: Box::new(survey) }
            }
            _ => return Err(r.unknown()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Survival;
    use super::*;
    use quelea_control::QuorumRule;
    use quelea_control::RankSurvey;
    use quelea_core::message::Rank;
    use quelea_core::state::Saved;
    use quelea_core::view::{DepartedRank, ViewChange};
    use quelea_record::RankCheckpoint;
    use quelea_record::{AwaitedRank, LinkTotal, ProcessMemory};
    use quelea_record::{FOLDED, FactTotals, RankReport, Record, RecordKind, STALENESS};
    use quelea_wire::control::HEAD_BYTES;

    fn comes_back<P: Packet + PartialEq + std::fmt::Debug>(packet: P) {
        let bytes = packet.encode();
        let head = control::decode_head(bytes[..HEAD_BYTES].try_into().expect("a head"), 1 << 20)
            .expect("a good head");
        let mut reader = Reader::new(head.kind, &bytes[HEAD_BYTES..]);
        assert_eq!(P::decode(&mut reader, head.kind).expect("its own bytes"), packet);
        reader.end().expect("nothing follows");
    }

    #[test]
    fn a_packet_in_pieces_has_the_same_bytes_as_a_whole_one() {
        let vectors = [("a".to_string(), vec![1.0, -2.0]), ("b".to_string(), vec![])];
        let state = Saved { numbers: [("step".to_string(), 3)].into(), vectors: vectors.into() };
        let part = Box::new(RankCheckpoint { state, ..RankCheckpoint::default() });
        let event = RankEvent::Saved { rank: 1, step: 4, view: 2, part };
        let (kind, pieces) = event.pieces().expect("it has pieces");
        let head = control::encode_head(kind, &pieces);
        assert_eq!([&head[..], &pieces.concat()].concat(), event.encode());
        // The vectors are borrowed, not copied.
        let borrowed = pieces.iter().filter(|piece| matches!(piece, Cow::Borrowed(_)));
        assert_eq!(borrowed.map(|piece| piece.len()).sum::<usize>(), 8);
        comes_back(event);
    }

    #[test]
    fn reports_and_records_come_back_as_they_were() {
        let mut facts = FactTotals::default();
        facts.add(&STALENESS, 7, 4);
        facts.add(&FOLDED, 2, 1);
        comes_back(RankEvent::Report(Box::new(RankReport {
            rank: 3,
            steps: 9,
            facts,
            last_loss: -0.5,
            params: vec![1.0, 2.0],
            model: vec![3.0],
            ..RankReport::default()
        })));
        let events = [
            RecordKind::Step { loss: 0.5, samples: 7, compute: 1.0, exposed: 2.0, waiting: 3.0 },
            RecordKind::Evaluation { loss: 1.0, accuracy: Some(0.5), consensus: 0.1 },
            RecordKind::Evaluation { loss: 1.0, accuracy: None, consensus: 0.1 },
            RecordKind::Transfer { to: 1, bytes: 80, seconds: 0.5 },
            RecordKind::Measured { kind: &FOLDED, number: 5 },
            RecordKind::Workers { loss: [1.0, 2.0], accuracy: Some([0.5, 0.25]) },
            RecordKind::Checkpoint { failure: Some("disk full".into()) },
        ];
        for event in events {
            comes_back(RankEvent::Record(Record { t: 1.5, rank: 2, step: 3, event }));
        }
        comes_back(SetupMessage::Join { rank: None, key: "run".into() });
        let addresses = vec!["127.0.0.1:1".into()];
        comes_back(SetupMessage::Peers { addresses, seats: vec![1, 2] });
        comes_back(SetupMessage::Seat(RankSeat { rank: 3, times: 2 }));
        let offer = SharedOffer::example();
        comes_back(SetupMessage::HelloNear { run: 1, from: 2, to: 0, offer: offer.clone() });
        comes_back(SetupMessage::AcceptedNear { offer });
        comes_back(SetupMessage::Separate { problem: "another user".into() });
        comes_back(SetupMessage::Shared { problem: String::new() });
        comes_back(Command::Probe(4));
        comes_back(Command::SaveAt { step: 9, last: true });
        comes_back(Command::Explain);
        comes_back(Command::Salvage);
        comes_back(Command::HandOver);
        comes_back(Command::Leave);
        comes_back(RankEvent::Leaving { rank: 2 });
        comes_back(Command::Grant { done: 11 });
        comes_back(Command::Unit { done: 11, unit: 12, settled: 9 });
        comes_back(Command::Progress { done: 12 });
        comes_back(Command::Freeze(3));
        let departed = [(1, 7), (5, 8)].map(|(rank, steps)| DepartedRank {
            rank: Rank(rank),
            steps,
            left: rank == 5,
        });
        let change = ViewChange {
            number: 3,
            departed: departed.into(),
            joined: vec![Rank(2)],
            from_step: 9,
        };
        comes_back(Command::View(change.clone()));
        comes_back(Command::Store(change.clone()));
        comes_back(RankEvent::Confirmed { rank: 1, unit: 1 << 40 });
        comes_back(RankEvent::Stored { rank: 1, number: 3 });
        comes_back(RankEvent::Frozen { rank: 1, number: 3, step: 7 });
        comes_back(RankEvent::Salvaged { rank: 1, step: 7, model: vec![0.5] });
        let awaiting = vec![AwaitedPeer { from: 2, what: "a chunk".into() }];
        let account = Account { step: 3, awaiting, sent: vec![0, 4], received: vec![1, 0] };
        comes_back(RankEvent::Account { rank: 1, account: Box::new(account) });
        let awaited = AwaitedRank { rank: 2, what: "a chunk".into() };
        let link = LinkTotal {
            peer: 3,
            sent: 4,
            received: 5,
            bytes_sent: 600,
            bytes_received: 700,
            round_trip_micros: 80,
            resent: 9,
        };
        let memory = ProcessMemory { resident_bytes: 1 << 33, gpu_bytes: 1 << 34 };
        comes_back(Command::Survey { sample_every: 8 });
        comes_back(RankEvent::Surveyed {
            rank: 1,
            survey: Box::new(RankSurvey {
                step: 9,
                awaiting: vec![awaited.clone()],
                links: vec![link],
                memory,
                sampled_at: 8,
                sample: vec![0.5, -1.0],
            }),
        });
        for event in [
            RecordKind::Account { awaiting: vec![awaited], links: vec![link], memory },
            RecordKind::Deviation { distance: 0.5, error: 0.25 },
        ] {
            comes_back(RankEvent::Record(Record { t: 1.5, rank: 2, step: 3, event }));
        }
        let state = Saved {
            numbers: [("step".to_string(), u64::MAX)].into(),
            vectors: [("params".to_string(), vec![1.0, -2.0])].into(),
        };
        let part = Box::new(RankCheckpoint {
            state,
            report: RankReport { steps: 3, ..Default::default() },
            ..RankCheckpoint::default()
        });
        comes_back(RankEvent::Saved { rank: 1, step: 4, view: 2, part: part.clone() });
        comes_back(SetupMessage::Resume {
            part,
            resized: true,
            joins: false,
            changes: vec![change],
        });
        let schedule = CheckpointSchedule { save_every: 5, evaluations: 6, steps: 7 };
        comes_back(SetupMessage::Start { zero: Time(8), schedule, survival: None });
        let quorum = QuorumRule::Any;
        let (controller, ranks, min_workers, term) = (0, vec![0, 2], 1, 3);
        let joiner_wait = Time(7);
        let survival = Some(Survival { controller, ranks, min_workers, joiner_wait, quorum, term });
        comes_back(SetupMessage::Start { zero: Time(8), schedule, survival });
        comes_back(SetupMessage::Control { run: 1, from: 2, to: 3 });
        comes_back(SetupMessage::Redirect { address: "10.0.0.1:4711".into() });
        comes_back(SetupMessage::Ended);
        comes_back(SetupMessage::Moved { rank: 3, address: "127.0.0.1:1".into() });
        comes_back(SetupMessage::Measure(Probe::Stream { to: vec![1], from: vec![2, 3] }));
        comes_back(SetupMessage::Found { values: vec![0.5, -1.0] });
        comes_back(SetupMessage::Measured);
        comes_back(SetupMessage::Certify { key: vec![4, 1] });
        comes_back(SetupMessage::Certified { certificate: vec![1], root: vec![2, 3] });
        comes_back(SetupMessage::Alive);
        comes_back(SetupMessage::StandBy { key: "run".into() });
        let address = "[fd00::1]:7".parse().expect("an address");
        comes_back(SetupMessage::ListeningAt { address });
    }
}
