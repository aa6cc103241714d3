// long: all that drivers call; what it does is in the files below it
//! One rank around its node: from a gradient to a complete step, checkpoints, heartbeats.
//!
//! ```text
//!            advance: a loan              gradient               advance, when the node is ready
//!   Ready ────────────────────► Computing ─────────► Completing ─────────────────────────────────► Ready
//! ```
//!
//! A driver tells the machine what happened, carries out the node's effects after every event ([`RankMachine::take_effects`]), calls
//! [`RankMachine::settle`], and, when the rank's processor is free, [`RankMachine::advance`], which returns a loan if a
//! gradient is to be computed. What the rank tells the controller is taken out with [`RankMachine::take_events`].

mod cut;
mod poisoned;
mod sampling;
mod status;
mod step;
mod succession;
mod traffic;

use std::sync::Arc;

use quelea_core::contract::{Effect, Fact};
use quelea_core::message::Rank;
use quelea_core::node::{Node, RefusedMessage};
use quelea_core::payload::Pool;
use quelea_core::poison::PoisonPolicy;
use quelea_core::problems::Computed;
use quelea_core::properties::Properties;
use quelea_core::run_spec::RunSpec;
use quelea_core::state::Saved;
use quelea_core::time::Time;
use quelea_core::view::View;
use quelea_record::{CheckpointSchedule, RankReport, Record, RecordKind, ResumePoint};

use crate::budget::RankBudget;
use crate::compute_limit::ComputeLimit;
use crate::life_cycle::LifeCycle;
use crate::limits::ControlLimits;
use crate::messages::{Command, RankEvent};
use crate::timing::{GradientTime, PendingStep};
use cut::CutState;
use sampling::Sampling;
use status::SalvageState;
use succession::ControllerShare;

/// Where the current step of a worker stands. A server is always ready.
#[derive(Debug)]
enum StepPhase {
    /// It may start a gradient.
    Ready,
    /// Its gradient is being computed since then; what had held it up before is part of its step.
    Computing { since: Time, held_up: GradientTime },
    /// Its gradient was handed over, and the step is not complete.
    Completing(PendingStep),
}

/// What a rank machine is made of.
#[derive(Clone, Copy)]
pub struct RankMachineConfig<'a> {
    /// The run.
    pub setup: &'a Arc<RunSpec>,
    /// The state that it resumes from.
    pub start: &'a ResumePoint,
    /// The view in which the run starts or resumes.
    pub view: &'a Arc<View>,
    /// When checkpoints are taken and models evaluated.
    pub schedule: CheckpointSchedule,
    /// Time limits.
    pub limits: ControlLimits,
    /// Whether detailed records for the timeline are wanted.
    pub timeline: bool,
    /// A loop outside decides how many gradients there are.
    pub is_external: bool,
    /// The right to the next gradient is asked for while one is computed, so that asking takes no time.
    pub asks_ahead: bool,
    /// Whether the rank waits until older checkpoints are on stable storage.
    pub waits_for_disk: bool,
    /// Whether messages are counted per peer, so that a link which does not deliver can be named.
    pub counts_links: bool,
    /// What is done about messages with values that no honest rank sends.
    pub poison: PoisonPolicy,
}

/// What only the driver knows of a worker's loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopStatus {
    /// A loop outside runs its optimizer.
    pub optimizing: bool,
    /// A loop outside waits where all loops come together outside the run.
    pub gathering: bool,
    /// For how long this process stood still since the last call.
    pub stood_still: Time,
}

/// One rank of a run.
pub struct RankMachine {
    node: Node,
    properties: Properties,
    limits: ControlLimits,
    is_external: bool,
    asks_ahead: bool,
    timeline: bool,
    poison: PoisonPolicy,
    phase: StepPhase,
    life_cycle: LifeCycle,
    budget: RankBudget,
    /// When the last step was complete.
    ready_at: Time,
    /// Whether it has since been held up by a change of membership.
    was_frozen: bool,
    /// It starts no gradient before this view.
    frozen_until: Option<u32>,
    /// When something last happened here.
    moved: Time,
    /// A loop outside runs its optimizer, or is about to.
    is_optimizing: bool,
    /// For how long the process stood still since the gradient was asked for.
    stood_still: Time,
    /// How long its next gradient may take.
    compute_limit: ComputeLimit,
    cutting: CutState,
    salvage: SalvageState,
    report: RankReport,
    share: ControllerShare,
    /// Messages since this process began, to be compared.
    sent: u64,
    received: u64,
    /// The same by peer; empty where links are not counted.
    sent_to: Vec<u64>,
    received_from: Vec<u64>,
    /// Bytes of the same.
    bytes_to: Vec<u64>,
    bytes_from: Vec<u64>,
    sampling: Sampling,
    events: Vec<RankEvent>,
}

