//! From a checkpoint to the start of a run: the same one, or one with other ranks.

use std::collections::BTreeMap;
use std::ops::Range;

use quelea_core::node::MODEL;
use quelea_core::properties::{Budget, DeployedFrom, OptimizerSite, TopologyRequirement};
use quelea_core::state::Saved;
use quelea_core::time::Time;
use quelea_core::view::ViewChange;
use quelea_record::{DATA_BOOKS, RankCheckpoint, RankReport, ResumePoint};
use serde_json::Value;

use super::read::Checkpoint;
use crate::error::RequestError;
use crate::prepared::PreparedRun;

/// Keys that may be others when a run goes on: how long it is, what is watched, where it runs.
/// Everything below a name that ends in a dot.
const MAY_CHANGE: &[&str] = &[
    "steps",
    "epochs",
    "evaluations",
    "evaluate_workers",
    "plots",
    "transport",
    "task.data",
    "workers",
    "checkpoint.",
    "membership.",
    "cluster.",
    "chaos.",
    "optimizer.lr",
    "optimizer.clip_norm",
    "optimizer.weight_decay",
    "optimizer.schedule.",
];

/// Keys that earlier versions did not have, and the value that does as they did. Keys that are missing
/// in a checkpoint and are not listed have such a default.
const ADDED: &[(&str, &str)] = &[
    ("algorithm.averaging", "active"),
    ("algorithm.sends", "every-step"),
    ("data", "own"),
    ("topology.groups", "send"),
];

/// The state from which `prepared` resumes.
pub fn start(checkpoint: &Checkpoint, prepared: &PreparedRun) -> Result<ResumePoint, RequestError> {
    let manifest = &checkpoint.manifest;
    let mut config = prepared.config.resolved();
    if prepared.config.properties().topology == TopologyRequirement::Nothing {
        // What is not used does not matter.
        config["topology"] = manifest.config["topology"].clone();
    }
    check_config(&manifest.config, &config, "")?;
    let dimensions = prepared.setup.layout.len();
    if manifest.dimensions != dimensions {
        return Err(RequestError::Conflict(format!(
            "the checkpoint's model has {} parameters, that of the task {dimensions}; is the data \
             another?",
            manifest.dimensions
        )));
    }
    if manifest.step >= prepared.setup.steps {
        let problem = format!(
            "the run has done {} steps; set more to continue, as in --set steps={}",
            manifest.step,
            manifest.step.saturating_mul(2)
        );
        return Err(RequestError::field("steps", prepared.setup.steps, problem));
    }
    let config = &prepared.config;
    let as_many = (manifest.workers, manifest.seats(), manifest.servers)
        == (config.workers, config.seats(), config.servers());
    let keeps_members = manifest.changes.is_empty() || !checkpoint.refills;
    let same = as_many && keeps_members;
    let now = Time::from_seconds(manifest.clock_seconds);
    if same {
        let changes = manifest.changes.iter().map(ViewChange::from).collect();
        let parts = checkpoint.parts.clone();
        return Ok(ResumePoint { parts, now, changes, ..ResumePoint::default() });
    }
    let parts = resized(checkpoint, prepared)?;
    Ok(ResumePoint { parts, resized: true, now, ..ResumePoint::default() })
}

/// Refuses a key that is another and may not be.
fn check_config(old: &Value, new: &Value, path: &str) -> Result<(), RequestError> {
    let empty = serde_json::Map::new();
    match (old.as_object(), new.as_object()) {
        (None, None) => {}
        (old, new) => {
            let (old, new) = (old.unwrap_or(&empty), new.unwrap_or(&empty));
            for key in old.keys().chain(new.keys().filter(|key| !old.contains_key(*key))) {
                let inside = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let side = |side: &serde_json::Map<String, Value>| {
                    side.get(key).cloned().unwrap_or(Value::Null)
                };
                check_config(&side(old), &side(new), &inside)?;
            }
            return Ok(());
        }
    }
    let may_change = |allowed: &&str| match allowed.strip_suffix('.') {
        Some(table) => path.strip_prefix(table).is_some_and(|rest| rest.starts_with('.')),
        None => path == *allowed,
    };
    if old == new || MAY_CHANGE.iter().any(may_change) {
        return Ok(());
    }
    if old.is_null() {
        let earlier = ADDED.iter().find(|(key, earlier)| *key == path && new != *earlier);
        let Some((_, earlier)) = earlier else { return Ok(()) };
        let problem = format!(
            "the checkpoint was made by a version without this option, which did as \"{earlier}\" does; \
             add --set {path}={earlier}"
        );
        return Err(RequestError::field(path, new, problem));
    }
    let problem = format!("the checkpoint was made with {old}; a resumed run keeps it");
    Err(RequestError::field(path, new, problem))
}

