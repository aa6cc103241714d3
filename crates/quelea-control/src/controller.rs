//! The controller of a run: budget, checkpoints, the end, drain, termination, time limits, failure.
//!
//! A driver tells it what ranks say ([`Controller::handle`]) and who is gone ([`Controller::gone`]), calls
//! [`Controller::poll`] then and at [`Controller::next_deadline`], and carries out its [`Directive`]s.

use std::collections::BTreeMap;
use std::sync::Arc;

use quelea_core::properties::Properties;
use quelea_core::run_spec::RunSpec;
use quelea_core::time::Time;
use quelea_core::view::View;
use quelea_record::{CheckpointSchedule, Observer, Outcome, ResumePoint};

use crate::accusations::Accusations;
use crate::blame;
use crate::budget::GradientBudget;
use crate::claims::Disputes;
use crate::cut::CutAgreement;
use crate::directive::{Directive, Recipient, RunFailure};
use crate::limits::ControlLimits;
use crate::membership::{LossPolicy, Membership};
use crate::messages::{Account, Command};
use crate::progress::ToldProgress;
use crate::salvage::Salvage;
use crate::survey::Survey;
use crate::suspicion::{GRACE, RankProgress, Trouble};
use crate::termination::Probes;

/// Where the run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunPhase {
    /// Workers compute gradients.
    Running,
    /// What is pending comes to rest, for a checkpoint or for the end.
    Draining,
    /// Ranks send their reports.
    Finishing,
    /// The run is aborted, and ranks send their models.
    Salvaging,
}

/// What a controller is made of.
#[derive(Clone, Copy)]
pub struct ControllerConfig<'a> {
    /// The run.
    pub setup: &'a RunSpec,
    /// The state that it resumes from.
    pub start: &'a ResumePoint,
    /// When checkpoints are taken and models evaluated.
    pub schedule: CheckpointSchedule,
    /// Time limits.
    pub limits: ControlLimits,
    /// What happens when a rank is lost.
    pub on_loss: LossPolicy,
    /// Whether ranks are watched by the clock. Without it the driver says when nothing is on its way any more
    /// ([`Controller::quiet`]), or asks for probes ([`Controller::use_probes`]).
    pub watches: bool,
    /// Whether ranks wait until checkpoints are on stable storage.
    pub waits_for_disk: bool,
    /// Ranks of the controller's own process: what they see of others, it sees.
    pub own_ranks: &'a [u32],
    /// Whether loops outside decide how many gradients there are, so that nobody asks for the right to one.
    pub is_external: bool,
}

/// Decides for a whole run.
pub struct Controller {
    pub(crate) now: Time,
    pub(crate) setup: RunSpec,
    /// Of the run's algorithm with its options; looked at for every step, so it is not asked for anew.
    pub(crate) properties: Properties,
    pub(crate) on_loss: LossPolicy,
    pub(crate) watches: bool,
    /// Whether ranks are asked if anything is on its way.
    pub(crate) uses_probes: bool,
    pub(crate) waits_for_disk: bool,
    pub(crate) own_ranks: Vec<u32>,
    pub(crate) is_external: bool,
    pub(crate) accusations: Accusations,
    pub(crate) disputes: Disputes,
    pub(crate) members: Membership,
    pub(crate) lost: usize,
    pub(crate) limits: ControlLimits,
    /// Ranks of workers; nobody may take part as some of them.
    pub(crate) workers: usize,
    pub(crate) total: u64,
    orders: Vec<Directive>,
    pub(crate) phase: RunPhase,
    /// When the phase began.
    pub(crate) entered: Time,
    pub(crate) budget: GradientBudget,
    pub(crate) ranks: Vec<RankProgress>,
    /// A rank that had not finished when it was last looked who has: where to look first.
    unfinished: usize,
    pub(crate) probes: Probes,
    /// Steps that all workers together have completed.
    pub(crate) done: u64,
    pub(crate) told: ToldProgress,
    pub(crate) cutting: CutAgreement,
    pub(crate) clock_seconds: f64,
    pub(crate) trouble: Option<Trouble>,
    pub(crate) salvage: Option<Salvage>,
    pub(crate) warnings: Vec<String>,
    /// Warnings beyond those that are kept.
    pub(crate) omitted_warnings: u64,
    ticked: Time,
    /// When it was last looked who is silent.
    pub(crate) watched: Time,
    /// What ranks say of whom they wait for, once somebody has waited too long.
    pub(crate) accounts: BTreeMap<u32, Account>,
    /// For how long this process stood still in all.
    stood_still: Time,
    /// The survey that somebody who looks at the run has asked for.
    pub(crate) survey: Survey,
    /// Until then nobody is blamed for what happened while this process stood still.
    pub(crate) excused_until: Time,
    /// Everything that was said until the last tick has been heard: only then is silence silence.
    has_caught_up: bool,
    /// Everything that was said until then has been heard.
    pub(crate) heard_until: Time,
}

