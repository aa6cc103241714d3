//! How images lie in memory for direct convolutions: as planes in which every place of a kernel is a
//! shift.
//!
//! Place `k` of a kernel with stride `s` reads, for result `i`, the padded image at `i · s + k`. The
//! lines and columns of the padded image are therefore dealt out by their remainder modulo `s` into
//! `s²` planes, its *phases*: within phase `k mod s`, place `k` reads at `i + k / s`, a shift. Without
//! a stride there is one phase, the padded image itself.
//!
//! A plane lies line after line as one row of numbers. The zeros right of one line are those left of
//! the next, so that lines are as short as they can be.

use super::Geometry;

/// The lines or the columns of one phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phase {
    /// Which of the padded image's lines these are, modulo the stride.
    pub(super) remainder: usize,
    /// The first that is of the image; those before are padding.
    pub(super) first: usize,
    /// How many are of the image.
    pub(super) count: usize,
    /// Places of the kernel that read them: `remainder`, `remainder + stride` and so on.
    pub(super) places: usize,
}

impl Phase {
    fn all(shape: &Geometry, length: usize) -> Vec<Phase> {
        let Geometry { size, stride, pad, .. } = *shape;
        let phase = |remainder: usize| {
            let first = pad.saturating_sub(remainder).div_ceil(stride);
            let past = (length + pad - remainder).div_ceil(stride);
            let places = (size - remainder).div_ceil(stride);
            Phase { remainder, first, count: past - first, places }
        };
        (0..stride).map(phase).collect()
    }

    /// How far before the results the gradient of an image's first line looks.
    fn before(&self) -> usize {
        (self.places - 1).saturating_sub(self.first)
    }

    /// The image's lines that are in this phase, in order.
    pub(super) fn lines(&self, shape: &Geometry) -> impl Iterator<Item = usize> + Clone {
        let start = self.first * shape.stride + self.remainder - shape.pad;
        (start..).step_by(shape.stride).take(self.count)
    }
}

/// The planes of one convolution.
#[derive(Clone, Debug)]
pub(super) struct PlaneLayout {
    /// Phases of lines.
    pub(super) rows: Vec<Phase>,
    /// Phases of columns.
    pub(super) columns: Vec<Phase>,
    /// From a line of a plane to the next.
    pub(super) pitch: usize,
    /// From a plane to the next.
    pub(super) plane: usize,
    /// Lines, and columns, of zeros before the results' gradient.
    margin: usize,
    /// Numbers of a result, those between lines included.
    pub(super) span: usize,
    /// Numbers of a phase of an image's gradient, those between lines included.
    pub(super) phase_span: usize,
}

impl PlaneLayout {
    /// For vectors of so many numbers. The stride is at most the kernel's size, and the padding less.
    pub(super) fn new(shape: &Geometry, lanes: usize) -> PlaneLayout {
        let rows = Phase::all(shape, shape.height);
        let columns = Phase::all(shape, shape.width);
        // Neither what is read beyond a line nor what is read before it reaches another line.
        let needed = |phase: &Phase| {
            (phase.first + phase.count).max(shape.out_width + phase.places - 1 - phase.first)
        };
        let pitch = columns.iter().map(needed).max().expect("a stride is at least 1");
        let largest = |of: &dyn Fn(&Phase) -> usize| {
            rows.iter().chain(&columns).map(of).max().expect("a stride is at least 1")
        };
        let margin = largest(&Phase::before);
        let lines = rows.iter().map(|phase| phase.count).max().expect("a stride is at least 1");
        let span = (shape.out_height * pitch).next_multiple_of(lanes);
        let phase_span = (lines * pitch).next_multiple_of(lanes);
        let plane = [
            // The image itself, what results read of it, and what its gradient reads of theirs.
            largest(&|phase| phase.first + phase.count) * pitch,
            span + largest(&|phase| phase.places - 1) * (pitch + 1),
            phase_span + (margin + largest(&|phase| phase.first)) * (pitch + 1),
        ];
        let plane = plane.into_iter().max().expect("three").next_multiple_of(lanes);
        PlaneLayout { rows, columns, pitch, plane, margin, span, phase_span }
    }

