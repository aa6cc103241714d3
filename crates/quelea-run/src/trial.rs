//! One timed run in the virtual cluster: the real algorithm on a small vector that stands for a
//! large model.
//!
//! Times do not depend on the numbers in a vector, only on its size; so a quadratic of some
//! thousand elements is trained, every byte of which counts as many (`cluster.vector_scale`).
//! Where the vector is cut into equal parts this is exact; headers count as they are.

use std::sync::Arc;

use quelea_core::problems::Problem;
use quelea_core::registry::Registry;
use quelea_record::{FOLDED, FactKind, FactTotals, Outcome, Record, RecordKind, STALENESS};

use crate::config::Config;
use crate::config::source::{self, Table};
use crate::error::{RequestError, RunError};
use crate::prepared::PreparedRun;

/// A run to be timed. Settings are those of a run file, so that every trial can be typed.
#[derive(Clone)]
pub struct Trial {
    registry: Registry,
    workers: usize,
    elements: usize,
    scale: f64,
    settings: Vec<String>,
    /// What is trained, where it is not the quadratic.
    problem: Option<Arc<dyn Problem>>,
}

/// Elements of the vector, at least: enough for equal chunks.
const ELEMENTS_MIN: usize = 4096;

impl Trial {
    /// `workers` of this built-in algorithm, on a model of this many parameters in one bucket.
    pub fn new(algorithm: &str, workers: usize, parameters: f64) -> Trial {
        Trial::new_with(&Registry::builtin(), algorithm, workers, parameters)
    }

    /// As [`new`](Trial::new), with an algorithm and settings of the entries of a registry.
    pub fn new_with(
        registry: &Registry,
        algorithm: &str,
        workers: usize,
        parameters: f64,
    ) -> Trial {
        let elements = ELEMENTS_MIN.max(16 * workers).next_multiple_of(workers);
        let scale = parameters / elements as f64;
        let (registry, settings) = (registry.clone(), Vec::new());
        let trial = Trial { registry, workers, elements, scale, settings, problem: None };
        trial
            .set("algorithm.name", algorithm)
            .set("task.name", "quadratic")
            .set("task.dimensions", elements)
            .set("optimizer.name", "sgd")
            .set("optimizer.lr", 1e-3)
            .set("cluster.vector_scale", scale)
            .set("cluster.threads", 1)
            .set("buckets.size_mb", 0)
    }

    /// Sets a key of the run file; a later setting of the same key counts.
    pub fn set(mut self, key: &str, value: impl std::fmt::Display) -> Trial {
        self.settings.push(format!("{key}={value}"));
        self
    }

    /// In buckets of so many megabytes of the model that is meant.
    pub fn buckets_mb(self, megabytes: f64) -> Trial {
        let size = megabytes / self.scale;
        self.set("buckets.size_mb", size)
    }

    /// On a real problem, which stands for the same model and is described by `settings` of
    /// `[task]`; its gradients are worth all cores.
    pub fn on_task(mut self, settings: &[String], problem: &Arc<dyn Problem>) -> Trial {
        let ours = |setting: &String| {
            !setting.starts_with("task.") && !setting.starts_with("cluster.threads=")
        };
        self.settings.retain(ours);
        self.settings.extend_from_slice(settings);
        self.scale *= self.elements as f64 / problem.dimensions() as f64;
        self.elements = problem.dimensions();
        self.problem = Some(Arc::clone(problem));
        let scale = self.scale;
        self.set("cluster.vector_scale", scale)
    }

    /// One worker takes so many times as long; 1 changes nothing.
    pub fn slow(self, rank: usize, factor: f64) -> Trial {
        if factor == 1.0 { self } else { self.set(&format!("cluster.slow.{rank}"), factor) }
    }

    /// With an even number of elements per part, for a vector that is cut into so many.
    pub fn cut(mut self, parts: usize) -> Trial {
        let elements = self.elements.next_multiple_of(parts * self.workers);
        self.scale *= self.elements as f64 / elements as f64;
        self.elements = elements;
        let scale = self.scale;
        self.set("task.dimensions", elements).set("cluster.vector_scale", scale)
    }

    /// What is to be run.
    pub fn plan(&self, steps: u64) -> Result<PreparedRun, RequestError> {
        let length = [format!("workers={}", self.workers), format!("steps={steps}")];
        let config = config_with(&self.registry, &[&self.settings[..], &length].concat())?;
        Ok(match &self.problem {
            Some(problem) => PreparedRun::of_problem(config, Arc::clone(problem))?,
            None => PreparedRun::new(config)?,
        })
    }

    /// Runs so many steps of every worker (on average, where the algorithm does not wait).
    pub fn run(&self, steps: u64) -> Result<Timing, RunError> {
        Timing::of(&self.plan(steps)?)
    }
}

