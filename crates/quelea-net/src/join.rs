//! A worker's process: joins a run, builds it from the coordinator's job, takes part.

mod asking;
mod command_reader;
mod coordinator_reader;
mod entrance;
mod event_writer;
mod follower;
mod loading;
#[cfg(test)]
mod lying_peer;
mod peer_lines;
mod survivor;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};

use crate::compute::Gradients;
use crate::controller::Incoming;
use crate::error::NetError;
use crate::heartbeat::Heartbeats;
use crate::heir::Heir;
use crate::launcher;
use crate::local_ranks::{LocalRanks, ProcessContext};
use crate::measure::Prober;
use crate::open_files::OpenFiles;
use crate::options::NetOptions;
use crate::protocol::{self, PacketError, PacketStream, SetupMessage, Wait};
use crate::rendezvous::stand_by::SeatWish;
use crate::rendezvous::worker_reader::EventLimits;
use crate::rendezvous::{check, vector_lengths};
use crate::transport::tcp::prepare;
use crate::transport::{Doors, JoinPlace, MeshPlan, RankLinks, TransportKind, mpi};
use crate::trust::{ControlStream, Credentials, LinkIdentity, RankKey};
use asking::{Welcome, ask, synchronize};
use command_reader::{CommandLine, CommandListener, coordinator_patience};
pub(crate) use coordinator_reader::RunMessage;
use coordinator_reader::{CoordinatorReader, RunBeginning, hear, unexpected};
use entrance::JoinTarget;
use follower::{Follower, JoinEnd};
use peer_lines::{Caller, PeerLines};
use quelea_core::message::Rank;
use quelea_core::run_spec::RunSpec;
use survivor::{JoinHall, Survivor, SurvivorConfig};

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
    join_through(addr, SeatWish::of(rank), options, build, Around { relay: &Direct, heir: None })?;
    finish(addr, options)
}

/// Waits at the coordinator as a spare until a worker is lost, and takes part in its place, as
/// [`join_as_heir`] does. [`NetError::Unneeded`] says that the run ended before that.
pub fn stand_by(
    addr: &str,
    options: &NetOptions,
    build: &mut BuildRun<'_>,
    heir: Option<&mut dyn Heir>,
) -> Result<(), NetError> {
    let around = Around { relay: &Direct, heir };
    join_through(addr, SeatWish::Lost, options, build, around)
}

/// As [`join`]; should the process be lost that controls the run, this one may take over, where the run
/// [survives](NetOptions::survives) that.
pub fn join_as_heir(
    addr: &str,
    rank: Option<u32>,
    options: &NetOptions,
    build: &mut BuildRun<'_>,
    heir: &mut dyn Heir,
) -> Result<(), NetError> {
    let around = Around { relay: &Direct, heir: Some(heir) };
    join_through(addr, SeatWish::of(rank), options, build, around)?;
    finish(addr, options)
}

/// Where the coordinator may be reached: one place, or those that it has sent over MPI.
fn entrances(addr: &str, options: &NetOptions) -> Result<Vec<JoinTarget>, NetError> {
    if addr != launcher::OVER_MPI {
        return Ok(vec![JoinTarget::new(addr, options)?]);
    }
    let wait = Wait::new(options.connect_seconds, "where rank 0 listens");
    mpi::hear_meeting(wait)?.iter().map(|place| JoinTarget::new(place, options)).collect()
}

/// The processes of an MPI job end together.
fn finish(addr: &str, options: &NetOptions) -> Result<(), NetError> {
    if addr != launcher::OVER_MPI {
        return Ok(());
    }
    mpi::finish(Wait::new(options.drain_seconds, "all processes to end"))
}

