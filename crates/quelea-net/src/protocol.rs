//! The control protocol beside the frames of the run: packets and their fields.

mod fields;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use quelea_core::time::Time;
use quelea_record::{CheckpointSchedule, RankCheckpoint, RankReport, Record, RecordKind};
use quelea_wire::control::{self, ControlError, HEAD_BYTES, Reader, Writer};

use crate::measure::Probe;
use crate::running_time;
use fields::{read_part, read_record, read_report, write_part, write_record, write_report};

/// The longest packet before a run is agreed on, the job apart.
pub(crate) const SMALL_BYTES: u64 = 64 << 10;
/// Vectors of the model's length that a rank's state has at most: the widest row keeps the shares
/// of its last 64 rounds.
const STATE_VECTORS: u64 = 96;

/// The longest state of a rank of a model with so many elements.
pub(crate) fn state_bytes(len: usize) -> u64 {
    SMALL_BYTES + (8 << 20) + 4 * STATE_VECTORS * len as u64
}

/// The longest job.
pub(crate) const JOB_BYTES: u64 = 64 << 20;

/// Characters that are shown of a warning.
pub(crate) const WARNING_CHARS: usize = 200;
/// Characters that are shown of what ends a run.
pub(crate) const REASON_CHARS: usize = 2000;

/// A message while a run is set up.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SetupMessage {
    /// A worker wants to take part, as this rank or any.
    Join { rank: Option<u32>, key: String },
    /// It may, as this rank. `open` tells whether other machines may take part.
    Welcome { run: u64, rank: u32, open: bool, timeline: bool, job: Vec<u8> },
    /// It may not. `elsewhere`: this is another run than the one it looks for.
    Refused { reason: String, elsewhere: bool },
    /// The worker cannot run the job.
    Unable { reason: String },
    /// The worker has loaded its data and listens for its peers.
    Listening { port: u16 },
    /// What time is it?
    Ping,
    /// It is this, on the coordinator's clock.
    Pong { now: Time },
    /// Where the ranks listen.
    Peers { addresses: Vec<String> },
    /// The worker is connected with all its peers.
    Meshed,
    /// The worker resumes from this; sent before the start. `resized`: all but the common part of the
    /// state is reset.
    Resume { part: Box<RankCheckpoint>, resized: bool },
    /// The run begins; its zero on the coordinator's clock, and when checkpoints are taken.
    Start { zero: Time, schedule: CheckpointSchedule },
    /// The first message on a connection between two ranks.
    Hello { run: u64, from: u32, to: u32 },
    /// The answer to it.
    Accepted,
    /// Instead of a start: the worker is to measure this.
    Measure(Probe),
    /// What it came to.
    Found { values: Vec<f64> },
    /// Everything is measured; there will be no run.
    Measured,
}

/// How long the vectors of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorLengths {
    /// Elements of the model.
    pub(crate) model: usize,
    /// Elements of the vectors in reports: as many, or none where reports carry no models.
    pub(crate) report: usize,
}

/// Whom a rank waits for, and how many messages it has exchanged with whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// Its step.
    pub(crate) step: u64,
    pub(crate) awaiting: Vec<AwaitedPeer>,
    /// Messages that it has sent to each rank.
    pub(crate) sent: Vec<u64>,
    /// Messages that it has received from each rank.
    pub(crate) received: Vec<u64>,
}

/// Somebody who is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AwaitedPeer {
    pub(crate) from: u32,
    /// What for, in words.
    pub(crate) what: String,
}

