//! Periods: which steps end with an exact average.

use crate::contract::Context;
use crate::options::{OptionKind, OptionSpec};
use crate::state::Visitor;

/// When a round ends. All workers must come to the same answer.
pub trait Period: Send {
    /// Whether this step ends with an average. Asked once per step, before its gradient is used.
    fn is_due(&mut self, cx: &Context<'_>) -> bool;

    /// The loss of this step is known.
    fn on_loss(&mut self, _loss: f32) {}

    /// Numbers that are averaged together with the model.
    fn numbers(&mut self) -> &mut [f32] {
        &mut []
    }

    /// The average is done; [`numbers`](Period::numbers) holds the means.
    fn on_average(&mut self) {}

    /// Lists its state.
    fn state(&mut self, _visitor: &mut dyn Visitor) {}
}

/// A round of this many steps.
pub struct Every(pub u64);

impl Period for Every {
    fn is_due(&mut self, cx: &Context<'_>) -> bool {
        (cx.step + 1).is_multiple_of(self.0)
    }
}

/// The option of algorithms whose rounds have a fixed length.
pub const fn period_key(default: u64) -> OptionSpec {
    let kind = OptionKind::Whole { default, min: 1, max: u64::MAX };
    OptionSpec { name: "period", kind, help: "steps from one exact average to the next (H)" }
}
