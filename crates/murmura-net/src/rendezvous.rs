//! Becoming a run: who takes part as which rank, what the job is, where everybody listens.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use murmura_core::message::Rank;
use murmura_core::node::Setup;
use murmura_core::problems::Problem;
use murmura_record::Outcome;
use tokio::sync::mpsc::UnboundedSender;

use crate::clock::Clock;
use crate::conductor::{Conductor, Incoming, Observer, Port};
use crate::door::Door;
use crate::error::NetError;
use crate::host::{Hosts, House, Seat};
use crate::launcher::{self, Launched, Published, Rendezvous};
use crate::mesh::{Mesh, Plan, prepare};
use crate::options::Options;
use crate::protocol::{self, Command, Event, JOB_BYTES, PacketError, SMALL_BYTES, Setting};
use crate::rank::Inbox;

/// Which workers live in the coordinator's process. Servers always do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosted {
    /// Their ranks.
    pub workers: Vec<u32>,
}

/// Runs all ranks as threads of this process.
pub fn threads(
    setup: &Setup,
    problem: &dyn Problem,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<Outcome, NetError> {
    check(setup)?;
    let (conductor, incoming) = channel();
    let house = House {
        setup: setup.clone(),
        options: options.clone(),
        clock: Clock::start(),
        timeline: observer.wants_timeline(),
        conductor,
    };
    let seats = (0..setup.ranks()).map(|rank| Seat { rank: rank.into(), links: Vec::new() });
    let hosts = Hosts::start(&house, problem, seats.collect())?;
    let ports = ports(setup.ranks(), &hosts, &BTreeMap::new());
    Conductor::new(setup, options, ports, observer).conduct(&incoming)
}

fn check(setup: &Setup) -> Result<(), NetError> {
    if setup.workers() == 0 {
        return Err(NetError::Setup("a run needs at least one worker".into()));
    }
    let largest = setup.layout.buckets.iter().map(|bucket| bucket.range.len()).max();
    if largest.is_some_and(|len| u32::try_from(len).is_err()) {
        return Err(NetError::Setup("a bucket has 2^32 elements or more; cut it".into()));
    }
    Ok(())
}

fn ports(ranks: usize, hosts: &Hosts, joined: &BTreeMap<u32, TcpStream>) -> Vec<Port> {
    let port = |rank: usize| match hosts.inbox(rank.into()) {
        Some(inbox) => Port::Near(inbox.clone()),
        None => {
            let stream = joined[&(rank as u32)].try_clone();
            Port::Far(stream.expect("a connected socket can be duplicated"))
        }
    };
    (0..ranks).map(port).collect()
}

/// The process at which workers join. It hosts the servers, decides when the run ends, and has
/// the outcome.
#[derive(Debug)]
pub struct Coordinator {
    listener: TcpListener,
    address: SocketAddr,
    options: Options,
    published: Option<Published>,
}

impl Coordinator {
    /// Listens on `addr`, for example `127.0.0.1:0`.
    pub fn bind(addr: &str, options: Options) -> Result<Coordinator, NetError> {
        let failed = |source| NetError::Listen { address: addr.to_string(), source };
        let listener = TcpListener::bind(addr).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Coordinator { listener, address, options, published: None })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// For rank 0 of processes that a launcher has started: listens where the others will look.
    pub fn of_launch(launched: &Launched, options: Options) -> Result<Coordinator, NetError> {
        match &launched.rendezvous {
            Rendezvous::Address(address) => {
                // The name is how others reach this machine; it need not be one of its own.
                let port = address.rsplit_once(':').map_or("0", |(_, port)| port);
                Coordinator::bind(&format!("0.0.0.0:{port}"), options)
            }
            Rendezvous::LocalFile(path) => {
                let mut coordinator = Coordinator::bind("127.0.0.1:0", options)?;
                let published = Published::new(path, coordinator.address);
                coordinator.published = Some(published.map_err(|source| {
                    let address = path.display().to_string();
                    NetError::Listen { address, source }
                })?);
                Ok(coordinator)
            }
        }
    }

    /// Waits for the workers that it does not host itself, hands each the `job`, runs, and gives
    /// the outcome.
    pub fn run(
        self,
        job: Vec<u8>,
        setup: &Setup,
        problem: &dyn Problem,
        hosted: &Hosted,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, NetError> {
        check(setup)?;
        let here = residents(setup, hosted)?;
        let clock = Clock::start();
        let (conductor, incoming) = channel();
        let plan = Plan { run: run_number(), ranks: setup.ranks(), here };
        let open = !self.address.ip().is_loopback();
        let lobby = Lobby {
            run: plan.run,
            open,
            timeline: observer.wants_timeline(),
            job,
            key: self.published.as_ref().map(Published::key).unwrap_or_default(),
            clock,
            workers: setup.workers() as u32,
            options: self.options.clone(),
            taken: Mutex::new(plan.here.iter().map(|rank| (rank.0, None)).collect()),
            warnings: Mutex::new(conductor.clone()),
        };
        let listener = listen(self.address.ip())?;
        let mesh = Mesh::open(plan.clone(), listener, &self.options, conductor.clone())
            .map_err(|source| NetError::Listen { address: "a port for peers".into(), source })?;
        let (arrived, arrivals) = channel();
        let (lobby, arrived) = (Arc::new(lobby), Mutex::new(arrived));
        let hearing = Arc::clone(&lobby);
        let door = Door::open(self.listener, move |stream, peer| {
            hearing.hear(stream, peer, &arrived);
        })
        .map_err(|source| NetError::Listen { address: self.address.to_string(), source })?;

        let joined = lobby.gather(&arrivals, door.address())?;
        drop(self.published);
        let streams = introduce(&plan, &mesh, joined, &self.options);
        let (streams, seats) = match streams {
            Ok(both) => both,
            Err((streams, error)) => {
                for stream in streams.values() {
                    let _ = protocol::write(stream, &Command::Abort(error.to_string()));
                }
                return Err(error);
            }
        };
        let zero = clock.now();
        for (rank, stream) in &streams {
            // A worker that is gone is noticed by whoever reads what it says.
            let _ = protocol::write(stream, &Setting::Start { zero });
            let most = SMALL_BYTES + 8 * setup.layout.len() as u64 + (1 << 20);
            attend_worker(*rank, stream, most, conductor.clone());
        }
        let house = House {
            setup: setup.clone(),
            options: self.options.clone(),
            clock: clock.restarted(zero),
            timeline: observer.wants_timeline(),
            conductor,
        };
        let hosts = Hosts::start(&house, problem, seats)?;
        let ports = ports(setup.ranks(), &hosts, &streams);
        Conductor::new(setup, &self.options, ports, observer).conduct(&incoming)
    }
}

/// The ranks of the coordinator's process.
fn residents(setup: &Setup, hosted: &Hosted) -> Result<BTreeSet<Rank>, NetError> {
    let workers = setup.workers();
    if let Some(rank) = hosted.workers.iter().find(|rank| **rank as usize >= workers) {
        return Err(NetError::Setup(format!("rank {rank} is not one of the {workers} workers")));
    }
    let servers = (workers..setup.ranks()).map(Rank::from);
    Ok(hosted.workers.iter().map(|rank| Rank(*rank)).chain(servers).collect())
}

/// A number that two runs will hardly share, without asking for secrets.
fn run_number() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

fn listen(ip: IpAddr) -> Result<TcpListener, NetError> {
    TcpListener::bind((ip, 0))
        .map_err(|source| NetError::Listen { address: format!("{ip}, any port"), source })
}

/// Hears what a joined worker says, on a thread of its own, until it is gone.
fn attend_worker(rank: u32, stream: &TcpStream, most: u64, conductor: Sender<Incoming>) {
    let stream = stream.try_clone().expect("a connected socket can be duplicated");
    let _ = stream.set_read_timeout(None);
    std::thread::spawn(move || {
        loop {
            let word = match protocol::read::<Event>(&stream, most) {
                Ok(event) => Incoming::Event(event),
                Err(error) => Incoming::Gone { rank, reason: error.to_string() },
            };
            let last = matches!(word, Incoming::Gone { .. });
            if conductor.send(word).is_err() || last {
                return;
            }
        }
    });
}

type Streams = BTreeMap<u32, TcpStream>;

/// Tells everybody where everybody is, and waits until all are connected.
fn introduce(
    plan: &Plan,
    mesh: &Mesh,
    joined: Vec<Guest>,
    options: &Options,
) -> Result<(Streams, Vec<Seat>), (Streams, NetError)> {
    let addresses: BTreeMap<u32, SocketAddr> =
        joined.iter().map(|guest| (guest.rank, guest.address)).collect();
    let streams: Streams = joined.into_iter().map(|guest| (guest.rank, guest.stream)).collect();
    let connect = || {
        for (rank, stream) in &streams {
            let own = stream.local_addr().map_err(|error| lost(*rank, error.into()))?;
            let addresses = table(plan, own.ip(), mesh.port(), &addresses);
            let peers = Setting::Peers { addresses };
            protocol::write(stream, &peers).map_err(|error| lost(*rank, error))?;
        }
        let from_here = table(plan, IpAddr::from([127, 0, 0, 1]), mesh.port(), &addresses);
        let seats = mesh.connect(&from_here, options)?;
        for (rank, stream) in &streams {
            match protocol::read(stream, SMALL_BYTES) {
                Ok(Setting::Meshed) => {}
                Ok(Setting::Unable { reason }) => {
                    return Err(NetError::Failed { rank: *rank, reason });
                }
                Ok(other) => {
                    let reason = format!("it said {other:?} instead of that it is connected");
                    return Err(NetError::Failed { rank: *rank, reason });
                }
                Err(error) => return Err(lost(*rank, error)),
            }
        }
        Ok(seats)
    };
    match connect() {
        Ok(seats) => Ok((streams, seats)),
        Err(error) => Err((streams, error)),
    }
}

fn lost(rank: u32, error: PacketError) -> NetError {
    NetError::Lost { rank, reason: format!("{error} while peers were connecting") }
}

/// Where the ranks are, for somebody who reaches the coordinator at `own`: a worker that is
/// reached only from the coordinator's machine is there, under the coordinator's address.
fn table(
    plan: &Plan,
    own: IpAddr,
    port: u16,
    addresses: &BTreeMap<u32, SocketAddr>,
) -> Vec<String> {
    let address = |rank: usize| match addresses.get(&(rank as u32)) {
        Some(address) if address.ip().is_loopback() => SocketAddr::new(own, address.port()),
        Some(address) => *address,
        None => SocketAddr::new(own, port),
    };
    (0..plan.ranks).map(|rank| address(rank).to_string()).collect()
}

/// A worker that has joined, loaded its data, and listens.
#[derive(Debug)]
struct Guest {
    rank: u32,
    stream: TcpStream,
    address: SocketAddr,
}

/// Where workers arrive.
struct Lobby {
    run: u64,
    open: bool,
    timeline: bool,
    job: Vec<u8>,
    key: String,
    clock: Clock,
    workers: u32,
    options: Options,
    /// By whom each rank is taken; `None`: by the coordinator's own process.
    taken: Mutex<BTreeMap<u32, Option<SocketAddr>>>,
    warnings: Mutex<Sender<Incoming>>,
}

/// Who came, or why it came to nothing.
type Arrival = Result<Guest, (u32, String)>;

impl Lobby {
    fn taken(&self) -> MutexGuard<'_, BTreeMap<u32, Option<SocketAddr>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Talks to one visitor until it is ready to meet its peers.
    fn hear(&self, stream: TcpStream, peer: SocketAddr, arrived: &Mutex<Sender<Arrival>>) {
        let send = |arrival| {
            let arrived = arrived.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = arrived.send(arrival);
        };
        let rank = match self.admit(&stream, peer) {
            Ok(rank) => rank,
            Err((reason, elsewhere)) => {
                let text = format!("refused {peer}: {reason}");
                let _ = protocol::write(&stream, &Setting::Refused { reason, elsewhere });
                let warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = warnings.send(Incoming::Event(Event::Warning(text)));
                return;
            }
        };
        match self.prepare(&stream, rank) {
            Ok(port) => {
                let address = SocketAddr::new(peer.ip(), port);
                send(Ok(Guest { rank, stream, address }));
            }
            Err(reason) => {
                self.taken().remove(&rank);
                send(Err((rank, format!("{reason} (at {peer})"))));
            }
        }
    }

    /// The rank of a visitor who may take part.
    fn admit(&self, stream: &TcpStream, peer: SocketAddr) -> Result<u32, (String, bool)> {
        let plain = |reason: String| (reason, false);
        prepare(stream, self.options.handshake_seconds).map_err(|e| plain(e.to_string()))?;
        let word = protocol::read(stream, SMALL_BYTES).map_err(|e| plain(e.to_string()))?;
        let Setting::Join { rank, key } = word else {
            return Err(plain(format!("it began with {word:?} instead of asking to join")));
        };
        if key != self.key && !key.is_empty() {
            return Err((format!("this is not the run \"{key}\""), true));
        }
        let mut taken = self.taken();
        let free = || (0..self.workers).find(|rank| !taken.contains_key(rank));
        let rank = match rank {
            Some(rank) if rank >= self.workers => {
                let last = self.workers - 1;
                return Err(plain(format!("there is no worker {rank}; workers are 0 to {last}")));
            }
            Some(rank) => rank,
            None => free().ok_or_else(|| {
                plain(format!("all {} workers have joined already", self.workers))
            })?,
        };
        match taken.get(&rank) {
            Some(Some(by)) => Err(plain(format!("rank {rank} is taken by {by}"))),
            Some(None) => Err(plain(format!("rank {rank} is taken by the coordinator itself"))),
            None => {
                taken.insert(rank, Some(peer));
                Ok(rank)
            }
        }
    }

    /// Hands over the job; gives the port at which the worker listens once it is ready.
    fn prepare(&self, stream: &TcpStream, rank: u32) -> Result<u16, String> {
        let Lobby { run, open, timeline, .. } = *self;
        let welcome = Setting::Welcome { run, rank, open, timeline, job: self.job.clone() };
        let text = |error: PacketError| error.to_string();
        prepare(stream, self.options.connect_seconds).map_err(|error| error.to_string())?;
        protocol::write(stream, &welcome).map_err(text)?;
        loop {
            match protocol::read(stream, SMALL_BYTES).map_err(text)? {
                Setting::Ping => {
                    let pong = Setting::Pong { now: self.clock.now() };
                    protocol::write(stream, &pong).map_err(text)?;
                }
                Setting::Listening { port } => return Ok(port),
                Setting::Unable { reason } => return Err(reason),
                other => return Err(format!("it said {other:?} instead of where it listens")),
            }
        }
    }

    /// Waits for all workers.
    fn gather(
        &self,
        arrivals: &Receiver<Arrival>,
        address: SocketAddr,
    ) -> Result<Vec<Guest>, NetError> {
        let begun = Instant::now();
        let deadline = begun + Duration::from_secs_f64(self.options.connect_seconds);
        let is_hosted = |(rank, by): &(&u32, &Option<_>)| **rank < self.workers && by.is_none();
        let hosted = self.taken().iter().filter(is_hosted).count();
        let expected = self.workers as usize - hosted;
        let mut guests: Vec<Guest> = Vec::new();
        while guests.len() < expected {
            match arrivals.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Ok(guest)) => guests.push(guest),
                Ok(Err((rank, reason))) => {
                    let error = NetError::Failed { rank, reason };
                    for guest in &guests {
                        let _ = protocol::write(&guest.stream, &Command::Abort(error.to_string()));
                    }
                    return Err(error);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let there: Vec<u32> = guests.iter().map(|guest| guest.rank).collect();
                    let missing = self.missing(&there);
                    let seconds = begun.elapsed().as_secs_f64();
                    return Err(NetError::Missing { address, seconds, missing });
                }
            }
        }
        Ok(guests)
    }

    fn missing(&self, there: &[u32]) -> String {
        let taken = self.taken();
        let missing = (0..self.workers).filter(|rank| !there.contains(rank)).filter_map(|rank| {
            match taken.get(&rank) {
                None => Some(format!("worker {rank} to join")),
                Some(Some(peer)) => Some(format!("worker {rank} at {peer} to load its data")),
                Some(None) => None,
            }
        });
        missing.collect::<Vec<_>>().join(", ")
    }
}

