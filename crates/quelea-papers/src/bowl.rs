//! A quadratic of which everything is known that a bound speaks of: the smoothness, the noise, the
//! distance to the minimum, and the gradient at the mean of the workers' models.

use quelea_core::time::Time;
use quelea_record::{CheckpointSchedule, Models, Record};
use quelea_run::prepared::PreparedRun;
use quelea_run::trial::config;

use crate::error::ExperimentError;

/// `½ Σ c_k x_k²` with c from 0.1 to 1, the same for every worker, from x = (1, …, 1).
#[derive(Clone, Copy, Debug)]
pub struct Bowl {
    /// How many workers there are.
    pub workers: usize,
    /// Steps of each.
    pub steps: u64,
    /// Standard deviation of the noise on every entry of a gradient.
    pub noise: f64,
}

/// Length of the vector.
const DIMENSIONS: usize = 20;

/// What a run came to, as means over its steps.
#[derive(Clone, Copy, Debug, Default)]
pub struct BowlMeans {
    /// ‖∇f‖² at the mean of the workers' models.
    pub gradient: f64,
    /// Squared distance of a worker's model from that mean.
    pub distance: f64,
}

impl Bowl {
    fn curvature(k: usize) -> f64 {
        0.1 + 0.9 * k as f64 / (DIMENSIONS - 1) as f64
    }

    /// The largest curvature.
    pub fn smoothness(&self) -> f64 {
        Bowl::curvature(DIMENSIONS - 1)
    }

    /// Variance of a worker's gradient.
    pub fn variance(&self) -> f64 {
        DIMENSIONS as f64 * self.noise * self.noise
    }

    /// `f(x_0) − f(x*)`.
    pub fn height(&self) -> f64 {
        0.5 * (0..DIMENSIONS).map(Bowl::curvature).sum::<f64>()
    }

    /// What is to be run, with these settings.
    pub fn plan(&self, settings: &[String]) -> Result<PreparedRun, ExperimentError> {
        let row = |value: &dyn Fn(usize) -> f64| {
            let numbers: Vec<String> = (0..DIMENSIONS).map(|k| format!("{:?}", value(k))).collect();
            format!("[{}]", numbers.join(","))
        };
        let rows = |value: &dyn Fn(usize) -> f64| vec![row(value); self.workers].join(",");
        let shared = [
            format!("workers={}", self.workers),
            format!("steps={}", self.steps),
            "task.name=quadratic".into(),
            format!("task.curvature=[{}]", rows(&Bowl::curvature)),
            format!("task.target=[{}]", rows(&|_| 0.0)),
            format!("task.start={}", row(&|_| 1.0)),
            format!("task.noise_std={:?}", self.noise),
            "buckets.size_mb=0".into(),
            "cluster.compute_ms=1".into(),
            "cluster.threads=1".into(),
        ];
        Ok(PreparedRun::new(config(&[&shared[..], settings].concat())?)?)
    }

    /// Runs it with several seeds.
    pub fn run(
        &self,
        settings: &[String],
        seeds: impl Iterator<Item = u64>,
    ) -> Result<BowlMeans, ExperimentError> {
        let mut means = BowlMeans::default();
        let mut moments = 0.0;
        for seed in seeds {
            let plan = self.plan(&[settings, &[format!("seed={seed}")]].concat())?;
            let mut watch = BowlObserver { steps: self.steps, sum: means, moments };
            quelea_sim::simulate(
                &plan.setup.simulated(),
                &*plan.problem,
                &plan.cluster,
                &mut watch,
            )?;
            (means, moments) = (watch.sum, watch.moments);
        }
        Ok(BowlMeans { gradient: means.gradient / moments, distance: means.distance / moments })
    }
}

/// Adds up what is measured after every step.
struct BowlObserver {
    steps: u64,
    sum: BowlMeans,
    moments: f64,
}

impl quelea_sim::Observer for BowlObserver {
    fn record(&mut self, _record: Record) {}

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        CheckpointSchedule { save_every: 0, evaluations: self.steps, steps: self.steps }
    }

    fn evaluate(&mut self, _now: Time, _step: u64, models: Models) {
        let n = models.workers.len() as f64;
        for k in 0..DIMENSIONS {
            let entries = || models.workers.iter().map(|(_, model)| f64::from(model[k]));
            let mean = entries().sum::<f64>() / n;
            self.sum.gradient += (Bowl::curvature(k) * mean).powi(2);
            self.sum.distance += entries().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        }
        self.moments += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_noise_gradient_descent_on_the_bowl_is_that_of_a_closed_form() {
        let bowl = Bowl { workers: 2, steps: 30, noise: 0.0 };
        let settings = ["algorithm.name=allreduce", "optimizer.name=sgd", "optimizer.lr=0.5"];
        let means = bowl.run(&settings.map(String::from), 1..2).expect("runs");
        // x_k after t steps is (1 − c_k/2)^t.
        let after = |t: i32| -> f64 {
            let entry = |c: f64| (c * (1.0 - 0.5 * c).powi(t)).powi(2);
            (0..DIMENSIONS).map(|k| entry(Bowl::curvature(k))).sum()
        };
        let wanted = (1..=30).map(after).sum::<f64>() / 30.0;
        let late = (1..30).map(after).sum::<f64>() / 29.0;
        let ratio = means.gradient / wanted;
        assert!(
            (ratio - 1.0).abs() < 1e-4 || (means.gradient / late - 1.0).abs() < 1e-4,
            "{ratio}"
        );
        assert!(means.distance < 1e-12);
    }
}
