//! Models that ranks send at the steps of the schedule, evaluated once all have sent theirs.

use std::collections::BTreeMap;

use quelea_core::message::Rank;
use quelea_record::{Models, Observer};

use super::CUTS_AT_ONCE;
use crate::controller::Controller;

impl Controller {
    /// A rank has sent its model; once all have, they are evaluated.
    pub(crate) fn model(
        &mut self,
        rank: u32,
        step: u64,
        model: Vec<f32>,
        observer: &mut dyn Observer,
    ) {
        if !self.cutting.schedule.evaluates_at(step) {
            return;
        }
        self.cutting.models.entry(step).or_default().insert(rank, model);
        self.evaluate_complete(observer);
        // One that sends too many loses its own.
        let of_rank = self.cutting.models.iter().filter(|(_, models)| models.contains_key(&rank));
        let steps: Vec<u64> = of_rank.map(|(step, _)| *step).collect();
        if steps.len() > CUTS_AT_ONCE
            && let Some(models) = self.cutting.models.get_mut(&steps[0])
        {
            models.remove(&rank);
        }
        self.cutting.models.retain(|_, models| !models.is_empty());
    }

    /// Evaluates the models of steps for which every living rank has sent its own.
    pub(crate) fn evaluate_complete(&mut self, observer: &mut dyn Observer) {
        let ranks = &self.ranks;
        let living = ranks.len() - self.lost;
        let has_all = |models: &BTreeMap<u32, Vec<f32>>| {
            models.len() >= living
                && models.keys().filter(|rank| !ranks[**rank as usize].is_lost()).count() == living
        };
        let complete = self.cutting.models.iter().find(|(_, models)| has_all(models));
        let Some(step) = complete.map(|(step, _)| *step) else { return };
        let all = self.cutting.models.remove(&step).unwrap_or_default();
        let (workers, servers) = all
            .into_iter()
            .map(|(rank, model)| (Rank(rank), model))
            .partition(|(rank, _)| rank.index() < self.workers);
        observer.evaluate(self.now, step, Models { workers, servers });
    }
}
