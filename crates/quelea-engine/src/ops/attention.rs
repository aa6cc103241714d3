//! Scaled dot-product attention (Vaswani et al. 2017).

use crate::matrix::{Matrices, multiply_each};
use crate::tape::{Tape, TapeValue, tensor};

/// Who may look at whom.
#[derive(Clone, Debug)]
pub struct AttentionMask {
    /// Nobody looks at what comes later.
    pub causal: bool,
    /// How many keys of each element of the batch are real; the others are padding. Empty if all
    /// are.
    pub lengths: Vec<usize>,
}

impl Tape<'_> {
    /// `softmax(q · kᵀ / √width) · v`, where all are `[batch, heads, length, width]`.
    pub fn attention(&mut self, [q, k, v]: [&TapeValue; 3], mask: &AttentionMask) -> TapeValue {
        let [batch, heads, queries, width] = super::shape::dims(q);
        let keys = k.shape()[2];
        let scale = 1.0 / (width as f32).sqrt();
        let shape = Scores { heads, queries, keys };
        let by_query = Matrices::new(q.values(), queries, width);
        let by_key = Matrices::new(k.values(), keys, width);
        let scores = multiply_each(by_query, by_key.transposed());
        let weights = shape.softmax(scores, scale, mask);
        let output = shape.weigh(&weights, v.values(), width);
        let output = tensor(output, &[batch, heads, queries, width]);
        let slots = [q.slot(), k.slot(), v.slot()];
        let axes = [q, k, v].map(|value| value.shape().to_vec());
        let [kept_q, kept_k, kept_v] = [q, k, v].map(|value| value.tensor.clone());
        self.record_if(&[q, k, v], output, move |dy, backward| {
            let upstream = Matrices::new(dy.values(), queries, width);
            let matrix = Matrices::new(&weights, queries, keys);
            let dv = multiply_each(matrix.transposed(), upstream);
            backward.add(slots[2], tensor(dv, &axes[2]));
            let by_key = Matrices::new(kept_v.values(), keys, width);
            let dscores = multiply_each(upstream, by_key.transposed());
            let dscores = shape.back(&weights, dscores, scale);
            let dq = shape.weigh(&dscores, kept_k.values(), width);
            backward.add(slots[0], tensor(dq, &axes[0]));
            let dscores = Matrices::new(&dscores, queries, keys);
            let by_query = Matrices::new(kept_q.values(), queries, width);
            let dk = multiply_each(dscores.transposed(), by_query);
            backward.add(slots[1], tensor(dk, &axes[1]));
        })
    }
}

/// The shape of the scores of one attention; of each element of the batch there are as many
/// matrices as heads.
#[derive(Clone, Copy, Debug)]
struct Scores {
    heads: usize,
    queries: usize,
    keys: usize,
}

impl Scores {
    /// For each query the sum of the keys' `vectors`, weighted by its row.
    fn weigh(&self, weights: &[f32], vectors: &[f32], width: usize) -> Vec<f32> {
        let weights = Matrices::new(weights, self.queries, self.keys);
        multiply_each(weights, Matrices::new(vectors, self.keys, width))
    }

    /// The softmax of every row over the keys that it may look at; the others have weight 0.
    fn softmax(&self, mut scores: Vec<f32>, scale: f32, mask: &AttentionMask) -> Vec<f32> {
        for (index, row) in scores.chunks_exact_mut(self.keys).enumerate() {
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
        scores
    }

    /// The gradient of the scores from that of the weights, `d`:
    /// `weights · (d − Σ weights · d) · scale`.
    fn back(&self, weights: &[f32], mut d: Vec<f32>, scale: f32) -> Vec<f32> {
        let rows = weights.chunks_exact(self.keys);
        for (row, d) in rows.zip(d.chunks_exact_mut(self.keys)) {
            let mean = row.iter().zip(&*d).map(|(w, d)| w * d).sum::<f32>();
            d.iter_mut().zip(row).for_each(|(d, w)| *d = w * (*d - mean) * scale);
        }
        d
    }
}