/// Takes part in the run that is coordinated at `addr` (or at the address in a file, `file:PATH`),
/// as `rank` or as any. `build` makes the run from the coordinator's job.
pub fn join(
    addr: &str,
    rank: Option<u32>,
    options: &Options,
    build: &mut dyn FnMut(&[u8]) -> Result<(Setup, Box<dyn Problem>), String>,
) -> Result<(), NetError> {
    let (stream, welcome) = ask(addr, rank, options)?;
    let address = stream.peer_addr().map_or_else(|_| addr.to_string(), |peer| peer.to_string());
    let gone = |error: PacketError| NetError::LostCoordinator {
        address: address.clone(),
        reason: error.to_string(),
    };
    let Welcome { run, rank, open, timeline, job } = welcome;
    prepare(&stream, options.connect_seconds).map_err(|error| gone(error.into()))?;
    let built = build(&job).and_then(|(setup, problem)| match check(&setup) {
        Ok(()) => Ok((setup, problem)),
        Err(error) => Err(error.to_string()),
    });
    let (setup, problem) = built.map_err(|reason| {
        let _ = protocol::write(&stream, &Setting::Unable { reason: reason.clone() });
        NetError::Job(reason)
    })?;
    let (conductor, incoming) = channel();
    let plan = Plan { run, ranks: setup.ranks(), here: [Rank(rank)].into() };
    let own = stream.local_addr().map_err(|error| gone(error.into()))?.ip();
    let ip = match (open, own) {
        (false, ip) => ip,
        (true, IpAddr::V4(_)) => IpAddr::from([0, 0, 0, 0]),
        (true, IpAddr::V6(_)) => IpAddr::from([0u16; 8]),
    };
    let mesh = Mesh::open(plan, listen(ip)?, options, conductor.clone())
        .map_err(|source| NetError::Listen { address: "a port for peers".into(), source })?;
    let clock = synchronize(&stream).map_err(gone)?;
    protocol::write(&stream, &Setting::Listening { port: mesh.port() }).map_err(gone)?;
    let addresses = match hear(&stream, &address)? {
        Setting::Peers { addresses } if addresses.len() == setup.ranks() => addresses,
        other => return Err(unexpected(&address, &other)),
    };
    let seats = mesh.connect(&addresses, options).inspect_err(|error| {
        let _ = protocol::write(&stream, &Setting::Unable { reason: error.to_string() });
    })?;
    protocol::write(&stream, &Setting::Meshed).map_err(gone)?;
    let Setting::Start { zero } = hear(&stream, &address)? else {
        return Err(unexpected(&address, &Setting::Meshed));
    };
    let house = House {
        setup,
        options: options.clone(),
        clock: clock.restarted(zero),
        timeline,
        conductor: conductor.clone(),
    };
    let hosts = Hosts::start(&house, &*problem, seats)?;
    let inbox = hosts.inbox(Rank(rank)).expect("it was just started").clone();
    attend_coordinator(&stream, inbox, conductor, options);
    serve(&stream, &incoming).map_err(|reason| match reason {
        Ended::Aborted(reason) => NetError::Aborted(reason),
        Ended::Gone(reason) => NetError::LostCoordinator { address, reason },
    })
}

