//! Convolutions that keep the image's size, without a matrix of patches.
//!
//! A plane with its border of zeros lies in memory as one row of numbers in which every place of the
//! kernel is a shift, so that results are sums of shifted planes. The zeros right of one line are
//! those left of the next; results at these places mean nothing and are left out.

use super::Geometry;
use super::kernels::{Kernels, Planes, ROWS, SIZES, Sums};

/// How planes with a border lie, and what computes with them.
#[derive(Clone, Debug)]
pub(super) struct Direct {
    kernels: Kernels,
    shape: Geometry,
    /// From a line of a plane to the next.
    pitch: usize,
    /// Numbers of a result, those that mean nothing included.
    span: usize,
    /// From a plane to the next.
    stride: usize,
    /// Where the kernel reads.
    shifts: Vec<usize>,
}

/// So many numbers of a plane stay in the nearest cache with those they are multiplied by.
const NEAR: usize = 1536;

impl Direct {
    /// For this convolution, if it is of the kind and the machine has the instructions.
    pub(super) fn of(shape: &Geometry) -> Option<Direct> {
        Direct::with(Kernels::best()?, shape)
    }

    fn with(kernels: Kernels, shape: &Geometry) -> Option<Direct> {
        let Geometry { height, width, size, stride, pad, .. } = *shape;
        if stride != 1 || !SIZES.contains(&size) || pad != size / 2 {
            return None;
        }
        let pitch = width + pad;
        let span = (height * pitch).next_multiple_of(kernels.lanes);
        let stride = (span + (size - 1) * (pitch + 1)).next_multiple_of(kernels.lanes);
        let shifts = (0..size * size).map(|k| k / size * pitch + k % size).collect();
        Some(Direct { kernels, shape: *shape, pitch, span, stride, shifts })
    }

    /// The results `y` of the images `x`.
    pub(super) fn forward(
        &self,
        weights: &[f32],
        bias: Option<&[f32]>,
        (x, y): (&[f32], &mut [f32]),
    ) {
        let Geometry { channels, outputs, size, .. } = self.shape;
        let squared = size * size;
        let weights =
            self.packed([outputs, channels], |o, c, k| weights[(o * channels + c) * squared + k]);
        let mut padded = vec![0.0; channels * self.stride];
        let mut results = vec![0.0; self.kernels.outputs * self.span];
        let images = x.chunks_exact(self.shape.image());
        for (x, y) in images.zip(y.chunks_exact_mut(self.shape.result())) {
            self.pad(x, (channels, 1), &mut padded);
            self.convolve((&padded, self.stride), &weights, &mut results, y);
            for (row, bias) in y.chunks_exact_mut(self.shape.places()).zip(bias.unwrap_or(&[])) {
                row.iter_mut().for_each(|y| *y += bias);
            }
        }
    }

    /// Adds the gradient of the weights to `grad`; writes that of the images to `dx`, unless it is
    /// empty.
    pub(super) fn backward(
        &self,
        weights: &[f32],
        (x, dy, dx): (&[f32], &[f32], &mut [f32]),
        grad: &mut [f32],
    ) {
        let Geometry { channels, outputs, size, .. } = self.shape;
        let (image, result, squared) = (self.shape.image(), self.shape.result(), size * size);
        // Seen from a place of the image, the kernel is turned around.
        let weights = self.packed([channels, outputs], |c, o, k| {
            weights[(o * channels + c) * squared + squared - 1 - k]
        });
        let group = (NEAR / self.stride).clamp(1, x.len() / image);
        let stride = group * self.stride;
        let mut padded = vec![0.0; channels * stride];
        let mut upstream = vec![0.0; outputs.next_multiple_of(ROWS) * stride];
        let mut results = vec![0.0; self.kernels.outputs * self.span];
        let mut dx = dx.chunks_exact_mut(image);
        for (x, dy) in x.chunks(group * image).zip(dy.chunks(group * result)) {
            let count = x.len() / image;
            self.pad(x, (channels, group), &mut padded);
            self.pad(dy, (outputs, group), &mut upstream);
            // What an earlier, larger group left behind counts for nothing where this is zero.
            for plane in upstream.chunks_exact_mut(stride) {
                plane[count * self.stride..].fill(0.0);
            }
            self.correlate(&padded, &upstream, stride, grad);
            for (k, dx) in dx.by_ref().take(count).enumerate() {
                let planes = (&upstream[k * self.stride..], stride);
                self.convolve(planes, &weights, &mut results, dx);
            }
        }
    }

    /// Weights by block of results, channel, shift and result; those of results that do not exist
    /// are zero.
    fn packed(
        &self,
        [results, channels]: [usize; 2],
        weight: impl Fn(usize, usize, usize) -> f32,
    ) -> Vec<f32> {
        let (together, squared) = (self.kernels.outputs, self.shifts.len());
        let mut packed = vec![0.0; results.next_multiple_of(together) * channels * squared];
        for result in 0..results {
            let (block, lane) = (result / together, result % together);
            for channel in 0..channels {
                for k in 0..squared {
                    let place = (block * channels + channel) * squared + k;
                    packed[place * together + lane] = weight(result, channel, k);
                }
            }
        }
        packed
    }

    /// Puts the planes of images into their places, `group` images side by side.
    fn pad(&self, images: &[f32], (channels, group): (usize, usize), padded: &mut [f32]) {
        let Geometry { height, width, pad, .. } = self.shape;
        for (number, plane) in images.chunks_exact(height * width).enumerate() {
            let (image, channel) = (number / channels, number % channels);
            let corner = (channel * group + image) * self.stride + pad * (self.pitch + 1);
            for (y, line) in plane.chunks_exact(width).enumerate() {
                padded[corner + y * self.pitch..][..width].copy_from_slice(line);
            }
        }
    }

