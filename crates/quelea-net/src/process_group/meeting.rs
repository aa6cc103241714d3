//! How the processes of a group find each other: rank 0 listens, the others come.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quelea_control::{REASON_CHARS, shown};

use super::frames::{Frame, read_up_to, write};
use super::members::{AddressFile, Arrival, GroupMembers, RunUnderWay};
use super::{KeepWaiting, ProcessGroup, ProcessGroupError, refused, said};
use crate::launcher::{self, Launched, PublishedAddress, Rendezvous};
use crate::protocol::{PacketStream, Wait};
use crate::rendezvous::listener::{GuardedListener, WhenBusy};
use crate::trust::{self, Access, ControlStream, Security};

/// The first bytes on every connection; the version follows them.
const MAGIC: [u8; 7] = *b"quelea\x00";
/// What the processes of this program speak: the version of everything else that they send.
const SPOKEN: u8 = quelea_wire::VERSION as u8;
/// How long an opened connection may take to show that it belongs here, however slowly bytes drip in.
const HELLO_SECONDS: f64 = 5.0;
/// How often somebody who waits looks up.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The longest answer to a hello.
const INIT_BYTES: u64 = 64 << 10;

/// Where the hub hears processes that come late. Dropping it closes it.
#[derive(Debug)]
pub(super) struct Door {
    _listener: GuardedListener,
}

/// Where a hub waits for the others of its group.
#[derive(Debug)]
pub(super) struct HubListener {
    listener: TcpListener,
    /// The address that it listens on.
    ip: IpAddr,
    /// The call at which the others are expected.
    what: &'static str,
}

impl HubListener {
    /// Listens at this address; 0 is any free port.
    pub(super) fn bind(
        ip: IpAddr,
        port: u16,
        what: &'static str,
    ) -> Result<HubListener, ProcessGroupError> {
        let listener = TcpListener::bind((ip, port))
            .map_err(|error| refused(format!("cannot listen on {ip}:{port}: {error}")))?;
        Ok(HubListener { listener, ip, what })
    }

    /// Its port.
    pub(super) fn port(&self) -> Result<u16, ProcessGroupError> {
        let own = self.listener.local_addr();
        own.map(|own| own.port()).map_err(|error| refused(error.to_string()))
    }
}

/// The hub waits for the others.
pub(super) fn gather(
    launched: &Launched,
    security: &Security,
    wait: Wait,
    keep_waiting: KeepWaiting<'_>,
) -> Result<ProcessGroup, ProcessGroupError> {
    if launched.world == 1 {
        return Ok(ProcessGroup::alone());
    }
    let (ip, port) = listening_place(&launched.rendezvous);
    gather_at(HubListener::bind(ip, port, "init()")?, launched, security, wait, keep_waiting)
}