/// Every rank of another number of ranks begins with the deployed model and with what the
/// optimizers had in common; what only the algorithm knows is reset.
fn resized(
    checkpoint: &Checkpoint,
    prepared: &PreparedRun,
) -> Result<Vec<RankCheckpoint>, RequestError> {
    let damaged = |what: &str| RequestError::Conflict(format!("the checkpoint lacks {what}"));
    let (properties, old) = (prepared.setup.properties(), &checkpoint.manifest);
    let (all_workers, servers) = checkpoint.parts.split_at(old.seats());
    let living = all_workers.iter().filter(|part| !part.report.lost);
    let workers = &living.cloned().collect::<Vec<_>>()[..];
    let len = prepared.setup.layout.len();
    let model = match properties.deploy {
        DeployedFrom::Workers => mean(workers, model_of),
        DeployedFrom::Servers => concatenated(servers, model_of),
    };
    let model = model.filter(|model| model.len() == len).ok_or_else(|| damaged("its model"))?;
    let holders = if properties.optimizer == OptimizerSite::Workers { workers } else { servers };
    // Within a host only the first worker may run its optimizer.
    let runs: Vec<RankCheckpoint> =
        holders.iter().filter(|part| optimized(part) > 0).cloned().collect();
    let holders = if runs.is_empty() { holders } else { &runs };
    let mut optimizer = BTreeMap::new();
    for slot in 0..(prepared.setup.optimizer)(1).vectors().len() {
        let name = format!("optimizer.{slot}");
        let of = |part: &RankCheckpoint| part.state.vectors.get(&name).cloned();
        let whole = match properties.optimizer {
            OptimizerSite::Workers => mean(holders, of),
            OptimizerSite::Servers => concatenated(holders, of),
        };
        let whole = whole.filter(|whole| whole.len() == len);
        optimizer.insert(name.clone(), whole.ok_or_else(|| damaged("the optimizer's state"))?);
    }
    let done: u64 = all_workers.iter().map(RankCheckpoint::step).sum();
    let step = match properties.budget {
        Budget::Rounds => old.step,
        Budget::TotalGradients => done / prepared.config.workers as u64,
    };
    let common = Common {
        optimized: holders.iter().map(optimized).max().unwrap_or(0),
        buckets: prepared.setup.layout.buckets.len(),
        model,
        optimizer,
    };
    let shards = prepared.setup.layout.shards(prepared.config.servers());
    let of_worker = common.part(0..len, step, properties.optimizer == OptimizerSite::Workers);
    let of_server = shards.into_iter().map(|shard| {
        // Servers of synchronous rows count the workers' steps.
        let step = if properties.synchronous { step } else { 0 };
        common.part(shard, step, properties.optimizer == OptimizerSite::Servers)
    });
    let mut parts = vec![of_worker; prepared.config.workers];
    parts.resize(prepared.config.seats(), RankCheckpoint::default());
    parts.extend(of_server);
    for (index, part) in checkpoint.parts.iter().enumerate() {
        let place = index % prepared.config.workers;
        add(&mut parts[place].report, &part.report);
        let books = part.state.numbers.iter().filter(|(name, _)| name.starts_with(DATA_BOOKS));
        parts[0].state.numbers.extend(books.map(|(name, number)| (name.clone(), *number)));
    }
    Ok(parts)
}

/// What all ranks of another number begin with.
struct Common {
    model: Vec<f32>,
    optimizer: BTreeMap<String, Vec<f32>>,
    optimized: u64,
    buckets: usize,
}

impl Common {
    fn part(&self, range: Range<usize>, step: u64, optimizes: bool) -> RankCheckpoint {
        let mut state = Saved::default();
        state.numbers.insert("step".to_string(), step);
        for slot in 0..self.buckets {
            state.numbers.insert(format!("optimized.{slot}"), self.optimized);
        }
        state.vectors.insert("params".to_string(), self.model[range.clone()].to_vec());
        for (name, whole) in &self.optimizer {
            let held = if optimizes { whole[range.clone()].to_vec() } else { Vec::new() };
            state.vectors.insert(name.clone(), held);
        }
        RankCheckpoint { state, ..RankCheckpoint::default() }
    }
}

/// Steps that the rank's optimizer has done.
fn optimized(part: &RankCheckpoint) -> u64 {
    let counts = part.state.numbers.iter().filter(|(name, _)| name.starts_with("optimized."));
    counts.map(|(_, count)| *count).max().unwrap_or(0)
}

fn model_of(part: &RankCheckpoint) -> Option<Vec<f32>> {
    let vectors = &part.state.vectors;
    vectors.get(MODEL).or_else(|| vectors.get("params")).cloned()
}

/// The mean, summed in order of rank.
fn mean(
    parts: &[RankCheckpoint],
    of: impl Fn(&RankCheckpoint) -> Option<Vec<f32>>,
) -> Option<Vec<f32>> {
    let mut sum: Vec<f64> = Vec::new();
    for part in parts {
        let values = of(part)?;
        sum.resize(values.len(), 0.0);
        sum.iter_mut().zip(values).for_each(|(sum, x)| *sum += f64::from(x));
    }
    Some(sum.iter().map(|sum| (sum / parts.len() as f64) as f32).collect())
}

fn concatenated(
    parts: &[RankCheckpoint],
    of: impl Fn(&RankCheckpoint) -> Option<Vec<f32>>,
) -> Option<Vec<f32>> {
    parts.iter().map(of).collect::<Option<Vec<_>>>().map(|pieces| pieces.concat())
}

fn add(to: &mut RankReport, from: &RankReport) {
    to.steps += from.steps;
    to.samples += from.samples;
    to.compute_seconds += from.compute_seconds;
    to.exposed_seconds += from.exposed_seconds;
    to.waiting_seconds += from.waiting_seconds;
    to.bytes_sent += from.bytes_sent;
    to.bytes_received += from.bytes_received;
    to.messages_sent += from.messages_sent;
    to.facts.add_all(&from.facts);
}
