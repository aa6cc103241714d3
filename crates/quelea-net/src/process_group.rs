//! Processes that do something together outside a run: agree at the start, wait for each other,
//! average a vector.
//!
//! Rank 0 is the hub. Everybody gives it something; it makes one answer of all and gives that to
//! everybody. Whoever dies breaks its connection, and the others hear who it was.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::launcher::{self, Launched, PublishedAddress, Rendezvous};

/// The first bytes on every connection.
const MAGIC: [u8; 8] = *b"quelea\x00\x02";
/// How long a word of an opened connection may take to come.
const HELLO: Duration = Duration::from_secs(5);
/// How often somebody who waits looks up.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The longest sentence about what went wrong.
const REASON_BYTES: u64 = 64 << 10;

/// Why processes could not do something together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcessGroupError {
    /// They did not find each other.
    #[error("{0}")]
    Setup(String),
    /// Somebody is gone.
    #[error("rank {rank} is gone while the others were at {what}: {reason}")]
    Gone {
        /// Who.
        rank: u32,
        /// At what.
        what: String,
        /// How it was noticed.
        reason: String,
    },
    /// The hub made no answer of what everybody gave.
    #[error("{0}")]
    Refused(String),
    /// Whoever waited was told to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Looks up now and then while it waits: `false` ends the waiting.
pub type KeepWaiting<'a> = &'a mut dyn FnMut() -> bool;

/// All processes of one launch.
#[derive(Debug)]
pub struct ProcessGroup {
    rank: u32,
    /// At rank 0 the others, by rank; elsewhere rank 0 alone.
    peers: Vec<(u32, TcpStream)>,
    address: IpAddr,
}

impl ProcessGroup {
    /// Finds the others, within so many seconds.
    pub fn open(
        launched: &Launched,
        seconds: f64,
        keep_waiting: KeepWaiting<'_>,
    ) -> Result<ProcessGroup, ProcessGroupError> {
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        match launched.rank {
            0 => gather(launched, until, keep_waiting),
            _ => find(launched, until, keep_waiting),
        }
    }

    /// Where the hub's machine is reached; at the hub, the address to listen on.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Everybody gives `mine`; everybody gets what the hub's `fold` makes of all, which are in the
    /// order of ranks. `what` names the call: all must be at the same one.
    pub fn together(
        &mut self,
        what: &str,
        mine: Vec<u8>,
        fold: impl FnOnce(Vec<Vec<u8>>) -> Result<Vec<u8>, String>,
        keep_waiting: KeepWaiting<'_>,
    ) -> Result<Vec<u8>, ProcessGroupError> {
        let gone = |rank: u32, error: &io::Error| match error.kind() {
            ErrorKind::Interrupted => ProcessGroupError::Interrupted,
            _ => ProcessGroupError::Gone { rank, what: what.into(), reason: said(error) },
        };
        if self.rank != 0 {
            let (rank, stream) = &mut self.peers[0];
            let answer = write(stream, true, what, &mine, keep_waiting)
                .and_then(|()| read(stream, keep_waiting))
                .map_err(|error| gone(*rank, &error))?;
            return if answer.good {
                Ok(answer.body)
            } else {
                Err(ProcessGroupError::Refused(String::from_utf8_lossy(&answer.body).into()))
            };
        }
        let mut all = vec![mine];
        let mut failure = None;
        for (rank, stream) in &mut self.peers {
            match read(stream, keep_waiting) {
                Ok(word) if word.what == what => all.push(word.body),
                Ok(word) => {
                    let reason = format!(
                        "rank 0 is at {what}, but rank {rank} at {}: all ranks must make \
                                 the same calls in the same order",
                        word.what
                    );
                    failure = Some(ProcessGroupError::Refused(reason));
                }
                Err(error) => failure = Some(gone(*rank, &error)),
            }
            if failure.is_some() {
                break;
            }
        }
        let folded = match failure {
            Some(error) => Err(error),
            None => fold(all).map_err(ProcessGroupError::Refused),
        };
        for (rank, stream) in &mut self.peers {
            let told = match &folded {
                Ok(body) => write(stream, true, what, body, keep_waiting),
                Err(error) => {
                    // Whoever is gone already is the reason, or is as good as gone.
                    let _ = write(stream, false, what, error.to_string().as_bytes(), keep_waiting);
                    Ok(())
                }
            };
            told.map_err(|error| gone(*rank, &error))?;
        }
        folded
    }
}

