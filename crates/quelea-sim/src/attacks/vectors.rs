//! What attackers that know the honest vectors of a round make of them.

use std::collections::BTreeMap;

use quelea_core::message::Rank;
use quelea_core::random::Rng;

/// The honest vectors of one round, by rank.
pub(super) struct HonestRound<'a> {
    pub(super) vectors: BTreeMap<u32, &'a [f32]>,
}

impl HonestRound<'_> {
    fn mean(&self) -> Option<Vec<f64>> {
        let first = self.vectors.values().next()?;
        let mut mean = vec![0.0; first.len()];
        self.add(&mut mean, |_| 1.0 / self.vectors.len() as f64);
        Some(mean)
    }

    /// `sum ← sum + Σ_j weight(j)·x_j`, in the order of ranks.
    fn add(&self, sum: &mut [f64], weight: impl Fn(u32) -> f64) {
        for (rank, vector) in &self.vectors {
            let weight = weight(*rank);
            sum.iter_mut().zip(*vector).for_each(|(sum, x)| *sum += weight * f64::from(*x));
        }
    }

    /// `scale` times the mean.
    pub(super) fn scaled_mean(&self, scale: f64) -> Option<Vec<f32>> {
        Some(self.mean()?.into_iter().map(|x| (scale * x) as f32).collect())
    }

    /// The mean plus `strength` standard deviations of every coordinate (with n − 1).
    pub(super) fn deviated(&self, strength: f64) -> Option<Vec<f32>> {
        let mean = self.mean()?;
        let freedom = (self.vectors.len() - 1).max(1) as f64;
        let value = |(k, mean): (usize, &f64)| {
            let squares = self.vectors.values().map(|x| (f64::from(x[k]) - mean).powi(2));
            (mean + strength * (squares.sum::<f64>() / freedom).sqrt()) as f32
        };
        Some(mean.iter().enumerate().map(value).collect())
    }

    /// The vector of the first worker.
    pub(super) fn first(&self) -> Option<Vec<f32>> {
        self.vectors.values().next().map(|vector| vector.to_vec())
    }

    /// `x_i − strength·Σ_j W_ij (x_j − x_i) / b` for the receiver `i`, over its honest neighbours, where
    /// `b` is the weight of the others: with strength 1 the attackers undo what the honest ones do.
    pub(super) fn dissensus(
        &self,
        to: u32,
        weights: &[(Rank, f32)],
        strength: f64,
    ) -> Option<Vec<f32>> {
        let own = self.vectors.get(&to)?;
        let others = || weights.iter().filter(|(rank, _)| rank.0 != to);
        let honest = || others().filter(|(rank, _)| self.vectors.contains_key(&rank.0));
        let bad = others().filter(|(rank, _)| !self.vectors.contains_key(&rank.0));
        let bad: f64 = bad.map(|(_, weight)| f64::from(*weight)).sum();
        let mut pull = vec![0.0; own.len()];
        for (rank, weight) in honest() {
            let terms = pull.iter_mut().zip(self.vectors[&rank.0].iter().zip(*own));
            terms.for_each(|(sum, (x, own))| *sum += f64::from(*weight) * f64::from(x - own));
        }
        let value = |(own, pull): (&f32, f64)| (f64::from(*own) - strength * pull / bad) as f32;
        Some(own.iter().zip(pull).map(value).collect())
    }

    /// `x_i + strength·v_i·Σ_j v_j x_j` for the receiver `i`, where `v` is the Fiedler vector of the
    /// honest graph: its second slowest mode, of length 1.
    pub(super) fn spectral(
        &self,
        to: u32,
        weights: impl Fn(u32) -> Vec<(Rank, f32)>,
        strength: f64,
    ) -> Option<Vec<f32>> {
        let own = self.vectors.get(&to)?;
        let ranks: Vec<u32> = self.vectors.keys().copied().collect();
        let mode = fiedler(&laplacian(&ranks, weights));
        let place = |rank: u32| ranks.binary_search(&rank).expect("one of them");
        let mut along = vec![0.0; own.len()];
        self.add(&mut along, |rank| mode[place(rank)]);
        let factor = strength * mode[place(to)];
        let value = |(own, along): (&f32, f64)| (f64::from(*own) + factor * along) as f32;
        Some(own.iter().zip(along).map(value).collect())
    }
}

/// Normal noise, a function of the arguments alone.
pub(super) fn noise(seed: u64, name: &str, step: u64, deviation: f64, len: usize) -> Vec<f32> {
    let mut rng = Rng::new(seed, name, step);
    (0..len).map(|_| (deviation * rng.normal()) as f32).collect()
}

