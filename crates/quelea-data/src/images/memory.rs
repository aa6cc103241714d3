//! Images that are held in memory as they are in their files: a byte a value.

use super::{Crop, ImageShape, Images, Normalisation};
use crate::error::DataError;

/// A set of images in memory.
#[derive(Clone)]
pub struct InMemory {
    shape: ImageShape,
    classes: Vec<String>,
    labels: Vec<u8>,
    /// Image after image.
    pixels: Vec<u8>,
    normalisation: Normalisation,
}

impl InMemory {
    /// Images one after the other, with as many labels, all of which name a class.
    pub fn new(
        shape: ImageShape,
        classes: Vec<String>,
        labels: Vec<u8>,
        pixels: Vec<u8>,
    ) -> InMemory {
        assert_eq!(labels.len() * shape.len(), pixels.len(), "as many labels as images");
        assert!(
            labels.iter().all(|label| usize::from(*label) < classes.len()),
            "labels of classes"
        );
        let normalisation = measure(shape, &pixels);
        InMemory { shape, classes, labels, pixels, normalisation }
    }

    /// Takes over the normalisation of the images that were trained with.
    pub fn normalised_like(mut self, train: &InMemory) -> InMemory {
        self.normalisation = train.normalisation.clone();
        self
    }
}

impl Images for InMemory {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn shape(&self) -> ImageShape {
        self.shape
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> u32 {
        u32::from(self.labels[index])
    }

    fn pixels(&self, index: usize, _: Crop<'_>, out: &mut [u8]) -> Result<(), DataError> {
        let len = self.shape.len();
        out.copy_from_slice(&self.pixels[index * len..][..len]);
        Ok(())
    }

    fn normalisation(&self) -> &Normalisation {
        &self.normalisation
    }
}

impl std::fmt::Debug for InMemory {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ImageShape { channels, height, width } = self.shape;
        write!(out, "{} images of {channels}×{height}×{width} in memory", self.labels.len())
    }
}

/// Mean and deviation of each channel. The sums are of whole numbers, so their order is no matter.
fn measure(shape: ImageShape, pixels: &[u8]) -> Normalisation {
    let plane = shape.height * shape.width;
    let mut sums = vec![(0u64, 0u64); shape.channels];
    for (place, pixels) in pixels.chunks_exact(plane.max(1)).enumerate() {
        let (sum, squares) = &mut sums[place % shape.channels];
        *sum += pixels.iter().map(|pixel| u64::from(*pixel)).sum::<u64>();
        *squares += pixels.iter().map(|pixel| u64::from(*pixel).pow(2)).sum::<u64>();
    }
    let count = (pixels.len() / shape.channels.max(1)).max(1) as f64;
    let of = |(sum, squares): &(u64, u64)| {
        let mean = *sum as f64 / count;
        let deviation = (*squares as f64 / count - mean * mean).max(0.0).sqrt();
        // A channel of one colour is only shifted.
        (mean / 255.0, if deviation > 0.0 { deviation / 255.0 } else { 1.0 })
    };
    Normalisation {
        mean: sums.iter().map(|sums| of(sums).0 as f32).collect(),
        deviation: sums.iter().map(|sums| of(sums).1 as f32).collect(),
    }
}
