//! The ranks that live in this process, each on its thread.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use quelea_control::{Command, RankEvent, RankMachine, RankMachineConfig};
use quelea_core::message::{Message, Rank};
use quelea_core::payload::Pool;
use quelea_core::poison::PoisonPolicy;
use quelea_core::problems::GradientSource;
use quelea_core::properties::OptimizerSite;
use quelea_core::run_spec::RunSpec;
use quelea_record::{CheckpointSchedule, ResumePoint};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::clock::RunClock;
use crate::compute::{self, Gradients, InlineActivity};
use crate::controller::Incoming;
use crate::error::NetError;
use crate::external_loop::{ExternalLoop, LoopEntrance};
use crate::heartbeat::{HeartbeatThread, Heartbeats, WatchedRank};
use crate::options::NetOptions;
use crate::protocol::Survival;
use crate::rank::{Inbox, RankConfig, RankState};
use crate::transport::{
    AttachContext, Doors, FrameSink, Link, LinkError, LinkTask, RankEndpoint, RankLinks,
    WriteOrder, in_process,
};

/// What all ranks of this process have in common.
#[derive(Clone)]
pub(crate) struct ProcessContext {
    pub(crate) setup: RunSpec,
    pub(crate) options: NetOptions,
    pub(crate) clock: RunClock,
    pub(crate) timeline: bool,
    pub(crate) schedule: CheckpointSchedule,
    pub(crate) start: Arc<ResumePoint>,
    pub(crate) controller: Sender<Incoming>,
    pub(crate) doors: Doors,
    /// Whether loops outside decide how many gradients there are.
    pub(crate) is_external: bool,
    /// Who controls the run at first, where it survives that process.
    pub(crate) survival: Option<Survival>,
}

/// The running ranks of this process. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct LocalRanks {
    inboxes: Vec<(Rank, UnboundedSender<Inbox>)>,
    threads: Vec<JoinHandle<()>>,
    _heartbeat: Option<HeartbeatThread>,
}

impl LocalRanks {
    /// Starts every rank of `rank_links`.
    pub(crate) fn start(
        context: &ProcessContext,
        gradients: &Gradients,
        rank_links: Vec<RankLinks>,
        heartbeats: Heartbeats,
    ) -> Result<LocalRanks, NetError> {
        let channels: Vec<_> =
            rank_links.iter().map(|links| (links.rank, unbounded_channel())).collect();
        let inboxes = channels.iter().map(|(rank, (sender, _))| (*rank, sender.clone())).collect();
        let mut local = LocalRanks { inboxes, threads: Vec::new(), _heartbeat: None };
        let mut watched = Vec::new();
        context.doors.miss(context.start.absent(&context.setup));
        for (rank, inbox) in &local.inboxes {
            context.doors.open(*rank, inbox.clone());
        }
        let pool = Pool::new();
        let here: Vec<Rank> = rank_links.iter().map(|links| links.rank).collect();
        let within = in_process::connect(&here);
        for ((mut links, endpoint), (_, (_, inbox))) in
            rank_links.into_iter().zip(within).zip(channels)
        {
            links.endpoints.push(endpoint);
            let is_worker = links.rank.index() < context.setup.seats();
            let (source, external) = match gradients {
                _ if !is_worker => (None, None),
                Gradients::Sources(make) => (Some(make(links.rank.index())), None),
                Gradients::External(make) => (None, Some(make(links.rank.index()))),
            };
            let activity = Arc::<InlineActivity>::default();
            watched.push(WatchedRank::new(links.rank.0, Arc::clone(&activity)));
            let thread = RankThread {
                activity,
                source,
                external,
                context: context.clone(),
                pool: pool.clone(),
                own: local.inboxes[local.threads.len()].1.clone(),
                links,
                inbox,
            };
            local.threads.push(thread.begin()?);
        }
        let period = Duration::from_nanos(context.options.control_limits().heartbeat_period().0);
        let controller = context.controller.clone();
        local._heartbeat = Some(HeartbeatThread::start(watched, heartbeats, period, controller)?);
        Ok(local)
    }

    /// The way to a rank that lives here.
    pub(crate) fn inbox(&self, rank: Rank) -> Option<&UnboundedSender<Inbox>> {
        self.inboxes.iter().find(|(here, _)| *here == rank).map(|(_, inbox)| inbox)
    }
}

impl Drop for LocalRanks {
    fn drop(&mut self) {
        for (_, inbox) in &self.inboxes {
            let _ = inbox.send(Inbox::Command(Command::Abort(String::new())));
        }
        for thread in self.threads.drain(..) {
            // A panic was caught and told to the controller inside.
            let _ = thread.join();
        }
    }
}

