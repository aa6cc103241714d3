//! Workers that are slow on purpose, in a real run: `cluster.slow`, and `task.compute_ms` where a
//! task has it; for experiments.
//!
//! Buckets are ready when they would be in the virtual cluster: the forward pass takes
//! `1 − backward_share` of the time, and a bucket is final when the backward pass has come to its
//! end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quelea_core::node::Loan;
use quelea_core::options::Value;
use quelea_core::problems::{Computed, GradientSource};
use quelea_net::Gradients;

use crate::prepared::PreparedRun;

/// The gradients of a prepared run, slow where its cluster says so.
pub fn slowed(prepared: &PreparedRun) -> Gradients {
    let options = prepared.config.task.values.options.iter();
    let least =
        options.filter(|(name, _)| *name == "compute_ms").find_map(|(_, value)| match value {
            Value::Number(ms) => Some(ms / 1e3),
            _ => None,
        });
    let least = least.unwrap_or(0.0);
    let (factors, backward_share) =
        (prepared.cluster.slow.clone(), prepared.cluster.backward_share);
    let problem = Arc::clone(&prepared.problem);
    Gradients::Sources(Box::new(move |rank| {
        let source = problem.source(rank);
        let factor = factors.get(&(rank as u32)).map_or(1.0, |factor| factor.max(1.0));
        if factor > 1.0 || least > 0.0 {
            Box::new(SlowSource { source, factor, least, backward_share })
        } else {
            source
        }
    }))
}

/// A source whose gradients take longer.
struct SlowSource {
    source: Box<dyn GradientSource>,
    /// So many times as long.
    factor: f64,
    /// Seconds that a gradient takes at least, before that.
    least: f64,
    /// The share of them that is the backward pass.
    backward_share: f64,
}

impl SlowSource {
    /// Seconds that a gradient must have taken when it is final up to `end` of `len` elements.
    fn least_until(&self, end: usize, len: usize) -> f64 {
        let played_back = end as f64 / len.max(1) as f64;
        self.least * (1.0 - self.backward_share * (1.0 - played_back))
    }
}

/// How long a gradient has taken.
struct Pace {
    begun: Instant,
    slept: Duration,
}

impl Pace {
    /// Sleeps until `factor` times what was computed, or `least` seconds if that is more.
    fn keep(&mut self, factor: f64, least: f64) {
        let passed = self.begun.elapsed();
        let computed = passed.saturating_sub(self.slept).as_secs_f64();
        let due = computed.max(least) * factor;
        let rest = Duration::from_secs_f64((due - passed.as_secs_f64()).max(0.0));
        std::thread::sleep(rest);
        self.slept += rest;
    }
}

impl GradientSource for SlowSource {
    fn gradient(&mut self, loan: &mut Loan, ready: &mut dyn FnMut(usize)) -> Computed {
        let mut pace = Pace { begun: Instant::now(), slept: Duration::ZERO };
        let len = loan.len();
        let ends: Vec<usize> = loan.layout().buckets.iter().map(|b| b.range.end).collect();
        let dues: Vec<f64> = ends.iter().map(|end| self.least_until(*end, len)).collect();
        let factor = self.factor;
        let mut late = |b: usize| {
            pace.keep(factor, dues[b]);
            ready(b);
        };
        let computed = self.source.gradient(loan, &mut late);
        ends.into_iter().for_each(|end| loan.hand_over(end, &mut late));
        pace.keep(self.factor, self.least);
        computed
    }

    /// Sleeping takes as long as it takes: it must not hold up the rank's own thread.
    fn operations(&self) -> u64 {
        u64::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_due_when_the_backward_pass_has_come_to_its_end() {
        struct Nothing;
        impl GradientSource for Nothing {
            fn gradient(&mut self, _: &mut Loan, _: &mut dyn FnMut(usize)) -> Computed {
                Computed::default()
            }
            fn operations(&self) -> u64 {
                0
            }
        }
        let source: Box<dyn GradientSource> = Box::new(Nothing);
        let slow = SlowSource { source, factor: 1.0, least: 3.0, backward_share: 2.0 / 3.0 };
        let dues = [0, 50, 100].map(|end| (slow.least_until(end, 100) * 1e9).round() / 1e9);
        assert_eq!(dues, [1.0, 2.0, 3.0]);
    }
}
