//! The whole run at one moment, from its records.

use std::collections::{BTreeMap, VecDeque};

use quelea_record::{FOLDED, HALF_EXCHANGE, Record, RecordKind, STALENESS};
use serde_json::Value;

use crate::activity::{CompletedStep, Estimate, RankActivity, StepSeconds};
use crate::description::{RunDescription, round_of};

/// Events of the membership that are kept: the last ones.
const EVENTS: usize = 500;

/// A run at one moment.
#[derive(Clone, Debug, Default)]
pub struct MomentState {
    /// The latest time of a record.
    pub t: f64,
    /// How many records were taken.
    pub records: u64,
    /// Each written step stands for this many.
    pub stride: u64,
    /// Steps of all workers.
    pub steps: u64,
    /// Samples of all workers.
    pub samples: u64,
    /// By rank.
    pub ranks: Vec<RankActivity>,
    /// The last evaluation.
    pub evaluation: Option<EvaluatedModel>,
    /// How many gradients were applied how many updates late.
    pub staleness: BTreeMap<u64, u64>,
    /// How many messages carried how many gradients.
    pub folded: BTreeMap<u64, u64>,
    /// Exchanges that a lost peer broke off.
    pub half_exchanges: u64,
    /// Views, losses and checkpoints, in order: the last of them.
    pub events: VecDeque<MembershipEvent>,
    /// Events that came before those.
    pub earlier_events: u64,
    /// Mean of the losses of the last mini-batches of all workers.
    pub batch_loss: Option<f64>,
}

/// A model that was evaluated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvaluatedModel {
    /// When.
    pub t: f64,
    /// After how many steps of every worker.
    pub step: u64,
    /// Its loss.
    pub loss: f64,
    /// Its accuracy.
    pub accuracy: Option<f64>,
    /// How far the workers were apart.
    pub consensus: f64,
}

/// What happened to the membership or to the state on the disk.
#[derive(Clone, Debug, PartialEq)]
pub struct MembershipEvent {
    /// When.
    pub t: f64,
    /// Whom it is about.
    pub rank: u32,
    /// At which step.
    pub step: u64,
    /// `lost`, `left`, `joined`, `state_transferred`, `took_over`, `view` or `checkpoint`.
    pub kind: &'static str,
    /// In words.
    pub text: String,
}

/// What the API adds to a state that the records alone do not say.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The run's clock.
    pub now: f64,
    /// Whether no more records will come.
    pub has_ended: bool,
    /// The files' last word, where this is the end of the run.
    pub summary: Option<Value>,
}

impl MomentState {
    /// Before the first record.
    pub fn new(description: &RunDescription, stride: u64) -> MomentState {
        let ranks = vec![RankActivity::default(); description.ranks()];
        MomentState { stride: stride.max(1), ranks, ..MomentState::default() }
    }

    /// Takes a record.
    pub fn take(&mut self, record: &Record) {
        let Record { t, rank, step, ref event } = *record;
        self.records += 1;
        self.t = self.t.max(t);
        let place = rank as usize;
        if place >= self.ranks.len() {
            self.ranks.resize_with(place + 1, RankActivity::default);
        }
        match event {
            RecordKind::Step { loss, samples, compute, exposed, waiting } => {
                let seconds =
                    StepSeconds { compute: *compute, exposed: *exposed, waiting: *waiting };
                let (loss, samples, stands_for) = (*loss, *samples, self.stride);
                self.ranks[place].step(CompletedStep {
                    t,
                    step,
                    stands_for,
                    loss,
                    samples,
                    seconds,
                });
                self.steps += stands_for;
                self.samples += u64::from(samples) * stands_for;
                let (loss, weight) = (f64::from(loss), 0.5 / self.ranks.len() as f64);
                let before = self.batch_loss.filter(|before| before.is_finite()).unwrap_or(loss);
                self.batch_loss = Some(before + weight * (loss - before));
            }
            RecordKind::Transfer { to, bytes, seconds } => {
                self.ranks[place].transferred(t, *to, *bytes, *seconds);
            }
            RecordKind::Account { awaiting, links, memory } => {
                let rank = &mut self.ranks[place];
                rank.memory = *memory;
                rank.said(t, awaiting.clone());
                links.iter().for_each(|link| rank.exchanged(t, *link));
            }
            RecordKind::Deviation { distance, error } => {
                self.ranks[place].deviation = Some(Estimate { value: *distance, error: *error });
            }
            RecordKind::Evaluation { loss, accuracy, consensus } => {
                let (loss, accuracy, consensus) = (*loss, *accuracy, *consensus);
                self.evaluation = Some(EvaluatedModel { t, step, loss, accuracy, consensus });
            }
            RecordKind::Measured { kind, number } => {
                let stands_for = if kind.is_frequent { self.stride } else { 1 };
                self.measure(kind.name, *number, stands_for);
            }
            RecordKind::Lost
            | RecordKind::Left
            | RecordKind::Joined
            | RecordKind::StateTransferred { .. }
            | RecordKind::Reconnected { .. }
            | RecordKind::TookOver
            | RecordKind::View { .. }
            | RecordKind::Checkpoint { .. } => self.happened(record),
            RecordKind::Compute { .. } | RecordKind::Workers { .. } => {}
        }
    }

