//! Restoring a connection that broke: the side that dialled dials again, the other waits for it.
//!
//! ```text
//! dials  ── Reconnect { run, from, to, received } ──►  waits
//!        ◄── Reconnected { received } ──
//! ```
//!
//! Each side says how many frames it has received, and the other sends the rest again
//! ([`StreamLink::resume`]). The listener answers nothing itself: only the rank's own thread knows how
//! many frames it has.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quelea_core::message::Rank;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::near::{self, Dialled};
use super::{prepare, tune};
use crate::error::NetError;
use crate::options::NetOptions;
use crate::protocol::{self, PacketError, SMALL_BYTES, SetupMessage, Wait};
use crate::transport::SharedMemory;
use crate::transport::stream::StreamLink;
use crate::transport::tls::{LinkBytes, LinkSocket};
use crate::trust::{ControlStream, LinkIdentity};

/// The pause after the first attempt, and the least time for one; pauses double.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Of the frames that were written, so many bytes are kept: more than two kernels hold of a connection
/// as they are set by default (4 MiB to be sent, 6 MiB to be read). Where they hold more, a gap is
/// found by the numbers, and the connection counts as lost.
pub(super) const KEPT_BYTES: usize = 16 << 20;

/// A new connection, to a peer that has received this many frames over the old ones.
#[derive(Debug)]
pub(super) struct Reconnection {
    pub(super) stream: LinkSocket,
    pub(super) peer_received: u64,
}

/// The side of a pair that dials.
#[derive(Clone, Debug)]
pub(crate) struct Dialler {
    pub(crate) run: u64,
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    pub(crate) address: String,
    pub(crate) identity: Option<LinkIdentity>,
    pub(crate) options: NetOptions,
}

/// Why a peer could not be dialled.
struct DialError {
    error: NetError,
    /// Another attempt would end in the same way.
    is_final: bool,
}

impl Dialler {
    /// Connects for the first time, and shares memory where both can.
    pub(super) fn connect(&self, memory: Option<&SharedMemory>) -> Result<Dialled, NetError> {
        let patience = Duration::from_secs_f64(self.options.connect_seconds);
        let stream = self.open(patience).map_err(|failed| failed.error)?;
        let (run, from, to) = (self.run, self.from.0, self.to.0);
        let memory = memory.filter(|_| near::is_near(&stream));
        let offer = memory.and_then(|memory| memory.offer(self.from, self.to).ok());
        let hello = match &offer {
            Some(offer) => SetupMessage::HelloNear { run, from, to, offer: offer.told() },
            None => SetupMessage::Hello { run, from, to },
        };
        let answer = self.ask(&stream, &hello).map_err(|failed| failed.error)?;
        match (answer, offer) {
            (SetupMessage::Accepted, _) => Ok(Dialled::over_tcp(stream, None)),
            (SetupMessage::Separate { problem }, Some(_)) => {
                Ok(Dialled::over_tcp(stream, Some(problem)))
            }
            (SetupMessage::AcceptedNear { offer: theirs }, Some(offer)) => {
                near::confirm(stream, offer, &theirs)
                    .map_err(|error| self.wrong(error.to_string()).error)
            }
            (other, _) => Err(self.wrong(format!("it answered {other:?}")).error),
        }
    }

    /// Connects to say something about who controls the run.
    pub(crate) fn call(&self) -> Result<ControlStream, NetError> {
        let patience = Duration::from_secs_f64(self.options.handshake_seconds);
        let stream = self.open(patience).map_err(|failed| failed.error)?;
        let hello = SetupMessage::Control { run: self.run, from: self.from.0, to: self.to.0 };
        match self.ask(&stream, &hello).map_err(|failed| failed.error)? {
            SetupMessage::Accepted => Ok(stream.into_control()),
            other => Err(self.wrong(format!("it answered {other:?}")).error),
        }
    }

