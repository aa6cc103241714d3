//! Numbers with a shape: what activations and their gradients are kept in.

use std::sync::Arc;

/// Numbers in row-major order with a shape. Clones share the numbers until one of them is written
/// to.
#[derive(Clone, Debug)]
pub(crate) struct DenseTensor {
    values: Arc<Vec<f32>>,
    shape: Vec<usize>,
}

impl DenseTensor {
    /// These numbers in this shape.
    pub(crate) fn new(values: Vec<f32>, shape: &[usize]) -> DenseTensor {
        assert_eq!(
            values.len(),
            shape.iter().product::<usize>(),
            "the shape {shape:?} holds the numbers"
        );
        DenseTensor { values: Arc::new(values), shape: shape.to_vec() }
    }

    /// The length of each axis.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The numbers, in row-major order.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }

    /// The numbers, to be overwritten; copied first if a clone shares them.
    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        Arc::make_mut(&mut self.values).as_mut_slice()
    }

    /// The same numbers in another shape.
    pub(crate) fn reshaped(self, shape: &[usize]) -> DenseTensor {
        assert_eq!(
            self.values.len(),
            shape.iter().product::<usize>(),
            "{:?} to {shape:?}",
            self.shape
        );
        DenseTensor { shape: shape.to_vec(), ..self }
    }

    /// The axes in another order: axis `k` of the result is axis `axes[k]` of this tensor.
    pub(crate) fn permuted(&self, axes: &[usize]) -> DenseTensor {
        assert_eq!(axes.len(), self.shape.len(), "one place per axis");
        let stride = |axis: &usize| self.shape[axis + 1..].iter().product();
        let strides: Vec<usize> = axes.iter().map(stride).collect();
        let shape: Vec<usize> = axes.iter().map(|axis| self.shape[*axis]).collect();
        let mut values = Vec::with_capacity(self.values.len());
        if !self.values.is_empty() {
            append(&self.values, &shape, &strides, &mut values);
        }
        DenseTensor::new(values, &shape)
    }
}

/// Appends the elements of a strided view in row-major order.
fn append(from: &[f32], shape: &[usize], strides: &[usize], to: &mut Vec<f32>) {
    match (shape, strides) {
        ([], _) => to.push(from[0]),
        ([len], [1]) => to.extend_from_slice(&from[..*len]),
        ([len, shape @ ..], [stride, strides @ ..]) => {
            (0..*len).for_each(|k| append(&from[k * stride..], shape, strides, to));
        }
        (_, []) => unreachable!("one stride per axis"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permuted_axes_are_read_where_index_arithmetic_says() {
        let shape = [2, 3, 4, 5];
        let x = DenseTensor::new((0..120).map(|k| k as f32).collect(), &shape);
        let orders = [[0, 2, 1, 3], [3, 2, 1, 0], [1, 3, 0, 2], [0, 1, 2, 3]];
        for axes in orders {
            let y = x.permuted(&axes);
            let lengths = axes.map(|axis| shape[axis]);
            assert_eq!(y.shape(), lengths);
            for (place, found) in y.values().iter().enumerate() {
                let mut index = [0; 4];
                let mut rest = place;
                for k in (0..4).rev() {
                    index[axes[k]] = rest % lengths[k];
                    rest /= lengths[k];
                }
                let [a, b, c, d] = index;
                assert_eq!(*found, (((a * 3 + b) * 4 + c) * 5 + d) as f32, "{axes:?} {place}");
            }
        }
    }

    #[test]
    fn empty_axes_permute_to_empty_tensors() {
        let x = DenseTensor::new(Vec::new(), &[2, 0, 3]);
        assert_eq!(x.permuted(&[2, 0, 1]).shape(), [3, 2, 0]);
    }

    #[test]
    fn writing_to_a_clone_leaves_the_original() {
        let original = DenseTensor::new(vec![1.0, 2.0], &[2]);
        let mut copy = original.clone().reshaped(&[2, 1]);
        copy.values_mut()[0] = 5.0;
        assert_eq!((original.values(), copy.values()), (&[1.0, 2.0][..], &[5.0, 2.0][..]));
    }
}
