//! What a network trains: named tensors that lie in one flat vector, the last layer first.

use std::ops::Range;

use quelea_core::layout::Tensor;
use quelea_core::random::Rng;

/// How a tensor starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All the same.
    Constant(f32),
    /// Normal around 0.
    Normal {
        /// Standard deviation.
        deviation: f64,
    },
    /// Uniform in `[-bound, bound)`.
    Uniform {
        /// Largest magnitude.
        bound: f64,
    },
}

impl Init {
    /// He et al. 2015, for layers before a ReLU: normal with variance 2 / fan-in.
    pub fn he(fan_in: usize) -> Init {
        Init::Normal { deviation: (2.0 / fan_in as f64).sqrt() }
    }

    /// Glorot and Bengio 2010: uniform with variance 2 / (fan-in + fan-out).
    pub fn glorot(fan_in: usize, fan_out: usize) -> Init {
        Init::Uniform { bound: (6.0 / (fan_in + fan_out) as f64).sqrt() }
    }

    fn fill(self, values: &mut [f32], rng: &mut Rng) {
        match self {
            Init::Constant(value) => values.fill(value),
            Init::Normal { deviation } => {
                values.iter_mut().for_each(|x| *x = (deviation * rng.normal()) as f32);
            }
            Init::Uniform { bound } => {
                values.iter_mut().for_each(|x| *x = (bound * (2.0 * rng.uniform() - 1.0)) as f32);
            }
        }
    }
}

/// A trained tensor of a network, by the order of declaration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Param(usize);

/// A pair of statistics (mean and variance) of a batch normalisation, by the order of declaration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistic(pub(crate) usize);

struct Declared {
    tensor: Tensor,
    init: Init,
}

/// Collects the tensors of a network while it is put together, in forward order.
#[derive(Default)]
pub struct Builder {
    scope: Vec<String>,
    params: Vec<Declared>,
    statistics: Vec<(String, usize)>,
}

impl Builder {
    /// Declares a trained tensor; its name is put behind those of the scopes.
    pub fn param(&mut self, name: &str, shape: &[usize], init: Init) -> Param {
        let tensor = Tensor { name: self.full(name), shape: shape.to_vec() };
        self.params.push(Declared { tensor, init });
        Param(self.params.len() - 1)
    }

    /// Declares the running mean and variance of `channels`.
    pub fn statistic(&mut self, channels: usize) -> Statistic {
        self.statistics.push((self.scope.join("."), channels));
        Statistic(self.statistics.len() - 1)
    }

    /// What `inside` declares is named `name.…`.
    pub fn scope<T>(&mut self, name: impl ToString, inside: impl FnOnce(&mut Builder) -> T) -> T {
        self.scope.push(name.to_string());
        let made = inside(self);
        self.scope.pop();
        made
    }

    /// Lays the tensors out, the last one first.
    pub fn finish(self) -> Parameters {
        let mut end = 0;
        let mut ranges: Vec<Range<usize>> = Vec::with_capacity(self.params.len());
        for declared in self.params.iter().rev() {
            ranges.push(end..end + declared.tensor.len());
            end += declared.tensor.len();
        }
        ranges.reverse();
        Parameters { declared: self.params, ranges, statistics: self.statistics, len: end }
    }

    fn full(&self, name: &str) -> String {
        let words: Vec<&str> = self.scope.iter().map(String::as_str).chain([name]).collect();
        words.join(".")
    }
}

/// The tensors of a network and where they lie in the flat vector.
pub struct Parameters {
    declared: Vec<Declared>,
    ranges: Vec<Range<usize>>,
    statistics: Vec<(String, usize)>,
    len: usize,
}

impl Parameters {
    /// Length of the flat vector.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is trained.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where `param` lies.
    pub fn range(&self, param: Param) -> Range<usize> {
        self.ranges[param.0].clone()
    }

    /// The shape of `param`.
    pub fn shape(&self, param: Param) -> &[usize] {
        &self.declared[param.0].tensor.shape
    }

    /// The tensors as they lie: in the order in which backward passes finish them.
    pub fn tensors(&self) -> Vec<Tensor> {
        self.declared.iter().rev().map(|declared| declared.tensor.clone()).collect()
    }

    /// A start, drawn by `seed`.
    pub fn initial(&self, seed: u64) -> Vec<f32> {
        let mut values = vec![0.0; self.len];
        for (index, (declared, range)) in self.declared.iter().zip(&self.ranges).enumerate() {
            let mut rng = Rng::new(seed, "initial", index as u64);
            declared.init.fill(&mut values[range.clone()], &mut rng);
        }
        values
    }

    /// The scopes that have statistics, with their numbers of channels.
    pub fn statistics(&self) -> &[(String, usize)] {
        &self.statistics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_layer_lies_first() {
        let mut builder = Builder::default();
        let first = builder.scope("first", |b| b.param("weight", &[2, 3], Init::Constant(1.0)));
        let last = builder.scope("last", |b| b.param("weight", &[4], Init::Constant(2.0)));
        let params = builder.finish();
        assert_eq!((params.range(last), params.range(first), params.len()), (0..4, 4..10, 10));
        let names: Vec<String> = params.tensors().into_iter().map(|tensor| tensor.name).collect();
        assert_eq!(names, ["last.weight", "first.weight"]);
        assert_eq!(params.initial(1), [2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn start_has_the_variance_of_its_paper() {
        let mut builder = Builder::default();
        builder.param("he", &[200, 100], Init::he(100));
        let glorot = builder.param("glorot", &[200, 100], Init::glorot(100, 200));
        let params = builder.finish();
        let values = params.initial(7);
        let square = |v: &[f32]| v.iter().map(|x| f64::from(x * x)).sum::<f64>() / v.len() as f64;
        let (after, before) = values.split_at(params.range(glorot).end);
        assert!((square(before) * 50.0 - 1.0).abs() < 0.03);
        assert!((square(after) * 150.0 - 1.0).abs() < 0.03);
        assert_eq!(values, params.initial(7));
        assert_ne!(values, params.initial(8));
    }
}