    /// Connects again, after so many frames were received here; tries until the time is over, the
    /// peer refuses, nobody listens there any more, or nobody waits for it here (`is_unwanted`).
    fn reconnect(
        &self,
        received: u64,
        is_unwanted: impl Fn() -> bool,
    ) -> Result<Reconnection, NetError> {
        let until = Instant::now() + Duration::from_secs_f64(self.options.reconnect_seconds);
        let mut pause = FIRST_PAUSE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.reconnect_once(received, left) {
                Ok(reconnection) => return Ok(reconnection),
                Err(failed)
                    if failed.is_final || is_unwanted() || Instant::now() + pause >= until =>
                {
                    return Err(failed.error);
                }
                Err(_) => {}
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn reconnect_once(&self, received: u64, left: Duration) -> Result<Reconnection, DialError> {
        let stream = self.open(left.max(FIRST_PAUSE))?;
        let (run, from, to) = (self.run, self.from.0, self.to.0);
        match self.ask(&stream, &SetupMessage::Reconnect { run, from, to, received })? {
            SetupMessage::Reconnected { received } => {
                Ok(Reconnection { stream, peer_received: received })
            }
            other => Err(self.wrong(format!("it answered {other:?}"))),
        }
    }

    fn open(&self, patience: Duration) -> Result<LinkSocket, DialError> {
        let target: SocketAddr =
            self.address.parse().map_err(|_| self.wrong("not an address".into()))?;
        let stream = TcpStream::connect_timeout(&target, patience).map_err(|error| DialError {
            // A process that lives listens until its run has ended.
            is_final: error.kind() == io::ErrorKind::ConnectionRefused,
            ..self.wrong(format!("cannot connect: {error}"))
        })?;
        prepare(&stream, self.options.handshake_seconds)
            .and_then(|()| tune(&stream))
            .map_err(|error| self.wrong(error.to_string()))?;
        let wait = Wait::new(self.options.handshake_seconds, "a handshake");
        LinkSocket::dial(stream, self.identity.as_ref(), self.to, wait)
            .map_err(|problem| self.wrong(problem))
    }

    fn ask(&self, stream: &LinkSocket, question: &SetupMessage) -> Result<SetupMessage, DialError> {
        let wrong = |error: PacketError| self.wrong(error.to_string());
        protocol::write(stream, question).map_err(wrong)?;
        let wait = Wait::new(self.options.handshake_seconds, "an answer to a hello");
        match protocol::read(stream, SMALL_BYTES, Some(wait)).map_err(wrong)? {
            SetupMessage::Refused { reason, .. } => {
                let error = NetError::Refused { address: self.place(), reason };
                Err(DialError { error, is_final: true })
            }
            answer => Ok(answer),
        }
    }

    fn wrong(&self, problem: String) -> DialError {
        let error = NetError::Handshake { address: self.place(), problem };
        DialError { error, is_final: false }
    }

    fn place(&self) -> String {
        format!("{} at {}", self.to, self.address)
    }
}

/// The ways to links that may be restored, by (peer, own).
type WaitingLinks = BTreeMap<(Rank, Rank), UnboundedSender<Reconnection>>;

/// Connections that take the place of broken ones, on their way to the links. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Returns {
    /// How long one is waited for; zero: none are restored.
    limit: Duration,
    /// Whether those within one machine are.
    restores_near: bool,
    /// To the links, by (peer, own).
    waiting: Arc<Mutex<WaitingLinks>>,
}

impl Returns {
    pub(super) fn of(options: &NetOptions) -> Returns {
        let limit = Duration::from_secs_f64(options.reconnect_seconds.clamp(0.0, 1e6));
        Returns { limit, restores_near: options.reconnects_near, waiting: Arc::default() }
    }

    /// Whether a connection is restored when it breaks.
    pub(super) fn are_for(&self, stream: &LinkSocket) -> bool {
        !self.limit.is_zero() && (self.restores_near || !near::is_near(stream))
    }