    /// One image's sums of shifted planes, a block of results after the other, into `out`.
    fn convolve(
        &self,
        (x, stride): (&[f32], usize),
        weights: &[f32],
        results: &mut [f32],
        out: &mut [f32],
    ) {
        let Geometry { height, width, .. } = self.shape;
        let (together, span) = (self.kernels.outputs, self.span);
        let blocks = out.len().div_ceil(together * height * width);
        let weights = weights.chunks_exact(weights.len() / blocks);
        for (weights, out) in weights.zip(out.chunks_mut(together * height * width)) {
            let planes = Planes { x, stride, shifts: &self.shifts, weights, span };
            self.kernels.planes(planes, results);
            for (plane, out) in results.chunks_exact(span).zip(out.chunks_exact_mut(height * width))
            {
                for (line, out) in plane.chunks(self.pitch).zip(out.chunks_exact_mut(width)) {
                    out.copy_from_slice(&line[..width]);
                }
            }
        }
    }

    /// Adds what the group's images and gradients of results say of every weight.
    fn correlate(&self, x: &[f32], dy: &[f32], stride: usize, grad: &mut [f32]) {
        let Geometry { channels, size, pad, .. } = self.shape;
        let span = stride - self.stride + self.span;
        let per_output = channels * size * size;
        for (block, grad) in grad.chunks_mut(ROWS * per_output).enumerate() {
            let dy = &dy[block * ROWS * stride + pad * (self.pitch + 1)..];
            for line in 0..channels * size {
                let (channel, ky) = (line / size, line % size);
                let x = &x[channel * stride + ky * self.pitch..];
                let mut sums = [0.0; ROWS * 7];
                self.kernels.sums(size, Sums { x, dy, stride, span }, &mut sums[..ROWS * size]);
                for (grad, sums) in grad.chunks_exact_mut(per_output).zip(sums.chunks(size)) {
                    let grad = &mut grad[line * size..][..size];
                    grad.iter_mut().zip(sums).for_each(|(grad, sum)| *grad += sum);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Pass, forward};
    use super::*;

    fn numbers(count: usize, salt: usize) -> Vec<f32> {
        (0..count).map(|k| ((k * 7919 + salt) % 251) as f32 / 125.0 - 1.0).collect()
    }

    fn assert_near(ours: &[f32], theirs: &[f32], what: &str) {
        let worst = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let largest = theirs.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        assert!(worst <= 1e-5 * largest, "{what}: {worst} of {largest}");
    }

    /// Sizes that fit no vector, fewer and more results than are computed together, groups of
    /// images of which the last is smaller.
    #[test]
    fn shifted_planes_give_what_patches_give_with_all_instructions() {
        let shapes = [
            (3, 1, 1, 5, 4),
            (3, 3, 9, 8, 8),
            (5, 2, 6, 7, 11),
            (7, 5, 4, 9, 16),
            (3, 8, 8, 33, 31),
        ];
        for (size, channels, outputs, height, width) in shapes {
            let images = if height > 30 { 3 } else { 29 };
            let shape = Geometry {
                images,
                channels,
                outputs,
                height,
                width,
                out_height: height,
                out_width: width,
                size,
                stride: 1,
                pad: size / 2,
                together: 1,
            };
            let weights = numbers(outputs * shape.patch(), 1);
            let (bias, x) = (numbers(outputs, 2), numbers(images * shape.image(), 3));
            let dy = numbers(images * shape.result(), 4);
            let mut y = vec![0.0; dy.len()];
            forward(&shape, &weights, Some(&bias), (&x, &mut y));
            let pass = Pass { shape, direct: None, weights: &weights, x: &x, dy: &dy, input: true };
            let (mut grad, mut dx) = (numbers(weights.len(), 5), vec![0.0; x.len()]);
            pass.part((&x, &dy, &mut dx), &mut grad);
            for kernels in Kernels::all() {
                let direct = Direct::with(kernels, &shape).expect("of the kind");
                let what = format!("{size} × {size}, {channels} to {outputs}, {kernels:?}");
                let mut ours = vec![9.0; y.len()];
                direct.forward(&weights, Some(&bias), (&x, &mut ours));
                assert_near(&ours, &y, &what);
                let (mut ours, mut turned) = (numbers(weights.len(), 5), vec![9.0; x.len()]);
                direct.backward(&weights, (&x, &dy, &mut turned), &mut ours);
                assert_near(&ours, &grad, &what);
                assert_near(&turned, &dx, &what);
                let mut alone = numbers(weights.len(), 5);
                direct.backward(&weights, (&x, &dy, &mut []), &mut alone);
                assert_eq!(alone, ours, "{what}: without the gradient of the images");
            }
        }
    }

    #[test]
    fn strides_and_other_sizes_are_not_of_the_kind() {
        let same = |size, stride| {
            let (out_height, out_width) = (8 / stride, 8 / stride);
            let pad = size / 2;
            let (images, channels, outputs, height, width) = (1, 1, 1, 8, 8);
            Direct::of(&Geometry {
                images,
                channels,
                outputs,
                height,
                width,
                out_height,
                out_width,
                size,
                stride,
                pad,
                together: 1,
            })
        };
        assert!(same(1, 1).is_none() && same(3, 2).is_none() && same(9, 1).is_none());
        assert_eq!(same(3, 1).is_some(), Kernels::best().is_some());
    }
}
