//! Convolutions of images, as sums of shifted planes where that can be, else as products with a
//! matrix of patches: kernels of a single pixel, where that matrix is the image or every n-th pixel
//! of it, layers of so many outputs that gathering patches costs little beside multiplying them,
//! kernels of other sizes than 3, 5 and 7, and processors without AVX2.
//!
//! In products, images whose results are small are taken together, so that no product is too narrow to be
//! fast. The batch is cut into parts by its size alone, and the parts' gradients of the weights
//! are added in order: results do not depend on how many threads there are.

mod direct;
mod kernels;
mod layout;

use direct::{BatchPart, Direct};
use rayon::prelude::*;

use crate::matrix::{Matrix, Onto, multiply_here};
use crate::parameters::{Builder, Init, Param};
use crate::tape::{Tape, TapeValue, tensor};

use super::shape::dims;

/// A square kernel over images, without bias unless it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    weight: Param,
    bias: Option<Param>,
    inputs: usize,
    outputs: usize,
    size: usize,
    stride: usize,
    pad: usize,
}

impl Conv {
    /// Declares `weight` as in He et al. 2015; borders are padded with zeros so that stride 1
    /// keeps the image's size.
    pub fn new(builder: &mut Builder, inputs: usize, outputs: usize, size: usize) -> Conv {
        let init = Init::he(inputs * size * size);
        let weight = builder.param("weight", &[outputs, inputs, size, size], init);
        Conv { weight, bias: None, inputs, outputs, size, stride: 1, pad: size / 2 }
    }

    /// Only every `stride`-th place in both directions.
    pub fn stride(self, stride: usize) -> Conv {
        Conv { stride, ..self }
    }

    /// Declares `bias` with zeros.
    pub fn biased(self, builder: &mut Builder) -> Conv {
        let bias = builder.param("bias", &[self.outputs], Init::Constant(0.0));
        Conv { bias: Some(bias), ..self }
    }

    /// Channels of the result.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    fn geometry(&self, x: &TapeValue) -> Geometry {
        let [images, channels, height, width] = dims(x);
        assert_eq!(channels, self.inputs, "the images have the channels that the kernel takes");
        let out = |length: usize| (length + 2 * self.pad - self.size) / self.stride + 1;
        let (out_height, out_width) = (out(height), out(width));
        let places = out_height * out_width;
        Geometry {
            images,
            channels,
            outputs: self.outputs,
            height,
            width,
            out_height,
            out_width,
            size: self.size,
            stride: self.stride,
            pad: self.pad,
            together: NARROW.div_ceil(places).min(images.div_ceil(PARTS)).max(1),
        }
    }
}

/// Products narrower than this waste time on packing.
const NARROW: usize = 192;
/// Into how many parts a batch is cut at most.
const PARTS: usize = 4;
/// From so many multiplications on, several threads are faster than one.
const WORTH_THREADS: usize = 2_000_000;

/// The shapes of one convolution.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    images: usize,
    channels: usize,
    outputs: usize,
    height: usize,
    width: usize,
    out_height: usize,
    out_width: usize,
    size: usize,
    stride: usize,
    pad: usize,
    /// How many images go into one product.
    together: usize,
}

impl Geometry {
    /// Numbers of one image.
    fn image(&self) -> usize {
        self.channels * self.height * self.width
    }

    /// Places of one result.
    fn places(&self) -> usize {
        self.out_height * self.out_width
    }

    /// Numbers of one result.
    fn result(&self) -> usize {
        self.outputs * self.places()
    }

    /// Numbers of one patch.
    fn patch(&self) -> usize {
        self.channels * self.size * self.size
    }

    /// Whether the matrix of patches is the image itself.
    fn is_plain(&self) -> bool {
        self.size == 1 && self.stride == 1 && self.together == 1
    }

    /// Images of one part of the batch.
    fn part(&self) -> usize {
        let groups = self.images.div_ceil(self.together);
        groups.div_ceil(PARTS) * self.together
    }

    fn pays_threads(&self) -> bool {
        self.images * self.result() * self.patch() >= WORTH_THREADS
    }

    /// The columns of the output's row that the kernel's column `kx` reads within the image.
    fn columns(&self, kx: usize) -> std::ops::Range<usize> {
        let first = self.pad.saturating_sub(kx).div_ceil(self.stride);
        let past = (self.width + self.pad).saturating_sub(kx).div_ceil(self.stride);
        first.min(self.out_width)..past.min(self.out_width)
    }

