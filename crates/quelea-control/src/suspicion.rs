//! Who is late, who is silent, and why nobody moves any more.

use quelea_core::time::Time;
use quelea_record::RankReport;

use crate::compute_limit::ComputeLimit;
use crate::controller::{Controller, RunPhase};
use crate::detector::AccrualDetector;
use crate::directive::RunFailure;
use crate::limits::ControlLimits;
use crate::membership::LossPolicy;

/// How long better evidence is waited for after a first sign of trouble.
pub(crate) const GRACE: Time = Time(500_000_000);
/// A drain in which messages still arrive may take this many times as long as one without.
const DRAIN_FACTOR: f64 = 10.0;
/// After this many heartbeats of every rank without a message or a computation, nobody moves any more.
const STILL_HEARTBEATS: u32 = 2;

/// What the controller knows of one rank.
#[derive(Debug)]
pub(crate) struct RankProgress {
    pub(crate) phase: RankPhase,
    pub(crate) contact: Contact,
    /// Steps that it had completed where the run was resumed, and those that it has completed since.
    pub(crate) steps_before: u64,
    pub(crate) steps: u64,
    /// Steps of others that its report counts: of those in whose place it is, where a run is resumed with fewer.
    pub(crate) inherited_steps: u64,
    /// The step that it is at, by what it has said.
    pub(crate) position: u64,
    /// The step at which its process began.
    pub(crate) entered: u64,
    /// Since when it has said, without completing a step, that it computes.
    pub(crate) computing: Option<Time>,
    /// It waits where all loops come together outside the run.
    pub(crate) gathering: bool,
    /// When it last said anything.
    pub(crate) heard: Time,
    /// When it last said anything else than that it is alive.
    pub(crate) moved: Time,
    pub(crate) stillness: Stillness,
    /// Judges the silence of its process, once that has shown that it is alive.
    pub(crate) detector: Option<AccrualDetector>,
    /// How long its next gradient may take.
    pub(crate) compute_limit: ComputeLimit,
    pub(crate) report: Option<RankReport>,
}

impl RankProgress {
    pub(crate) fn new(is_server: bool, limits: &ControlLimits, now: Time) -> RankProgress {
        RankProgress {
            phase: if is_server { RankPhase::Finished } else { RankPhase::Training },
            contact: Contact::Open,
            steps_before: 0,
            steps: 0,
            inherited_steps: 0,
            position: 0,
            entered: 0,
            computing: None,
            gathering: false,
            heard: now,
            moved: now,
            stillness: Stillness::default(),
            detector: None,
            compute_limit: ComputeLimit::new(limits.compute),
            report: None,
        }
    }

    /// Whether it computes no more gradients.
    pub(crate) fn is_finished(&self) -> bool {
        self.phase != RankPhase::Training
    }

    /// Whether the others continue without it.
    pub(crate) fn is_lost(&self) -> bool {
        self.phase == RankPhase::Lost
    }

    /// Whether its process is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.contact == Contact::Gone
    }

    /// Contact with it is at best as good as this from now on.
    pub(crate) fn degrade(&mut self, contact: Contact) {
        self.contact = self.contact.max(contact);
    }
}

/// How far a rank has come. Servers compute no gradients and are finished from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankPhase {
    Training,
    /// It computes no more gradients.
    Finished,
    /// It was lost or has left, and the others continue without it.
    Lost,
}

/// What is left of the contact with a rank, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Contact {
    Open,
    /// It has said that it cannot continue.
    Failed,
    /// Commands no longer reach it.
    Unreachable,
    /// Its process is gone.
    Gone,
}

/// For how long a rank has done nothing but wait, for others or for the end.
#[derive(Debug, Default)]
pub(crate) struct Stillness {
    sent: u64,
    received: u64,
    heartbeats: u32,
}

impl Stillness {
    /// A heartbeat of the rank: whether it only waits, and its messages until now.
    pub(crate) fn hear(&mut self, waits: bool, sent: u64, received: u64) {
        let still = waits && sent == self.sent && received == self.received;
        self.heartbeats = if still { self.heartbeats + 1 } else { 0 };
        (self.sent, self.received) = (sent, received);
    }
}