/// The configuration that settings make on top of the defaults, of built-in entries.
pub fn config(settings: &[String]) -> Result<Config, RequestError> {
    config_with(&Registry::builtin(), settings)
}

fn config_with(registry: &Registry, settings: &[String]) -> Result<Config, RequestError> {
    let settings =
        settings.iter().map(|given| source::setting(given)).collect::<Result<Vec<_>, _>>();
    Config::read_with(registry, Table::new(), &settings?, None)
}

/// What a trial came to.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Steps per second of every worker.
    pub rates: Vec<f64>,
    /// Shares of all workers' time: computing, exposed communication, waiting.
    pub shares: [f64; 3],
    /// Everything else that was measured.
    pub outcome: Outcome,
}

/// Times of steps, by worker.
struct StepTimes {
    steps: Vec<Vec<f64>>,
}

impl quelea_sim::Observer for StepTimes {
    fn record(&mut self, record: Record) {
        if let RecordKind::Step { .. } = record.event {
            self.steps[record.rank as usize].push(record.t);
        }
    }
}

/// The share of a run that is not counted: queues and buffers fill in it.
const WARM_UP: f64 = 0.2;

impl Timing {
    /// Simulates a plan.
    pub fn of(plan: &PreparedRun) -> Result<Timing, RunError> {
        let mut watch = StepTimes { steps: vec![Vec::new(); plan.config.workers] };
        let setup = plan.setup.simulated();
        let outcome = quelea_sim::simulate(&setup, &*plan.problem, &plan.cluster, &mut watch)?;
        let from = WARM_UP * outcome.clock_seconds;
        let rates = watch.steps.iter().map(|times| rate(times, from)).collect();
        let workers = || outcome.ranks.iter().filter(|rank| !rank.is_server);
        let compute: f64 = workers().map(|rank| rank.compute_seconds).sum();
        let exposed: f64 = workers().map(|rank| rank.exposed_seconds).sum();
        let waiting: f64 = workers().map(|rank| rank.waiting_seconds).sum();
        let total = (compute + exposed + waiting).max(f64::MIN_POSITIVE);
        let shares = [compute / total, exposed / total, waiting / total];
        Ok(Timing { rates, shares, outcome })
    }

    /// Gradients per second of all workers together.
    pub fn rate(&self) -> f64 {
        self.rates.iter().sum()
    }

    /// Mean seconds per step of a worker.
    pub fn step_seconds(&self) -> f64 {
        self.rates.len() as f64 / self.rate()
    }

    /// Gradients that one message carried on average, where the algorithm folds them.
    pub fn gradients_per_message(&self) -> f64 {
        self.mean(&FOLDED)
    }

    /// Mean updates by which gradients were late, where the algorithm tells.
    pub fn staleness(&self) -> f64 {
        self.mean(&STALENESS)
    }

    fn mean(&self, kind: &FactKind) -> f64 {
        let mut all = FactTotals::default();
        self.outcome.ranks.iter().for_each(|rank| all.add_all(&rank.facts));
        all.mean(kind).unwrap_or(0.0)
    }

    /// Most messages on their way in the second and in the last quarter of the run: about equal
    /// if what is on its way is bounded.
    pub fn in_flight(&self) -> (u64, u64) {
        let series = &self.outcome.in_flight.series;
        let most = |part: &[quelea_record::Peak]| part.iter().map(|peak| peak.messages).max();
        let quarter = series.len() / 4;
        let second = most(&series[quarter..(2 * quarter).max(quarter + 1).min(series.len())]);
        let last = most(&series[series.len() - quarter.max(1)..]);
        (second.unwrap_or(0), last.unwrap_or(0))
    }
}

/// `(steps − 1) / (last − first completion)` after `from`; a worker with fewer than two steps
/// there is counted from the beginning, and one with fewer than two at all has no rate.
fn rate(times: &[f64], from: f64) -> f64 {
    let counted = &times[times.partition_point(|time| *time < from)..];
    let counted = if counted.len() < 3 { times } else { counted };
    match counted {
        [first, .., last] => (counted.len() - 1) as f64 / (last - first),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_vector_stands_for_a_large_one_exactly() {
        let time = |elements: usize| {
            let mut trial = Trial::new("allreduce", 4, 1e6);
            trial = trial
                .set("task.dimensions", elements)
                .set("cluster.vector_scale", 1e6 / elements as f64);
            trial.run(4).expect("runs").step_seconds()
        };
        let (small, large) = (time(4096), time(1_000_000));
        assert!((small / large - 1.0).abs() < 1e-6, "{small} {large}");
    }

    #[test]
    fn rates_leave_out_the_beginning() {
        let times = [1.0, 5.0, 6.0, 7.0, 8.0];
        assert_eq!(rate(&times, 5.0), 1.0);
        assert_eq!(rate(&times[..1], 0.0), 0.0);
    }
}