    /// Visits every run of numbers that an image and its patches share: (row of the matrix of
    /// patches, where in that row, where in the image, how many).
    fn runs(&self, mut visit: impl FnMut(usize, usize, usize, usize)) {
        for row in 0..self.patch() {
            let (kx, ky) = (row % self.size, row / self.size % self.size);
            let plane = row / (self.size * self.size) * self.height * self.width;
            let columns = self.columns(kx);
            if columns.is_empty() {
                continue;
            }
            for y in 0..self.out_height {
                let Some(line) = (y * self.stride + ky).checked_sub(self.pad) else { continue };
                if line >= self.height {
                    break;
                }
                let from = plane + line * self.width + columns.start * self.stride + kx - self.pad;
                visit(row, y * self.out_width + columns.start, from, columns.len());
            }
        }
    }

    /// Writes the patches of image number `k` of those taken together.
    fn gather(&self, image: &[f32], k: usize, patches: &mut [f32]) {
        let (width, offset) = (self.together * self.places(), k * self.places());
        self.runs(|row, place, from, len| {
            let to = &mut patches[row * width + offset + place..][..len];
            if self.stride == 1 {
                to.copy_from_slice(&image[from..from + len]);
            } else {
                let from = image[from..].iter().step_by(self.stride);
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
        });
    }

    /// Adds the patches of image number `k` of those taken together to where they came from.
    fn scatter(&self, patches: &[f32], k: usize, image: &mut [f32]) {
        let (width, offset) = (self.together * self.places(), k * self.places());
        self.runs(|row, place, to, len| {
            let from = &patches[row * width + offset + place..][..len];
            if self.stride == 1 {
                let to = &mut image[to..to + len];
                to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
            } else {
                let to = image[to..].iter_mut().step_by(self.stride);
                to.zip(from).for_each(|(to, from)| *to += from);
            }
        });
    }

    /// Copies rows between results (image by image) and a product (row by row).
    fn rows(&self, images: usize, mut visit: impl FnMut(usize, usize)) {
        for k in 0..images {
            for output in 0..self.outputs {
                let result = k * self.result() + output * self.places();
                visit(result, (output * self.together + k) * self.places());
            }
        }
    }
}

/// What one thread works with.
struct Scratch {
    /// The matrix of patches. Places outside the image are 0 and stay so.
    patches: Vec<f32>,
    /// A product of several images.
    product: Vec<f32>,
}

impl Scratch {
    fn new(shape: &Geometry) -> Scratch {
        let patches = if shape.is_plain() { 0 } else { shape.together * shape.places() };
        let product = if shape.together == 1 { 0 } else { shape.together * shape.result() };
        Scratch { patches: vec![0.0; patches * shape.patch()], product: vec![0.0; product] }
    }
}

impl Tape<'_> {
    /// Applies a convolution.
    pub fn conv(&mut self, x: &TapeValue, conv: &Conv) -> TapeValue {
        let shape = conv.geometry(x);
        let weights = self.param(conv.weight);
        let bias = conv.bias.map(|bias| self.param(bias));
        let mut y = vec![0.0; shape.images * shape.result()];
        let part = shape.part();
        let direct = Direct::of(&shape);
        let work = |(x, y): (&[f32], &mut [f32])| match &direct {
            Some(direct) => direct.forward(weights, bias, x, y),
            None => forward(&shape, weights, bias, x, y),
        };
        let inputs = x.values().chunks(part * shape.image());
        let outputs = y.chunks_mut(part * shape.result());
        if shape.pays_threads() {
            let parts: Vec<_> = inputs.zip(outputs).collect();
            parts.into_par_iter().for_each(work);
        } else {
            inputs.zip(outputs).for_each(work);
        }
        let (slot, kept, conv) = (x.slot(), x.tensor.clone(), *conv);
        let axes = [shape.images, shape.outputs, shape.out_height, shape.out_width];
        let writes: Vec<Param> = conv.bias.into_iter().chain([conv.weight]).collect();
        self.record(&writes, tensor(y, &axes), move |dy, backward| {
            let dy = dy.values();
            if let Some(bias) = conv.bias {
                add_places(&shape, dy, backward.param(bias).1);
            }
            let (weights, grad) = backward.param(conv.weight);
            let input = slot.asked();
            let direct = direct.as_ref();
            let pass = Pass { shape, direct, weights, x: kept.values(), dy, input };
            let dx = pass.run(grad);
            if input {
                let axes = [shape.images, shape.channels, shape.height, shape.width];
                backward.add(slot, tensor(dx, &axes));
            }
        })
    }
}

/// The results `y` of the images `x`.
fn forward(shape: &Geometry, weights: &[f32], bias: Option<&[f32]>, x: &[f32], y: &mut [f32]) {
    let mut scratch = Scratch::new(shape);
    let kernel = Matrix::new(weights, shape.outputs, shape.patch());
    let width = shape.together * shape.places();
    let inputs = x.chunks(shape.together * shape.image());
    for (x, y) in inputs.zip(y.chunks_mut(shape.together * shape.result())) {
        let patches = patches_of(shape, x, &mut scratch.patches);
        let patches = Matrix::new(patches, shape.patch(), width);
        if shape.together == 1 {
            multiply_here(kernel, patches, Onto::Nothing, y);
        } else {
            multiply_here(kernel, patches, Onto::Nothing, &mut scratch.product);
            shape.rows(y.len() / shape.result(), |result, row| {
                let places = shape.places();
                y[result..result + places].copy_from_slice(&scratch.product[row..row + places]);
            });
        }
        if let Some(bias) = bias {
            for (row, bias) in y.chunks_exact_mut(shape.places()).zip(bias.iter().cycle()) {
                row.iter_mut().for_each(|y| *y += bias);
            }
        }
    }
}

