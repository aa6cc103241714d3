//! The thread of a group: moves bytes over all connections, runs one collective after the other,
//! and ends everything when a rank is lost.

mod ending;
mod polling;
mod requests;
mod tagged;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use super::frame::{TensorCall, Ticket};
use super::link::{Event, Link, Side};
use super::schedules::Scratch;
use super::submitted::{CallOutcome, Pending};
use super::windows::WindowTable;
use super::wire::Wire;
use super::{Operation, TensorMemory};
use tagged::{Tagged, Unmatched};

/// The longest time between two looks at the time limits.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How much the kernel may hold of a connection within one machine.
const LOOPBACK_BYTES: usize = 256 << 10;

/// What the thread is asked to do.
#[derive(Debug)]
pub(super) enum GroupCommand {
    /// Run an operation.
    Start { operation: Operation, limit: Duration, pending: Arc<Pending> },
    /// Fail, and say so to the peers.
    Abort(String),
    /// Fail here, and leave the peers: those that wait for nothing from this rank go on.
    Abandon(String),
    /// Take leave once all is done.
    Leave(Arc<Pending>),
    /// Nobody is there to give further commands.
    Forget,
}

impl GroupCommand {
    /// Ends what waits for it.
    pub(super) fn refuse(self, reason: &str) {
        match self {
            GroupCommand::Start { pending, .. } | GroupCommand::Leave(pending) => {
                pending.end(Err(reason.into()));
            }
            GroupCommand::Abort(_) | GroupCommand::Abandon(_) | GroupCommand::Forget => {}
        }
    }
}

/// A collective that waits for its turn.
struct Job {
    operation: Operation,
    limit: Duration,
    pending: Arc<Pending>,
}

/// How far the group has come.
enum Phase {
    Running,
    Failed(String),
    /// The owner has taken leave; the connections are read until the peers have left as well.
    Left,
}

pub(super) struct Engine {
    rank: usize,
    names: Vec<u32>,
    links: Vec<Option<Link>>,
    woken: UnixStream,
    commands: Receiver<GroupCommand>,
    phase: Phase,
    jobs: VecDeque<Job>,
    tagged: Vec<Tagged>,
    unmatched: Vec<Unmatched>,
    /// Sends and receives that are not complete.
    open: BTreeSet<Ticket>,
    tickets: Ticket,
    /// How many collectives have started: the key of the current one.
    collectives: u64,
    windows: Arc<WindowTable>,
    /// Requests to windows that are not answered.
    numbers: BTreeMap<(usize, u32), Ticket>,
    leaving: Option<Arc<Pending>>,
    is_forgotten: bool,
    pub(super) scratch: Scratch,
    /// What barriers reduce.
    token: Box<u64>,
}

