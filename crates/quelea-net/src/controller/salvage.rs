//! What is kept of a run that is broken off: the models that its ranks still have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use quelea_core::message::Rank;
use quelea_record::SalvagedModel;

use super::{Controller, GRACE, Incoming};
use crate::protocol::{Command, RankEvent};

impl Controller<'_> {
    /// Asks every rank that still answers for its model, and hands what comes to the observer. A rank
    /// that computes answers when its gradient is complete; who is silent is not waited for.
    pub(super) fn salvage(&mut self, incoming: &Receiver<Incoming>) {
        if !self.options.report_models || self.done == 0 {
            return;
        }
        let mut awaited = self.ask_for_models();
        let mut models: BTreeMap<u32, SalvagedModel> = BTreeMap::new();
        let patience = Duration::from_secs_f64(self.options.peer_seconds.max(1.0));
        let (begun, mut until) = (Instant::now(), Instant::now() + patience);
        while !awaited.is_empty() && Instant::now() < until {
            match incoming.recv_timeout(GRACE / 10) {
                Ok(Incoming::Event(RankEvent::Salvaged { rank, step, model })) => {
                    awaited.remove(&rank);
                    models.insert(rank, self.salvaged(rank, step, model));
                    until = Instant::now() + patience;
                }
                Ok(Incoming::Event(RankEvent::Report(report))) => {
                    awaited.remove(&report.rank);
                    let rank = report.rank as usize;
                    self.ranks[rank].report = Some(*report);
                }
                // Steps that were completed meanwhile are in the models too.
                Ok(Incoming::Event(RankEvent::Record(record))) => self.observer.record(record),
                Ok(Incoming::Event(RankEvent::Failed { rank, .. })) => {
                    self.ranks[rank as usize].has_failed = true;
                }
                Ok(Incoming::Gone { rank, .. }) => drop(awaited.remove(&rank)),
                Ok(Incoming::Event(_) | Incoming::Aborted(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let may_answer = begun.elapsed() < 4 * GRACE;
            awaited.retain(|rank| {
                let rank = *rank as usize;
                self.links[rank].is_open() && (may_answer || !self.ranks[rank].has_failed)
            });
        }
        for rank in 0..self.ranks.len() {
            if let Some(report) = self.ranks[rank].report.take() {
                let kept = self.salvaged(rank as u32, report.steps, report.model);
                models.insert(rank as u32, kept);
            }
        }
        if !models.is_empty() {
            self.observer.salvaged(self.clock.now(), models.into_values().collect());
        }
    }

    /// Who was asked and may answer.
    fn ask_for_models(&mut self) -> BTreeSet<u32> {
        let silence = Duration::from_secs_f64(self.options.peer_seconds / 2.0);
        let answers = |rank: &usize| {
            let progress = &self.ranks[*rank];
            progress.report.is_none() && !progress.is_gone && progress.heard.elapsed() < silence
        };
        let ranks: Vec<usize> = (0..self.ranks.len()).filter(answers).collect();
        let asked = ranks.into_iter().filter(|rank| {
            self.links[*rank].tell(Command::Salvage).is_ok() && self.links[*rank].is_open()
        });
        asked.map(|rank| rank as u32).collect()
    }

    fn salvaged(&self, rank: u32, step: u64, model: Vec<f32>) -> SalvagedModel {
        let is_server = rank as usize >= self.workers;
        SalvagedModel { rank: Rank(rank), is_server, step, model }
    }
}