fn said(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "its process has ended".into()
        }
        _ => error.to_string(),
    }
}

fn refused(text: impl Into<String>) -> ProcessGroupError {
    ProcessGroupError::Setup(text.into())
}

/// The hub waits for the others.
fn gather(
    launched: &Launched,
    until: Instant,
    keep_waiting: KeepWaiting<'_>,
) -> Result<ProcessGroup, ProcessGroupError> {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    if launched.world == 1 {
        return Ok(ProcessGroup { rank: 0, peers: Vec::new(), address: local });
    }
    let (ip, port) = match &launched.rendezvous {
        Rendezvous::LocalFile(_) => (local, 0),
        Rendezvous::Address(address) => {
            let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
            let near = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
            let ip = if near { local } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
            (ip, port.parse().unwrap_or(0))
        }
    };
    let listener = TcpListener::bind((ip, port))
        .map_err(|error| refused(format!("cannot listen on {ip}:{port}: {error}")))?;
    let own = listener.local_addr().map_err(|error| refused(error.to_string()))?;
    listener.set_nonblocking(true).map_err(|error| refused(error.to_string()))?;
    let published = match &launched.rendezvous {
        Rendezvous::LocalFile(path) => Some(
            PublishedAddress::new(path, own)
                .map_err(|error| refused(format!("{}: {error}", path.display())))?,
        ),
        Rendezvous::Address(_) => None,
    };
    let mut peers: Vec<(u32, TcpStream)> = Vec::new();
    while peers.len() + 1 < launched.world as usize {
        match listener.accept() {
            // A visitor that is not one of us is none of our business.
            Ok((stream, _)) => peers.extend(admit(stream, launched, &peers)),
            Err(_) if Instant::now() > until => {
                let there = |rank: &u32| peers.iter().any(|(here, _)| here == rank);
                let missing: Vec<String> = (1..launched.world)
                    .filter(|rank| !there(rank))
                    .map(|rank| rank.to_string())
                    .collect();
                return Err(refused(format!(
                    "waited at {own} for {} processes, but rank {} did not come to init()",
                    launched.world,
                    missing.join(", rank ")
                )));
            }
            Err(_) if !keep_waiting() => return Err(ProcessGroupError::Interrupted),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    drop(published);
    peers.sort_by_key(|(rank, _)| *rank);
    Ok(ProcessGroup { rank: 0, peers, address: ip })
}

/// Hears who a visitor is.
fn admit(
    mut stream: TcpStream,
    launched: &Launched,
    peers: &[(u32, TcpStream)],
) -> Option<(u32, TcpStream)> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(HELLO)).ok()?;
    let mut hello = [0; 16];
    stream.read_exact(&mut hello).ok()?;
    let number = |at: usize| u32::from_le_bytes(hello[at..at + 4].try_into().expect("four"));
    let (rank, world) = (number(8), number(12));
    let reason = if hello[..8] != MAGIC {
        return None;
    } else if world != launched.world {
        format!("it was started as one of {world}, rank 0 as one of {}", launched.world)
    } else if rank == 0 || rank >= world || peers.iter().any(|(here, _)| *here == rank) {
        format!("rank {rank} is taken")
    } else {
        String::new()
    };
    let (good, ever) = (reason.is_empty(), &mut || true);
    write(&mut stream, good, "init", reason.as_bytes(), ever).ok()?;
    tune(&stream).ok()?;
    good.then_some((rank, stream))
}

