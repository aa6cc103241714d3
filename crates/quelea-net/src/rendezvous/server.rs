// long: the steps of a start are easier to follow in one file
//! The coordinator: waits for workers, exchanges their addresses, and controls the run.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use quelea_core::message::Rank;
use quelea_core::run_spec::RunSpec;
use quelea_record::{Observer, Outcome, ResumePoint};

use crate::clock::RunClock;
use crate::compute::Gradients;
use crate::controller::{self, Incoming};
use crate::error::NetError;
use crate::heartbeat::Heartbeats;
use crate::launcher::{self, Launched, PublishedAddress, Rendezvous};
use crate::local_ranks::{LocalRanks, ProcessContext};
use crate::measure::{Measured, StreamSurvey};
use crate::open_files::OpenFiles;
use crate::options::NetOptions;
use crate::protocol::{self, SetupMessage, Wait};
use crate::rendezvous::addresses::{AddressTable, Streams, exchange_addresses};
use crate::rendezvous::admission::{Admission, Arrival};
use crate::rendezvous::joiners::Joiners;
use crate::rendezvous::listener::{GuardedListener, WhenBusy};
use crate::rendezvous::starting::{
    attend_workers, begin_worker, control_links, residents, run_number, send_states, vector_lengths,
};
use crate::rendezvous::worker_reader::EventLimits;
use crate::survival;
use crate::transport::{Doors, MeshPlan, RankLinks, Transport, TransportKind, mpi};
use crate::trust::{self, Access, JoinToken, LinkIdentity};
use quelea_control::{Command, LossPolicy, QuorumRule, SilenceLimits};

/// Which workers live in the coordinator's process. Servers always do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosted {
    /// Their ranks.
    pub workers: Vec<u32>,
}

/// Runs all ranks as threads of this process.
pub fn threads(
    setup: &RunSpec,
    gradients: &Gradients,
    options: &NetOptions,
    observer: &mut dyn Observer,
) -> Result<Outcome, NetError> {
    resume(setup, gradients, options, Arc::default(), observer)
}

/// As [`threads`], resuming from `start`.
pub fn resume(
    setup: &RunSpec,
    gradients: &Gradients,
    options: &NetOptions,
    start: Arc<ResumePoint>,
    observer: &mut dyn Observer,
) -> Result<Outcome, NetError> {
    check(setup)?;
    OpenFiles { here: setup.ranks(), elsewhere: 0, joined: 0 }.reserve()?;
    let (controller, incoming) = channel();
    let context = ProcessContext {
        setup: setup.clone(),
        options: options.clone(),
        clock: RunClock::showing(start.now, Instant::now()),
        timeline: observer.wants_timeline(),
        schedule: observer.checkpoint_schedule(),
        start,
        controller,
        doors: Doors::default(),
        is_external: gradients.are_external(),
        survival: None,
    };
    let lost = context.start.absent(setup);
    let living = (0..setup.ranks()).map(Rank::from).filter(|rank| !lost.contains(rank));
    let rank_links = living.map(|rank| RankLinks { rank, endpoints: Vec::new() });
    let local =
        LocalRanks::start(&context, gradients, rank_links.collect(), Heartbeats::WithinProcess)?;
    let control_links = control_links(setup.ranks(), &local, &BTreeMap::new());
    controller::run(&context, control_links, None, observer, &incoming)
}

pub(crate) fn check(setup: &RunSpec) -> Result<(), NetError> {
    if setup.workers() == 0 {
        return Err(NetError::Setup("a run needs at least one worker".into()));
    }
    let largest = setup.layout.buckets.iter().map(|bucket| bucket.range.len()).max();
    if largest.is_some_and(|len| u32::try_from(len).is_err()) {
        return Err(NetError::Setup("a bucket has 2^32 elements or more; cut it".into()));
    }
    Ok(())
}

/// The process at which workers join. It hosts the servers, decides when the run ends, and has
/// the outcome.
#[derive(Debug)]
pub struct Coordinator {
    listener: TcpListener,
    address: SocketAddr,
    options: NetOptions,
    published: Option<PublishedAddress>,
    start: Arc<ResumePoint>,
    /// The number that tells this run from others.
    run: u64,
    /// Who may take part; nothing where connections are plain.
    access: Option<Access>,
}

