//! Convolutions without a matrix of patches: results are sums of weighted, shifted planes.
//!
//! Images lie in memory as [`PlaneLayout`] says, so that every place of the kernel is a shift. Results
//! between the lines mean nothing and are left out.

use super::Geometry;
use super::kernels::{Kernels, Planes, ROWS, SIZES, Sums};
use super::layout::{Phase, PlaneLayout};

/// How planes lie, and what computes with them.
#[derive(Clone, Debug)]
pub(super) struct Direct {
    kernels: Kernels,
    shape: Geometry,
    layout: PlaneLayout,
}

/// So many numbers of a plane stay in the nearest cache with those they are multiplied by.
const NEAR: usize = 1536;

/// From more outputs than this on, divided by the stride, patches are faster: gathering them and
/// packing them for the product costs the same however many outputs share them, and a direct
/// convolution reads all weights for every image. Measured with AVX-512, where 128 channels at
/// stride 1 and 64 at stride 2 take the same time either way.
const MANY: usize = 128;

/// One part of the batch in a backward pass.
pub(super) struct BatchPart<'a> {
    /// Images.
    pub(super) x: &'a [f32],
    /// Gradient of the results.
    pub(super) dy: &'a [f32],
    /// Gradient of the images, to be written unless it is empty.
    pub(super) dx: &'a mut [f32],
}

impl BatchPart<'_> {
    /// The same part for a shorter time.
    pub(super) fn reborrow(&mut self) -> BatchPart<'_> {
        BatchPart { x: self.x, dy: self.dy, dx: self.dx }
    }
}

impl Direct {
    /// For this convolution, if it is of the kind, that pays, and the machine has the instructions.
    pub(super) fn of(shape: &Geometry) -> Option<Direct> {
        let pays = shape.outputs * shape.stride <= MANY;
        if pays { Direct::with(Kernels::best()?, shape) } else { None }
    }

    fn with(kernels: Kernels, shape: &Geometry) -> Option<Direct> {
        let Geometry { height, width, size, stride, pad, .. } = *shape;
        // A phase of which the image has no line, or that no place reads, has no plane.
        let has_all_phases = stride <= size && height.min(width) >= stride;
        if !SIZES.contains(&size) || pad != size / 2 || !has_all_phases {
            return None;
        }
        Some(Direct { kernels, shape: *shape, layout: PlaneLayout::new(shape, kernels.lanes) })
    }

    /// The results `y` of the images `x`.
    pub(super) fn forward(&self, weights: &[f32], bias: Option<&[f32]>, x: &[f32], y: &mut [f32]) {
        let Geometry { channels, outputs, size, .. } = self.shape;
        let squared = size * size;
        let weights = packed(self.kernels.outputs, [outputs, channels, squared], |o, c, k| {
            weights[(o * channels + c) * squared + k]
        });
        let plane = self.layout.plane;
        let shifts: Vec<usize> =
            (0..squared).map(|k| self.layout.shift(k / size, k % size, plane)).collect();
        let stride = self.layout.phases() * plane;
        let mut planes = vec![0.0; channels * stride];
        let mut results = vec![0.0; self.kernels.outputs * self.layout.span];
        let images = x.chunks_exact(self.shape.image());
        for (x, y) in images.zip(y.chunks_exact_mut(self.shape.result())) {
            self.layout.split(&self.shape, x, 1, &mut planes);
            let (shifts, span) = (&shifts, self.layout.span);
            let sums = ShiftedSums { x: &planes, channels, stride, shifts, span };
            self.results(sums, &weights, &mut results, y);
            for (row, bias) in y.chunks_exact_mut(self.shape.places()).zip(bias.unwrap_or(&[])) {
                row.iter_mut().for_each(|y| *y += bias);
            }
        }
    }

