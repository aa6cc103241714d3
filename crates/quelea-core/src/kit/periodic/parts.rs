//! Which vector a part of an average is.

use crate::layout::Layout;
use crate::optim::Optimizer;

/// Bucket `part` of the model, or, counting on, of the optimizer's vectors.
pub(super) fn bucket<'a>(
    part: usize,
    layout: &Layout,
    params: &'a mut [f32],
    optimizer: &'a mut dyn Optimizer,
) -> &'a mut [f32] {
    let buckets = layout.buckets.len();
    let range = layout.range(part % buckets);
    match part / buckets {
        0 => &mut params[range],
        vector => &mut optimizer.vectors().swap_remove(vector - 1)[range],
    }
}
