//! The ranks that live in this process, each on its thread.

use std::cell::RefCell;
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use quelea_control::{Command, RankEvent, RankMachine, RankMachineConfig};
use quelea_core::message::Rank;
use quelea_core::payload::Pool;
use quelea_core::problems::GradientSource;
use quelea_core::properties::OptimizerSite;
use quelea_core::run_spec::RunSpec;
use quelea_record::{CheckpointSchedule, ResumePoint};
use quelea_wire::frame::Limits;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::clock::RunClock;
use crate::compute::{self, Gradients};
use crate::controller::Incoming;
use crate::error::NetError;
use crate::external_loop::ExternalLoop;
use crate::link::{self, Link, ReadError, WriteOrder, read_frames};
use crate::options::NetOptions;
use crate::rank::{Inbox, Peer, RankConfig, RankState};

/// A rank that is to live here, with its connections.
#[derive(Debug)]
pub(crate) struct RankLinks {
    pub(crate) rank: Rank,
    pub(crate) streams: Vec<(Rank, TcpStream)>,
}

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
}

/// The running ranks of this process. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct LocalRanks {
    inboxes: Vec<(Rank, UnboundedSender<Inbox>)>,
    threads: Vec<JoinHandle<()>>,
}

impl LocalRanks {
    /// Starts every rank of `rank_links`.
    pub(crate) fn start(
        context: &ProcessContext,
        gradients: &Gradients,
        rank_links: Vec<RankLinks>,
    ) -> Result<LocalRanks, NetError> {
        let channels: Vec<_> =
            rank_links.iter().map(|links| (links.rank, unbounded_channel())).collect();
        let inboxes = channels.iter().map(|(rank, (sender, _))| (*rank, sender.clone())).collect();
        let mut local = LocalRanks { inboxes, threads: Vec::new() };
        let pool = Pool::new();
        for (links, (_, (_, inbox))) in rank_links.into_iter().zip(channels) {
            let is_worker = links.rank.index() < context.setup.workers();
            let (source, external) = match gradients {
                _ if !is_worker => (None, None),
                Gradients::Sources(make) => (Some(make(links.rank.index())), None),
                Gradients::External(make) => (None, Some(make(links.rank.index()))),
            };
            let thread = RankThread {
                source,
                external,
                context: context.clone(),
                pool: pool.clone(),
                local: local.inboxes.clone(),
                links,
                inbox,
            };
            local.threads.push(thread.begin()?);
        }
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
    pool: Pool,
    links: RankLinks,
    local: Vec<(Rank, UnboundedSender<Inbox>)>,
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
        let (peers, connections) = self.connect_peers()?;
        let config = self.rank_config()?;
        let (rank, len) = (self.links.rank, self.context.setup.layout.len());
        let rank_state = Rc::new(RefCell::new(RankState::new(config, peers)));
        for Connection { peer, read, link } in connections {
            let limits = link::limits(peer, rank, len);
            let reader = Rc::clone(&rank_state);
            tokio::task::spawn_local(read_peer(reader, peer, read, limits, self.pool.clone()));
            let writer = Rc::clone(&rank_state);
            tokio::task::spawn_local(async move {
                let error = link.write_rest().await;
                writer.borrow_mut().lost(peer, format!("the connection broke: {error}"));
            });
        }
        rank_state.borrow_mut().start();
        let period = Duration::from_nanos(self.context.options.control_limits().tick_period().0);
        self.listen(&rank_state, period).await;
        Ok(())
    }

    /// How every other rank is reached, and the connections to those of other processes.
    fn connect_peers(&mut self) -> std::io::Result<(Vec<Peer>, Vec<Connection>)> {
        let (rank, setup) = (self.links.rank, &self.context.setup);
        let mut peers = vec![Peer::Own; setup.ranks()];
        for (peer, inbox) in self.local.iter().filter(|(peer, _)| *peer != rank) {
            peers[peer.index()] = Peer::Local(inbox.clone());
        }
        let changes_partners = setup.view.changes_partners(rank);
        let order = WriteOrder::new(setup.properties().synchronous && changes_partners);
        let mut connections = Vec::new();
        for (peer, stream) in self.links.streams.drain(..) {
            stream.set_nonblocking(true)?;
            let (read, write) = tokio::net::TcpStream::from_std(stream)?.into_split();
            let link = Link::new(write, &order);
            peers[peer.index()] = Peer::Remote(Rc::clone(&link));
            connections.push(Connection { peer, read, link });
        }
        Ok((peers, connections))
    }

