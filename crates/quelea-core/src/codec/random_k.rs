//! `random-k`: the same random elements at both ends, of which only the values travel.
//!
//! ```text
//! C(v)_i = v_i if i ∈ S, else 0;  S of k = max(1, ⌈share·d⌉) elements from (seed, step, bucket)
//!
//! bytes 0..4·k   v_i for i ∈ S, ascending: f32
//! ```
//!
//! All ranks draw the same `S`, so that vectors of one step can be summed. The values are not
//! rescaled: that would be unbiased, but no contraction, which error feedback needs.

use super::share::{self, kept};
use super::{Codec, CodecError, CodecProperties, CodecShape, Entry, VectorId, exact};
use crate::meta::Meta;
use crate::random::Rng;

pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "random-k",
        summary: "a random share of the elements, the same at all ranks; only values travel",
        paper: "Stich et al. 2018, Sparsified SGD with memory",
        section: "the operator rand-k of Section 2, with shared seeds and without rescaling",
        file: file!(),
        options: &[share::KEY],
    },
    wire: "4·k, k = ⌈share·d⌉",
    shape: CodecShape::Shared,
    per_element: false,
    build: |options, seed| {
        Box::new(RandomK { share: options.real("share"), mask: Mask::new(seed) })
    },
};

struct RandomK {
    share: f64,
    mask: Mask,
}

impl Codec for RandomK {
    fn bytes(&self, len: usize) -> usize {
        kept(self.share, len) * 4
    }

    fn properties(&self, len: usize) -> CodecProperties {
        let contraction = share::contraction(self.share, len);
        let lossless = kept(self.share, len) == len;
        CodecProperties { lossless, unbiased: lossless, contraction, typical: contraction }
    }

    fn encode(&mut self, at: VectorId, values: &[f32], out: &mut [u8]) -> usize {
        let out = &mut out[..kept(self.share, values.len()) * 4];
        let indices = self.mask.draw(at, kept(self.share, values.len()), values.len());
        for (out, index) in out.as_chunks_mut().0.iter_mut().zip(indices) {
            *out = values[index].to_le_bytes();
        }
        out.len()
    }

    fn decode(&mut self, at: VectorId, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        exact(ENTRY.meta.name, bytes, self.bytes(out.len()), out.len())?;
        let indices = self.mask.draw(at, kept(self.share, out.len()), out.len());
        out.fill(0.0);
        for (bytes, index) in bytes.as_chunks().0.iter().zip(indices) {
            out[index] = f32::from_le_bytes(*bytes);
        }
        Ok(())
    }
}

/// A random set of indices.
struct Mask {
    seed: u64,
    /// One bit per element.
    words: Vec<u64>,
    /// What `words` was drawn for: all vectors of one step and bucket share it.
    drawn: Option<(u64, u32, usize)>,
}

impl Mask {
    fn new(seed: u64) -> Mask {
        Mask { seed, words: Vec::new(), drawn: None }
    }

    /// `k` different indices below `len`, ascending.
    fn draw(&mut self, at: VectorId, k: usize, len: usize) -> impl Iterator<Item = usize> {
        let wanted = Some((at.step, at.bucket, len));
        if self.drawn != wanted {
            self.fill(at, k, len);
            self.drawn = wanted;
        }
        let words = self.words.iter().enumerate();
        words.flat_map(|(place, word)| ones(*word).map(move |bit| place * 64 + bit))
    }

    /// Floyd's method: every set of `k` is equally likely, after `k` draws.
    fn fill(&mut self, at: VectorId, k: usize, len: usize) {
        let of_step = Rng::new(self.seed, "random-k", at.step).next_u64();
        let mut rng = Rng::new(of_step, "bucket", at.bucket.into());
        self.words.clear();
        self.words.resize(len.div_ceil(64), 0);
        for last in len - k..len {
            let drawn = rng.below(last as u64 + 1) as usize;
            let taken = self.words[drawn / 64] >> (drawn % 64) & 1 == 1;
            let index = if taken { last } else { drawn };
            self.words[index / 64] |= 1 << (index % 64);
        }
    }
}

/// The positions of the bits that are set.
fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Rank;

    fn indices(at: VectorId, k: usize, len: usize) -> Vec<usize> {
        Mask::new(3).draw(at, k, len).collect()
    }

    #[test]
    fn indices_depend_on_step_and_bucket_but_not_on_the_rank() {
        let at = VectorId { rank: Rank(1), step: 5, bucket: 2 };
        let drawn = indices(at, 10, 1000);
        assert_eq!(drawn, indices(VectorId { rank: Rank(7), ..at }, 10, 1000));
        assert_ne!(drawn, indices(VectorId { step: 6, ..at }, 10, 1000));
        assert_ne!(drawn, indices(VectorId { bucket: 3, ..at }, 10, 1000));
    }

    #[test]
    fn every_element_is_equally_likely() {
        let (k, len, draws) = (3, 10, 20_000);
        let mut counts = vec![0.0; len];
        for step in 0..draws {
            let drawn = indices(VectorId { step, ..VectorId::default() }, k, len);
            assert!(drawn.len() == k && drawn.is_sorted_by(|a, b| a < b));
            drawn.into_iter().for_each(|index| counts[index] += 1.0);
        }
        // A deviation is about 65.
        assert!(counts.iter().all(|count: &f64| (count - 6000.0).abs() < 330.0), "{counts:?}");
    }
}
