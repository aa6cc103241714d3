//! Functions of single numbers.

use rayon::prelude::*;

use crate::tape::{PassMode, Tape, TapeValue, tensor};

mod gelu;

/// From so many numbers on, several threads are faster than one.
const WORTH_THREADS: usize = 100_000;
/// Numbers that one thread takes at a time.
const PART: usize = 16_384;

impl Tape<'_> {
    /// `max(x, 0)`.
    pub fn relu(&mut self, x: TapeValue) -> TapeValue {
        let tracked = self.tracks(&[&x]);
        let slot = x.slot();
        // Where nobody else holds it, the input is overwritten.
        let mut y = x.tensor;
        let values = y.values_mut();
        values.iter_mut().for_each(|x| *x = x.max(0.0));
        if !tracked {
            return TapeValue::untracked(y);
        }
        let kept = y.clone();
        self.record(&[], y, move |mut dy, backward| {
            let values = dy.values_mut();
            for (dy, y) in values.iter_mut().zip(kept.values()) {
                *dy = if *y > 0.0 { *dy } else { 0.0 };
            }
            backward.add(slot, dy);
        })
    }

    /// Gaussian error linear unit, in its exact form.
    pub fn gelu(&mut self, x: &TapeValue) -> TapeValue {
        let mut y = vec![0.0; x.values().len()];
        by_parts(x.values(), &mut y, gelu::forward);
        let (slot, kept) = (x.slot(), x.tensor.clone());
        self.record_if(&[x], tensor(y, x.shape()), move |mut dy, backward| {
            by_parts(kept.values(), dy.values_mut(), gelu::backward);
            backward.add(slot, dy);
        })
    }

    /// In training, sets a `share` of the numbers to 0 and enlarges the others to make up for it.
    pub fn dropout(&mut self, x: &TapeValue, share: f64) -> TapeValue {
        if self.mode != PassMode::Train || share == 0.0 {
            return x.clone();
        }
        let keep = (1.0 / (1.0 - share)) as f32;
        // 32 bits of randomness decide each number.
        let limit = (share * 2f64.powi(32)) as u64;
        let rng = &mut self.rng;
        let mut word = 0;
        let draw = |index: usize| {
            word = if index.is_multiple_of(2) { rng.next_u64() } else { word >> 32 };
            if word & 0xffff_ffff < limit { 0.0 } else { keep }
        };
        let mask: Vec<f32> = (0..x.values().len()).map(draw).collect();
        let y = x.values().iter().zip(&mask).map(|(x, keep)| x * keep).collect();
        let (slot, shape) = (x.slot(), x.shape().to_vec());
        self.record_if(&[x], tensor(y, &shape), move |mut dy, backward| {
            let values = dy.values_mut();
            values.iter_mut().zip(&mask).for_each(|(dy, keep)| *dy *= keep);
            backward.add(slot, dy);
        })
    }
}

/// Applies `of` to parts of both slices, by several threads if that pays.
fn by_parts(x: &[f32], y: &mut [f32], of: fn(&[f32], &mut [f32])) {
    if x.len() >= WORTH_THREADS {
        let parts = x.par_chunks(PART).zip(y.par_chunks_mut(PART));
        parts.for_each(|(x, y)| of(x, y));
    } else {
        of(x, y);
    }
}
