//! Scaled dot-product attention (Vaswani et al. 2017).

use burn_backend::ops::FloatTensorOps;
use burn_flex::{Flex, FlexTensor};

use crate::tape::{Tape, Value, tensor};

/// Who may look at whom.
#[derive(Clone, Debug)]
pub struct Mask {
    /// Nobody looks at what comes later.
    pub causal: bool,
    /// How many keys of each element of the batch are real; the others are padding. Empty if all
    /// are.
    pub lengths: Vec<usize>,
}

impl Tape<'_> {
    /// `softmax(q · kᵀ / √width) · v`, where all are `[batch, heads, length, width]`.
    pub fn attention(&mut self, [q, k, v]: [&Value; 3], mask: &Mask) -> Value {
        let [batch, heads, queries, width] = super::shape::dims(q);
        let keys = k.shape()[2];
        let scale = 1.0 / (width as f32).sqrt();
        let scores = Flex::float_matmul(q.tensor.clone(), transposed(k.tensor.clone()));
        let shape = Scores { batch, heads, queries, keys };
        let weights = tensor(shape.softmax(scores, scale, mask), &shape.axes());
        let output = Flex::float_matmul(weights.clone(), v.tensor.clone());
        let slots = [q.slot(), k.slot(), v.slot()];
        let [kept_q, kept_k, kept_v] = [q, k, v].map(|value| value.tensor.clone());
        self.record_if(&[q, k, v], output, move |dy, backward| {
            let dv = Flex::float_matmul(transposed(weights.clone()), dy.clone());
            backward.add(slots[2], dv);
            let dweights = Flex::float_matmul(dy, transposed(kept_v));
            let dscores = shape.back(&weights, &dweights, scale);
            let dscores = tensor(dscores, &shape.axes());
            backward.add(slots[0], Flex::float_matmul(dscores.clone(), kept_k));
            backward.add(slots[1], Flex::float_matmul(transposed(dscores), kept_q));
        })
    }
}

fn transposed(x: FlexTensor) -> FlexTensor {
    Flex::float_swap_dims(x, 2, 3)
}

#[derive(Clone, Copy, Debug)]
struct Scores {
    batch: usize,
    heads: usize,
    queries: usize,
    keys: usize,
}

impl Scores {
    fn axes(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.keys]
    }

    /// The softmax of every row over the keys that it may look at; the others have weight 0.
    fn softmax(&self, mut scores: FlexTensor, scale: f32, mask: &Mask) -> Vec<f32> {
        let values: &mut [f32] = scores.storage_mut();
        for (index, row) in values.chunks_exact_mut(self.keys).enumerate() {
            let query = index % self.queries;
            let real = mask.lengths.get(index / (self.heads * self.queries)).copied();
            let mut seen = real.unwrap_or(self.keys);
            if mask.causal {
                seen = seen.min(query + 1);
            }
            let (seen, hidden) = row.split_at_mut(seen.max(1));
            hidden.fill(0.0);
            let most = seen.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            seen.iter_mut().for_each(|x| *x = ((*x - most) * scale).exp());
            let sum = seen.iter().sum::<f32>();
            seen.iter_mut().for_each(|x| *x /= sum);
        }
        values.to_vec()
    }

    /// The gradient of the scores: `weights · (d − Σ weights · d) · scale`.
    fn back(&self, weights: &FlexTensor, dweights: &FlexTensor, scale: f32) -> Vec<f32> {
        let rows = weights.storage::<f32>().chunks_exact(self.keys);
        let mut dscores = Vec::with_capacity(weights.storage::<f32>().len());
        for (row, d) in rows.zip(dweights.storage::<f32>().chunks_exact(self.keys)) {
            let mean = row.iter().zip(d).map(|(w, d)| w * d).sum::<f32>();
            dscores.extend(row.iter().zip(d).map(|(w, d)| w * (d - mean) * scale));
        }
        dscores
    }
}
