//! The drivers of a prepared run: the virtual cluster, threads, processes, machines that join.
//!
//! Each is what [`execute`](crate::execute::execute) lets drive.

mod data_folders;
mod heir;
mod launched;
mod processes;
mod program;
mod slowed;

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use quelea_core::message::Rank;
use quelea_core::registry::Registry;
use quelea_core::run_spec::RunSpec;
use quelea_core::time::Time;
use quelea_core::view::ViewChange;
pub use quelea_net::LeaveNotice;
use quelea_net::{BuildRun, Coordinator, Gradients, Heir, Hosted, JobError, NetError, NetOptions};
use quelea_record::{
    CheckpointSchedule, Models, Observer, Outcome, RankCheckpoint, Record, Request, SalvagedModel,
};

use crate::error::RunError;
use crate::files::directory::Directory;
use crate::files::part_note::{PartNote, RunId};
use crate::files::summary::ClockKind;
use crate::prepared::PreparedRun;
use crate::recorder::RunRecorder;

use heir::RunHeir;
pub use launched::{LaunchedWorker, launched, refuse_mpi};
pub use processes::{
    ProcessOptions, ProcessSignal, Tell, end_with_parent, kill_worker, measure_processes,
    processes, signal_worker, workers_with_processes,
};
pub use program::{again, executable, interpreter, started_by};
pub use quelea_net::launcher::{PORT as RENDEZVOUS_PORT, expand_hosts};
pub use quelea_net::{
    JoinToken, LocalAddress, PublishedToken, RunSecret, Security, TransportKind, local_address,
    measure,
};
pub use slowed::slowed;

/// A line of another program, fit to be shown.
pub fn shown_line(line: &str) -> String {
    quelea_net::shown(line, quelea_net::WARNING_CHARS)
}

/// What a run's times are measured by, and what the run came to.
pub type Driven = Result<(ClockKind, Outcome), RunError>;

/// Runs the run in the virtual cluster.
pub fn simulate(prepared: &PreparedRun, recorder: &mut RunRecorder<'_>) -> Driven {
    recorder.on_virtual_clock();
    let (setup, problem) = (prepared.setup.simulated(), &*prepared.problem);
    let outcome =
        quelea_sim::resume(&setup, problem, &prepared.cluster, &prepared.start, recorder)?;
    Ok((ClockKind::Virtual, outcome))
}

/// Runs every rank as a thread of this process.
pub fn threads(prepared: &PreparedRun, recorder: &mut RunRecorder<'_>) -> Driven {
    let gradients = slowed(prepared);
    let (options, start) = (NetOptions::default(), Arc::clone(&prepared.start));
    let outcome = quelea_net::resume(&prepared.setup, &gradients, &options, start, recorder)?;
    Ok((ClockKind::Real, outcome))
}

/// A place where workers of other processes and machines join.
pub struct OpenRendezvous {
    coordinator: Coordinator,
}

impl OpenRendezvous {
    /// Listens on `address`; joiners may take `wait_seconds` to come. Beyond this machine they need its
    /// [`token`](OpenRendezvous::token), unless `security` says otherwise.
    pub fn open(
        address: &str,
        wait_seconds: f64,
        security: Security,
    ) -> Result<OpenRendezvous, RunError> {
        OpenRendezvous::open_at(address, wait_seconds, security, LocalAddress::default())
    }

    /// As [`open`](OpenRendezvous::open), with how the ranks of this process are reached.
    pub fn open_at(
        address: &str,
        wait_seconds: f64,
        security: Security,
        local: LocalAddress,
    ) -> Result<OpenRendezvous, RunError> {
        let options = NetOptions {
            connect_seconds: wait_seconds,
            security,
            local,
            survives: true,
            ..NetOptions::default()
        };
        Ok(OpenRendezvous { coordinator: Coordinator::bind(address, options)? })
    }

    /// What lets a worker join that reaches this machine as `host`; nothing where connections are plain.
    pub fn token(&self, host: &str) -> Option<JoinToken> {
        self.coordinator.token(host)
    }

    /// Where it listens.
    pub fn address(&self) -> std::net::SocketAddr {
        self.coordinator.address()
    }