    fn measure(&mut self, name: &str, number: u64, stands_for: u64) {
        if name == STALENESS.name {
            *self.staleness.entry(number).or_default() += stands_for;
        } else if name == FOLDED.name {
            *self.folded.entry(number).or_default() += stands_for;
        } else if name == HALF_EXCHANGE.name {
            self.half_exchanges += stands_for;
        }
    }

    fn happened(&mut self, record: &Record) {
        let Record { t, rank, step, ref event } = *record;
        let (kind, text) = match event {
            RecordKind::Lost => {
                self.ranks[rank as usize].leave(t, false);
                ("lost", format!("rank {rank} was lost at step {step}"))
            }
            RecordKind::Left => {
                self.ranks[rank as usize].leave(t, true);
                ("left", format!("rank {rank} left with notice at step {step}"))
            }
            RecordKind::Joined => {
                self.ranks[rank as usize].join(t);
                ("joined", format!("a worker joined as rank {rank} at step {step}"))
            }
            RecordKind::StateTransferred { bytes, seconds } => {
                let megabytes = *bytes as f64 / 1e6;
                let text =
                    format!("rank {rank} received its state: {megabytes:.2} MB in {seconds:.3} s");
                ("state_transferred", text)
            }
            RecordKind::Reconnected { peer } => {
                ("reconnected", format!("rank {rank} is connected with rank {peer} again"))
            }
            RecordKind::TookOver => {
                ("took_over", format!("the process of rank {rank} controls the run"))
            }
            RecordKind::View { number } => {
                // All enter a view; it is one event.
                let is_known = self.ranks.iter().any(|rank| rank.view >= *number);
                self.ranks[rank as usize].view = *number;
                if is_known {
                    return;
                }
                let living = self.ranks.iter().filter(|rank| rank.lost.is_none()).count();
                ("view", format!("view {number}: {living} ranks continue"))
            }
            RecordKind::Checkpoint { failure: None } => {
                ("checkpoint", format!("checkpoint of step {step} is on the disk"))
            }
            RecordKind::Checkpoint { failure: Some(why) } => {
                ("checkpoint", format!("checkpoint of step {step} failed: {why}"))
            }
            _ => return,
        };
        if self.events.len() == EVENTS {
            self.events.pop_front();
            self.earlier_events += 1;
        }
        self.events.push_back(MembershipEvent { t, rank, step, kind, text });
    }

    /// Samples per second of all living workers, from their last steps.
    pub fn samples_per_second(&self) -> f64 {
        let living = self.ranks.iter().filter(|rank| rank.lost.is_none());
        living.map(|rank| f64::from(rank.batch) * rank.steps_per_second()).sum()
    }

    /// The share of all workers' time in which they computed gradients of completed steps.
    pub fn goodput(&self, workers: usize) -> Option<f64> {
        let computed: f64 = self.ranks.iter().map(|rank| rank.total.compute).sum();
        let all = self.t * workers as f64;
        (all > 0.0).then(|| computed / all)
    }

    /// Who sends to whom among the living in the round of this step: as planned at first, and once the
    /// membership has changed as it was made anew over those who are left.
    pub fn edges(&self, about: &RunDescription, step: u64) -> Vec<(u32, u32)> {
        let is_alive = |rank: u32| {
            let known = self.ranks.get(rank as usize);
            known.is_none_or(|rank| rank.lost.is_none())
        };
        let planned = || {
            let edges = about.edges(step).iter().copied();
            edges.filter(|(from, to)| is_alive(*from) && is_alive(*to)).collect()
        };
        if !self.has_changed_views() {
            return planned();
        }
        let living: Vec<u32> = (0..about.workers as u32).filter(|rank| is_alive(*rank)).collect();
        let rebuilt = about.rebuild.as_ref().and_then(|rebuild| rebuild.over(&living));
        rebuilt.map_or_else(planned, |topology| round_of(&topology, step).to_vec())
    }

