//! Residual networks of basic blocks for CIFAR (He, Zhang, Ren and Sun 2016).

use super::{Classifier, ImageModel};
use crate::ops::{BatchNorm, Conv, Linear, Then};
use crate::parameters::{Builder, Init};
use crate::tape::{Tape, TapeValue};

/// How a block's input reaches its output where they differ in shape.
enum Shortcut {
    /// They do not.
    Same,
    /// Every second pixel, and channels of zeros (option A).
    Pad(usize),
    /// A 1×1 convolution (option B).
    Project(Conv, BatchNorm),
}

struct Block {
    convolutions: [(Conv, BatchNorm); 2],
    shortcut: Shortcut,
}

struct ResNet {
    stem: (Conv, BatchNorm),
    blocks: Vec<Block>,
    output: Linear,
}

/// ResNet-20: three stages of three blocks with 16, 32 and 64 channels, shortcuts without
/// parameters. 0.27 million parameters with 10 classes.
pub fn resnet20(classes: usize) -> ImageModel {
    resnet(&[16, 32, 64], 3, false, classes)
}

/// ResNet-18 with the small stem for 32×32 images: four stages of two blocks with 64 to 512
/// channels, shortcuts by projection. 11.2 million parameters with 10 classes.
pub fn resnet18(classes: usize) -> ImageModel {
    resnet(&[64, 128, 256, 512], 2, true, classes)
}

pub(super) fn resnet(widths: &[usize], blocks: usize, project: bool, classes: usize) -> ImageModel {
    ImageModel::build(|builder| {
        let stem = conv_norm(builder, ["conv1", "bn1"], |b| Conv::new(b, 3, widths[0], 3));
        let mut made = Vec::new();
        let mut from = widths[0];
        for (stage, to) in widths.iter().copied().enumerate() {
            for index in 0..blocks {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                let name = format!("layer{}.{index}", stage + 1);
                let block = |b: &mut Builder| Block::new(b, from, to, stride, project);
                made.push(builder.scope(name, block));
                from = to;
            }
        }
        let output = builder.scope("fc", |b| Linear::new(b, from, classes, Init::he(from)));
        ResNet { stem, blocks: made, output }
    })
}

/// Declares a convolution and the normalisation after it.
pub(super) fn conv_norm(
    builder: &mut Builder,
    [conv, norm]: [&str; 2],
    declare: impl FnOnce(&mut Builder) -> Conv,
) -> (Conv, BatchNorm) {
    let conv = builder.scope(conv, declare);
    let channels = conv.outputs();
    (conv, builder.scope(norm, |b| BatchNorm::new(b, channels)))
}

impl Block {
    fn new(builder: &mut Builder, from: usize, to: usize, stride: usize, project: bool) -> Block {
        let first =
            conv_norm(builder, ["conv1", "bn1"], |b| Conv::new(b, from, to, 3).stride(stride));
        let second = conv_norm(builder, ["conv2", "bn2"], |b| Conv::new(b, to, to, 3));
        let shortcut = match (from == to && stride == 1, project) {
            (true, _) => Shortcut::Same,
            (false, false) => Shortcut::Pad(to),
            (false, true) => {
                let names = ["downsample.0", "downsample.1"];
                let (conv, norm) =
                    conv_norm(builder, names, |b| Conv::new(b, from, to, 1).stride(stride));
                Shortcut::Project(conv, norm)
            }
        };
        Block { convolutions: [first, second], shortcut }
    }

    fn forward(&self, tape: &mut Tape<'_>, x: TapeValue) -> TapeValue {
        let [(first, first_norm), (second, second_norm)] = &self.convolutions;
        let y = tape.conv(&x, first);
        let y = tape.batch_norm(&y, first_norm, Then::Relu);
        let y = tape.conv(&y, second);
        let y = tape.batch_norm(&y, second_norm, Then::Nothing);
        let past = match &self.shortcut {
            Shortcut::Same => x,
            Shortcut::Pad(channels) => tape.subsample_and_pad(&x, *channels),
            Shortcut::Project(conv, norm) => {
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
        for block in &self.blocks {
            x = block.forward(tape, x);
        }
        let means = tape.mean_pool(&x);
        tape.linear(&means, &self.output)
    }
}
