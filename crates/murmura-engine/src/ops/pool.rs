//! Pooling of images.

use burn_backend::IntDType;
use burn_backend::ops::ModuleOps;
use burn_flex::Flex;

use crate::tape::{Tape, Value, tensor};

use super::shape::dims;

impl Tape<'_> {
    /// The largest number under a square window.
    pub fn max_pool(&mut self, x: &Value, size: usize, stride: usize, pad: usize) -> Value {
        let (size, stride, pad) = ([size; 2], [stride; 2], [pad; 2]);
        let input = x.tensor.clone();
        if !self.tracks(&[x]) {
            return Value::untracked(Flex::max_pool2d(input, size, stride, pad, [1; 2], false));
        }
        let ints = IntDType::I64;
        let pooled =
            Flex::max_pool2d_with_indices(input.clone(), size, stride, pad, [1; 2], false, ints);
        let (slot, indices) = (x.slot(), pooled.indices);
        self.record(pooled.output, move |dy, backward| {
            let dx = Flex::max_pool2d_with_indices_backward(
                input, size, stride, pad, [1; 2], false, dy, indices,
            );
            backward.add(slot, dx.x_grad);
        })
    }

    /// The mean of every channel: `[images, channels]`.
    pub fn mean_pool(&mut self, x: &Value) -> Value {
        let [images, channels, height, width] = dims(x);
        let places = height * width;
        let planes = x.values().chunks_exact(places);
        let means = planes.map(|plane| plane.iter().sum::<f32>() / places as f32).collect();
        let slot = x.slot();
        self.record_if(&[x], tensor(means, &[images, channels]), move |dy, backward| {
            let dy: &[f32] = dy.storage();
            let each = dy.iter().flat_map(|dy| std::iter::repeat_n(dy / places as f32, places));
            backward.add(slot, tensor(each.collect(), &[images, channels, height, width]));
        })
    }
}
