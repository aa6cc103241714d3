//! A worker's process: joins a run, builds it from the coordinator's job, takes part.

mod coordinator_reader;
mod entrance;
mod event_writer;
mod loading;
#[cfg(test)]
mod lying_peer;

use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::clock::RunClock;
use crate::compute::Gradients;
use crate::controller::Incoming;
use crate::error::NetError;
use crate::heartbeat::Heartbeats;
use crate::launcher;
use crate::local_ranks::{LocalRanks, ProcessContext};
use crate::measure::Prober;
use crate::open_files::OpenFiles;
use crate::options::NetOptions;
use crate::protocol::{
    self, JOB_BYTES, PacketError, PacketStream, SMALL_BYTES, SetupMessage, Wait,
};
use crate::rendezvous::check;
use crate::transport::tcp::prepare;
use crate::transport::{Doors, MeshPlan, RankLinks, Transport};
use crate::trust::{ControlStream, Credentials, LinkIdentity, RankKey};
use coordinator_reader::{CoordinatorReader, hear, unexpected};
use entrance::JoinTarget;
use event_writer::{JoinEnd, attend_coordinator, coordinator_patience, serve};
use quelea_core::message::Rank;
use quelea_core::run_spec::RunSpec;

/// Makes a run from the bytes of a job, or says why it cannot be run here.
pub type BuildRun<'a> = dyn FnMut(&[u8]) -> Result<(RunSpec, Gradients), JobError> + 'a;

/// Why a job cannot be run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobError {
    /// For whoever runs this process.
    pub reason: String,
    /// For the coordinator: nothing that was read from files.
    pub told: String,
}

impl From<String> for JobError {
    fn from(reason: String) -> JobError {
        JobError { told: reason.clone(), reason }
    }
}

impl From<&str> for JobError {
    fn from(reason: &str) -> JobError {
        JobError::from(reason.to_string())
    }
}

/// Takes part in the run that is coordinated at `addr` (or at the address in a file, `file:PATH`, or at
/// that of a [token](crate::JoinToken)), as `rank` or as any. `build` makes the run from the coordinator's
/// job.
pub fn join(
    addr: &str,
    rank: Option<u32>,
    options: &NetOptions,
    build: &mut BuildRun<'_>,
) -> Result<(), NetError> {
    join_through(addr, rank, options, build, &Direct)
}

/// What is between a rank and the others: nothing, except in tests of ranks that lie.
trait Relay {
    /// The ways to other ranks.
    fn links(&self, links: Vec<RankLinks>) -> Vec<RankLinks> {
        links
    }

    /// What the rank says to the coordinator.
    fn events(&self, incoming: Receiver<Incoming>) -> Receiver<Incoming> {
        incoming
    }
}

struct Direct;

impl Relay for Direct {}

// long: joining is one step after another, and each needs what the one before made
fn join_through(
    addr: &str,
    rank: Option<u32>,
    options: &NetOptions,
    build: &mut BuildRun<'_>,
    relay: &dyn Relay,
) -> Result<(), NetError> {
    let entrance = JoinTarget::new(addr, options)?;
    let (stream, welcome) = ask(&entrance, rank, options)?;
    let known = |_| entrance.address().to_string();
    let address = stream.peer_addr().map_or_else(known, |peer| peer.to_string());
    let gone = |error: PacketError| NetError::LostCoordinator {
        address: address.clone(),
        reason: error.to_string(),
    };
    let Welcome { run, rank, open, timeline, late, job } = welcome;
    prepare(stream.socket(), options.connect_seconds).map_err(|error| gone(error.into()))?;
    let (setup, gradients) = build_checked(build, &job, &stream)?;
    check_rank(rank, setup.seats(), &address)?;
    OpenFiles { here: 1, elsewhere: setup.ranks() - 1, joined: 1 }.reserve()?;
    let (controller, incoming) = channel();
    let identity = certified(&stream, run, &address, options)?;
    let (doors, known) = (Doors::of(identity.clone()), identity.clone());
    let (here, ranks) = ([Rank(rank)].into(), setup.ranks());
    let plan = MeshPlan { run, ranks, here, identity, is_late: late, doors: doors.clone() };
    let own = stream.local_addr().map_err(|error| gone(error.into()))?.ip();
    let transport = open_transport(plan, open, own, options, controller.clone())?;
    let begin = Wait::new(options.connect_seconds, "the run to begin");
    let clock = synchronize(&stream, begin).map_err(gone)?;
    protocol::write(&stream, &SetupMessage::Listening { port: transport.port() }).map_err(gone)?;
    let addresses = hear_peers(&stream, &address, begin, setup.ranks(), known.as_ref())?;
    let rank_links = transport.connect(&addresses, options, begin).inspect_err(|error| {
        let _ = protocol::write(&stream, &SetupMessage::Unable { reason: error.to_string() });
    })?;
    protocol::write(&stream, &SetupMessage::Meshed).map_err(gone)?;
    let prober = Prober { links: &rank_links[0], gradients: &gradients, initial: &setup.initial };
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
        doors,
        is_external: gradients.are_external(),
    };
    options.leave.arm();
    let rank_links = relay.links(rank_links);
    let local = LocalRanks::start(&context, &gradients, rank_links, Heartbeats::ToCoordinator)?;
    let inbox = local.inbox(Rank(rank)).expect("it was just started").clone();
    // From here on a coordinator that takes nothing is as good as gone.
    let seconds = coordinator_patience(&stream, options.peer_seconds);
    prepare(stream.socket(), seconds).map_err(|error| gone(error.into()))?;
    attend_coordinator(&stream, inbox, controller.clone(), known, seconds)
        .map_err(|error| gone(error.into()))?;
    serve(&stream, &relay.events(incoming), controller).map_err(|end| how_it_ended(end, address))
}

