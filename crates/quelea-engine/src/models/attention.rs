//! The parts that Transformers are made of.

use crate::ops::{AttentionMask, Linear};
use crate::parameters::{Builder, Init};
use crate::tape::{Tape, TapeValue};

/// Attention by several heads (Vaswani et al. 2017).
#[derive(Clone, Copy, Debug)]
pub(super) struct MultiHead {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    heads: usize,
}

impl MultiHead {
    /// Declares four square maps; `start` says how each begins, given whether it is the last.
    pub(super) fn new(
        builder: &mut Builder,
        width: usize,
        heads: usize,
        start: impl Fn(bool) -> Init,
    ) -> MultiHead {
        let mut map =
            |name: &str, last| builder.scope(name, |b| Linear::new(b, width, width, start(last)));
        MultiHead {
            query: map("query", false),
            key: map("key", false),
            value: map("value", false),
            output: map("output", true),
            heads,
        }
    }

    /// What `from` finds in `to`; both are `[batch, length, width]`.
    pub(super) fn apply(
        &self,
        tape: &mut Tape<'_>,
        from: &TapeValue,
        to: &TapeValue,
        mask: &AttentionMask,
    ) -> TapeValue {
        let shape = from.shape().to_vec();
        let query = self.split(tape, from, &self.query);
        let key = self.split(tape, to, &self.key);
        let value = self.split(tape, to, &self.value);
        let found = tape.attention([&query, &key, &value], mask);
        let found = tape.permute(&found, &[0, 2, 1, 3]);
        let found = tape.reshape(&found, &shape);
        tape.linear(&found, &self.output)
    }

    /// `[batch, heads, length, width / heads]`.
    fn split(&self, tape: &mut Tape<'_>, x: &TapeValue, map: &Linear) -> TapeValue {
        let [batch, length, width] = x.shape().try_into().expect("batch, length, width");
        let mapped = tape.linear(x, map);
        let heads = tape.reshape(&mapped, &[batch, length, self.heads, width / self.heads]);
        tape.permute(&heads, &[0, 2, 1, 3])
    }
}

/// Sines and cosines of the positions: `[length, width]` (Vaswani et al. 2017).
pub(super) fn sinusoids(length: usize, width: usize) -> Vec<f32> {
    let number = |position: usize, place: usize| {
        let rate = 10_000f64.powf(-((place / 2 * 2) as f64) / width as f64);
        let angle = position as f64 * rate;
        (if place.is_multiple_of(2) { angle.sin() } else { angle.cos() }) as f32
    };
    (0..length).flat_map(|position| (0..width).map(move |place| number(position, place))).collect()
}
