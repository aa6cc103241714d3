//! How the processes of a group find each other: everybody listens, tells the others where by
//! other means (PyTorch's store), and connects to all lower ranks.
//!
//! A connection starts with a token that all ranks of the group have from the store, so that no
//! other process, and no other group, is taken for a peer. That is no protection from whoever reads
//! the network: connections are plain, and leave this machine only where [`Reach::Network`] was asked
//! for.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use crate::trust::{host_of, is_own};

/// The first bytes of every connection.
const MAGIC: [u8; 8] = *b"quelea\x01t";
/// Magic, token, who and to whom.
const HELLO_BYTES: usize = 8 + TOKEN_BYTES + 4 + 4;
const TOKEN_BYTES: usize = 16;
/// How long the first words of a connection may take.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// What all ranks of a group know, and nobody else.
pub type GroupToken = [u8; TOKEN_BYTES];

/// How far the connections of a group may go. They are neither encrypted nor authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Not beyond this machine.
    Loopback,
    /// To other machines, whose network everybody may read and change who can reach it.
    Network,
}

/// Where a process waits for its peers.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    port: u16,
    reach: Reach,
}

impl Listener {
    /// Listens on loopback, or on all addresses of this machine.
    pub fn bind(reach: Reach) -> io::Result<Listener> {
        let ip = match reach {
            Reach::Loopback => Ipv4Addr::LOCALHOST,
            Reach::Network => Ipv4Addr::UNSPECIFIED,
        };
        let listener = TcpListener::bind((ip, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        Ok(Listener { listener, port, reach })
    }

    /// How far its group may go.
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address of this machine on the way to `host`, if the name has an address.
    pub fn address_towards(host: &str) -> Option<IpAddr> {
        let target = (host, 9).to_socket_addrs().ok()?.find(SocketAddr::is_ipv4)?;
        let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
        // Nothing is sent: the kernel only chooses the way.
        socket.connect(target).ok()?;
        Some(socket.local_addr().ok()?.ip())
    }
}

/// Everybody's addresses, from one rank's side.
#[derive(Clone, Debug)]
pub struct Peers {
    /// My rank.
    pub rank: usize,
    /// Where everybody can be reached, by rank: each a list of `host:port`.
    pub addresses: Vec<Vec<String>>,
    /// What only this group knows.
    pub token: GroupToken,
}

/// Refuses a group with ranks on other machines: those that are not at a loopback address, or whose other
/// addresses are not mine.
fn check_all_here(peers: &Peers, names: &[u32]) -> Result<(), String> {
    let elsewhere = |rank: usize| -> BTreeSet<&str> {
        let hosts = peers.addresses[rank].iter().map(|address| host_of(address));
        hosts.filter(|host| !is_own(host)).collect()
    };
    let mine = elsewhere(peers.rank);
    for (rank, addresses) in peers.addresses.iter().enumerate() {
        let is_here = addresses.iter().any(|address| is_own(host_of(address)));
        if !is_here || elsewhere(rank) != mine {
            return Err(format!(
                "rank {} at {} is not on this machine, and connections of this group are neither \
                 encrypted nor authenticated: set QUELEA_INSECURE=1 at all ranks where everybody who \
                 can reach the network may read and change them",
                names[rank],
                addresses.join(", ")
            ));
        }
    }
    Ok(())
}

/// Connections to all others, by rank; none to myself.
pub(super) fn mesh(
    listener: Listener,
    peers: &Peers,
    until: Instant,
    names: &[u32],
) -> Result<Vec<Option<TcpStream>>, String> {
    if listener.reach == Reach::Loopback {
        check_all_here(peers, names)?;
    }
    let mut streams: Vec<Option<TcpStream>> = peers.addresses.iter().map(|_| None).collect();
    // Whoever listens has a queue for those who come before it accepts: no rank waits here for
    // one that waits for it.
    for (rank, stream) in streams.iter_mut().enumerate().take(peers.rank) {
        *stream = Some(connect(peers, rank, listener.reach, until).map_err(|problem| {
            format!(
                "no connection to rank {} at {}: {problem}",
                names[rank],
                peers.addresses[rank].join(", ")
            )
        })?);
    }
    let mut visitors = Newcomers::default();
    while streams.iter().skip(peers.rank + 1).any(Option::is_none) {
        if Instant::now() > until {
            let missing = (peers.rank + 1..streams.len()).find(|rank| streams[*rank].is_none());
            let missing = names[missing.expect("one is missing")];
            return Err(format!("rank {missing} has not connected within the time limit"));
        }
        visitors.accept(&listener.listener);
        let admitted = visitors.admit(peers);
        if admitted.is_empty() {
            std::thread::sleep(RETRY_INTERVAL);
        }
        for (rank, stream) in admitted {
            streams[rank] = Some(stream);
        }
    }
    Ok(streams)
}

fn hello(peers: &Peers, from: usize, to: usize) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..8 + TOKEN_BYTES].copy_from_slice(&peers.token);
    bytes[8 + TOKEN_BYTES..][..4].copy_from_slice(&(from as u32).to_le_bytes());
    bytes[8 + TOKEN_BYTES + 4..].copy_from_slice(&(to as u32).to_le_bytes());
    bytes
}