fn patches_of<'a>(shape: &Geometry, x: &'a [f32], patches: &'a mut [f32]) -> &'a [f32] {
    if shape.is_plain() {
        return x;
    }
    for (k, image) in x.chunks_exact(shape.image()).enumerate() {
        shape.gather(image, k, patches);
    }
    patches
}

/// A backward pass through one convolution.
struct Pass<'a> {
    shape: Geometry,
    direct: Option<&'a Direct>,
    weights: &'a [f32],
    x: &'a [f32],
    dy: &'a [f32],
    /// Whether the gradient of the images is asked for.
    input: bool,
}

impl Pass<'_> {
    /// Adds the gradient of the weights to `grad`; returns that of the images.
    fn run(&self, grad: &mut [f32]) -> Vec<f32> {
        let shape = &self.shape;
        let mut dx = vec![0.0; if self.input { shape.images * shape.image() } else { 0 }];
        let part = shape.part();
        let mut inputs: Vec<&mut [f32]> = dx.chunks_mut(part * shape.image()).collect();
        inputs.resize_with(shape.images.div_ceil(part), Default::default);
        let x = self.x.chunks(part * shape.image());
        let dy = self.dy.chunks(part * shape.result());
        let mut parts = x.zip(dy).zip(inputs).map(|((x, dy), dx)| BatchPart { x, dy, dx });
        if !shape.pays_threads() {
            parts.for_each(|part| self.part(part, grad));
            return dx;
        }
        // The first part adds to the gradient itself; the others are added in order.
        let first = parts.next().expect("a batch has images");
        let mut others: Vec<_> = parts.map(|part| (part, vec![0.0; grad.len()])).collect();
        rayon::join(
            || self.part(first, grad),
            || others.par_iter_mut().for_each(|(part, grad)| self.part(part.reborrow(), grad)),
        );
        for (_, more) in &others {
            grad.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        drop(others);
        dx
    }

    /// One part of the batch.
    fn part(&self, part: BatchPart<'_>, grad: &mut [f32]) {
        if let Some(direct) = self.direct {
            return direct.backward(self.weights, part, grad);
        }
        let BatchPart { x, dy, dx } = part;
        let shape = &self.shape;
        let width = shape.together * shape.places();
        let mut scratch = Scratch::new(shape);
        let mut reverse = vec![0.0; if self.input { shape.patch() * width } else { 0 }];
        let kernel = Matrix::new(self.weights, shape.outputs, shape.patch());
        let mut dx = dx.chunks_mut(shape.together * shape.image());
        let inputs = x.chunks(shape.together * shape.image());
        for (x, dy) in inputs.zip(dy.chunks(shape.together * shape.result())) {
            let upstream = self.upstream(dy, &mut scratch.product);
            let upstream = Matrix::new(upstream, shape.outputs, width);
            let patches = patches_of(shape, x, &mut scratch.patches);
            let patches = Matrix::new(patches, shape.patch(), width);
            multiply_here(upstream, patches.transposed(), Onto::Itself, grad);
            let Some(dx) = dx.next() else { continue };
            if shape.is_plain() {
                multiply_here(kernel.transposed(), upstream, Onto::Nothing, dx);
                continue;
            }
            multiply_here(kernel.transposed(), upstream, Onto::Nothing, &mut reverse);
            for (k, image) in dx.chunks_exact_mut(shape.image()).enumerate() {
                shape.scatter(&reverse, k, image);
            }
        }
    }

    /// The gradient of results as one matrix; places of images that are missing are 0.
    fn upstream<'a>(&self, dy: &'a [f32], product: &'a mut [f32]) -> &'a [f32] {
        let shape = &self.shape;
        if shape.together == 1 {
            return dy;
        }
        let images = dy.len() / shape.result();
        if images < shape.together {
            product.fill(0.0);
        }
        shape.rows(images, |result, row| {
            let places = shape.places();
            product[row..row + places].copy_from_slice(&dy[result..result + places]);
        });
        product
    }
}

/// Adds the gradient of every place to that of its channel's bias.
fn add_places(shape: &Geometry, dy: &[f32], grad: &mut [f32]) {
    for image in dy.chunks_exact(shape.result()) {
        for (sum, places) in grad.iter_mut().zip(image.chunks_exact(shape.places())) {
            *sum += places.iter().sum::<f32>();
        }
    }
}
