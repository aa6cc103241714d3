//! Networks, one file each.

mod attention;
mod cnn;
mod language;
mod mlp;
mod recurrent;
mod resnet;
mod resnet_bottleneck;
mod transformer;
mod vgg;

pub use cnn::cnn;
pub use language::{Language, LanguageSize, SequenceModel};
pub use mlp::mlp;
pub use recurrent::{Recurrent, RecurrentSize};
pub use resnet::{resnet18, resnet20};
pub use resnet_bottleneck::{ResNetStem, resnet50};
pub use transformer::{SentenceBatch, Transformer, TransformerSize};
pub use vgg::{VggHead, vgg16};

use crate::parameters::{Builder, Parameters};
use crate::tape::{Tape, TapeValue};

/// A network that gives images a score for each class.
pub trait Classifier: Send + Sync {
    /// The scores of `images`, which are `[number, channels, height, width]`.
    fn scores(&self, tape: &mut Tape<'_>, images: TapeValue) -> TapeValue;
}

/// A classifier with what it trains.
pub struct ImageModel {
    /// The network.
    pub network: Box<dyn Classifier>,
    /// What it trains.
    pub parameters: Parameters,
}

impl ImageModel {
    fn build<N: Classifier + 'static>(declare: impl FnOnce(&mut Builder) -> N) -> ImageModel {
        let mut builder = Builder::default();
        let network = Box::new(declare(&mut builder));
        ImageModel { network, parameters: builder.finish() }
    }
}

/// Images: how large and of how many kinds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageSpec {
    /// Colours.
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Kinds.
    pub classes: usize,
}

#[cfg(test)]
mod final_tests;
#[cfg(test)]
mod reference_tests;
#[cfg(test)]
mod tests;
