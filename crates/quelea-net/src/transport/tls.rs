//! TLS between two ranks: the same sockets, with everything on them encrypted and both ends authenticated.
//!
//! A frame's bytes are encrypted into one buffer per connection, which is then written; what arrives is read
//! into another one and decrypted from there into the vectors themselves.

use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::net::TcpStream;

use quelea_core::message::Rank;

use super::LinkQuality;
use super::stream::ByteStream;
use super::tcp::TcpBytes;
use crate::error::NetError;
use crate::protocol::{PacketStream, Wait};
use crate::trust::{ControlStream, LinkIdentity, SEATS_POLL, TlsSession, seal_slices};

/// A connection between two ranks before it carries frames.
#[derive(Debug)]
pub(crate) enum LinkSocket {
    /// Within one machine, or where that was asked for.
    Plain(TcpStream),
    /// Encrypted.
    Tls(TlsSocket),
}

/// A socket with its session.
#[derive(Debug)]
pub(crate) struct TlsSocket {
    socket: TcpStream,
    session: RefCell<TlsSession>,
}

impl LinkSocket {
    /// Dials `peer`, who must show its certificate if there are any.
    pub(crate) fn dial(
        socket: TcpStream,
        identity: Option<&LinkIdentity>,
        peer: Rank,
        wait: Wait,
    ) -> Result<LinkSocket, String> {
        let Some(identity) = identity else { return Ok(LinkSocket::Plain(socket)) };
        let connection = identity.dial(peer.0).map_err(|error: NetError| error.to_string())?;
        let session = TlsSession::dial(connection, &socket, wait).map_err(|error| {
            format!("it could not be authenticated as {peer}: {}", handshake_problem(&error))
        })?;
        Ok(LinkSocket::Tls(TlsSocket { socket, session: RefCell::new(session) }))
    }

    /// Lets in somebody who shows a certificate of this run, if there are any.
    pub(crate) fn accept(
        socket: TcpStream,
        identity: Option<&LinkIdentity>,
        wait: Wait,
    ) -> Result<LinkSocket, String> {
        let Some(identity) = identity else { return Ok(LinkSocket::Plain(socket)) };
        let connection = identity.listen().map_err(|error: NetError| error.to_string())?;
        let session = TlsSession::listen(connection, &socket, wait).map_err(|error| {
            format!("it could not be authenticated: {}", handshake_problem(&error))
        })?;
        Ok(LinkSocket::Tls(TlsSocket { socket, session: RefCell::new(session) }))
    }

    /// The same connection, for control packets.
    pub(crate) fn into_control(self) -> ControlStream {
        match self {
            LinkSocket::Plain(socket) => ControlStream::plain(socket),
            LinkSocket::Tls(TlsSocket { socket, session }) => {
                ControlStream::secure(socket, session.into_inner())
            }
        }
    }

    /// Refuses a peer that says to be `rank` and shows the certificate of another.
    pub(crate) fn check_rank(
        &self,
        identity: Option<&LinkIdentity>,
        rank: Rank,
    ) -> Result<(), String> {
        let (LinkSocket::Tls(tls), Some(identity)) = (self, identity) else { return Ok(()) };
        let session = tls.session.borrow();
        let certificate = session.peer_certificate();
        if certificate.is_some_and(|certificate| identity.names(certificate, rank.0)) {
            return Ok(());
        }
        Err(format!("its certificate is not {rank}'s"))
    }
}

impl LinkSocket {
    /// Refuses a peer that wants to join the running run as `rank`, unless the seat of that rank was given
    /// to it after the last holder had left. Word of that may come a moment later than the peer.
    pub(crate) fn check_joiner(
        &self,
        identity: Option<&LinkIdentity>,
        rank: Rank,
        wait: &Wait,
    ) -> Result<(), String> {
        let Some(known) = identity else { return Ok(()) };
        loop {
            match self.check_rank(identity, rank) {
                Ok(()) if known.seats().is_given_anew(rank.0) => return Ok(()),
                Ok(()) if wait.left().is_zero() => {
                    return Err(format!("its certificate is that of the {rank} that has left"));
                }
                Err(reason) if wait.left().is_zero() => return Err(reason),
                _ => std::thread::sleep(SEATS_POLL),
            }
        }
    }
}

