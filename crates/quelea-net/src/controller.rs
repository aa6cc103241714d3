//! The controller of a run: tickets, the end, drain, termination, time limits, failure.

mod blame;
mod cuts;
mod progress;
mod salvage;
mod standstill;

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use quelea_core::properties::Budget;
use quelea_core::time::Time;
use quelea_record::{Observer, Outcome, RankReport, RecordKind};
use tokio::sync::mpsc::UnboundedSender;

use crate::clock::RunClock;
use crate::error::NetError;
use crate::local_ranks::{ProcessContext, tick_period};
use crate::options::NetOptions;
use crate::protocol::{
    self, Account, Command, PacketError, REASON_CHARS, RankEvent, WARNING_CHARS, shown,
};
use crate::rank::Inbox;
use crate::running_time::StoodStill;
use cuts::CutAgreement;
use progress::ToldProgress;
use standstill::Stillness;

/// How long better evidence is waited for after a first sign of trouble.
const GRACE: Duration = Duration::from_millis(500);
/// Warnings that are kept; more are counted.
const WARNINGS: usize = 50;
/// A drain in which messages still arrive may take so many times as long as one without.
const DRAIN_FACTOR: f64 = 10.0;
/// How often the observer is asked for its requests.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The shortest and the longest time between two probes.
const PROBE_PAUSE: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(20));

/// What reaches the controller.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A rank says something.
    Event(RankEvent),
    /// The process of a rank has gone, or, in a joined process, the coordinator's.
    Gone { rank: u32, reason: String },
    /// The coordinator has ended the run; only in a joined process.
    Aborted(String),
}

/// How a rank receives commands.
#[derive(Debug)]
pub(crate) enum ControlLink {
    /// It lives here.
    Local(UnboundedSender<Inbox>),
    /// It has joined.
    Remote(TcpStream),
    /// Writing to it failed; it receives nothing more.
    Broken,
}

impl ControlLink {
    /// Why a rank is gone, if it could not be told and that is not seen where it is read.
    fn tell(&mut self, command: Command) -> Result<(), String> {
        let told = match self {
            ControlLink::Local(inbox) => {
                let _ = inbox.send(Inbox::Command(command));
                return Ok(());
            }
            ControlLink::Remote(stream) => protocol::write(stream, &command),
            ControlLink::Broken => return Ok(()),
        };
        let Err(error) = told else { return Ok(()) };
        *self = ControlLink::Broken;
        if matches!(error, PacketError::Closed) { Ok(()) } else { Err(error.to_string()) }
    }

    /// Whether whoever it leads to may still answer.
    fn is_open(&self) -> bool {
        match self {
            ControlLink::Local(inbox) => !inbox.is_closed(),
            ControlLink::Remote(_) => true,
            ControlLink::Broken => false,
        }
    }
}

