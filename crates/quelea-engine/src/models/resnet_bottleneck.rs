//! Residual networks of bottleneck blocks (He, Zhang, Ren and Sun 2016), with the stride in the 3×3
//! convolution as is usual now.

use super::resnet::conv_norm;
use super::{Classifier, ImageModel};
use crate::ops::{BatchNorm, Conv, Linear, Then};
use crate::parameters::{Builder, Init};
use crate::tape::{Tape, TapeValue};

struct Block {
    convolutions: [(Conv, BatchNorm); 3],
    shortcut: Option<(Conv, BatchNorm)>,
}

/// What comes before the first stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResNetStem {
    /// A 7×7 convolution with stride 2 and a pool: a quarter of the sides are left.
    ImageNet,
    /// A 3×3 convolution, for images of 32×32.
    Cifar,
}

struct ResNet {
    kind: ResNetStem,
    stem: (Conv, BatchNorm),
    blocks: Vec<Block>,
    output: Linear,
}

/// A block's last convolution has so many times the channels of the others.
const EXPANSION: usize = 4;

/// ResNet-50: 25.6 million parameters for ImageNet's 1000 classes, 23.5 million for CIFAR-10.
pub fn resnet50(stem: ResNetStem, classes: usize) -> ImageModel {
    bottlenecks(stem, 64, &[3, 4, 6, 3], classes)
}

/// The network whose first stage has `width` channels, and whose stages have so many blocks.
pub(super) fn bottlenecks(
    kind: ResNetStem,
    width: usize,
    stages: &[usize],
    classes: usize,
) -> ImageModel {
    ImageModel::build(|builder| {
        let stem = conv_norm(builder, ["conv1", "bn1"], |b| match kind {
            ResNetStem::ImageNet => Conv::new(b, 3, width, 7).stride(2),
            ResNetStem::Cifar => Conv::new(b, 3, width, 3),
        });
        let mut blocks = Vec::new();
        let mut from = width;
        for (stage, number) in stages.iter().copied().enumerate() {
            for index in 0..number {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                let name = format!("layer{}.{index}", stage + 1);
                let inner = width << stage;
                blocks.push(builder.scope(name, |b| Block::new(b, from, inner, stride)));
                from = inner * EXPANSION;
            }
        }
        let output = builder.scope("fc", |b| Linear::new(b, from, classes, Init::he(from)));
        ResNet { kind, stem, blocks, output }
    })
}

impl Block {
    fn new(builder: &mut Builder, from: usize, inner: usize, stride: usize) -> Block {
        let to = inner * EXPANSION;
        let convolutions = [
            conv_norm(builder, ["conv1", "bn1"], |b| Conv::new(b, from, inner, 1)),
            conv_norm(builder, ["conv2", "bn2"], |b| Conv::new(b, inner, inner, 3).stride(stride)),
            conv_norm(builder, ["conv3", "bn3"], |b| Conv::new(b, inner, to, 1)),
        ];
        let project = |b: &mut Builder| Conv::new(b, from, to, 1).stride(stride);
        let names = ["downsample.0", "downsample.1"];
        let shortcut = (from != to || stride > 1).then(|| conv_norm(builder, names, project));
        Block { convolutions, shortcut }
    }

    fn forward(&self, tape: &mut Tape<'_>, x: TapeValue) -> TapeValue {
        let mut y = x.clone();
        for (index, (conv, norm)) in self.convolutions.iter().enumerate() {
            let sums = tape.conv(&y, conv);
            let then = if index < 2 { Then::Relu } else { Then::Nothing };
            y = tape.batch_norm(&sums, norm, then);
        }
        let past = match &self.shortcut {
            None => x,
            Some((conv, norm)) => {
                let past = tape.conv(&x, conv);
                tape.batch_norm(&past, norm, Then::Nothing)
            }
        };
        let sum = tape.add(&y, &past);
        drop((y, past));
        tape.relu(sum)
    }
}

impl Classifier for ResNet {
    fn scores(&self, tape: &mut Tape<'_>, images: TapeValue) -> TapeValue {
        let (conv, norm) = &self.stem;
        let x = tape.conv(&images, conv);
        let mut x = tape.batch_norm(&x, norm, Then::Relu);
        if self.kind == ResNetStem::ImageNet {
            x = tape.max_pool(&x, 3, 2, 1);
        }
        for block in &self.blocks {
            x = block.forward(tape, x);
        }
        let means = tape.mean_pool(&x);
        tape.linear(&means, &self.output)
    }
}
