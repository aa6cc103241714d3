//! The thread that shows that this process is alive. It waits for nothing but the time: neither for
//! gradients, wherever they are computed, nor for what a rank's thread has to mix.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use quelea_control::RankEvent;

use crate::compute::InlineActivity;
use crate::controller::Incoming;
use crate::error::NetError;

/// A rank of this process, as the heartbeat sees it.
#[derive(Debug)]
pub(crate) struct WatchedRank {
    pub(crate) rank: u32,
    pub(crate) activity: Arc<InlineActivity>,
    /// The gradient that its own thread computed at the last heartbeat.
    last: Option<u64>,
}

impl WatchedRank {
    pub(crate) fn new(rank: u32, activity: Arc<InlineActivity>) -> WatchedRank {
        WatchedRank { rank, activity, last: None }
    }

    /// Whether its own thread has been computing the same gradient since the last heartbeat.
    fn is_computing(&mut self) -> bool {
        let current = self.activity.current();
        let last = std::mem::replace(&mut self.last, current);
        current.is_some() && current == last
    }
}

/// Where heartbeats go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heartbeats {
    /// To a coordinator in another process: every one is sent.
    ToCoordinator,
    /// To the controller of this process, which is alive if this thread is: only the news that a rank's
    /// own thread computes.
    WithinProcess,
}

/// The running thread. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct HeartbeatThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HeartbeatThread {
    /// Starts to say every `period` that `ranks` are alive.
    pub(crate) fn start(
        mut ranks: Vec<WatchedRank>,
        heartbeats: Heartbeats,
        period: Duration,
        controller: Sender<Incoming>,
    ) -> Result<HeartbeatThread, NetError> {
        let (stop, stopped) = channel();
        let beat = move || {
            while !is_over(&stopped, period) {
                for rank in &mut ranks {
                    let computing = rank.is_computing();
                    if !computing && heartbeats == Heartbeats::WithinProcess {
                        continue;
                    }
                    let alive = RankEvent::Alive { rank: rank.rank, computing };
                    if controller.send(Incoming::Event(alive)).is_err() {
                        return;
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("heartbeat".to_string()).spawn(beat);
        let thread =
            thread.map_err(|error| NetError::Setup(format!("cannot start a thread: {error}")))?;
        Ok(HeartbeatThread { stop: Some(stop), thread: Some(thread) })
    }
}

/// Waits for a period. `true`: no more heartbeats are wanted.
fn is_over(stopped: &Receiver<()>, period: Duration) -> bool {
    stopped.recv_timeout(period) != Err(RecvTimeoutError::Timeout)
}

impl Drop for HeartbeatThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It only sends and cannot panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_shows_that_it_is_alive_while_its_ranks_are_busy() {
        let (sender, receiver) = channel();
        let activity = Arc::default();
        let ranks = vec![WatchedRank::new(3, Arc::clone(&activity))];
        let period = Duration::from_millis(1);
        let thread =
            HeartbeatThread::start(ranks, Heartbeats::ToCoordinator, period, sender.clone());
        let heard = |_| match receiver.recv().expect("it is alive") {
            Incoming::Event(RankEvent::Alive { rank: 3, computing }) => computing,
            other => panic!("{other:?}"),
        };
        assert_eq!((0..5).map(heard).collect::<Vec<_>>(), [false; 5], "it computes nothing");
        drop(thread.expect("it starts"));
    }

    #[test]
    fn only_a_gradient_that_outlasts_a_heartbeat_is_told() {
        let activity = Arc::<InlineActivity>::default();
        let mut rank = WatchedRank::new(0, Arc::clone(&activity));
        assert!(!rank.is_computing(), "it computes nothing");
        activity.toggle();
        assert!(!rank.is_computing(), "it has just begun");
        assert!(rank.is_computing(), "the same gradient");
        activity.toggle();
        activity.toggle();
        assert!(!rank.is_computing(), "the next one has just begun");
    }
}
