//! Labelled images, in memory or decoded when they are needed.

mod cifar;
mod decode;
mod digits;
mod flipped;
mod folder;
mod idx;
mod memory;
mod resample;

use std::fmt::Debug;
use std::sync::Arc;

use quelea_core::random::Rng;

pub use cifar::cifar10;
pub(crate) use cifar::read_batch;
pub use digits::digits;
pub use flipped::FlippedLabels;
pub(crate) use folder::show;
pub use folder::{FolderOptions, folder};
pub use idx::idx;
pub use memory::InMemory;

use crate::error::DataError;

/// What every set of labelled images can tell. One copy serves all workers of a process.
pub trait Images: Debug + Send + Sync {
    /// How many images there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of every image that [`Images::pixels`] gives.
    fn shape(&self) -> ImageShape;

    /// The names of the classes; labels are places in this list.
    fn classes(&self) -> &[String];

    /// The class of an image.
    fn label(&self, index: usize) -> u32;

    /// Writes an image into `out`: channel after channel, row after row.
    fn pixels(&self, index: usize, crop: Crop<'_>, out: &mut [u8]) -> Result<(), DataError>;

    /// What makes the training images' mean 0 and their standard deviation 1.
    fn normalisation(&self) -> &Normalisation;

    /// Whether an image costs much more than copying it, so that more threads help.
    fn is_decoded_late(&self) -> bool {
        false
    }

    /// All labels, for dividing the images among workers.
    fn labels(&self) -> Vec<u32> {
        (0..self.len()).map(|index| self.label(index)).collect()
    }
}

/// The size of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// 1 for grey, 3 for red, green, blue.
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl ImageShape {
    /// Values of an image.
    pub fn len(self) -> usize {
        self.channels * self.height * self.width
    }

    /// Whether an image has no values.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// Which part of an image is wanted, where the files hold larger ones.
#[derive(Debug)]
pub enum Crop<'a> {
    /// The middle, for evaluation.
    Centre,
    /// A random part of random size, for training.
    Random(&'a mut Rng),
}

/// Mean and standard deviation of each channel, with pixels from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalisation {
    /// Of each channel.
    pub mean: Vec<f32>,
    /// Of each channel.
    pub deviation: Vec<f32>,
}

/// Images for training and others for testing, with the same shape and the same classes.
#[derive(Clone, Debug)]
pub struct Split {
    /// To learn from.
    pub train: Arc<dyn Images>,
    /// To measure with.
    pub test: Arc<dyn Images>,
}
