//! How codecs that keep `k` of `d` elements write them down.
//!
//! ```text
//! u32 × ⌈d/65536⌉   how many are kept of each block of 65536 elements
//! f32 × k           their values, by index
//! u16 × k           their places within their blocks, ascending
//! ```

use super::CodecError;

/// Elements whose place fits into 16 bits.
pub const BLOCK: usize = 1 << 16;

/// The bytes of `kept` elements of `len`.
pub fn bytes(len: usize, kept: usize) -> usize {
    len.div_ceil(BLOCK) * 4 + kept * 6
}

/// Writes the elements `chosen`, by ascending index, of a vector of `len`; `out` is as long as
/// [`bytes`] says.
pub fn write(len: usize, chosen: &[(usize, f32)], out: &mut [u8]) {
    let (counts, rest) = out.split_at_mut(len.div_ceil(BLOCK) * 4);
    let (values, places) = rest.split_at_mut(chosen.len() * 4);
    let mut left = chosen;
    for (block, count) in counts.as_chunks_mut().0.iter_mut().enumerate() {
        let here = left.partition_point(|(index, _)| *index < (block + 1) * BLOCK);
        *count = (here as u32).to_le_bytes();
        left = &left[here..];
    }
    for ((index, value), out) in chosen.iter().zip(values.as_chunks_mut().0) {
        debug_assert!(*index < len);
        *out = value.to_le_bytes();
    }
    for ((index, _), out) in chosen.iter().zip(places.as_chunks_mut().0) {
        *out = ((index % BLOCK) as u16).to_le_bytes();
    }
}

/// Reads what was written for a vector as long as `out`; elements that were not kept are 0.
/// The caller has checked the number of bytes.
pub fn read(codec: &'static str, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
    let (counts, rest) = bytes.split_at(out.len().div_ceil(BLOCK) * 4);
    let k = rest.len() / 6;
    let (mut values, mut places) = (&rest[..k * 4], &rest[k * 4..]);
    let counts = counts.as_chunks().0.iter().map(|count| u32::from_le_bytes(*count) as usize);
    for (index, (block, count)) in out.chunks_mut(BLOCK).zip(counts).enumerate() {
        let left = places.len() / 2;
        if count > left {
            return Err(number(codec, "the count of a block", count, format!("at most {left}")));
        }
        let (first, others) = values.split_at(count * 4);
        let (first_places, other_places) = places.split_at(count * 2);
        put(codec, index * BLOCK, block, first.as_chunks().0, first_places.as_chunks().0)?;
        (values, places) = (others, other_places);
    }
    match places.len() / 2 {
        0 => Ok(()),
        left => Err(number(codec, "the sum of the counts", k - left, k.to_string())),
    }
}

fn number(codec: &'static str, what: &'static str, given: usize, allowed: String) -> CodecError {
    CodecError::Number { codec, what, given: given as f64, allowed }
}

/// Writes one block, which begins at element `start`.
fn put(
    codec: &'static str,
    start: usize,
    block: &mut [f32],
    values: &[[u8; 4]],
    places: &[[u8; 2]],
) -> Result<(), CodecError> {
    block.fill(0.0);
    let mut next = 0;
    for (value, place) in values.iter().zip(places) {
        let place = usize::from(u16::from_le_bytes(*place));
        if place < next {
            let (index, before) = (start + place, start + next - 1);
            return Err(CodecError::Order { codec, index, before });
        }
        let Some(out) = block.get_mut(place) else {
            let allowed = format!("below {}", start + block.len());
            return Err(number(codec, "an index", start + place, allowed));
        };
        *out = f32::from_le_bytes(*value);
        next = place + 1;
    }
    Ok(())
}
