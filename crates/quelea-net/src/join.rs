//! A worker's process: joins a run, builds it from the coordinator's job, takes part.

use std::net::{IpAddr, Shutdown, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quelea_core::message::Rank;
use quelea_core::node::RunSpec;
use quelea_core::problems::Problem;
use quelea_core::time::Time;
use quelea_record::{CheckpointSchedule, RankCheckpoint, ResumePoint};
use quelea_wire::control::{ControlError, Reader};
use tokio::sync::mpsc::UnboundedSender;

use crate::clock::RunClock;
use crate::controller::Incoming;
use crate::error::NetError;
use crate::launcher;
use crate::local_ranks::{LocalRanks, ProcessContext};
use crate::measure::Prober;
use crate::mesh::{Mesh, MeshPlan, listen, prepare};
use crate::options::NetOptions;
use crate::protocol::{
    self, Command, JOB_BYTES, PacketError, RankEvent, SMALL_BYTES, SetupMessage, Wait,
};
use crate::rank::Inbox;
use crate::rendezvous::check;

/// Events that may wait for the coordinator before records are left out.
const WAITING: usize = 1 << 16;

/// Makes a run from the bytes of a job, or says why it cannot be run here.
pub type BuildRun<'a> = dyn FnMut(&[u8]) -> Result<(RunSpec, Box<dyn Problem>), String> + 'a;

/// Takes part in the run that is coordinated at `addr` (or at the address in a file, `file:PATH`),
/// as `rank` or as any. `build` makes the run from the coordinator's job.
pub fn join(
    addr: &str,
    rank: Option<u32>,
    options: &NetOptions,
    build: &mut BuildRun<'_>,
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
        let _ = protocol::write(&stream, &SetupMessage::Unable { reason: reason.clone() });
        NetError::Job(reason)
    })?;
    if rank as usize >= setup.workers() {
        let problem = format!("it gave rank {rank} of {} workers", setup.workers());
        return Err(NetError::Handshake { address, problem });
    }
    let (controller, incoming) = channel();
    let plan = MeshPlan { run, ranks: setup.ranks(), here: [Rank(rank)].into() };
    let own = stream.local_addr().map_err(|error| gone(error.into()))?.ip();
    let ip = match (open, own) {
        (false, ip) => ip,
        (true, IpAddr::V4(_)) => IpAddr::from([0, 0, 0, 0]),
        (true, IpAddr::V6(_)) => IpAddr::from([0u16; 8]),
    };
    let mesh = Mesh::open(plan, listen(ip)?, options, controller.clone())
        .map_err(|source| NetError::Listen { address: "a port for peers".into(), source })?;
    let begin = Wait::new(options.connect_seconds, "the run to begin");
    let clock = synchronize(&stream, begin).map_err(gone)?;
    protocol::write(&stream, &SetupMessage::Listening { port: mesh.port() }).map_err(gone)?;
    let addresses = match hear(&stream, &address, begin)? {
        SetupMessage::Peers { addresses } if addresses.len() == setup.ranks() => addresses,
        other => return Err(unexpected(&address, &other)),
    };
    let rank_links = mesh.connect(&addresses, options, begin).inspect_err(|error| {
        let _ = protocol::write(&stream, &SetupMessage::Unable { reason: error.to_string() });
    })?;
    protocol::write(&stream, &SetupMessage::Meshed).map_err(gone)?;
    let prober = Prober { links: &rank_links[0], problem: &*problem };
    let reader = CoordinatorReader { stream: &stream, address: &address, options };
    let Some((start, zero, schedule)) = reader.hear_start(begin, setup.layout.len(), &prober)?
    else {
        return Ok(());
    };
    let context = ProcessContext {
        setup,
        options: options.clone(),
        clock: clock.restarted(zero),
        timeline,
        schedule,
        start: Arc::new(start),
        controller: controller.clone(),
    };
    let local = LocalRanks::start(&context, &*problem, rank_links)?;
    let inbox = local.inbox(Rank(rank)).expect("it was just started").clone();
    // From here on a coordinator that takes nothing is as good as gone.
    prepare(&stream, options.peer_seconds).map_err(|error| gone(error.into()))?;
    attend_coordinator(&stream, inbox, controller.clone(), options.peer_seconds);
    serve(&stream, &incoming, controller).map_err(|reason| match reason {
        JoinEnd::Aborted(reason) => NetError::Aborted(reason),
        JoinEnd::Gone(reason) => NetError::LostCoordinator { address, reason },
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
fn ask(
    addr: &str,
    rank: Option<u32>,
    options: &NetOptions,
) -> Result<(TcpStream, Welcome), NetError> {
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
    options: &NetOptions,
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
    let join = SetupMessage::Join { rank, key: key.into() };
    protocol::write(&stream, &join).map_err(wrong)?;
    let wait = Wait::new(options.connect_seconds, "an answer");
    match protocol::read(&stream, JOB_BYTES + SMALL_BYTES, Some(wait)).map_err(wrong)? {
        SetupMessage::Welcome { run, rank, open, timeline, job } => {
            Ok(Ok((stream, Welcome { run, rank, open, timeline, job })))
        }
        SetupMessage::Refused { reason, elsewhere: true } => Ok(Err(reason)),
        SetupMessage::Refused { reason, .. } => {
            Err(NetError::Refused { address: address.into(), reason })
        }
        other => Err(unexpected(address, &other)),
    }
}

/// Who hears the coordinator before the run.
struct CoordinatorReader<'a> {
    stream: &'a TcpStream,
    address: &'a str,
    options: &'a NetOptions,
}

impl CoordinatorReader<'_> {
    /// What to go on from, if anything, and when the run begins; nothing where it was only to
    /// measure, which it does.
    fn hear_start(
        &self,
        mut wait: Wait,
        len: usize,
        prober: &Prober<'_>,
    ) -> Result<Option<(ResumePoint, Time, CheckpointSchedule)>, NetError> {
        let (mut start, rank) = (ResumePoint::default(), prober.links.rank.index());
        loop {
            match hear_up_to(self.stream, self.address, wait, protocol::state_bytes(len))? {
                SetupMessage::Resume { part, resized } => {
                    start.parts = vec![RankCheckpoint::default(); rank];
                    start.parts.push(*part);
                    start.resized = resized;
                }
                SetupMessage::Start { zero, schedule } => return Ok(Some((start, zero, schedule))),
                SetupMessage::Measure(probe) => {
                    let answer = match prober.measure(&probe) {
                        Ok(values) => SetupMessage::Found { values },
                        Err(reason) => SetupMessage::Unable { reason },
                    };
                    // A coordinator that is gone is noticed where its next word is awaited.
                    let _ = protocol::write(self.stream, &answer);
                    let seconds = self.options.connect_seconds.max(self.options.compute_seconds);
                    wait = Wait::new(seconds, "the next measurement");
                }
                SetupMessage::Measured => return Ok(None),
                other => return Err(unexpected(self.address, &other)),
            }
        }
    }
}