impl Coordinator {
    /// Listens on `addr`, for example `127.0.0.1:0`. Beyond this machine connections are encrypted, and
    /// workers need the coordinator's [`token`](Coordinator::token), unless the options say otherwise.
    pub fn bind(addr: &str, options: NetOptions) -> Result<Coordinator, NetError> {
        let failed = |source| NetError::Listen { address: addr.to_string(), source };
        let listener = TcpListener::bind(addr).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (start, run) = (Arc::default(), run_number());
        let access = Access::new(run, address.ip(), &options.security, options.token_seconds)?;
        Ok(Coordinator { listener, address, options, published: None, start, run, access })
    }

    /// What lets a worker join that reaches this machine as `host`; nothing where connections are plain.
    pub fn token(&self, host: &str) -> Option<JoinToken> {
        Some(self.access.as_ref()?.token(format!("{host}:{}", self.address.port())))
    }

    /// The run resumes from `start`; every worker receives its part.
    pub fn resume_from(self, start: Arc<ResumePoint>) -> Coordinator {
        Coordinator { start, ..self }
    }

    /// What happens when a rank is lost.
    pub fn on_loss(mut self, policy: LossPolicy) -> Coordinator {
        self.options.on_loss = policy;
        self
    }

    /// How long a process may be silent.
    pub fn silence(mut self, limits: SilenceLimits) -> Coordinator {
        self.options.silence = limits;
        self
    }

    /// How long the run waits for workers to join where fewer are left than it wants; 0: it ends.
    pub fn await_joiners(mut self, seconds: f64) -> Coordinator {
        self.options.joiner_seconds = seconds;
        self
    }

    /// Who may continue when this process is lost.
    pub fn quorum(mut self, rule: QuorumRule) -> Coordinator {
        self.options.quorum = rule;
        self
    }

    /// For how long a connection between ranks of two machines that broke may be restored; 0: it is not.
    pub fn reconnect(mut self, seconds: f64) -> Coordinator {
        self.options.reconnect_seconds = seconds;
        self
    }

