//! Batches of images as a network takes them: augmented and normalised.

use std::sync::Arc;

use quelea_core::random::Rng;

use crate::error::DataError;
use crate::images::{Crop, ImageShape, Images, Normalisation};
use crate::loader::{BatchSource, Effort};
use crate::order::SampleOrder;

/// How training images are varied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Augmentation {
    /// Each image is moved by up to so many pixels in each direction; black comes in
    /// (the same as padding it and cutting a random part).
    pub pad: usize,
    /// Every second image, at random, is mirrored left to right.
    pub flip: bool,
    /// A random part of random size is cut from images that are larger in their files.
    pub crop: bool,
}

impl Augmentation {
    /// Images as they are.
    pub const NONE: Augmentation = Augmentation { pad: 0, flip: false, crop: false };
    /// As in He et al. 2016 for CIFAR: 4 pixels, mirrored.
    pub const CIFAR: Augmentation = Augmentation { pad: 4, flip: true, crop: false };
    /// As usual for ImageNet: random parts, mirrored.
    pub const IMAGENET: Augmentation = Augmentation { pad: 0, flip: true, crop: true };
}

/// Images as numbers, and what they show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageBatch {
    /// Image after image, channel after channel, row after row.
    pub inputs: Vec<f32>,
    /// The class of each.
    pub labels: Vec<u32>,
    /// Room for one image of bytes.
    pixels: Vec<u8>,
    /// Room for the samples' numbers.
    samples: Vec<u32>,
}

/// The batches of one worker: a [`BatchSource`] for a [`crate::loader::Loader`].
#[derive(Debug)]
pub struct ImageBatches {
    images: Arc<dyn Images>,
    turn: Turn,
    batch: usize,
    scale: Vec<(f32, f32)>,
}

#[derive(Debug)]
enum Turn {
    /// Shuffled and varied, without end.
    Shuffled { order: SampleOrder, seed: u64, stream: String, augmentation: Augmentation },
    /// One after the other, once.
    InTurn(Arc<[u32]>),
}

impl ImageBatches {
    /// Batches for training: step `t` takes the samples `t·batch..(t + 1)·batch` of the worker's
    /// endless [`SampleOrder`]. The augmentation of a sample depends on seed, rank and its place in
    /// that order alone.
    pub fn shuffled(
        images: Arc<dyn Images>,
        part: Arc<[u32]>,
        batch: usize,
        seed: u64,
        rank: usize,
    ) -> ImageBatches {
        let order = SampleOrder::new(part, seed, rank);
        let stream = format!("augment.{rank}");
        let augmentation = Augmentation::NONE;
        ImageBatches::new(images, Turn::Shuffled { order, seed, stream, augmentation }, batch)
    }

    /// Batches for evaluation: the samples `part` in their order, the last batch as short as it
    /// comes, and nothing beyond.
    pub fn in_turn(images: Arc<dyn Images>, part: Arc<[u32]>, batch: usize) -> ImageBatches {
        ImageBatches::new(images, Turn::InTurn(part), batch)
    }

    fn new(images: Arc<dyn Images>, turn: Turn, batch: usize) -> ImageBatches {
        assert!(batch > 0, "a batch has at least one sample");
        let scale = scale(images.normalisation());
        ImageBatches { images, turn, batch, scale }
    }

    /// The same, varied. Batches for evaluation stay as they are.
    pub fn varied(mut self, how: Augmentation) -> ImageBatches {
        if let Turn::Shuffled { augmentation, .. } = &mut self.turn {
            *augmentation = how;
        }
        self
    }

    /// Steps after which every sample was seen: for evaluation, the number of batches.
    pub fn steps_per_epoch(&self) -> u64 {
        let samples = match &self.turn {
            Turn::Shuffled { order, .. } => order.epoch_len(),
            Turn::InTurn(part) => part.len(),
        };
        samples.div_ceil(self.batch) as u64
    }

    /// The samples of this step, into `out`, and the place of the first in the worker's order.
    fn samples(&self, step: u64, out: &mut Vec<u32>) -> u64 {
        let position = step * self.batch as u64;
        match &self.turn {
            Turn::Shuffled { order, .. } => order.read(position, self.batch, out),
            Turn::InTurn(part) => {
                let begin = position.min(part.len() as u64) as usize;
                let end = (begin + self.batch).min(part.len());
                out.clear();
                out.extend_from_slice(&part[begin..end]);
            }
        }
        position
    }
}

