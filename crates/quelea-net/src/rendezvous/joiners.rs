//! Workers that join a run that has begun: connected while the others train, started when they enter.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use quelea_control::{Command, Entrance, RankEvent};
use quelea_core::time::Time;
use quelea_record::{CheckpointSchedule, Record, RecordKind};

use crate::controller::{ControlLink, EnteringLink, Incoming, TransferredState};
use crate::protocol::{self, SMALL_BYTES, SetupMessage, Survival, Wait};
use crate::rendezvous::addresses::AddressTable;
use crate::rendezvous::admission::{Admission, Arrival, JoinedWorker};
use crate::rendezvous::worker_reader::{EventLimits, WorkerReader, attend_worker};
use crate::running_time;
use crate::trust::{LinkIdentity, RankSeat};

/// What the coordinator needs to let workers join.
pub(crate) struct Joiners {
    pub(crate) admission: Arc<Admission>,
    /// What the coordinator's own ranks check certificates with, where links are encrypted.
    pub(crate) identity: Option<LinkIdentity>,
    pub(crate) arrivals: Receiver<Arrival>,
    pub(crate) controller: Sender<Incoming>,
    /// Where the workers that take part listen.
    pub(crate) addresses: BTreeMap<u32, SocketAddr>,
    /// Where the coordinator's own ranks do.
    pub(crate) port: u16,
    pub(crate) limits: EventLimits,
    pub(crate) zero: Time,
    pub(crate) schedule: CheckpointSchedule,
    /// How the run survives the coordinator, if it does.
    pub(crate) survival: Option<Survival>,
    /// Who connects with the others, or waits to enter. One at a time: the next one must be connected with it too.
    pub(crate) joining: Option<u32>,
    /// Those who are connected with all others and wait to enter.
    pub(crate) waiting: BTreeMap<u32, JoinedWorker>,
    /// States that were sent to those who entered.
    pub(crate) transfers: u64,
    /// Who reads what each worker says.
    pub(crate) readers: BTreeMap<u32, WorkerReader>,
}

impl Drop for Joiners {
    fn drop(&mut self) {
        self.admission.end();
        let reason = "the run has ended before it could enter".to_string();
        for worker in self.waiting.values() {
            // One that is gone needs no reason.
            let _ = protocol::write(&worker.stream, &Command::Abort(reason.clone()));
        }
    }
}

impl Joiners {
    /// Lets the next one who has arrived connect with the others, on a thread of its own.
    /// Before that, `links` bring the others word of their seats, so that no earlier holder is let in.
    pub(crate) fn attend(&mut self, links: &mut [ControlLink]) {
        while self.joining.is_none()
            && let Ok(arrival) = self.arrivals.try_recv()
        {
            match arrival {
                Ok(worker) => {
                    self.joining = Some(worker.rank);
                    self.give_seat(worker.rank, links);
                    tell_address(&worker, links);
                    self.connect(worker);
                }
                Err((rank, reason)) => self.give_up(rank, &reason),
            }
        }
    }

    /// Tells everybody whose seat this rank's is now.
    fn give_seat(&self, rank: u32, links: &mut [ControlLink]) {
        let Some(identity) = &self.identity else { return };
        let times = self.admission.seats(self.limits.ranks)[rank as usize];
        let seat = RankSeat { rank, times };
        identity.seats().give(seat);
        links.iter_mut().for_each(|link| link.mention(&SetupMessage::Seat(seat)));
        for waiting in self.waiting.values() {
            let _ = protocol::write(&waiting.stream, &SetupMessage::Seat(seat));
        }
    }

    fn connect(&mut self, worker: JoinedWorker) {
        let absent = self.admission.vacant();
        let (ranks, port) = (self.limits.ranks, self.port);
        let seats = self.admission.seats(ranks);
        let advertised = self.admission.options.local.told(port);
        let table = AddressTable { ranks, absent: &absent, port, advertised, seats: &seats };
        let own = match worker.stream.local_addr() {
            Ok(own) => own,
            Err(error) => return self.give_up(worker.rank, &error.to_string()),
        };
        let peers = table.peers(own.ip(), &self.addresses);
        let seconds = self.admission.options.connect_seconds;
        let controller = self.controller.clone();
        std::thread::spawn(move || {
            let rank = worker.rank;
            let wait = Wait::new(seconds, "it to be connected");
            let meshed = protocol::write(&worker.stream, &peers)
                .and_then(|()| protocol::read(&worker.stream, SMALL_BYTES, Some(wait)));
            let word = match meshed {
                Ok(SetupMessage::Meshed) => Incoming::Connected(worker),
                Ok(other) => Incoming::NotConnected { rank, reason: format!("it sent {other:?}") },
                Err(error) => Incoming::NotConnected { rank, reason: error.to_string() },
            };
            let _ = controller.send(word);
        });
    }