    /// One image's results, a block of outputs after the other.
    fn results(&self, sums: ShiftedSums<'_>, weights: &[f32], results: &mut [f32], y: &mut [f32]) {
        let (width, places) = (self.shape.out_width, self.shape.places());
        sums.by_block(&self.kernels, weights, results, |output, plane| {
            let Some(y) = y.get_mut(output * places..(output + 1) * places) else { return };
            for (line, y) in plane.chunks(self.layout.pitch).zip(y.chunks_exact_mut(width)) {
                y.copy_from_slice(&line[..width]);
            }
        });
    }

    /// Adds the gradient of the weights to `grad` and writes that of the images.
    pub(super) fn backward(&self, weights: &[f32], part: BatchPart<'_>, grad: &mut [f32]) {
        let Geometry { channels, outputs, .. } = self.shape;
        let (image, result) = (self.shape.image(), self.shape.result());
        let plane = self.layout.plane;
        let group = (NEAR / plane).clamp(1, part.x.len() / image);
        let stride = group * plane;
        let mut planes = vec![0.0; channels * self.layout.phases() * stride];
        let mut upstream = vec![0.0; outputs.next_multiple_of(ROWS) * stride];
        let mut reverse = Reverse::new(self, if part.dx.is_empty() { &[] } else { weights });
        let mut dx = part.dx.chunks_exact_mut(image);
        for (x, dy) in part.x.chunks(group * image).zip(part.dy.chunks(group * result)) {
            let count = x.len() / image;
            self.layout.split(&self.shape, x, group, &mut planes);
            self.layout.pad(&self.shape, dy, group, &mut upstream);
            // What an earlier, larger group left behind counts for nothing where this is zero.
            for plane in upstream.chunks_exact_mut(stride) {
                plane[count * self.layout.plane..].fill(0.0);
            }
            self.correlate(&planes, &upstream, stride, grad);
            for (k, dx) in dx.by_ref().take(count).enumerate() {
                reverse.image(&upstream[k * plane..], stride, dx);
            }
        }
    }

    /// Adds what the group's images and gradients of results say of every weight.
    fn correlate(&self, x: &[f32], dy: &[f32], stride: usize, grad: &mut [f32]) {
        let Geometry { channels, size, .. } = self.shape;
        let span = stride - self.layout.plane + self.layout.span;
        let per_output = channels * size * size;
        let shifts: Vec<usize> =
            (0..size * size).map(|k| self.layout.shift(k / size, k % size, stride)).collect();
        for (block, grad) in grad.chunks_mut(ROWS * per_output).enumerate() {
            let dy = &dy[block * ROWS * stride + self.layout.corner()..];
            for line in 0..channels * size {
                let (channel, ky) = (line / size, line % size);
                let x = &x[channel * self.layout.phases() * stride..];
                let shifts = &shifts[ky * size..][..size];
                let mut sums = [0.0; ROWS * 7];
                self.kernels.sums(Sums { x, shifts, dy, stride, span }, &mut sums[..ROWS * size]);
                for (grad, sums) in grad.chunks_exact_mut(per_output).zip(sums.chunks(size)) {
                    let grad = &mut grad[line * size..][..size];
                    grad.iter_mut().zip(sums).for_each(|(grad, sum)| *grad += sum);
                }
            }
        }
    }
}

/// The gradient of images from that of results: for each phase of the image, a convolution with
/// the places of the kernel that read it.
struct Reverse<'a> {
    direct: &'a Direct,
    phases: Vec<ReversePhase<'a>>,
    results: Vec<f32>,
}

struct ReversePhase<'a> {
    row: &'a Phase,
    column: &'a Phase,
    shifts: Vec<usize>,
    weights: Vec<f32>,
}

