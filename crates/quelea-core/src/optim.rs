//! Optimizers and learning-rate schedules: the tables. One file per optimizer.

mod accum_adam;
mod adam;
#[cfg(test)]
mod adaptive_tests;
mod lamb;
mod lars;
mod schedule;
mod sgd;
mod tensors;

use std::ops::Range;

use crate::layout::TensorRange;
use crate::meta::Meta;
use crate::names;
use crate::options::{OptionError, OptionKind, OptionSpec, Options, Value};

pub use schedule::{SCHEDULES, ScheduleClock, ScheduleEntry, find_schedule};
pub use sgd::Sgd;

/// Turns a gradient into a step, bucket by bucket.
///
/// It is created for a vector of fixed length and keeps its state (momentum, …) for all of it.
/// `step` counts this rank's optimizer steps from 0; all buckets of one step have the same.
pub trait Optimizer: Send {
    /// `params ← params − η·u` on `range`; `params` and `grad` are the slices of that range.
    fn apply(&mut self, at: At, range: Range<usize>, params: &mut [f32], grad: &mut [f32]);

    /// `grad ← η·u` on `range`, parameters untouched. The same arithmetic as `apply` up to the
    /// final subtraction.
    fn displace(&mut self, at: At, range: Range<usize>, params: &[f32], grad: &mut [f32]);

    /// The state vectors, for checkpoints and for handing them to a joiner.
    fn vectors(&mut self) -> Vec<&mut Vec<f32>>;

    /// The velocity that momentum multiplies at the next step, for algorithms that put another
    /// in its place; `None` without momentum.
    fn velocity(&mut self) -> Option<&mut [f32]> {
        None
    }

    /// Where the tensors of the vector lie, in order and without gaps; nothing where the model is one
    /// plain vector. Called once, before the first step.
    fn set_tensors(&mut self, _tensors: &[TensorRange]) {}
}

/// When a step is taken, and how far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct At {
    /// Steps taken before this one.
    pub step: u64,
    /// The learning rate η.
    pub learning_rate: f32,
}

/// The learning rate as a function of the step.
pub type LearningRate = std::sync::Arc<dyn Fn(u64) -> f32 + Send + Sync>;

/// One entry of the table of optimizers.
pub struct Entry {
    /// Name, summary, paper and options.
    pub meta: Meta,
    /// How its step depends on gradients.
    pub family: Family,
    /// Refuses parameters that are good one by one but not together.
    pub check: fn(&Options) -> Result<(), OptionError>,
    /// Makes it for a vector of this length.
    pub build: fn(&Options, usize) -> Box<dyn Optimizer>,
}

/// How the step of an optimizer depends on gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Linear in them: a gradient that is twice as long is a step that is twice as long.
    Sgd,
    /// Each coordinate, or each tensor, divided by its own size: steps are about as long whatever
    /// gradients are multiplied by.
    Adaptive,
}

/// What every optimizer takes. The run looks at these; optimizers do not.
pub const COMMON_KEYS: &[OptionSpec] = &[
    OptionSpec {
        name: "lr",
        kind: OptionKind::Real { default: 0.05, min: 0.0, max: 1e6 },
        help: "learning rate, before the schedule",
    },
    OptionSpec {
        name: "clip_norm",
        kind: OptionKind::Real { default: 0.0, min: 0.0, max: f64::MAX },
        help: "clip gradients to this global Euclidean norm; 0 switches it off",
    },
];

/// All built-in optimizers, by name.
pub const OPTIMIZERS: &[Entry] = &[
    accum_adam::ACCUM_ADAM,
    accum_adam::ACCUM_ADAMW,
    adam::ADAM,
    adam::ADAMW,
    lamb::ENTRY,
    lars::ENTRY,
    sgd::ENTRY,
];

/// The built-in entry of this name, or the nearest name if there is one.
pub fn find(name: &str) -> Result<&'static Entry, Option<&'static str>> {
    names::find(OPTIMIZERS, |entry| entry.meta.name, name)
}

impl Entry {
    /// The keys of [`COMMON_KEYS`] and its own.
    pub fn all_keys(&self) -> Vec<OptionSpec> {
        [COMMON_KEYS, self.meta.options].concat()
    }

    /// Checks what was `given`, and fills in defaults.
    pub fn params(
        &self,
        given: impl IntoIterator<Item = (String, Value)>,
    ) -> Result<Options, OptionError> {
        let params = Options::check(&self.all_keys(), given)?;
        (self.check)(&params)?;
        Ok(params)
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({})", self.meta.name)
    }
}

fn refused(options: &Options, key: &str, problem: impl Into<String>) -> OptionError {
    let value = options.iter().find(|(name, _)| *name == key).map(|(_, value)| value.to_string());
    OptionError { key: key.into(), given: value.unwrap_or_default(), problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(given: &[(&str, Value)]) -> String {
        let entry = find("sgd").expect("in the table");
        let given = given.iter().map(|(name, value)| (name.to_string(), value.clone()));
        entry.params(given).expect_err("refused").to_string()
    }

    #[test]
    fn impossible_parameters_are_refused_with_a_reason() {
        for bad in [-0.1, f64::NAN, f64::INFINITY] {
            assert!(refusal(&[("lr", Value::Number(bad))]).contains("must be a number from 0"));
        }
        assert!(refusal(&[("momentum", Value::Number(1.5))]).contains("from 0 to 1"));
        assert!(refusal(&[("weight_decay", Value::Number(-1.0))]).contains("from 0"));
        assert!(refusal(&[("clip_norm", Value::Number(-1.0))]).contains("of at least 0"));
        assert!(refusal(&[("momentun", Value::Number(0.9))]).contains("did you mean `momentum`?"));
        assert_eq!(
            refusal(&[("nesterov", Value::Flag(true))]),
            "`nesterov` = true: needs `momentum` above 0"
        );
    }

    #[test]
    fn a_slip_in_the_name_is_recognised() {
        assert_eq!(find("sdg").expect_err("unknown"), Some("sgd"));
        assert_eq!(find("newton").expect_err("unknown"), None);
    }

    #[test]
    fn rows_are_in_order_and_their_defaults_are_accepted() {
        assert!(OPTIMIZERS.is_sorted_by_key(|entry| entry.meta.name));
        for entry in OPTIMIZERS {
            let params = entry.params([]).expect("defaults are good");
            (entry.build)(&params, 3);
        }
    }
}
