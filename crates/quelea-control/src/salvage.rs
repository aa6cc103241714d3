//! Models of a run that is aborted: every rank that still answers is asked for its own.

use std::collections::{BTreeMap, BTreeSet};

use quelea_core::message::Rank;
use quelea_core::time::Time;
use quelea_record::{Observer, SalvagedModel};

use crate::controller::{Controller, RunPhase};
use crate::directive::{Recipient, RunFailure};
use crate::messages::Command;
use crate::suspicion::{Contact, GRACE};

/// A run that is being aborted.
#[derive(Debug)]
pub(crate) struct Salvage {
    /// Why it is aborted.
    error: RunFailure,
    /// Ranks that were asked and may still answer.
    pub(crate) awaited: BTreeSet<u32>,
    models: BTreeMap<u32, SalvagedModel>,
    begun: Time,
    until: Time,
}

impl Controller {
    /// The run ends with `error`: first, ranks that still answer are asked for their models. A rank
    /// that computes answers when its gradient is complete; silent ones are not waited for.
    pub(crate) fn abort(&mut self, error: RunFailure) -> Result<(), RunFailure> {
        let is_worth = self.limits.report_models && self.done > 0;
        if !is_worth || matches!(error, RunFailure::Stopped { .. }) {
            return Err(self.told(error));
        }
        let half = Time::from_seconds(self.limits.peer_seconds / 2.0);
        let ranks = 0..self.ranks.len() as u32;
        let awaited: BTreeSet<u32> = ranks
            .filter(|rank| {
                let progress = &self.ranks[*rank as usize];
                let is_silent = progress.is_gone()
                    || progress.computing.is_none() && self.now.since(progress.heard) >= half
                    || progress
                        .detector
                        .is_some_and(|detector| detector.suspicion(self.now) >= 1.0);
                progress.report.is_none() && !is_silent
            })
            .collect();
        for rank in &awaited {
            self.order(Recipient::Rank(*rank), Command::Salvage);
        }
        let until = self.now + self.salvage_patience();
        let salvage = Salvage { error, awaited, models: BTreeMap::new(), begun: self.now, until };
        self.salvage = Some(salvage);
        self.enter(RunPhase::Salvaging);
        Ok(())
    }

    /// Without a limit, far less than what the clock holds.
    fn salvage_patience(&self) -> Time {
        Time::from_seconds(self.limits.peer_seconds.clamp(1.0, 1e6))
    }

    /// A rank has sent its model.
    pub(crate) fn take_salvaged(&mut self, rank: u32, step: u64, model: Vec<f32>) {
        let kept = self.salvaged(rank, step, model);
        let until = self.now + self.salvage_patience();
        // One that answers again must not keep the others.
        if let Some(salvage) = &mut self.salvage
            && salvage.awaited.remove(&rank)
        {
            salvage.models.insert(rank, kept);
            salvage.until = until;
        }
    }

    fn salvaged(&self, rank: u32, step: u64, model: Vec<f32>) -> SalvagedModel {
        let is_server = rank as usize >= self.workers;
        SalvagedModel { rank: Rank(rank), is_server, step, model }
    }

    /// Ends the run once every rank that may answer has, or none does any more.
    pub(crate) fn end_salvage_if_done(
        &mut self,
        observer: &mut dyn Observer,
    ) -> Result<(), RunFailure> {
        let Some(salvage) = &mut self.salvage else { return Ok(()) };
        let may_answer = self.now.since(salvage.begun) < Time(4 * GRACE.0);
        let ranks = &self.ranks;
        salvage.awaited.retain(|rank| {
            let progress = &ranks[*rank as usize];
            let is_reached = progress.contact < Contact::Unreachable;
            let has_failed = progress.contact == Contact::Failed;
            is_reached && progress.report.is_none() && (may_answer || !has_failed)
        });
        if !salvage.awaited.is_empty() && self.now < salvage.until {
            return Ok(());
        }
        let Salvage { error, mut models, .. } = self.salvage.take().expect("it was just there");
        for rank in 0..self.ranks.len() {
            // The report of a rank that was lost has no model.
            if let Some(report) = self.ranks[rank].report.take().filter(|report| !report.lost) {
                let kept = self.salvaged(rank as u32, report.steps, report.model);
                models.insert(rank as u32, kept);
            }
        }
        if !models.is_empty() {
            observer.salvaged(self.now, models.into_values().collect());
        }
        Err(self.told(error))
    }

    /// Until when answers are waited for.
    pub(crate) fn salvage_deadline(&self) -> Option<Time> {
        let salvage = self.salvage.as_ref()?;
        Some(
            salvage.until.min(salvage.begun + Time(4 * GRACE.0)).max(self.now + Time(GRACE.0 / 10)),
        )
    }
}