/// Values that are normalised in about the time in which a thread wakes.
const FEW_VALUES: usize = 8192;

impl BatchSource for ImageBatches {
    type Batch = ImageBatch;

    fn effort(&self) -> Effort {
        match self.batch * self.images.shape().len() {
            _ if self.images.is_decoded_late() => Effort::Much,
            0..=FEW_VALUES => Effort::Little,
            _ => Effort::Some,
        }
    }

    fn fill(&self, step: u64, batch: &mut ImageBatch) -> Result<(), DataError> {
        let (images, shape) = (&*self.images, self.images.shape());
        let ImageBatch { inputs, labels, pixels, samples } = batch;
        let position = self.samples(step, samples);
        // Every value is written below.
        inputs.resize(samples.len() * shape.len(), 0.0);
        pixels.resize(shape.len(), 0);
        labels.clear();
        let inputs = inputs.chunks_exact_mut(shape.len());
        for ((position, sample), out) in (position..).zip(samples.iter()).zip(inputs) {
            let index = *sample as usize;
            labels.push(images.label(index));
            let placed = match &self.turn {
                Turn::InTurn(_) => {
                    images.pixels(index, Crop::Centre, pixels)?;
                    Placed::default()
                }
                Turn::Shuffled { augmentation, .. } if *augmentation == Augmentation::NONE => {
                    images.pixels(index, Crop::Centre, pixels)?;
                    Placed::default()
                }
                Turn::Shuffled { seed, stream, augmentation, .. } => {
                    let mut rng = Rng::new(*seed, stream, position);
                    let placed = Placed::draw(*augmentation, &mut rng);
                    let crop =
                        if augmentation.crop { Crop::Random(&mut rng) } else { Crop::Centre };
                    images.pixels(index, crop, pixels)?;
                    placed
                }
            };
            placed.write(shape, &self.scale, pixels, out);
        }
        Ok(())
    }
}

/// Factor and shift of each channel, from bytes to numbers of mean 0 and deviation 1.
fn scale(normalisation: &Normalisation) -> Vec<(f32, f32)> {
    let channels = normalisation.mean.iter().zip(&normalisation.deviation);
    channels.map(|(mean, deviation)| (1.0 / (255.0 * deviation), -mean / deviation)).collect()
}

/// How an image is moved and mirrored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Placed {
    /// Which row of the image becomes the first one.
    down: isize,
    /// Which column.
    right: isize,
    flipped: bool,
}

impl Placed {
    fn draw(how: Augmentation, rng: &mut Rng) -> Placed {
        let mut shift = || match how.pad as u64 {
            0 => 0,
            pad => rng.below(2 * pad + 1) as isize - pad as isize,
        };
        let (down, right) = (shift(), shift());
        Placed { down, right, flipped: how.flip && rng.below(2) == 1 }
    }