    /// Planes of one channel of an image.
    pub(super) fn phases(&self) -> usize {
        self.rows.len() * self.columns.len()
    }

    /// Where the results' gradient begins in its plane.
    pub(super) fn corner(&self) -> usize {
        self.margin * (self.pitch + 1)
    }

    /// Where place (`ky`, `kx`) of the kernel reads an image whose phases are `apart`.
    pub(super) fn shift(&self, ky: usize, kx: usize, apart: usize) -> usize {
        let stride = self.columns.len();
        let phase = ky % stride * stride + kx % stride;
        phase * apart + ky / stride * self.pitch + kx / stride
    }

    /// Where the gradient of a phase reads that of the results, for each place of the kernel that
    /// reads this phase: (line of the kernel, column of the kernel, shift), by ascending shift.
    pub(super) fn reverse(&self, row: &Phase, column: &Phase) -> Vec<(usize, usize, usize)> {
        let stride = self.columns.len();
        let mut places = Vec::with_capacity(row.places * column.places);
        for qy in (0..row.places).rev() {
            for qx in (0..column.places).rev() {
                let shift = (self.margin + row.first - qy) * self.pitch;
                let shift = shift + self.margin + column.first - qx;
                places.push((qy * stride + row.remainder, qx * stride + column.remainder, shift));
            }
        }
        places
    }

    /// Puts channels of images into their planes, phase by phase, `group` images side by side.
    pub(super) fn split(&self, shape: &Geometry, images: &[f32], group: usize, planes: &mut [f32]) {
        let Geometry { channels, height, width, .. } = *shape;
        for (number, image) in images.chunks_exact(height * width).enumerate() {
            let (place, channel) = (number / channels, number % channels);
            for (a, row) in self.rows.iter().enumerate() {
                let apart = group * self.plane;
                let first = (channel * self.phases() + a * self.columns.len()) * apart;
                let first = first + place * self.plane + row.first * self.pitch;
                for (y, line) in row.lines(shape).enumerate() {
                    let line = &image[line * width..][..width];
                    self.deal(shape, line, &mut planes[first + y * self.pitch..], apart);
                }
            }
        }
    }

    /// Deals one line out to the phases of its columns, which are `apart`.
    fn deal(&self, shape: &Geometry, line: &[f32], planes: &mut [f32], apart: usize) {
        for (b, column) in self.columns.iter().enumerate() {
            let to = &mut planes[b * apart + column.first..][..column.count];
            let start = column.first * shape.stride + column.remainder - shape.pad;
            match shape.stride {
                1 => to.copy_from_slice(line),
                // A stride that the compiler knows is read with vectors.
                2 => copy_every::<2>(&line[start..], to),
                stride => {
                    let from = line[start..].iter().step_by(stride);
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                }
            }
        }
    }

    /// Puts the gradient of results into its planes, `group` images side by side.
    pub(super) fn pad(&self, shape: &Geometry, images: &[f32], group: usize, planes: &mut [f32]) {
        let Geometry { outputs, out_width, .. } = *shape;
        for (number, image) in images.chunks_exact(shape.places()).enumerate() {
            let (place, output) = (number / outputs, number % outputs);
            let corner = (output * group + place) * self.plane + self.corner();
            for (y, line) in image.chunks_exact(out_width).enumerate() {
                planes[corner + y * self.pitch..][..out_width].copy_from_slice(line);
            }
        }
    }
}

/// Copies every `S`-th number of `from`.
fn copy_every<const S: usize>(from: &[f32], to: &mut [f32]) {
    let whole = from.len() / S;
    let (most, last) = to.split_at_mut(whole.min(to.len()));
    most.iter_mut().zip(from.chunks_exact(S)).for_each(|(to, from)| *to = from[0]);
    // The line may end right after the last one.
    last.iter_mut().for_each(|to| *to = from[whole * S]);
}
