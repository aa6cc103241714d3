//! Admission of workers: each receives a rank and the job, and loads its data.

mod gathering;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quelea_core::message::Rank;
use quelea_core::time::Time;

use crate::clock::RunClock;
use crate::controller::Incoming;
use crate::options::NetOptions;
use crate::protocol::{self, PacketError, PacketStream, SMALL_BYTES, SetupMessage, Wait};
use crate::rendezvous::addresses::ListeningPlace;
use crate::rendezvous::stand_by::SeatWish;
use crate::transport::TransportKind;
use crate::transport::tcp::prepare;
use crate::trust::{Access, ControlStream, Credentials, RankSeat};
use quelea_control::{REASON_CHARS, RankEvent, WARNING_CHARS, shown};

/// How often the observer is asked whether to keep waiting.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a worker that has been given a seat may say nothing.
const SILENCE_SECONDS: f64 = 15.0;

/// How long a worker waits for a seat that somebody has who may be gone: as long as it takes until the
/// silence of a process is noticed, unless its signs of life were irregular.
const SEAT_SECONDS: f64 = 10.0;

/// A worker that has joined, loaded its data, and listens.
#[derive(Debug)]
pub(crate) struct JoinedWorker {
    pub(crate) rank: u32,
    pub(crate) stream: ControlStream,
    pub(crate) address: SocketAddr,
}

