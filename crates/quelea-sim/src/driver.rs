//! The loop: take the next event, tell the rank, carry out what it asks for.

mod assembly;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use quelea_control::{Controller, Directive, RankEvent};
use quelea_core::contract::Effect;
use quelea_core::message::Rank;
use quelea_core::payload::Pool;
use quelea_core::problems::{Computed, Problem};
use quelea_core::properties::TopologyRequirement;
use quelea_core::run_spec::RunSpec;
use quelea_core::time::Time;
use quelea_core::view::View;
use quelea_record::{Observer, Outcome, RankReport, Record, RecordKind, ResumePoint};

use crate::attacks::{self, Attacks};
use crate::cluster::{Cluster, ControlPath};
use crate::collective_start::CollectiveStarts;
use crate::compute::ComputeModel;
use crate::control_network::{ControlLoad, ControlNetwork};
use crate::gradient_pool::GradientPool;
use crate::in_flight::InFlightLoad;
use crate::invariants::Invariants;
use crate::membership::RankFault;
use crate::network::VirtualNetwork;
use crate::queue::{EventQueue, SimEvent};
use crate::rank_state::RankState;
use crate::takeover::ControllerHome;
use crate::traffic::Handoff;
use crate::{SimError, Stuck, awaited};
use assembly::{controller, rank_states, reduce_bps, restore_workers};
pub(crate) use assembly::{controller_config, machine_config};

/// After so long without a message of an algorithm, none will come.
const LONGEST_REST: Time = Time(100_000_000_000);

/// A run in progress.
pub(crate) struct Driver<'a> {
    pub(crate) setup: &'a RunSpec,
    /// The same, as all ranks hold it.
    pub(crate) shared_setup: Arc<RunSpec>,
    pub(crate) problem: &'a dyn Problem,
    pub(crate) cluster: &'a Cluster,
    pub(crate) observer: &'a mut dyn Observer,
    pub(crate) controller: Controller,
    /// What ranks have told the controller, and what it has told them, not yet delivered.
    pub(crate) events: VecDeque<RankEvent>,
    pub(crate) orders: VecDeque<Directive>,
    /// Control messages are being delivered.
    pub(crate) exchanges_control: bool,
    /// The controller was told something since it was last attended to.
    pub(crate) is_controller_told: bool,
    /// Events so far, as a count that wraps around.
    pub(crate) handled: u32,
    /// When the controller is attended to besides.
    pub(crate) attends_at: Option<Time>,
    /// Control messages on their way, where they travel over the network.
    pub(crate) control: ControlNetwork,
    /// Where the controller lives.
    pub(crate) home: ControllerHome,
    /// The state that the run has begun with.
    pub(crate) start: ResumePoint,
    pub(crate) timeline: bool,
    pub(crate) handoff_send: Handoff,
    pub(crate) handoff_receive: Handoff,
    /// Nothing if arithmetic costs nothing.
    pub(crate) reduce_bps: Option<u64>,

    pub(crate) now: Time,
    pub(crate) queue: EventQueue,
    pub(crate) network: VirtualNetwork,
    pub(crate) compute: ComputeModel,
    pub(crate) gradients: GradientPool,
    /// What came with the gradient that each worker is handing over.
    pub(crate) computed: Vec<Computed>,
    pub(crate) ranks: Vec<RankState>,
    pub(crate) attacks: Attacks,
    pub(crate) gates: CollectiveStarts,
    /// Unread messages per directed link, where links are limited.
    pub(crate) links: BTreeMap<(u32, u32), u32>,
    /// All views that were announced, by number.
    pub(crate) views: Vec<Arc<View>>,
    pub(crate) faults: Vec<RankFault>,
    pub(crate) faults_to_come: usize,

    pub(crate) living_workers: usize,
    /// Whether some rank was lost or has left, ever.
    pub(crate) has_lost: bool,
    pub(crate) messages: u64,
    pub(crate) in_flight: InFlightLoad,
    /// Memory for the effects of one event.
    pub(crate) effects: Vec<Effect>,
    /// What has been checked so far, in runs that are checked.
    pub(crate) invariants: Option<Invariants>,
}