impl Controller {
    /// The controller of a run that begins at `now`.
    pub fn new(config: ControllerConfig<'_>, now: Time) -> Controller {
        let ControllerConfig { setup, start, schedule, limits, .. } = config;
        let (workers, properties) = (setup.seats(), setup.properties());
        let (total, done) = (setup.workers() as u64 * setup.steps, start.steps(workers));
        let ranks = (0..setup.ranks()).map(|rank| RankProgress::new(rank >= workers, &limits, now));
        let mut controller = Controller {
            now,
            setup: setup.clone(),
            properties,
            on_loss: config.on_loss,
            watches: config.watches,
            uses_probes: config.watches,
            waits_for_disk: config.waits_for_disk,
            own_ranks: config.own_ranks.to_vec(),
            is_external: config.is_external,
            accusations: Accusations::default(),
            disputes: Disputes::default(),
            members: Membership::new(start.view(setup), start.changes.clone()),
            lost: 0,
            limits,
            workers,
            total,
            orders: Vec::new(),
            phase: RunPhase::Running,
            entered: now,
            budget: GradientBudget::of(config),
            ranks: ranks.collect(),
            unfinished: 0,
            probes: Probes::new(setup.ranks(), now),
            done,
            told: ToldProgress::new(now),
            cutting: CutAgreement::new(schedule, properties.synchronous, setup.steps),
            clock_seconds: start.now.seconds(),
            trouble: None,
            salvage: None,
            warnings: Vec::new(),
            omitted_warnings: 0,
            ticked: now,
            watched: now,
            accounts: BTreeMap::new(),
            stood_still: Time::ZERO,
            survey: Survey::new(),
            excused_until: now,
            has_caught_up: true,
            heard_until: now,
        };
        controller.resume(start);
        controller
    }

    /// Takes over how far each rank was, and who was lost before.
    fn resume(&mut self, start: &ResumePoint) {
        for (progress, part) in self.ranks.iter_mut().zip(&start.parts) {
            let step = part.step();
            (progress.steps_before, progress.position, progress.entered) = (step, step, step);
            progress.inherited_steps = part.report.steps.saturating_sub(part.step());
        }
        for rank in start.absent(&self.setup) {
            let report = start.report(rank);
            self.strike_out(rank.0, report);
        }
    }

