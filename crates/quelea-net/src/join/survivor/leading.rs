//! What a process does when it takes over, and when it ends without the others.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use quelea_control::{Command, Inheritance, LossPolicy, NO_RANK, RankEvent};
use quelea_record::{Observer, SalvagedModel};

use super::super::peer_lines::AnsweredCall;
use super::Survivor;
use crate::controller::{self, ControlLink, Incoming, TakenOver};
use crate::heir::TakeOver;
use crate::rank::Inbox;

/// How long the rank may take to hand over its model at the end.
const MODEL_PATIENCE: Duration = Duration::from_secs(10);

impl Survivor<'_> {
    /// This process controls the run from now on, until its end.
    pub(in crate::join) fn lead(
        &mut self,
        inheritance: Inheritance,
        incoming: &Receiver<Incoming>,
    ) {
        let (own, ranks) = (self.config.rank.0, self.config.context.setup.ranks() as u32);
        let mut readers = BTreeMap::new();
        let links = (0..ranks).map(|rank| {
            let is_voter = inheritance.members.iter().any(|member| member.rank == rank);
            if rank == own {
                return ControlLink::Local(self.config.inbox.clone());
            }
            let call = self.config.lines.take_call(rank).filter(|_| is_voter);
            call.map_or(ControlLink::Broken, |AnsweredCall { stream, reader }| {
                readers.insert(rank, reader);
                ControlLink::Remote(stream)
            })
        });
        let links = links.collect();
        let joiners = self.open_hall(&inheritance, readers);
        self.config.lines.close();
        let mut early = self.take_untold();
        early.append(&mut self.early);
        let _ = self.config.inbox.send(Inbox::MeetController);
        let mut context = self.config.context.clone();
        let min_workers = self.config.survival.min_workers as usize;
        context.options.on_loss = LossPolicy::Continue { min_workers };
        context.options.joiner_seconds = self.config.survival.joiner_wait.seconds();
        let taken = TakeOver {
            rank: own,
            before: Some(inheritance.before).filter(|rank| *rank != NO_RANK),
            changes: inheritance.changes(),
            coordinator: self.config.coordinator.clone(),
            joining: joiners.as_ref().map(|_| self.config.hall.port).map_err(Clone::clone),
        };
        let mut left = Some(TakenOver { inheritance, links, early, joiners: joiners.ok() });
        self.config.heir.take_over(&taken, &mut |observer: &mut dyn Observer| {
            let left = left.take().expect("a run is taken over once");
            controller::take_over(&context, left, observer, incoming)
        });
    }

    /// Hands over the model of its rank, which is all that is left here.
    pub(in crate::join) fn save_model(&mut self, incoming: &Receiver<Incoming>) {
        let until = Instant::now() + MODEL_PATIENCE;
        let rank = self.config.rank;
        let salvaged = |step, model| SalvagedModel { rank, is_server: false, step, model };
        if let Some(report) = self.reported.take() {
            return self.config.heir.left_alone(salvaged(report.steps, report.model));
        }
        if self.config.inbox.send(Inbox::Command(Command::Salvage)).is_err() {
            return;
        }
        while let Ok(word) = incoming.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            if let Incoming::Event(RankEvent::Salvaged { step, model, .. }) = word {
                return self.config.heir.left_alone(salvaged(step, model));
            }
        }
    }
}