fn how_it_ended(end: JoinEnd, address: String) -> NetError {
    match end {
        JoinEnd::Aborted(reason) => NetError::Aborted(reason),
        JoinEnd::Gone(reason) => NetError::LostCoordinator { address, reason },
    }
}

/// Refuses a rank that the run does not have.
fn check_rank(rank: u32, workers: usize, address: &str) -> Result<(), NetError> {
    if (rank as usize) < workers {
        return Ok(());
    }
    let problem = format!("it gave rank {rank} of {workers} workers");
    Err(NetError::Handshake { address: address.to_string(), problem })
}

/// Builds and checks the run of a job; the coordinator is told why it cannot be run here.
fn build_checked(
    build: &mut BuildRun<'_>,
    job: &[u8],
    stream: &ControlStream,
) -> Result<(RunSpec, Gradients), NetError> {
    let built =
        loading::alive(stream, || build(job)).and_then(|(setup, gradients)| match check(&setup) {
            Ok(()) => Ok((setup, gradients)),
            Err(error) => Err(error.to_string().into()),
        });
    built.map_err(|JobError { reason, told }| {
        let _ = protocol::write(stream, &SetupMessage::Unable { reason: told });
        NetError::Job(reason)
    })
}

/// Where all ranks listen; from then on their certificates can be told apart.
fn hear_peers(
    stream: &ControlStream,
    address: &str,
    wait: Wait,
    ranks: usize,
    identity: Option<&LinkIdentity>,
) -> Result<Vec<String>, NetError> {
    match hear(stream, address, wait)? {
        SetupMessage::Peers { addresses, seats } if addresses.len() == ranks => {
            identity.into_iter().for_each(|identity| identity.seats().set(seats.clone()));
            Ok(addresses)
        }
        other => Err(unexpected(address, &other)),
    }
}

/// The certificate of this process, where connections are encrypted; its key stays here.
fn certified(
    stream: &ControlStream,
    run: u64,
    address: &str,
    options: &NetOptions,
) -> Result<Option<LinkIdentity>, NetError> {
    if !stream.is_secure() {
        return Ok(None);
    }
    let key = RankKey::new()?;
    let wait = Wait::new(options.connect_seconds, "a certificate");
    let gone = |error: PacketError| NetError::LostCoordinator {
        address: address.into(),
        reason: error.to_string(),
    };
    protocol::write(stream, &SetupMessage::Certify { key: key.public().to_vec() }).map_err(gone)?;
    match hear(stream, address, wait)? {
        SetupMessage::Certified { certificate, root } => {
            key.identity(run, &Credentials { certificate, root }).map(Some)
        }
        other => Err(unexpected(address, &other)),
    }
}

/// Listens for peers: on all addresses where other machines take part, else on `own` only.
fn open_transport(
    plan: MeshPlan,
    open: bool,
    own: IpAddr,
    options: &NetOptions,
    controller: Sender<Incoming>,
) -> Result<Box<dyn Transport>, NetError> {
    let ip = match (open, own) {
        (false, ip) => ip,
        (true, IpAddr::V4(_)) => IpAddr::from([0, 0, 0, 0]),
        (true, IpAddr::V6(_)) => IpAddr::from([0u16; 8]),
    };
    options.transport.open(plan, ip, options, controller)
}

/// The coordinator's answer to a worker that may take part.
struct Welcome {
    run: u64,
    rank: u32,
    open: bool,
    timeline: bool,
    late: bool,
    job: Vec<u8>,
}

/// Finds the coordinator and asks to take part; tries again until it is there.
fn ask(
    entrance: &JoinTarget,
    rank: Option<u32>,
    options: &NetOptions,
) -> Result<(ControlStream, Welcome), NetError> {
    let begun = Instant::now();
    let limit = Duration::from_secs_f64(options.connect_seconds);
    let mut pause = Duration::from_millis(2);
    loop {
        let problem = match launcher::resolve(entrance.address()) {
            Ok((address, key)) => match ask_once(entrance, &address, rank, &key, options)? {
                Ok(welcomed) => return Ok(welcomed),
                Err(problem) => problem,
            },
            Err(problem) => problem,
        };
        if begun.elapsed() + pause >= limit {
            let seconds = begun.elapsed().as_secs_f64();
            let address = entrance.address().to_string();
            return Err(NetError::Connect { address, seconds, problem });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// The inner error is one that may pass: nobody listens yet, or somebody else does.
fn ask_once(
    entrance: &JoinTarget,
    address: &str,
    rank: Option<u32>,
    key: &str,
    options: &NetOptions,
) -> Result<Result<(ControlStream, Welcome), String>, NetError> {
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
    let stream = match entrance.enter(stream, address, options)? {
        Ok(stream) => stream,
        Err(problem) => return Ok(Err(problem)),
    };
    let join = SetupMessage::Join { rank, key: key.into() };
    protocol::write(&stream, &join).map_err(wrong)?;
    let wait = Wait::new(options.connect_seconds, "an answer");
    let answer = protocol::read(&stream, JOB_BYTES + SMALL_BYTES, Some(wait));
    match answer.map_err(|error| entrance.explain(wrong(error)))? {
        SetupMessage::Welcome { run, rank, open, timeline, late, job } => {
            Ok(Ok((stream, Welcome { run, rank, open, timeline, late, job })))
        }
        SetupMessage::Refused { reason, elsewhere: true } => Ok(Err(reason)),
        SetupMessage::Refused { reason, .. } => {
            Err(NetError::Refused { address: address.into(), reason })
        }
        other => Err(unexpected(address, &other)),
    }
}

/// The coordinator's clock, from the quickest of a few questions.
fn synchronize(stream: &ControlStream, wait: Wait) -> Result<RunClock, PacketError> {
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
