//! The ranks that live in this process, each on its thread.

use std::cell::RefCell;
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use quelea_core::contract::OptimizerSite;
use quelea_core::message::Rank;
use quelea_core::node::RunSpec;
use quelea_core::payload::Pool;
use quelea_core::problems::{GradientSource, Problem};
use quelea_record::{CheckpointSchedule, ResumePoint};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::clock::Clock;
use crate::compute::{self, Compute};
use crate::conductor::Incoming;
use crate::error::NetError;
use crate::link::{self, Link, Order, ReadError, read_frames};
use crate::options::NetOptions;
use crate::outer::OuterLoop;
use crate::protocol::{Command, Event};
use crate::rank::{CutState, Inbox, Parts, Shell, Way};

/// A rank that is to live here, with its connections.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) rank: Rank,
    pub(crate) links: Vec<(Rank, TcpStream)>,
}

/// What all ranks of this process have in common.
#[derive(Clone)]
pub(crate) struct House {
    pub(crate) setup: RunSpec,
    pub(crate) options: NetOptions,
    pub(crate) clock: Clock,
    pub(crate) timeline: bool,
    pub(crate) schedule: CheckpointSchedule,
    pub(crate) start: Arc<ResumePoint>,
    pub(crate) conductor: Sender<Incoming>,
}

/// The running ranks of this process. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Hosts {
    inboxes: Vec<(Rank, UnboundedSender<Inbox>)>,
    threads: Vec<JoinHandle<()>>,
}

impl Hosts {
    /// Starts every rank of `seats`.
    pub(crate) fn start(
        house: &House,
        problem: &dyn Problem,
        seats: Vec<Seat>,
    ) -> Result<Hosts, NetError> {
        let doors: Vec<_> = seats.iter().map(|seat| (seat.rank, unbounded_channel())).collect();
        let inboxes = doors.iter().map(|(rank, (sender, _))| (*rank, sender.clone())).collect();
        let mut hosts = Hosts { inboxes, threads: Vec::new() };
        let pool = Pool::new();
        for (seat, (_, (_, inbox))) in seats.into_iter().zip(doors) {
            let is_worker = seat.rank.index() < house.setup.workers();
            let outer = if is_worker { problem.outer_loop(seat.rank.index()) } else { None };
            let outer = outer.and_then(|outer| outer.downcast_ref::<OuterLoop>()).cloned();
            let inside = is_worker && outer.is_none();
            let life = Life {
                source: inside.then(|| problem.source(seat.rank.index())),
                outer,
                house: house.clone(),
                pool: pool.clone(),
                near: hosts.inboxes.clone(),
                seat,
                inbox,
            };
            hosts.threads.push(life.begin()?);
        }
        Ok(hosts)
    }

    /// The way to a rank that lives here.
    pub(crate) fn inbox(&self, rank: Rank) -> Option<&UnboundedSender<Inbox>> {
        self.inboxes.iter().find(|(here, _)| *here == rank).map(|(_, inbox)| inbox)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for (_, inbox) in &self.inboxes {
            let _ = inbox.send(Inbox::Command(Command::Abort(String::new())));
        }
        for thread in self.threads.drain(..) {
            // A panic was caught and told to the conductor inside.
            let _ = thread.join();
        }
    }
}

/// All that one rank's thread takes with it.
struct Life {
    house: House,
    source: Option<Box<dyn GradientSource>>,
    /// In place of a source.
    outer: Option<OuterLoop>,
    pool: Pool,
    seat: Seat,
    near: Vec<(Rank, UnboundedSender<Inbox>)>,
    inbox: UnboundedReceiver<Inbox>,
}