/// The hub waits for the others where it listens already.
pub(super) fn gather_at(
    hub: HubListener,
    launched: &Launched,
    security: &Security,
    wait: Wait,
    keep_waiting: KeepWaiting<'_>,
) -> Result<ProcessGroup, ProcessGroupError> {
    let HubListener { listener, ip, what } = hub;
    let text = |error: &dyn std::fmt::Display| refused(error.to_string());
    let own = listener.local_addr().map_err(|error| text(&error))?;
    let access = Access::new(0, ip, security, f64::MAX).map_err(|error| text(&error))?;
    let published = match &launched.rendezvous {
        Rendezvous::LocalFile(path) => Some(
            PublishedAddress::new(path, own)
                .map_err(|error| refused(format!("{}: {error}", path.display())))?,
        ),
        Rendezvous::Address(_) => None,
        Rendezvous::Mpi => return Err(refused("process groups do not meet over MPI")),
    };
    let (arrived, arrivals) = channel();
    let (world, arrived) = (launched.world, Mutex::new(arrived));
    let members = GroupMembers::default();
    let hearing = members.clone();
    // Every visitor is heard on a thread of its own: one that is silent or slow holds up nobody.
    let listener = GuardedListener::open(listener, WhenBusy::Close, move |stream, _| {
        // A visitor that is not one of us is none of our business.
        if let Some(found) = admit(stream, access.as_ref(), world, &hearing) {
            let _ = arrived.lock().unwrap_or_else(PoisonError::into_inner).send(found);
        }
    })
    .map_err(|error| text(&error))?;
    let mut peers: BTreeMap<u32, ControlStream> = BTreeMap::new();
    while peers.len() + 1 < launched.world as usize {
        match arrivals.recv_timeout(wait.left().min(POLL_INTERVAL)) {
            Ok((rank, stream)) => drop(peers.insert(rank, stream)),
            Err(RecvTimeoutError::Disconnected) => return Err(refused("nobody listens any more")),
            Err(RecvTimeoutError::Timeout) if wait.left().is_zero() => {
                return Err(missing(own, what, launched, &peers));
            }
            Err(RecvTimeoutError::Timeout) if !keep_waiting() => {
                return Err(ProcessGroupError::Interrupted);
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    drop(published);
    members.complete(match &launched.rendezvous {
        Rendezvous::LocalFile(path) => {
            Some(AddressFile { path: path.clone(), address: own, published: None })
        }
        Rendezvous::Address(_) | Rendezvous::Mpi => None,
    });
    let door = Door { _listener: listener };
    Ok(ProcessGroup { members, _door: Some(door), ..group(0, peers, ip) })
}

/// A group whose door is closed.
pub(super) fn group(
    rank: u32,
    peers: BTreeMap<u32, ControlStream>,
    address: IpAddr,
) -> ProcessGroup {
    let members = GroupMembers::default();
    ProcessGroup { rank, peers, address, members, joinable: None, _door: None }
}

/// Loopback unless others must reach this machine.
fn listening_place(rendezvous: &Rendezvous) -> (IpAddr, u16) {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    match rendezvous {
        Rendezvous::LocalFile(_) | Rendezvous::Mpi => (local, 0),
        Rendezvous::Address(address) => {
            let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
            let all = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
            (if trust::is_own(host) { local } else { all }, port.parse().unwrap_or(0))
        }
    }
}

fn missing(
    own: SocketAddr,
    what: &str,
    launched: &Launched,
    peers: &BTreeMap<u32, ControlStream>,
) -> ProcessGroupError {
    let missing = (1..launched.world).filter(|rank| !peers.contains_key(rank));
    let missing: Vec<String> = missing.map(|rank| rank.to_string()).collect();
    refused(format!(
        "waited at {own} for {} processes, but rank {} did not come to {what}",
        launched.world,
        missing.join(", rank ")
    ))
}

/// Hears who a visitor is. One that comes late is kept until it has joined the run.
fn admit(
    socket: TcpStream,
    access: Option<&Access>,
    expected: u32,
    members: &GroupMembers,
) -> Option<(u32, ControlStream)> {
    let wait = Wait::new(HELLO_SECONDS, "a hello");
    let limit = Some(Duration::from_secs_f64(HELLO_SECONDS));
    socket.set_write_timeout(limit).ok()?;
    let stream = ControlStream::admit(socket, access, wait).ok()?;
    let mut hello = [0; 16];
    stream.receive_all(&mut hello, &wait).ok()?;
    let number = |at: usize| u32::from_le_bytes(hello[at..at + 4].try_into().expect("four"));
    let (rank, world) = (number(8), number(12));
    if hello[..7] != MAGIC {
        return None;
    }
    let arrival = match hello[7] {
        SPOKEN if world == expected => members.arrive(rank, world),
        SPOKEN => Arrival::Refused(format!(
            "it was started as one of {world}, rank 0 as one of {expected}"
        )),
        other => Arrival::Refused(format!(
            "it speaks version {other}, rank 0 speaks version {SPOKEN}: all processes of a run \
             need the same version of quelea"
        )),
    };
    let (good, body) = match &arrival {
        Arrival::Expected => (true, Vec::new()),
        Arrival::Late(run) => (true, run.to_bytes()),
        Arrival::Refused(reason) => (false, reason.clone().into_bytes()),
    };
    if matches!(arrival, Arrival::Late(_)) {
        // Before it knows that it may join: whoever is greeted is known here.
        members.keep(rank, stream.clone());
    }
    let ever = &mut || !wait.left().is_zero();
    let greeted = write(&stream, good, "init", &body, ever).and_then(|()| tune(&stream));
    match (arrival, greeted) {
        (Arrival::Expected, Ok(())) => Some((rank, stream)),
        (Arrival::Expected, Err(_)) => {
            members.leave(rank);
            None
        }
        (Arrival::Late(_) | Arrival::Refused(_), _) => None,
    }
}

/// One of the others looks for the hub until it is there.
pub(super) fn find(
    launched: &Launched,
    security: &Security,
    wait: Wait,
    keep_waiting: KeepWaiting<'_>,
) -> Result<ProcessGroup, ProcessGroupError> {
    let (rank, place) = (launched.rank, launched.rendezvous.to_join());
    loop {
        let problem = match launcher::resolve(&place) {
            Ok((address, _)) => match greet(&address, launched, security, wait) {
                Ok((stream, word)) if word.good => {
                    let address = stream.peer_addr().map_err(|error| refused(error.to_string()))?;
                    let joinable = RunUnderWay::from_bytes(&word.body);
                    let peers = BTreeMap::from([(0, stream)]);
                    return Ok(ProcessGroup { joinable, ..group(rank, peers, address.ip()) });
                }
                Ok((_, word)) => {
                    let reason = String::from_utf8_lossy(&word.body);
                    return Err(refused(shown(&reason, REASON_CHARS)));
                }
                Err(GreetError::Refused(reason)) => return Err(refused(reason)),
                Err(GreetError::Passing(problem)) => problem,
            },
            Err(problem) => problem,
        };
        if wait.left().is_zero() {
            return Err(refused(format!("rank {rank} did not find rank 0 at {place}: {problem}")));
        }
        if !keep_waiting() {
            return Err(ProcessGroupError::Interrupted);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Why the hub could not be greeted.
enum GreetError {
    /// Another attempt would end in the same way.
    Refused(String),
    /// Nobody listens yet, or somebody else does.
    Passing(String),
}

impl From<io::Error> for GreetError {
    fn from(error: io::Error) -> GreetError {
        GreetError::Passing(said(&error))
    }
}

fn greet(
    address: &str,
    launched: &Launched,
    security: &Security,
    wait: Wait,
) -> Result<(ControlStream, Frame), GreetError> {
    let target: SocketAddr = address
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::other("the name has no address"))?;
    let limit = wait.left().min(Duration::from_secs_f64(HELLO_SECONDS)).max(POLL_INTERVAL);
    let wait = Wait::new(limit.as_secs_f64(), "rank 0's answer");
    let socket = TcpStream::connect_timeout(&target, limit)?;
    socket.set_write_timeout(Some(limit))?;
    let stream = match security {
        Security::Secret(secret) => {
            ControlStream::enter(socket, secret, None, wait).map_err(|error| {
                let text = format!("rank 0 at {address}: {error}");
                if error.may_pass() { GreetError::Passing(text) } else { GreetError::Refused(text) }
            })?
        }
        Security::Automatic | Security::Insecure => ControlStream::plain(socket),
    };
    let (rank, world) = (launched.rank.to_le_bytes(), launched.world.to_le_bytes());
    let hello = [&MAGIC[..], &[SPOKEN], &rank, &world].concat();
    stream.transmit(&hello)?;
    tune(&stream)?;
    let word = read_up_to(&stream, INIT_BYTES, &mut || !wait.left().is_zero())?;
    Ok((stream, word))
}

fn tune(stream: &ControlStream) -> io::Result<()> {
    stream.socket().set_nodelay(true)?;
    stream.set_read_timeout(Some(POLL_INTERVAL))?;
    stream.set_write_timeout(Some(POLL_INTERVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_another_version_is_told_which_version_is_needed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let visitor = TcpStream::connect(address).expect("it listens");
        let (socket, _) = listener.accept().expect("it comes");
        let other = SPOKEN - 1;
        let hello = [&MAGIC[..], &[other], &1u32.to_le_bytes(), &2u32.to_le_bytes()].concat();
        visitor.transmit(&hello).expect("it hears");
        let members = GroupMembers::default();
        assert!(admit(socket, None, 2, &members).is_none(), "it is not let in");
        let answer = read_up_to(&ControlStream::plain(visitor), INIT_BYTES, &mut || true);
        let answer = answer.expect("it is answered");
        let reason = String::from_utf8_lossy(&answer.body);
        let versions = format!("it speaks version {other}, rank 0 speaks version {SPOKEN}");
        assert!(!answer.good && reason.contains(&versions), "{reason}");
        assert!(matches!(members.arrive(1, 2), Arrival::Expected), "its place is still free");
    }
}