    /// The rank's node, new or resumed, with whoever computes its gradients.
    fn rank_config(&mut self) -> std::io::Result<RankConfig> {
        let (rank, context) = (self.links.rank, &self.context);
        let mine = self.local.iter().find(|(peer, _)| *peer == rank).expect("it lives here");
        let start = |source| compute::start(format!("gradient-{}", rank.0), source, mine.1.clone());
        let mut compute = self.source.take().map(start).transpose()?;
        let config = RankMachineConfig {
            setup: &context.setup,
            start: &context.start,
            schedule: context.schedule,
            limits: context.options.control_limits(),
            timeline: context.timeline,
            is_external: self.external.is_some(),
            asks_ahead: true,
            counts_links: true,
            waits_for_disk: true,
        };
        let machine = RankMachine::new(config, rank, self.pool.clone(), context.clock.now());
        let mut machine = machine.map_err(std::io::Error::other)?;
        if let Some(external) = self.external.clone() {
            external.attach(mine.1.clone());
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
            compute,
            external: self.external.take(),
            timeline: context.timeline,
            bucket_numbers: bucket_numbers(&context.setup),
        })
    }

    /// Takes what other threads have to say, until the last word.
    async fn listen(&mut self, rank_state: &RefCell<RankState>, period: Duration) {
        let mut ticks = tokio::time::interval(period);
        loop {
            tokio::select! {
                word = self.inbox.recv() => match word {
                    Some(Inbox::Message { from, sent_micros, message }) => {
                        rank_state.borrow_mut().message(from, sent_micros, message);
                    }
                    Some(Inbox::Gradient(gradient)) => rank_state.borrow_mut().gradient(gradient),
                    Some(Inbox::Bucket(bucket)) => rank_state.borrow_mut().bucket(bucket),
                    Some(Inbox::Optimized) => rank_state.borrow_mut().optimized(),
                    Some(Inbox::Finished) => rank_state.borrow_mut().loop_finished(),
                    Some(Inbox::Broken(reason)) => rank_state.borrow_mut().failed(reason),
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

/// A connection to a rank of another process.
struct Connection {
    peer: Rank,
    read: OwnedReadHalf,
    link: Rc<Link>,
}

/// Hands every message of `peer` to the rank, until the connection ends.
async fn read_peer(
    rank_state: Rc<RefCell<RankState>>,
    peer: Rank,
    read: OwnedReadHalf,
    limits: Limits,
    pool: Pool,
) {
    let error = read_frames(read, limits, pool, |header, message| {
        rank_state.borrow().check(&message)?;
        // What only the algorithm can see to be wrong ends in a panic, which would be lost in this
        // task.
        let take = || rank_state.borrow_mut().message(peer, header.sent_micros, message);
        catch_unwind(AssertUnwindSafe(take)).map_err(|panic| compute::text(&*panic).to_string())
    });
    match error.await {
        ReadError::Frame(error) => {
            rank_state.borrow_mut().failed(format!("{peer} sent it a bad frame: {error}"));
        }
        ReadError::Message(why) => {
            let reason = format!("{peer} sent it a message that it cannot take: {why}");
            rank_state.borrow_mut().failed(reason);
        }
        error => rank_state.borrow_mut().lost(peer, error.to_string()),
    }
}

/// Above every number of a bucket in a message: where an average takes in the optimizer's vectors
/// and a few numbers, their parts count on after the model's buckets.
fn bucket_numbers(setup: &RunSpec) -> u32 {
    let vectors = 1 + (setup.optimizer)(1).vectors().len();
    u32::try_from(setup.layout.buckets.len() * vectors + 1).unwrap_or(u32::MAX)
}