impl Drop for ControlLink {
    fn drop(&mut self) {
        if let ControlLink::Remote(stream) = self {
            // What was written still arrives; then the worker sees that this was all.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunPhase {
    Running,
    Draining,
    Finishing,
}

/// Decides for a whole run.
pub(crate) struct Controller<'a> {
    options: NetOptions,
    workers: usize,
    total: u64,
    observer: &'a mut dyn Observer,
    links: Vec<ControlLink>,
    phase: RunPhase,
    /// When the phase began.
    entered: Instant,
    tickets: TicketPool,
    ranks: Vec<RankProgress>,
    probes: Probes,
    done: u64,
    told: ToldProgress,
    clock: RunClock,
    cutting: CutAgreement,
    clock_seconds: f64,
    trouble: Option<Trouble>,
    warnings: Vec<String>,
    /// Warnings that were too many.
    unsaid: u64,
    ticked: Instant,
    /// What ranks say of whom they wait for, once somebody has waited too long.
    accounts: BTreeMap<u32, Account>,
    still: StoodStill,
    /// For how long this process stood still in all.
    stood_still: Duration,
    /// Until then nobody is blamed for what happened while this process stood still.
    excused_until: Instant,
    /// Everything that was said until the last tick has been heard: only then is silence silence.
    has_caught_up: bool,
}

/// What is known of one rank.
#[derive(Debug)]
struct RankProgress {
    finished: bool,
    /// Its process is gone.
    is_gone: bool,
    /// It has said that it cannot continue.
    has_failed: bool,
    /// Since when it has said, without completing a step, that it computes.
    computing: Option<Instant>,
    /// It waits where all come together outside the run.
    gathering: bool,
    /// When it last said anything, and anything else than that it is alive.
    heard: Instant,
    moved: Instant,
    stillness: Stillness,
    report: Option<RankReport>,
}

#[derive(Debug)]
struct TicketPool {
    budgeted: bool,
    left: u64,
    granted: Vec<u64>,
    /// Wanted soon, not urgently.
    wanted: Vec<bool>,
}

/// Counts messages until none is on its way: twice in a row the same sums, sent = received.
#[derive(Debug)]
struct Probes {
    number: u64,
    answers: Vec<Option<(bool, u64, u64)>>,
    previous: Option<(u64, u64)>,
    pause: Duration,
    next: Option<Instant>,
    /// When the sums last changed.
    changed: Instant,
}

/// The first signs that the run cannot continue, best evidence first.
#[derive(Debug)]
struct Trouble {
    noted: Instant,
    until: Instant,
    weight: u8,
    error: NetError,
}

impl<'a> Controller<'a> {
    pub(crate) fn new(
        context: &ProcessContext,
        links: Vec<ControlLink>,
        observer: &'a mut dyn Observer,
    ) -> Controller<'a> {
        let ProcessContext { setup, options, start, .. } = context;
        let (workers, now) = (setup.workers(), Instant::now());
        let total = workers as u64 * setup.steps;
        let (properties, done) = (setup.properties(), start.steps(workers));
        let budgeted = properties.budget == Budget::TotalGradients;
        let progress = |rank: usize| RankProgress {
            finished: rank >= workers,
            is_gone: false,
            has_failed: false,
            computing: None,
            heard: now,
            moved: now,
            stillness: Stillness::default(),
            gathering: false,
            report: None,
        };
        Controller {
            options: options.clone(),
            workers,
            total,
            observer,
            phase: RunPhase::Running,
            entered: now,
            tickets: TicketPool {
                budgeted,
                left: total.saturating_sub(done),
                granted: vec![0; workers],
                wanted: vec![false; workers],
            },
            ranks: (0..links.len()).map(progress).collect(),
            probes: Probes {
                number: 0,
                answers: vec![None; links.len()],
                previous: None,
                pause: PROBE_PAUSE.0,
                next: None,
                changed: now,
            },
            links,
            done,
            told: ToldProgress::new(now),
            clock: context.clock,
            cutting: CutAgreement::new(context.schedule, properties.synchronous, setup.steps),
            clock_seconds: start.now.seconds(),
            trouble: None,
            warnings: Vec::new(),
            unsaid: 0,
            ticked: now,
            accounts: BTreeMap::new(),
            still: StoodStill::new(),
            stood_still: Duration::ZERO,
            excused_until: now,
            has_caught_up: true,
        }
    }

    /// Conducts until the end. On failure everybody has been told.
    pub(crate) fn run(mut self, incoming: &Receiver<Incoming>) -> Result<Outcome, NetError> {
        let result = self.attend(incoming).map_err(|error| self.told(error));
        if let Err(error) = &result {
            for port in &self.links {
                if let ControlLink::Remote(stream) = port {
                    // Whoever does not listen must not keep the word from others.
                    let _ = stream.set_write_timeout(Some(GRACE));
                }
            }
            if !matches!(error, NetError::Stopped { .. }) {
                self.salvage(incoming);
            }
            self.tell_all(&Command::Abort(error.to_string()));
        }
        result
    }