impl JoinedWorker {
    /// Whether it is still connected.
    fn stays(&self) -> bool {
        let socket = self.stream.socket();
        let _ = socket.set_nonblocking(true);
        let seen = socket.peek(&mut [0]);
        let _ = socket.set_nonblocking(false);
        match seen {
            Ok(count) => count > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// Why a seat is not given.
pub(super) struct RefusedClaim {
    reason: String,
    /// Somebody has it, who may be gone without anybody knowing.
    is_taken: bool,
}

/// Admits workers to a run.
pub(crate) struct Admission {
    pub(crate) run: u64,
    pub(crate) open: bool,
    pub(crate) timeline: bool,
    pub(crate) job: Vec<u8>,
    pub(crate) key: String,
    pub(crate) clock: RunClock,
    pub(crate) workers: u32,
    pub(crate) options: NetOptions,
    /// What a worker must know before it is heard; nothing where connections are plain.
    pub(crate) access: Option<Access>,
    /// How often each seat was given.
    pub(crate) given: Mutex<BTreeMap<u32, u32>>,
    /// Ranks that were lost: nobody takes them before the run has begun.
    pub(crate) lost: Mutex<BTreeSet<u32>>,
    /// The run has begun.
    pub(crate) has_begun: AtomicBool,
    /// It has ended, or will never begin.
    pub(crate) has_ended: AtomicBool,
    /// Why nobody can join once it has, if nobody can.
    pub(crate) join_refusal: Option<&'static str>,
    /// By whom each rank is taken; `None`: by the coordinator's own process.
    pub(crate) taken: Mutex<BTreeMap<u32, Option<SocketAddr>>>,
    pub(crate) warnings: Mutex<Sender<Incoming>>,
    pub(crate) last_refusal: Mutex<Option<String>>,
}

/// A worker that joined, or why its rank could not.
pub(crate) type Arrival = Result<JoinedWorker, (u32, String)>;

impl Admission {
    fn taken(&self) -> MutexGuard<'_, BTreeMap<u32, Option<SocketAddr>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run has begun: from now on workers may join in the place of those who are lost.
    pub(crate) fn begin(&self) {
        self.has_begun.store(true, Ordering::Release);
    }

    /// Nobody takes part as this rank.
    pub(crate) fn vacate(&self, rank: u32) {
        self.taken().remove(&rank);
        self.lost().insert(rank);
    }

    /// The ranks as which nobody takes part.
    pub(crate) fn vacant(&self) -> BTreeSet<Rank> {
        self.lost().iter().map(|rank| Rank(*rank)).collect()
    }

    /// Somebody takes part as this rank again.
    pub(crate) fn fill_rank(&self, rank: u32) {
        self.lost().remove(&rank);
    }

    fn warn(&self, text: String) {
        *self.last_refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.clone());
        let warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = warnings.send(Incoming::Event(RankEvent::Warning(text)));
    }

    /// Admits one worker, and waits until it is ready to connect to its peers.
    pub(crate) fn hear(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        arrived: &Mutex<Sender<Arrival>>,
    ) {
        let stream = match self.authenticate(stream) {
            Ok(stream) => stream,
            // A stranger gets no answer.
            Err(reason) => {
                return self.warn(format!("refused {peer}: {}", shown(&reason, WARNING_CHARS)));
            }
        };
        let wait = Wait::new(self.options.handshake_seconds, "a request to join");
        match protocol::read(&stream, SMALL_BYTES, Some(wait)) {
            Ok(word) => self.hear_word(stream, word, peer, arrived),
            Err(error) => self.turn_away(&stream, peer, error.to_string(), false),
        }
    }

    /// Admits one worker whose first words these are.
    pub(crate) fn hear_word(
        &self,
        stream: ControlStream,
        word: SetupMessage,
        peer: SocketAddr,
        arrived: &Mutex<Sender<Arrival>>,
    ) {
        let send = |arrival| {
            let arrived = arrived.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = arrived.send(arrival);
        };
        let rank = match self.admit(&stream, word, peer) {
            Ok(rank) => rank,
            Err((reason, elsewhere)) => return self.turn_away(&stream, peer, reason, elsewhere),
        };
        match self.prepare(&stream, rank) {
            Ok(Ok(place)) => {
                let address = place.seen_at(peer.ip());
                send(Ok(JoinedWorker { rank, stream, address }));
            }
            Ok(Err(reason)) => {
                let reason = shown(&reason, REASON_CHARS);
                send(Err((rank, format!("{reason} (at {peer})"))));
            }
            Err(reason) => self.lose(rank, &reason),
        }
    }

    fn turn_away(&self, stream: &ControlStream, peer: SocketAddr, reason: String, elsewhere: bool) {
        self.warn(format!("refused {peer}: {}", shown(&reason, WARNING_CHARS)));
        let _ = protocol::write(stream, &SetupMessage::Refused { reason, elsewhere });
    }

    /// A worker has left before the run: another may take its place.
    fn lose(&self, rank: u32, reason: &str) {
        if let Some(Some(peer)) = self.taken().remove(&rank) {
            let reason = shown(reason, WARNING_CHARS);
            self.warn(format!("lost {peer}, which was to be rank {rank}: {reason}"));
        }
    }

    /// The connection of somebody who knows the run's secret, if it has one.
    fn authenticate(&self, stream: TcpStream) -> Result<ControlStream, String> {
        prepare(&stream, self.options.handshake_seconds).map_err(|error| error.to_string())?;
        let wait = Wait::new(self.options.handshake_seconds, "a proof that it may join");
        ControlStream::admit(stream, self.access.as_ref(), wait)
    }

    /// The rank of a worker that may take part.
    fn admit(
        &self,
        stream: &ControlStream,
        word: SetupMessage,
        peer: SocketAddr,
    ) -> Result<u32, (String, bool)> {
        let plain = |reason: String| (reason, false);
        let (wish, key) = match word {
            SetupMessage::Join { rank, key } => (SeatWish::of(rank), key),
            SetupMessage::StandBy { key } => (SeatWish::Lost, key),
            word => {
                return Err(plain(format!(
                    "its first message was {word:?} instead of a request to join"
                )));
            }
        };
        if key != self.key && !key.is_empty() {
            return Err((format!("this is not the run \"{key}\""), true));
        }
        let rank = match wish {
            SeatWish::Any => None,
            SeatWish::Rank(rank) => Some(rank),
            SeatWish::Lost => return self.stand_by(stream, peer),
        };
        let has_begun = self.has_begun.load(Ordering::Acquire);
        if let Some(why) = self.join_refusal.filter(|_| has_begun) {
            return Err(plain(format!("the run has begun, and nobody can join it: {why}")));
        }
        // A worker that was started in the place of a lost one may be here before the loss is known.
        let seat = Wait::new(SEAT_SECONDS, "the seat of a lost worker");
        loop {
            match self.claim(rank, peer) {
                Err(RefusedClaim { is_taken: true, .. }) if has_begun && !seat.left().is_zero() => {
                    std::thread::sleep(POLL_INTERVAL);
                }
                Err(RefusedClaim { reason, .. }) => return Err(plain(reason)),
                Ok(rank) => return Ok(rank),
            }
        }
    }

    /// Takes the seat of `rank`, or of any that is missing.
    pub(super) fn claim(&self, rank: Option<u32>, peer: SocketAddr) -> Result<u32, RefusedClaim> {
        let never = |reason: String| RefusedClaim { reason, is_taken: false };
        let has_begun = self.has_begun.load(Ordering::Acquire);
        let lost = self.lost().clone();
        let mut taken = self.taken();
        let is_free = |rank: &u32| !taken.contains_key(rank) && (has_begun == lost.contains(rank));
        let free = || (0..self.workers).find(is_free);
        let rank = match rank {
            Some(rank) if rank >= self.workers => {
                let last = self.workers - 1;
                return Err(never(format!("there is no worker {rank}; workers are 0 to {last}")));
            }
            Some(rank) if lost.contains(&rank) && !has_begun => {
                return Err(never(format!("worker {rank} was lost; the run resumes without it")));
            }
            Some(rank) => rank,
            None => free().ok_or_else(|| {
                let all = self.workers;
                let hint =
                    if has_begun { "; `membership.max_workers` makes room for more" } else { "" };
                never(format!("all {all} workers have joined already{hint}"))
            })?,
        };
        match taken.get(&rank) {
            Some(Some(by)) => Err(RefusedClaim {
                reason: format!("rank {rank} is taken by {by}"),
                is_taken: true,
            }),
            Some(None) => Err(never(format!("rank {rank} is taken by the coordinator itself"))),
            None => {
                taken.insert(rank, Some(peer));
                Ok(rank)
            }
        }
    }

    /// Hands over the job; gives where the worker listens once it is ready, or why it cannot run the job. An
    /// error is that it left, or does not speak as it should.
    fn prepare(
        &self,
        stream: &ControlStream,
        rank: u32,
    ) -> Result<Result<ListeningPlace, String>, String> {
        let Admission { run, open, timeline, .. } = *self;
        let (late, job) = (self.has_begun.load(Ordering::Acquire), self.job.clone());
        let shares = self.options.transport == TransportKind::Auto;
        let reconnect = Time::from_seconds(self.options.reconnect_seconds);
        let welcome =
            SetupMessage::Welcome { run, rank, open, timeline, late, shares, reconnect, job };
        let text = |error: PacketError| error.to_string();
        prepare(stream.socket(), self.options.connect_seconds).map_err(|e| e.to_string())?;
        protocol::write(stream, &welcome).map_err(text)?;
        let loading = Wait::new(self.options.connect_seconds, "its data to be loaded");
        loop {
            // A worker that loads says every second that it does; one that is silent loses its seat.
            let silence = Wait::new(SILENCE_SECONDS, "a sign that it loads its data");
            let wait = if loading.left() < silence.left() { loading } else { silence };
            match protocol::read(stream, SMALL_BYTES, Some(wait)).map_err(text)? {
                SetupMessage::Alive => {}
                SetupMessage::Certify { key } => {
                    let certified = self.certify(rank, &key)?;
                    protocol::write(stream, &certified).map_err(text)?;
                }
                SetupMessage::Ping => {
                    let pong = SetupMessage::Pong { now: self.clock.now() };
                    protocol::write(stream, &pong).map_err(text)?;
                }
                SetupMessage::Listening { port } => return Ok(Ok(ListeningPlace::Port(port))),
                SetupMessage::ListeningAt { address } => {
                    return Ok(Ok(ListeningPlace::Advertised(address)));
                }
                SetupMessage::Unable { reason } => return Ok(Err(reason)),
                other => return Err(format!("it sent {other:?} instead of where it listens")),
            }
        }
    }

    /// The certificate of a worker that has been given the seat of `rank`.
    fn certify(&self, rank: u32, key: &[u8]) -> Result<SetupMessage, String> {
        let access = self.access.as_ref().ok_or("connections of this run are plain")?;
        let times = {
            let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
            let times = given.entry(rank).or_default();
            *times += 1;
            *times
        };
        let credentials = access.authority.certify(RankSeat { rank, times }, key);
        let Credentials { certificate, root } = credentials.map_err(|error| error.to_string())?;
        Ok(SetupMessage::Certified { certificate, root })
    }

    /// Which time the seat of each of so many ranks was given; the coordinator's own have one holder, and
    /// ranks that were lost before the run was resumed have none.
    pub(crate) fn seats(&self, ranks: usize) -> Vec<u32> {
        let lost = self.lost().clone();
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let times = |rank| given.get(&rank).copied().unwrap_or(u32::from(!lost.contains(&rank)));
        (0..ranks as u32).map(times).collect()
    }
}