/// The first signs that the run cannot continue, best evidence first.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) noted: Time,
    pub(crate) until: Time,
    pub(crate) weight: Evidence,
    pub(crate) error: RunFailure,
}

/// How good the evidence for an error is, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Evidence {
    /// The rank itself says so.
    Own,
    /// The controller sees it.
    Seen,
    /// Another rank sees it, or a limit is over.
    Inferred,
    /// Another rank complains of having waited.
    Complaint,
}

impl Controller {
    /// Notes that the run cannot continue; weaker evidence gives way to better. Whether this is the
    /// first sign of a stall, so that ranks are to be asked whom they wait for.
    pub(crate) fn suspect(&mut self, weight: Evidence, error: RunFailure) {
        let noted = self.now;
        let until = match &error {
            _ if weight == Evidence::Own => noted,
            // Its process is gone, or silent for too long: the others need not wait for it.
            RunFailure::Lost { .. }
                if weight == Evidence::Seen && self.on_loss != LossPolicy::Stop =>
            {
                noted
            }
            // Ranks are asked whom they wait for.
            RunFailure::Stalled(_) => noted + Time(4 * GRACE.0),
            _ => noted + GRACE,
        };
        match &mut self.trouble {
            Some(trouble) if trouble.weight <= weight => {}
            Some(trouble) => {
                let until = trouble.until.min(until);
                *trouble = Trouble { noted: trouble.noted, until, weight, error };
            }
            None => {
                let is_stalled = matches!(error, RunFailure::Stalled(_));
                self.trouble = Some(Trouble { noted, until, weight, error });
                if is_stalled {
                    self.ask_for_accounts();
                }
            }
        }
    }

    /// Looks at the clock: whose thread says nothing, what takes too long. One that computes on its own
    /// thread says nothing meanwhile.
    pub(crate) fn judge(&mut self) {
        let silent = self.ranks.iter().enumerate();
        let silent = silent.filter(|(_, rank)| rank.report.is_none() && rank.computing.is_none());
        let silent = silent.map(|(rank, progress)| (self.now.since(progress.heard), rank)).max();
        let limit = self.limits.peer_seconds;
        if let Some((silence, rank)) = silent.filter(|(time, _)| time.seconds() >= limit) {
            let reason = format!("it has been silent for {:.1} s", silence.seconds());
            self.suspect(Evidence::Seen, RunFailure::Lost { rank: rank as u32, reason });
        }
        if let Some(failure) = self.overdue() {
            self.suspect(Evidence::Inferred, failure);
        } else if let Some(failure) = self.standstill() {
            self.suspect(Evidence::Inferred, failure);
        }
    }

    /// What has taken too long although every rank says that it is alive.
    fn overdue(&self) -> Option<RunFailure> {
        let seconds = |since: Time| self.now.since(since).seconds();
        let (entered, limit) = (seconds(self.entered), self.limits.drain_seconds);
        match self.phase {
            RunPhase::Running => {
                self.late_cut().map(RunFailure::Stalled).or_else(|| self.late_rank())
            }
            RunPhase::Draining => {
                let still = seconds(self.probes.changed);
                let is_overdue = still >= limit || entered >= DRAIN_FACTOR * limit;
                is_overdue.then(|| {
                    let undrained = self.probes.undrained();
                    let text = format!("waited {entered:.1} s for the last messages: {undrained}");
                    RunFailure::Stalled(text)
                })
            }
            RunPhase::Finishing if entered >= limit => {
                let rank = self.ranks.iter().position(|progress| progress.report.is_none())?;
                Some(self.late(rank as u32, entered, "its report"))
            }
            RunPhase::Finishing | RunPhase::Salvaging => None,
        }
    }