    /// Adds what is known besides: which link does not deliver, and that this process stood still.
    fn told(&self, error: NetError) -> NetError {
        let still = self.stood_still.as_secs_f64();
        let note = if still >= self.options.peer_seconds / 2.0 {
            format!(" (the coordinator's process itself stood still for {still:.1} s)")
        } else {
            String::new()
        };
        match error {
            NetError::Stalled(text) => {
                NetError::Stalled(blame::sentence(&text, &self.accounts) + &note)
            }
            NetError::Lost { rank, reason } => NetError::Lost { rank, reason: reason + &note },
            other => other,
        }
    }

    /// This process stood still for so long: nobody else was silent meanwhile, as far as it can tell.
    fn excuse(&mut self, still: Duration, now: Instant) {
        self.stood_still += still;
        self.entered += still;
        self.probes.changed += still;
        for progress in &mut self.ranks {
            progress.heard += still;
            progress.moved += still;
            progress.computing = progress.computing.map(|since| since + still);
        }
        // Those who waited for a rank of this process have said so; it answers them now.
        self.excused_until = now + 4 * tick_period(&self.options) + GRACE;
    }

    fn attend(&mut self, incoming: &Receiver<Incoming>) -> Result<Outcome, NetError> {
        let period = tick_period(&self.options);
        loop {
            let now = Instant::now();
            let poll = Some(now + self.poll_interval());
            let wake = [Some(self.ticked + period), self.probes.next, self.trouble_until(), poll];
            let wake = wake.into_iter().flatten().min().unwrap_or(now);
            let word = incoming.try_recv().or_else(|_| {
                self.has_caught_up = true;
                incoming.recv_timeout(wake.saturating_duration_since(now))
            });
            let still = self.still.take();
            if !still.is_zero() {
                self.excuse(still, Instant::now());
            }
            match word {
                Ok(Incoming::Event(RankEvent::Saved { rank, step, part })) => {
                    self.hear(rank);
                    self.saved(rank, step, *part);
                }
                Ok(Incoming::Event(event)) => self.event(event),
                Ok(Incoming::Gone { rank, reason }) => self.gone(rank, reason),
                Ok(Incoming::Aborted(reason)) => return Err(NetError::Aborted(reason)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            let now = Instant::now();
            if self.trouble_until().is_some_and(|until| until <= now) {
                return Err(self.trouble.take().expect("it has a time").error);
            }
            if self.probes.next.is_some_and(|next| next <= now) {
                self.probe();
            }
            if self.ticked + period <= now {
                self.tick(now);
            }
            self.tell_progress(now);
            self.end_saving_if_whole()?;
            self.attend_cuts();
            if self.phase == RunPhase::Finishing && self.ranks.iter().all(|s| s.report.is_some()) {
                return Ok(self.outcome());
            }
        }
    }

    fn trouble_until(&self) -> Option<Instant> {
        self.trouble.as_ref().map(|trouble| trouble.until)
    }

    fn tell(&mut self, rank: u32, command: Command) {
        if let Err(reason) = self.links[rank as usize].tell(command) {
            self.gone(rank, reason);
        }
    }

    fn tell_all(&mut self, command: &Command) {
        for rank in 0..self.links.len() {
            self.tell(rank as u32, command.clone());
        }
    }

    fn event(&mut self, event: RankEvent) {
        match event {
            RankEvent::Record(record) => {
                if matches!(record.event, RecordKind::Step { .. }) {
                    self.done += 1;
                    self.hear(record.rank);
                    self.ranks[record.rank as usize].computing = None;
                    let now = Time::from_seconds(record.t);
                    self.observer.progress(self.done, self.total, now);
                    self.cut_on_average();
                }
                self.observer.record(record);
            }
            RankEvent::Ticket { rank, number, urgent } => self.ticket(rank, number, urgent),
            RankEvent::Finished { rank, at } => {
                self.hear(rank);
                self.ranks[rank as usize].finished = true;
                self.clock_seconds = self.clock_seconds.max(at.seconds());
                if self.phase == RunPhase::Running {
                    self.end_if_finished();
                }
            }
            RankEvent::Probed { rank, probe, drained, sent, received } => {
                self.hear(rank);
                if probe == self.probes.number {
                    self.probes.answers[rank as usize] = Some((drained, sent, received));
                    self.count();
                }
            }
            RankEvent::Model { rank, step, model } => {
                self.hear(rank);
                self.model(rank, step, model);
            }
            RankEvent::CutProposal { rank, step } => {
                self.hear(rank);
                self.cut_proposal(rank, step);
            }
            RankEvent::CutAgreed { rank } => {
                self.hear(rank);
                self.cut_agreed(rank);
            }
            RankEvent::Paused { rank } => {
                self.hear(rank);
                self.paused();
            }
            RankEvent::Account { rank, account } => {
                self.hear_alive(rank);
                self.accounts.insert(rank, *account);
                let all = self.accounts.len() == self.links.len();
                if let Some(trouble) = self.trouble.as_mut().filter(|_| all) {
                    trouble.until = trouble.until.min(trouble.noted + GRACE);
                }
            }
            // Nobody has been asked yet.
            RankEvent::Salvaged { .. } => {}
            RankEvent::Saved { .. } => unreachable!("taken by whoever reads events"),
            RankEvent::Report(report) => {
                self.hear(report.rank);
                let rank = report.rank as usize;
                self.ranks[rank].report = Some(*report);
            }
            RankEvent::Heartbeat { rank, computing, waiting, gathering, sent, received } => {
                let (progress, now) = (&mut self.ranks[rank as usize], Instant::now());
                progress.heard = now;
                progress.stillness.hear(
                    waiting || (progress.finished && !computing),
                    sent,
                    received,
                );
                progress.computing = computing.then(|| progress.computing.unwrap_or(now));
                progress.gathering = gathering;
            }
            RankEvent::Stalled { rank, complaint } => {
                self.hear(rank);
                self.ranks[rank as usize].computing = None;
                // While somebody computes, the others wait for a reason.
                let is_excused = Instant::now() < self.excused_until;
                if !is_excused && !self.ranks.iter().any(|progress| progress.computing.is_some()) {
                    let complaint = shown(&complaint, REASON_CHARS) + &self.finished_before();
                    self.suspect(3, NetError::Stalled(complaint));
                }
            }
            RankEvent::Lost { rank, peer, reason } => {
                if self.phase != RunPhase::Finishing {
                    let reason = format!("{} (seen by rank {rank})", shown(&reason, REASON_CHARS));
                    self.suspect(2, NetError::Lost { rank: peer, reason });
                }
            }
            RankEvent::Failed { rank, reason } => {
                let reason = shown(&reason, REASON_CHARS);
                self.ranks[rank as usize].has_failed = true;
                self.suspect(0, NetError::Failed { rank, reason });
            }
            RankEvent::Warning(_) if self.warnings.len() >= WARNINGS => self.unsaid += 1,
            RankEvent::Warning(text) => self.warnings.push(shown(&text, WARNING_CHARS)),
        }
    }

    /// Who has ended while others wait: with scripts whose loops differ, that is the reason.
    fn finished_before(&self) -> String {
        let finished = (0..self.workers).filter(|rank| self.ranks[*rank].finished);
        let ranks: Vec<String> = finished.map(|rank| rank.to_string()).collect();
        match ranks.len() {
            0 => String::new(),
            1 => format!("; rank {} has ended its steps before", ranks[0]),
            _ => format!("; ranks {} have ended their steps before", ranks.join(", ")),
        }
    }

    fn end_if_finished(&mut self) {
        if self.ranks.iter().all(|progress| progress.finished) {
            self.drain();
        }
    }

    /// Lets everything that is pending come to rest.
    fn drain(&mut self) {
        self.enter(RunPhase::Draining);
        (self.probes.previous, self.probes.changed) = (None, self.entered);
        self.tell_all(&Command::Drain);
        self.probe();
    }

    fn enter(&mut self, phase: RunPhase) {
        (self.phase, self.entered) = (phase, Instant::now());
    }

    fn hear(&mut self, rank: u32) {
        let (progress, now) = (&mut self.ranks[rank as usize], Instant::now());
        (progress.heard, progress.moved) = (now, now);
    }

    /// As [`hear`](Controller::hear), of a rank that has not moved.
    fn hear_alive(&mut self, rank: u32) {
        self.ranks[rank as usize].heard = Instant::now();
    }

    fn gone(&mut self, rank: u32, reason: String) {
        self.ranks[rank as usize].is_gone = true;
        if self.ranks[rank as usize].report.is_none() {
            self.suspect(1, NetError::Lost { rank, reason });
        }
    }

    /// Notes that the run cannot continue; evidence of less weight gives way to better.
    fn suspect(&mut self, weight: u8, error: NetError) {
        let noted = Instant::now();
        let until = match &error {
            _ if weight == 0 => noted,
            // Ranks are asked whom they wait for.
            NetError::Stalled(_) => noted + 4 * GRACE,
            _ => noted + GRACE,
        };
        match &mut self.trouble {
            Some(trouble) if trouble.weight <= weight => {}
            Some(trouble) => {
                let until = trouble.until.min(until);
                *trouble = Trouble { noted: trouble.noted, until, weight, error };
            }
            None => {
                let is_stalled = matches!(error, NetError::Stalled(_));
                self.trouble = Some(Trouble { noted, until, weight, error });
                if is_stalled {
                    self.tell_all(&Command::Explain);
                }
            }
        }
    }

    /// A ticket wanted soon is granted while there are plenty; near the end only to whoever
    /// would use it now, so that nobody sits on one while others are idle.
    fn ticket(&mut self, rank: u32, number: u64, urgent: bool) {
        self.hear(rank);
        let worker = rank as usize;
        if !self.tickets.budgeted || number != self.tickets.granted[worker] + 1 {
            return;
        }
        if self.tickets.left == 0 {
            self.tell(rank, Command::Deny);
        } else if urgent || self.tickets.left > 2 * self.workers as u64 {
            self.tickets.left -= 1;
            self.tickets.granted[worker] += 1;
            self.tickets.wanted[worker] = false;
            self.tell(rank, Command::Grant { done: self.done });
        } else {
            self.tickets.wanted[worker] = true;
        }
    }

    fn probe(&mut self) {
        self.probes.next = None;
        self.probes.number += 1;
        self.probes.answers.fill(None);
        self.tell_all(&Command::Probe(self.probes.number));
    }

    fn count(&mut self) {
        let answers: Option<Vec<_>> = self.probes.answers.iter().copied().collect();
        let Some(answers) = answers else { return };
        let drained = answers.iter().all(|(drained, _, _)| *drained);
        let sent: u64 = answers.iter().map(|(_, sent, _)| sent).sum();
        let received: u64 = answers.iter().map(|(_, _, received)| received).sum();
        let sums = Some((sent, received));
        if drained && sent == received && self.probes.previous == sums {
            if self.save_at_rest() {
                return;
            }
            self.enter(RunPhase::Finishing);
            self.tell_all(&Command::Finish);
            return;
        }
        if self.probes.previous == sums {
            self.probes.pause = (self.probes.pause * 2).min(PROBE_PAUSE.1);
        } else {
            (self.probes.changed, self.probes.pause) = (Instant::now(), PROBE_PAUSE.0);
        }
        self.probes.previous = sums;
        self.probes.next = Some(Instant::now() + self.probes.pause);
    }

    /// Looks at the clock: says that the coordinator is alive, and who has been silent.
    fn tick(&mut self, now: Instant) {
        self.ticked = now;
        for rank in 0..self.links.len() {
            if matches!(self.links[rank], ControlLink::Remote(_)) {
                self.tell(rank as u32, Command::Heartbeat);
            }
        }
        let may_judge = std::mem::replace(&mut self.has_caught_up, false);
        if !may_judge || now < self.excused_until {
            return;
        }
        let limit = self.options.peer_seconds;
        let silent =
            self.ranks.iter().enumerate().filter(|(_, progress)| progress.report.is_none());
        let silent =
            silent.map(|(rank, progress)| (now.duration_since(progress.heard), rank)).max();
        if let Some((silence, rank)) = silent.filter(|(time, _)| time.as_secs_f64() >= limit) {
            let reason = format!("it has been silent for {:.1} s", silence.as_secs_f64());
            self.suspect(1, NetError::Lost { rank: rank as u32, reason });
        }
        if let Some(complaint) = self.overdue(now).or_else(|| self.standstill()) {
            self.suspect(2, NetError::Stalled(complaint));
        }
    }

    /// What has taken too long although everybody says to be alive.
    fn overdue(&self, now: Instant) -> Option<String> {
        let seconds = |since: Instant| now.duration_since(since).as_secs_f64();
        let (entered, limit) = (seconds(self.entered), self.options.drain_seconds);
        match self.phase {
            RunPhase::Running => {
                // A rank looks at its own clock first, and knows more. Whoever does not compute
                // may have to wait for one who does.
                let NetOptions { compute_seconds, peer_seconds, .. } = self.options;
                let late = |progress: &RankProgress| {
                    let (since, limit, what) = match progress.computing {
                        Some(since) => (since, compute_seconds, "its gradient"),
                        None if progress.finished => return None,
                        None => (progress.moved, 2.0 * compute_seconds, "a step or its end"),
                    };
                    let time = seconds(since);
                    (time >= limit + peer_seconds).then_some((time, what))
                };
                let mut ranks = self.ranks.iter().enumerate();
                let (rank, (time, what)) =
                    ranks.find_map(|(rank, progress)| Some((rank, late(progress)?)))?;
                Some(format!("waited {time:.1} s for rank {rank}: {what}"))
            }
            RunPhase::Draining => {
                let still = seconds(self.probes.changed);
                let overdue = still >= limit || entered >= DRAIN_FACTOR * limit;
                overdue.then(|| self.undrained(entered))
            }
            RunPhase::Finishing if entered >= limit => {
                let rank = self.ranks.iter().position(|progress| progress.report.is_none())?;
                Some(format!("waited {entered:.1} s for rank {rank}: its report"))
            }
            RunPhase::Finishing => None,
        }
    }

    fn undrained(&self, seconds: f64) -> String {
        let silent = |answer: &Option<(bool, u64, u64)>| !answer.is_some_and(|(d, _, _)| d);
        let who: Vec<String> = (0..self.links.len())
            .filter(|rank| silent(&self.probes.answers[*rank]))
            .map(|rank| format!("rank {rank}"))
            .collect();
        let (sent, received) = self.probes.previous.unwrap_or_default();
        let who = if who.is_empty() { "nobody".to_string() } else { who.join(", ") };
        format!(
            "waited {seconds:.1} s for the last messages: {sent} were sent, {received} received; \
             still not drained: {who}"
        )
    }

    fn outcome(&mut self) -> Outcome {
        if self.unsaid > 0 {
            self.warnings.push(format!("and {} warnings more", self.unsaid));
        }
        Outcome {
            clock_seconds: self.clock_seconds,
            warnings: std::mem::take(&mut self.warnings),
            ranks: self.ranks.iter_mut().filter_map(|progress| progress.report.take()).collect(),
            ..Outcome::default()
        }
    }
}