    /// What restores the connection that `peer` has dialled to `own`, if anything does.
    pub(super) fn restorer(&self, pair: (Rank, Rank), stream: &LinkSocket) -> Option<Restorer> {
        if !self.are_for(stream) {
            return None;
        }
        let (sender, arrivals) = unbounded_channel();
        self.waiting().insert(pair, sender);
        Some(Restorer::Await { arrivals, limit: self.limit })
    }

    /// Where a new connection of this pair goes, or why there is no such place.
    pub(super) fn link(&self, pair: (Rank, Rank)) -> Result<UnboundedSender<Reconnection>, String> {
        let link = self.waiting().get(&pair).cloned();
        let link = link.ok_or("connections of this pair are not restored")?;
        if link.is_closed() {
            return Err(format!("the link from {} to {} has ended", pair.0, pair.1));
        }
        Ok(link)
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingLinks> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How one side of a connection gets another one.
#[derive(Debug)]
pub(super) enum Restorer {
    /// It dials.
    Dial(Box<Dialler>),
    /// It is dialled; connections come from the listener.
    Await {
        /// Where they come from.
        arrivals: UnboundedReceiver<Reconnection>,
        /// How long one is waited for.
        limit: Duration,
    },
}

impl Restorer {
    /// Ends when the peer has opened another connection although the present one seems to work: of
    /// some breaks only one side learns.
    pub(super) async fn superseded(&mut self) -> Reconnection {
        if let Restorer::Await { arrivals, .. } = self
            && let Some(reconnection) = arrivals.recv().await
        {
            return reconnection;
        }
        std::future::pending().await
    }

    /// Continues `link` over a new connection: `arrived`, if there is one already. An error says why
    /// that cannot be.
    pub(super) async fn restore(
        &mut self,
        link: &StreamLink<LinkBytes>,
        arrived: Option<Reconnection>,
    ) -> Result<(), String> {
        let received = link.received();
        let reconnection = match self {
            Restorer::Dial(dialler) => dial_elsewhere(Dialler::clone(dialler), received).await?,
            Restorer::Await { arrivals, limit } => {
                let deadline = tokio::time::Instant::now() + *limit;
                let mut next = arrived;
                loop {
                    let reconnection = match next.take() {
                        Some(reconnection) => reconnection,
                        None => arrival(arrivals, deadline, *limit).await?,
                    };
                    let answer = SetupMessage::Reconnected { received };
                    // If the peer has given this one up, it comes with another.
                    if protocol::write(&reconnection.stream, &answer).is_ok() {
                        break reconnection;
                    }
                }
            }
        };
        let Reconnection { stream, peer_received } = reconnection;
        let stream = LinkBytes::new(stream).map_err(|error| error.to_string())?;
        link.resume(stream, peer_received)
    }
}

async fn arrival(
    arrivals: &mut UnboundedReceiver<Reconnection>,
    deadline: tokio::time::Instant,
    limit: Duration,
) -> Result<Reconnection, String> {
    match tokio::time::timeout_at(deadline, arrivals.recv()).await {
        Ok(Some(reconnection)) => Ok(reconnection),
        Ok(None) => Err("this process no longer listens".into()),
        Err(_) => Err(format!("it did not connect again within {:.1} s", limit.as_secs_f64())),
    }
}

/// Dials on a thread of its own, which blocks nobody and ends soon after nobody waits for it.
async fn dial_elsewhere(dialler: Dialler, received: u64) -> Result<Reconnection, String> {
    let (sender, receiver) = oneshot::channel();
    let dial = move || {
        let dialled = dialler.reconnect(received, || sender.is_closed());
        let _ = sender.send(dialled);
    };
    std::thread::Builder::new()
        .name("reconnect".into())
        .spawn(dial)
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    let dialled = receiver.await.map_err(|_| "dialling panicked".to_string())?;
    dialled.map_err(|error| error.to_string())
}
