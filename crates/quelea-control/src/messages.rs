//! What ranks and the controller tell each other, and which of it is believed.

use quelea_core::time::Time;
use quelea_core::view::ViewChange;
use quelea_record::{RankCheckpoint, RankReport, Record, RecordKind};

use crate::survey::RankSurvey;

/// What a rank tells the controller.
#[expect(missing_docs, reason = "the sentence above a variant names its fields")]
#[derive(Clone, Debug, PartialEq)]
pub enum RankEvent {
    /// It wants the right to its gradient number `number`, from 1: now, or soon.
    Ticket { rank: u32, number: u64, urgent: bool },
    /// It has completed the step that used this unit of the data that all workers share.
    Confirmed { rank: u32, unit: u64 },
    /// It will compute no more gradients.
    Finished { rank: u32, at: Time },
    /// The answer to a probe.
    Probed { rank: u32, probe: u64, drained: bool, sent: u64, received: u64 },
    /// All that it did.
    Report(Box<RankReport>),
    /// A measured fact.
    Record(Record),
    /// It is alive, perhaps waits for others, in a step or where all come together outside the
    /// run, and how many messages it has sent and received.
    Heartbeat {
        rank: u32,
        computing: bool,
        waiting: bool,
        gathering: bool,
        sent: u64,
        received: u64,
    },
    /// Its process is alive, and whether its own thread has been computing for a while, so that it says
    /// nothing else. Sent by a thread that does nothing else.
    Alive { rank: u32, computing: bool },
    /// It has been waiting for too long.
    Stalled { rank: u32, complaint: String },
    /// It was given notice, and wants to leave the run.
    Leaving { rank: u32 },
    /// It has lost a peer.
    Lost { rank: u32, peer: u32, reason: String },
    /// A peer has sent it values that no honest rank sends, and is not to stay, or the run is to end.
    Poisoned { rank: u32, peer: u32, reason: String },
    /// It cannot continue.
    Failed { rank: u32, reason: String },
    /// Something went wrong that does not end the run.
    Warning(String),
    /// What it would deploy after this step.
    Model { rank: u32, step: u64, model: Vec<f32> },
    /// It starts no more gradients before this view, and stands at this step.
    Frozen { rank: u32, number: u32, step: u64 },
    /// It has stored the view of this number, which is to follow.
    Stored { rank: u32, number: u32 },
    /// Its part of the cut after this step, saved in this view.
    Saved { rank: u32, step: u64, view: u32, part: Box<RankCheckpoint> },
    /// The first step at which it can still take part in a cut; it stops there until one is agreed.
    CutProposal { rank: u32, step: u64 },
    /// It knows of the cut that was agreed on.
    CutAgreed { rank: u32 },
    /// It computes no gradient, and will not start one.
    Paused { rank: u32 },
    /// Whom it waits for, and what it has exchanged.
    Account { rank: u32, account: Box<Account> },
    /// What it says in a survey.
    Surveyed { rank: u32, survey: Box<RankSurvey> },
    /// The model that it has, after this many steps, in a run that is broken off.
    Salvaged { rank: u32, step: u64, model: Vec<f32> },
}

/// How long the vectors of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorLengths {
    /// Elements of the model.
    pub model: usize,
    /// Elements of the vectors in reports: as many, or none where reports carry no models.
    pub report: usize,
}

/// Whom a rank waits for, and how many messages it has exchanged with whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Its step.
    pub step: u64,
    /// Whom it waits for.
    pub awaiting: Vec<AwaitedPeer>,
    /// Messages that it has sent to each rank.
    pub sent: Vec<u64>,
    /// Messages that it has received from each rank.
    pub received: Vec<u64>,
}

/// Somebody who is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedPeer {
    /// Its rank.
    pub from: u32,
    /// What for, in words.
    pub what: String,
}

/// What the controller tells a rank.
#[expect(missing_docs, reason = "the sentence above a variant names its fields")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// One more gradient may be computed; this many are done by all workers.
    Grant { done: u64 },
    /// The same, of this unit of the data that all workers share; all units below `settled` are confirmed.
    Unit { done: u64, unit: u64, settled: u64 },
    /// All workers together have done this many gradients.
    Progress { done: u64 },
    /// No more gradients.
    Deny,
    /// A rank was lost: start no more gradients before view `number`, and say at which step you are.
    Freeze(u32),
    /// The view that is to follow: store it, and say so. It is in force when a quorum has.
    Store(ViewChange),
    /// The view that follows.
    View(ViewChange),
    /// You leave: everything rests; hand over what only you have.
    HandOver,
    /// You have left: send the report and end. The others continue.
    Leave,
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
    /// Somebody looks at the run: say what you wait for and exchange, and from now on keep a sample of
    /// your parameters after steps that this divides.
    Survey { sample_every: u64 },
    /// The run is broken off: send the model that you have as soon as it is there, and start no
    /// more gradients.
    Salvage,
}

impl RankEvent {
    /// The rank that says this, where it says so itself.
    pub fn speaker(&self) -> Option<u32> {
        match self {
            RankEvent::Warning(_) => None,
            RankEvent::Record(record) => Some(recorder(record)),
            RankEvent::Report(report) => Some(report.rank),
            RankEvent::Ticket { rank, .. }
            | RankEvent::Confirmed { rank, .. }
            | RankEvent::Finished { rank, .. }
            | RankEvent::Probed { rank, .. }
            | RankEvent::Heartbeat { rank, .. }
            | RankEvent::Alive { rank, .. }
            | RankEvent::Stalled { rank, .. }
            | RankEvent::Leaving { rank }
            | RankEvent::Lost { rank, .. }
            | RankEvent::Poisoned { rank, .. }
            | RankEvent::Frozen { rank, .. }
            | RankEvent::Stored { rank, .. }
            | RankEvent::Model { rank, .. }
            | RankEvent::Saved { rank, .. }
            | RankEvent::CutProposal { rank, .. }
            | RankEvent::CutAgreed { rank }
            | RankEvent::Paused { rank }
            | RankEvent::Account { rank, .. }
            | RankEvent::Surveyed { rank, .. }
            | RankEvent::Salvaged { rank, .. }
            | RankEvent::Failed { rank, .. } => Some(*rank),
        }
    }

