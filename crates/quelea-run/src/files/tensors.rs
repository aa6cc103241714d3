//! `final.safetensors`: the deployed model, by layers too, and every rank's own.

use std::collections::HashMap;
use std::io::{self, Write};

use quelea_core::layout::Tensor;
pub use quelea_record::ModelSlices;
use quelea_record::Outcome;
use safetensors::tensor::{Dtype, TensorView};

/// A model as one takes it elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Export<'a> {
    /// The flat vector.
    pub model: &'a [f32],
    /// What the vector is made of, in order; empty if it is plain.
    pub layers: &'a [Tensor],
    /// What belongs to the model besides.
    pub buffers: &'a [(Tensor, Vec<f32>)],
}

type NamedTensor<'a> = (String, Vec<usize>, &'a [f32]);

impl<'a> Export<'a> {
    /// `model`, `layers.NAME` …, `buffers.NAME` ….
    fn tensors(&self) -> Vec<NamedTensor<'a>> {
        let mut tensors = vec![("model".to_string(), vec![self.model.len()], self.model)];
        let mut rest = self.model;
        for layer in self.layers {
            let Some((values, after)) = rest.split_at_checked(layer.len()) else { break };
            tensors.push((format!("layers.{}", layer.name), layer.shape.clone(), values));
            rest = after;
        }
        for (buffer, values) in self.buffers {
            tensors.push((format!("buffers.{}", buffer.name), buffer.shape.clone(), values));
        }
        tensors
    }

    /// Bytes of the numbers in the file of the model alone.
    pub fn bytes(&self) -> u64 {
        self.tensors().iter().map(|(_, _, values)| size_of_val(*values) as u64).sum()
    }

    /// Writes the model alone.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        serialize(out, self.tensors(), None)
    }
}

/// Writes a model, then `worker.0` …, `server.0` …; ranks that were lost have none.
pub fn write(out: &mut impl Write, export: &Export<'_>, outcome: &Outcome) -> io::Result<()> {
    let workers = outcome.ranks.iter().filter(|rank| !rank.is_server).count();
    let living = outcome.ranks.iter().filter(|rank| !rank.lost);
    let named = living.map(|rank| {
        let name = if rank.is_server {
            format!("server.{}", rank.rank as usize - workers)
        } else {
            format!("worker.{}", rank.rank)
        };
        (name, vec![rank.model.len()], rank.model.as_slice())
    });
    serialize(out, export.tensors().into_iter().chain(named), None)
}

/// Writes ranks' models under their names, with the deployed one where it is known, and `about` as the
/// file's metadata.
pub fn write_named(
    out: &mut impl Write,
    export: Option<&Export<'_>>,
    named: &[(String, &[f32])],
    about: HashMap<String, String>,
) -> io::Result<()> {
    let deployed = export.map(Export::tensors).unwrap_or_default();
    let ranks = named.iter().map(|(name, values)| (name.clone(), vec![values.len()], *values));
    serialize(out, deployed.into_iter().chain(ranks), Some(about))
}

fn serialize<'a>(
    out: &mut impl Write,
    tensors: impl IntoIterator<Item = NamedTensor<'a>>,
    about: Option<HashMap<String, String>>,
) -> io::Result<()> {
    let mut views: Vec<(String, TensorView<'_>)> = Vec::new();
    for (name, shape, values) in tensors {
        let view = TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(values));
        views.push((name, view.map_err(io::Error::other)?));
    }
    let bytes = safetensors::serialize(views, about).map_err(io::Error::other)?;
    out.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quelea_record::RankReport;

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
    fn tensors_can_be_read_back_and_are_the_same_bytes_twice() {
        let outcome = outcome();
        let tensor =
            |name: &str, shape: &[usize]| Tensor { name: name.into(), shape: shape.into() };
        let layers = [tensor("out.bias", &[1]), tensor("out.weight", &[1, 1])];
        let buffers = [(tensor("norm.mean", &[2]), vec![0.25, 0.5])];
        let export = Export { model: &[2.0, 3.0], layers: &layers, buffers: &buffers };
        let mut bytes = Vec::new();
        write(&mut bytes, &export, &outcome).expect("written");
        let mut again = Vec::new();
        write(&mut again, &export, &outcome).expect("written");
        assert_eq!(bytes, again);
        let read = safetensors::SafeTensors::deserialize(&bytes).expect("readable");
        let values = |name: &str| -> Vec<f32> {
            let tensor = read.tensor(name).expect("there");
            let words = tensor.data().as_chunks::<4>().0;
            words.iter().map(|word| f32::from_le_bytes(*word)).collect()
        };
        assert_eq!(values("model"), [2.0, 3.0]);
        assert_eq!(values("layers.out.bias"), [2.0]);
        assert_eq!(values("layers.out.weight"), [3.0]);
        assert_eq!(read.tensor("layers.out.weight").expect("there").shape(), [1, 1]);
        assert_eq!(values("buffers.norm.mean"), [0.25, 0.5]);
        assert_eq!(values("worker.1"), [3.0, 4.0]);
        assert_eq!(values("server.0"), [7.0]);
        assert_eq!(values("server.1"), [8.0]);
        assert_eq!(read.len(), 8);
    }
}
