//! What a part remembers from one average to the next: what the run's codec has left out of it.

use crate::codec::ErrorFeedback;
use crate::collectives::low_rank::LowRankMemory;
use crate::state::Visitor;

/// The memory of one part; empty without a codec.
#[derive(Default)]
pub(super) struct Remembered {
    /// Where the codec encodes the vector.
    pub(super) feedback: ErrorFeedback,
    /// Where it averages thin factors.
    pub(super) factors: LowRankMemory,
}

impl Remembered {
    /// As [`ErrorFeedback::at_rate`].
    pub(super) fn at_rate(&mut self, rate: f32) {
        self.feedback.at_rate(rate);
        self.factors.at_rate(rate);
    }

    /// Lists it as that of part number `part`.
    pub(super) fn state(&mut self, part: usize, visitor: &mut dyn Visitor) {
        self.feedback.state(&format!("average.{part}.error"), visitor);
        self.factors.state(&format!("average.{part}.factors"), visitor);
    }
}
