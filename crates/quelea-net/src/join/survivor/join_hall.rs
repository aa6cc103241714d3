//! How workers join a run whose first controller is gone: at the process that has taken over, or at any other,
//! which sends them there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use quelea_control::Inheritance;
use quelea_core::time::Time;

use super::Survivor;
use crate::protocol::Survival;
use crate::rendezvous::admission::Admission;
use crate::rendezvous::joiners::Joiners;
use crate::rendezvous::vector_lengths;
use crate::rendezvous::worker_reader::{EventLimits, WorkerReader};
use crate::transport::JoinPlace;

/// What a process knows of the run that workers need to join it.
#[derive(Debug)]
pub(in crate::join) struct JoinHall {
    /// The number that tells the run from others.
    pub(in crate::join) run: u64,
    pub(in crate::join) job: Vec<u8>,
    /// Whether other machines take part.
    pub(in crate::join) open: bool,
    /// Where this process listens.
    pub(in crate::join) port: u16,
    /// Certificates are signed by the first controller, whose key nobody else has.
    pub(in crate::join) is_secure: bool,
}

impl Survivor<'_> {
    /// From now on this process hears workers that want to join; an error says why it cannot.
    pub(super) fn open_hall(
        &self,
        inheritance: &Inheritance,
        readers: BTreeMap<u32, WorkerReader>,
    ) -> Result<Joiners, String> {
        let (context, hall) = (self.config.context, &self.config.hall);
        if let Some(why) = context.setup.join_refusal() {
            return Err(why.to_string());
        }
        if hall.is_secure {
            return Err("its connections are encrypted, and the key that signs certificates was \
                        lost with the first coordinator"
                .to_string());
        }
        let (arrived, arrivals) = channel();
        let (admission, arrived) = (Arc::new(self.admission(inheritance)), Mutex::new(arrived));
        let hearing = Arc::clone(&admission);
        context.doors.hear_joiners(JoinPlace::Here(Arc::new(move |stream, word, peer| {
            hearing.hear_word(stream, word, peer, &arrived);
        })));
        let own = self.config.rank.0;
        let survival =
            Survival { controller: own, ranks: vec![own], ..self.config.survival.clone() };
        Ok(Joiners {
            admission,
            identity: None,
            arrivals,
            controller: context.controller.clone(),
            addresses: self.addresses(inheritance),
            port: hall.port,
            limits: EventLimits::new(
                context.setup.ranks(),
                vector_lengths(&context.setup, &context.options),
            ),
            zero: Time::ZERO,
            schedule: context.schedule,
            survival: Some(Survival { term: inheritance.term, ..survival }),
            joining: None,
            waiting: BTreeMap::new(),
            transfers: 0,
            readers,
        })
    }

    /// Where those listen who are within reach, except this process.
    fn addresses(&self, inheritance: &Inheritance) -> BTreeMap<u32, SocketAddr> {
        let others = inheritance.members.iter().map(|member| member.rank);
        let others = others.filter(|rank| *rank != self.config.rank.0);
        let known = |rank| Some((rank, self.config.lines.address(rank)?.parse().ok()?));
        others.filter_map(known).collect()
    }

    fn admission(&self, inheritance: &Inheritance) -> Admission {
        let (context, hall) = (self.config.context, &self.config.hall);
        let own = self.config.rank.0;
        let mut taken: BTreeMap<u32, Option<SocketAddr>> =
            self.addresses(inheritance).into_iter().map(|(rank, at)| (rank, Some(at))).collect();
        taken.insert(own, None);
        let seats = context.setup.seats() as u32;
        let lost: BTreeSet<u32> = (0..seats).filter(|rank| !taken.contains_key(rank)).collect();
        Admission {
            run: hall.run,
            open: hall.open,
            timeline: context.timeline,
            job: hall.job.clone(),
            key: String::new(),
            clock: context.clock,
            workers: seats,
            options: context.options.clone(),
            access: None,
            given: Mutex::default(),
            lost: Mutex::new(lost),
            has_begun: AtomicBool::new(true),
            has_ended: AtomicBool::new(false),
            join_refusal: None,
            taken: Mutex::new(taken),
            warnings: Mutex::new(context.controller.clone()),
            last_refusal: Mutex::default(),
        }
    }
}
