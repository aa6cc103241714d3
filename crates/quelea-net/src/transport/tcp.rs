//! TCP: one socket between every two ranks of different processes. Where the two share memory, frames go
//! through that, and the socket says by its end that the peer is gone.

mod mesh;
mod near;
mod restore;

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

use quelea_core::message::Rank;
use quelea_wire::frame::Route;

use super::shared_memory::{self, SharedPair};
use super::stream::{ByteStream, Receiving, SendBudget, StreamLink};
use super::tls::{LinkBytes, LinkSocket};
use super::{
    AttachContext, Attached, FrameSink, Link, LinkError, LinkQuality, RankEndpoint, UNSENT_VECTORS,
    budget_bytes, limits,
};
use crate::protocol::PacketStream;
pub(crate) use mesh::Mesh;
pub(crate) use restore::Dialler;
use restore::{KEPT_BYTES, Restorer};

/// What is waited for of a long vector from another machine.
const PATIENT_BYTES: usize = 256 << 10;

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
fn tune(stream: &TcpStream) -> io::Result<()> {
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
    peer: io::Result<SocketAddr>,
    local: io::Result<SocketAddr>,
) -> io::Result<bool> {
    Ok(peer?.ip() == local?.ip())
}

/// A connection without delays whose first words have a time limit.
pub(crate) fn prepare(stream: &TcpStream, seconds: f64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let patience = Some(Duration::from_secs_f64(seconds.max(1e-3)));
    stream.set_read_timeout(patience)?;
    stream.set_write_timeout(patience)
}

/// A socket inside the runtime of its rank.
#[derive(Debug)]
pub(super) struct TcpBytes {
    stream: tokio::net::TcpStream,
    /// The most that a reader may wait for: a network brings a long vector in hundreds of pieces;
    /// within one machine pieces are read while they are in the cache.
    most: usize,
    /// From how many bytes on a waiting reader is woken now.
    threshold: Cell<usize>,
}

impl TcpBytes {
    /// Must be called inside a runtime.
    pub(super) fn new(stream: TcpStream) -> io::Result<TcpBytes> {
        stream.set_nonblocking(true)?;
        let is_near = is_near(stream.peer_addr(), stream.local_addr()).unwrap_or(true);
        let stream = tokio::net::TcpStream::from_std(stream)?;
        let most = if is_near { 1 } else { PATIENT_BYTES };
        Ok(TcpBytes { stream, most, threshold: Cell::new(1) })
    }

    /// Says from how many bytes on a waiting reader is woken.
    fn wake_from(&self, bytes: usize) {
        let bytes = bytes as libc::c_int;
        let (address, length) = ((&raw const bytes).cast(), size_of_val(&bytes) as libc::socklen_t);
        let socket = self.stream.as_raw_fd();
        // SAFETY: the socket is open, and the option is a number that lives until the call returns.
        // Should it be refused, the reader is woken more often.
        unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, address, length) };
    }
}

impl ByteStream for TcpBytes {
    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.stream.try_write_vectored(slices)
    }

    fn writable(&self) -> impl Future<Output = io::Result<()>> {
        self.stream.writable()
    }

    fn try_read(&self, target: &mut [u8]) -> io::Result<usize> {
        self.stream.try_read(target)
    }

    fn readable(&self) -> impl Future<Output = io::Result<()>> {
        self.stream.readable()
    }

    /// The kernel wakes earlier if its buffer is full.
    fn expect_bytes(&self, missing: usize) {
        let wanted = missing.clamp(1, self.most);
        if wanted != self.threshold.get() {
            self.wake_from(wanted);
            self.threshold.set(wanted);
        }
    }

    fn quality(&self) -> LinkQuality {
        quality(self.stream.as_raw_fd())
    }
}

/// What the system knows of a connected socket.
#[cfg(target_os = "linux")]
fn quality(socket: std::os::fd::RawFd) -> LinkQuality {
    // SAFETY: all fields are numbers, for which 0 is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    let address = (&raw mut info).cast();
    // SAFETY: the socket is open, and the system writes at most `length` bytes to `info`.
    let refused = unsafe {
        libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, address, &raw mut length)
    };
    if refused != 0 {
        return LinkQuality::default();
    }
    let (round_trip_micros, resent) = (info.tcpi_rtt.into(), info.tcpi_total_retrans.into());
    LinkQuality { round_trip_micros, resent }
}

#[cfg(not(target_os = "linux"))]
fn quality(_socket: std::os::fd::RawFd) -> LinkQuality {
    LinkQuality::default()
}

