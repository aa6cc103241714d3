//! Connecting every rank with every other: the higher rank of a pair dials.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quelea_core::message::Rank;

use crate::controller::Incoming;
use crate::error::NetError;
use crate::local_ranks::RankLinks;
use crate::options::NetOptions;
use crate::protocol::{self, SMALL_BYTES, SetupMessage, Wait};
use crate::rendezvous::listener::GuardedListener;
use quelea_control::{RankEvent, WARNING_CHARS, shown};

/// Who lives where.
#[derive(Clone, Debug)]
pub(crate) struct MeshPlan {
    /// The number that tells this run from others.
    pub(crate) run: u64,
    /// Ranks in all.
    pub(crate) ranks: usize,
    /// Those of this process.
    pub(crate) here: BTreeSet<Rank>,
}

impl MeshPlan {
    /// Pairs (peer, own) of which the peer dials.
    fn expected(&self) -> BTreeSet<(Rank, Rank)> {
        self.pairs(|peer, own| peer > own)
    }

    /// Pairs (peer, own) of which the peer is dialled.
    fn dialled(&self) -> BTreeSet<(Rank, Rank)> {
        self.pairs(|peer, own| peer < own)
    }

    fn pairs(&self, which: impl Fn(Rank, Rank) -> bool) -> BTreeSet<(Rank, Rank)> {
        let far = (0..self.ranks).map(Rank::from).filter(|rank| !self.here.contains(rank));
        far.flat_map(|peer| self.here.iter().map(move |own| (peer, *own)))
            .filter(|(peer, own)| which(*peer, *own))
            .collect()
    }
}

/// The listening side of this process. It stays open during the run, to refuse latecomers.
#[derive(Debug)]
pub(crate) struct Mesh {
    plan: MeshPlan,
    listener: GuardedListener,
    arrivals: Receiver<(Rank, Rank, TcpStream)>,
}

impl Mesh {
    /// Starts to listen. What is refused is told to `warnings`.
    pub(crate) fn open(
        plan: MeshPlan,
        listener: TcpListener,
        options: &NetOptions,
        warnings: Sender<Incoming>,
    ) -> std::io::Result<Mesh> {
        let (sender, arrivals) = channel();
        let guard = Guard {
            plan: plan.clone(),
            missing: Mutex::new(plan.expected()),
            patience_seconds: options.handshake_seconds,
            arrived: Mutex::new(sender),
            warnings: Mutex::new(warnings),
        };
        let guard = Arc::new(guard);
        let listener =
            GuardedListener::open(listener, move |stream, peer| guard.hear(stream, peer))?;
        Ok(Mesh { plan, listener, arrivals })
    }

    pub(crate) fn port(&self) -> u16 {
        self.listener.address().port()
    }

    /// Connects with everybody.
    pub(crate) fn connect(
        &self,
        addresses: &[String],
        options: &NetOptions,
        wait: Wait,
    ) -> Result<Vec<RankLinks>, NetError> {
        let begun = Instant::now();
        let mut links: BTreeMap<Rank, Vec<(Rank, TcpStream)>> =
            self.plan.here.iter().map(|rank| (*rank, Vec::new())).collect();
        for (peer, own) in self.plan.dialled() {
            let stream = self.dial(&addresses[peer.index()], own, peer, options)?;
            links.entry(own).or_default().push((peer, stream));
        }
        let mut missing = self.plan.expected();
        while !missing.is_empty() {
            match self.arrivals.recv_timeout(wait.left()) {
                Ok((peer, own, stream)) => {
                    missing.remove(&(peer, own));
                    links.entry(own).or_default().push((peer, stream));
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let names: BTreeSet<String> = missing
                        .iter()
                        .map(|(peer, own)| format!("{peer} to connect to {own}"))
                        .collect();
                    return Err(NetError::Missing {
                        address: self.listener.address(),
                        seconds: begun.elapsed().as_secs_f64(),
                        missing: Vec::from_iter(names).join(", "),
                    });
                }
            }
        }
        Ok(links.into_iter().map(|(rank, links)| RankLinks { rank, streams: links }).collect())
    }

    fn dial(
        &self,
        address: &str,
        from: Rank,
        to: Rank,
        options: &NetOptions,
    ) -> Result<TcpStream, NetError> {
        let wrong = |problem: String| NetError::Handshake {
            address: format!("{to} at {address}"),
            problem,
        };
        let target: SocketAddr = address.parse().map_err(|_| wrong("not an address".into()))?;
        let patience = Duration::from_secs_f64(options.connect_seconds);
        let stream = TcpStream::connect_timeout(&target, patience)
            .map_err(|error| wrong(format!("cannot connect: {error}")))?;
        prepare(&stream, options.handshake_seconds)
            .and_then(|()| tune(&stream))
            .map_err(|error| wrong(error.to_string()))?;
        let hello = SetupMessage::Hello { run: self.plan.run, from: from.0, to: to.0 };
        protocol::write(&stream, &hello).map_err(|error| wrong(error.to_string()))?;
        let wait = Wait::new(options.handshake_seconds, "an answer to a hello");
        match protocol::read(&stream, SMALL_BYTES, Some(wait)) {
            Ok(SetupMessage::Accepted) => Ok(stream),
            Ok(SetupMessage::Refused { reason, .. }) => {
                Err(NetError::Refused { address: format!("{to} at {address}"), reason })
            }
            Ok(other) => Err(wrong(format!("it answered {other:?}"))),
            Err(error) => Err(wrong(error.to_string())),
        }
    }
}

