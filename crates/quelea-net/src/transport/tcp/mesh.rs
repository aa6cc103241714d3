//! Connecting every rank with every other: the higher rank of a pair dials.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use quelea_core::message::Rank;
use tokio::sync::mpsc::UnboundedSender;

use crate::controller::Incoming;
use crate::error::NetError;
use crate::options::NetOptions;
use crate::protocol::{self, PacketError, SMALL_BYTES, SetupMessage, Wait};
use crate::rendezvous::listener::{GuardedListener, WhenBusy};
use crate::transport::shared_memory::SharedPair;
use crate::transport::tls::LinkSocket;
use crate::transport::{
    JoinPlace, MeshPlan, RankEndpoint, RankLinks, SharedMemory, SharedOffer, Transport,
};
use quelea_control::{RankEvent, WARNING_CHARS, shown};

use super::near::{self, Dialled};
use super::restore::{Dialler, Reconnection, Restorer, Returns};
use super::{TcpConnection, TcpEndpoint, prepare, tune};

impl MeshPlan {
    /// Pairs (peer, own) of which the peer dials.
    fn expected(&self) -> BTreeSet<(Rank, Rank)> {
        self.pairs(|peer, own| peer > own && !self.is_late)
    }

    /// Pairs (peer, own) of which the peer is dialled.
    fn dialled(&self) -> BTreeSet<(Rank, Rank)> {
        self.pairs(|peer, own| peer < own || self.is_late)
    }

    fn pairs(&self, which: impl Fn(Rank, Rank) -> bool) -> BTreeSet<(Rank, Rank)> {
        let far = (0..self.ranks).map(Rank::from).filter(|rank| !self.here.contains(rank));
        far.flat_map(|peer| self.here.iter().map(move |own| (peer, *own)))
            .filter(|(peer, own)| which(*peer, *own))
            .collect()
    }
}

/// The listening side of this process. It stays open during the run, to refuse latecomers and to let
/// peers connect again.
#[derive(Debug)]
pub(crate) struct Mesh {
    plan: MeshPlan,
    listener: GuardedListener,
    arrivals: Receiver<Arrived>,
    /// What this process can share with others on its machine.
    shared: Option<SharedMemory>,
    warnings: Sender<Incoming>,
    /// Which broken connections are replaced by new ones.
    returns: Returns,
}

impl Mesh {
    /// Starts to listen on `ip`, at the port of the options or any free one. What is refused is reported to `warnings`.
    pub(crate) fn open(
        plan: MeshPlan,
        ip: IpAddr,
        shared: Option<SharedMemory>,
        options: &NetOptions,
        warnings: Sender<Incoming>,
    ) -> Result<Mesh, NetError> {
        let port = options.local.port;
        let shown = if port == 0 { "any port".to_string() } else { format!("port {port}") };
        let failed = |source| NetError::Listen { address: format!("{ip}, {shown}"), source };
        let listener = TcpListener::bind((ip, port)).map_err(failed)?;
        let (sender, arrivals) = channel();
        let returns = Returns::of(options);
        let guard = Guard {
            plan: plan.clone(),
            returns: returns.clone(),
            missing: Mutex::new(plan.expected()),
            shared: shared.clone(),
            patience_seconds: options.handshake_seconds,
            arrived: Mutex::new(sender),
            warnings: Mutex::new(warnings.clone()),
        };
        let guard = Arc::new(guard);
        let when_busy = WhenBusy::of(plan.identity.is_some());
        let hear = move |stream, peer| guard.hear(stream, peer);
        let listener = GuardedListener::open(listener, when_busy, hear)
            .map_err(|source| NetError::Listen { address: "a port for peers".into(), source })?;
        Ok(Mesh { plan, listener, arrivals, shared, warnings, returns })
    }

    /// The side of `own` where it dials `peer`.
    fn dialler(&self, own: Rank, peer: Rank, address: &str, options: &NetOptions) -> Dialler {
        let (address, options) = (address.to_string(), options.clone());
        let identity = self.plan.identity.clone();
        Dialler { run: self.plan.run, from: own, to: peer, address, identity, options }
    }

    /// Two ranks of one machine that do not share memory although both would.
    fn tell_separate(&self, own: Rank, peer: Rank, problem: &str) {
        let problem = shown(problem, WARNING_CHARS);
        let text = format!("{own} and {peer} of one machine use TCP: {problem}");
        let _ = self.warnings.send(Incoming::Event(RankEvent::Warning(text)));
    }
}

impl Transport for Mesh {
    fn port(&self) -> u16 {
        self.listener.address().port()
    }

