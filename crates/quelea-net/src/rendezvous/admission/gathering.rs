//! Waiting until all workers of a run that has not begun are there.

use std::net::SocketAddr;
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use quelea_control::Command;
use quelea_record::Observer;

use super::{Admission, Arrival, JoinedWorker, POLL_INTERVAL};
use crate::error::NetError;
use crate::protocol;

impl Admission {
    /// Waits for all workers.
    pub(crate) fn gather(
        &self,
        arrivals: &Receiver<Arrival>,
        address: SocketAddr,
        observer: &mut dyn Observer,
    ) -> Result<Vec<JoinedWorker>, NetError> {
        let mut joined: Vec<JoinedWorker> = Vec::new();
        self.fill(&mut joined, arrivals, address, observer).inspect_err(|error| {
            self.end();
            for worker in &joined {
                let _ = protocol::write(&worker.stream, &Command::Abort(error.to_string()));
            }
        })?;
        Ok(joined)
    }

    fn fill(
        &self,
        joined: &mut Vec<JoinedWorker>,
        arrivals: &Receiver<Arrival>,
        address: SocketAddr,
        observer: &mut dyn Observer,
    ) -> Result<(), NetError> {
        let begun = Instant::now();
        let deadline = begun + Duration::from_secs_f64(self.options.connect_seconds);
        let is_hosted = |(rank, by): &(&u32, &Option<_>)| **rank < self.workers && by.is_none();
        let hosted = self.taken().iter().filter(is_hosted).count();
        let expected = self.workers as usize - hosted - self.lost().len();
        while joined.len() < expected {
            let left = deadline.saturating_duration_since(Instant::now());
            match arrivals.recv_timeout(left.min(POLL_INTERVAL)) {
                Ok(Ok(worker)) => joined.push(worker),
                Ok(Err((rank, reason))) => return Err(NetError::Failed { rank, reason }),
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let there: Vec<u32> = joined.iter().map(|worker| worker.rank).collect();
                    let missing = self.missing(&there);
                    let seconds = begun.elapsed().as_secs_f64();
                    return Err(NetError::Missing { address, seconds, missing });
                }
            }
            joined.retain(|worker| {
                let stays = worker.stays();
                if !stays {
                    self.lose(worker.rank, "the connection was closed");
                }
                stays
            });
            observer.gathering(joined.len(), expected).map_err(NetError::Setup)?;
        }
        Ok(())
    }

    fn missing(&self, there: &[u32]) -> String {
        let taken = self.taken();
        let lost = self.lost().clone();
        let is_missing = |rank: &u32| !there.contains(rank) && !lost.contains(rank);
        let missing =
            (0..self.workers).filter(is_missing).filter_map(|rank| match taken.get(&rank) {
                None => Some(format!("worker {rank} to join")),
                Some(Some(peer)) => Some(format!("worker {rank} at {peer} to load its data")),
                Some(None) => None,
            });
        let missing = missing.collect::<Vec<_>>().join(", ");
        match &*self.last_refusal.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(refusal) => format!("{missing} (last it {refusal})"),
            None => missing,
        }
    }
}
