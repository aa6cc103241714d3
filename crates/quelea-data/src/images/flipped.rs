//! Images with their labels in reverse order: what a worker with poisoned data trains on.

use std::sync::Arc;

use super::{Crop, ImageShape, Images, Normalisation};
use crate::error::DataError;

/// The same images; of `c` classes, label `k` is `c − 1 − k`.
#[derive(Clone, Debug)]
pub struct FlippedLabels {
    images: Arc<dyn Images>,
}

impl FlippedLabels {
    /// Of these images.
    pub fn new(images: Arc<dyn Images>) -> FlippedLabels {
        FlippedLabels { images }
    }
}

impl Images for FlippedLabels {
    fn len(&self) -> usize {
        self.images.len()
    }

    fn shape(&self) -> ImageShape {
        self.images.shape()
    }

    fn classes(&self) -> &[String] {
        self.images.classes()
    }

    fn label(&self, index: usize) -> u32 {
        self.images.classes().len() as u32 - 1 - self.images.label(index)
    }

    fn pixels(&self, index: usize, crop: Crop<'_>, out: &mut [u8]) -> Result<(), DataError> {
        self.images.pixels(index, crop, out)
    }

    fn normalisation(&self) -> &Normalisation {
        self.images.normalisation()
    }

    fn is_decoded_late(&self) -> bool {
        self.images.is_decoded_late()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_reversed_and_everything_else_stays() {
        let train = crate::images::digits().train;
        let flipped = FlippedLabels::new(Arc::clone(&train));
        assert_eq!((flipped.len(), flipped.shape()), (train.len(), train.shape()));
        for index in 0..train.len() {
            assert_eq!(flipped.label(index) + train.label(index), 9);
        }
    }
}