    /// Writes the normalised image. Columns `from..to` of the output come from the image, the
    /// others are black.
    fn write(self, shape: ImageShape, scale: &[(f32, f32)], pixels: &[u8], out: &mut [f32]) {
        let width = shape.width as isize;
        let from = (-self.right).clamp(0, width) as usize;
        let to = (width - self.right).clamp(0, width) as usize;
        let plane = shape.height * shape.width;
        let planes = pixels.chunks_exact(plane).zip(out.chunks_exact_mut(plane));
        for ((pixels, out), (factor, shift)) in planes.zip(scale) {
            for (row, out) in out.chunks_exact_mut(shape.width).enumerate() {
                let source = row as isize + self.down;
                if !(0..shape.height as isize).contains(&source) || from >= to {
                    out.fill(*shift);
                    continue;
                }
                let begin = source as usize * shape.width;
                let pixels = &pixels[begin + (from as isize + self.right) as usize..][..to - from];
                out[..from].fill(*shift);
                out[to..].fill(*shift);
                for (out, pixel) in out[from..to].iter_mut().zip(pixels) {
                    *out = f32::from(*pixel) * factor + shift;
                }
                if self.flipped {
                    out.reverse();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::{InMemory, digits};

    /// Two images of 2×3 in one channel, with values 0 to 11.
    fn tiny() -> Arc<dyn Images> {
        let shape = ImageShape { channels: 1, height: 2, width: 3 };
        Arc::new(InMemory::new(shape, vec!["a".into(), "b".into()], vec![0, 1], (0..12).collect()))
    }

    fn placed(down: isize, right: isize, flipped: bool) -> Vec<f32> {
        let shape = ImageShape { channels: 1, height: 2, width: 3 };
        let mut out = vec![f32::NAN; 6];
        let placed = Placed { down, right, flipped };
        placed.write(shape, &[(1.0, 0.0)], &[1, 2, 3, 4, 5, 6], &mut out);
        out
    }

    #[test]
    fn images_are_moved_and_mirrored() {
        assert_eq!(placed(0, 0, false), [1., 2., 3., 4., 5., 6.]);
        assert_eq!(placed(0, 0, true), [3., 2., 1., 6., 5., 4.]);
        assert_eq!(placed(1, 0, false), [4., 5., 6., 0., 0., 0.]);
        assert_eq!(placed(-1, 1, false), [0., 0., 0., 2., 3., 0.]);
        assert_eq!(placed(0, -2, false), [0., 0., 1., 0., 0., 4.]);
        assert_eq!(placed(0, -2, true), [1., 0., 0., 4., 0., 0.]);
        assert_eq!(placed(0, 5, false), [0.; 6]);
        assert_eq!(placed(-7, -7, true), [0.; 6]);
    }

    #[test]
    fn all_shifts_come_about_equally_often() {
        let mut counts = [0; 9];
        let how = Augmentation { pad: 1, flip: true, crop: false };
        let mut flipped = 0;
        for position in 0..9000 {
            let placed = Placed::draw(how, &mut Rng::new(1, "augment.0", position));
            counts[(3 * (placed.down + 1) + placed.right + 1) as usize] += 1;
            flipped += usize::from(placed.flipped);
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        assert!((4300..4700).contains(&flipped), "{flipped}");
    }

    #[test]
    fn a_training_set_has_mean_0_and_deviation_1() {
        let train = digits().train;
        let all: Arc<[u32]> = (0..train.len() as u32).collect();
        let batches = ImageBatches::in_turn(Arc::clone(&train), all, 100);
        let (mut sum, mut squares, mut labels) = (0.0, 0.0, Vec::new());
        for step in 0..batches.steps_per_epoch() {
            let mut batch = ImageBatch::default();
            batches.fill(step, &mut batch).expect("in memory");
            sum += batch.inputs.iter().map(|x| f64::from(*x)).sum::<f64>();
            squares += batch.inputs.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            labels.extend(batch.labels);
        }
        let count = (train.len() * 64) as f64;
        assert!((sum / count).abs() < 1e-5 && (squares / count - 1.0).abs() < 1e-5);
        assert_eq!(labels, train.labels());
    }

    #[test]
    fn batches_depend_on_seed_rank_and_step_alone() {
        let part: Arc<[u32]> = (0..1437).collect();
        let batches = |seed, rank| {
            ImageBatches::shuffled(digits().train, Arc::clone(&part), 32, seed, rank)
                .varied(Augmentation::CIFAR)
        };
        let fill = |batches: &ImageBatches, step| {
            let mut batch = ImageBatch::default();
            batches.fill(step, &mut batch).expect("in memory");
            (batch.inputs, batch.labels)
        };
        let (first, again) = (batches(1, 0), batches(1, 0));
        // Step 44 straddles two epochs.
        let forward: Vec<_> = (0..60).map(|step| fill(&first, step)).collect();
        for step in [59, 44, 45, 0, 3] {
            assert!(fill(&again, step) == forward[step as usize], "step {step}");
        }
        assert!(fill(&batches(2, 0), 0) != forward[0]);
        assert!(fill(&batches(1, 1), 0) != forward[0]);
    }

    #[test]
    fn evaluation_ends_with_a_short_batch() {
        let batches = ImageBatches::in_turn(tiny(), [0, 1, 0].into(), 2);
        assert_eq!(batches.steps_per_epoch(), 2);
        let mut batch = ImageBatch::default();
        let lens = [0, 1, 2].map(|step| {
            batches.fill(step, &mut batch).expect("in memory");
            (batch.labels.len(), batch.inputs.len())
        });
        assert_eq!(lens, [(2, 12), (1, 6), (0, 0)]);
    }
}
