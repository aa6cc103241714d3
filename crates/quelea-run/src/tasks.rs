//! The table of tasks: a model with its data. One file each.

#[cfg(feature = "engine")]
mod images;
mod logistic;
#[cfg(feature = "engine")]
mod network;
mod quadratic;
#[cfg(feature = "engine")]
mod text;

use std::sync::Arc;

use quelea_core::meta::Meta;
use quelea_core::problems::Problem;
use quelea_core::registry::Registered;

use crate::config::chosen::Listed;
use crate::config::section::{ExtraKey, SectionValues};
use crate::error::RequestError;

/// One entry of the table.
pub struct TaskEntry {
    /// Name, summary, paper and options.
    pub meta: Meta,
    /// Its other keys.
    pub extras: &'static [ExtraKey],
    /// Makes the problem, loading its data.
    pub build: fn(&TaskRequest) -> Result<Built, RequestError>,
}

/// What a task is built for.
#[derive(Clone, Copy, Debug)]
pub struct TaskRequest<'a> {
    /// The task's keys, checked one by one.
    pub values: &'a SectionValues,
    /// The run's workers.
    pub workers: usize,
    /// The run's seed.
    pub seed: u64,
    /// Whether all workers draw from all data, in one order ([`Problem::shares_data`]).
    pub shared_data: bool,
}

/// A task ready to be trained.
pub struct Built {
    /// The problem.
    pub problem: Arc<dyn Problem>,
    /// Steps of each worker after which all data was seen once; `None` where there are no data.
    pub steps_per_epoch: Option<u64>,
}

/// All built-in tasks. A [registry](quelea_core::registry::Registry) may have more.
pub const TASKS: &[TaskEntry] = &[
    #[cfg(feature = "engine")]
    images::DIGITS_MLP,
    #[cfg(feature = "engine")]
    images::DIGITS_CNN,
    #[cfg(feature = "engine")]
    images::FASHION_CNN,
    #[cfg(feature = "engine")]
    images::CIFAR10_RESNET20,
    #[cfg(feature = "engine")]
    images::CIFAR10_RESNET18,
    #[cfg(feature = "engine")]
    images::CIFAR10_RESNET50,
    #[cfg(feature = "engine")]
    images::CIFAR10_VGG16,
    #[cfg(feature = "engine")]
    images::IMAGENET_RESNET50,
    #[cfg(feature = "engine")]
    text::MULTI30K_TRANSFORMER,
    #[cfg(feature = "engine")]
    text::SHAKESPEARE_LM,
    #[cfg(feature = "engine")]
    text::SHAKESPEARE_LSTM,
    logistic::TASK,
    quadratic::TASK,
];

impl TaskEntry {
    /// Makes the problem, loading its data.
    pub fn build(&self, request: &TaskRequest) -> Result<Built, RequestError> {
        (self.build)(request)
    }
}

impl std::fmt::Debug for TaskEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task({})", self.meta.name)
    }
}

impl Registered for TaskEntry {
    const KIND: &'static str = "task";

    fn builtin() -> &'static [Self] {
        TASKS
    }
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl Listed for TaskEntry {
    const PATH: &'static str = "task";
    const DEFAULT: &'static str = if cfg!(feature = "engine") { "digits-mlp" } else { "logistic" };

    fn extras(&self) -> &'static [ExtraKey] {
        self.extras
    }
}