/// What a rank tells the controller.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RankEvent {
    /// It wants the right to its gradient number `number`, from 1: now, or soon.
    Ticket { rank: u32, number: u64, urgent: bool },
    /// It will compute no more gradients.
    Finished { rank: u32, at: Time },
    /// The answer to a probe.
    Probed { rank: u32, probe: u64, drained: bool, sent: u64, received: u64 },
    /// All that it did.
    Report(Box<RankReport>),
    /// A measured fact.
    Record(Record),
    /// It is alive, perhaps waits for others, in a step or where all come together outside the
    /// run, and has sent and received so many messages.
    Heartbeat {
        rank: u32,
        computing: bool,
        waiting: bool,
        gathering: bool,
        sent: u64,
        received: u64,
    },
    /// It has been waiting for too long.
    Stalled { rank: u32, complaint: String },
    /// It has lost a peer.
    Lost { rank: u32, peer: u32, reason: String },
    /// It cannot continue.
    Failed { rank: u32, reason: String },
    /// Something went wrong that does not end the run.
    Warning(String),
    /// What it would deploy after this step.
    Model { rank: u32, step: u64, model: Vec<f32> },
    /// Its part of the cut after this step.
    Saved { rank: u32, step: u64, part: Box<RankCheckpoint> },
    /// The first step at which it can still take part in a cut; it stops there until one is agreed.
    CutProposal { rank: u32, step: u64 },
    /// It knows of the cut that was agreed on.
    CutAgreed { rank: u32 },
    /// It computes no gradient, and will not start one.
    Paused { rank: u32 },
    /// Whom it waits for, and what it has exchanged.
    Account { rank: u32, account: Box<Account> },
    /// The model that it has, after this many steps, in a run that is broken off.
    Salvaged { rank: u32, step: u64, model: Vec<f32> },
}

impl RankEvent {
    /// Whether this may be said on the connection of worker `rank`, one of `ranks`, in a run over
    /// `len` elements whose reports have `reported`; whatever counts ranks or elements later relies
    /// on it.
    pub(crate) fn check(
        &self,
        rank: u32,
        ranks: usize,
        lengths: VectorLengths,
    ) -> Result<(), String> {
        let VectorLengths { model: len, report: reported } = lengths;
        let speaker = match self {
            // The receiver of a transfer knows how long it took; the record is the sender's.
            RankEvent::Record(Record { rank, event: RecordKind::Transfer { .. }, .. })
            | RankEvent::Lost { peer: rank, .. }
                if *rank as usize >= ranks =>
            {
                return Err(format!("it named rank {rank}; ranks are 0 to {}", ranks - 1));
            }
            RankEvent::Record(Record { event: RecordKind::Transfer { .. }, .. })
            | RankEvent::Warning(_) => rank,
            RankEvent::Record(record) => record.rank,
            RankEvent::Report(report) => report.rank,
            RankEvent::Ticket { rank, .. }
            | RankEvent::Finished { rank, .. }
            | RankEvent::Probed { rank, .. }
            | RankEvent::Heartbeat { rank, .. }
            | RankEvent::Stalled { rank, .. }
            | RankEvent::Lost { rank, .. }
            | RankEvent::Model { rank, .. }
            | RankEvent::Saved { rank, .. }
            | RankEvent::CutProposal { rank, .. }
            | RankEvent::CutAgreed { rank }
            | RankEvent::Paused { rank }
            | RankEvent::Account { rank, .. }
            | RankEvent::Salvaged { rank, .. }
            | RankEvent::Failed { rank, .. } => *rank,
        };
        if speaker != rank {
            return Err(format!("it sent an event of rank {speaker}"));
        }
        match self {
            RankEvent::Record(record) => check_record(record),
            RankEvent::Account { account, .. } => account.check(ranks),
            RankEvent::Report(report) => {
                let (params, model) = (report.params.len(), report.model.len());
                if (params, model) == (reported, reported) {
                    return Ok(());
                }
                Err(format!(
                    "it reported {params} parameters and a model of {model}, not {reported}"
                ))
            }
            RankEvent::Model { model, .. } | RankEvent::Salvaged { model, .. }
                if model.len() != len =>
            {
                Err(format!("it showed a model of {}, not {len}", model.len()))
            }
            RankEvent::Saved { part, .. } => {
                let params = part.state.vectors.get("params").map_or(0, Vec::len);
                let longest = part.state.vectors.values().map(Vec::len).max().unwrap_or(0);
                if params == len && longest <= len {
                    return Ok(());
                }
                Err(format!("it saved {params} parameters and vectors of {longest}, not {len}"))
            }
            _ => Ok(()),
        }
    }
}

impl Account {
    /// Whether it is of a run with so many ranks.
    fn check(&self, ranks: usize) -> Result<(), String> {
        let most = self.awaiting.len().max(self.sent.len()).max(self.received.len());
        let named = self.awaiting.iter().map(|awaited| awaited.from as usize).max().unwrap_or(0);
        if most <= ranks.max(1 << 10) && named < ranks {
            return Ok(());
        }
        Err(format!("its account is of {most} entries and names rank {named}; ranks are {ranks}"))
    }
}