fn unexpected(address: &str, word: &SetupMessage) -> NetError {
    NetError::Handshake { address: address.into(), problem: format!("unexpected {word:?}") }
}

/// One word of the coordinator before the run, which may also be that there will be none.
fn hear(stream: &TcpStream, address: &str, wait: Wait) -> Result<SetupMessage, NetError> {
    hear_up_to(stream, address, wait, SMALL_BYTES + JOB_BYTES)
}

fn hear_up_to(
    stream: &TcpStream,
    address: &str,
    wait: Wait,
    most: u64,
) -> Result<SetupMessage, NetError> {
    match protocol::read::<CoordinatorMessage>(stream, most, Some(wait)) {
        Ok(CoordinatorMessage::SetupMessage(setting)) => Ok(setting),
        Ok(CoordinatorMessage::Aborted(reason)) => Err(NetError::Aborted(reason)),
        Err(error) => {
            Err(NetError::LostCoordinator { address: address.into(), reason: error.to_string() })
        }
    }
}

enum CoordinatorMessage {
    SetupMessage(SetupMessage),
    Aborted(String),
}

impl protocol::Packet for CoordinatorMessage {
    fn encode(&self) -> Vec<u8> {
        match self {
            CoordinatorMessage::SetupMessage(setting) => setting.encode(),
            CoordinatorMessage::Aborted(reason) => Command::Abort(reason.clone()).encode(),
        }
    }

    fn decode(reader: &mut Reader<'_>, kind: u16) -> Result<CoordinatorMessage, ControlError> {
        match Command::decode(&mut reader.clone(), kind) {
            Ok(Command::Abort(reason)) => {
                reader.text()?;
                Ok(CoordinatorMessage::Aborted(reason))
            }
            _ => SetupMessage::decode(reader, kind).map(CoordinatorMessage::SetupMessage),
        }
    }
}

