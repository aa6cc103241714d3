//! Where the tensors of a vector lie, for optimizers that treat each of them by itself.

use std::ops::Range;

use crate::layout::{TensorRange, intersect};
use crate::options::{OptionKind, OptionSpec};

/// The option of optimizers that adapt their step to each tensor.
pub(super) const ADAPT_VECTORS: OptionSpec = OptionSpec {
    name: "adapt_vectors",
    kind: OptionKind::Flag(false),
    help: "adapt steps of tensors with one dimension too (biases, normalization); otherwise those \
           take steps of the learning rate, without weight decay",
};

/// The tensors of a rank's vector, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Tensors {
    ranges: Vec<TensorRange>,
    /// Vectors are treated like all others.
    pub(super) adapt_vectors: bool,
}

/// One tensor, or the part of one that an optimizer is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorPart {
    /// Where it lies in the slices of the call.
    pub(super) range: Range<usize>,
    /// Its step is multiplied by its own ratio, and its weights decay.
    pub(super) adapts: bool,
}

impl Tensors {
    pub(super) fn new(adapt_vectors: bool) -> Tensors {
        Tensors { ranges: Vec::new(), adapt_vectors }
    }

    pub(super) fn set(&mut self, ranges: &[TensorRange]) {
        self.ranges = ranges.to_vec();
    }

    /// The tensors within `range`, relative to its start; one if nothing is known of tensors.
    pub(super) fn parts(&self, range: &Range<usize>) -> Vec<TensorPart> {
        if self.ranges.is_empty() {
            return vec![TensorPart { range: 0..range.len(), adapts: true }];
        }
        let first = self.ranges.partition_point(|tensor| tensor.range.end <= range.start);
        let part = |tensor: &TensorRange| {
            let common = intersect(&tensor.range, range)?;
            let range = common.start - range.start..common.end - range.start;
            Some(TensorPart { range, adapts: self.adapt_vectors || !tensor.is_vector })
        };
        self.ranges[first..].iter().map_while(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_sees_the_tensors_of_its_range_and_one_where_there_are_none() {
        let mut tensors = Tensors::new(false);
        let part = |range, adapts| TensorPart { range, adapts };
        assert_eq!(tensors.parts(&(3..7)), [part(0..4, true)]);
        let tensor = |range, is_vector| TensorRange { range, is_vector };
        tensors.set(&[tensor(0..2, false), tensor(2..3, true), tensor(3..8, false)]);
        assert_eq!(tensors.parts(&(0..8)), [part(0..2, true), part(2..3, false), part(3..8, true)]);
        assert_eq!(tensors.parts(&(2..5)), [part(0..1, false), part(1..3, true)]);
        tensors.adapt_vectors = true;
        assert_eq!(tensors.parts(&(2..3)), [part(0..1, true)]);
    }
}
