//! MPI: frames travel as its messages, over whatever network it has chosen. One thread makes all calls.
//!
//! The processes of a job that `mpirun` or `srun` has started know each other already. Process 0 tells the others
//! as an MPI message where it listens for control connections; ranks need no addresses.
//!
//! ```text
//! rank's thread  MpiLink ──MpiRequest::Send──► thread "mpi" ──MPI_Isend──►  ◄──MPI_Improbe, MPI_Imrecv── others
//! rank's thread  FrameSink ◄──Delivery──── thread "mpi": decodes into the rank's pool
//! ```

mod calls;
mod process;
mod progress;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use quelea_core::message::{Message, Rank};
use quelea_wire::HEADER_BYTES;
use quelea_wire::decoder::Decoder;
use quelea_wire::frame::{self, Route};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::order::OrderedLink;
use super::{
    AttachContext, Attached, FrameSink, Link, LinkError, MeshPlan, RankEndpoint, RankLinks,
    Transport, UNSENT_VECTORS, WriteOrder, budget_bytes, limits,
};
use crate::error::NetError;
use crate::local_address;
use crate::options::NetOptions;
use crate::protocol::Wait;
use process::{
    Delivery, Lane, MpiProcess, MpiRequest, OutgoingFrame, Process, Receipt, Reception, SetupWord,
};

/// The addresses at which others reach this process, the only machine's own if there is only one. Begins MPI.
pub(crate) fn own_addresses(options: &NetOptions) -> Result<Vec<IpAddr>, NetError> {
    if MpiProcess::begin()?.is_one_machine() {
        return Ok(vec![IpAddr::from([127, 0, 0, 1])]);
    }
    if let Some(chosen) = options.local.advertised.map(|told| told.ip()).or(options.local.ip) {
        return Ok(vec![chosen]);
    }
    let all = local_address::interfaces();
    let all = all.map_err(|error| NetError::Setup(format!("interfaces: {error}")))?;
    let is_far = |ip: &IpAddr| match ip {
        IpAddr::V4(four) => !four.is_loopback() && !four.is_link_local(),
        IpAddr::V6(six) => !six.is_loopback() && !six.is_unicast_link_local(),
    };
    let mut found: Vec<IpAddr> = all.into_iter().map(|one| one.ip).filter(is_far).collect();
    found.sort_by_key(IpAddr::is_ipv6);
    if found.is_empty() {
        return Err(NetError::Setup("this machine has no address that others can reach".into()));
    }
    Ok(found)
}

/// Tells all other processes of the job where this one listens.
pub(crate) fn tell_meeting(places: &[String]) -> Result<(), NetError> {
    MpiProcess::begin()?.tell(SetupWord::Meeting(places.join("\n")));
    Ok(())
}

/// Where the first process of the job listens. Begins MPI.
pub(crate) fn hear_meeting(wait: Wait) -> Result<Vec<String>, NetError> {
    let places = MpiProcess::begin()?.meeting(wait)?;
    Ok(places.lines().map(str::to_string).collect())
}

/// Ends MPI, if it was begun; waits for the other processes of the job.
pub(crate) fn finish(wait: Wait) -> Result<(), NetError> {
    MpiProcess::begun().map_or(Ok(()), |process| process.finish(wait))
}

/// This process's end of a run, in a job that has begun.
pub(crate) fn open(plan: MeshPlan) -> Result<Box<dyn Transport>, NetError> {
    let process = MpiProcess::begun().ok_or_else(|| {
        let needed = "needs processes that mpirun or srun has started";
        NetError::Setup(format!("transport = \"mpi\" {needed}, and all of them over MPI"))
    })?;
    Ok(Box::new(MpiTransport { plan, process }))
}

#[derive(Debug)]
struct MpiTransport {
    plan: MeshPlan,
    process: &'static MpiProcess,
}

impl Transport for MpiTransport {
    fn port(&self) -> u16 {
        0
    }

