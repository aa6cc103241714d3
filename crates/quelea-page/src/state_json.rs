//! How the API shows the state of a run: see docs/seeing-a-run.md.

use serde_json::{Value, json};

use crate::activity::{Estimate, RankActivity, StepSeconds};
use crate::description::RunDescription;
use crate::state::{MembershipEvent, MomentState, Surroundings};
use crate::waits;

/// How many of its own steps a worker may be late before it is shown as silent.
const SILENT_STEPS: f64 = 20.0;
/// And at least this many seconds.
const SILENT_SECONDS: f64 = 5.0;
/// Edges and links that the API lists; of more, the first.
const EDGES: usize = 4000;
/// Counts of two ranks that are nearer than this are of one moment.
const SAME_MOMENT_SECONDS: f64 = 0.02;

impl MomentState {
    /// As the API shows it.
    pub fn json(&self, description: &RunDescription, around: &Surroundings) -> Value {
        let summary = around.summary.as_ref().unwrap_or(&Value::Null);
        let ranks: Vec<Value> = (0..self.ranks.len().max(description.ranks()))
            .map(|rank| self.rank_json(rank, description, around))
            .collect();
        let waits = waits::find(self, description, around);
        let evaluation = self.evaluation;
        let sampled = self.sampled_consensus();
        let total = description.steps.saturating_mul(description.workers as u64);
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
            "earlier_events": self.earlier_events,
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
        let mut edges = self.edges(description, step);
        edges.truncate(EDGES);
        let is_rebuilt = description.topology.is_some() && self.has_changed_views();
        json!({ "step": step, "edges": edges, "is_rebuilt": is_rebuilt })
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
            "resident_bytes": known(one.memory.resident_bytes),
            "gpu_bytes": known(one.memory.gpu_bytes),
        })
    }

    fn rank_state(
        &self,
        rank: &RankActivity,
        is_server: bool,
        around: &Surroundings,
    ) -> &'static str {
        if rank.lost.is_some() {
            return if rank.has_left { "left" } else { "lost" };
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
        } else if rank.is_waiting() {
            "waiting"
        } else {
            "running"
        }
    }

    fn links_json(&self, now: f64) -> Vec<Value> {
        let links = self.ranks.iter().enumerate().flat_map(|(from, rank)| {
            rank.links.iter().filter(|(_, link)| link.total.sent > 0).map(move |(to, link)| {
                let flight = self.in_flight(from as u32, *to);
                let round_trip = known(link.total.round_trip_micros);
                json!({
                    "from": from,
                    "to": to,
                    "messages": link.total.sent,
                    "bytes": link.total.bytes_sent,
                    "in_flight": flight.map(|flight| flight.messages),
                    "in_flight_bytes": flight.map(|flight| flight.bytes),
                    "bytes_per_second": link.bytes_per_second,
                    "age": (now - link.active).max(0.0),
                    "delay": link.delay,
                    "round_trip": round_trip.map(|micros| micros as f64 / 1e6),
                    "resent": link.total.resent,
                    "resent_recently": link.resent_recently,
                })
            })
        });
        links.take(EDGES).collect()
    }

    /// What one rank has counted as sent and the other not yet as received.
    fn in_flight(&self, from: u32, to: u32) -> Option<LinkFlight> {
        let sender = self.ranks.get(from as usize)?.links.get(&to)?;
        let receiver = self.ranks.get(to as usize)?.links.get(&from)?;
        let is_known = sender.is_counted && receiver.is_counted;
        // Counts of two moments would show what was sent between them.
        let is_alike = (sender.at - receiver.at).abs() < SAME_MOMENT_SECONDS;
        (is_known && is_alike).then(|| LinkFlight {
            messages: sender.total.sent.saturating_sub(receiver.total.received),
            bytes: sender.total.bytes_sent.saturating_sub(receiver.total.bytes_received),
        })
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

/// What is on its way over a link.
#[derive(Clone, Copy)]
struct LinkFlight {
    messages: u64,
    bytes: u64,
}

/// A number that is 0 where nobody knows it.
fn known(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}

fn estimate_json(estimate: Estimate) -> Value {
    json!({ "value": estimate.value, "error": estimate.error })
}

fn seconds_json(seconds: StepSeconds) -> Value {
    let StepSeconds { compute, exposed, waiting } = seconds;
    json!({ "compute": compute, "exposed": exposed, "waiting": waiting })
}

fn event_json(event: &MembershipEvent) -> Value {
    let MembershipEvent { t, rank, step, kind, text } = event;
    json!({ "t": t, "rank": rank, "step": step, "kind": kind, "text": text })
}
