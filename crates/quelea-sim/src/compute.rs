//! How long a gradient takes, and when its buckets are ready.

use quelea_core::layout::Layout;
use quelea_core::random::Rng;
use quelea_core::time::Time;

use crate::cluster::Cluster;

/// The compute model of all workers.
#[derive(Debug)]
pub(crate) struct ComputeModel {
    base_ns: f64,
    cv: f64,
    backward_share: f64,
    /// By rank; 1 for ordinary workers.
    slow: Vec<f64>,
    seed: u64,
}

impl ComputeModel {
    pub(crate) fn new(cluster: &Cluster, seed: u64, workers: usize) -> ComputeModel {
        let factor = |rank| cluster.slow.get(&rank).copied().unwrap_or(1.0);
        ComputeModel {
            base_ns: cluster.compute_ms * 1e6,
            cv: cluster.compute_cv,
            backward_share: cluster.backward_share,
            slow: (0..workers as u32).map(factor).collect(),
            seed,
        }
    }

    /// The pass that computes gradient `step` of the worker `rank`, begun at `start`.
    pub(crate) fn pass(&self, start: Time, rank: u32, step: u64) -> ComputePass {
        let variation = if self.cv > 0.0 { self.variation(rank, step) } else { 1.0 };
        let total = self.base_ns * self.slow[rank as usize] * variation;
        let backward = (total * self.backward_share).round() as u64;
        ComputePass { start, total: Time(total.round() as u64), backward: Time(backward) }
    }

    /// Log-normal with mean 1: a function of seed, rank and step, so that it does not depend on
    /// what other workers do.
    fn variation(&self, rank: u32, step: u64) -> f64 {
        let variance = (self.cv * self.cv).ln_1p();
        let mut rng = Rng::new(self.seed, "compute", u64::from(rank) << 40 | step);
        (variance.sqrt() * rng.normal() - variance / 2.0).exp()
    }
}

/// One forward and backward pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ComputePass {
    pub(crate) start: Time,
    pub(crate) total: Time,
    backward: Time,
}

impl ComputePass {
    /// When bucket `b` is ready: in proportion to the elements up to and including it; the last
    /// one exactly at the end.
    pub(crate) fn ready(&self, layout: &Layout, b: usize) -> Time {
        let len = layout.len().max(1) as u128;
        let after = layout.len() - layout.range(b).end;
        let remaining = (u128::from(self.backward.0) * after as u128).div_ceil(len);
        self.start + self.total - Time((remaining as u64).min(self.total.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_ready_in_proportion_to_their_size_and_the_last_at_the_end() {
        let cluster = Cluster { compute_ms: 100.0, backward_share: 0.6, ..Cluster::default() };
        let pass = ComputeModel::new(&cluster, 1, 1).pass(Time::from_ms(5.0), 0, 0);
        let layout = Layout::plain(10, 16);
        let ready: Vec<f64> = (0..3).map(|b| pass.ready(&layout, b).seconds() * 1e3).collect();
        assert_eq!(ready, [5.0 + 40.0 + 24.0, 5.0 + 40.0 + 48.0, 105.0]);
    }

    #[test]
    fn variation_has_mean_one_and_the_given_coefficient() {
        let cluster = Cluster { compute_ms: 1.0, compute_cv: 0.25, ..Cluster::default() };
        let model = ComputeModel::new(&cluster, 7, 4);
        let n = 50_000;
        let draw = |step| model.pass(Time::ZERO, 3, step).total.seconds() * 1e3;
        let mean = (0..n).map(draw).sum::<f64>() / n as f64;
        let square = (0..n).map(|step| draw(step).powi(2)).sum::<f64>() / n as f64;
        assert!((mean - 1.0).abs() < 0.005, "{mean}");
        assert!(((square - mean * mean).sqrt() / mean - 0.25).abs() < 0.005);
    }

    #[test]
    fn a_slow_worker_takes_its_multiple() {
        let slow = [(1, 10.0)].into();
        let model = ComputeModel::new(&Cluster { slow, ..Cluster::default() }, 1, 2);
        assert_eq!(model.pass(Time::ZERO, 0, 0).total, Time::from_ms(100.0));
        assert_eq!(model.pass(Time::ZERO, 1, 0).total, Time::from_ms(1000.0));
    }
}
