//! `final.safetensors`: the deployed model and every rank's own.

use std::io::{self, Write};

use murmura_core::contract::Deploy;
use murmura_record::Outcome;
use safetensors::tensor::{Dtype, TensorView};

/// What every rank of a moment would deploy by itself, in order of rank.
#[derive(Clone, Debug, Default)]
pub struct Models<'a> {
    /// Of the living workers: whole models.
    pub workers: Vec<&'a [f32]>,
    /// Of the servers: their shards.
    pub servers: Vec<&'a [f32]>,
}

impl<'a> Models<'a> {
    /// At the end of a run.
    pub fn of(outcome: &'a Outcome) -> Models<'a> {
        let of = |is_server| {
            let living = outcome.ranks.iter().filter(|rank| !rank.lost);
            let chosen = living.filter(move |rank| rank.is_server == is_server);
            chosen.map(|rank| rank.model.as_slice()).collect()
        };
        Models { workers: of(false), servers: of(true) }
    }

    /// What one would deploy: the mean of the workers' models, summed in `f64` in order of rank,
    /// or the servers' shards one after the other.
    pub fn deployed(&self, deploy: Deploy) -> Vec<f32> {
        match deploy {
            Deploy::Workers => self.mean().iter().map(|x| *x as f32).collect(),
            Deploy::Servers => self.servers.concat(),
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

/// Writes `model`, `worker.0` …, `server.0` …; ranks that were lost have none.
pub fn write(out: &mut impl Write, model: &[f32], outcome: &Outcome) -> io::Result<()> {
    let workers = outcome.ranks.iter().filter(|rank| !rank.is_server).count();
    let living = outcome.ranks.iter().filter(|rank| !rank.lost);
    let named = living.map(|rank| {
        let name = match rank.is_server {
            false => format!("worker.{}", rank.rank),
            true => format!("server.{}", rank.rank as usize - workers),
        };
        (name, rank.model.as_slice())
    });
    let all = std::iter::once(("model".to_string(), model)).chain(named);
    let views: Vec<(String, TensorView<'_>)> = all
        .map(|(name, values)| {
            let bytes = bytemuck::cast_slice(values);
            let view = TensorView::new(Dtype::F32, vec![values.len()], bytes);
            (name, view.expect("the bytes are those of the values"))
        })
        .collect();
    let bytes = safetensors::serialize(views, None).map_err(io::Error::other)?;
    out.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use murmura_record::RankReport;

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
        let models = Models::of(&outcome);
        assert_eq!(models.deployed(Deploy::Workers), [2.0, 2.0]);
        assert_eq!(models.deployed(Deploy::Servers), [7.0, 8.0]);
        assert!((models.consensus_distance() - 5f64.sqrt()).abs() < 1e-12);
        outcome.ranks[0].lost = true;
        let models = Models::of(&outcome);
        assert_eq!(models.deployed(Deploy::Workers), [3.0, 4.0]);
        assert_eq!(models.consensus_distance(), 0.0);
    }

    #[test]
    fn tensors_can_be_read_back_and_are_the_same_bytes_twice() {
        let outcome = outcome();
        let mut bytes = Vec::new();
        write(&mut bytes, &[2.0, 2.0], &outcome).expect("written");
        let mut again = Vec::new();
        write(&mut again, &[2.0, 2.0], &outcome).expect("written");
        assert_eq!(bytes, again);
        let read = safetensors::SafeTensors::deserialize(&bytes).expect("readable");
        let values = |name: &str| -> Vec<f32> {
            let tensor = read.tensor(name).expect("there");
            let words = tensor.data().as_chunks::<4>().0;
            words.iter().map(|word| f32::from_le_bytes(*word)).collect()
        };
        assert_eq!(values("model"), [2.0, 2.0]);
        assert_eq!(values("worker.1"), [3.0, 4.0]);
        assert_eq!(values("server.0"), [7.0]);
        assert_eq!(values("server.1"), [8.0]);
        assert_eq!(read.len(), 5);
    }
}
