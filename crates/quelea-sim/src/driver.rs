//! The loop: take the next event, tell the nodes, carry out what they ask for.

use std::collections::BTreeMap;
use std::sync::Arc;

use quelea_core::contract::Effect;
use quelea_core::message::Rank;
use quelea_core::payload::Pool;
use quelea_core::problems::{Computed, Problem};
use quelea_core::properties::{Properties, TopologyRequirement};
use quelea_core::run_spec::RunSpec;
use quelea_core::time::Time;
use quelea_core::view::View;
use quelea_record::{
    CheckpointSchedule, Observer, Outcome, RankReport, Record, RecordKind, ResumePoint,
};

use crate::attacks::{self, Attacks};
use crate::cluster::Cluster;
use crate::collective_start::CollectiveStarts;
use crate::compute::ComputeModel;
use crate::cuts::CutState;
use crate::gradient_pool::GradientPool;
use crate::in_flight::InFlightLoad;
use crate::membership::RankFault;
use crate::network::{VirtualNetwork, bits_per_second};
use crate::queue::{EventQueue, SimEvent};
use crate::rank_state::RankState;
use crate::traffic::Handoff;
use crate::{SimError, Stuck, awaited};

/// A run in progress.
pub(crate) struct Driver<'a> {
    pub(crate) setup: &'a RunSpec,
    pub(crate) cluster: &'a Cluster,
    pub(crate) observer: &'a mut dyn Observer,
    pub(crate) properties: Properties,
    pub(crate) timeline: bool,
    pub(crate) pool: Pool,
    pub(crate) schedule: CheckpointSchedule,
    pub(crate) cutting: CutState,
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
    /// Living workers that have not done their share.
    pub(crate) unfinished: usize,
    /// What is left of a budget of gradients in all.
    pub(crate) gradients_left: u64,
    pub(crate) steps_done: u64,
    /// When the last step was completed.
    pub(crate) clock: Time,
    pub(crate) messages: u64,
    pub(crate) in_flight: InFlightLoad,
    /// Memory for the effects of one event.
    pub(crate) effects: Vec<Effect>,
}

impl<'a> Driver<'a> {
    pub(crate) fn new(
        setup: &'a RunSpec,
        problem: &dyn Problem,
        cluster: &'a Cluster,
        start: &ResumePoint,
        observer: &'a mut dyn Observer,
    ) -> Result<Driver<'a>, SimError> {
        let (properties, workers, pool) = (setup.properties(), setup.workers(), Pool::new());
        let state = |rank| {
            let rank = Rank::from(rank);
            let node = start.node(setup, rank, pool.clone()).map_err(SimError::Resume)?;
            Ok(RankState::new(node, start.report(rank), start.now))
        };
        let ranks = (0..setup.ranks()).map(state).collect::<Result<_, SimError>>()?;
        let steps_done = start.steps(workers);
        let is_global =
            properties.synchronous && properties.topology == TopologyRequirement::Nothing;
        Ok(Driver {
            timeline: observer.wants_timeline(),
            pool,
            schedule: observer.checkpoint_schedule(),
            cutting: CutState::default(),
            handoff_send: Handoff::of_sending(cluster),
            handoff_receive: Handoff::of_receiving(cluster),
            reduce_bps: (cluster.reduce_gbs > 0.0)
                .then(|| bits_per_second(cluster.reduce_gbs * 8.0)),
            now: start.now,
            queue: EventQueue::default(),
            network: VirtualNetwork::new(cluster, &setup.view.hosts),
            compute: ComputeModel::new(cluster, setup.seed, workers),
            gradients: GradientPool::new(
                attacks::sources(problem, cluster, workers)?,
                cluster.threads,
            ),
            attacks: Attacks::new(cluster),
            computed: vec![Computed::default(); workers],
            ranks,
            gates: CollectiveStarts::new(cluster, cluster.start_barrier && is_global),
            links: BTreeMap::new(),
            views: vec![Arc::clone(&setup.view)],
            faults: Vec::new(),
            faults_to_come: 0,
            living_workers: workers,
            unfinished: workers,
            gradients_left: (workers as u64 * setup.steps).saturating_sub(steps_done),
            steps_done,
            clock: start.now,
            messages: 0,
            in_flight: InFlightLoad::new(),
            effects: Vec::new(),
            setup,
            cluster,
            observer,
            properties,
        })
    }

    /// Runs until all workers have done their share and nothing is on its way any more.
    pub(crate) fn run(mut self) -> Result<Outcome, SimError> {
        self.schedule_faults();
        for rank in 0..self.ranks.len() {
            self.ranks[rank].node.start(self.now);
            self.carry_out(rank);
            self.settle(rank);
        }
        while self.unfinished > 0 {
            self.step()?;
            self.attend_cuts()?;
        }
        self.drain()?;
        Ok(self.outcome())
    }

    /// Lets everything that is pending come to rest.
    pub(crate) fn drain(&mut self) -> Result<(), SimError> {
        for rank in 0..self.ranks.len() {
            if self.ranks[rank].is_alive() {
                self.ranks[rank].node.drain(self.now);
                self.carry_out(rank);
                self.settle(rank);
            }
        }
        while self.queue.len() > self.faults_to_come {
            self.step()?;
        }
        Ok(())
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
        }
        Ok(())
    }

    /// Does all that a rank can do now.
    pub(crate) fn settle(&mut self, rank: usize) {
        self.read_inbox(rank);
        self.flush_outbox(rank);
        if self.cluster.blocking_sends {
            // What could not be read while a send was blocked.
            self.read_inbox(rank);
        }
        self.cut_if_due(rank);
        self.advance_worker(rank);
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
            self.ranks.iter().filter(|state| state.is_alive() && !state.phase.is_finished()).map(
                |state| Stuck {
                    rank: state.node.rank,
                    step: state.node.step(),
                    awaits: state.node.awaiting(),
                },
            );
        // A server that awaits nothing is not stuck.
        let workers = self.setup.workers();
        let stuck = stuck.filter(|s| s.rank.index() < workers || !s.awaits.is_empty());
        SimError::Deadlock { at: self.now, stuck: stuck.collect() }
    }

    fn outcome(mut self) -> Outcome {
        let mut warnings = Vec::new();
        for state in &self.ranks {
            if state.is_alive() && !state.node.is_drained() {
                let (rank, awaits) = (state.node.rank, awaited(&state.node.awaiting()));
                warnings.push(format!("{rank} is not drained at the end; it awaits {awaits}"));
            }
        }
        for rank in 0..self.ranks.len() {
            // A worker lost while computing has not got its vectors back.
            let state = &mut self.ranks[rank];
            if state.phase.running().is_some_and(|running| running.next == 0) {
                drop(self.gradients.finish(rank));
            }
        }
        Outcome {
            clock_seconds: self.clock.seconds(),
            warnings,
            in_flight: self.in_flight.report(),
            ranks: self.ranks.into_iter().map(report).collect(),
        }
    }
}

fn report(state: RankState) -> RankReport {
    RankReport { params: state.node.params().to_vec(), model: state.node.model(), ..state.report }
}