impl RankMachine {
    /// The machine of `rank` at `now`, new or resumed.
    pub fn new(
        config: RankMachineConfig<'_>,
        rank: Rank,
        pool: Pool,
        now: Time,
    ) -> Result<RankMachine, String> {
        let RankMachineConfig { setup, start, schedule, limits, .. } = config;
        let mut node = start.node_in(config.view, setup, rank, pool.clone())?;
        if config.poison != PoisonPolicy::Ignore {
            node.inspect_messages();
        }
        let report = start.report(rank);
        let links = if config.counts_links { setup.ranks() } else { 0 };
        Ok(RankMachine {
            properties: setup.properties(),
            limits,
            is_external: config.is_external,
            asks_ahead: config.asks_ahead,
            timeline: config.timeline,
            poison: config.poison,
            phase: StepPhase::Ready,
            life_cycle: LifeCycle::new(node.is_server),
            budget: RankBudget::default(),
            ready_at: now,
            was_frozen: false,
            frozen_until: None,
            moved: now,
            is_optimizing: false,
            stood_still: Time::ZERO,
            compute_limit: ComputeLimit::new(limits.compute),
            cutting: CutState::new(
                Arc::clone(setup),
                pool,
                schedule,
                node.step(),
                config.waits_for_disk,
            ),
            salvage: SalvageState::None,
            share: ControllerShare::new(report.steps),
            report: RankReport { rank: rank.0, is_server: node.is_server, ..report },
            sent: 0,
            received: 0,
            sent_to: vec![0; links],
            received_from: vec![0; links],
            bytes_to: vec![0; links],
            bytes_from: vec![0; links],
            sampling: Sampling::new(setup.seed),
            events: Vec::new(),
            node,
        })
    }

    /// The node, to be read.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The optimizer is the driver's: see [`Node::optimize_outside`].
    pub fn optimize_outside(&mut self) {
        self.node.optimize_outside();
    }

    /// Held messages that cannot be taken are their senders' faults: see [`Node::contain_held`].
    pub fn contain_held(&mut self) {
        self.node.contain_held();
    }

    /// Those since the last call.
    pub fn take_refused(&mut self) -> Vec<RefusedMessage> {
        self.node.take_refused()
    }

    /// The latest view of which a message may be: the next one if this rank has been told to expect it.
    pub fn latest_view(&self) -> u32 {
        let view = self.node.view().number;
        self.frozen_until.map_or(view, |until| until.max(view))
    }

    /// What the rank did so far.
    pub fn report(&self) -> &RankReport {
        &self.report
    }

    /// A copy of the node's state as it is at this moment, to be inspected.
    pub fn inspect_state(&mut self) -> Saved {
        let mut saved = Saved::default();
        self.node.state(&mut saved);
        saved
    }

    /// A loop outside was asked to run its optimizer, or has run it: until then nothing rests here.
    pub fn note_optimizing(&mut self, is_optimizing: bool) {
        self.is_optimizing = is_optimizing;
    }

    /// Whether nothing of this rank's is pending any more, after it was told to flush it.
    fn is_drained(&self) -> bool {
        self.life_cycle.is_draining() && self.node.is_drained() && !self.is_optimizing
    }

    /// Whether a gradient is being computed.
    pub fn is_computing(&self) -> bool {
        matches!(self.phase, StepPhase::Computing { .. })
    }

    /// Whether it computes no more gradients.
    pub fn is_finished(&self) -> bool {
        self.life_cycle.is_finished()
    }

