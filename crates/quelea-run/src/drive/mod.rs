//! The ways to run a plan: the virtual cluster, threads, processes, machines that join.
//!
//! Each is what [`conduct`](crate::conduct::conduct) lets drive.

mod launched;
mod processes;
mod slowed;

use std::sync::Arc;

use quelea_core::message::Rank;
use quelea_core::node::RunSpec;
use quelea_core::problems::Problem;
use quelea_core::time::Time;
use quelea_net::{Coordinator, Hosted, NetOptions};
use quelea_record::{CheckpointSchedule, Models, Observer, Outcome, Part, Record, Request};

use crate::error::RunError;
use crate::files::summary::Clock;
use crate::listen::Listener;
use crate::plan::Plan;

pub use launched::{Launched, launched};
pub use processes::{end_with_parent, measure_processes, processes};
pub use quelea_net::measure;
pub use slowed::Slowed;

/// What a run's times are measured by, and what the run came to.
pub type Driven = Result<(Clock, Outcome), RunError>;

/// Runs the plan in the virtual cluster.
pub fn simulate(plan: &Plan, listener: &mut Listener<'_>) -> Driven {
    listener.on_virtual_clock();
    let (setup, problem) = (&plan.setup, &*plan.problem);
    let outcome = quelea_sim::resume(setup, problem, &plan.cluster, &plan.start, listener)?;
    Ok((Clock::Virtual, outcome))
}

/// Runs every rank as a thread of this process.
pub fn threads(plan: &Plan, listener: &mut Listener<'_>) -> Driven {
    let problem = Slowed::of(plan);
    let (options, start) = (NetOptions::default(), Arc::clone(&plan.start));
    let outcome = quelea_net::resume(&plan.setup, &problem, &options, start, listener)?;
    Ok((Clock::Real, outcome))
}

/// A place where workers of other processes and machines join.
pub struct OpenRendezvous {
    coordinator: Coordinator,
}

impl OpenRendezvous {
    /// Listens on `address`; joiners may take `wait_seconds` to come.
    pub fn open(address: &str, wait_seconds: f64) -> Result<OpenRendezvous, RunError> {
        let options = NetOptions { connect_seconds: wait_seconds, ..NetOptions::default() };
        Ok(OpenRendezvous { coordinator: Coordinator::bind(address, options)? })
    }

    /// Where it listens.
    pub fn address(&self) -> std::net::SocketAddr {
        self.coordinator.address()
    }

    /// Runs the plan with those who join; `here` are the workers of this process.
    pub fn run(
        self,
        plan: &Plan,
        here: &[u32],
        listener: &mut Listener<'_>,
        gathering: Gathering<'_>,
    ) -> Driven {
        let hosted = Hosted { workers: here.to_vec() };
        let problem = Slowed::of(plan);
        let mut host = Host { listener, gathering };
        let coordinator = self.coordinator.going_on_from(Arc::clone(&plan.start));
        let outcome = coordinator.run(plan.job(), &plan.setup, &problem, &hosted, &mut host)?;
        Ok((Clock::Real, outcome))
    }
}

impl OpenRendezvous {
    /// Has those who join time the links between them and, where `steps` are wanted, the
    /// gradients of the plan, whose algorithm must have no servers. When all are there, `begun`
    /// hears how many measurements there will be.
    pub fn measure(
        self,
        plan: &Plan,
        steps: bool,
        gathering: Gathering<'_>,
        begun: &mut (dyn FnMut(u64) + Send),
    ) -> Result<measure::Measured, RunError> {
        let mut host = Gatherer { gathering, begun };
        Ok(self.coordinator.measure(plan.job(), plan.setup.ranks(), steps, &mut host)?)
    }
}

/// Where there is nothing to hear but who joins and when it begins.
struct Gatherer<'a> {
    gathering: Gathering<'a>,
    begun: &'a mut (dyn FnMut(u64) + Send),
}

impl Observer for Gatherer<'_> {
    fn record(&mut self, _record: Record) {}

    fn gathering(&mut self, there: usize, expected: usize) -> Result<(), String> {
        (self.gathering)(there, expected)
    }

    fn progress(&mut self, _done: u64, total: u64, _now: Time) {
        (self.begun)(total);
    }
}

/// Hears, while workers are awaited, how many of how many have joined; a reason ends the waiting.
pub type Gathering<'a> = &'a mut (dyn FnMut(usize, usize) -> Result<(), String> + Send);

/// A listener that is told who joins.
struct Host<'a, 'b> {
    listener: &'a mut Listener<'b>,
    gathering: Gathering<'a>,
}

impl Observer for Host<'_, '_> {
    fn record(&mut self, record: Record) {
        self.listener.record(record);
    }

    fn wants_timeline(&self) -> bool {
        self.listener.wants_timeline()
    }

    fn gathering(&mut self, there: usize, expected: usize) -> Result<(), String> {
        self.listener.gathering(there, expected)?;
        (self.gathering)(there, expected)
    }

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        self.listener.checkpoint_schedule()
    }

    fn evaluate(&mut self, now: Time, step: u64, models: Models) {
        self.listener.evaluate(now, step, models);
    }

    fn checkpoint(&mut self, now: Time, step: u64, rank: Rank, part: Part) {
        self.listener.checkpoint(now, step, rank, part);
    }

    fn durable_step(&mut self) -> u64 {
        self.listener.durable_step()
    }

    fn request(&mut self) -> Request {
        self.listener.request()
    }
}

/// Takes part in the run that is coordinated at `address`, as `rank` or as any. A plan that was
/// made already is used if it is the coordinator's too.
pub fn join(
    address: &str,
    rank: Option<u32>,
    wait_seconds: f64,
    mut made: Option<Plan>,
) -> Result<(), RunError> {
    let options = NetOptions { connect_seconds: wait_seconds, ..NetOptions::default() };
    let mut build = |job: &[u8]| -> Result<(RunSpec, Box<dyn Problem>), String> {
        let plan = match made.take() {
            Some(plan) if plan.job() == job => plan,
            _ => Plan::from_job(job).map_err(|error| error.to_string())?,
        };
        let problem: Box<dyn Problem> = Box::new(Slowed::of(&plan));
        Ok((plan.setup, problem))
    };
    Ok(quelea_net::join(address, rank, &options, &mut build)?)
}
