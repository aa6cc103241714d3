//! VGG-16 (Simonyan and Zisserman 2015) with batch normalisation.

use super::{Classifier, ImageModel};
use crate::ops::{BatchNorm, Conv, Linear, Then};
use crate::parameters::Init;
use crate::tape::{Tape, TapeValue};

/// Channels of the convolutions between one pooling and the next.
const STAGES: [&[usize]; 5] =
    [&[64, 64], &[128, 128], &[256, 256, 256], &[512, 512, 512], &[512, 512, 512]];

/// What comes after the convolutions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum VggHead {
    /// One layer, for 32×32 images.
    Cifar,
    /// Two hidden layers of 4096 with dropout, for 224×224 images.
    ImageNet,
}

struct Vgg {
    stages: Vec<Vec<(Conv, BatchNorm)>>,
    head: Vec<Linear>,
}

/// VGG-16: 14.7 million parameters with the CIFAR head and 10 classes, 138 million with the
/// ImageNet head and 1000.
pub fn vgg16(head: VggHead, classes: usize) -> ImageModel {
    vgg(&STAGES, head, classes)
}

pub(super) fn vgg(stages: &[&[usize]], head: VggHead, classes: usize) -> ImageModel {
    ImageModel::build(|builder| {
        // Numbered as a list of all layers, activations and poolings included.
        let (mut from, mut place) = (3, 0);
        let mut made = Vec::new();
        for stage in stages {
            let mut layers = Vec::new();
            for to in stage.iter().copied() {
                let conv = builder
                    .scope(format!("features.{place}"), |b| Conv::new(b, from, to, 3).biased(b));
                let name = format!("features.{}", place + 1);
                layers.push((conv, builder.scope(name, |b| BatchNorm::new(b, to))));
                (from, place) = (to, place + 3);
            }
            place += 1;
            made.push(layers);
        }
        let widths = match head {
            VggHead::Cifar => vec![from, classes],
            VggHead::ImageNet => vec![from * 7 * 7, 4096, 4096, classes],
        };
        let head = widths.windows(2).enumerate().map(|(index, pair)| {
            let init = Init::Normal { deviation: 0.01 };
            let declare = |b: &mut _| Linear::new(b, pair[0], pair[1], init);
            builder.scope(format!("classifier.{}", 3 * index), declare)
        });
        Vgg { stages: made, head: head.collect() }
    })
}

impl Classifier for Vgg {
    fn scores(&self, tape: &mut Tape<'_>, images: TapeValue) -> TapeValue {
        let mut x = images;
        for stage in &self.stages {
            for (conv, norm) in stage {
                let sums = tape.conv(&x, conv);
                x = tape.batch_norm(&sums, norm, Then::Relu);
            }
            x = tape.max_pool(&x, 2, 2, 0);
        }
        let number = x.shape()[0];
        let mut x = tape.reshape(&x, &[number, x.values().len() / number]);
        let (last, hidden) = self.head.split_last().expect("at least the output");
        for layer in hidden {
            let sums = tape.linear(&x, layer);
            let active = tape.relu(sums);
            x = tape.dropout(&active, 0.5);
        }
        tape.linear(&x, last)
    }
}