/// A listening socket on any free port.
pub(crate) fn listen(ip: IpAddr) -> Result<TcpListener, NetError> {
    TcpListener::bind((ip, 0))
        .map_err(|source| NetError::Listen { address: format!("{ip}, any port"), source })
}

/// What the kernel may hold of a stream within one machine; more may fall out of the cache between
/// the two copies. On a busy two-core machine a ring of two processes was faster with it in three
/// of three alternations (medians 28 to 38 ms against 55 to 82); other sizes were not compared
/// with the same care.
const LOOPBACK_BYTES: usize = 256 << 10;

/// What the kernel may hold that is not on the network yet: what is there is written, and can no
/// longer be held back for something more urgent.
#[cfg(target_os = "linux")]
const UNSENT_BYTES: u32 = 1 << 20;

/// A connection for frames. Between machines the kernel finds the right buffer by itself.
fn tune(stream: &TcpStream) -> std::io::Result<()> {
    let socket = socket2::SockRef::from(stream);
    if is_near(stream.peer_addr(), stream.local_addr())? {
        return socket.set_send_buffer_size(LOOPBACK_BYTES);
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_notsent_lowat(UNSENT_BYTES)?;
    Ok(())
}

/// Whether the two ends of a connection are on one machine.
pub(crate) fn is_near(
    peer: std::io::Result<SocketAddr>,
    local: std::io::Result<SocketAddr>,
) -> std::io::Result<bool> {
    Ok(peer?.ip() == local?.ip())
}

/// A connection without delays whose first words have a time limit.
pub(crate) fn prepare(stream: &TcpStream, seconds: f64) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let patience = Some(Duration::from_secs_f64(seconds.max(1e-3)));
    stream.set_read_timeout(patience)?;
    stream.set_write_timeout(patience)
}

/// Lets in whoever belongs to the run, once.
struct Guard {
    plan: MeshPlan,
    missing: Mutex<BTreeSet<(Rank, Rank)>>,
    patience_seconds: f64,
    arrived: Mutex<Sender<(Rank, Rank, TcpStream)>>,
    warnings: Mutex<Sender<Incoming>>,
}

impl Guard {
    fn hear(&self, stream: TcpStream, peer: SocketAddr) {
        let verdict = self.judge(&stream);
        let answered = match &verdict {
            Ok(_) => protocol::write(&stream, &SetupMessage::Accepted),
            Err(reason) => {
                let reason = reason.clone();
                protocol::write(&stream, &SetupMessage::Refused { reason, elsewhere: false })
            }
        };
        match (verdict, answered) {
            (Ok((from, to)), Ok(())) => {
                let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = arrived.send((from, to, stream));
            }
            (Ok((from, to)), Err(_)) => {
                self.missing().insert((from, to));
            }
            (Err(reason), _) => {
                let text =
                    format!("refused a connection from {peer}: {}", shown(&reason, WARNING_CHARS));
                let warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = warnings.send(Incoming::Event(RankEvent::Warning(text)));
            }
        }
    }

    fn missing(&self) -> std::sync::MutexGuard<'_, BTreeSet<(Rank, Rank)>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(&self, stream: &TcpStream) -> Result<(Rank, Rank), String> {
        prepare(stream, self.patience_seconds)
            .and_then(|()| tune(stream))
            .map_err(|error| error.to_string())?;
        let wait = Wait::new(self.patience_seconds, "a hello");
        let hello = protocol::read(stream, SMALL_BYTES, Some(wait));
        let hello = hello.map_err(|error| error.to_string())?;
        let SetupMessage::Hello { run, from, to } = hello else {
            return Err(format!("it began with {hello:?} instead of a hello"));
        };
        if run != self.plan.run {
            return Err(format!(
                "it belongs to run {run:016x}, this is run {:016x}",
                self.plan.run
            ));
        }
        let (from, to) = (Rank(from), Rank(to));
        if !self.plan.here.contains(&to) {
            return Err(format!("{to} does not live here"));
        }
        if from.index() >= self.plan.ranks || from <= to || self.plan.here.contains(&from) {
            return Err(format!("{from} is not one that dials {to}"));
        }
        if !self.missing().remove(&(from, to)) {
            return Err(format!("{from} is already connected to {to}"));
        }
        Ok((from, to))
    }
}
