//! What a run in progress is put together from.

use std::sync::Arc;

use quelea_control::{
    ControlLimits, Controller, ControllerConfig, LossPolicy, RankMachine, RankMachineConfig,
};
use quelea_core::message::Rank;
use quelea_core::payload::Pool;
use quelea_core::problems::Problem;
use quelea_core::run_spec::RunSpec;
use quelea_core::view::View;
use quelea_record::{BUFFERS, Observer, RankCheckpoint, ResumePoint};

use crate::SimError;
use crate::cluster::{Cluster, ControlPath};
use crate::network::bits_per_second;
use crate::rank_state::RankState;

/// What all ranks of a run have in common.
pub(crate) fn machine_config<'a>(
    setup: &'a Arc<RunSpec>,
    start: &'a ResumePoint,
    view: &'a Arc<View>,
    observer: &dyn Observer,
) -> RankMachineConfig<'a> {
    RankMachineConfig {
        setup,
        start,
        view,
        schedule: observer.checkpoint_schedule(),
        // Nobody is watched by the clock: the driver sees everything.
        limits: ControlLimits::NONE,
        timeline: observer.wants_timeline(),
        is_external: false,
        asks_ahead: false,
        waits_for_disk: false,
        counts_links: false,
        poison: setup.poison,
    }
}

/// Bits per second that arithmetic goes over; nothing if it costs nothing.
pub(super) fn reduce_bps(cluster: &Cluster) -> Option<u64> {
    (cluster.reduce_gbs > 0.0).then(|| bits_per_second(cluster.reduce_gbs * 8.0))
}

/// Every rank of a run, as it starts.
pub(super) fn rank_states(
    machine: RankMachineConfig<'_>,
    pool: &Pool,
) -> Result<Vec<RankState>, SimError> {
    let now = machine.start.now;
    let state = |rank| {
        let is_alive = machine.view.is_alive(Rank::from(rank));
        let machine = RankMachine::new(machine, Rank::from(rank), pool.clone(), now);
        let mut state = RankState::new(machine.map_err(SimError::Resume)?, now);
        state.begin();
        if !is_alive {
            state.lose(now);
        }
        Ok(state)
    };
    (0..machine.setup.ranks()).map(state).collect()
}

/// What the controller of the same run is made of.
pub(crate) fn controller_config(machine: RankMachineConfig<'_>) -> ControllerConfig<'_> {
    let RankMachineConfig { setup, start, schedule, limits, .. } = machine;
    ControllerConfig {
        setup,
        start,
        schedule,
        limits,
        on_loss: LossPolicy::Continue { min_workers: 1 },
        watches: false,
        waits_for_disk: false,
        // Nobody's word counts more than another's, wherever the controller lives.
        own_ranks: &[],
        is_external: false,
    }
}

/// The first controller of the same run.
pub(super) fn controller(machine: RankMachineConfig<'_>, control: ControlPath) -> Controller {
    let mut controller = Controller::new(controller_config(machine), machine.start.now);
    if control != ControlPath::Free {
        controller.use_probes();
    }
    controller
}

/// Gives the problem back what it keeps of each worker.
pub(super) fn restore_workers(
    problem: &dyn Problem,
    parts: &[RankCheckpoint],
    workers: usize,
) -> Result<(), SimError> {
    for (rank, part) in parts.iter().take(workers).enumerate() {
        if let Some(state) = part.state.vectors.get(BUFFERS) {
            problem.restore_worker(rank, state).map_err(|problem| {
                SimError::Resume(format!("`{BUFFERS}` of worker {rank}: {problem}"))
            })?;
        }
    }
    Ok(())
}