/// All that one rank's thread takes with it.
struct RankThread {
    context: ProcessContext,
    source: Option<Box<dyn GradientSource>>,
    /// In place of a source.
    external: Option<ExternalLoop>,
    /// Shows whether it computes on its own thread.
    activity: Arc<InlineActivity>,
    pool: Pool,
    links: RankLinks,
    /// The other end of its inbox.
    own: UnboundedSender<Inbox>,
    inbox: UnboundedReceiver<Inbox>,
}

impl RankThread {
    fn begin(self) -> Result<JoinHandle<()>, NetError> {
        let (rank, controller) = (self.links.rank, self.context.controller.clone());
        let run = move || {
            let reason = match catch_unwind(AssertUnwindSafe(|| self.live())) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(panic) => format!("it panicked: {}", compute::text(&*panic)),
            };
            let _ = controller.send(Incoming::Event(RankEvent::Failed { rank: rank.0, reason }));
        };
        let thread = std::thread::Builder::new().name(format!("rank-{}", rank.0)).spawn(run);
        thread.map_err(|error| NetError::Setup(format!("cannot start a thread: {error}")))
    }

    fn live(self) -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime, self.attend())
    }

    async fn attend(mut self) -> std::io::Result<()> {
        let order = self.write_order();
        let (links, tasks) = self.attach_links(&order)?;
        let rank_state = Rc::new(RefCell::new(RankState::new(self.rank_config()?, links)));
        let sink: Rc<dyn FrameSink> =
            Rc::new(RankSink { state: Rc::clone(&rank_state), replacements: 0 });
        for task in tasks {
            tokio::task::spawn_local(task(Rc::clone(&sink)));
        }
        rank_state.borrow_mut().start();
        let period = Duration::from_nanos(self.context.options.control_limits().tick_period().0);
        self.listen(&rank_state, &order, period).await;
        Ok(())
    }

    fn write_order(&self) -> Rc<WriteOrder> {
        let setup = &self.context.setup;
        let changes_partners = setup.view.changes_partners(self.links.rank);
        WriteOrder::new(setup.properties().synchronous && changes_partners)
    }

    fn attach_context<'a>(&'a self, order: &'a Rc<WriteOrder>) -> AttachContext<'a> {
        let (rank, setup) = (self.links.rank, &self.context.setup);
        let (len, inspects) = (setup.layout.len(), setup.poison != PoisonPolicy::Ignore);
        AttachContext { rank, order, pool: &self.pool, len, inspects }
    }

    /// A worker that joins has connected: its frames are read from now on.
    fn meet(
        &self,
        rank_state: &Rc<RefCell<RankState>>,
        order: &Rc<WriteOrder>,
        endpoint: Box<dyn RankEndpoint>,
    ) {
        // A connection that broke at once is noticed by those who wait for the worker.
        let Ok(attached) = endpoint.attach(&self.attach_context(order)) else { return };
        let mut replacements = 0;
        for (peer, link) in attached.links {
            replacements = rank_state.borrow_mut().meet(peer, link);
        }
        let sink: Rc<dyn FrameSink> =
            Rc::new(RankSink { state: Rc::clone(rank_state), replacements });
        for task in attached.tasks {
            tokio::task::spawn_local(task(Rc::clone(&sink)));
        }
    }

    /// The links to all other ranks, by rank, and the tasks that move their frames.
    fn attach_links(
        &mut self,
        order: &Rc<WriteOrder>,
    ) -> std::io::Result<(PeerLinks, Vec<LinkTask>)> {
        let setup = &self.context.setup;
        let mut links: PeerLinks = vec![None; setup.ranks()];
        let mut tasks = Vec::new();
        for endpoint in std::mem::take(&mut self.links.endpoints) {
            let attached = endpoint.attach(&self.attach_context(order))?;
            for (peer, link) in attached.links {
                links[peer.index()] = Some(link);
            }
            tasks.extend(attached.tasks);
        }
        Ok((links, tasks))
    }

    /// The rank's node, new or resumed, with whoever computes its gradients.
    fn rank_config(&mut self) -> std::io::Result<RankConfig> {
        let (rank, context) = (self.links.rank, &self.context);
        let start = |source| {
            let (name, activity) = (format!("gradient-{}", rank.0), Arc::clone(&self.activity));
            compute::start(name, source, self.own.clone(), activity)
        };
        let mut compute = self.source.take().map(start).transpose()?;
        let mut views = context.setup.views(&context.start.changes);
        let view = views.pop().expect("the first view is there");
        let joins_after = views.pop().filter(|_| context.start.joins);
        let setup = Arc::new(context.setup.clone());
        let config = RankMachineConfig {
            setup: &setup,
            start: &context.start,
            view: &view,
            schedule: context.schedule,
            limits: context.options.control_limits(),
            timeline: context.timeline,
            is_external: self.external.is_some(),
            asks_ahead: true,
            counts_links: true,
            waits_for_disk: true,
            poison: context.setup.poison,
        };
        let machine = RankMachine::new(config, rank, self.pool.clone(), context.clock.now());
        let mut machine = machine.map_err(std::io::Error::other)?;
        machine.contain_held();
        if let Some(external) = self.external.clone() {
            let sponsor = context.start.parts.get(rank.index()).filter(|_| context.start.joins);
            let sponsor = sponsor.map(|part| &part.state);
            external.attach(self.own.clone(), LoopEntrance::of(machine.node().step(), sponsor));
            external.show_changes(&context.start.changes);
            if context.setup.properties().optimizer == OptimizerSite::Workers {
                machine.optimize_outside();
            }
            compute = Some(Box::new(external));
        }
        Ok(RankConfig {
            setup: context.setup.clone(),
            machine,
            clock: context.clock,
            controller: context.controller.clone(),
            leave: context.options.leave.clone(),
            doors: context.doors.clone(),
            joins_after,
            compute,
            external: self.external.take(),
            timeline: context.timeline,
            bucket_numbers: bucket_numbers(&context.setup),
        })
    }

    /// Takes what other threads have to say, until the last word.
    async fn listen(
        &mut self,
        rank_state: &Rc<RefCell<RankState>>,
        order: &Rc<WriteOrder>,
        period: Duration,
    ) {
        let mut ticks = tokio::time::interval(period);
        loop {
            tokio::select! {
                word = self.inbox.recv() => match word {
                    Some(Inbox::Gradient(gradient)) => rank_state.borrow_mut().gradient(gradient),
                    Some(Inbox::Bucket(bucket)) => rank_state.borrow_mut().bucket(bucket),
                    Some(Inbox::Optimized) => rank_state.borrow_mut().optimized(),
                    Some(Inbox::Finished) => rank_state.borrow_mut().loop_finished(),
                    Some(Inbox::LoopState(state)) => rank_state.borrow_mut().loop_saved(&state),
                    Some(Inbox::Broken(reason)) => rank_state.borrow_mut().failed(reason),
                    Some(Inbox::Peer(endpoint)) => self.meet(rank_state, order, endpoint),
                    Some(Inbox::Share) => rank_state.borrow_mut().share(),
                    Some(Inbox::MeetController) => rank_state.borrow_mut().meet_controller(),
                    Some(Inbox::Command(command)) => {
                        if rank_state.borrow_mut().command(command) {
                            return;
                        }
                    }
                    None => return,
                },
                _ = ticks.tick() => rank_state.borrow_mut().tick(),
            }
        }
    }
}