fn connect(peers: &Peers, rank: usize, reach: Reach, until: Instant) -> Result<TcpStream, String> {
    let may_dial = |address: &&String| reach == Reach::Network || is_own(host_of(address));
    let dialled: Vec<&String> = peers.addresses[rank].iter().filter(may_dial).collect();
    let mut problem = String::from("it has published no address");
    loop {
        for address in &dialled {
            match greet(address, peers, rank, until) {
                Ok(stream) => return Ok(stream),
                Err(error) => problem = error.to_string(),
            }
        }
        if Instant::now() > until {
            return Err(problem);
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

fn greet(address: &str, peers: &Peers, rank: usize, until: Instant) -> io::Result<TcpStream> {
    let no_address = || io::Error::other("the name has no address");
    let target = address.to_socket_addrs()?.next().ok_or_else(no_address)?;
    let mut stream = TcpStream::connect_timeout(&target, HELLO_LIMIT)?;
    // It answers when it has found all lower ranks itself.
    let left = until.saturating_duration_since(Instant::now()).max(RETRY_INTERVAL);
    stream.set_read_timeout(Some(left))?;
    stream.write_all(&hello(peers, peers.rank, rank))?;
    let mut answer = [0; HELLO_BYTES];
    stream.read_exact(&mut answer)?;
    if answer != hello(peers, rank, peers.rank) {
        return Err(io::Error::other("another process listens there"));
    }
    Ok(stream)
}

/// Newcomers whose first words are awaited at once; of more, those that came first are sent away.
const VISITORS: usize = 256;

/// Somebody who has connected and not shown yet who it is.
#[derive(Debug)]
struct Newcomer {
    stream: TcpStream,
    bytes: [u8; HELLO_BYTES],
    filled: usize,
    since: Instant,
}

/// Those who have connected. None of them is waited for: one that is silent, or slow, holds up nobody.
#[derive(Debug, Default)]
struct Newcomers {
    waiting: VecDeque<Newcomer>,
}

impl Newcomers {
    /// Takes in those who have come.
    fn accept(&mut self, listener: &TcpListener) {
        for _ in 0..VISITORS {
            let Ok((stream, _)) = listener.accept() else { return };
            if stream.set_nonblocking(true).is_ok() {
                let (bytes, since) = ([0; HELLO_BYTES], Instant::now());
                self.waiting.push_back(Newcomer { stream, bytes, filled: 0, since });
            }
            if self.waiting.len() > VISITORS {
                self.waiting.pop_front();
            }
        }
    }

    /// Answers those who know the token; others are none of our business.
    fn admit(&mut self, peers: &Peers) -> Vec<(usize, TcpStream)> {
        let mut admitted = Vec::new();
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        self.waiting = waiting
            .filter_map(|mut visitor| match visitor.read() {
                Ok(()) if visitor.filled == HELLO_BYTES => {
                    admitted.extend(visitor.answered(peers));
                    None
                }
                Ok(()) => (visitor.since.elapsed() < HELLO_LIMIT).then_some(visitor),
                Err(_) => None,
            })
            .collect();
        admitted
    }
}

impl Newcomer {
    /// Reads what is there of its first words.
    fn read(&mut self) -> io::Result<()> {
        while self.filled < HELLO_BYTES {
            match self.stream.read(&mut self.bytes[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Its rank, if it knows the token.
    fn answered(mut self, peers: &Peers) -> Option<(usize, TcpStream)> {
        let from = (peers.rank + 1..peers.addresses.len())
            .find(|rank| self.bytes == hello(peers, *rank, peers.rank))?;
        self.stream.set_nonblocking(false).ok()?;
        self.stream.set_write_timeout(Some(HELLO_LIMIT)).ok()?;
        self.stream.write_all(&hello(peers, peers.rank, from)).ok()?;
        Some((from, self.stream))
    }
}
