//! `top-k`: the elements of largest magnitude; of equal ones those with the lower index.
//!
//! ```text
//! C(v)_i = v_i if |v_i| is among the k = max(1, ⌈share·d⌉) largest, else 0
//!
//! bytes             as `sparse.rs` has them
//! ```
//!
//! 6 bytes for each that is kept: 1.5 % of the bytes of `f32` at a share of 1 %. Above a share of
//! two thirds, `f32` is shorter.
//!
//! What is not a number counts as larger than all, an infinity as larger than every number.

use super::share::{self, kept};
use super::sparse::{self, BLOCK};
use super::{Codec, CodecError, CodecProperties, CodecShape, Entry, VectorId, exact, magnitude};
use crate::meta::Meta;
use crate::vector::dispatch::{Level, kernel};

pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "top-k",
        summary: "the share of the elements with the largest magnitudes",
        paper: "Stich et al. 2018, Sparsified SGD with memory",
        section: "the operator top-k of Section 2",
        file: file!(),
        options: &[share::KEY],
    },
    wire: "6·k + 4·⌈d/65536⌉, k = ⌈share·d⌉",
    shape: CodecShape::Own,
    per_element: false,
    build: |options, _| Box::new(TopK { share: options.real("share") }),
};

struct TopK {
    share: f64,
}

impl Codec for TopK {
    fn bytes(&self, len: usize) -> usize {
        sparse::bytes(len, kept(self.share, len))
    }

    fn properties(&self, len: usize) -> CodecProperties {
        let contraction = share::contraction(self.share, len);
        let lossless = kept(self.share, len) == len;
        // The largest of normal elements hold about four times their share.
        let typical = (4.0 * contraction).min(1.0);
        CodecProperties { lossless, unbiased: lossless, contraction, typical }
    }

    fn encode(&mut self, _: VectorId, values: &[f32], out: &mut [u8]) -> usize {
        let (level, k) = (Level::best(), kept(self.share, values.len()));
        let bytes = self.bytes(values.len());
        let (counts, rest) = out[..bytes].split_at_mut(values.len().div_ceil(BLOCK) * 4);
        let (kept_values, places) = rest.split_at_mut(k * 4);
        let (mut kept_values, mut places) =
            (kept_values.as_chunks_mut().0, places.as_chunks_mut().0);
        let mut limit = limit(values, k);
        for (block, count) in values.chunks(BLOCK).zip(counts.as_chunks_mut().0) {
            let written = pick(level, block, &mut limit, (kept_values, places));
            *count = (written as u32).to_le_bytes();
            (kept_values, places) = (&mut kept_values[written..], &mut places[written..]);
        }
        bytes
    }

    fn decode(&mut self, _: VectorId, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        exact(ENTRY.meta.name, bytes, self.bytes(out.len()), out.len())?;
        sparse::read(ENTRY.meta.name, bytes, out)
    }
}

/// What an element needs to be kept.
struct Limit {
    /// The smallest magnitude that is kept.
    magnitude: u32,
    /// How many of exactly this magnitude are.
    ties: usize,
}

/// The `k`-th largest magnitude, by its digits from the highest: three passes, no memory.
fn limit(values: &[f32], k: usize) -> Limit {
    let (mut found, mut ties) = (0, k);
    for (shift, bits) in [(20, 11), (10, 10), (0, 10)] {
        let digit = Digit { shift, bits };
        let counts = digit.count(values, found);
        let mut value = (1 << digit.bits) - 1;
        while value > 0 && counts[value] < ties {
            ties -= counts[value];
            value -= 1;
        }
        found = found << digit.bits | value as u32;
    }
    Limit { magnitude: found, ties }
}

/// Some bits of a magnitude.
#[derive(Clone, Copy)]
struct Digit {
    shift: u32,
    bits: u32,
}

impl Digit {
    /// How often each value of this digit occurs among the magnitudes with these `higher` bits.
    fn count(self, values: &[f32], higher: u32) -> [usize; 1 << 11] {
        let mask = (1 << self.bits) - 1;
        // Two tables, so that equal neighbours need not wait for each other.
        let mut tables = [[0u32; 1 << 11]; 2];
        let (pairs, last) = values.as_chunks::<2>();
        let mut count = |value: f32, table: usize| {
            let bits = magnitude(value) >> self.shift;
            if bits >> self.bits == higher {
                tables[table][(bits & mask) as usize] += 1;
            }
        };
        for [first, second] in pairs {
            count(*first, 0);
            count(*second, 1);
        }
        last.iter().for_each(|value| count(*value, 0));
        std::array::from_fn(|value| tables[0][value] as usize + tables[1][value] as usize)
    }
}

/// Where the kept elements of a block are written: values and places.
type Kept<'a> = (&'a mut [[u8; 4]], &'a mut [[u8; 2]]);

kernel! {
    /// Returns how many of the block were kept.
    fn pick(block: &[f32], limit: &mut Limit, to: Kept<'_>) -> usize {
        let (values, places) = to;
        let mut written = 0;
        for (index, chunk) in block.chunks(32).enumerate() {
            let mut hits = large(chunk, limit.magnitude + u32::from(limit.ties == 0));
            while hits != 0 {
                let place = hits.trailing_zeros() as usize;
                hits &= hits - 1;
                let value = chunk[place];
                let tie = magnitude(value) == limit.magnitude;
                if tie && limit.ties == 0 {
                    continue;
                }
                limit.ties -= usize::from(tie);
                values[written] = value.to_le_bytes();
                places[written] = ((index * 32 + place) as u16).to_le_bytes();
                written += 1;
            }
        }
        written
    }
}

/// A bit for every element that is not below the limit.
#[inline(always)]
fn large(chunk: &[f32], limit: u32) -> u32 {
    let bit = |(k, value): (usize, &f32)| u32::from(magnitude(*value) >= limit) << k;
    // The usual chunk has a known length, which makes it a few instructions.
    match <&[f32; 32]>::try_from(chunk) {
        Ok(chunk) => chunk.iter().enumerate().map(bit).fold(0, |word, bit| word | bit),
        Err(_) => chunk.iter().enumerate().map(bit).fold(0, |word, bit| word | bit),
    }
}