    /// Runs the run with those who join; `here` are the workers of this process.
    pub fn run(
        self,
        prepared: &PreparedRun,
        here: &[u32],
        recorder: &mut RunRecorder<'_>,
        gathering: Gathering<'_>,
    ) -> Driven {
        let hosted = Hosted { workers: here.to_vec() };
        let gradients = slowed(prepared);
        let run = RunId::random();
        let first = FirstPart::begin(prepared, recorder.directory(), &run, here);
        let mut host = JoinObserver { recorder, gathering };
        let coordinator = self.coordinator.resume_from(Arc::clone(&prepared.start));
        let coordinator = coordinator
            .on_loss(prepared.loss_policy())
            .silence(prepared.silence_limits())
            .quorum(prepared.config.quorum())
            .await_joiners(prepared.config.membership.real("wait_seconds"))
            .reconnect(prepared.config.membership.real("reconnect_seconds"))
            .transport(prepared.config.transport);
        let job = run.name_job(&prepared.job());
        let ended = coordinator.run(job, &prepared.setup, &gradients, &hosted, &mut host);
        let ended = ended.map_err(RunError::from);
        if !ended.as_ref().is_err_and(RunError::is_missing_quorum) {
            first.end();
        }
        Ok((ClockKind::Real, ended?))
    }
}

/// The folder of a run whose rest may be written elsewhere.
struct FirstPart<'a> {
    directory: Option<&'a Directory>,
}

impl<'a> FirstPart<'a> {
    /// Says in the folder which run it is, where another process can take over.
    fn begin(
        prepared: &PreparedRun,
        directory: &'a Directory,
        run: &RunId,
        here: &[u32],
    ) -> FirstPart<'a> {
        let survives = prepared.survival_refusal().is_none();
        let note = PartNote::new(run.clone(), here.first().copied(), None);
        // Without it the parts cannot be merged; the run itself does not need it.
        let is_written = survives && note.write(directory).is_ok();
        FirstPart { directory: is_written.then_some(directory) }
    }

    /// The run has ended here, well or not: there are no other parts.
    fn end(self) {
        self.directory.iter().for_each(|directory| PartNote::remove(directory.path()));
    }
}

impl OpenRendezvous {
    /// Has those who join time the links between them and, where `steps` are wanted, the
    /// gradients of the run, whose algorithm must have no servers. When all are there, `begun`
    /// hears how many measurements there will be.
    pub fn measure(
        self,
        prepared: &PreparedRun,
        steps: bool,
        gathering: Gathering<'_>,
        begun: &mut (dyn FnMut(u64) + Send),
    ) -> Result<measure::Measured, RunError> {
        let mut host = Gatherer { gathering, begun };
        Ok(self.coordinator.measure(prepared.job(), prepared.setup.ranks(), steps, &mut host)?)
    }
}

/// Where there is nothing to hear but who joins and when it begins.
struct Gatherer<'a> {
    gathering: Gathering<'a>,
    begun: &'a mut (dyn FnMut(u64) + Send),
}

impl Observer for Gatherer<'_> {
    fn record(&mut self, _record: Record) {}

    fn gathering(&mut self, there: usize, expected: usize) -> Result<(), String> {
        (self.gathering)(there, expected)
    }

    fn progress(&mut self, _done: u64, total: u64, _now: Time) {
        (self.begun)(total);
    }
}

/// Hears, while workers are awaited, how many of how many have joined; a reason ends the waiting.
pub type Gathering<'a> = &'a mut (dyn FnMut(usize, usize) -> Result<(), String> + Send);

/// A recorder that is told who joins.
struct JoinObserver<'a, 'b> {
    recorder: &'a mut RunRecorder<'b>,
    gathering: Gathering<'a>,
}

impl Observer for JoinObserver<'_, '_> {
    fn record(&mut self, record: Record) {
        self.recorder.record(record);
    }

    fn wants_timeline(&self) -> bool {
        self.recorder.wants_timeline()
    }

    fn gathering(&mut self, there: usize, expected: usize) -> Result<(), String> {
        self.recorder.gathering(there, expected)?;
        (self.gathering)(there, expected)
    }

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        self.recorder.checkpoint_schedule()
    }

    fn evaluate(&mut self, now: Time, step: u64, models: Models) {
        self.recorder.evaluate(now, step, models);
    }

    fn view_changed(&mut self, change: &ViewChange) {
        self.recorder.view_changed(change);
    }

    fn checkpoint(&mut self, now: Time, step: u64, rank: Rank, part: RankCheckpoint) {
        self.recorder.checkpoint(now, step, rank, part);
    }

    fn salvaged(&mut self, now: Time, models: Vec<SalvagedModel>) {
        self.recorder.salvaged(now, models);
    }

    fn durable_step(&mut self) -> u64 {
        self.recorder.durable_step()
    }

    fn request(&mut self) -> Request {
        self.recorder.request()
    }

    fn rank_to_drop(&mut self) -> Option<u32> {
        self.recorder.rank_to_drop()
    }

    fn survey_interval(&self) -> Option<Time> {
        self.recorder.survey_interval()
    }
}

