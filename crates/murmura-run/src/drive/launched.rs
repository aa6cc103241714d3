//! Under a launcher (`mpirun`, `srun`, `torchrun`, Kubernetes): every process is one worker.

use murmura_net::launcher::{self, Rendezvous};
use murmura_net::{Coordinator, Options};

use super::{Driven, Place, join};
use crate::conduct::Listener;
use crate::error::{RequestError, RunError};
use crate::plan::Plan;

/// How long the processes may take to find each other.
const WAIT_SECONDS: f64 = 60.0;

/// How this process was launched.
#[derive(Clone, Debug)]
pub struct Launched {
    found: launcher::Launched,
}

/// Whether this process is one of several that a launcher has started.
pub fn launched() -> Option<Launched> {
    let found = launcher::detect(|name| std::env::var(name).ok())?;
    (found.world > 1).then_some(Launched { found })
}

impl Launched {
    /// How many processes there are.
    pub fn world(&self) -> usize {
        self.found.world as usize
    }

    /// Whether this process coordinates the run, writes its files and reports.
    pub fn is_first(&self) -> bool {
        self.found.rank == 0
    }

    /// Refuses a plan for another number of workers than were launched.
    pub fn check(&self, plan: &Plan) -> Result<(), RequestError> {
        let (workers, world) = (plan.config.workers, self.world());
        if workers == world {
            return Ok(());
        }
        let problem = format!(
            "{} has started {world} processes, one per worker; \
             set `workers` = {world}, or leave it out, or run with --threads",
            self.found.launcher
        );
        Err(RequestError::field("workers", workers, problem))
    }

    /// Runs the plan as the first process.
    pub fn lead(&self, plan: &Plan, listener: &mut Listener<'_>) -> Driven {
        let options = Options { connect_seconds: WAIT_SECONDS, ..Options::default() };
        let coordinator = match &self.found.rendezvous {
            Rendezvous::Address(address) => {
                // The others may know this machine by a name that it does not know itself.
                let port = address.rsplit_once(':').map_or("0", |(_, port)| port);
                Coordinator::bind(&format!("0.0.0.0:{port}"), options)?
            }
            Rendezvous::LocalFile(path) => {
                let mut coordinator = Coordinator::bind("127.0.0.1:0", options)?;
                coordinator.publish(path)?;
                coordinator
            }
        };
        let driven = Place { coordinator }.run(plan, &[0], listener);
        if let Rendezvous::LocalFile(path) = &self.found.rendezvous {
            let _ = std::fs::remove_file(path);
        }
        driven
    }

    /// Takes part as one of the others.
    pub fn follow(&self, plan: Plan) -> Result<(), RunError> {
        join(&self.found.rendezvous.to_join(), Some(self.found.rank), WAIT_SECONDS, Some(plan))
    }
}
