//! Logistic regression whose gradients carry noise of a known size: the setting of the bounds.

use std::sync::Arc;

use quelea_core::node::Loan;
use quelea_core::problems::{Computed, Evaluation, GradientSource, Problem};
use quelea_core::random::Rng;
use quelea_core::time::Time;
use quelea_record::{CheckpointSchedule, Models, Record};
use quelea_run::prepared::PreparedRun;
use quelea_run::trial::config;

use crate::error::ExperimentError;

/// Gradients over all samples of a worker; the rate falls like 1/√t, as the bounds ask for.
pub fn plan(
    algorithm: &str,
    workers: usize,
    steps: u64,
    more: &[String],
) -> Result<PreparedRun, ExperimentError> {
    let settings = [
        format!("algorithm.name={algorithm}"),
        format!("workers={workers}"),
        format!("steps={steps}"),
        "task.name=logistic".into(),
        "task.partition=iid".into(),
        "task.batch=0".into(),
        "task.l2=0.01".into(),
        "task.hold_out=0".into(),
        "optimizer.name=sgd".into(),
        "optimizer.lr=0.5".into(),
        "optimizer.schedule.name=inverse-sqrt".into(),
        "optimizer.schedule.warmup_steps=20".into(),
        "buckets.size_mb=0".into(),
        "cluster.compute_ms=1".into(),
        "cluster.threads=1".into(),
    ];
    Ok(PreparedRun::new(config(&[&settings[..], more].concat())?)?)
}

/// The loss of the mean of the workers' models, about which the theorem speaks, after every step.
struct Losses {
    problem: Arc<dyn Problem>,
    steps: u64,
    losses: Vec<f64>,
}

impl quelea_sim::Observer for Losses {
    fn record(&mut self, _record: Record) {}

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        CheckpointSchedule { save_every: 0, evaluations: self.steps, steps: self.steps }
    }

    fn evaluate(&mut self, _now: Time, _step: u64, models: Models) {
        let mut mean = vec![0.0_f32; self.problem.dimensions()];
        for (_, model) in &models.workers {
            mean.iter_mut().zip(model).for_each(|(sum, x)| *sum += x);
        }
        let n = models.workers.len() as f32;
        mean.iter_mut().for_each(|sum| *sum /= n);
        self.losses.push(self.problem.evaluate(&mean).loss);
    }
}

/// A problem whose gradients carry seeded noise, the same for every algorithm.
pub struct Noisy {
    /// What is disturbed.
    pub problem: Arc<dyn Problem>,
    /// Standard deviation of the noise on every entry of a gradient.
    pub std: f32,
    /// Of the draws.
    pub seed: u64,
}

impl Problem for Noisy {
    fn dimensions(&self) -> usize {
        self.problem.dimensions()
    }

    fn initial(&self) -> Vec<f32> {
        self.problem.initial()
    }

    fn source(&self, rank: usize) -> Box<dyn GradientSource> {
        let source = self.problem.source(rank);
        Box::new(NoisySource { source, std: self.std, seed: self.seed, rank: rank as u64 })
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        self.problem.evaluate(params)
    }
}

struct NoisySource {
    source: Box<dyn GradientSource>,
    std: f32,
    seed: u64,
    rank: u64,
}

impl GradientSource for NoisySource {
    fn gradient(&mut self, loan: &mut Loan, _ready: &mut dyn FnMut(usize)) -> Computed {
        let mut rng = Rng::new(self.seed, "gradient noise", self.rank << 40 | loan.step());
        loan.hold();
        let computed = self.source.gradient(loan, &mut |_| {});
        let (_, grad) = loan.vectors();
        grad.iter_mut().for_each(|g| *g += self.std * rng.normal() as f32);
        computed
    }

    fn operations(&self) -> u64 {
        self.source.operations()
    }
}

/// The loss of the mean of the workers' models after every step.
pub fn losses(plan: &PreparedRun, std: f32, seed: u64) -> Result<Vec<f64>, ExperimentError> {
    let mut losses =
        Losses { problem: Arc::clone(&plan.problem), steps: plan.setup.steps, losses: Vec::new() };
    let noisy = Noisy { problem: Arc::clone(&plan.problem), std, seed };
    quelea_sim::simulate(&plan.setup.simulated(), &noisy, &plan.cluster, &mut losses)?;
    Ok(losses.losses)
}

/// The lowest loss that exact gradient descent comes to.
pub fn floor(workers: usize) -> Result<f64, ExperimentError> {
    let exact: [String; 2] = ["optimizer.lr=1.0".into(), "optimizer.schedule.name=constant".into()];
    let losses = losses(&plan("allreduce", workers, 1000, &exact)?, 0.0, 1)?;
    Ok(losses.into_iter().fold(f64::INFINITY, f64::min))
}

/// The mean of runs with several draws of the noise, step by step.
pub fn mean_losses(
    plan: &PreparedRun,
    std: f32,
    seeds: impl Iterator<Item = u64>,
) -> Result<Vec<f64>, ExperimentError> {
    let mut sum: Vec<f64> = Vec::new();
    let mut count = 0.0;
    for seed in seeds {
        let own = losses(plan, std, seed)?;
        sum.resize(own.len(), 0.0);
        sum.iter_mut().zip(own).for_each(|(sum, loss)| *sum += loss);
        count += 1.0;
    }
    sum.iter_mut().for_each(|sum| *sum /= count);
    Ok(sum)
}