    /// What carries frames between processes, those that join included.
    pub fn transport(mut self, kind: TransportKind) -> Coordinator {
        self.options.transport = kind;
        self
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// For rank 0 of processes that a launcher has started: listens where the others will look.
    pub fn of_launch(launched: &Launched, options: NetOptions) -> Result<Coordinator, NetError> {
        match &launched.rendezvous {
            Rendezvous::Address(address) if trust::is_own(trust::host_of(address)) => {
                Coordinator::bind(address, options)
            }
            Rendezvous::Address(address) => {
                options.security.check_host(trust::host_of(address))?;
                Coordinator::bind(&launcher::bound_address(address), options)
            }
            Rendezvous::Mpi => Coordinator::of_mpi(options),
            Rendezvous::LocalFile(path) => {
                let mut coordinator = Coordinator::bind("127.0.0.1:0", options)?;
                coordinator.publish(path)?;
                Ok(coordinator)
            }
        }
    }

    /// For the first process of an MPI job: tells the others where it listens, as a message of MPI. With that they
    /// receive what lets them in, so that connections between machines are encrypted without a common secret.
    fn of_mpi(options: NetOptions) -> Result<Coordinator, NetError> {
        let own = mpi::own_addresses(&options)?;
        let any = match own[0] {
            ip if ip.is_loopback() => ip,
            IpAddr::V4(_) => IpAddr::from([0, 0, 0, 0]),
            IpAddr::V6(_) => IpAddr::from([0u16; 8]),
        };
        let options = NetOptions { transport: TransportKind::Mpi, ..options };
        let coordinator = Coordinator::bind(&SocketAddr::new(any, 0).to_string(), options)?;
        let port = coordinator.address.port();
        let place = |ip: &IpAddr| {
            let address = SocketAddr::new(*ip, port).to_string();
            let host = address.strip_suffix(&format!(":{port}")).unwrap_or(&address);
            coordinator.token(host).map_or(address.clone(), |token| token.reveal())
        };
        let fitting = own.iter().filter(|ip| ip.is_ipv4() == any.is_ipv4());
        mpi::tell_meeting(&fitting.map(place).collect::<Vec<_>>())?;
        Ok(coordinator)
    }

    /// Leaves the address in a file where workers on this machine look for it (`file:PATH`), until
    /// the run has ended.
    pub fn publish(&mut self, path: &Path) -> Result<(), NetError> {
        let failed = |source| NetError::Listen { address: path.display().to_string(), source };
        self.published = Some(PublishedAddress::new(path, self.address).map_err(failed)?);
        Ok(())
    }

    /// Waits for the workers that it does not host itself, hands each the `job`, runs, and gives
    /// the outcome.
    pub fn run(
        self,
        job: Vec<u8>,
        setup: &RunSpec,
        gradients: &Gradients,
        hosted: &Hosted,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, NetError> {
        let seconds = self.options.drain_seconds;
        let is_mpi = self.options.transport == TransportKind::Mpi;
        let outcome = self.run_open(job, setup, gradients, hosted, observer)?;
        if is_mpi {
            mpi::finish(Wait::new(seconds, "all processes to end"))?;
        }
        Ok(outcome)
    }

    // long: a run begins in one order, and each step needs what the one before made
    /// As [`run`](Coordinator::run); everything of it has ended when it returns.
    fn run_open(
        self,
        job: Vec<u8>,
        setup: &RunSpec,
        gradients: &Gradients,
        hosted: &Hosted,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, NetError> {
        check(setup)?;
        let absent = self.start.absent(setup);
        let here = residents(setup, hosted)?.difference(&absent).copied().collect::<BTreeSet<_>>();
        let elsewhere = setup.ranks() - here.len() - absent.len();
        OpenFiles { here: here.len(), elsewhere, joined: elsewhere }.reserve()?;
        let (start, options) = (Arc::clone(&self.start), self.options.clone());
        let clock = RunClock::showing(start.now, Instant::now());
        let (controller, incoming) = channel();
        let identity = self.own_identity(&here)?;
        let doors = Doors::of(identity.clone());
        let plan = self.plan(setup.ranks(), here, identity.clone(), doors.clone());
        let refusal = || self.options.transport.join_refusal();
        let (workers, join_refusal) = (setup.seats() as u32, setup.join_refusal().or_else(refusal));
        let call = JoinCall { plan, absent, job, workers, join_refusal, clock };
        let gathered = self.gather(call, controller.clone(), observer)?;
        let ConnectedWorkers { streams, rank_links, door, transport, _published, _listener } =
            gathered;
        send_states(&streams, &start);
        let (zero, schedule) = (clock.now() - start.now, observer.checkpoint_schedule());
        let lengths = vector_lengths(setup, &options);
        let survival = survival::survival(setup, &options, &rank_links);
        let begins = SetupMessage::Start { zero, schedule, survival: survival.clone() };
        streams.values().for_each(|stream| begin_worker(stream, &begins, &options));
        let limits = EventLimits::new(setup.ranks(), lengths);
        let readers = attend_workers(&streams, &limits, &controller)?;
        let context = ProcessContext {
            setup: setup.clone(),
            options,
            clock: clock.restarted(zero),
            timeline: observer.wants_timeline(),
            schedule,
            start,
            controller: controller.clone(),
            doors,
            is_external: gradients.are_external(),
            survival: survival.clone(),
        };
        let local = LocalRanks::start(&context, gradients, rank_links, Heartbeats::WithinProcess)?;
        let control_links = control_links(setup.ranks(), &local, &streams);
        let Door { admission, arrivals, addresses } = door;
        admission.begin();
        let joiners = Joiners {
            admission,
            identity,
            arrivals,
            controller,
            addresses,
            port: transport.port(),
            limits,
            zero,
            schedule,
            survival,
            joining: None,
            waiting: BTreeMap::new(),
            transfers: 0,
            readers,
        };
        controller::run(&context, control_links, Some(joiners), observer, &incoming)
    }

    /// Waits for this number of workers, hands each the `job`, and has them time the links between them
    /// and, where `steps` are wanted, the gradients of the job's problem. The job must be one
    /// without servers.
    pub fn measure(
        self,
        job: Vec<u8>,
        workers: usize,
        steps: bool,
        observer: &mut dyn Observer,
    ) -> Result<Measured, NetError> {
        // Nobody hears warnings; a refusal is told where a worker is missing for it.
        let (controller, _unheard) = channel();
        let options = self.options.clone();
        let plan = self.plan(workers, BTreeSet::new(), None, Doors::default());
        let (absent, clock) = (BTreeSet::new(), RunClock::start());
        let join_refusal = Some("it only measures");
        let call = JoinCall { plan, absent, job, workers: workers as u32, join_refusal, clock };
        let gathered = self.gather(call, controller, observer)?;
        StreamSurvey { streams: &gathered.streams, options: &options }.measure(steps, observer)
    }

    /// Who lives where.
    fn plan(
        &self,
        ranks: usize,
        here: BTreeSet<Rank>,
        identity: Option<LinkIdentity>,
        doors: Doors,
    ) -> MeshPlan {
        MeshPlan { run: self.run, ranks, here, identity, is_late: false, doors }
    }

    /// What the ranks of this process show to others.
    fn own_identity(&self, here: &BTreeSet<Rank>) -> Result<Option<LinkIdentity>, NetError> {
        let ranks: Vec<u32> = here.iter().map(|rank| rank.0).collect();
        let own = |access: &Access| access.authority.own_identity(&ranks);
        self.access.as_ref().map(own).transpose()
    }

    /// Who admits workers to what they are called for.
    fn admission(
        &self,
        call: &JoinCall,
        controller: &Sender<Incoming>,
        observer: &dyn Observer,
    ) -> Admission {
        Admission {
            run: call.plan.run,
            open: !self.address.ip().is_loopback(),
            timeline: observer.wants_timeline(),
            job: call.job.clone(),
            key: self.published.as_ref().map(PublishedAddress::key).unwrap_or_default(),
            clock: call.clock,
            workers: call.workers,
            options: self.options.clone(),
            access: self.access.clone(),
            given: Mutex::default(),
            lost: Mutex::new(call.absent.iter().map(|rank| rank.0).collect()),
            has_begun: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            join_refusal: call.join_refusal,
            taken: Mutex::new(call.plan.here.iter().map(|rank| (rank.0, None)).collect()),
            warnings: Mutex::new(controller.clone()),
            last_refusal: Mutex::default(),
        }
    }

    /// Waits for the workers and connects everybody with everybody.
    fn gather(
        self,
        call: JoinCall,
        controller: Sender<Incoming>,
        observer: &mut dyn Observer,
    ) -> Result<ConnectedWorkers, NetError> {
        let admission = self.admission(&call, &controller, observer);
        let JoinCall { plan, absent, .. } = call;
        let ip = self.options.local.ip.unwrap_or(self.address.ip());
        let transport = self.options.transport.open(plan.clone(), ip, &self.options, controller)?;
        let (arrived, arrivals) = channel();
        let (admission, arrived) = (Arc::new(admission), Mutex::new(arrived));
        let hearing = Arc::clone(&admission);
        let when_busy = WhenBusy::of(self.access.is_some());
        let listener = GuardedListener::open(self.listener, when_busy, move |stream, peer| {
            hearing.hear(stream, peer, &arrived);
        })
        .map_err(|source| NetError::Listen { address: self.address.to_string(), source })?;

        let begun = Instant::now();
        let joined = admission.gather(&arrivals, listener.address(), observer)?;
        let addresses = joined.iter().map(|worker| (worker.rank, worker.address)).collect();
        let door = Door { admission, arrivals, addresses };
        // All processes together have one limit; the last to come still needs a moment.
        let left = self.options.connect_seconds - begun.elapsed().as_secs_f64();
        let wait = Wait::new(left.max(self.options.handshake_seconds), "it to be connected");
        let seats = door.admission.seats(plan.ranks);
        plan.identity.iter().for_each(|identity| identity.seats().set(seats.clone()));
        let (ranks, port) = (plan.ranks, transport.port());
        let advertised = self.options.local.told(port);
        let table = AddressTable { ranks, absent: &absent, port, advertised, seats: &seats };
        match exchange_addresses(&table, &*transport, joined, &self.options, wait) {
            Ok((streams, rank_links)) => {
                // Workers that take the places of lost ones look there too.
                let published = self.published;
                Ok(ConnectedWorkers {
                    streams,
                    rank_links,
                    door,
                    transport,
                    _published: published,
                    _listener: listener,
                })
            }
            Err((streams, error)) => {
                door.admission.end();
                for stream in streams.values() {
                    let _ = protocol::write(stream, &Command::Abort(error.to_string()));
                }
                Err(error)
            }
        }
    }
}

/// What workers join for.
struct JoinCall {
    plan: MeshPlan,
    /// Ranks that were lost before the run was resumed.
    absent: BTreeSet<Rank>,
    job: Vec<u8>,
    workers: u32,
    join_refusal: Option<&'static str>,
    clock: RunClock,
}

/// How workers join later.
struct Door {
    admission: Arc<Admission>,
    arrivals: Receiver<Arrival>,
    /// Where the workers listen.
    addresses: BTreeMap<u32, SocketAddr>,
}

/// All workers, connected with each other. The listeners stay open, to admit workers that join later.
struct ConnectedWorkers {
    streams: Streams,
    rank_links: Vec<RankLinks>,
    door: Door,
    transport: Box<dyn Transport>,
    _published: Option<PublishedAddress>,
    _listener: GuardedListener,
}
