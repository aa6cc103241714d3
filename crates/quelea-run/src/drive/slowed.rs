//! Workers that are slow on purpose, in a real run: `cluster.slow`, and `task.compute_ms` where a
//! task has it; for experiments.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quelea_core::layout::Tensor;
use quelea_core::options::Value;
use quelea_core::problems::{Computed, Evaluation, GradientSource, Problem};

use crate::prepared::PreparedRun;

/// A problem of which some workers' gradients take so many times as long.
pub struct Slowed {
    problem: Arc<dyn Problem>,
    factors: BTreeMap<u32, f64>,
    /// Seconds that a gradient takes at least.
    least: f64,
}

impl Slowed {
    /// The problem of a prepared run, slow where its cluster says so.
    pub fn of(prepared: &PreparedRun) -> Slowed {
        let keys = prepared.config.task.values.options.iter();
        let least =
            keys.filter(|(name, _)| *name == "compute_ms").find_map(|(_, value)| match value {
                Value::Number(ms) => Some(ms / 1e3),
                _ => None,
            });
        Slowed {
            problem: Arc::clone(&prepared.problem),
            factors: prepared.cluster.slow.clone(),
            least: least.unwrap_or(0.0),
        }
    }
}

impl Problem for Slowed {
    fn dimensions(&self) -> usize {
        self.problem.dimensions()
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.problem.tensors()
    }

    fn initial(&self) -> Vec<f32> {
        self.problem.initial()
    }

    fn source(&self, rank: usize) -> Box<dyn GradientSource> {
        let source = self.problem.source(rank);
        let (factor, least) = (self.factors.get(&(rank as u32)).copied(), self.least);
        match factor.unwrap_or(1.0) {
            factor if factor > 1.0 || least > 0.0 => {
                Box::new(SlowedSource { source, factor, least })
            }
            _ => source,
        }
    }

    fn samples(&self) -> Vec<u32> {
        self.problem.samples()
    }

    fn buffers(&self, params: &[f32]) -> Vec<(Tensor, Vec<f32>)> {
        self.problem.buffers(params)
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        self.problem.evaluate(params)
    }
}

struct SlowedSource {
    source: Box<dyn GradientSource>,
    factor: f64,
    least: f64,
}

impl GradientSource for SlowedSource {
    fn gradient(&mut self, step: u64, params: &[f32], grad: &mut [f32]) -> Computed {
        let began = Instant::now();
        let computed = self.source.gradient(step, params, grad);
        let took = began.elapsed().as_secs_f64();
        let rest = took.max(self.least) * self.factor.max(1.0) - took;
        std::thread::sleep(Duration::from_secs_f64(rest));
        computed
    }

    /// Sleeping takes as long as it takes: it must not hold up the rank's own thread.
    fn operations(&self) -> u64 {
        u64::MAX
    }
}
