//! Elements rounded at random to whole levels, and the bits that these take: what `qsgd` and
//! `tern-grad` share.

use super::{CodecError, VectorId};
use crate::random::Rng;
use crate::vector::dispatch::{Level, kernel};

/// The random stream `name` of the vector `at`, in a run with this seed.
pub fn stream(seed: u64, name: &str, at: VectorId) -> Rng {
    let of_rank = Rng::new(seed, name, at.rank.0.into()).next_u64();
    let of_step = Rng::new(of_rank, "step", at.step).next_u64();
    Rng::new(of_step, "bucket", at.bucket.into())
}

/// Writes the codes of `values`, rounded at random, in `width` bits each.
pub fn write(
    values: &[f32],
    scale: LevelScale,
    width: usize,
    lanes: &mut RandomLanes,
    out: &mut [u8],
) {
    let level = Level::best();
    for (values, out) in values.chunks(BATCH).zip(out.chunks_mut(BATCH / 8 * width)) {
        let mut codes = [0; BATCH];
        round(level, values, scale, lanes, &mut codes);
        pack(&codes, width, out);
    }
}

/// Reads codes of `width` bits; level 1 is worth `unit`. Returns the highest level that it met.
pub fn read(
    codec: &'static str,
    bytes: &[u8],
    width: usize,
    unit: f32,
    out: &mut [f32],
) -> Result<u32, CodecError> {
    let mut highest = 0;
    for (out, bytes) in out.chunks_mut(BATCH).zip(bytes.chunks(BATCH / 8 * width)) {
        let mut codes = [0; BATCH];
        unpack(bytes, width, &mut codes);
        if codes[out.len()..].iter().any(|code| *code != 0) {
            return Err(CodecError::Padding { codec });
        }
        highest = highest.max(widen(Level::best(), &codes, unit, out));
    }
    Ok(highest)
}

/// Elements that are rounded, then packed, at once; a multiple of [`LANES`] and of 8.
pub const BATCH: usize = 256;

/// Random streams side by side; element `i` draws from lane `i mod LANES`.
const LANES: usize = 16;

/// xoshiro128+ (Blackman and Vigna 2018) in every lane: the upper bits of its values are good.
pub struct RandomLanes {
    state: [[u32; LANES]; 4],
}

impl RandomLanes {
    /// Those of the vector `at`, of the stream `name` of a run with this seed.
    pub fn new(seed: u64, name: &str, at: VectorId) -> RandomLanes {
        let mut seeds = stream(seed, name, at);
        RandomLanes {
            state: std::array::from_fn(|_| std::array::from_fn(|_| seeds.next_u64() as u32)),
        }
    }

    #[inline(always)]
    fn draw(&mut self) -> [u32; LANES] {
        let [a, b, c, d] = &mut self.state;
        let mut drawn = [0; LANES];
        for k in 0..LANES {
            drawn[k] = a[k].wrapping_add(d[k]);
            let shifted = b[k] << 9;
            c[k] ^= a[k];
            d[k] ^= b[k];
            b[k] ^= c[k];
            a[k] ^= d[k];
            c[k] ^= shifted;
            d[k] = d[k].rotate_left(11);
        }
        drawn
    }
}

/// How values become levels.
#[derive(Clone, Copy)]
pub struct LevelScale {
    /// Levels of the value 1.
    pub factor: f32,
    /// The highest level.
    pub levels: f32,
}

kernel! {
    /// Writes the codes of `values`, rounded at random.
    pub fn round(values: &[f32], scale: LevelScale, lanes: &mut RandomLanes, codes: &mut [u32; BATCH]) {
        let (chunks, tail) = values.as_chunks::<LANES>();
        let (codes, _) = codes.as_chunks_mut::<LANES>();
        for (codes, chunk) in codes.iter_mut().zip(chunks) {
            *codes = round_lanes(chunk, scale, lanes.draw());
        }
        if let Some(codes) = codes.get_mut(chunks.len()) {
            let mut last = [0.0; LANES];
            last[..tail.len()].copy_from_slice(tail);
            *codes = round_lanes(&last, scale, lanes.draw());
        }
    }
}

/// 2²³: numbers from here on are whole, and their lowest bits count. Adding it rounds, which
/// vectorises where a conversion that must saturate does not.
const WHOLE: f32 = 8_388_608.0;

#[inline(always)]
fn round_lanes(
    values: &[f32; LANES],
    LevelScale { factor, levels }: LevelScale,
    draws: [u32; LANES],
) -> [u32; LANES] {
    std::array::from_fn(|k| {
        let exact = values[k].abs() * factor;
        let exact = if exact > levels { levels } else { exact };
        // What is not a number compares as false.
        let exact = if exact >= 0.0 { exact } else { 0.0 };
        let nearest = (exact + WHOLE) - WHOLE;
        let below = if nearest > exact { nearest - 1.0 } else { nearest };
        // 24 bits, because that many fit into an `f32`.
        let uniform = (draws[k] >> 8) as i32 as f32 * (1.0 / 16_777_216.0);
        let chosen = if uniform < exact - below { below + 1.0 } else { below };
        let whole = (chosen + WHOLE).to_bits() - WHOLE.to_bits();
        whole * 2 + u32::from(values[k] < 0.0)
    })
}

kernel! {
    /// Returns the highest level that it met.
    pub fn widen(codes: &[u32; BATCH], unit: f32, out: &mut [f32]) -> u32 {
        let mut highest = 0;
        for (out, code) in out.iter_mut().zip(codes) {
            let value = (code >> 1) as i32 as f32 * unit;
            *out = f32::from_bits(value.to_bits() | code << 31);
            highest = highest.max(code >> 1);
        }
        highest
    }
}

/// Eight codes of `width` bits are `width` bytes.
pub fn pack(codes: &[u32; BATCH], width: usize, mut out: &mut [u8]) {
    for codes in codes.as_chunks::<4>().0.as_chunks::<2>().0 {
        let [low, high] = codes.map(|codes| {
            let shifted = |k: usize| u64::from(codes[k]) << (k * width);
            shifted(0) | shifted(1) | shifted(2) | shifted(3)
        });
        let word = (u128::from(low) | u128::from(high) << (4 * width)).to_le_bytes();
        // A store of fixed size is faster; what is too much is written over by the next.
        match out.first_chunk_mut() {
            Some(first) => *first = word,
            None => {
                let left = out.len().min(width);
                out[..left].copy_from_slice(&word[..left]);
            }
        }
        out = out.split_at_mut_checked(width).map_or(&mut [], |(_, rest)| rest);
    }
}

/// Codes beyond the last byte are 0.
pub fn unpack(mut bytes: &[u8], width: usize, codes: &mut [u32; BATCH]) {
    let mask = (1u64 << width) - 1;
    for codes in codes.as_chunks_mut::<4>().0.as_chunks_mut::<2>().0 {
        let word = bytes.first_chunk().map_or_else(|| padded(bytes), |first| *first);
        let word = u128::from_le_bytes(word);
        for (codes, half) in codes.iter_mut().zip([word, word >> (4 * width)]) {
            *codes = std::array::from_fn(|k| (half as u64 >> (k * width) & mask) as u32);
        }
        bytes = bytes.get(width..).unwrap_or(&[]);
        if bytes.is_empty() {
            break;
        }
    }
}

fn padded(bytes: &[u8]) -> [u8; 16] {
    let mut word = [0; 16];
    word[..bytes.len()].copy_from_slice(bytes);
    word
}