impl<'a> Reverse<'a> {
    /// With these weights; without any, if no gradient of images is asked for.
    fn new(direct: &'a Direct, weights: &[f32]) -> Reverse<'a> {
        let Geometry { channels, outputs, size, .. } = direct.shape;
        let layout = &direct.layout;
        let mut phases = Vec::new();
        for row in layout.rows.iter().filter(|_| !weights.is_empty()) {
            for column in &layout.columns {
                let places = layout.reverse(row, column);
                let counts = [channels, outputs, places.len()];
                let weights = packed(direct.kernels.outputs, counts, |c, o, k| {
                    let (ky, kx, _) = places[k];
                    weights[((o * channels + c) * size + ky) * size + kx]
                });
                let shifts = places.iter().map(|place| place.2).collect();
                phases.push(ReversePhase { row, column, shifts, weights });
            }
        }
        Reverse { direct, phases, results: vec![0.0; direct.kernels.outputs * layout.phase_span] }
    }

    /// The gradient of one image from the planes of its results' gradient, which are `stride` apart.
    fn image(&mut self, dy: &[f32], stride: usize, dx: &mut [f32]) {
        let Direct { shape, layout, kernels } = self.direct;
        let (channels, span) = (shape.outputs, layout.phase_span);
        let plane = shape.height * shape.width;
        for phase in &self.phases {
            let sums = ShiftedSums { x: dy, channels, stride, shifts: &phase.shifts, span };
            sums.by_block(kernels, &phase.weights, &mut self.results, |channel, sums| {
                let Some(dx) = dx.get_mut(channel * plane..(channel + 1) * plane) else { return };
                let lines = sums.chunks(layout.pitch).zip(phase.row.lines(shape));
                for (line, y) in lines {
                    let dx = &mut dx[y * shape.width..][..shape.width];
                    gather(shape, phase.column, line, dx);
                }
            });
        }
    }
}

/// Writes a line of one phase to where its columns are in the image.
fn gather(shape: &Geometry, column: &Phase, line: &[f32], dx: &mut [f32]) {
    if shape.stride == 1 {
        return dx.copy_from_slice(&line[..column.count]);
    }
    let start = column.first * shape.stride + column.remainder - shape.pad;
    let to = dx[start..].iter_mut().step_by(shape.stride);
    to.zip(&line[..column.count]).for_each(|(dx, sum)| *dx = *sum);
}

/// Sums of shifted planes, of one image.
#[derive(Clone, Copy)]
struct ShiftedSums<'a> {
    /// One plane, or one for each phase, per channel; the next channel's `stride` further.
    x: &'a [f32],
    channels: usize,
    stride: usize,
    /// Where a channel is read for each weight.
    shifts: &'a [usize],
    /// Numbers of one sum.
    span: usize,
}

impl ShiftedSums<'_> {
    /// Calls `visit` with the number of every sum and the sum. Those that only fill a block up are
    /// visited too.
    fn by_block(
        self,
        kernels: &Kernels,
        weights: &[f32],
        results: &mut [f32],
        mut visit: impl FnMut(usize, &[f32]),
    ) {
        let ShiftedSums { x, channels, stride, shifts, span } = self;
        let blocks = weights.chunks_exact(channels * shifts.len() * kernels.outputs);
        for (block, weights) in blocks.enumerate() {
            kernels.planes(Planes { x, stride, shifts, weights, span }, results);
            for (lane, sum) in results.chunks_exact(span).enumerate() {
                visit(block * kernels.outputs + lane, sum);
            }
        }
    }
}

