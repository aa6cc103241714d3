//! Spares: workers that wait at the coordinator until another is lost, and take its place.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::protocol::{self, SetupMessage};
use crate::rendezvous::admission::{Admission, POLL_INTERVAL};
use crate::trust::ControlStream;

/// How often a spare that waits hears that it may still be needed.
const SIGN_INTERVAL: Duration = Duration::from_secs(1);
/// How long a spare may hear nothing before the coordinator counts as gone.
pub(crate) const SILENCE_SECONDS: f64 = 30.0;

/// Which seat is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeatWish {
    /// Any that nobody has.
    Any,
    /// That of this rank.
    Rank(u32),
    /// The next one that is lost while the run lasts.
    Lost,
}

impl SeatWish {
    /// That of a rank, or any.
    pub(crate) fn of(rank: Option<u32>) -> SeatWish {
        rank.map_or(SeatWish::Any, SeatWish::Rank)
    }

    /// What asks the coordinator of the run `key` for it.
    pub(crate) fn request(self, key: &str) -> SetupMessage {
        let key = key.to_string();
        match self {
            SeatWish::Any => SetupMessage::Join { rank: None, key },
            SeatWish::Rank(rank) => SetupMessage::Join { rank: Some(rank), key },
            SeatWish::Lost => SetupMessage::StandBy { key },
        }
    }
}

impl Admission {
    /// Holds a spare until a worker is lost; its rank, or why the spare need not wait longer and whether
    /// that is because the run is over.
    pub(super) fn stand_by(
        &self,
        stream: &ControlStream,
        peer: SocketAddr,
    ) -> Result<u32, (String, bool)> {
        let mut told: Option<Instant> = None;
        loop {
            if self.has_begun.load(Ordering::Acquire) {
                if let Some(why) = self.join_refusal {
                    let reason = format!("nobody can take the place of a lost worker: {why}");
                    return Err((reason, false));
                }
                if let Ok(rank) = self.claim(None, peer) {
                    return Ok(rank);
                }
            }
            if self.has_ended.load(Ordering::Acquire) {
                return Err(("the run has ended".into(), true));
            }
            if told.is_none_or(|told| told.elapsed() >= SIGN_INTERVAL) {
                let gone = |error: protocol::PacketError| (error.to_string(), true);
                protocol::write(stream, &SetupMessage::Alive).map_err(gone)?;
                told = Some(Instant::now());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Nobody else is needed: spares that wait are told so.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }
}