/// A connection of one rank.
#[derive(Debug)]
struct TcpConnection {
    peer: Rank,
    stream: LinkSocket,
    /// If it is restored when it breaks.
    restorer: Option<Restorer>,
    /// If the two share memory.
    shared: Option<SharedPair>,
}

/// The connections of one rank.
#[derive(Debug)]
struct TcpEndpoint {
    connections: Vec<TcpConnection>,
}

impl RankEndpoint for TcpEndpoint {
    fn attach(self: Box<Self>, context: &AttachContext<'_>) -> io::Result<Attached> {
        let mut attached = Attached::default();
        for TcpConnection { peer, stream, restorer, shared } in self.connections {
            if let Some(pair) = shared {
                shared_memory::attach(pair, stream, peer, context, &mut attached)?;
                continue;
            }
            let route = Route { from: context.rank, to: peer };
            let kept_bytes = if restorer.is_some() { KEPT_BYTES } else { 0 };
            let unsent_bytes = budget_bytes(context.len, UNSENT_VECTORS);
            let budget = SendBudget { kept_bytes, unsent_bytes };
            let link = StreamLink::new(route, LinkBytes::new(stream)?, context.order, budget);
            let limits = limits(peer, context.rank, context.len, context.inspects);
            let receiving = Receiving { limits, pool: context.pool.metered() };
            attached.links.push((peer, Rc::<StreamLink<LinkBytes>>::clone(&link) as Rc<dyn Link>));
            let mut moving = MovingFrames { peer, link, receiving, restorer };
            attached.tasks.push(Box::new(move |sink| {
                Box::pin(async move {
                    let error = moving.run(&*sink).await;
                    sink.ended(peer, error);
                })
            }));
        }
        Ok(attached)
    }

    fn socket(&self, peer: Rank) -> Option<&TcpStream> {
        let connection = self.connections.iter().find(|connection| connection.peer == peer);
        connection.map(|connection| connection.stream.socket())
    }
}

/// What moves the frames of one connection.
struct MovingFrames {
    peer: Rank,
    link: Rc<StreamLink<LinkBytes>>,
    receiving: Receiving,
    restorer: Option<Restorer>,
}

impl MovingFrames {
    /// Moves frames until there is no connection and no way to restore it.
    async fn run(&mut self, sink: &dyn FrameSink) -> LinkError {
        let Some(restorer) = &mut self.restorer else {
            return self.link.run(&self.receiving, sink).await;
        };
        loop {
            let (reason, arrived) = tokio::select! {
                biased;
                reason = self.link.run(&self.receiving, sink) => (reason, None),
                arrived = restorer.superseded() => (LinkError::Superseded, Some(arrived)),
            };
            if !reason.is_disconnection() {
                return reason;
            }
            match restorer.restore(&self.link, arrived).await {
                Ok(()) => sink.restored(self.peer, &reason),
                Err(problem) => {
                    return LinkError::NotRestored { reason: Box::new(reason), problem };
                }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// One connection that is not restored.
    pub(crate) fn endpoint(peer: Rank, stream: TcpStream) -> Box<dyn RankEndpoint> {
        let stream = LinkSocket::Plain(stream);
        let connection = TcpConnection { peer, stream, restorer: None, shared: None };
        Box::new(TcpEndpoint { connections: vec![connection] })
    }

    /// One connection of two that share memory.
    pub(crate) fn shared_endpoint(
        peer: Rank,
        stream: TcpStream,
        pair: SharedPair,
    ) -> Box<dyn RankEndpoint> {
        let stream = LinkSocket::Plain(stream);
        let connection = TcpConnection { peer, stream, restorer: None, shared: Some(pair) };
        Box::new(TcpEndpoint { connections: vec![connection] })
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_system_knows_the_round_trip_of_a_connection_that_was_used() {
        use std::io::{Read, Write};
        let place = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut near = TcpStream::connect(place.local_addr().expect("bound")).expect("it listens");
        let (mut far, _) = place.accept().expect("it comes");
        for _ in 0..4 {
            near.write_all(&[1; 100]).expect("open");
            far.read_exact(&mut [0; 100]).expect("open");
            far.write_all(&[1; 100]).expect("open");
            near.read_exact(&mut [0; 100]).expect("open");
        }
        let found = quality(near.as_raw_fd());
        let seconds = found.round_trip_micros as f64 / 1e6;
        assert!(seconds > 0.0 && seconds < 60.0, "{found:?}");
        assert_eq!(quality(-1), LinkQuality::default(), "no socket, no answer");
    }
}