    /// The worker is connected with all others; it waits to enter.
    pub(crate) fn keep(&mut self, worker: JoinedWorker) {
        // Its predecessor may be a process that only stood still, and ends when it learns that it is lost.
        if let Some(predecessor) = self.readers.remove(&worker.rank) {
            predecessor.dismiss();
        }
        let heard = attend_worker(
            worker.rank,
            &worker.stream,
            self.limits.clone(),
            self.controller.clone(),
        );
        match heard {
            Ok(reader) => {
                self.readers.insert(worker.rank, reader);
                self.waiting.insert(worker.rank, worker);
            }
            Err(error) => self.give_up(worker.rank, &error.to_string()),
        }
    }

    /// Tells a worker that it cannot join.
    pub(crate) fn refuse(&mut self, worker: &JoinedWorker, reason: &str) {
        let _ = protocol::write(&worker.stream, &Command::Abort(reason.to_string()));
        self.give_up(worker.rank, reason);
    }

    /// A worker that was to join is gone.
    pub(crate) fn give_up(&mut self, rank: u32, reason: &str) {
        self.waiting.remove(&rank);
        self.joining.take_if(|joining| *joining == rank);
        self.admission.vacate(rank);
        let text = format!("a worker could not join as rank {rank}: {reason}");
        let _ = self.controller.send(Incoming::Event(RankEvent::Warning(text)));
    }

    /// A worker enters: it receives its state, from a thread of its own, and begins. The way to it, or why
    /// there is none.
    pub(crate) fn start(
        &mut self,
        entrance: Entrance,
        write_limit: Duration,
        now: Time,
    ) -> Result<EnteringLink, String> {
        let Entrance { rank, start } = entrance;
        self.joining.take_if(|joining| *joining == rank);
        let gone = || "it was gone before it could enter".to_string();
        let JoinedWorker { stream, address, .. } = self.waiting.remove(&rank).ok_or_else(gone)?;
        let part = Box::new(start.parts.into_iter().next_back().unwrap_or_default());
        let elements: usize = part.state.vectors.values().map(Vec::len).sum();
        let (bytes, step) = ((elements * size_of::<f32>()) as u64, part.step());
        let resume =
            SetupMessage::Resume { part, resized: false, joins: true, changes: start.changes };
        let (zero, schedule, survival) = (self.zero, self.schedule, self.survival.clone());
        let begin = SetupMessage::Start { zero, schedule, survival };
        let _ = stream.set_write_timeout(Some(write_limit));
        self.transfers += 1;
        let (number, controller, way) = (self.transfers, self.controller.clone(), stream.clone());
        let send = move || {
            let begun = running_time::now();
            let written = protocol::write(&way, &resume)
                .and_then(|()| protocol::write(&way, &begin))
                .map_err(|error| error.to_string());
            let seconds = (running_time::now() - begun).as_secs_f64();
            let event = RecordKind::StateTransferred { bytes, seconds };
            let sent = written.map(|()| Record { t: now.seconds() + seconds, rank, step, event });
            let state = TransferredState { rank, number, sent };
            // A controller that is gone needs no telling.
            let _ = controller.send(Incoming::Transferred(state));
        };
        std::thread::Builder::new()
            .name("state".to_string())
            .spawn(send)
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        self.addresses.insert(rank, address);
        self.admission.fill_rank(rank);
        Ok(EnteringLink::new(number, stream))
    }
}

/// Tells everybody where a worker that joins listens: should this process be lost, they look there for it.
fn tell_address(worker: &JoinedWorker, links: &mut [ControlLink]) {
    let (rank, address) = (worker.rank, worker.address.to_string());
    let moved = SetupMessage::Moved { rank, address };
    links.iter_mut().for_each(|link| link.mention(&moved));
}