    /// Whether there is something to be delivered.
    pub fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    /// What is to be delivered, in order.
    pub fn take_orders(&mut self) -> std::vec::Drain<'_, Directive> {
        self.orders.drain(..)
    }

    /// Whether the run is being aborted: what does not get through at once must not hold up the rest.
    pub fn is_aborting(&self) -> bool {
        self.phase == RunPhase::Salvaging
    }

    /// This process stood still for this long: nobody else was silent meanwhile, as far as it can tell.
    pub fn excuse(&mut self, now: Time, still: Time) {
        self.now = now;
        self.stood_still = self.stood_still + still;
        self.entered = self.entered + still;
        self.probes.changed = self.probes.changed + still;
        for progress in &mut self.ranks {
            progress.heard = progress.heard + still;
            progress.moved = progress.moved + still;
            progress.computing = progress.computing.map(|since| since + still);
            if let Some(detector) = &mut progress.detector {
                detector.excuse(now, still);
            }
        }
        // Ranks that waited for one of this process have complained; it answers them now.
        self.excused_until = now + Time(4 * self.limits.tick_period().0) + GRACE;
    }

    /// Everything that was said until `now` has been heard.
    pub fn caught_up(&mut self, now: Time) {
        self.has_caught_up = true;
        self.heard_until = now;
    }

    /// When to call [`poll`](Controller::poll) at the latest.
    pub fn next_deadline(&self) -> Time {
        let tick = self.ticked + self.limits.tick_period();
        let watch = self.watched + self.watch_period();
        let trouble = self.trouble.as_ref().map(|trouble| trouble.until);
        let observer = self.now + self.observer_interval();
        let verdict = self.next_verdict();
        let others = [self.next_probe(), trouble, self.salvage_deadline(), verdict];
        let survey = self.survey_deadline();
        let first = tick.min(watch).min(observer);
        others.into_iter().chain([survey]).flatten().fold(first, Time::min)
    }

    /// Does what has become due at `now`. An outcome: the run has ended well. An error: it has not, and
    /// all ranks are told.
    pub fn poll(
        &mut self,
        now: Time,
        observer: &mut dyn Observer,
    ) -> Result<Option<Outcome>, RunFailure> {
        self.now = now;
        let result = self.attend(observer);
        if let Err(error) = &result {
            self.order(Recipient::All, Command::Abort(error.to_string()));
        }
        result
    }

    fn attend(&mut self, observer: &mut dyn Observer) -> Result<Option<Outcome>, RunFailure> {
        if self.watches && self.ticked + self.limits.tick_period() <= self.now {
            self.tick();
        }
        if self.watches && self.watched + self.watch_period() <= self.now {
            self.watch();
        }
        if self.phase == RunPhase::Salvaging {
            return self.end_salvage_if_done(observer).map(|()| None);
        }
        self.decide_accusations();
        if let Some(trouble) = self.trouble.take_if(|trouble| trouble.until <= self.now) {
            return self.continue_or_abort(trouble.error, observer).map(|()| None);
        }
        if self.next_probe().is_some_and(|next| next <= self.now) {
            self.probe();
        }
        if let Some(rank) = observer.rank_to_drop() {
            self.drop_rank(rank, observer);
        }
        if self.watches {
            self.survey_if_due(observer.survey_interval());
        }
        self.finish_change_if_all_stand(observer);
        self.tell_progress();
        self.end_saving_if_whole(observer)?;
        self.attend_cuts(observer);
        let is_over = self.phase == RunPhase::Finishing
            && self.ranks.iter().all(|progress| progress.report.is_some());
        Ok(is_over.then(|| self.outcome()))
    }

    /// The driver of a virtual cluster sees that nothing is on its way any more.
    pub fn quiet(&mut self, now: Time, observer: &mut dyn Observer) {
        self.now = now;
        if self.phase == RunPhase::Draining && !self.members.is_changing() {
            self.end_drain(observer);
        }
    }

    /// Whether what is pending is coming to rest.
    pub fn is_draining(&self) -> bool {
        self.phase == RunPhase::Draining
    }

    /// Says that the controller is alive, and looks who is late.
    fn tick(&mut self) {
        self.ticked = self.now;
        self.order(Recipient::All, Command::Heartbeat);
        let may_judge = std::mem::replace(&mut self.has_caught_up, false);
        if may_judge && self.now >= self.excused_until && self.phase != RunPhase::Salvaging {
            self.judge();
        }
    }

    /// Adds what is known besides: which link does not deliver, and that this process stood still.
    pub(crate) fn told(&self, error: RunFailure) -> RunFailure {
        let still = self.stood_still.seconds();
        let note = if still >= self.limits.peer_seconds / 2.0 {
            format!(" (the coordinator's process itself stood still for {still:.1} s)")
        } else {
            String::new()
        };
        match error {
            RunFailure::Stalled(text) => {
                RunFailure::Stalled(blame::sentence(&text, &self.accounts) + &note)
            }
            RunFailure::Lost { rank, reason } => RunFailure::Lost { rank, reason: reason + &note },
            other => other,
        }
    }

    pub(crate) fn order(&mut self, to: Recipient, command: Command) {
        self.orders.push(Directive { to, command });
    }

    pub(crate) fn ask_for_accounts(&mut self) {
        self.order(Recipient::All, Command::Explain);
    }

    pub(crate) fn end_if_finished(&mut self) {
        let (ranks, from) = (self.ranks.len(), self.unfinished);
        let mut others = (0..ranks).map(|place| (from + place) % ranks);
        match others.find(|rank| !self.ranks[*rank].is_finished()) {
            Some(rank) => self.unfinished = rank,
            // Who enters while all comes to its end would have to be told what the others were told.
            None if self.members.lets_in() => {}
            None => self.drain(),
        }
    }

    /// Lets everything that is pending come to rest.
    pub(crate) fn drain(&mut self) {
        self.enter(RunPhase::Draining);
        self.probes.reset(self.now);
        self.order(Recipient::All, Command::Drain);
        self.probe();
    }

    /// Counts anew after a change of membership.
    pub(crate) fn restart_drain(&mut self) {
        self.probes.reset(self.now);
        self.probe();
    }

    fn probe(&mut self) {
        if !self.uses_probes || self.members.is_changing() {
            return;
        }
        let number = self.probes.start();
        self.order(Recipient::All, Command::Probe(number));
    }

    pub(crate) fn end_drain(&mut self, observer: &mut dyn Observer) {
        if !self.save_at_rest(observer) {
            self.enter(RunPhase::Finishing);
            self.order(Recipient::All, Command::Finish);
        }
    }

    pub(crate) fn enter(&mut self, phase: RunPhase) {
        (self.phase, self.entered) = (phase, self.now);
    }

    /// The last view that was announced.
    pub fn view(&self) -> &Arc<View> {
        &self.members.view
    }
}
