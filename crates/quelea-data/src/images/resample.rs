//! Cutting a part out of an image and bringing it to another size.

/// A part of an image, in pixels of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CropBox {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

/// An image with red, green and blue interleaved, row after row.
#[derive(Debug)]
pub(super) struct Picture {
    pub width: usize,
    pub height: usize,
    pub rgb: Vec<u8>,
}

/// Brings `part` of a picture to `side`×`side`, channel after channel. Each output pixel is a mean
/// weighted by a triangle as wide as two output pixels (two input pixels when enlarging), the same
/// filter that Pillow calls bilinear: it does not alias.
pub(super) fn resample(picture: &Picture, part: CropBox, side: usize, out: &mut [u8]) {
    let columns = weights(part.left, part.width, picture.width, side);
    let rows = weights(part.top, part.height, picture.height, side);
    let first = rows.iter().map(|taps| taps.first).min().unwrap_or(0);
    let last = rows.iter().map(|taps| taps.first + taps.weights.len()).max().unwrap_or(0);
    // First along the rows that are needed, then across them.
    let mut narrow = vec![0.0f32; (last - first) * side * 3];
    for (row, narrow) in (first..last).zip(narrow.chunks_exact_mut(side * 3)) {
        let line = &picture.rgb[row * picture.width * 3..][..picture.width * 3];
        for (taps, out) in columns.iter().zip(narrow.chunks_exact_mut(3)) {
            let pixels = line[taps.first * 3..].chunks_exact(3);
            for (weight, pixel) in taps.weights.iter().zip(pixels) {
                for channel in 0..3 {
                    out[channel] += weight * f32::from(pixel[channel]);
                }
            }
        }
    }
    let mut sums = vec![0.0f32; side * 3];
    for (y, taps) in rows.iter().enumerate() {
        sums.fill(0.5);
        let lines = narrow[(taps.first - first) * side * 3..].chunks_exact(side * 3);
        for (weight, line) in taps.weights.iter().zip(lines) {
            sums.iter_mut().zip(line).for_each(|(sum, value)| *sum += weight * value);
        }
        for (x, sum) in sums.chunks_exact(3).enumerate() {
            for channel in 0..3 {
                // The cast rounds towards 0 and stays within 0 to 255.
                out[(channel * side + y) * side + x] = sum[channel] as u8;
            }
        }
    }
}

/// Which input pixels make an output pixel, and how much of each.
struct Taps {
    first: usize,
    weights: Vec<f32>,
}

fn weights(begin: f64, len: f64, available: usize, side: usize) -> Vec<Taps> {
    let scale = len / side as f64;
    let reach = scale.max(1.0);
    let taps = |place: usize| {
        let centre = begin + (place as f64 + 0.5) * scale;
        let first = ((centre - reach + 0.5).floor().max(0.0) as usize).min(available - 1);
        let end = ((centre + reach + 0.5).floor() as usize).clamp(first + 1, available);
        let weight = |k: usize| (1.0 - ((k as f64 + 0.5 - centre) / reach).abs()).max(0.0);
        let raw: Vec<f64> = (first..end).map(weight).collect();
        let sum: f64 = raw.iter().sum();
        let weights = if sum > 0.0 {
            raw.iter().map(|weight| (weight / sum) as f32).collect()
        } else {
            vec![1.0 / raw.len() as f32; raw.len()]
        };
        Taps { first, weights }
    };
    (0..side).map(taps).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::images::decode::decode;

    #[test]
    fn pictures_are_decoded_and_resampled_as_pillow_does() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/images"));
        let expected = std::fs::read_to_string(folder.join("expected.txt")).expect("a file");
        let mut count = 0;
        for line in expected.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |place: usize| words[place].parse::<f64>().expect("a number");
            let [left, top, width, height] = [2, 3, 4, 5].map(number);
            let side = number(1) as usize;
            let mut out = vec![0; 3 * side * side];
            let picture = decode(&folder.join(words[0])).expect("good");
            resample(&picture, CropBox { left, top, width, height }, side, &mut out);
            let byte = |k: usize| u8::from_str_radix(&words[6][2 * k..2 * k + 2], 16).expect("hex");
            let far = (0..out.len()).map(|k| out[k].abs_diff(byte(k))).max();
            println!("{} to {side}: the largest difference is {far:?}", words[0]);
            // Decoders may round JPEG differently; Pillow rounds between the two directions.
            let allowed = if words[0].ends_with("jpg") { 4 } else { 1 };
            assert!(far <= Some(allowed), "{}: {far:?}", words[0]);
            count += 1;
        }
        assert_eq!(count, 12);
    }

    #[test]
    fn a_part_of_the_size_of_the_output_is_copied() {
        let rgb: Vec<u8> = (0..5 * 4 * 3).collect();
        let picture = Picture { width: 5, height: 4, rgb };
        let mut out = [0; 12];
        let part = CropBox { left: 2.0, top: 1.0, width: 2.0, height: 2.0 };
        resample(&picture, part, 2, &mut out);
        assert_eq!(out, [21, 24, 36, 39, 22, 25, 37, 40, 23, 26, 38, 41]);
    }
}