impl Engine {
    pub(super) fn new(
        rank: usize,
        names: Vec<u32>,
        wires: Vec<Option<Wire>>,
        woken: UnixStream,
        commands: Receiver<GroupCommand>,
        windows: Arc<WindowTable>,
    ) -> io::Result<Engine> {
        woken.set_nonblocking(true)?;
        for stream in wires.iter().flatten().map(Wire::socket) {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            if stream.peer_addr()?.ip() == stream.local_addr()?.ip() {
                // More would fall out of the cache between the two copies.
                socket2::SockRef::from(stream).set_send_buffer_size(LOOPBACK_BYTES)?;
            }
        }
        let link = |wire| Link::new(wire, Arc::clone(&windows));
        Ok(Engine {
            rank,
            names,
            links: wires.into_iter().map(|wire| wire.map(link)).collect(),
            woken,
            commands,
            phase: Phase::Running,
            jobs: VecDeque::new(),
            tagged: Vec::new(),
            unmatched: Vec::new(),
            open: BTreeSet::new(),
            tickets: 0,
            collectives: 0,
            windows,
            numbers: BTreeMap::new(),
            leaving: None,
            is_forgotten: false,
            scratch: Scratch::default(),
            token: Box::new(0),
        })
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn size(&self) -> usize {
        self.links.len()
    }

    /// Until the owner and all peers have left.
    pub(super) fn run(mut self) {
        while !self.is_over() {
            let ended = match self.jobs.pop_front() {
                Some(job) => self.run_job(&job),
                None => self.drive(None),
            };
            if let Err(reason) = ended {
                self.fail(&reason);
            }
            self.leave_if_done();
        }
    }

    fn is_over(&self) -> bool {
        let all_ended = || self.links.iter().flatten().all(|link| link.is_lost());
        match self.phase {
            Phase::Running => false,
            Phase::Failed(_) => self.is_forgotten,
            Phase::Left => all_ended(),
        }
    }

    fn run_job(&mut self, job: &Job) -> Result<(), String> {
        self.collectives += 1;
        let ended = self.execute(&job.operation, Instant::now() + job.limit);
        let outcome = ended.clone().map(|()| CallOutcome { source: None });
        if let Err(reason) = &ended {
            // Nothing may touch the tensors once the caller has them back.
            self.fail(reason);
        }
        job.pending.end(outcome);
        ended
    }

    /// A byte that barriers reduce.
    pub(super) fn token(&mut self) -> TensorMemory {
        TensorMemory { address: (&raw mut *self.token) as usize, bytes: 1 }
    }

    /// The key of the current collective.
    pub(super) fn key(&self) -> u64 {
        self.collectives
    }

    /// Announces memory for what comes from `peer`.
    pub(super) fn receive(
        &mut self,
        call: TensorCall,
        key: u64,
        peer: usize,
        memory: TensorMemory,
    ) -> Result<Ticket, String> {
        let ticket = self.ticket();
        let link = self.link(peer)?;
        link.receive(call, key, memory, ticket);
        Ok(ticket)
    }

    /// Sends to `peer`.
    pub(super) fn send(
        &mut self,
        call: TensorCall,
        key: u64,
        peer: usize,
        memory: TensorMemory,
    ) -> Result<Ticket, String> {
        let ticket = self.ticket();
        let mut events = Vec::new();
        self.link(peer)?.send(call, key, memory, ticket, &mut events);
        self.react(peer, events)?;
        Ok(ticket)
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        self.open.insert(self.tickets);
        self.tickets
    }

    /// The connection to a peer that is there.
    fn link(&mut self, peer: usize) -> Result<&mut Link, String> {
        let name = self.names.get(peer).copied().unwrap_or(peer as u32);
        let link = self.links.get_mut(peer).and_then(Option::as_mut);
        let link = link.ok_or_else(|| format!("rank {name} is no other rank of this group"))?;
        match link.ended() {
            Some(reason) => Err(gone(name, reason)),
            None => Ok(link),
        }
    }

    /// Moves bytes until a send or a receive is complete.
    pub(super) fn wait(&mut self, ticket: Ticket, until: Instant) -> Result<(), String> {
        while self.open.contains(&ticket) {
            self.drive(Some(until))?;
            if Instant::now() > until && self.open.contains(&ticket) {
                return Err(self.overdue());
            }
        }
        Ok(())
    }

    /// What to say when the time limit of an operation has passed.
    fn overdue(&self) -> String {
        let each = self.links.iter().zip(&self.names);
        let waiting = each.filter_map(|(link, name)| {
            let call = link.as_ref().filter(|link| link.is_awaited())?.awaited_call();
            Some((*name, call.map_or("its part", TensorCall::name)))
        });
        let waiting: Vec<String> =
            waiting.map(|(name, what)| format!("rank {name} ({what})")).collect();
        format!(
            "timed out: rank {} waited for {} until the timeout of the call",
            self.names[self.rank],
            if waiting.is_empty() { "its peers".into() } else { waiting.join(", ") }
        )
    }

    /// Moves bytes once: waits until a connection or the owner has something to say.
    fn drive(&mut self, until: Option<Instant>) -> Result<(), String> {
        let waiting = self.open.len();
        for peer in 0..self.links.len() {
            let mut events = Vec::new();
            if let Some(link) = self.links[peer].as_mut().filter(|link| link.wants_to_write()) {
                link.write(&mut events);
            }
            self.react(peer, events)?;
        }
        let mut polled = self.poll_list();
        let links = self.links.iter().flatten().filter(|link| !link.is_lost());
        // All of them say that they sleep; none may be left out.
        let busy = links.filter(|link| link.wire().before_sleep(link.wants_to_write())).count();
        // What was waited for may be what was just written.
        let is_done = self.open.len() < waiting || busy > 0;
        let due = if is_done { Instant::now() } else { self.next_due(until) };
        let limit = due.saturating_duration_since(Instant::now());
        let milliseconds = limit.min(POLL_INTERVAL).as_micros().div_ceil(1000) as libc::c_int;
        // SAFETY: the list is as long as is said, and its descriptors are open.
        unsafe {
            libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, milliseconds);
        }
        let count = self.links.len();
        let is_seen = |seen: &libc::pollfd| seen.revents & !libc::POLLOUT != 0;
        // Before anything can fail: whoever has said that it sleeps says that it is awake.
        let mut to_read = vec![false; count];
        for (peer, link) in self.links.iter_mut().enumerate() {
            if let Some(link) = link {
                let was_socket = is_seen(&polled[count + 1 + peer]);
                to_read[peer] = link.wire_mut().after_sleep(is_seen(&polled[peer]), was_socket);
            }
        }
        if polled[count].revents != 0 {
            self.take_commands()?;
        }
        for peer in (0..count).filter(|peer| to_read[*peer]) {
            let mut events = Vec::new();
            if let Some(link) = &mut self.links[peer] {
                link.read(&mut events);
            }
            self.react(peer, events)?;
        }
        self.check_tagged()
    }