    /// Whether this may be said on the connection of worker `rank`, one of `ranks`, in a run over
    /// `len` elements whose reports have `reported`; whatever counts ranks or elements later relies
    /// on it.
    pub fn check(&self, rank: u32, ranks: usize, lengths: VectorLengths) -> Result<(), String> {
        let VectorLengths { model: len, report: reported } = lengths;
        if let RankEvent::Record(Record { event: RecordKind::Transfer { to: rank, .. }, .. })
        | RankEvent::Lost { peer: rank, .. }
        | RankEvent::Poisoned { peer: rank, .. } = self
            && *rank as usize >= ranks
        {
            return Err(format!("it named rank {rank}; ranks are 0 to {}", ranks - 1));
        }
        let speaker = self.speaker().unwrap_or(rank);
        if speaker != rank {
            return Err(format!("it sent an event of rank {speaker}"));
        }
        match self {
            RankEvent::Record(record) => check_record(record, rank, ranks),
            RankEvent::Probed { sent, received, .. }
            | RankEvent::Heartbeat { sent, received, .. } => {
                check_amount("sent", *sent)?;
                check_amount("received", *received)
            }
            RankEvent::Account { account, .. } => account.check(ranks),
            RankEvent::Surveyed { survey, .. } => survey.check(ranks),
            RankEvent::Report(report) => {
                check_report(report)?;
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
                check_report(&part.report)?;
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
    /// Whether it is of a run with this many ranks.
    fn check(&self, ranks: usize) -> Result<(), String> {
        let most = self.awaiting.len().max(self.sent.len()).max(self.received.len());
        let named = self.awaiting.iter().map(|awaited| awaited.from as usize).max().unwrap_or(0);
        let amounts = self.sent.iter().chain(&self.received).copied().max().unwrap_or(0);
        check_amount("messages", amounts)?;
        if most <= ranks.max(1 << 10) && named < ranks {
            return Ok(());
        }
        Err(format!("its account is of {most} entries and names rank {named}; ranks are {ranks}"))
    }
}

/// Amounts beyond this are no honest rank's, and those of all ranks can be added up.
const MOST: u64 = 1 << 53;

pub(crate) fn check_amount(name: &str, amount: u64) -> Result<(), String> {
    if amount <= MOST {
        return Ok(());
    }
    Err(format!("it claims `{name}` = {amount}"))
}

/// Whether the times and amounts of a report can be added up.
fn check_report(report: &RankReport) -> Result<(), String> {
    let amounts = [
        ("steps", report.steps),
        ("samples", report.samples),
        ("bytes_sent", report.bytes_sent),
        ("bytes_received", report.bytes_received),
        ("messages_sent", report.messages_sent),
    ];
    amounts.iter().try_for_each(|(name, amount)| check_amount(name, *amount))?;
    let RankReport { compute_seconds, exposed_seconds, waiting_seconds, .. } = *report;
    let times = [
        ("compute_seconds", compute_seconds),
        ("exposed_seconds", exposed_seconds),
        ("waiting_seconds", waiting_seconds),
    ];
    match times.iter().find(|(_, seconds)| !(0.0..1e12).contains(seconds)) {
        Some((name, seconds)) => Err(format!("its report has `{name}` = {seconds}")),
        None => Ok(()),
    }
}

/// The rank that makes a record. The receiver of a transfer knows how long it took; the record is the sender's.
fn recorder(record: &Record) -> u32 {
    match record.event {
        RecordKind::Transfer { to, .. } => to,
        _ => record.rank,
    }
}

/// Whether the numbers of a record can be times and amounts; whatever adds them up relies on it. A
/// loss may be anything: a run that diverges has no other.
pub(crate) fn check_record(record: &Record, rank: u32, ranks: usize) -> Result<(), String> {
    if recorder(record) != rank {
        return Err(format!("it sent a record of rank {}", recorder(record)));
    }
    if record.rank as usize >= ranks {
        return Err(format!("it named rank {}; ranks are 0 to {}", record.rank, ranks - 1));
    }
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
        RecordKind::Compute { seconds } => check("seconds", *seconds),
        RecordKind::Transfer { seconds, bytes, .. } => {
            check_amount("bytes", *bytes)?;
            check("seconds", *seconds)
        }
        RecordKind::Reconnected { peer } if *peer as usize >= ranks => {
            Err(format!("it named rank {peer}; ranks are 0 to {}", ranks - 1))
        }
        // Only the coordinator evaluates and writes, and says who takes part.
        RecordKind::Evaluation { .. }
        | RecordKind::Lost
        | RecordKind::Left
        | RecordKind::Joined
        | RecordKind::StateTransferred { .. }
        | RecordKind::TookOver
        | RecordKind::Workers { .. }
        | RecordKind::Account { .. }
        | RecordKind::Deviation { .. }
        | RecordKind::Checkpoint { .. } => {
            Err("it sent a record that only the coordinator makes".to_string())
        }
        _ => Ok(()),
    }
}