/// Whether the numbers of a record can be times and amounts; whatever adds them up relies on it. A
/// loss may be anything: a run that diverges has no other.
fn check_record(record: &Record) -> Result<(), String> {
    // Clocks of two machines agree only roughly: what began before the run's zero is no mistake.
    let least = |name: &str| if name == "t" { -1e6 } else { 0.0 };
    let check = |name: &str, seconds: f64| {
        if (least(name)..1e12).contains(&seconds) {
            return Ok(());
        }
        Err(format!("its record of step {} has `{name}` = {seconds}", record.step))
    };
    check("t", record.t)?;
    match &record.event {
        RecordKind::Step { compute, exposed, waiting, .. } => {
            check("compute", *compute)?;
            check("exposed", *exposed)?;
            check("waiting", *waiting)
        }
        RecordKind::Compute { seconds } | RecordKind::Transfer { seconds, .. } => {
            check("seconds", *seconds)
        }
        // Only the coordinator evaluates and writes.
        RecordKind::Evaluation { .. }
        | RecordKind::Workers { .. }
        | RecordKind::Checkpoint { .. } => {
            Err("it sent a record that only the coordinator makes".to_string())
        }
        _ => Ok(()),
    }
}

/// What the controller tells a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// One more gradient may be computed; so many are done by all workers.
    Grant { done: u64 },
    /// No more gradients.
    Deny,
    /// Flush what is pending.
    Drain,
    /// Say how many messages were sent and received.
    Probe(u64),
    /// Send the report and end.
    Finish,
    /// End at once.
    Abort(String),
    /// The coordinator is alive.
    Heartbeat,
    /// Propose the first step at which you can still take part in a cut, and stop there.
    ProposeCut,
    /// Save after this step, and continue unless it is the last one.
    SaveAt { step: u64, last: bool },
    /// Send your model as soon as it is there, as that of this step.
    SendModel(u64),
    /// Start no more gradients.
    Pause,
    /// Everything rests: save, as after this step.
    Save(u64),
    /// Continue after a cut.
    Continue,
    /// Checkpoints until this step are on stable storage.
    Durable(u64),
    /// Say whom you wait for, and what you have exchanged with whom.
    Explain,
    /// The run is broken off: send the model that you have as soon as it is there, and start no
    /// more gradients.
    Salvage,
    /// All workers together have done so many gradients.
    Progress { done: u64 },
}

/// Anything that is written as one packet.
pub(crate) trait Packet: Sized {
    fn encode(&self) -> Vec<u8>;
    fn decode(reader: &mut Reader<'_>, kind: u16) -> Result<Self, ControlError>;
}

/// Why a packet could not be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PacketError {
    #[error("the connection was closed")]
    Closed,
    #[error("waited {seconds:.1} s for {what}, which did not arrive, or not completely")]
    Silent { seconds: f64, what: &'static str },
    #[error("timed out reading")]
    ReadTimeout,
    #[error("timed out writing to it after {seconds:.1} s")]
    WriteTimeout { seconds: f64 },
    #[error("{0}")]
    Socket(io::Error),
    #[error("{0}")]
    Wrong(#[from] ControlError),
}

impl From<io::Error> for PacketError {
    fn from(error: io::Error) -> PacketError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted => PacketError::Closed,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => PacketError::ReadTimeout,
            _ => PacketError::Socket(error),
        }
    }
}

/// Writes one packet.
pub(crate) fn write(mut stream: &TcpStream, packet: &impl Packet) -> Result<(), PacketError> {
    stream.write_all(&packet.encode()).map_err(|error| match error.into() {
        PacketError::ReadTimeout => {
            let limit = stream.write_timeout().ok().flatten().unwrap_or_default();
            PacketError::WriteTimeout { seconds: limit.as_secs_f64() }
        }
        error => error,
    })
}

/// A time limit for reading, and what is read; several reads may share one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// On the clock of [`running_time`].
    begun: Duration,
    seconds: f64,
    what: &'static str,
}