    /// A rank that computes, or does not complete a step, beyond its limit. It looks at its own clock
    /// first, and knows more. One that does not compute may have to wait for one that does.
    fn late_rank(&self) -> Option<RunFailure> {
        let limits = &self.limits;
        let late = |progress: &RankProgress| {
            let own = &progress.compute_limit;
            let (since, limit, what) = match progress.computing {
                Some(since) => (since, own.seconds(), format!("its gradient{}", own.reason())),
                None if progress.is_finished() => return None,
                None => {
                    let limit = 2.0 * limits.compute.ceiling_seconds;
                    (progress.moved, limit, "a step or its end".to_string())
                }
            };
            let time = self.now.since(since).seconds();
            (time >= limit + limits.peer_seconds).then_some((time, what))
        };
        let mut ranks = self.ranks.iter().enumerate();
        let (rank, (time, what)) =
            ranks.find_map(|(rank, progress)| Some((rank, late(progress)?)))?;
        // One that does not compute may itself wait for others.
        if self.ranks[rank].computing.is_none() {
            return Some(RunFailure::Stalled(format!(
                "waited {time:.1} s for rank {rank}: {what}"
            )));
        }
        Some(self.late(rank as u32, time, &what))
    }

    /// A rank is the only one that is waited for: where the others can continue, they do.
    fn late(&self, rank: u32, seconds: f64, what: &str) -> RunFailure {
        if self.on_loss == LossPolicy::Stop {
            return RunFailure::Stalled(format!("waited {seconds:.1} s for rank {rank}: {what}"));
        }
        RunFailure::Lost { rank, reason: format!("waited {seconds:.1} s for {what}") }
    }

    /// Why nobody will ever move again, if that is certain: some have ended or wait where all come
    /// together, all others wait for somebody, no message is on its way.
    fn standstill(&self) -> Option<RunFailure> {
        let workers = &self.ranks[..self.workers];
        let finished = workers.iter().filter(|progress| progress.is_finished()).count();
        let gathering = self.gathering();
        let living = workers.iter().filter(|progress| !progress.is_lost()).count();
        let may_wait = self.phase != RunPhase::Running || self.rests_for_cuts();
        let all = finished == self.workers || gathering == living;
        if may_wait || all || finished + gathering == 0 {
            return None;
        }
        let mut on_way: i128 = 0;
        for progress in &self.ranks {
            let Stillness { sent, received, heartbeats } = progress.stillness;
            if heartbeats < STILL_HEARTBEATS {
                return None;
            }
            on_way += i128::from(sent) - i128::from(received);
        }
        if on_way != 0 {
            return None;
        }
        let before = self.finished_before();
        let gathers = |progress: &RankProgress| progress.gathering && !progress.is_lost();
        if let Some(rank) = workers.iter().position(gathers) {
            let others =
                workers.iter().position(|progress| !progress.is_finished() && !progress.gathering);
            let others = others.map(|rank| format!(", but rank {rank} waits in a step"));
            let others = others.unwrap_or_default() + &before;
            let text =
                format!("rank {rank} is in a call that all ranks must make together{others}");
            return Some(RunFailure::Stalled(text));
        }
        let waiting = workers.iter().position(|progress| !progress.is_finished())?;
        if self.on_loss != LossPolicy::Stop && !self.is_external {
            // The others have what they need.
            let reason = format!("it waits for others' next step{before}");
            return Some(RunFailure::Lost { rank: waiting as u32, reason });
        }
        Some(RunFailure::Stalled(format!("rank {waiting} waits for others' next step{before}")))
    }

    /// How many living workers wait where all loops come together outside the run.
    pub(crate) fn gathering(&self) -> usize {
        let workers = self.ranks[..self.workers].iter();
        workers.filter(|progress| progress.gathering && !progress.is_lost()).count()
    }

    /// Who has ended while others wait: with scripts whose loops differ, that is the reason.
    pub(crate) fn finished_before(&self) -> String {
        let has_ended =
            |rank: &usize| self.ranks[*rank].is_finished() && !self.ranks[*rank].is_lost();
        let finished = (0..self.workers).filter(has_ended);
        let ranks: Vec<String> = finished.map(|rank| rank.to_string()).collect();
        match ranks.len() {
            0 => String::new(),
            1 => format!("; rank {} has ended its steps before", ranks[0]),
            _ => format!("; ranks {} have ended their steps before", ranks.join(", ")),
        }
    }
}