    /// What the driver has to carry out for the node.
    pub fn take_effects(&mut self) -> std::vec::Drain<'_, Effect> {
        self.node.take_effects()
    }

    /// Whether the rank has something to tell the controller.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// What the rank tells the controller, in order.
    pub fn take_events(&mut self) -> std::vec::Drain<'_, RankEvent> {
        self.events.drain(..)
    }

    /// The run begins.
    pub fn start(&mut self, now: Time) {
        self.node.start(now);
    }

    /// This worker joins a run whose others were in the view `old` before.
    pub fn enter(&mut self, now: Time, old: &View) {
        self.node.enter(now, old);
    }

    /// The algorithm has measured something: the controller hears of it.
    pub fn note_fact(&mut self, now: Time, fact: Fact) {
        let record = self.count_fact(now, fact);
        self.events.push(RankEvent::Record(record));
    }

    /// The algorithm has measured something: the record of it, which nobody has heard of yet.
    pub fn count_fact(&mut self, now: Time, fact: Fact) -> Record {
        let event = self.report.take(fact);
        Record { t: now.seconds(), rank: self.node.rank.0, step: self.node.step(), event }
    }

    /// A broken connection with `peer` was restored.
    pub fn note_reconnected(&mut self, now: Time, peer: Rank) {
        self.record(now, self.node.step(), RecordKind::Reconnected { peer: peer.0 });
    }

    /// Bucket `b` of the gradient is final.
    pub fn bucket(&mut self, now: Time, b: usize) {
        self.moved = now;
        self.node.bucket(now, b);
    }

    /// When the gradient that is being computed was asked for.
    pub fn computing_since(&self) -> Option<Time> {
        if let StepPhase::Computing { since, .. } = self.phase { Some(since) } else { None }
    }

    /// The whole gradient is final, after `spent`.
    pub fn gradient(&mut self, now: Time, computed: Computed, spent: GradientTime) {
        self.moved = now;
        let StepPhase::Computing { held_up, .. } = self.phase else {
            unreachable!("a gradient is complete after it was begun");
        };
        let spent = GradientTime {
            compute: spent.compute,
            exposed: held_up.exposed + spent.exposed,
            waiting: held_up.waiting + spent.waiting,
        };
        let step = self.node.step();
        self.phase = StepPhase::Completing(PendingStep { step, since: now, spent, computed });
        self.compute_limit.note(spent.compute);
        self.report.samples += u64::from(computed.samples);
        self.report.last_loss = computed.loss;
        if self.timeline {
            let seconds = spent.compute.seconds();
            self.record(now.since(spent.compute), step, RecordKind::Compute { seconds });
        }
        self.node.gradient(now, computed);
    }

    /// A loop outside has run its optimizer on bucket `b`.
    pub fn optimized(&mut self, now: Time, b: usize) {
        self.moved = now;
        self.node.optimized(now, b);
    }

    /// A loop outside computes no more gradients; the last that was asked for will not come.
    pub fn loop_finished(&mut self, now: Time) {
        self.moved = now;
        self.node.cancel_gradient();
        self.phase = StepPhase::Ready;
        self.finish();
    }

    /// Membership has changed. The driver makes the view that [`Command::View`] announces.
    pub fn change_view(&mut self, now: Time, view: Arc<View>) {
        self.moved = now;
        let number = view.number;
        self.frozen_until.take_if(|until| *until <= number);
        self.cutting.enter_view();
        self.node.change_view(now, view);
        self.judge_poisoned(now);
        self.record(now, self.node.step(), RecordKind::View { number });
    }

    /// A command of the controller has come. `true`: it was the last one.
    pub fn command(&mut self, now: Time, command: Command) -> bool {
        if let Command::Progress { done } | Command::Grant { done } | Command::Unit { done, .. } =
            command
        {
            self.node.progress(done);
        }
        // What the others do is no sign that this rank moves.
        if matches!(command, Command::Progress { .. }) {
            return false;
        }
        // Nor that somebody looks.
        if let Command::Survey { sample_every } = command {
            self.answer_survey(sample_every);
            return false;
        }
        self.moved = now;
        let Some(command) = self.cut_command(now, command) else { return false };
        match command {
            Command::Grant { .. } => self.budget.grant(),
            Command::Unit { unit, settled, .. } => {
                self.budget.units.take(unit, settled);
                self.budget.grant();
            }
            Command::Deny => self.budget.deny(),
            // Told again by another controller, it flushes nothing twice.
            Command::Drain if self.life_cycle.is_draining() => {}
            Command::Drain => {
                self.life_cycle.drain();
                self.node.drain(now);
            }
            Command::Probe(probe) => self.events.push(RankEvent::Probed {
                rank: self.node.rank.0,
                probe,
                drained: self.is_drained(),
                sent: self.among_living(&self.sent_to, self.sent),
                received: self.among_living(&self.received_from, self.received),
            }),
            Command::HandOver => self.node.leave(now),
            Command::Finish | Command::Leave => {
                self.report_at_end();
                return true;
            }
            // A worker that has just joined in that view may hear of it late.
            Command::Freeze(number) if number > self.node.view().number => {
                self.frozen_until = Some(number);
                let (rank, step) = (self.node.rank.0, self.node.step());
                self.events.push(RankEvent::Frozen { rank, number, step });
            }
            Command::Store(change) => {
                let (rank, number) = (self.node.rank.0, change.number);
                self.events.push(RankEvent::Stored { rank, number });
            }
            Command::Salvage => self.salvage = SalvageState::Asked,
            Command::Explain => self.explain(),
            Command::Abort(_) => return true,
            _ => {}
        }
        false
    }

    /// This rank was given notice: it wants to leave once the others can do without it.
    pub fn leave(&mut self) {
        self.share.is_leaving = true;
        self.events.push(RankEvent::Leaving { rank: self.node.rank.0 });
    }

    /// Does what can be done whether or not the processor is free: checkpoints and models that are due.
    pub fn settle(&mut self) {
        self.confirm_pause();
        self.cut_if_due();
        self.salvage_if_asked();
    }

    fn record(&mut self, at: Time, step: u64, event: RecordKind) {
        let rank = self.node.rank.0;
        self.events.push(RankEvent::Record(Record { t: at.seconds(), rank, step, event }));
    }
}