/// Weights by block of `together` results, channel, shift and result; those of results that do not
/// exist are zero.
fn packed(
    together: usize,
    [results, channels, shifts]: [usize; 3],
    weight: impl Fn(usize, usize, usize) -> f32,
) -> Vec<f32> {
    let mut packed = vec![0.0; results.next_multiple_of(together) * channels * shifts];
    for result in 0..results {
        let (block, lane) = (result / together, result % together);
        for channel in 0..channels {
            for k in 0..shifts {
                let place = (block * channels + channel) * shifts + k;
                packed[place * together + lane] = weight(result, channel, k);
            }
        }
    }
    packed
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

    /// A kernel of this size over images of this shape, `[number, channels, height, width]`.
    fn geometry(
        size: usize,
        stride: usize,
        [images, channels, height, width]: [usize; 4],
        outputs: usize,
    ) -> Geometry {
        let pad = size / 2;
        let out = |length: usize| (length + 2 * pad - size) / stride + 1;
        let (out_height, out_width) = (out(height), out(width));
        Geometry {
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
        }
    }

    /// Results and both gradients, of planes against patches.
    fn check(shape: Geometry) {
        let weights = numbers(shape.outputs * shape.patch(), 1);
        let (bias, x) = (numbers(shape.outputs, 2), numbers(shape.images * shape.image(), 3));
        let dy = numbers(shape.images * shape.result(), 4);
        let mut y = vec![0.0; dy.len()];
        forward(&shape, &weights, Some(&bias), &x, &mut y);
        let pass = Pass { shape, direct: None, weights: &weights, x: &x, dy: &dy, input: true };
        let (mut grad, mut dx) = (numbers(weights.len(), 5), vec![0.0; x.len()]);
        pass.part(BatchPart { x: &x, dy: &dy, dx: &mut dx }, &mut grad);
        for kernels in Kernels::all() {
            let direct = Direct::with(kernels, &shape).expect("of the kind");
            let what = format!("{shape:?}, {kernels:?}");
            let mut ours = vec![9.0; y.len()];
            direct.forward(&weights, Some(&bias), &x, &mut ours);
            assert_near(&ours, &y, &what);
            let (mut ours, mut turned) = (numbers(weights.len(), 5), vec![9.0; x.len()]);
            direct.backward(&weights, BatchPart { x: &x, dy: &dy, dx: &mut turned }, &mut ours);
            assert_near(&ours, &grad, &what);
            assert_near(&turned, &dx, &what);
            let mut alone = numbers(weights.len(), 5);
            direct.backward(&weights, BatchPart { x: &x, dy: &dy, dx: &mut [] }, &mut alone);
            assert_eq!(alone, ours, "{what}: without the gradient of the images");
        }
    }

    /// Sizes that fit no vector, fewer and more results than are computed together, groups of
    /// images of which the last is smaller.
    #[test]
    fn shifted_planes_give_what_patches_give_with_all_instructions() {
        check(geometry(3, 1, [29, 1, 5, 4], 1));
        check(geometry(3, 1, [29, 3, 8, 8], 9));
        check(geometry(5, 1, [29, 2, 7, 11], 6));
        check(geometry(7, 1, [29, 5, 9, 16], 4));
        check(geometry(3, 1, [3, 8, 33, 31], 8));
    }

    /// As above; images of which the last lines are read by no result, and of which a phase is
    /// smaller than another.
    #[test]
    fn phases_of_strided_convolutions_give_what_patches_give_with_all_instructions() {
        for size in SIZES {
            for stride in 2..=size {
                for (height, width) in [(stride, stride + 3), (8, 8), (9, 11), (15, 12)] {
                    if height.min(width) >= stride {
                        check(geometry(size, stride, [29, 2, height, width], 9));
                    }
                }
            }
        }
        check(geometry(3, 2, [3, 8, 33, 31], 8));
        check(geometry(7, 2, [3, 3, 64, 50], 16));
    }

    #[test]
    fn single_pixels_many_outputs_and_strides_beyond_the_kernel_keep_the_patches() {
        let same = |size, stride| Direct::of(&geometry(size, stride, [1, 1, 8, 8], 1));
        assert!(same(1, 1).is_none() && same(1, 2).is_none() && same(9, 1).is_none());
        assert!(same(3, 4).is_none() && Direct::of(&geometry(3, 2, [1, 1, 1, 8], 1)).is_none());
        let wide = |stride, outputs| Direct::of(&geometry(3, stride, [1, 1, 8, 8], outputs));
        assert!(wide(1, MANY + 1).is_none() && wide(2, MANY / 2 + 1).is_none());
        assert_eq!(same(3, 1).is_some(), Kernels::best().is_some());
        assert_eq!(same(3, 2).is_some(), Kernels::best().is_some());
    }
}
