//! The real cluster: threads of this process, or processes on several machines.

use std::net::SocketAddr;
use std::sync::Arc;

use quelea_net::{Coordinator, Gradients, Hosted, NetError, NetOptions};

use crate::error::Error;
use crate::job;
use crate::outcome::RunOutcome;
use crate::run::Run;
use crate::spec::CheckedRun;

/// How long the processes of a run may take to find each other.
const CONNECT_SECONDS: f64 = 600.0;

fn options() -> NetOptions {
    NetOptions { connect_seconds: CONNECT_SECONDS, ..NetOptions::default() }
}

impl CheckedRun {
    fn gradients(&self) -> Gradients {
        Gradients::of(Arc::clone(&self.problem))
    }
}

impl Run {
    /// Runs every worker and server as a thread of this process.
    pub fn threads(&self) -> Result<RunOutcome, Error> {
        let checked = self.checked()?;
        let mut keeper = checked.keeper(self.evaluations);
        let gradients = checked.gradients();
        let options = NetOptions::default();
        let outcome = quelea_net::threads(&checked.spec, &gradients, &options, &mut keeper)?;
        Ok(keeper.finish(outcome))
    }

    /// Coordinates the run at `address` (`"0.0.0.0:29470"`), waits until all workers have
    /// [joined](Run::join), and runs it. This process holds the servers, and no worker.
    pub fn serve(&self, address: &str) -> Result<RunOutcome, Error> {
        self.bind(address)?.run()
    }

    /// Listens at `address` and does not wait yet: for those who must know the port first, as with
    /// `"127.0.0.1:0"`.
    pub fn bind(&self, address: &str) -> Result<ServedRun, Error> {
        let checked = self.checked()?;
        let coordinator = Coordinator::bind(address, options())?;
        Ok(ServedRun { checked, coordinator, evaluations: self.evaluations })
    }

    /// Takes part, as any worker that is missing, in the run that is coordinated at `address`; returns
    /// when it has ended. The coordinator must have the same run: where a setting differs, an error
    /// names it.
    pub fn join(&self, address: &str) -> Result<(), Error> {
        let checked = self.checked()?;
        let own = job::describe(&checked);
        let mut build = |job: &[u8]| match job::difference(&own, &String::from_utf8_lossy(job)) {
            Some(difference) => Err(difference),
            None => Ok((checked.spec.clone(), checked.gradients())),
        };
        quelea_net::join(address, None, &options(), &mut build).map_err(|error| match error {
            NetError::Job(difference) => Error::Conflict(difference),
            other => other.into(),
        })
    }
}

/// A run whose workers may join.
pub struct ServedRun {
    checked: CheckedRun,
    coordinator: Coordinator,
    evaluations: u64,
}

impl ServedRun {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.coordinator.address()
    }

    /// Waits until all workers have joined, and runs.
    pub fn run(self) -> Result<RunOutcome, Error> {
        let CheckedRun { spec, .. } = &self.checked;
        let mut keeper = self.checked.keeper(self.evaluations);
        let (gradients, here) = (self.checked.gradients(), Hosted::default());
        let job = job::describe(&self.checked).into_bytes();
        let outcome = self.coordinator.run(job, spec, &gradients, &here, &mut keeper)?;
        Ok(keeper.finish(outcome))
    }
}