    fn connect(
        &self,
        addresses: &[String],
        _options: &NetOptions,
        wait: Wait,
    ) -> Result<Vec<RankLinks>, NetError> {
        let here: Vec<Rank> = self.plan.here.iter().copied().collect();
        let elsewhere = self.process.introduce(self.plan.run, here.clone(), wait)?;
        if let Some((process, _)) = elsewhere.iter().find(|(_, (run, _))| *run != self.plan.run) {
            let problem = "it is of another run".to_string();
            return Err(NetError::Handshake {
                address: format!("MPI's process {process}"),
                problem,
            });
        }
        let found: BTreeMap<Rank, Process> = elsewhere
            .iter()
            .flat_map(|(process, (_, ranks))| ranks.iter().map(|rank| (*rank, *process)))
            .collect();
        let far = (0..self.plan.ranks).map(Rank::from).filter(|rank| !here.contains(rank));
        let absent = far
            .filter(|rank| !addresses[rank.index()].is_empty())
            .find(|rank| !found.contains_key(rank));
        if let Some(rank) = absent {
            return Err(NetError::Setup(format!("{rank} lives in no process of the MPI job")));
        }
        let lanes = |own: Rank| {
            let lane = |(peer, process): (&Rank, &Process)| {
                let there = &elsewhere[process].1;
                let (out, back) = (tag(&here, own, there, *peer), tag(there, *peer, &here, own));
                PeerLanes { peer: *peer, out: (*process, out), back: (*process, back) }
            };
            found.iter().map(lane).collect()
        };
        let links = here.iter().map(|own| {
            let endpoint = MpiEndpoint { lanes: lanes(*own), requests: self.process.requests() };
            RankLinks { rank: *own, endpoints: vec![Box::new(endpoint)] }
        });
        Ok(links.collect())
    }
}

/// The tag of frames from one rank of a process to one of another. Few ranks share a process, so that tags stay
/// below 32,768, which every MPI has.
fn tag(senders: &[Rank], from: Rank, receivers: &[Rank], to: Rank) -> i32 {
    let place = |ranks: &[Rank], rank| ranks.iter().position(|one| *one == rank).unwrap_or(0);
    let number = place(senders, from) * receivers.len() + place(receivers, to);
    progress::WORDS + 1 + i32::try_from(number).unwrap_or(0)
}

/// Both directions between a rank and one elsewhere.
#[derive(Clone, Copy, Debug)]
struct PeerLanes {
    peer: Rank,
    out: Lane,
    back: Lane,
}

#[derive(Debug)]
struct MpiEndpoint {
    lanes: Vec<PeerLanes>,
    requests: Sender<MpiRequest>,
}

impl RankEndpoint for MpiEndpoint {
    fn attach(self: Box<Self>, context: &AttachContext<'_>) -> io::Result<Attached> {
        let MpiEndpoint { lanes, requests } = *self;
        let (inbox, deliveries) = unbounded_channel();
        let (mut attached, mut receptions) = (Attached::default(), Vec::new());
        for PeerLanes { peer, out, back } in lanes {
            let limits = limits(peer, context.rank, context.len, context.inspects);
            let decoder = Decoder::new(limits, context.pool.metered());
            receptions.push((back, Reception { from: peer, decoder, inbox: inbox.clone() }));
            let route = Route { from: context.rank, to: peer };
            let link = MpiLink::new(route, out, context, requests.clone(), inbox.clone());
            attached.links.push((peer, link as Rc<dyn Link>));
        }
        let gone = |_| io::Error::other("MPI has ended");
        requests.send(MpiRequest::Attach(receptions)).map_err(gone)?;
        let order = Rc::clone(context.order);
        attached.tasks.push(Box::new(|sink| Box::pin(hear(deliveries, order, sink))));
        Ok(attached)
    }

    fn socket(&self, _peer: Rank) -> Option<&TcpStream> {
        None
    }
}