fn handshake_problem(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "it closed the connection during the handshake".into()
        }
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "it did not complete the handshake".into(),
        _ => error.to_string(),
    }
}

impl PacketStream for LinkSocket {
    fn socket(&self) -> &TcpStream {
        match self {
            LinkSocket::Plain(socket) => socket,
            LinkSocket::Tls(tls) => &tls.socket,
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let LinkSocket::Tls(tls) = self else { return self.socket().receive(buffer) };
        let mut session = tls.session.borrow_mut();
        loop {
            let count = session.open(buffer)?;
            if count > 0 || session.is_closed() {
                return Ok(count);
            }
            match tls.socket.receive(session.room())? {
                0 => return Ok(0),
                count => session.received(count),
            }
        }
    }

    fn transmit(&self, bytes: &[u8]) -> io::Result<()> {
        let LinkSocket::Tls(tls) = self else { return self.socket().transmit(bytes) };
        let (mut session, mut rest) = (tls.session.borrow_mut(), bytes);
        while !rest.is_empty() {
            let count = session.seal(rest)?;
            rest = &rest[count..];
            (&tls.socket).write_all(session.unsent())?;
            let sent = session.unsent().len();
            session.sent(sent);
        }
        Ok(())
    }
}

/// A connection inside the runtime of its rank.
#[derive(Debug)]
pub(super) enum LinkBytes {
    Plain(TcpBytes),
    Tls(TlsBytes),
}

/// An encrypted one.
#[derive(Debug)]
pub(super) struct TlsBytes {
    socket: TcpBytes,
    session: RefCell<TlsSession>,
}

impl LinkBytes {
    /// Must be called inside a runtime.
    pub(super) fn new(socket: LinkSocket) -> io::Result<LinkBytes> {
        Ok(match socket {
            LinkSocket::Plain(socket) => LinkBytes::Plain(TcpBytes::new(socket)?),
            LinkSocket::Tls(TlsSocket { socket, session }) => {
                LinkBytes::Tls(TlsBytes { socket: TcpBytes::new(socket)?, session })
            }
        })
    }

    fn socket(&self) -> &TcpBytes {
        match self {
            LinkBytes::Plain(socket) => socket,
            LinkBytes::Tls(tls) => &tls.socket,
        }
    }
}

impl ByteStream for LinkBytes {
    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            LinkBytes::Plain(socket) => socket.try_write_vectored(slices),
            LinkBytes::Tls(tls) => tls.try_write_vectored(slices),
        }
    }

    fn try_flush(&self) -> io::Result<()> {
        match self {
            LinkBytes::Plain(_) => Ok(()),
            LinkBytes::Tls(tls) => tls.try_flush(),
        }
    }

    async fn writable(&self) -> io::Result<()> {
        self.socket().writable().await
    }

    fn try_read(&self, target: &mut [u8]) -> io::Result<usize> {
        match self {
            LinkBytes::Plain(socket) => socket.try_read(target),
            LinkBytes::Tls(tls) => tls.try_read(target),
        }
    }

    async fn readable(&self) -> io::Result<()> {
        match self {
            LinkBytes::Tls(tls) if tls.session.borrow().has_more() => Ok(()),
            _ => self.socket().readable().await,
        }
    }

    fn expect_bytes(&self, missing: usize) {
        // What is here already will not come again; encrypted bytes are never fewer than plain ones.
        let here = match self {
            LinkBytes::Plain(_) => 0,
            LinkBytes::Tls(tls) => tls.session.borrow().unopened(),
        };
        self.socket().expect_bytes(missing.saturating_sub(here));
    }

    fn quality(&self) -> LinkQuality {
        self.socket().quality()
    }
}

