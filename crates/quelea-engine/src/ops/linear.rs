//! Affine maps.

use crate::matrix::{Matrix, Onto, multiply};
use crate::parameters::{Builder, Init, Param};
use crate::tape::{Tape, TapeValue, tensor};

/// `x · weightᵀ + bias` over the last axis.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    weight: Param,
    bias: Option<Param>,
    inputs: usize,
    outputs: usize,
}

impl Linear {
    /// Declares `weight` with this start, and `bias` with zeros.
    pub fn new(builder: &mut Builder, inputs: usize, outputs: usize, init: Init) -> Linear {
        let weight = builder.param("weight", &[outputs, inputs], init);
        let bias = Some(builder.param("bias", &[outputs], Init::Constant(0.0)));
        Linear { weight, bias, inputs, outputs }
    }

    /// The map by a matrix that belongs to somebody else: an embedding, say.
    pub fn shared(weight: Param, inputs: usize, outputs: usize) -> Linear {
        Linear { weight, bias: None, inputs, outputs }
    }
}

impl Tape<'_> {
    /// Applies an affine map.
    pub fn linear(&mut self, x: &TapeValue, map: &Linear) -> TapeValue {
        let Linear { weight, bias, inputs, outputs } = *map;
        let rows = x.values().len() / inputs;
        let mut shape = x.shape().to_vec();
        assert_eq!(shape.last(), Some(&inputs), "the last axis is what the map takes");
        *shape.last_mut().expect("just seen") = outputs;
        let mut y = vec![0.0; rows * outputs];
        let onto = self.fill_with_bias(bias, &mut y, outputs);
        let weights = Matrix::new(self.param(weight), outputs, inputs);
        multiply(Matrix::new(x.values(), rows, inputs), weights.transposed(), onto, &mut y);
        let (slot, kept) = (x.slot(), x.tensor.clone());
        let input_shape = x.shape().to_vec();
        let writes: Vec<Param> = bias.into_iter().chain([weight]).collect();
        self.record(&writes, tensor(y, &shape), move |dy, backward| {
            let dy = dy.values();
            let upstream = Matrix::new(dy, rows, outputs);
            if let Some(bias) = bias {
                add_rows(dy, backward.param(bias).1);
            }
            let (values, grad) = backward.param(weight);
            let x = Matrix::new(kept.values(), rows, inputs);
            multiply(upstream.transposed(), x, Onto::Itself, grad);
            if slot.asked() {
                let mut dx = vec![0.0; rows * inputs];
                let weights = Matrix::new(values, outputs, inputs);
                multiply(upstream, weights, Onto::Nothing, &mut dx);
                backward.add(slot, tensor(dx, &input_shape));
            }
        })
    }

    fn fill_with_bias(&self, bias: Option<Param>, y: &mut [f32], outputs: usize) -> Onto {
        let Some(bias) = bias else { return Onto::Nothing };
        let bias = self.param(bias);
        y.chunks_exact_mut(outputs).for_each(|row| row.copy_from_slice(bias));
        Onto::Itself
    }
}

/// Adds every row of `matrix` to `sum`.
fn add_rows(matrix: &[f32], sum: &mut [f32]) {
    for row in matrix.chunks_exact(sum.len()) {
        sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
}
