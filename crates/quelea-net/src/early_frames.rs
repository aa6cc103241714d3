//! How many frames of steps to come a peer may have here.
//!
//! Vectors are budgeted where their memory is given out; a frame without any takes memory as well, for as long
//! as an algorithm keeps it until its step. Peers of synchronous algorithms are a step or two ahead, and send
//! a number of frames for each that follows from the run.

use std::collections::BTreeMap;

use quelea_core::message::Rank;

/// Frames of steps to come that are allowed however small the run is.
const LEAST: usize = 1 << 16;
/// Steps whose frames a peer may have here, with a frame for each bucket and each rank.
const STEPS: usize = 8;

/// The frames of all peers of one rank.
#[derive(Debug)]
pub(crate) struct EarlyFrames {
    peers: Vec<PeerFrames>,
    /// So many frames of steps to come one peer may have.
    most: usize,
}

/// The frames of one peer.
#[derive(Clone, Debug, Default)]
struct PeerFrames {
    /// The latest step of any of them.
    latest: u64,
    /// How many have come for each step that is to come.
    ahead: BTreeMap<u64, usize>,
    /// All of those.
    count: usize,
}

impl EarlyFrames {
    /// For a run with so many ranks, whose messages carry bucket numbers below `buckets`.
    pub(crate) fn new(ranks: usize, buckets: usize) -> EarlyFrames {
        let most = LEAST + STEPS * ranks.saturating_mul(buckets);
        EarlyFrames { peers: vec![PeerFrames::default(); ranks], most }
    }

    /// A frame of `step` has come from `from`, at a rank that is at step `own`. An error: there are too many
    /// that nobody can have used up.
    pub(crate) fn take(&mut self, from: Rank, step: u64, own: u64) -> Result<(), String> {
        let most = self.most;
        let Some(peer) = self.peers.get_mut(from.index()) else { return Ok(()) };
        peer.latest = peer.latest.max(step);
        if step <= own {
            return Ok(());
        }
        *peer.ahead.entry(step).or_default() += 1;
        peer.count += 1;
        if peer.count <= most {
            return Ok(());
        }
        peer.forget_until(own);
        if peer.count <= most {
            return Ok(());
        }
        let count = peer.count;
        Err(format!("{count} frames of steps after {own} are here; one sender may have {most}"))
    }

    /// The latest step of a frame of any peer but `from`: servers are as far as their workers.
    pub(crate) fn latest_of_others(&self, from: Rank) -> u64 {
        let others = self.peers.iter().enumerate().filter(|(peer, _)| *peer != from.index());
        others.map(|(_, frames)| frames.latest).max().unwrap_or(0)
    }

    /// Another worker has taken the place of `peer`.
    pub(crate) fn reset(&mut self, peer: Rank) {
        if let Some(frames) = self.peers.get_mut(peer.index()) {
            *frames = PeerFrames::default();
        }
    }
}

impl PeerFrames {
    /// Frames of steps until `own` are used up.
    fn forget_until(&mut self, own: u64) {
        self.ahead = self.ahead.split_off(&own.saturating_add(1));
        self.count = self.ahead.values().sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_keeps_a_step_ahead_never_reaches_the_limit() {
        let mut frames = EarlyFrames::new(4, 10);
        for own in 0..100_000 {
            for _ in 0..20 {
                frames.take(Rank(1), own + 1, own).expect("used up one step later");
            }
        }
    }

    #[test]
    fn a_flood_of_frames_for_later_steps_is_refused_at_the_limit_and_for_its_sender_only() {
        let mut frames = EarlyFrames::new(4, 10);
        let most = LEAST + STEPS * 40;
        let refused = (0..).find_map(|number: u64| {
            let taken = frames.take(Rank(1), 7 + number % 1000, 5);
            taken.err().map(|error| (number as usize, error))
        });
        let (number, error) = refused.expect("there is a limit");
        assert_eq!(number, most, "one more than allowed");
        assert!(error.ends_with(&format!("one sender may have {most}")), "{error}");
        frames.take(Rank(2), 9, 5).expect("another sender");
        frames.take(Rank(1), 5, 5).expect("a frame of now");
        assert_eq!((frames.latest_of_others(Rank(1)), frames.latest_of_others(Rank(2))), (9, 1006));
        frames.reset(Rank(1));
        frames.take(Rank(1), 9, 5).expect("a new worker");
    }
}