/// The Laplacian of the graph between `ranks`, row by row; weights are taken as they are given to the
/// receiver.
fn laplacian(ranks: &[u32], weights: impl Fn(u32) -> Vec<(Rank, f32)>) -> Vec<Vec<f64>> {
    let row = |(i, rank): (usize, &u32)| {
        let mut row = vec![0.0; ranks.len()];
        for (from, weight) in weights(*rank) {
            if let Ok(j) = ranks.binary_search(&from.0)
                && j != i
            {
                row[j] -= f64::from(weight);
                row[i] += f64::from(weight);
            }
        }
        row
    };
    ranks.iter().enumerate().map(row).collect()
}

/// Steps of the power method: enough for graphs of the size of a cluster, and always the same.
const POWER_STEPS: usize = 2000;

/// The eigenvector of the second smallest eigenvalue, of length 1: the power method on `c − L`, without
/// the constant vector.
fn fiedler(laplacian: &[Vec<f64>]) -> Vec<f64> {
    let n = laplacian.len();
    let most = (0..n).map(|i| laplacian[i][i]).fold(0.0, f64::max);
    // Any start that is not orthogonal to the result; this one has no symmetry of a usual graph.
    let mut mode: Vec<f64> = (0..n).map(|i| ((i + 1) as f64).sqrt().sin() + i as f64).collect();
    for _ in 0..POWER_STEPS {
        let next = (0..n).map(|i| {
            let product: f64 = laplacian[i].iter().zip(&mode).map(|(l, x)| l * x).sum();
            2.0 * most * mode[i] - product
        });
        let mut next: Vec<f64> = next.collect();
        let mean = next.iter().sum::<f64>() / n as f64;
        next.iter_mut().for_each(|x| *x -= mean);
        let length = next.iter().map(|x| x * x).sum::<f64>().sqrt();
        if length == 0.0 {
            return vec![0.0; n];
        }
        next.iter_mut().for_each(|x| *x /= length);
        mode = next;
    }
    mode
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: [[f32; 2]; 3] = [[1.0, 0.0], [2.0, 4.0], [6.0, 2.0]];

    fn round() -> HonestRound<'static> {
        HonestRound { vectors: (0..3).map(|rank| (rank, &X[rank as usize][..])).collect() }
    }

    fn assert_near(found: Option<Vec<f32>>, expected: [f64; 2]) {
        for (found, expected) in found.expect("known").into_iter().zip(expected) {
            assert!((f64::from(found) - expected).abs() < 1e-5, "{found} {expected}");
        }
    }

    #[test]
    fn colluding_attacks_are_their_formulas() {
        assert_near(round().scaled_mean(-2.0), [-6.0, -4.0]);
        assert_near(round().first(), [1.0, 0.0]);
        // Deviations √(14/2) and √(8/2).
        assert_near(round().deviated(1.5), [3.0 + 1.5 * 7f64.sqrt(), 5.0]);
    }

    /// With strength 1, mixing over honest and bad neighbours leaves the receiver where it is.
    #[test]
    fn dissensus_of_strength_one_undoes_the_honest_neighbours() {
        let weights = [(0, 0.2), (1, 0.3), (2, 0.1), (3, 0.25), (4, 0.15)];
        let weights = weights.map(|(rank, weight)| (Rank(rank), weight));
        let sent = round().dissensus(1, &weights, 1.0).expect("known");
        for k in 0..2 {
            let own = X[1][k];
            let honest = 0.2 * (X[0][k] - own) + 0.1 * (X[2][k] - own);
            let bad = 0.4 * (sent[k] - own);
            assert!((honest + bad).abs() < 1e-6, "{honest} {bad}");
        }
    }

    /// On a path of three the slowest mode is (1, 0, −1)/√2.
    #[test]
    fn the_spectral_attack_pushes_along_the_slowest_mode() {
        let path = |rank: u32| match rank {
            0 => vec![(Rank(0), 0.7), (Rank(1), 0.3)],
            1 => vec![(Rank(0), 0.3), (Rank(1), 0.4), (Rank(2), 0.3)],
            _ => vec![(Rank(1), 0.3), (Rank(2), 0.7)],
        };
        // v_0·Σ_j v_j x_j = (x_0 − x_2)/2.
        assert_near(round().spectral(0, path, 2.0), [1.0 - 5.0, 0.0 - 2.0]);
        assert_near(round().spectral(1, path, 2.0), [2.0, 4.0]);
        assert_near(round().spectral(2, path, 2.0), [6.0 + 5.0, 2.0 + 2.0]);
    }

    #[test]
    fn noise_has_its_deviation_and_repeats() {
        let noise = |step| noise(1, "attack", step, 3.0, 20_000);
        let square = noise(0).iter().map(|x| f64::from(x * x)).sum::<f64>() / 20_000.0;
        assert!((square.sqrt() - 3.0).abs() < 0.05, "{square}");
        assert_eq!(noise(4), noise(4));
        assert_ne!(noise(4), noise(5));
    }
}
