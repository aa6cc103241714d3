//! Layer normalisation (Ba, Kiros and Hinton 2016), over the last axis.

use crate::parameters::{Builder, Init, Param};
use crate::tape::{Tape, TapeValue, tensor};

/// Added to variances.
const EPSILON: f32 = 1e-5;

/// Normalises every row.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    scale: Param,
    shift: Param,
    width: usize,
}

impl LayerNorm {
    /// Declares `weight` with ones and `bias` with zeros.
    pub fn new(builder: &mut Builder, width: usize) -> LayerNorm {
        LayerNorm {
            scale: builder.param("weight", &[width], Init::Constant(1.0)),
            shift: builder.param("bias", &[width], Init::Constant(0.0)),
            width,
        }
    }
}

impl Tape<'_> {
    /// Normalises every row.
    pub fn layer_norm(&mut self, x: &TapeValue, norm: &LayerNorm) -> TapeValue {
        let LayerNorm { scale, shift, width } = *norm;
        let (gains, offsets) = (self.param(scale), self.param(shift));
        let mut y = Vec::with_capacity(x.values().len());
        // Of every row: x̂, and 1 / deviation.
        let mut normal = Vec::with_capacity(x.values().len());
        let mut inverses = Vec::with_capacity(x.values().len() / width);
        for row in x.values().chunks_exact(width) {
            let mean = row.iter().sum::<f32>() / width as f32;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / width as f32;
            let inverse = 1.0 / (variance + EPSILON).sqrt();
            inverses.push(inverse);
            for (x, (gain, offset)) in row.iter().zip(gains.iter().zip(offsets)) {
                let x = (x - mean) * inverse;
                normal.push(x);
                y.push(x * gain + offset);
            }
        }
        let (slot, axes) = (x.slot(), x.shape().to_vec());
        self.record(&[scale, shift], tensor(y, &axes.clone()), move |dy, backward| {
            let dy = dy.values();
            let rows = || normal.chunks_exact(width).zip(dy.chunks_exact(width));
            for (x, dy) in rows() {
                let grad = backward.param(scale).1.iter_mut();
                grad.zip(x.iter().zip(dy)).for_each(|(sum, (x, dy))| *sum += x * dy);
                let grad = backward.param(shift).1.iter_mut();
                grad.zip(dy).for_each(|(sum, dy)| *sum += dy);
            }
            let gains = backward.param(scale).0;
            let mut dx = Vec::with_capacity(dy.len());
            for ((x, dy), inverse) in rows().zip(&inverses) {
                let plain = dy.iter().zip(gains).map(|(dy, gain)| dy * gain);
                let mean = plain.clone().sum::<f32>() / width as f32;
                let weighted = plain.clone().zip(x).map(|(dy, x)| dy * x).sum::<f32>();
                let weighted = weighted / width as f32;
                dx.extend(plain.zip(x).map(|(dy, x)| inverse * (dy - mean - x * weighted)));
            }
            backward.add(slot, tensor(dx, &axes));
        })
    }
}
