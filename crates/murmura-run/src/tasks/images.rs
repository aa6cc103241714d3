//! Networks that classify images.

use std::sync::Arc;

use murmura_core::params::{Key, Kind};
use murmura_data::augment::Augmentation;
use murmura_data::images::{Split, digits};
use murmura_engine::classify::Classify;
use murmura_engine::models::{self, ImageModel, Images};

use super::network::{
    self, ACCUMULATE, BATCHES, CONCENTRATION, PARTITION, SUBSET, TEST_SUBSET, batch, refused,
};
use super::{Built, Request, Task};
use crate::error::RequestError;

/// `digits-mlp`.
pub const DIGITS_MLP: Task = Task {
    name: "digits-mlp",
    summary: "a network with one hidden layer on the embedded handwritten digits (UCI, 8×8)",
    keys: &[
        batch(32),
        Key {
            name: "hidden",
            kind: Kind::Whole { default: 64, min: 1, max: 1 << 16 },
            help: "neurons of the hidden layer",
        },
        PARTITION,
        CONCENTRATION,
        ACCUMULATE,
        BATCHES,
        SUBSET,
        TEST_SUBSET,
    ],
    extras: &[],
    build: |request| {
        let hidden = request.values.params.whole("hidden") as usize;
        build(request, digits(), Augmentation::NONE, |images| models::mlp(images, &[hidden]))
    },
};

/// `digits-cnn`.
pub const DIGITS_CNN: Task = Task {
    name: "digits-cnn",
    summary: "a small convolutional network on the embedded handwritten digits (UCI, 8×8)",
    keys: &[batch(32), PARTITION, CONCENTRATION, ACCUMULATE, BATCHES, SUBSET, TEST_SUBSET],
    extras: &[],
    build: |request| build(request, digits(), Augmentation::NONE, models::cnn),
};

fn build(
    request: &Request,
    data: Split,
    augmentation: Augmentation,
    model: impl FnOnce(Images) -> ImageModel,
) -> Result<Built, RequestError> {
    let shape = data.train.shape();
    let images = Images {
        channels: shape.channels,
        height: shape.height,
        width: shape.width,
        classes: data.train.classes().len(),
    };
    let options = network::options(request);
    let problem = Classify::new(model(images), data, augmentation, &options)
        .map_err(|error| refused(request, &error))?;
    let steps_per_epoch = Some(problem.steps_per_epoch());
    Ok(Built { problem: Arc::new(problem), steps_per_epoch })
}