/// Links by peer; none to the rank itself.
type PeerLinks = Vec<Option<Rc<dyn Link>>>;

/// Where transports deliver a rank's frames.
struct RankSink {
    state: Rc<RefCell<RankState>>,
    /// How often the peer was replaced before this link was made.
    replacements: u32,
}

impl FrameSink for RankSink {
    fn frame(&self, from: Rank, sent_micros: u32, message: Message) -> Result<(), String> {
        if !self.state.borrow().is_current(from, self.replacements) {
            // Nothing of an earlier process of this rank counts once another has taken its place.
            return Ok(());
        }
        self.state.borrow_mut().check(from, &message)?;
        // What only the algorithm can see to be wrong ends in a panic, which would be lost in a task.
        let take = || self.state.borrow_mut().message(from, sent_micros, message);
        catch_unwind(AssertUnwindSafe(take)).map_err(|panic| compute::text(&*panic).to_string())
    }

    fn restored(&self, peer: Rank, reason: &LinkError) {
        self.state.borrow_mut().restored(peer, &reason.to_string());
    }

    fn ended(&self, peer: Rank, error: LinkError) {
        let mut rank_state = self.state.borrow_mut();
        if !rank_state.is_current(peer, self.replacements) {
            return;
        }
        rank_state.lost(peer, error.to_string());
    }
}

/// Above every number of a bucket in a message: where an average takes in the optimizer's vectors
/// and a few numbers, their parts count on after the model's buckets.
fn bucket_numbers(setup: &RunSpec) -> u32 {
    let vectors = 1 + (setup.optimizer)(1).vectors().len();
    u32::try_from(setup.layout.buckets.len() * vectors + 1).unwrap_or(u32::MAX)
}