struct Welcome {
    run: u64,
    rank: u32,
    open: bool,
    timeline: bool,
    job: Vec<u8>,
}

/// Finds the coordinator and asks to take part; tries again until it is there.
fn ask(addr: &str, rank: Option<u32>, options: &Options) -> Result<(TcpStream, Welcome), NetError> {
    let begun = Instant::now();
    let limit = Duration::from_secs_f64(options.connect_seconds);
    let mut pause = Duration::from_millis(2);
    loop {
        let problem = match launcher::resolve(addr) {
            Ok((address, key)) => match ask_once(&address, rank, &key, options)? {
                Ok(welcomed) => return Ok(welcomed),
                Err(problem) => problem,
            },
            Err(problem) => problem,
        };
        if begun.elapsed() + pause >= limit {
            let seconds = begun.elapsed().as_secs_f64();
            return Err(NetError::Connect { address: addr.to_string(), seconds, problem });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// The inner error is one that may pass: nobody listens yet, or somebody else does.
fn ask_once(
    address: &str,
    rank: Option<u32>,
    key: &str,
    options: &Options,
) -> Result<Result<(TcpStream, Welcome), String>, NetError> {
    let limit = Duration::from_secs_f64(options.connect_seconds);
    let stream = match address.to_socket_addrs().map(|mut found| found.next()) {
        Ok(Some(target)) => TcpStream::connect_timeout(&target, limit),
        Ok(None) => return Ok(Err("the name has no address".into())),
        Err(error) => Err(error),
    };
    let stream = match stream {
        Ok(stream) => stream,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let wrong = |error: PacketError| NetError::Handshake {
        address: address.into(),
        problem: error.to_string(),
    };
    prepare(&stream, options.connect_seconds).map_err(|error| wrong(error.into()))?;
    let join = Setting::Join { rank, key: key.into() };
    protocol::write(&stream, &join).map_err(wrong)?;
    match protocol::read(&stream, JOB_BYTES + SMALL_BYTES).map_err(wrong)? {
        Setting::Welcome { run, rank, open, timeline, job } => {
            Ok(Ok((stream, Welcome { run, rank, open, timeline, job })))
        }
        Setting::Refused { reason, elsewhere: true } => Ok(Err(reason)),
        Setting::Refused { reason, .. } => {
            Err(NetError::Refused { address: address.into(), reason })
        }
        other => Err(unexpected(address, &other)),
    }
}

fn unexpected(address: &str, word: &Setting) -> NetError {
    NetError::Handshake { address: address.into(), problem: format!("unexpected {word:?}") }
}

/// One word of the coordinator before the run, which may also be that there will be none.
fn hear(stream: &TcpStream, address: &str) -> Result<Setting, NetError> {
    match protocol::read::<Word>(stream, SMALL_BYTES + JOB_BYTES) {
        Ok(Word::Setting(setting)) => Ok(setting),
        Ok(Word::Aborted(reason)) => Err(NetError::Aborted(reason)),
        Err(error) => {
            Err(NetError::LostCoordinator { address: address.into(), reason: error.to_string() })
        }
    }
}

enum Word {
    Setting(Setting),
    Aborted(String),
}

impl protocol::Packet for Word {
    fn encode(&self) -> Vec<u8> {
        match self {
            Word::Setting(setting) => setting.encode(),
            Word::Aborted(reason) => Command::Abort(reason.clone()).encode(),
        }
    }

    fn decode(
        reader: &mut murmura_wire::control::Reader<'_>,
        kind: u16,
    ) -> Result<Word, murmura_wire::control::ControlError> {
        match Command::decode(&mut reader.clone(), kind) {
            Ok(Command::Abort(reason)) => {
                reader.text()?;
                Ok(Word::Aborted(reason))
            }
            _ => Setting::decode(reader, kind).map(Word::Setting),
        }
    }
}

/// The coordinator's clock, from the quickest of a few questions.
fn synchronize(stream: &TcpStream) -> Result<Clock, PacketError> {
    let mut best: Option<(Duration, Clock)> = None;
    for _ in 0..8 {
        let asked = Instant::now();
        protocol::write(stream, &Setting::Ping)?;
        let answer = protocol::read(stream, SMALL_BYTES)?;
        let took = asked.elapsed();
        if let Setting::Pong { now } = answer
            && best.is_none_or(|(least, _)| took < least)
        {
            best = Some((took, Clock::showing(now, asked + took / 2)));
        }
    }
    Ok(best.map_or_else(Clock::start, |(_, clock)| clock))
}

/// Why a joined process ends before its time.
enum Ended {
    Aborted(String),
    Gone(String),
}

/// Hears the coordinator on a thread of its own and tells the rank.
fn attend_coordinator(
    stream: &TcpStream,
    inbox: UnboundedSender<Inbox>,
    conductor: Sender<Incoming>,
    options: &Options,
) {
    let stream = stream.try_clone().expect("a connected socket can be duplicated");
    // The coordinator says every now and then that it is alive.
    let _ = stream.set_read_timeout(Some(Duration::from_secs_f64(options.peer_seconds)));
    std::thread::spawn(move || {
        loop {
            let last = match protocol::read::<Command>(&stream, SMALL_BYTES) {
                Ok(Command::Pulse) => continue,
                Ok(Command::Abort(reason)) => Incoming::Aborted(reason),
                Ok(command) => {
                    let _ = inbox.send(Inbox::Command(command));
                    continue;
                }
                Err(error) => Incoming::Gone { rank: 0, reason: error.to_string() },
            };
            let _ = conductor.send(last);
            return;
        }
    });
}

/// Passes on what the rank says, until the coordinator has everybody's report.
fn serve(stream: &TcpStream, incoming: &Receiver<Incoming>) -> Result<(), Ended> {
    let mut reported = false;
    for word in incoming {
        match word {
            // A process that left earlier, with words unread, could take its own report with it.
            Incoming::Gone { .. } if reported => return Ok(()),
            Incoming::Gone { reason, .. } => return Err(Ended::Gone(reason)),
            Incoming::Aborted(reason) => return Err(Ended::Aborted(reason)),
            Incoming::Event(event) => {
                reported |= matches!(event, Event::Report(_));
                protocol::write(stream, &event).map_err(|error| Ended::Gone(error.to_string()))?;
            }
        }
    }
    Err(Ended::Gone("nobody listens to it any more".into()))
}
