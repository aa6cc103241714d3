//! The ways to run a plan: the virtual cluster, threads, processes, machines that join.
//!
//! Each is what [`conduct`](crate::conduct::conduct) lets drive.

mod launched;
mod processes;
mod slowed;

use murmura_core::node::Setup;
use murmura_core::problems::Problem;
use murmura_core::time::Time;
use murmura_net::{Coordinator, Hosted, Options};
use murmura_record::{Outcome, Record};

use crate::conduct::Listener;
use crate::error::RunError;
use crate::files::summary::Clock;
use crate::files::tensors::Models;
use crate::plan::Plan;

pub use launched::{Launched, launched};
pub use processes::{end_with_parent, processes};
pub use slowed::Slowed;

/// What a run's times are measured by, and what the run came to.
pub type Driven = Result<(Clock, Outcome), RunError>;

/// Runs the plan in the virtual cluster.
pub fn simulate(plan: &Plan, listener: &mut Listener<'_>) -> Driven {
    let outcome = murmura_sim::simulate(&plan.setup, &*plan.problem, &plan.cluster, listener)?;
    Ok((Clock::Virtual, outcome))
}

/// Runs every rank as a thread of this process.
pub fn threads(plan: &Plan, listener: &mut Listener<'_>) -> Driven {
    let problem = Slowed::of(plan);
    let outcome = murmura_net::threads(&plan.setup, &problem, &Options::default(), listener)?;
    Ok((Clock::Real, outcome))
}

/// A place where workers of other processes and machines join.
pub struct Place {
    coordinator: Coordinator,
}

impl Place {
    /// Listens on `address`; joiners may take `wait_seconds` to come.
    pub fn open(address: &str, wait_seconds: f64) -> Result<Place, RunError> {
        let options = Options { connect_seconds: wait_seconds, ..Options::default() };
        Ok(Place { coordinator: Coordinator::bind(address, options)? })
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
        let outcome =
            self.coordinator.run(plan.job(), &plan.setup, &problem, &hosted, &mut host)?;
        Ok((Clock::Real, outcome))
    }
}

/// Hears, while workers are awaited, how many of how many have joined; a reason ends the waiting.
pub type Gathering<'a> = &'a mut (dyn FnMut(usize, usize) -> Result<(), String> + Send);

/// A listener that is told who joins.
struct Host<'a, 'b> {
    listener: &'a mut Listener<'b>,
    gathering: Gathering<'a>,
}

impl murmura_net::Observer for Host<'_, '_> {
    fn record(&mut self, record: Record) {
        self.listener.record(record);
    }

    fn wants_timeline(&self) -> bool {
        self.listener.wants_timeline()
    }

    fn gathering(&mut self, there: usize, expected: usize) -> Result<(), String> {
        (self.gathering)(there, expected)
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
    let options = Options { connect_seconds: wait_seconds, ..Options::default() };
    let mut build = |job: &[u8]| -> Result<(Setup, Box<dyn Problem>), String> {
        let plan = match made.take() {
            Some(plan) if plan.job() == job => plan,
            _ => Plan::from_job(job).map_err(|error| error.to_string())?,
        };
        let problem: Box<dyn Problem> = Box::new(Slowed::of(&plan));
        Ok((plan.setup, problem))
    };
    Ok(murmura_net::join(address, rank, &options, &mut build)?)
}

impl murmura_sim::Observer for Listener<'_> {
    fn record(&mut self, record: Record) {
        Listener::record(self, record);
    }

    fn wants_timeline(&self) -> bool {
        Listener::wants_timeline(self)
    }

    fn evaluate_every(&self) -> Option<u64> {
        Listener::evaluate_every(self)
    }

    fn snapshot(&mut self, now: Time, step: u64, models: murmura_sim::Models) {
        if !self.is_due(step) {
            return;
        }
        let models = Models {
            workers: models.workers.iter().map(|(_, model)| model.as_slice()).collect(),
            servers: models.servers.iter().map(|(_, model)| model.as_slice()).collect(),
        };
        self.evaluate(now, step, &models);
    }
}

impl murmura_net::Observer for Listener<'_> {
    fn record(&mut self, record: Record) {
        Listener::record(self, record);
    }

    fn wants_timeline(&self) -> bool {
        Listener::wants_timeline(self)
    }
}