    fn connect(
        &self,
        addresses: &[String],
        options: &NetOptions,
        wait: Wait,
    ) -> Result<Vec<RankLinks>, NetError> {
        let begun = Instant::now();
        let mut links: BTreeMap<Rank, Vec<TcpConnection>> =
            self.plan.here.iter().map(|rank| (*rank, Vec::new())).collect();
        let takes_part = |pair: &(Rank, Rank)| !addresses[pair.0.index()].is_empty();
        for (peer, own) in self.plan.dialled().into_iter().filter(takes_part) {
            let dialler = self.dialler(own, peer, &addresses[peer.index()], options);
            let Dialled { stream, shared, problem } = dialler.connect(self.shared.as_ref())?;
            problem.iter().for_each(|problem| self.tell_separate(own, peer, problem));
            let restores = shared.is_none() && self.returns.are_for(&stream);
            let restorer = restores.then(|| Restorer::Dial(Box::new(dialler)));
            let connection = TcpConnection { peer, stream, restorer, shared };
            links.entry(own).or_default().push(connection);
        }
        let mut missing = self.plan.expected();
        missing.retain(takes_part);
        while !missing.is_empty() {
            match self.arrivals.recv_timeout(wait.left()) {
                Ok(Arrived { pair: (peer, own), stream, shared, restorer }) => {
                    missing.remove(&(peer, own));
                    let connection = TcpConnection { peer, stream, restorer, shared };
                    links.entry(own).or_default().push(connection);
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
        let rank_links = |(rank, connections)| {
            let endpoint: Box<dyn RankEndpoint> = Box::new(TcpEndpoint { connections });
            RankLinks { rank, endpoints: vec![endpoint] }
        };
        Ok(links.into_iter().map(rank_links).collect())
    }
}

/// A connection that was let in; the pair is (peer, own).
struct Arrived {
    pair: (Rank, Rank),
    stream: LinkSocket,
    /// If the two share memory.
    shared: Option<SharedPair>,
    /// If it is restored when it breaks.
    restorer: Option<Restorer>,
}

/// Lets in whoever belongs to the run: once, and again when its connection broke.
struct Guard {
    plan: MeshPlan,
    missing: Mutex<BTreeSet<(Rank, Rank)>>,
    patience_seconds: f64,
    arrived: Mutex<Sender<Arrived>>,
    /// What this process can share.
    shared: Option<SharedMemory>,
    /// Which broken connections are replaced by new ones.
    returns: Returns,
    /// To this process: what was refused, and who has something to say about who controls the run.
    warnings: Mutex<Sender<Incoming>>,
}

/// What somebody who may connect wants; pairs are (peer, own).
enum Visit {
    First { pair: (Rank, Rank), offer: Option<SharedOffer> },
    Joins { pair: (Rank, Rank), offer: Option<SharedOffer> },
    Again { link: UnboundedSender<Reconnection>, received: u64 },
    Control { peer: Rank },
    Asks { word: SetupMessage },
}

impl Guard {
    fn hear(&self, stream: TcpStream, peer: SocketAddr) {
        let stream = match self.authenticate(stream) {
            Ok(stream) => stream,
            // A stranger gets no answer.
            Err(reason) => return self.warn(peer, &reason),
        };
        match self.judge(&stream) {
            Ok(Visit::First { pair, offer }) => self.admit(pair, stream, offer.as_ref()),
            Ok(Visit::Joins { pair, offer }) => self.let_in(pair, stream, offer.as_ref()),
            Ok(Visit::Again { link, received }) => {
                let reconnection = Reconnection { stream, peer_received: received };
                // The link answers; if it has ended, nobody does, and the connection is closed.
                let _ = link.send(reconnection);
            }
            Ok(Visit::Control { peer }) => self.pass_on(peer, stream),
            Ok(Visit::Asks { word }) => self.show_in(stream, word, peer),
            Err(reason) => self.refuse(&stream, peer, reason),
        }
    }

    /// Somebody has something to say about who controls the run: this process hears it.
    fn pass_on(&self, peer: Rank, stream: LinkSocket) {
        if protocol::write(&stream, &SetupMessage::Accepted).is_ok() {
            let line = Incoming::Line { rank: peer.0, stream: stream.into_control() };
            let process = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = process.send(line);
        }
    }

    /// Somebody asks to join the run: any process of it knows where that is done.
    fn show_in(&self, stream: LinkSocket, word: SetupMessage, peer: SocketAddr) {
        match self.plan.doors.joining() {
            JoinPlace::Here(hear) => hear(stream.into_control(), word, peer),
            JoinPlace::There(address) => {
                // A visitor that does not hear it any more needs no answer.
                let _ = protocol::write(&stream, &SetupMessage::Redirect { address });
            }
            JoinPlace::Nowhere => {
                let reason = "the run has not begun here, or takes no workers".to_string();
                self.refuse(&stream, peer, reason);
            }
        }
    }

    fn admit(&self, pair: (Rank, Rank), stream: LinkSocket, offer: Option<&SharedOffer>) {
        let Ok((shared, restorer)) = self.accept(pair, &stream, offer) else {
            self.missing().insert(pair);
            return;
        };
        let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = arrived.send(Arrived { pair, stream, shared, restorer });
    }

    /// Tells a visitor that it may connect, and shares memory with it where both can; otherwise the
    /// connection may be restored.
    fn accept(
        &self,
        pair: (Rank, Rank),
        stream: &LinkSocket,
        offer: Option<&SharedOffer>,
    ) -> Result<(Option<SharedPair>, Option<Restorer>), PacketError> {
        // Before the visitor knows that it is connected: it may come again at once.
        let restorer = self.returns.restorer(pair, stream);
        match (&self.shared, offer) {
            (Some(memory), Some(offer)) => {
                let wait = Wait::new(self.patience_seconds, "word of shared memory");
                let shared = near::answer(memory, pair, stream, offer, wait)?;
                let restorer = restorer.filter(|_| shared.is_none());
                Ok((shared, restorer))
            }
            _ => {
                protocol::write(stream, &SetupMessage::Accepted)?;
                Ok((None, restorer))
            }
        }
    }

    /// Hands the connection of a worker that joins to the rank that it is for.
    fn let_in(&self, pair: (Rank, Rank), stream: LinkSocket, offer: Option<&SharedOffer>) {
        let (peer, own) = pair;
        if let Ok((shared, restorer)) = self.accept(pair, &stream, offer) {
            let connections = vec![TcpConnection { peer, stream, restorer, shared }];
            self.plan.doors.pass(own, Box::new(TcpEndpoint { connections }));
        }
    }

    fn refuse(&self, stream: &LinkSocket, peer: SocketAddr, reason: String) {
        self.warn(peer, &reason);
        // Whoever does not hear it any more needs no answer.
        let _ = protocol::write(stream, &SetupMessage::Refused { reason, elsewhere: false });
    }

    fn warn(&self, peer: SocketAddr, reason: &str) {
        let text = format!("refused a connection from {peer}: {}", shown(reason, WARNING_CHARS));
        let warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = warnings.send(Incoming::Event(RankEvent::Warning(text)));
    }

    fn missing(&self) -> std::sync::MutexGuard<'_, BTreeSet<(Rank, Rank)>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, of somebody who belongs to this run where connections are encrypted.
    fn authenticate(&self, stream: TcpStream) -> Result<LinkSocket, String> {
        prepare(&stream, self.patience_seconds)
            .and_then(|()| tune(&stream))
            .map_err(|error| error.to_string())?;
        let wait = Wait::new(self.patience_seconds, "a handshake");
        let accepted = LinkSocket::accept(stream, self.plan.identity.as_ref(), wait)?;
        self.plan.identity.iter().for_each(|identity| identity.seats().await_all(&wait));
        Ok(accepted)
    }

    fn judge(&self, stream: &LinkSocket) -> Result<Visit, String> {
        let wait = Wait::new(self.patience_seconds, "a hello");
        let hello = protocol::read(stream, SMALL_BYTES, Some(wait));
        match hello.map_err(|error| error.to_string())? {
            SetupMessage::Hello { run, from, to } => {
                self.judge_hello(stream, run, (Rank(from), Rank(to)), None, &wait)
            }
            SetupMessage::HelloNear { run, from, to, offer } => {
                self.judge_hello(stream, run, (Rank(from), Rank(to)), Some(offer), &wait)
            }
            SetupMessage::Reconnect { run, from, to, received } => {
                if run != self.plan.run {
                    return Err("it is not of this run".into());
                }
                let link = self.returns.link((Rank(from), Rank(to)))?;
                stream.check_rank(self.plan.identity.as_ref(), Rank(from))?;
                Ok(Visit::Again { link, received })
            }
            SetupMessage::Control { run, from, to } => {
                let (from, to) = (Rank(from), Rank(to));
                let is_known = from.index() < self.plan.ranks && !self.plan.here.contains(&from);
                if run != self.plan.run || !is_known || !self.plan.here.contains(&to) {
                    return Err("it is not of this run".into());
                }
                stream.check_rank(self.plan.identity.as_ref(), from)?;
                Ok(Visit::Control { peer: from })
            }
            word @ (SetupMessage::Join { .. } | SetupMessage::StandBy { .. }) => {
                Ok(Visit::Asks { word })
            }
            other => Err(format!("it began with {other:?} instead of a hello")),
        }
    }

    /// What somebody wants who begins with a hello.
    fn judge_hello(
        &self,
        stream: &LinkSocket,
        run: u64,
        pair: (Rank, Rank),
        offer: Option<SharedOffer>,
        wait: &Wait,
    ) -> Result<Visit, String> {
        if run == self.plan.run && self.plan.doors.admit(pair.0, pair.1) {
            stream.check_joiner(self.plan.identity.as_ref(), pair.0, wait)?;
            return Ok(Visit::Joins { pair, offer });
        }
        let pair = self.check_pair(run, pair.0, pair.1)?;
        stream.check_rank(self.plan.identity.as_ref(), pair.0)?;
        if !self.missing().remove(&pair) {
            return Err(format!("{} is already connected to {}", pair.0, pair.1));
        }
        Ok(Visit::First { pair, offer })
    }

    /// The pair (peer, own), if it is one of which the peer dials.
    fn check_pair(&self, run: u64, from: Rank, to: Rank) -> Result<(Rank, Rank), String> {
        if run != self.plan.run {
            return Err("it is not of this run".into());
        }
        if !self.plan.here.contains(&to) {
            return Err(format!("{to} does not live here"));
        }
        if from.index() >= self.plan.ranks || from <= to || self.plan.here.contains(&from) {
            return Err(format!("{from} is not one that dials {to}"));
        }
        Ok((from, to))
    }
}
