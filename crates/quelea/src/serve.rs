//! The real cluster: threads of this process, or processes on several machines.

use std::net::SocketAddr;
use std::sync::Arc;

use quelea_net::{
    Coordinator, Gradients, Hosted, JobError, JoinToken, NetError, NetOptions, Security,
};

use crate::error::Error;
use crate::job;
use crate::outcome::RunOutcome;
use crate::run::Run;
use crate::spec::CheckedRun;

/// How long the processes of a run may take to find each other.
const CONNECT_SECONDS: f64 = 600.0;

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

    /// Who may take part in [`serve`](Run::serve) and [`join`](Run::join), and whether connections are
    /// encrypted. By default they are plain within this machine; beyond it they are encrypted, for those
    /// who have a [token](ServedRun::token).
    #[must_use]
    pub fn security(mut self, security: Security) -> Run {
        self.security = security;
        self
    }

    fn net_options(&self) -> NetOptions {
        let security = self.security.clone();
        NetOptions { connect_seconds: CONNECT_SECONDS, security, ..NetOptions::default() }
    }

    /// Coordinates the run at `address` (`"127.0.0.1:29470"`), waits until all workers have
    /// [joined](Run::join), and runs it. This process holds the servers, and no worker. Where workers
    /// would need a token, use [`bind`](Run::bind), which has it, or give a
    /// [secret](Run::security).
    pub fn serve(&self, address: &str) -> Result<RunOutcome, Error> {
        let served = self.bind(address)?;
        if self.security == Security::Automatic && served.token("").is_some() {
            return Err(Error::Conflict(format!(
                "workers need a token to join at {address}: pass on `bind(..)?.token(..)`, or set \
                 `security(..)` to a secret that all processes know"
            )));
        }
        served.run()
    }

    /// Listens at `address` and does not wait yet: for those who must know the port or the token first.
    pub fn bind(&self, address: &str) -> Result<ServedRun, Error> {
        let checked = self.checked()?;
        let coordinator = Coordinator::bind(address, self.net_options())?;
        Ok(ServedRun { checked, coordinator, evaluations: self.evaluations })
    }

    /// Takes part, as any worker that is missing, in the run that is coordinated at `place`, an address
    /// or a [token](ServedRun::token); returns when it has ended. The coordinator must have the same
    /// run: where a setting differs, an error names it.
    pub fn join(&self, place: &str) -> Result<(), Error> {
        let checked = self.checked()?;
        let own = job::describe(&checked);
        let mut build = |job: &[u8]| match job::difference(&own, &String::from_utf8_lossy(job)) {
            Some(difference) => Err(JobError::from(difference)),
            None => Ok((checked.spec.clone(), checked.gradients())),
        };
        let options = self.net_options();
        quelea_net::join(place, None, &options, &mut build).map_err(|error| match error {
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

    /// What lets a worker join that reaches this machine as `host`; nothing where connections are plain.
    /// Whoever has its [text](JoinToken::reveal) can take part.
    pub fn token(&self, host: &str) -> Option<JoinToken> {
        self.coordinator.token(host)
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