/// How a worker takes part.
#[derive(Clone, Debug, Default)]
pub struct Joining {
    /// As which worker; without it, as any that is missing.
    pub rank: Option<u32>,
    /// How long to wait for the coordinator and the other workers.
    pub wait_seconds: f64,
    /// Whether connections are encrypted, where no token says so.
    pub security: Security,
    /// Below which folders the coordinator may have files read; `None`: anywhere, for processes of the
    /// same operator.
    pub data: Option<Vec<PathBuf>>,
    /// The worker leaves when this is given.
    pub leave: LeaveNotice,
    /// How this process is reached.
    pub local: LocalAddress,
    /// Where the rest of the run goes, should this process take over from the coordinator; without it, to a
    /// new folder.
    pub out: Option<PathBuf>,
    /// Where the coordinator writes, if that is known here.
    pub coordinator_out: Option<PathBuf>,
    /// Hears, in a sentence, that this process has taken over.
    pub took_over: Option<fn(&str)>,
    /// How many processes this one starts in the place of lost ones, should it take over.
    pub restarts: u32,
}

/// Takes part in the run that is coordinated at `place`: a token, or an address. The coordinator's names
/// are looked up in `registry`. A prepared run that was made already is used if it is the coordinator's
/// too.
pub fn join(
    registry: &Registry,
    place: &str,
    joining: &Joining,
    made: Option<PreparedRun>,
) -> Result<(), RunError> {
    take_part(registry, joining, made, |options, build, heir| {
        quelea_net::join_as_heir(place, joining.rank, options, build, heir)
    })
}

/// Waits at the coordinator until a worker is lost, and takes part in its place. `false` if the run has
/// ended without needing it.
pub fn stand_by(registry: &Registry, place: &str, joining: &Joining) -> Result<bool, RunError> {
    let joined = take_part(registry, joining, None, |options, build, heir| {
        quelea_net::stand_by(place, options, build, Some(heir))
    });
    match joined {
        Ok(()) => Ok(true),
        Err(RunError::Net(NetError::Unneeded { .. })) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Joining {
    fn options(&self) -> NetOptions {
        NetOptions {
            connect_seconds: self.wait_seconds,
            security: self.security.clone(),
            leave: self.leave.clone(),
            local: self.local.clone(),
            ..NetOptions::default()
        }
    }
}

/// Takes part by one of the ways of the network crate; a prepared run that was made already is used if it is
/// the coordinator's too.
fn take_part(
    registry: &Registry,
    joining: &Joining,
    mut made: Option<PreparedRun>,
    enter: impl FnOnce(&NetOptions, &mut BuildRun<'_>, &mut dyn Heir) -> Result<(), NetError>,
) -> Result<(), RunError> {
    let built = RefCell::new(None);
    let run = RefCell::new(None);
    let mut build = |job: &[u8]| -> Result<(RunSpec, Gradients), JobError> {
        let (name, job) = RunId::split_job(job);
        *run.borrow_mut() = name;
        let prepare = || {
            joining.data.iter().try_for_each(|folders| data_folders::check(job, folders))?;
            PreparedRun::from_job(registry, job)
        };
        let prepared = match made.take() {
            Some(prepared) if prepared.job() == job => prepared,
            _ => prepare().map_err(|error| data_folders::job_error(&error))?,
        };
        let (setup, gradients) = (prepared.setup.clone(), slowed(&prepared));
        *built.borrow_mut() = Some(prepared);
        Ok((setup, gradients))
    };
    let mut heir = RunHeir { prepared: &built, run: &run, joining, ended: None, kept: None };
    let joined = enter(&joining.options(), &mut build, &mut heir);
    match (heir.ended, heir.kept) {
        (Some(ended), _) => ended,
        (None, Some(kept)) => joined.map_err(|error| {
            let error = Box::new(RunError::Net(error));
            RunError::BrokenOff { error, kept }
        }),
        (None, None) => Ok(joined?),
    }
}