/// One of the others looks for the hub until it is there.
fn find(
    launched: &Launched,
    until: Instant,
    keep_waiting: KeepWaiting<'_>,
) -> Result<ProcessGroup, ProcessGroupError> {
    let (rank, place) = (launched.rank, launched.rendezvous.to_join());
    loop {
        let problem = match launcher::resolve(&place) {
            Ok((address, _)) => match greet(&address, launched) {
                Ok((stream, word)) if word.good => {
                    let address = stream.peer_addr().map_err(|error| refused(error.to_string()))?;
                    return Ok(ProcessGroup {
                        rank,
                        peers: vec![(0, stream)],
                        address: address.ip(),
                    });
                }
                Ok((_, word)) => return Err(refused(String::from_utf8_lossy(&word.body))),
                Err(error) => error.to_string(),
            },
            Err(problem) => problem,
        };
        if Instant::now() > until {
            return Err(refused(format!("rank {rank} did not find rank 0 at {place}: {problem}")));
        }
        if !keep_waiting() {
            return Err(ProcessGroupError::Interrupted);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn greet(address: &str, launched: &Launched) -> io::Result<(TcpStream, Frame)> {
    let target: SocketAddr = address
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::other("the name has no address"))?;
    let mut stream = TcpStream::connect_timeout(&target, HELLO)?;
    stream.set_read_timeout(Some(HELLO))?;
    stream.write_all(&MAGIC)?;
    stream.write_all(&launched.rank.to_le_bytes())?;
    stream.write_all(&launched.world.to_le_bytes())?;
    let begun = Instant::now();
    let word = read(&mut stream, &mut || begun.elapsed() < HELLO)?;
    tune(&stream)?;
    Ok((stream, word))
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(POLL_INTERVAL))?;
    stream.set_write_timeout(Some(POLL_INTERVAL))
}

/// What goes over a connection: whether it is good, of which call it is, and what it says.
struct Frame {
    good: bool,
    what: String,
    body: Vec<u8>,
}

fn write(
    stream: &mut TcpStream,
    good: bool,
    what: &str,
    body: &[u8],
    keep_waiting: KeepWaiting<'_>,
) -> io::Result<()> {
    let mut head = vec![u8::from(good), what.len().min(255) as u8];
    head.extend_from_slice(&what.as_bytes()[..what.len().min(255)]);
    head.extend_from_slice(&(body.len() as u64).to_le_bytes());
    write_all(stream, &head, keep_waiting)?;
    write_all(stream, body, keep_waiting)
}

fn write_all(
    stream: &mut TcpStream,
    mut bytes: &[u8],
    keep_waiting: KeepWaiting<'_>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::BrokenPipe.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) => look_up(error, keep_waiting)?,
        }
    }
    Ok(())
}

fn read(stream: &mut TcpStream, keep_waiting: KeepWaiting<'_>) -> io::Result<Frame> {
    let mut head = [0; 2];
    read_exact(stream, &mut head, keep_waiting)?;
    let mut what = vec![0; usize::from(head[1])];
    read_exact(stream, &mut what, keep_waiting)?;
    let mut len = [0; 8];
    read_exact(stream, &mut len, keep_waiting)?;
    let (good, len) = (head[0] == 1, u64::from_le_bytes(len));
    if !good && len > REASON_BYTES {
        return Err(io::Error::other(format!("a reason of {len} bytes")));
    }
    // Memory follows what has really come, whatever was announced.
    let mut body = Vec::new();
    let mut part = vec![0; len.min(1 << 20) as usize];
    let mut left = len;
    while left > 0 {
        let take = left.min(part.len() as u64) as usize;
        read_exact(stream, &mut part[..take], keep_waiting)?;
        body.extend_from_slice(&part[..take]);
        left -= take as u64;
    }
    Ok(Frame { good, what: String::from_utf8_lossy(&what).into_owned(), body })
}

fn read_exact(
    stream: &mut TcpStream,
    mut out: &mut [u8],
    keep_waiting: KeepWaiting<'_>,
) -> io::Result<()> {
    while !out.is_empty() {
        match stream.read(out) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => out = &mut out[count..],
            Err(error) => look_up(error, keep_waiting)?,
        }
    }
    Ok(())
}

/// Nothing has moved for a moment; whoever waits may have had enough.
fn look_up(error: io::Error, keep_waiting: KeepWaiting<'_>) -> io::Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {
            if keep_waiting() {
                Ok(())
            } else {
                Err(ErrorKind::Interrupted.into())
            }
        }
        _ => Err(error),
    }
}
