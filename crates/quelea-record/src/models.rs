//! The models of all ranks at one moment, and what is deployed from them.

use quelea_core::properties::DeployedFrom;

use crate::Outcome;

/// What every rank of a moment would deploy by itself, in order of rank.
#[derive(Clone, Debug, Default)]
pub struct ModelSlices<'a> {
    /// Of the living workers: whole models.
    pub workers: Vec<&'a [f32]>,
    /// Of the servers: their shards.
    pub servers: Vec<&'a [f32]>,
}

impl<'a> ModelSlices<'a> {
    /// At the end of a run.
    pub fn of(outcome: &'a Outcome) -> ModelSlices<'a> {
        let of = |is_server| {
            let living = outcome.ranks.iter().filter(|rank| !rank.lost);
            let chosen = living.filter(move |rank| rank.is_server == is_server);
            chosen.map(|rank| rank.model.as_slice()).collect()
        };
        ModelSlices { workers: of(false), servers: of(true) }
    }

    /// What one would deploy: the mean of the workers' models, summed in `f64` in order of rank,
    /// or the servers' shards one after the other.
    pub fn deployed(&self, deploy: DeployedFrom) -> Vec<f32> {
        match deploy {
            DeployedFrom::Workers => self.mean().iter().map(|x| *x as f32).collect(),
            DeployedFrom::Servers => self.servers.concat(),
        }
    }

    /// How far the workers are apart: `sqrt((1/n) Σ ‖x_i − x̄‖²)`.
    pub fn consensus_distance(&self) -> f64 {
        let mean = self.mean();
        let squares = |model: &&[f32]| -> f64 {
            model.iter().zip(&mean).map(|(x, m)| (f64::from(*x) - m).powi(2)).sum()
        };
        let sum: f64 = self.workers.iter().map(squares).sum();
        (sum / self.workers.len().max(1) as f64).sqrt()
    }

    fn mean(&self) -> Vec<f64> {
        let mut sum = vec![0.0; self.workers.first().map_or(0, |model| model.len())];
        for model in &self.workers {
            for (sum, x) in sum.iter_mut().zip(*model) {
                *sum += f64::from(*x);
            }
        }
        sum.iter().map(|sum| sum / self.workers.len() as f64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RankReport;

    fn outcome() -> Outcome {
        let rank = |rank, is_server, model: &[f32]| RankReport {
            rank,
            is_server,
            model: model.to_vec(),
            ..RankReport::default()
        };
        let ranks = vec![
            rank(0, false, &[1.0, 0.0]),
            rank(1, false, &[3.0, 4.0]),
            rank(2, true, &[7.0]),
            rank(3, true, &[8.0]),
        ];
        Outcome { ranks, ..Outcome::default() }
    }

    #[test]
    fn the_deployed_model_is_the_mean_of_the_workers_or_the_servers_shards() {
        let mut outcome = outcome();
        let models = ModelSlices::of(&outcome);
        assert_eq!(models.deployed(DeployedFrom::Workers), [2.0, 2.0]);
        assert_eq!(models.deployed(DeployedFrom::Servers), [7.0, 8.0]);
        assert!((models.consensus_distance() - 5f64.sqrt()).abs() < 1e-12);
        outcome.ranks[0].lost = true;
        let models = ModelSlices::of(&outcome);
        assert_eq!(models.deployed(DeployedFrom::Workers), [3.0, 4.0]);
        assert_eq!(models.consensus_distance(), 0.0);
    }
}