impl<'a> Driver<'a> {
    // long: a run in progress has many fields, and each begins somehow
    pub(crate) fn new(
        setup: &'a RunSpec,
        problem: &'a dyn Problem,
        cluster: &'a Cluster,
        start: &ResumePoint,
        observer: &'a mut dyn Observer,
    ) -> Result<Driver<'a>, SimError> {
        let (properties, workers, pool) = (setup.properties(), setup.seats(), Pool::new());
        let views = setup.views(&start.changes);
        let view = views.last().expect("the first view is there");
        let shared_setup = Arc::new(setup.clone());
        let mut machine = machine_config(&shared_setup, start, view, observer);
        let travels = cluster.control != ControlPath::Free;
        (machine.asks_ahead, machine.counts_links) = (travels, travels);
        let ranks = rank_states(machine, &pool)?;
        let sources = attacks::sources(problem, cluster, workers)?;
        if !start.resized {
            restore_workers(problem, &start.parts, workers)?;
        }
        let is_global =
            properties.synchronous && properties.topology == TopologyRequirement::Nothing;
        let mut driver = Driver {
            controller: controller(machine, cluster.control),
            events: VecDeque::new(),
            orders: VecDeque::new(),
            exchanges_control: false,
            is_controller_told: true,
            handled: 0,
            attends_at: None,
            control: ControlNetwork::new(ranks.len()),
            home: ControllerHome::default(),
            start: start.clone(),
            timeline: machine.timeline,
            handoff_send: Handoff::of_sending(cluster),
            handoff_receive: Handoff::of_receiving(cluster),
            reduce_bps: reduce_bps(cluster),
            now: start.now,
            queue: EventQueue::default(),
            network: VirtualNetwork::new(cluster, &setup.view.hosts),
            compute: ComputeModel::new(cluster, setup.seed, workers),
            gradients: GradientPool::new(problem, sources, workers, cluster.threads),
            attacks: Attacks::new(cluster),
            computed: vec![Computed::default(); workers],
            has_lost: ranks.iter().any(|state| !state.is_alive()),
            ranks,
            gates: CollectiveStarts::new(cluster, cluster.start_barrier && is_global),
            links: BTreeMap::new(),
            living_workers: view.workers.len(),
            views,
            faults: Vec::new(),
            faults_to_come: 0,
            messages: 0,
            in_flight: InFlightLoad::new(),
            effects: Vec::new(),
            invariants: None,
            setup,
            shared_setup,
            problem,
            cluster,
            observer,
        };
        driver.seat_controller(&start.changes);
        Ok(driver)
    }

    /// Runs until all workers have done their share and nothing is on its way any more.
    pub(crate) fn run(self) -> Result<Outcome, SimError> {
        Ok(self.run_counted()?.0)
    }

    /// As [`run`](Driver::run), with what the controller has exchanged.
    pub(crate) fn run_counted(mut self) -> Result<(Outcome, ControlLoad), SimError> {
        self.schedule_faults();
        let living = self.ranks.iter().enumerate().filter(|(_, state)| state.is_alive());
        for rank in living.map(|(rank, _)| rank).collect::<Vec<_>>() {
            self.ranks[rank].machine.start(self.now);
            self.carry_out(rank);
            self.settle(rank);
        }
        loop {
            if let Some(outcome) = self.attend_controller()? {
                self.check_end(&outcome)?;
                let load = self.control.load();
                return Ok((self.outcome(outcome), load));
            }
            self.schedule_attention();
            if self.is_quiet() && self.controller.is_draining() {
                self.is_controller_told = true;
                self.controller.quiet(self.now, self.observer);
                self.exchange_control();
            } else {
                self.step()?;
            }
            self.check_invariants()?;
        }
    }

    /// Whether nothing can happen any more but faults. Where ranks are probed, and messages were dropped for
    /// good, they are probed for ever: there it is quiet when nothing was sent or received for long.
    fn is_quiet(&self) -> bool {
        if self.sends_control() {
            let is_probed = self.controller.next_probe().is_some();
            let rests = is_probed && self.controller.rests_for(self.now) > LONGEST_REST;
            return rests && self.network.is_empty();
        }
        self.queue.len() <= self.faults_to_come
    }

    fn step(&mut self) -> Result<(), SimError> {
        if self.queue.len() <= self.faults_to_come && self.release_attacks() {
            return Ok(());
        }
        let Some((at, event)) = self.queue.pop() else { return Err(self.deadlock()) };
        self.now = at;
        match event {
            SimEvent::Bucket(rank) => self.bucket_ready(rank as usize),
            SimEvent::Wake(rank) => self.wake(rank as usize),
            SimEvent::Arrive(number) => self.arrive(number),
            SimEvent::Deliver(number) => self.deliver(number),
            SimEvent::Open(gate) => self.open_gate(gate),
            SimEvent::Fault(number) => return self.fault(number),
            SimEvent::Detect(rank) => self.detect(rank as usize),
            SimEvent::View(rank) => self.enter_view(rank as usize),
            SimEvent::Enter(rank) => self.enter(rank as usize),
            // It is attended to after every event.
            SimEvent::Attend => self.attends_at = None,
            SimEvent::Succession(rank) => self.attend_succession(rank as usize),
            SimEvent::Silent(rank) => self.silent(rank as usize),
            SimEvent::ControlArrive(number) => self.control_arrive(number),
            SimEvent::ControlDeliver(number) => self.control_deliver(number),
        }
        Ok(())
    }

    /// Does all that a rank can do now.
    pub(crate) fn settle(&mut self, rank: usize) {
        if !self.ranks[rank].is_alive() {
            return;
        }
        self.read_inbox(rank);
        self.flush_outbox(rank);
        if self.cluster.blocking_sends {
            // What could not be read while a send was blocked.
            self.read_inbox(rank);
        }
        self.ranks[rank].machine.settle();
        self.advance_worker(rank);
        self.collect_events(rank);
        self.exchange_control();
    }

    /// Looks at a rank again at this time.
    pub(crate) fn wake_at(&mut self, rank: usize, at: Time) {
        let wake = &mut self.ranks[rank].wake;
        if wake.is_none_or(|wake| at < wake) {
            *wake = Some(at);
            self.queue.schedule(at, SimEvent::Wake(rank as u32));
        }
    }

    fn wake(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        if state.wake == Some(self.now) {
            state.wake = None;
        }
        if state.is_alive() {
            self.settle(rank);
        }
    }

    /// Hands a record to the observer.
    pub(crate) fn note(&mut self, at: Time, rank: Rank, step: u64, event: RecordKind) {
        self.observer.record(Record { t: at.seconds(), rank: rank.0, step, event });
    }

    fn deadlock(&self) -> SimError {
        let stuck =
            self.ranks.iter().filter(|state| state.is_alive()).map(|state| state.machine.node());
        let stuck =
            stuck.map(|node| Stuck { rank: node.rank, step: node.step(), awaits: node.awaiting() });
        // A server that awaits nothing is not stuck.
        let workers = self.setup.seats();
        let is_stuck = |s: &Stuck| {
            let is_worker = s.rank.index() < workers;
            let is_finished = is_worker && self.ranks[s.rank.index()].machine.is_finished();
            !is_finished && (is_worker || !s.awaits.is_empty())
        };
        let stuck = stuck.filter(is_stuck);
        SimError::Deadlock { at: self.now, stuck: stuck.collect() }
    }

    /// What the run came to, with what only this driver knows.
    fn outcome(mut self, mut outcome: Outcome) -> Outcome {
        for (rank, state) in self.ranks.iter().enumerate() {
            let node = state.machine.node();
            // Those on the other side of a partition end by themselves.
            if state.is_alive() && self.follows(rank) && !node.is_drained() {
                let (rank, awaits) = (node.rank, awaited(&node.awaiting()));
                outcome
                    .warnings
                    .push(format!("{rank} is not drained at the end; it awaits {awaits}"));
            }
        }
        let has_left = |rank: usize| outcome.ranks[rank].left;
        let lost: Vec<usize> = (0..self.ranks.len())
            .filter(|rank| !self.ranks[*rank].is_alive() && !has_left(*rank))
            .collect();
        for rank in lost {
            let state = &self.ranks[rank];
            // A worker lost while computing has not got its vectors back.
            if state.running.as_ref().is_some_and(|running| running.next == 0) {
                drop(self.gradients.finish(rank));
            }
            // One that was lost with its report on the way has given its vectors away.
            if state.has_ended() {
                continue;
            }
            let node = state.machine.node();
            let (params, model) = (node.params().to_vec(), node.model());
            let report = state.machine.report().clone();
            outcome.ranks[rank] = RankReport { lost: true, params, model, ..report };
        }
        outcome.in_flight = self.in_flight.report();
        outcome
    }
}