impl Wait {
    pub(crate) fn new(seconds: f64, what: &'static str) -> Wait {
        Wait { begun: running_time::now(), seconds, what }
    }

    /// How much of it is left.
    pub(crate) fn left(&self) -> Duration {
        Duration::try_from_secs_f64(self.seconds)
            .unwrap_or(Duration::MAX)
            .saturating_sub(running_time::now().saturating_sub(self.begun))
    }

    fn over(&self) -> PacketError {
        PacketError::Silent { seconds: self.seconds, what: self.what }
    }
}

/// How long the kernel may wait before the time limit is looked at again.
const READ_SLICE: Duration = Duration::from_millis(250);

/// A stream whose reading ends with the wait, however slowly bytes drip in.
struct DeadlineRead<'a> {
    stream: &'a TcpStream,
    wait: Option<Wait>,
}

impl Read for DeadlineRead<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(wait) = &self.wait else { return self.stream.read(buffer) };
        loop {
            let left = wait.left();
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // The kernel's clock does not stop with this process; the wait's does.
            self.stream.set_read_timeout(Some(left.min(READ_SLICE)))?;
            match self.stream.read(buffer) {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) => {}
                read => return read,
            }
        }
    }
}

/// Reads one packet with a body of at most `most` bytes; without a `wait`, for as long as it takes.
pub(crate) fn read<P: Packet>(
    stream: &TcpStream,
    most: u64,
    wait: Option<Wait>,
) -> Result<P, PacketError> {
    read_body(DeadlineRead { stream, wait }, most).map_err(|error| match (error, wait) {
        (PacketError::ReadTimeout, Some(wait)) => wait.over(),
        (error, _) => error,
    })
}

fn read_body<P: Packet>(mut stream: DeadlineRead<'_>, most: u64) -> Result<P, PacketError> {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head)?;
    let head = control::decode_head(&head, most)?;
    let mut body = Vec::new();
    // Memory follows what really arrives, whatever length was announced.
    stream.take(head.length as u64).read_to_end(&mut body)?;
    if body.len() < head.length {
        return Err(PacketError::Closed);
    }
    head.check(&body)?;
    let mut reader = Reader::new(head.kind, &body);
    let packet = P::decode(&mut reader, head.kind)?;
    reader.end()?;
    Ok(packet)
}

/// What somebody else has said, fit to be shown: no control characters, at most `most` characters.
pub(crate) fn shown(text: &str, most: usize) -> String {
    let is_plain = |c: char| matches!(c, '"' | '\'' | '\\');
    let escape = |c: char| if is_plain(c) { c.to_string() } else { c.escape_debug().to_string() };
    let mut shown: String = text.chars().take(most).map(escape).collect();
    if text.chars().nth(most).is_some() {
        shown.push('…');
    }
    shown
}

/// A sentence of another process, fit to be shown.
fn reason(r: &mut Reader<'_>) -> Result<String, ControlError> {
    Ok(shown(&r.text()?, REASON_CHARS))
}

impl Packet for SetupMessage {
    fn encode(&self) -> Vec<u8> {
        let w = Writer::default();
        match self {
            SetupMessage::Join { rank, key } => {
                let rank = rank.map_or(u64::MAX, u64::from);
                w.number(rank).text(key).packet(1)
            }
            SetupMessage::Welcome { run, rank, open, timeline, job } => {
                w.number(*run).number(*rank).number(*open).number(*timeline).bytes(job).packet(2)
            }
            SetupMessage::Refused { reason, elsewhere } => {
                w.text(reason).number(*elsewhere).packet(3)
            }
            SetupMessage::Unable { reason } => w.text(reason).packet(4),
            SetupMessage::Listening { port } => w.number(*port).packet(5),
            SetupMessage::Ping => w.packet(6),
            SetupMessage::Pong { now } => w.number(now.0).packet(7),
            SetupMessage::Peers { addresses } => {
                w.list(addresses, |w, address| w.text(address)).packet(8)
            }
            SetupMessage::Meshed => w.packet(9),
            SetupMessage::Start { zero, schedule } => w
                .number(zero.0)
                .number(schedule.save_every)
                .number(schedule.evaluations)
                .number(schedule.steps)
                .packet(10),
            SetupMessage::Hello { run, from, to } => {
                w.number(*run).number(*from).number(*to).packet(11)
            }
            SetupMessage::Accepted => w.packet(12),
            SetupMessage::Resume { part, resized } => {
                write_part(w.number(*resized), part).packet(13)
            }
            SetupMessage::Measure(probe) => probe.write(w).packet(14),
            SetupMessage::Found { values } => w.list(values, |w, value| w.real(*value)).packet(15),
            SetupMessage::Measured => w.packet(16),
        }
    }