/// Hands what comes from all peers to their rank.
async fn hear(
    mut deliveries: UnboundedReceiver<Delivery>,
    order: Rc<WriteOrder>,
    sink: Rc<dyn FrameSink>,
) {
    while let Some(delivery) = deliveries.recv().await {
        match delivery {
            Delivery::Frame { from, sent_micros, message } => {
                if let Err(reason) = sink.frame(from, sent_micros, message) {
                    sink.ended(from, LinkError::Refused(reason));
                }
            }
            Delivery::Written { step } => {
                let before = order.last();
                order.done(step);
                order.release(before);
            }
            Delivery::Ended { peer, error } => sink.ended(peer, error),
        }
    }
}

/// The sending end of the way to one peer.
#[derive(Debug)]
struct MpiLink {
    route: Route,
    lane: Lane,
    order: Rc<WriteOrder>,
    /// Frames that wait for those of earlier steps, over all links.
    queue: RefCell<VecDeque<PendingFrame>>,
    requests: Sender<MpiRequest>,
    inbox: UnboundedSender<Delivery>,
    /// Bytes that wait here and in MPI.
    waiting: Arc<AtomicU64>,
    unsent_limit: u64,
    /// The peer has left too much unread, which was reported.
    is_overfull: Cell<bool>,
}

#[derive(Debug)]
struct PendingFrame {
    step: u64,
    header: [u8; HEADER_BYTES],
    message: Message,
}

impl MpiLink {
    fn new(
        route: Route,
        lane: Lane,
        context: &AttachContext<'_>,
        requests: Sender<MpiRequest>,
        inbox: UnboundedSender<Delivery>,
    ) -> Rc<MpiLink> {
        let link = Rc::new(MpiLink {
            route,
            lane,
            order: Rc::clone(context.order),
            queue: RefCell::default(),
            requests,
            inbox,
            waiting: Arc::default(),
            unsent_limit: budget_bytes(context.len, UNSENT_VECTORS),
            is_overfull: Cell::new(false),
        });
        let ordered: Rc<dyn OrderedLink> = Rc::<MpiLink>::clone(&link);
        context.order.join(&ordered);
        link
    }

    /// Hands over what may be written; false if MPI has ended.
    fn write(&self) -> bool {
        let mut queue = self.queue.borrow_mut();
        while let Some(front) = queue.front()
            && front.step <= self.order.last()
        {
            let Some(PendingFrame { step, header, message }) = queue.pop_front() else { break };
            let receipt = Receipt {
                peer: self.route.to,
                step,
                bytes: frame::frame_bytes(&message),
                waiting: Arc::clone(&self.waiting),
                inbox: self.inbox.clone(),
                is_wanted: self.order.is_kept(),
            };
            let frame = OutgoingFrame { header, message, receipt };
            if self.requests.send(MpiRequest::Send(self.lane, frame)).is_err() {
                return false;
            }
        }
        true
    }
}

impl Link for MpiLink {
    fn push(&self, sent_micros: u32, message: Message) {
        let header = frame::encode_header(self.route, sent_micros, &message);
        let bytes = frame::frame_bytes(&message);
        let waiting = self.waiting.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mut queue = self.queue.borrow_mut();
        // A frame goes after those before it on its link, whatever their steps.
        let step = queue.back().map_or(0, |last| last.step).max(message.step);
        self.order.add(step);
        queue.push_back(PendingFrame { step, header, message });
        if waiting > self.unsent_limit && !self.is_overfull.replace(true) {
            let error = LinkError::Unread { waiting, most: self.unsent_limit };
            let _ = self.inbox.send(Delivery::Ended { peer: self.route.to, error });
        }
    }

    fn flush(&self) -> Result<(), LinkError> {
        if self.write() { Ok(()) } else { Err(LinkError::Closed) }
    }
}

impl OrderedLink for MpiLink {
    fn write_released(&self) {
        // Why MPI has ended is reported by its thread.
        self.write();
    }
}