    /// Whether the ranks are in a later view than the first.
    pub fn has_changed_views(&self) -> bool {
        self.ranks.iter().any(|rank| rank.view > 0)
    }

    /// Seconds of a step of the living workers, since each of them began: the inverse of their mean rate.
    pub fn step_seconds(&self, workers: usize) -> Option<f64> {
        let living = self.ranks.iter().take(workers).filter(|rank| rank.lost.is_none());
        let rates = living.filter_map(|rank| rank.mean_steps_per_second(self.t));
        let rates: Vec<f64> = rates.collect();
        (!rates.is_empty()).then(|| rates.len() as f64 / rates.iter().sum::<f64>())
    }

    /// How far the living workers are apart, from the last estimates of each: `sqrt((1/n) Σ d_i²)`.
    pub fn sampled_consensus(&self) -> Option<Estimate> {
        let estimates: Vec<Estimate> =
            self.ranks.iter().filter_map(|rank| rank.deviation).collect();
        let count = estimates.len() as f64;
        if estimates.is_empty() {
            return None;
        }
        let value = (estimates.iter().map(|one| one.value.powi(2)).sum::<f64>() / count).sqrt();
        // The same elements were taken of every rank, so the errors may all go one way.
        let products: f64 = estimates.iter().map(|one| one.value * one.error).sum::<f64>() / count;
        let error = if value > 0.0 { products / value } else { 0.0 };
        Some(Estimate { value, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn step(t: f64, rank: u32, step: u64) -> Record {
        let event =
            RecordKind::Step { loss: 1.0, samples: 4, compute: 0.5, exposed: 0.25, waiting: 0.25 };
        Record { t, rank, step, event }
    }

    fn description() -> RunDescription {
        RunDescription { workers: 2, steps: 10, hosts: vec![0, 1], ..RunDescription::default() }
    }

    #[test]
    fn a_lost_rank_is_lost_and_the_views_that_all_enter_are_one_event() {
        let mut state = MomentState::new(&description(), 1);
        state.take(&step(1.0, 0, 0));
        state.take(&Record { t: 2.0, rank: 1, step: 1, event: RecordKind::Lost });
        for rank in 0..2 {
            state.take(&Record { t: 2.5, rank, step: 1, event: RecordKind::View { number: 1 } });
        }
        let around = Surroundings { now: 3.0, ..Surroundings::default() };
        let json = state.json(&description(), &around);
        assert_eq!(json["ranks"][1]["state"], "lost");
        assert_eq!(json["ranks"][0]["state"], "running");
        assert_eq!(json["membership"].as_array().map(Vec::len), Some(2));
        assert_eq!(state.goodput(2), Some(0.5 / 5.0));
        // Another worker takes its place, and leaves with notice.
        let transferred = RecordKind::StateTransferred { bytes: 2_500_000, seconds: 0.125 };
        for (t, event) in [(3.0, RecordKind::Joined), (3.5, transferred), (4.0, RecordKind::Left)] {
            state.take(&Record { t, rank: 1, step: 1, event });
        }
        let json = state.json(&description(), &Surroundings { now: 4.0, ..around });
        assert_eq!(json["ranks"][1]["state"], "left");
        let kinds: Vec<&str> = state.events.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, ["lost", "view", "joined", "state_transferred", "left"]);
        assert_eq!(state.events[3].text, "rank 1 received its state: 2.50 MB in 0.125 s");
    }

    #[test]
    fn the_summary_has_the_last_word() {
        let mut state = MomentState::new(&description(), 1);
        state.take(&step(1.0, 0, 0));
        let summary = json!({ "steps": 20, "workers": [{ "steps": 10 }], "loss": 0.125 });
        let around = Surroundings { now: 1.0, has_ended: true, summary: Some(summary) };
        let json = state.json(&description(), &around);
        assert_eq!(json["progress"]["steps"], 20);
        assert_eq!(json["progress"]["loss"], 0.125);
        assert_eq!(json["ranks"][0]["step"], 10);
        assert_eq!(json["ranks"][0]["state"], "ended");
    }

    #[test]
    fn the_distance_of_all_is_the_root_mean_square_of_each() {
        let mut state = MomentState::new(&description(), 1);
        for (rank, distance) in [(0, 3.0), (1, 4.0)] {
            let event = RecordKind::Deviation { distance, error: 0.1 };
            state.take(&Record { t: 1.0, rank, step: 1, event });
        }
        let estimate = state.sampled_consensus().expect("both are known");
        assert!((estimate.value - 12.5_f64.sqrt()).abs() < 1e-12);
        assert!((estimate.error - 0.35 / 12.5_f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn after_a_loss_the_distance_and_the_time_of_a_step_are_those_of_the_living() {
        let mut state = MomentState::new(&description(), 1);
        for (rank, distance) in [(0, 3.0), (1, 4.0)] {
            state.take(&step(1.0, rank, 0));
            let event = RecordKind::Deviation { distance, error: 0.1 };
            state.take(&Record { t: 1.0, rank, step: 1, event });
        }
        state.take(&Record { t: 1.5, rank: 1, step: 1, event: RecordKind::Lost });
        (2..=10_u32).for_each(|k| state.take(&step(f64::from(k), 0, k.into())));
        let estimate = state.sampled_consensus().expect("one is known");
        assert!(estimate.value == 3.0 && (estimate.error - 0.1).abs() < 1e-12, "{estimate:?}");
        assert_eq!(state.step_seconds(2), Some(1.0), "ten steps of the living in 10 s");
        let json = state.json(&description(), &Surroundings::default());
        assert_eq!(json["progress"]["sampled_consensus"]["value"], 3.0);
        // The one that takes its place counts from when it began.
        state.take(&Record { t: 10.0, rank: 1, step: 10, event: RecordKind::Joined });
        assert_eq!(state.sampled_consensus().map(|one| one.value), Some(3.0));
        [12.0, 14.0].into_iter().for_each(|t| state.take(&step(t, 1, 10)));
        (11..=14_u32).for_each(|k| state.take(&step(f64::from(k), 0, k.into())));
        assert_eq!(state.step_seconds(2), Some(2.0 / (1.0 + 0.5)));
        assert_eq!(state.ranks[1].steps_per_second(), 0.5, "its own steps alone");
    }

    #[test]
    fn of_many_events_the_last_are_kept_and_the_others_counted() {
        let mut state = MomentState::new(&description(), 1);
        let many = EVENTS as u64 + 7;
        for k in 0..many {
            let event = RecordKind::Checkpoint { failure: None };
            state.take(&Record { t: k as f64, rank: 0, step: k, event });
        }
        assert_eq!((state.events.len(), state.earlier_events), (EVENTS, 7));
        assert_eq!(state.events.back().map(|event| event.step), Some(many - 1));
        let json = state.json(&description(), &Surroundings::default());
        assert_eq!(
            (&json["membership"][0]["step"], &json["earlier_events"]),
            (&json!(7), &json!(7))
        );
    }

    #[test]
    fn after_a_loss_the_edges_are_those_of_the_topology_over_the_others() {
        let config = json!({
            "workers": 4, "steps": 10, "algorithm": { "name": "d-psgd" },
            "topology": { "name": "ring" }, "task": { "name": "a PyTorch script" },
        });
        let about = RunDescription::of_config(config, "ring");
        let mut state = MomentState::new(&about, 1);
        let neighbours = |state: &MomentState, rank: u32| {
            let edges = state.edges(&about, 5);
            let mut peers: Vec<u32> =
                edges.iter().filter(|(from, _)| *from == rank).map(|(_, to)| *to).collect();
            peers.sort_unstable();
            peers
        };
        assert_eq!(neighbours(&state, 1), [0, 2]);
        state.take(&Record { t: 2.0, rank: 2, step: 5, event: RecordKind::Lost });
        assert_eq!(neighbours(&state, 1), [0], "until the others have entered the next view");
        for rank in [0, 1, 3] {
            state.take(&Record { t: 2.5, rank, step: 5, event: RecordKind::View { number: 1 } });
        }
        assert_eq!(neighbours(&state, 1), [0, 3], "the ring has closed over rank 2");
        assert_eq!(neighbours(&state, 2), [0u32; 0]);
    }
}