    fn decode(r: &mut Reader<'_>, kind: u16) -> Result<SetupMessage, ControlError> {
        Ok(match kind {
            1 => SetupMessage::Join { rank: u32::try_from(r.number()?).ok(), key: r.text()? },
            2 => SetupMessage::Welcome {
                run: r.number()?,
                rank: r.small()?,
                open: r.flag()?,
                timeline: r.flag()?,
                job: r.bytes()?.to_vec(),
            },
            3 => SetupMessage::Refused { reason: reason(r)?, elsewhere: r.flag()? },
            4 => SetupMessage::Unable { reason: reason(r)? },
            5 => SetupMessage::Listening { port: r.small()? },
            6 => SetupMessage::Ping,
            7 => SetupMessage::Pong { now: Time(r.number()?) },
            8 => SetupMessage::Peers { addresses: r.list(Reader::text)? },
            9 => SetupMessage::Meshed,
            10 => SetupMessage::Start {
                zero: Time(r.number()?),
                schedule: CheckpointSchedule {
                    save_every: r.number()?,
                    evaluations: r.number()?,
                    steps: r.number()?,
                },
            },
            11 => SetupMessage::Hello { run: r.number()?, from: r.small()?, to: r.small()? },
            12 => SetupMessage::Accepted,
            13 => SetupMessage::Resume { resized: r.flag()?, part: Box::new(read_part(r)?) },
            14 => SetupMessage::Measure(Probe::read(r)?),
            15 => SetupMessage::Found { values: r.list(Reader::real)? },
            16 => SetupMessage::Measured,
            _ => return Err(r.unknown()),
        })
    }
}

impl Packet for Command {
    fn encode(&self) -> Vec<u8> {
        let w = Writer::default();
        match self {
            Command::Grant { done } => w.number(*done).packet(101),
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
            Command::Salvage => w.packet(116),
            Command::Progress { done } => w.number(*done).packet(117),
        }
    }

    fn decode(r: &mut Reader<'_>, kind: u16) -> Result<Command, ControlError> {
        Ok(match kind {
            101 => Command::Grant { done: r.number()? },
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
            117 => Command::Progress { done: r.number()? },
            _ => return Err(r.unknown()),
        })
    }
}

impl Packet for RankEvent {
    fn encode(&self) -> Vec<u8> {
        let w = Writer::default();
        match self {
            RankEvent::Ticket { rank, number, urgent } => {
                w.number(*rank).number(*number).number(*urgent).packet(201)
            }
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
            RankEvent::Stalled { rank, complaint } => w.number(*rank).text(complaint).packet(207),
            RankEvent::Lost { rank, peer, reason } => {
                w.number(*rank).number(*peer).text(reason).packet(208)
            }
            RankEvent::Failed { rank, reason } => w.number(*rank).text(reason).packet(209),
            RankEvent::Warning(text) => w.text(text).packet(210),
            RankEvent::Model { rank, step, model } => {
                w.number(*rank).number(*step).values(model).packet(211)
            }
            RankEvent::Saved { rank, step, part } => {
                write_part(w.number(*rank).number(*step), part).packet(212)
            }
            RankEvent::CutProposal { rank, step } => w.number(*rank).number(*step).packet(213),
            RankEvent::CutAgreed { rank } => w.number(*rank).packet(214),
            RankEvent::Paused { rank } => w.number(*rank).packet(215),
            RankEvent::Account { rank, account } => {
                let w = w.number(*rank).number(account.step);
                let w = w.list(&account.awaiting, |w, peer| w.number(peer.from).text(&peer.what));
                let w = w.list(&account.sent, |w, count| w.number(*count));
                w.list(&account.received, |w, count| w.number(*count)).packet(216)
            }
            RankEvent::Salvaged { rank, step, model } => {
                w.number(*rank).number(*step).values(model).packet(217)
            }
        }
    }