    fn next_due(&self, until: Option<Instant>) -> Instant {
        let tagged = self.tagged.iter().map(|tagged| tagged.due);
        let unmatched = self.unmatched.iter().map(|receive| receive.due);
        let latest = Instant::now() + POLL_INTERVAL;
        tagged.chain(unmatched).chain(until).min().unwrap_or(latest).min(latest)
    }

    fn react(&mut self, peer: usize, events: Vec<Event>) -> Result<(), String> {
        let name = self.names[peer];
        for event in events {
            match event {
                Event::Done(ticket) => {
                    self.open.remove(&ticket);
                }
                Event::Offered(_) => self.match_receives()?,
                Event::Failed(reason) => return Err(reason),
                Event::Window { header, bytes } => self.use_window(peer, header, &bytes)?,
                Event::WindowRefused(reason) => return Err(self.window_failed(peer, &reason)),
                Event::Disagreed { here, there } => return Err(self.disagreed(name, here, there)),
            }
        }
        match &self.links[peer] {
            Some(link) if link.is_awaited() && matches!(self.phase, Phase::Running) => {
                link.ended().map_or(Ok(()), |reason| Err(gone(name, reason)))
            }
            _ => Ok(()),
        }
    }

    fn disagreed(&self, name: u32, here: Side, there: Side) -> String {
        let own = self.names[self.rank];
        if here.call == there.call {
            return format!(
                "rank {own} has a tensor of {} bytes in {}, rank {name} one of {}: tensors must \
                 have the same size and type at both",
                here.bytes,
                here.call.name(),
                there.bytes
            );
        }
        format!(
            "rank {own} is at {}, but rank {name} at {}: all ranks must make the same calls in \
             the same order",
            here.call.name(),
            there.call.name()
        )
    }

    fn take_commands(&mut self) -> Result<(), String> {
        // Woken once for several commands, or several times for one.
        let _ = (&self.woken).read(&mut [0; 256]);
        let mut first = Ok(());
        loop {
            let taken = match self.commands.try_recv() {
                Ok(GroupCommand::Start { operation, limit, pending }) => {
                    self.start(operation, limit, pending)
                }
                Ok(GroupCommand::Abort(reason)) => Err(reason),
                Ok(GroupCommand::Abandon(reason)) => {
                    self.abandon(&reason);
                    Err(reason)
                }
                Ok(GroupCommand::Leave(done)) => {
                    self.leaving = Some(done);
                    Ok(())
                }
                Ok(GroupCommand::Forget) => {
                    self.is_forgotten = true;
                    self.leaving.get_or_insert_with(|| Arc::new(Pending::new(Box::new(()))));
                    Ok(())
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return first,
            };
            // Later commands are refused.
            if let Err(reason) = taken {
                self.fail(&reason);
                first = first.and(Err(reason));
            }
        }
    }
}

fn gone(name: u32, reason: &str) -> String {
    format!("rank {name} is gone: {reason}")
}
