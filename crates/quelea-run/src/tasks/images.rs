//! Networks that classify images.

use std::path::Path;
use std::sync::Arc;

use quelea_core::meta::Meta;
use quelea_core::options::{OptionKind, OptionSpec};
use quelea_data::augment::Augmentation;
use quelea_data::error::DataError;
use quelea_data::images::{FolderOptions, Split, cifar10, digits, folder, idx};
use quelea_engine::classify::Classify;
use quelea_engine::models::{self, ImageModel, ImageSpec, ResNetStem, VggHead};

use super::network::{
    self, ACCUMULATE, BATCHES, CONCENTRATION, DATA, PARTITION, SUBSET, TEST_SUBSET, batch, located,
};
use super::{Built, TaskEntry, TaskRequest};
use crate::error::RequestError;

/// `digits-mlp`.
pub const DIGITS_MLP: TaskEntry = TaskEntry {
    meta: Meta {
        name: "digits-mlp",
        summary: "a network with one hidden layer on the embedded handwritten digits (UCI, 8×8)",
        paper: "",
        section: "",
        file: file!(),
        options: &[
            batch(32),
            OptionSpec {
                name: "hidden",
                kind: OptionKind::Whole { default: 256, min: 1, max: 1 << 16 },
                help: "neurons of the hidden layer",
            },
            PARTITION,
            CONCENTRATION,
            ACCUMULATE,
            BATCHES,
            SUBSET,
            TEST_SUBSET,
        ],
    },
    extras: &[],
    build: |request| {
        let hidden = request.values.options.whole("hidden") as usize;
        build(request, digits(), Augmentation::NONE, |images| models::mlp(images, &[hidden]))
    },
};

/// `digits-cnn`.
pub const DIGITS_CNN: TaskEntry = TaskEntry {
    meta: Meta {
        name: "digits-cnn",
        summary: "a small convolutional network on the embedded handwritten digits (UCI, 8×8)",
        paper: "",
        section: "",
        file: file!(),
        options: &[batch(32), PARTITION, CONCENTRATION, ACCUMULATE, BATCHES, SUBSET, TEST_SUBSET],
    },
    extras: &[],
    build: |request| build(request, digits(), Augmentation::NONE, models::cnn),
};

/// The keys of tasks with images from files.
macro_rules! keys {
    ($batch:literal, $augment:literal $(, $more:expr)*) => {
        &[
            DATA,
            batch($batch),
            OptionSpec {
                name: "augment",
                kind: OptionKind::Flag($augment),
                help: "whether training images are moved, cut and mirrored at random",
            },
            PARTITION,
            CONCENTRATION,
            ACCUMULATE,
            BATCHES,
            SUBSET,
            TEST_SUBSET,
            $($more,)*
        ]
    };
}

/// `fashion-cnn`.
pub const FASHION_CNN: TaskEntry = TaskEntry {
    meta: Meta {
        name: "fashion-cnn",
        summary: "a small convolutional network on Fashion-MNIST (or MNIST: the same files)",
        paper: "",
        section: "",
        file: file!(),
        options: keys!(32, false),
    },
    extras: &[],
    build: |request| {
        let augmentation = Augmentation { pad: 2, flip: true, crop: false };
        from_files(request, "fashion-mnist", idx, augmentation, models::cnn)
    },
};

/// `cifar10-resnet20`.
pub const CIFAR10_RESNET20: TaskEntry = TaskEntry {
    meta: Meta {
        name: "cifar10-resnet20",
        summary: "ResNet-20 on CIFAR-10 (He et al. 2016; 0.27 million parameters)",
        paper: "",
        section: "",
        file: file!(),
        options: keys!(32, true),
    },
    extras: &[],
    build: |request| cifar(request, |images| models::resnet20(images.classes)),
};

/// `cifar10-resnet18`.
pub const CIFAR10_RESNET18: TaskEntry = TaskEntry {
    meta: Meta {
        name: "cifar10-resnet18",
        summary: "ResNet-18 for 32×32 images on CIFAR-10 (11.2 million parameters)",
        paper: "",
        section: "",
        file: file!(),
        options: keys!(32, true),
    },
    extras: &[],
    build: |request| cifar(request, |images| models::resnet18(images.classes)),
};

/// `cifar10-resnet50`.
pub const CIFAR10_RESNET50: TaskEntry = TaskEntry {
    meta: Meta {
        name: "cifar10-resnet50",
        summary: "ResNet-50 for 32×32 images on CIFAR-10 (23.5 million parameters)",
        paper: "",
        section: "",
        file: file!(),
        options: keys!(32, true),
    },
    extras: &[],
    build: |request| cifar(request, |images| models::resnet50(ResNetStem::Cifar, images.classes)),
};

/// `cifar10-vgg16`.
pub const CIFAR10_VGG16: TaskEntry = TaskEntry {
    meta: Meta {
        name: "cifar10-vgg16",
        summary: "VGG-16 with batch normalisation on CIFAR-10 (14.7 million parameters)",
        paper: "",
        section: "",
        file: file!(),
        options: keys!(32, true),
    },
    extras: &[],
    build: |request| cifar(request, |images| models::vgg16(VggHead::Cifar, images.classes)),
};

/// `imagenet-resnet50`.
pub const IMAGENET_RESNET50: TaskEntry = TaskEntry {
    meta: Meta {
        name: "imagenet-resnet50",
        summary: "ResNet-50 on a folder of images: train/CLASS/… and val/CLASS/…, JPEG or PNG \
              (25.6 million parameters with 1000 classes)",
        paper: "",
        section: "",
        file: file!(),
        options: keys!(
            32,
            true,
            OptionSpec {
                name: "side",
                kind: OptionKind::Whole { default: 224, min: 32, max: 4096 },
                help: "sides of the images as the network sees them, in pixels",
            }
        ),
    },
    extras: &[],
    build: |request| {
        let side = request.values.options.whole("side") as usize;
        // 224 of 256, as usual.
        let options = FolderOptions { side, resized: side * 8 / 7 };
        let read = |path: &Path| folder(path, options);
        let model = |images: ImageSpec| models::resnet50(ResNetStem::ImageNet, images.classes);
        from_files(request, "imagenet", read, Augmentation::IMAGENET, model)
    },
};

fn cifar(
    request: &TaskRequest,
    model: impl FnOnce(ImageSpec) -> ImageModel,
) -> Result<Built, RequestError> {
    from_files(request, "cifar10", cifar10, Augmentation::CIFAR, model)
}

fn from_files(
    request: &TaskRequest,
    name: &str,
    read: impl FnOnce(&Path) -> Result<Split, DataError>,
    augmentation: Augmentation,
    model: impl FnOnce(ImageSpec) -> ImageModel,
) -> Result<Built, RequestError> {
    let data = located(request, name, read)?;
    let augment = request.values.options.flag("augment");
    build(request, data, if augment { augmentation } else { Augmentation::NONE }, model)
}

fn build(
    request: &TaskRequest,
    data: Split,
    augmentation: Augmentation,
    model: impl FnOnce(ImageSpec) -> ImageModel,
) -> Result<Built, RequestError> {
    let shape = data.train.shape();
    let images = ImageSpec {
        channels: shape.channels,
        height: shape.height,
        width: shape.width,
        classes: data.train.classes().len(),
    };
    let problem = Classify::new(model(images), data, augmentation, &network::work_options(request))
        .map_err(|error| network::refused(request, &error))?;
    let steps_per_epoch = Some(problem.steps_per_epoch());
    Ok(Built { problem: Arc::new(problem), steps_per_epoch })
}
