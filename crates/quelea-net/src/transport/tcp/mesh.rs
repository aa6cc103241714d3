//! Connecting every rank with every other: the higher rank of a pair dials.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quelea_core::message::Rank;

use crate::controller::Incoming;
use crate::error::NetError;
use crate::options::NetOptions;
use crate::protocol::{self, SMALL_BYTES, SetupMessage, Wait};
use crate::rendezvous::listener::GuardedListener;
use crate::transport::{MeshPlan, RankEndpoint, RankLinks, Transport};
use quelea_control::{RankEvent, WARNING_CHARS, shown};

use super::{TcpEndpoint, prepare, tune};

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
    /// Starts to listen on any free port of `ip`. What is refused is reported to `warnings`.
    pub(crate) fn open(
        plan: MeshPlan,
        ip: IpAddr,
        options: &NetOptions,
        warnings: Sender<Incoming>,
    ) -> Result<Mesh, NetError> {
        let failed = |source| NetError::Listen { address: format!("{ip}, any port"), source };
        let listener = TcpListener::bind((ip, 0)).map_err(failed)?;
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
            GuardedListener::open(listener, move |stream, peer| guard.hear(stream, peer)).map_err(
                |source| NetError::Listen { address: "a port for peers".into(), source },
            )?;
        Ok(Mesh { plan, listener, arrivals })
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
        let rank_links = |(rank, streams)| {
            let endpoint: Box<dyn RankEndpoint> = Box::new(TcpEndpoint { streams });
            RankLinks { rank, endpoints: vec![endpoint] }
        };
        Ok(links.into_iter().map(rank_links).collect())
    }
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
