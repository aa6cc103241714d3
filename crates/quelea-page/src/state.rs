//! The whole run at one moment, from its records, and how the API shows it.

use std::collections::BTreeMap;

use quelea_record::{FOLDED, HALF_EXCHANGE, Record, RecordKind, STALENESS};
use serde_json::{Value, json};

use crate::activity::{CompletedStep, Estimate, RankActivity, StepSeconds};
use crate::description::RunDescription;
use crate::waits;

/// Events of the membership that are kept.
const EVENTS: usize = 500;
/// How many of its own steps a worker may be late before it is shown as silent.
const SILENT_STEPS: f64 = 20.0;
/// Edges and links that the API lists; of more, the first.
const EDGES: usize = 4000;
/// And at least this many seconds.
const SILENT_SECONDS: f64 = 5.0;

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
    /// Views, losses and checkpoints, in order.
    pub events: Vec<MembershipEvent>,
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
    /// `lost`, `view` or `checkpoint`.
    pub kind: &'static str,
    /// In words.
    pub text: String,
    /// The view's number.
    pub view: Option<u32>,
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
            RecordKind::Account { awaiting, links } => {
                let rank = &mut self.ranks[place];
                rank.heard = Some(t);
                rank.awaiting.clone_from(awaiting);
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
            RecordKind::Lost | RecordKind::View { .. } | RecordKind::Checkpoint { .. } => {
                self.happened(record);
            }
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
        let (kind, text, view) = match event {
            RecordKind::Lost => {
                self.ranks[rank as usize].lost = Some(t);
                ("lost", format!("rank {rank} was lost at step {step}"), None)
            }
            RecordKind::View { number } => {
                self.ranks[rank as usize].view = *number;
                if self.events.iter().any(|event| event.view == Some(*number)) {
                    return;
                }
                let living = self.ranks.iter().filter(|rank| rank.lost.is_none()).count();
                ("view", format!("view {number}: {living} ranks continue"), Some(*number))
            }
            RecordKind::Checkpoint { failure: None } => {
                ("checkpoint", format!("checkpoint of step {step} is on the disk"), None)
            }
            RecordKind::Checkpoint { failure: Some(why) } => {
                ("checkpoint", format!("checkpoint of step {step} failed: {why}"), None)
            }
            _ => return,
        };
        if self.events.len() < EVENTS {
            self.events.push(MembershipEvent { t, rank, step, kind, text, view });
        }
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

    /// How far the workers are apart, from the last estimates of each: `sqrt((1/n) Σ d_i²)`.
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

    /// As the API shows it.
    pub fn json(&self, description: &RunDescription, around: &Surroundings) -> Value {
        let summary = around.summary.as_ref().unwrap_or(&Value::Null);
        let ranks: Vec<Value> = (0..self.ranks.len().max(description.ranks()))
            .map(|rank| self.rank_json(rank, description, around))
            .collect();
        let waits = waits::find(self, description, around);
        let evaluation = self.evaluation;
        let sampled = self.sampled_consensus();
        let total = description.steps * description.workers as u64;
        let or_last = |key: &str, own: Value| match &summary[key] {
            Value::Null => own,
            last => last.clone(),
        };
        json!({
            "now": around.now,
            "has_ended": around.has_ended,
            "records": self.records,
            "progress": {
                "steps": or_last("steps", json!(self.steps)),
                "total_steps": total,
                "samples": or_last("samples", json!(self.samples)),
                "samples_per_second":
                    or_last("samples_per_second", json!(self.samples_per_second())),
                "batch_loss": self.batch_loss,
                "loss": or_last("loss", json!(evaluation.map(|one| one.loss))),
                "accuracy": or_last("accuracy", json!(evaluation.and_then(|one| one.accuracy))),
                "consensus_distance":
                    or_last("consensus_distance", json!(evaluation.map(|one| one.consensus))),
                "sampled_consensus": sampled.map(estimate_json),
                "goodput": self.goodput(description.workers),
                "clock_seconds": or_last("clock_seconds", json!(self.t)),
                "evaluated_at_step": evaluation.map(|one| one.step),
            },
            "ranks": ranks,
            "round": self.round(description),
            "links": self.links_json(around.now),
            "waits": waits.json(),
            "asynchrony": self.asynchrony_json(summary),
            "membership": self.events.iter().map(event_json).collect::<Vec<_>>(),
            "summary": around.summary,
        })
    }

    /// The edges of the round that most workers are in, among the living.
    fn round(&self, description: &RunDescription) -> Value {
        let mut steps: Vec<u64> = (self.ranks.iter().take(description.workers))
            .filter(|rank| rank.lost.is_none())
            .map(|rank| rank.steps)
            .collect();
        steps.sort_unstable();
        let step = steps.get(steps.len() / 2).copied().unwrap_or(0);
        let is_alive =
            |rank: &u32| self.ranks.get(*rank as usize).is_none_or(|rank| rank.lost.is_none());
        let edges = description.edges(step).iter();
        let edges = edges.filter(|(from, to)| is_alive(from) && is_alive(to)).take(EDGES);
        json!({ "step": step, "edges": edges.collect::<Vec<_>>() })
    }

    fn rank_json(&self, rank: usize, about: &RunDescription, around: &Surroundings) -> Value {
        let idle = RankActivity::default();
        let one = self.ranks.get(rank).unwrap_or(&idle);
        let is_server = rank >= about.workers;
        let summary = around.summary.as_ref().unwrap_or(&Value::Null);
        let worker = &summary["workers"][rank];
        let traffic = &summary["ranks"][rank];
        let or_last = |value: &Value, own: Value| if value.is_null() { own } else { value.clone() };
        let sent: u64 = one.links.values().map(|link| link.total.bytes_sent).sum();
        let received: u64 = one.links.values().map(|link| link.total.bytes_received).sum();
        json!({
            "rank": rank,
            "role": if is_server { "server" } else { "worker" },
            "host": about.hosts.get(rank),
            "state": self.rank_state(one, is_server, around),
            "step": or_last(&worker["steps"], json!(one.steps)),
            "samples": or_last(&worker["samples"], json!(one.samples)),
            "steps_per_second": one.steps_per_second(),
            "batch": one.batch,
            "loss": or_last(&worker["last_loss"], json!(one.loss)),
            "recent": seconds_json(one.recent),
            "compute_seconds": or_last(&worker["compute_seconds"], json!(one.total.compute)),
            "exposed_seconds": or_last(&worker["exposed_seconds"], json!(one.total.exposed)),
            "waiting_seconds": or_last(&worker["waiting_seconds"], json!(one.total.waiting)),
            "bytes_sent": or_last(&traffic["bytes_sent"], json!(sent)),
            "bytes_received": or_last(&traffic["bytes_received"], json!(received)),
            "heard": one.heard,
            "lost_at": one.lost,
            "view": one.view,
            "deviation": one.deviation.map(estimate_json),
        })
    }

    fn rank_state(
        &self,
        rank: &RankActivity,
        is_server: bool,
        around: &Surroundings,
    ) -> &'static str {
        if rank.lost.is_some() {
            return "lost";
        }
        if around.has_ended {
            return "ended";
        }
        let Some(heard) = rank.heard else {
            return if is_server { "serving" } else { "starting" };
        };
        let patience = SILENT_SECONDS.max(SILENT_STEPS * rank.interval);
        if around.now - heard > patience {
            "silent"
        } else if !rank.awaiting.is_empty() {
            "waiting"
        } else {
            "running"
        }
    }

    fn links_json(&self, now: f64) -> Vec<Value> {
        let links = self.ranks.iter().enumerate().flat_map(|(from, rank)| {
            rank.links.iter().filter(|(_, link)| link.total.sent > 0).map(move |(to, link)| {
                json!({
                    "from": from,
                    "to": to,
                    "messages": link.total.sent,
                    "bytes": link.total.bytes_sent,
                    "in_flight": self.in_flight(from as u32, *to),
                    "bytes_per_second": link.bytes_per_second,
                    "age": (now - link.active).max(0.0),
                    "delay": link.delay,
                })
            })
        });
        links.take(EDGES).collect()
    }

    /// Messages that one rank has counted as sent and the other not yet as received.
    fn in_flight(&self, from: u32, to: u32) -> Option<u64> {
        let sent = self.ranks.get(from as usize)?.links.get(&to)?.total.sent;
        let received = self.ranks.get(to as usize)?.links.get(&from)?.total.received;
        (received > 0).then(|| sent.saturating_sub(received))
    }

    fn asynchrony_json(&self, summary: &Value) -> Value {
        let messages: u64 = self.folded.values().sum();
        let gradients: u64 = self.folded.iter().map(|(number, times)| number * times).sum();
        let mean = (messages > 0).then(|| gradients as f64 / messages as f64);
        let staleness = match &summary["staleness"] {
            Value::Null => json!(self.staleness),
            last => last.clone(),
        };
        json!({
            "staleness": staleness,
            "gradients_per_message": mean,
            "half_exchanges": self.half_exchanges,
            "in_flight_peak": summary["in_flight"],
        })
    }
}

fn estimate_json(estimate: Estimate) -> Value {
    json!({ "value": estimate.value, "error": estimate.error })
}

fn seconds_json(seconds: StepSeconds) -> Value {
    let StepSeconds { compute, exposed, waiting } = seconds;
    json!({ "compute": compute, "exposed": exposed, "waiting": waiting })
}

fn event_json(event: &MembershipEvent) -> Value {
    let MembershipEvent { t, rank, step, kind, text, .. } = event;
    json!({ "t": t, "rank": rank, "step": step, "kind": kind, "text": text })
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
