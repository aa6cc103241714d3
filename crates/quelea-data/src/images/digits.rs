//! The embedded data set: handwritten digits of 8×8 pixels (`data/README.md` says whose).

use std::io::Read;
use std::sync::Arc;

use flate2::read::GzDecoder;
use quelea_core::random::Rng;

use super::{ImageShape, InMemory, Split};

const PACKED: &[u8] = include_bytes!("../../data/digits.csv.gz");
const SHAPE: ImageShape = ImageShape { channels: 1, height: 8, width: 8 };
/// Test images of each digit.
const TEST_PER_CLASS: usize = 36;

/// The 1,797 optical digits: 360 to test with (36 of each digit, drawn by a fixed seed), 1,437 to
/// train with. Pixels of 0 to 16 are stretched to 0 to 255.
pub fn digits() -> Split {
    let samples = parse();
    let mut is_test = vec![false; samples.len()];
    for digit in 0..10 {
        let mut places: Vec<usize> =
            (0..samples.len()).filter(|place| samples[*place].1 == digit).collect();
        Rng::new(0, "digits.test", u64::from(digit)).shuffle(&mut places);
        places[..TEST_PER_CLASS].iter().for_each(|place| is_test[*place] = true);
    }
    let part = |test: bool| {
        let chosen = samples.iter().zip(&is_test).filter(|(_, is_test)| **is_test == test);
        let (pixels, labels): (Vec<[u8; 64]>, Vec<u8>) =
            chosen.map(|((pixels, label), _)| (*pixels, *label)).unzip();
        let classes = (0..10).map(|digit| digit.to_string()).collect();
        InMemory::new(SHAPE, classes, labels, pixels.concat())
    };
    let train = part(false);
    let test = part(true).normalised_like(&train);
    Split { train: Arc::new(train), test: Arc::new(test) }
}

fn parse() -> Vec<([u8; 64], u8)> {
    let mut text = String::new();
    GzDecoder::new(PACKED).read_to_string(&mut text).expect("the embedded file is whole");
    let sample = |line: &str| {
        let mut numbers =
            line.split(',').map(|word| word.parse::<u16>().expect("the embedded file is numbers"));
        let pixels = std::array::from_fn(|_| {
            let pixel = numbers.next().expect("64 pixels a line");
            ((pixel * 255 + 8) / 16) as u8
        });
        (pixels, numbers.next().expect("a label ends the line") as u8)
    };
    text.lines().map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::{Crop, Images};

    #[test]
    fn there_are_1797_digits_with_a_balanced_test_set() {
        let Split { train, test } = digits();
        assert_eq!((train.len(), test.len()), (1437, 360));
        for digit in 0..10 {
            assert_eq!(test.labels().iter().filter(|label| **label == digit).count(), 36);
        }
        assert_eq!((train.shape(), train.classes().len()), (SHAPE, 10));
        assert_eq!(train.normalisation(), test.normalisation());
    }

    #[test]
    fn pixels_are_those_of_the_file_and_no_image_is_in_both_parts() {
        // The first line of the file is a 0 that begins 0,0,5,13,9,1,0,0.
        let (first, label) = parse()[0];
        assert_eq!((&first[..8], label), ([0, 0, 80, 207, 143, 16, 0, 0].as_slice(), 0));
        let Split { train, test } = digits();
        let all = |images: &dyn Images| -> Vec<([u8; 64], u32)> {
            let image = |index| {
                let mut out = [0; 64];
                images.pixels(index, Crop::Centre, &mut out).expect("in memory");
                (out, images.label(index))
            };
            (0..images.len()).map(image).collect()
        };
        let mut divided = [all(&*train), all(&*test)].concat();
        let mut whole: Vec<_> = parse().iter().map(|(p, label)| (*p, u32::from(*label))).collect();
        divided.sort_unstable();
        whole.sort_unstable();
        assert!(divided == whole);
    }
}
