//! A small convolutional network for small grey images.

use super::{Classifier, ImageModel, ImageSpec};
use crate::ops::{Conv, Linear};
use crate::parameters::Init;
use crate::tape::{Tape, TapeValue};

struct Cnn {
    convolutions: [Conv; 2],
    hidden: Linear,
    output: Linear,
}

const HIDDEN: usize = 128;

/// Two convolutions (3×3; 32 and 64 channels), each with ReLU and 2×2 max pooling, then a hidden
/// layer of 128.
pub fn cnn(images: ImageSpec) -> ImageModel {
    let flat = 64 * (images.height / 4) * (images.width / 4);
    ImageModel::build(|builder| Cnn {
        convolutions: [("conv1", images.channels, 32), ("conv2", 32, 64)]
            .map(|(name, from, to)| builder.scope(name, |b| Conv::new(b, from, to, 3).biased(b))),
        hidden: builder.scope("fc1", |b| Linear::new(b, flat, HIDDEN, Init::he(flat))),
        output: builder.scope("fc2", |b| Linear::new(b, HIDDEN, images.classes, Init::he(HIDDEN))),
    })
}

impl Classifier for Cnn {
    fn scores(&self, tape: &mut Tape<'_>, images: TapeValue) -> TapeValue {
        let mut x = images;
        for conv in &self.convolutions {
            let sums = tape.conv(&x, conv);
            // Pooling before ReLU: the same result, with a quarter of the work.
            let pooled = tape.max_pool(&sums, 2, 2, 0);
            x = tape.relu(pooled);
        }
        let number = x.shape()[0];
        let flat = tape.reshape(&x, &[number, x.values().len() / number]);
        let sums = tape.linear(&flat, &self.hidden);
        let hidden = tape.relu(sums);
        tape.linear(&hidden, &self.output)
    }
}