impl Life {
    fn begin(self) -> Result<JoinHandle<()>, NetError> {
        let (rank, conductor) = (self.seat.rank, self.house.conductor.clone());
        let run = move || {
            let reason = match catch_unwind(AssertUnwindSafe(|| self.live())) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(panic) => format!("it panicked: {}", compute::text(&*panic)),
            };
            let _ = conductor.send(Incoming::Event(Event::Failed { rank: rank.0, reason }));
        };
        let thread = std::thread::Builder::new().name(format!("rank-{}", rank.0)).spawn(run);
        thread.map_err(|error| NetError::RunSpec(format!("cannot start a thread: {error}")))
    }

    fn live(self) -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime, self.attend())
    }

    async fn attend(mut self) -> std::io::Result<()> {
        let Life { house, source, outer, pool, seat, near, .. } = &mut self;
        let rank = seat.rank;
        let mut ways = vec![Way::Myself; house.setup.ranks()];
        for (peer, inbox) in near.iter().filter(|(peer, _)| *peer != rank) {
            ways[peer.index()] = Way::Near(inbox.clone());
        }
        let mut halves = Vec::new();
        let changes_partners = house.setup.view.changes_partners(rank);
        let order = Order::new(house.setup.properties().synchronous && changes_partners);
        for (peer, stream) in seat.links.drain(..) {
            stream.set_nonblocking(true)?;
            let (read, write) = tokio::net::TcpStream::from_std(stream)?.into_split();
            let link = Link::new(write, &order);
            ways[peer.index()] = Way::Far(Rc::clone(&link));
            halves.push((peer, read, link));
        }
        let mine = near.iter().find(|(peer, _)| *peer == rank).expect("it lives here");
        let start = |source| Compute::start(format!("gradient-{}", rank.0), source, mine.1.clone());
        let mut compute = source.take().map(start).transpose()?;
        let node = house.start.node(&house.setup, rank, pool.clone());
        let mut node = node.map_err(std::io::Error::other)?;
        if let Some(outer) = outer.clone() {
            outer.attach(mine.1.clone());
            if house.setup.properties().optimizer == OptimizerSite::Workers {
                node.optimize_outside();
            }
            compute = Some(Compute::Outside(outer));
        }
        let parts = Parts {
            report: house.start.report(rank),
            cutting: CutState::new(house.setup.clone(), pool.clone(), house.schedule, node.step()),
            node,
            properties: house.setup.properties(),
            clock: house.clock,
            options: house.options.clone(),
            conductor: house.conductor.clone(),
            compute,
            timeline: house.timeline,
            buckets: bucket_numbers(&house.setup),
        };
        let shell = Rc::new(RefCell::new(Shell::new(parts, ways)));
        for (peer, read, link) in halves {
            let limits = link::limits(peer, rank, house.setup.layout.len());
            let (reader, writer) = (Rc::clone(&shell), Rc::clone(&shell));
            let pool = pool.clone();
            tokio::task::spawn_local(async move {
                let error = read_frames(read, limits, pool, |header, message| {
                    reader.borrow().check(&message)?;
                    // What only the algorithm can see to be wrong ends in a panic, which would be
                    // lost in this task.
                    let take = || reader.borrow_mut().message(peer, header.sent_micros, message);
                    catch_unwind(AssertUnwindSafe(take))
                        .map_err(|panic| compute::text(&*panic).to_string())
                });
                match error.await {
                    ReadError::Frame(error) => {
                        reader.borrow().failed(format!("{peer} sent it a bad frame: {error}"));
                    }
                    ReadError::Message(why) => {
                        let reason = format!("{peer} sent it a message that it cannot take: {why}");
                        reader.borrow().failed(reason);
                    }
                    error => reader.borrow().lost(peer, error.to_string()),
                }
            });
            tokio::task::spawn_local(async move {
                let error = link.write_rest().await;
                writer.borrow().lost(peer, format!("the connection broke: {error}"));
            });
        }
        shell.borrow_mut().start();
        let period = tick_period(&house.options);
        self.listen(&shell, period).await;
        Ok(())
    }

    /// Takes what other threads have to say, until the last word.
    async fn listen(&mut self, shell: &RefCell<Shell>, period: Duration) {
        let mut ticks = tokio::time::interval(period);
        loop {
            tokio::select! {
                word = self.inbox.recv() => match word {
                    Some(Inbox::Message { from, sent_micros, message }) => {
                        shell.borrow_mut().message(from, sent_micros, message);
                    }
                    Some(Inbox::Gradient(gradient)) => shell.borrow_mut().gradient(gradient),
                    Some(Inbox::Given(given)) => shell.borrow_mut().given(given),
                    Some(Inbox::Broken(reason)) => shell.borrow().failed(reason),
                    Some(Inbox::Command(command)) => {
                        if shell.borrow_mut().command(command) {
                            return;
                        }
                    }
                    None => return,
                },
                _ = ticks.tick() => shell.borrow_mut().tick(),
            }
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Some(outer) = &self.outer {
            outer.keep_unheard(&mut self.inbox);
        }
    }
}

/// Above every number of a bucket in a message: where an average takes in the optimizer's vectors
/// and a few numbers, their parts count on after the model's buckets.
fn bucket_numbers(setup: &RunSpec) -> u32 {
    let vectors = 1 + (setup.optimizer)(1).vectors().len();
    u32::try_from(setup.layout.buckets.len() * vectors + 1).unwrap_or(u32::MAX)
}

/// How often somebody looks at the clock: often enough for the shortest limit.
pub(crate) fn tick_period(options: &NetOptions) -> Duration {
    Duration::from_secs_f64((options.peer_seconds / 8.0).clamp(0.01, 1.0))
}