impl TlsBytes {
    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.try_flush()?;
        let count = seal_slices(&mut self.session.borrow_mut(), slices)?;
        match self.try_flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            // The rest is written first by the next call.
            _ => Ok(count),
        }
    }

    fn try_flush(&self) -> io::Result<()> {
        let mut session = self.session.borrow_mut();
        while !session.unsent().is_empty() {
            let count = self.socket.try_write_vectored(&[IoSlice::new(session.unsent())])?;
            session.sent(count);
        }
        Ok(())
    }

    fn try_read(&self, target: &mut [u8]) -> io::Result<usize> {
        let mut session = self.session.borrow_mut();
        loop {
            let count = session.open(target)?;
            if count > 0 || session.is_closed() {
                return Ok(count);
            }
            match self.socket.try_read(session.room())? {
                0 => return Ok(0),
                count => session.received(count),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::trust::{RankKey, RankSeat, RunAuthority};

    fn identity(authority: &RunAuthority, run: u64, rank: u32) -> LinkIdentity {
        let key = RankKey::new().expect("a key");
        let seat = RankSeat { rank, times: 1 };
        let credentials = authority.certify(seat, key.public()).expect("a certificate");
        let identity = key.identity(run, &credentials).expect("a good one");
        identity.seats().set(vec![1, 1, 1, 1]);
        identity
    }

    /// Both ends of a connection on which `dialler` dials rank 0, who is `listener`.
    fn connected(
        dialler: &LinkIdentity,
        listener: &LinkIdentity,
    ) -> (Result<LinkSocket, String>, Result<LinkSocket, String>) {
        let place = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = place.local_addr().expect("it listens");
        let wait = || Wait::new(5.0, "a handshake");
        std::thread::scope(|scope| {
            let dialled = scope.spawn(move || {
                let socket = TcpStream::connect(address).expect("it listens");
                LinkSocket::dial(socket, Some(dialler), Rank(0), wait())
            });
            let (socket, _) = place.accept().expect("it comes");
            let accepted = LinkSocket::accept(socket, Some(listener), wait());
            (dialled.join().expect("no panic"), accepted)
        })
    }

    #[test]
    fn two_ranks_of_a_run_know_each_other_and_nobody_passes_for_another() {
        let authority = RunAuthority::new(7).expect("a key");
        let [zero, one] = [0, 1].map(|rank| identity(&authority, 7, rank));
        let (dialled, accepted) = connected(&one, &zero);
        let (dialled, accepted) = (dialled.expect("rank 0"), accepted.expect("a rank"));
        accepted.check_rank(Some(&zero), Rank(1)).expect("it is rank 1");
        let told = accepted.check_rank(Some(&zero), Rank(2)).expect_err("it is not");
        assert_eq!(told, "its certificate is not rank 2's");
        std::thread::scope(|scope| {
            let bytes: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
            let sent = bytes.clone();
            scope.spawn(move || dialled.transmit(&sent).expect("it is open"));
            let (mut all, mut part) = (Vec::new(), [0; 1000]);
            while all.len() < bytes.len() {
                let count = accepted.receive(&mut part).expect("it is open");
                all.extend_from_slice(&part[..count]);
            }
            assert!(all == bytes);
        });
        // Rank 1 in place of rank 0.
        let (dialled, _) = connected(&zero, &one);
        let told = dialled.expect_err("it is rank 1");
        assert!(told.starts_with("it could not be authenticated as rank 0"), "{told}");
    }

    #[test]
    fn whoever_had_the_seat_before_is_no_longer_that_rank() {
        let authority = RunAuthority::new(7).expect("a key");
        let holder = |times| {
            let key = RankKey::new().expect("a key");
            let credentials = authority.certify(RankSeat { rank: 1, times }, key.public());
            let identity = key.identity(7, &credentials.expect("a certificate"));
            let identity = identity.expect("a good one");
            identity.seats().set(vec![1, 2]);
            identity
        };
        let key = RankKey::new().expect("a key");
        let credentials = authority.certify(RankSeat { rank: 0, times: 1 }, key.public());
        let zero = key.identity(7, &credentials.expect("a certificate")).expect("a good one");
        zero.seats().set(vec![1, 2]);
        for (times, is_accepted) in [(1, false), (2, true)] {
            let (_, accepted) = connected(&holder(times), &zero);
            let checked = accepted.expect("of this run").check_rank(Some(&zero), Rank(1));
            assert_eq!(checked.is_ok(), is_accepted, "{times}");
        }
    }

    #[test]
    fn a_rank_of_another_run_is_refused_on_both_sides() {
        let (authority, other) =
            (RunAuthority::new(7).expect("a key"), RunAuthority::new(7).expect("a key"));
        let (own, stranger) = (identity(&authority, 7, 0), identity(&other, 7, 1));
        let (dialled, accepted) = connected(&stranger, &own);
        assert!(dialled.is_err() && accepted.is_err());
    }
}