    fn decode(r: &mut Reader<'_>, kind: u16) -> Result<RankEvent, ControlError> {
        Ok(match kind {
            201 => RankEvent::Ticket { rank: r.small()?, number: r.number()?, urgent: r.flag()? },
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
            207 => RankEvent::Stalled { rank: r.small()?, complaint: reason(r)? },
            208 => RankEvent::Lost { rank: r.small()?, peer: r.small()?, reason: reason(r)? },
            209 => RankEvent::Failed { rank: r.small()?, reason: reason(r)? },
            210 => RankEvent::Warning(r.text()?),
            211 => RankEvent::Model { rank: r.small()?, step: r.number()?, model: r.values()? },
            212 => RankEvent::Saved {
                rank: r.small()?,
                step: r.number()?,
                part: Box::new(read_part(r)?),
            },
            213 => RankEvent::CutProposal { rank: r.small()?, step: r.number()? },
            214 => RankEvent::CutAgreed { rank: r.small()? },
            215 => RankEvent::Paused { rank: r.small()? },
            216 => RankEvent::Account {
                rank: r.small()?,
                account: Box::new(Account {
                    step: r.number()?,
                    awaiting: r.list(|r| Ok(AwaitedPeer { from: r.small()?, what: r.text()? }))?,
                    sent: r.list(Reader::number)?,
                    received: r.list(Reader::number)?,
                }),
            },
            217 => RankEvent::Salvaged { rank: r.small()?, step: r.number()?, model: r.values()? },
            _ => return Err(r.unknown()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quelea_core::state::Saved;
    use quelea_record::{FOLDED, FactTotals, STALENESS};

    fn comes_back<P: Packet + PartialEq + std::fmt::Debug>(packet: P) {
        let bytes = packet.encode();
        let head = control::decode_head(bytes[..HEAD_BYTES].try_into().expect("a head"), 1 << 20)
            .expect("a good head");
        let mut reader = Reader::new(head.kind, &bytes[HEAD_BYTES..]);
        assert_eq!(P::decode(&mut reader, head.kind).expect("its own bytes"), packet);
        reader.end().expect("nothing follows");
    }

    #[test]
    fn what_others_say_is_shown_on_one_line_and_not_at_any_length() {
        assert_eq!(shown("a \"b\"\n\u{1b}[31m", 200), "a \"b\"\\n\\u{1b}[31m");
        assert_eq!(shown("abcd", 3), "abc…");
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
        comes_back(SetupMessage::Peers { addresses: vec!["127.0.0.1:1".into()] });
        comes_back(Command::Probe(4));
        comes_back(Command::SaveAt { step: 9, last: true });
        comes_back(Command::Explain);
        comes_back(Command::Salvage);
        comes_back(Command::Grant { done: 11 });
        comes_back(Command::Progress { done: 12 });
        comes_back(RankEvent::Salvaged { rank: 1, step: 7, model: vec![0.5] });
        let awaiting = vec![AwaitedPeer { from: 2, what: "a chunk".into() }];
        let account = Account { step: 3, awaiting, sent: vec![0, 4], received: vec![1, 0] };
        comes_back(RankEvent::Account { rank: 1, account: Box::new(account) });
        let state = Saved {
            numbers: [("step".to_string(), u64::MAX)].into(),
            vectors: [("params".to_string(), vec![1.0, -2.0])].into(),
        };
        let part = Box::new(RankCheckpoint {
            state,
            report: RankReport { steps: 3, ..Default::default() },
        });
        comes_back(RankEvent::Saved { rank: 1, step: 4, part: part.clone() });
        comes_back(SetupMessage::Resume { part, resized: true });
        let schedule = CheckpointSchedule { save_every: 5, evaluations: 6, steps: 7 };
        comes_back(SetupMessage::Start { zero: Time(8), schedule });
        comes_back(SetupMessage::Measure(Probe::Stream { to: vec![1], from: vec![2, 3] }));
        comes_back(SetupMessage::Found { values: vec![0.5, -1.0] });
        comes_back(SetupMessage::Measured);
    }
}