/// What is around a rank of this process.
struct Around<'a> {
    relay: &'a dyn Relay,
    /// Who takes over, if this process can.
    heir: Option<&'a mut dyn Heir>,
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
    wish: SeatWish,
    options: &NetOptions,
    build: &mut BuildRun<'_>,
    around: Around<'_>,
) -> Result<(), NetError> {
    let Around { relay, heir } = around;
    let is_mpi = addr == launcher::OVER_MPI;
    let (stream, welcome) = ask(&entrances(addr, options)?, wish, options)?;
    let known = |_| addr.to_string();
    let address = stream.peer_addr().map_or_else(known, |peer| peer.to_string());
    let gone = |error: PacketError| NetError::LostCoordinator {
        address: address.clone(),
        reason: error.to_string(),
    };
    let Welcome { run, rank, open, timeline, late, shares, reconnect_seconds, job } = welcome;
    let options = &NetOptions { reconnect_seconds, ..options.clone() };
    let kind = match options.transport {
        _ if is_mpi => TransportKind::Mpi,
        kind if shares => kind,
        _ => TransportKind::Tcp,
    };
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
    let ip = listening_ip(options, open, own);
    let transport = kind.open(plan, ip, options, controller.clone())?;
    let seconds = if late { options.entrance_seconds } else { options.connect_seconds };
    let begin = Wait::new(seconds, "the run to begin");
    let clock = synchronize(&stream, begin).map_err(gone)?;
    protocol::write(&stream, &listening(options, transport.port())).map_err(gone)?;
    let addresses = hear_peers(&stream, &address, begin, setup.ranks(), known.as_ref())?;
    let rank_links = transport.connect(&addresses, options, begin).inspect_err(|error| {
        let _ = protocol::write(&stream, &SetupMessage::Unable { reason: error.to_string() });
    })?;
    protocol::write(&stream, &SetupMessage::Meshed).map_err(gone)?;
    let prober = Prober { links: &rank_links[0], gradients: &gradients, initial: &setup.initial };
    let reader = CoordinatorReader { stream: &stream, address: &address, options };
    let Some(beginning) = reader.hear_start(begin, setup.layout.len(), &prober)? else {
        return Ok(());
    };
    let RunBeginning { start, zero, schedule, survival } = beginning;
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
        survival: survival.filter(|_| heir.is_some()),
    };
    options.leave.arm();
    let rank_links = relay.links(rank_links);
    let local = LocalRanks::start(&context, &gradients, rank_links, Heartbeats::ToCoordinator)?;
    let inbox = local.inbox(Rank(rank)).expect("it was just started").clone();
    // From here on a coordinator that takes nothing is as good as gone.
    let seconds = coordinator_patience(&stream, options.peer_seconds, context.survival.is_some());
    prepare(stream.socket(), seconds).map_err(|error| gone(error.into()))?;
    let is_followed = Arc::new(AtomicBool::new(true));
    let line = CommandLine { line: 0, rank: None, stream: stream.clone(), is_followed };
    if known.is_none() {
        // Workers that ask here to join are sent to the process that controls the run.
        context.doors.hear_joiners(JoinPlace::There(address.clone()));
    }
    let listener = CommandListener { inbox, process: controller, identity: known, seconds };
    listener.clone().attend(line.clone()).map_err(|error| gone(error.into()))?;
    let process = listener.process.clone();
    let survivor = heir.and_then(|heir| {
        heir.begins(context.survival.is_some());
        let (port, is_secure) = (transport.port(), stream.is_secure());
        let hall = JoinHall { run, job, open, port, is_secure };
        let place = OwnPlace { rank: Rank(rank), addresses, coordinator: address.clone(), hall };
        place.survivor(&context, listener, heir)
    });
    let follower = Follower::new(&line, process, survivor).map_err(|error| gone(error.into()))?;
    follower.serve(&relay.events(incoming)).map_err(|end| how_it_ended(end, address))
}

/// Where this process is in the run.
struct OwnPlace {
    rank: Rank,
    /// Where all ranks listen.
    addresses: Vec<String>,
    coordinator: String,
    hall: JoinHall,
}

impl OwnPlace {
    /// Its part in who controls the run, where that may change.
    fn survivor<'a>(
        self,
        context: &'a ProcessContext,
        listener: CommandListener,
        heir: &'a mut dyn Heir,
    ) -> Option<Survivor<'a>> {
        let survival = context.survival.clone()?;
        let ProcessContext { setup, options, .. } = context;
        let limits = EventLimits::new(setup.ranks(), vector_lengths(setup, options));
        let (identity, options) = (listener.identity.clone(), options.clone());
        let caller = Caller { run: self.hall.run, own: self.rank, identity, options, limits };
        let inbox = listener.inbox.clone();
        Some(Survivor::new(SurvivorConfig {
            rank: self.rank,
            context,
            survival,
            inbox,
            lines: PeerLines::new(caller, listener, self.addresses),
            heir,
            coordinator: self.coordinator,
            hall: self.hall,
        }))
    }
}

fn how_it_ended(end: JoinEnd, address: String) -> NetError {
    match end {
        JoinEnd::Aborted(reason) => NetError::Aborted(reason),
        JoinEnd::Gone(reason) => NetError::LostCoordinator { address, reason },
        JoinEnd::NoQuorum(missing) => NetError::NoQuorum(missing),
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

/// Says where this process listens.
fn listening(options: &NetOptions, port: u16) -> SetupMessage {
    match options.local.told(port) {
        Some(address) => SetupMessage::ListeningAt { address },
        None => SetupMessage::Listening { port },
    }
}

/// Where to listen for peers: where the operator says, else on all addresses where other machines take part,
/// else on `own` only.
fn listening_ip(options: &NetOptions, open: bool, own: IpAddr) -> IpAddr {
    match (options.local.ip, open, own) {
        (Some(chosen), ..) => chosen,
        (None, false, ip) => ip,
        (None, true, IpAddr::V4(_)) => IpAddr::from([0, 0, 0, 0]),
        (None, true, IpAddr::V6(_)) => IpAddr::from([0u16; 8]),
    }
}
