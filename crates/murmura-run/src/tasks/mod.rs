//! The table of tasks: a model with its data. One file each.

mod images;
mod logistic;
mod network;
mod quadratic;
mod text;

use std::sync::Arc;

use murmura_core::params::Key;
use murmura_core::problems::Problem;

use crate::config::row::Listed;
use crate::config::section::{Extra, Values};
use crate::error::RequestError;

/// One row of the table.
pub struct Task {
    /// The name that people type.
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
    /// Its plain keys.
    pub keys: &'static [Key],
    /// Its other keys.
    pub extras: &'static [Extra],
    build: fn(&Request) -> Result<Built, RequestError>,
}

/// What a task is built for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The task's keys, checked one by one.
    pub values: &'a Values,
    /// The run's workers.
    pub workers: usize,
    /// The run's seed.
    pub seed: u64,
}

/// A task ready to be trained.
pub struct Built {
    /// The problem.
    pub problem: Arc<dyn Problem>,
    /// Steps of each worker after which all data was seen once; `None` where there are no data.
    pub steps_per_epoch: Option<u64>,
}

/// All tasks, by name.
pub const TASKS: &[Task] = &[
    images::DIGITS_MLP,
    images::DIGITS_CNN,
    images::FASHION_CNN,
    images::CIFAR10_RESNET20,
    images::CIFAR10_RESNET18,
    images::CIFAR10_VGG16,
    images::IMAGENET_RESNET50,
    text::MULTI30K_TRANSFORMER,
    text::SHAKESPEARE_LM,
    logistic::TASK,
    quadratic::TASK,
];

impl Task {
    /// Makes the problem, loading its data.
    pub fn build(&self, request: &Request) -> Result<Built, RequestError> {
        (self.build)(request)
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task({})", self.name)
    }
}

impl Listed for Task {
    const PATH: &'static str = "task";
    const DEFAULT: &'static str = "digits-mlp";

    fn rows() -> &'static [Self] {
        TASKS
    }
    fn name(&self) -> &'static str {
        self.name
    }
    fn summary(&self) -> &'static str {
        self.summary
    }
    fn keys(&self) -> Vec<Key> {
        self.keys.to_vec()
    }
    fn extras(&self) -> &'static [Extra] {
        self.extras
    }
}