/// The coordinator's clock, from the quickest of a few questions.
fn synchronize(stream: &TcpStream, wait: Wait) -> Result<RunClock, PacketError> {
    let mut best: Option<(Duration, RunClock)> = None;
    for _ in 0..8 {
        let asked = Instant::now();
        protocol::write(stream, &SetupMessage::Ping)?;
        let answer = protocol::read(stream, SMALL_BYTES, Some(wait))?;
        let took = asked.elapsed();
        if let SetupMessage::Pong { now } = answer
            && best.is_none_or(|(least, _)| took < least)
        {
            best = Some((took, RunClock::showing(now, asked + took / 2)));
        }
    }
    Ok(best.map_or_else(RunClock::start, |(_, clock)| clock))
}

/// Why a joined process ends before its time.
enum JoinEnd {
    Aborted(String),
    Gone(String),
}

/// Hears the coordinator, which says every now and then that it is alive, on a thread of its own
/// and tells the rank.
fn attend_coordinator(
    stream: &TcpStream,
    inbox: UnboundedSender<Inbox>,
    controller: Sender<Incoming>,
    peer_seconds: f64,
) {
    let stream = stream.try_clone().expect("a connected socket can be duplicated");
    std::thread::spawn(move || {
        loop {
            let wait = Wait::new(peer_seconds, "a sign of life");
            let last = match protocol::read::<Command>(&stream, SMALL_BYTES, Some(wait)) {
                Ok(Command::Heartbeat) => continue,
                Ok(Command::Abort(reason)) => Incoming::Aborted(reason),
                Ok(command) => {
                    let _ = inbox.send(Inbox::Command(command));
                    continue;
                }
                Err(error) => Incoming::Gone { rank: 0, reason: error.to_string() },
            };
            let _ = controller.send(last);
            // Whoever is writing to it need not wait.
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    });
}

/// Passes on what the rank says, until the coordinator has everybody's report. Writing may wait
/// for the coordinator; this does not, so that it hears when there is none any more.
fn serve(
    stream: &TcpStream,
    incoming: &Receiver<Incoming>,
    controller: Sender<Incoming>,
) -> Result<(), JoinEnd> {
    let mut writer = EventWriter::new(stream, controller);
    for word in incoming {
        match word {
            // A process that left earlier, with words unread, could take its own report with it.
            Incoming::Gone { reason, .. } => return writer.finish(reason).map_err(JoinEnd::Gone),
            Incoming::Aborted(reason) => return Err(JoinEnd::Aborted(reason)),
            Incoming::Event(event) => writer.pass_on(event),
        }
    }
    Err(JoinEnd::Gone("nobody listens to it any more".into()))
}

/// Writes events to the coordinator on a thread of its own.
struct EventWriter {
    events: Sender<RankEvent>,
    waiting: Arc<AtomicUsize>,
    left_out: u64,
    /// Gives in the end whether the report was written.
    thread: JoinHandle<bool>,
}

impl EventWriter {
    fn new(stream: &TcpStream, controller: Sender<Incoming>) -> EventWriter {
        let stream = stream.try_clone().expect("a connected socket can be duplicated");
        let (events, queue) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let written = Arc::clone(&waiting);
        let thread = std::thread::spawn(move || {
            let mut reported = false;
            for event in queue {
                match protocol::write(&stream, &event) {
                    Ok(()) => reported |= matches!(event, RankEvent::Report(_)),
                    // Whoever reads sees that too, after the last words in the connection.
                    Err(PacketError::Closed) => break,
                    Err(error) => {
                        let reason = error.to_string();
                        let _ = controller.send(Incoming::Gone { rank: 0, reason });
                        break;
                    }
                }
                written.fetch_sub(1, Ordering::Relaxed);
            }
            reported
        });
        EventWriter { events, waiting, left_out: 0, thread }
    }

    fn pass_on(&mut self, event: RankEvent) {
        if matches!(event, RankEvent::Record(_)) && self.waiting.load(Ordering::Relaxed) >= WAITING
        {
            self.left_out += 1;
            return;
        }
        if let RankEvent::Report(report) = &event
            && self.left_out > 0
        {
            let (rank, count) = (report.rank, self.left_out);
            self.put(RankEvent::Warning(format!(
                "rank {rank} left out {count} records that the coordinator did not take in time"
            )));
        }
        self.put(event);
    }

    fn put(&self, event: RankEvent) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // A thread that has ended has said why.
        let _ = self.events.send(event);
    }

    /// The coordinator is gone: that is well if it has the report.
    fn finish(self, reason: String) -> Result<(), String> {
        drop(self.events);
        if matches!(self.thread.join(), Ok(true)) { Ok(()) } else { Err(reason) }
    }
}
