//! Batch normalisation (Ioffe and Szegedy 2015).
//!
//! In training the batch's own mean and variance are used, and nothing is carried from step to
//! step: a gradient is a function of the parameters and the batch. For answers, mean and variance
//! are measured over training data when they are needed.

use rayon::prelude::*;

use crate::parameters::{Builder, Init, Param, Statistic};
use crate::tape::{PassMode, Tape, TapeValue, tensor};

use super::shape::dims;

/// Added to variances.
const EPSILON: f32 = 1e-5;

/// Normalises every channel of images.
#[derive(Clone, Copy, Debug)]
pub struct BatchNorm {
    scale: Param,
    shift: Param,
    statistic: Statistic,
}

impl BatchNorm {
    /// Declares `weight` with ones, `bias` with zeros, and the statistics.
    pub fn new(builder: &mut Builder, channels: usize) -> BatchNorm {
        BatchNorm {
            scale: builder.param("weight", &[channels], Init::Constant(1.0)),
            shift: builder.param("bias", &[channels], Init::Constant(0.0)),
            statistic: builder.statistic(channels),
        }
    }
}

/// Whether negative results become 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Then {
    /// No.
    Nothing,
    /// Yes.
    Relu,
}

/// From so many numbers on, several threads are faster than one.
const WORTH_THREADS: usize = 200_000;

/// One channel: `y = x · factor + offset`.
#[derive(Clone, Copy, Debug, Default)]
struct Channel {
    mean: f32,
    /// 1 / √(variance + ε).
    inverse: f32,
    factor: f32,
    offset: f32,
}

impl Tape<'_> {
    /// Normalises every channel.
    pub fn batch_norm(&mut self, x: &TapeValue, norm: &BatchNorm, then: Then) -> TapeValue {
        let [images, channels, height, width] = dims(x);
        let shape = Planes { images, channels, places: height * width };
        let moments = match self.mode {
            PassMode::Evaluate => {
                let (means, variances) = self.moments(norm.statistic);
                means.iter().copied().zip(variances.iter().copied()).collect()
            }
            _ => shape.moments(x.values()),
        };
        if self.mode == PassMode::Calibrate {
            let count = (images * shape.places) as f32;
            let unbiased = |variance: f32| variance * count / (count - 1.0).max(1.0);
            let means = moments.iter().map(|(mean, _)| *mean).collect();
            let variances = moments.iter().map(|(_, variance)| unbiased(*variance)).collect();
            self.keep_moments(norm.statistic, means, variances);
        }
        let parameters = self.param(norm.scale).iter().zip(self.param(norm.shift));
        let lines = moments.iter().zip(parameters).map(|(&(mean, variance), (scale, shift))| {
            let inverse = 1.0 / (variance + EPSILON).sqrt();
            let factor = scale * inverse;
            Channel { mean, inverse, factor, offset: shift - mean * factor }
        });
        let lines: Vec<Channel> = lines.collect();
        let y = tensor(shape.apply(x.values(), &lines, then), x.shape());
        let (slot, axes, norm) = (x.slot(), x.shape().to_vec(), *norm);
        if self.mode != PassMode::Train {
            return TapeValue::untracked(y);
        }
        let (x, kept) = (x.tensor.clone(), y.clone());
        self.record(&[norm.scale, norm.shift], y, move |mut dy, backward| {
            if then == Then::Relu {
                let values = dy.values_mut();
                for (dy, y) in values.iter_mut().zip(kept.values()) {
                    *dy = if *y > 0.0 { *dy } else { 0.0 };
                }
            }
            drop(kept);
            let (x, dy) = (x.values(), dy.values());
            let sums = shape.sums(x, dy, &lines);
            add(backward.param(norm.shift).1, sums.iter().map(|sums| sums.0));
            add(backward.param(norm.scale).1, sums.iter().map(|sums| sums.1));
            if slot.asked() {
                backward.add(slot, tensor(shape.back(x, dy, &lines, &sums), &axes));
            }
        })
    }
}

fn add(sum: &mut [f32], parts: impl Iterator<Item = f32>) {
    sum.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
}

/// Images as planes of numbers.
#[derive(Clone, Copy, Debug)]
struct Planes {
    images: usize,
    channels: usize,
    places: usize,
}

impl Planes {
    fn plane(&self, image: usize, channel: usize) -> std::ops::Range<usize> {
        let start = (image * self.channels + channel) * self.places;
        start..start + self.places
    }

    fn pays_threads(&self) -> bool {
        self.images * self.channels * self.places >= WORTH_THREADS
    }

    fn by_channel<T: Send>(&self, of: impl Fn(usize) -> T + Sync + Send) -> Vec<T> {
        if self.pays_threads() {
            (0..self.channels).into_par_iter().with_min_len(4).map(of).collect()
        } else {
            (0..self.channels).map(of).collect()
        }
    }

    fn by_image(&self, values: &mut [f32], of: impl Fn(usize, &mut [f32]) + Sync) {
        let images = self.channels * self.places;
        if self.pays_threads() {
            let images = values.par_chunks_mut(images).enumerate();
            images.with_min_len(4).for_each(|(image, values)| of(image, values));
        } else {
            values.chunks_mut(images).enumerate().for_each(|(image, values)| of(image, values));
        }
    }

    /// Mean and (biased) variance of each channel.
    fn moments(&self, x: &[f32]) -> Vec<(f32, f32)> {
        let count = (self.images * self.places) as f64;
        self.by_channel(|channel| {
            let planes = || (0..self.images).map(|image| &x[self.plane(image, channel)]);
            let mean = planes().map(|plane| f64::from(sum(plane, |x| x))).sum::<f64>() / count;
            let center = mean as f32;
            let squares = planes().map(|plane| f64::from(sum(plane, |x| (x - center).powi(2))));
            (center, (squares.sum::<f64>() / count) as f32)
        })
    }

    fn apply(&self, x: &[f32], lines: &[Channel], then: Then) -> Vec<f32> {
        let mut y = vec![0.0; x.len()];
        let floor = if then == Then::Relu { 0.0 } else { f32::NEG_INFINITY };
        self.by_image(&mut y, |image, y| {
            let planes = y.chunks_exact_mut(self.places).zip(lines).enumerate();
            for (channel, (y, line)) in planes {
                let x = &x[self.plane(image, channel)];
                let at = |x: f32| (x * line.factor + line.offset).max(floor);
                y.iter_mut().zip(x).for_each(|(y, x)| *y = at(*x));
            }
        });
        y
    }

    /// For each channel Σ dy and Σ dy · x̂.
    fn sums(&self, x: &[f32], dy: &[f32], lines: &[Channel]) -> Vec<(f32, f32)> {
        self.by_channel(|channel| {
            let line = lines[channel];
            let (mut plain, mut weighted) = (0.0f64, 0.0f64);
            for image in 0..self.images {
                let plane = self.plane(image, channel);
                let (x, dy) = (&x[plane.clone()], &dy[plane]);
                plain += f64::from(sum(dy, |dy| dy));
                weighted += f64::from(sum_of_products(x, dy, line.mean));
            }
            (plain as f32, weighted as f32 * line.inverse)
        })
    }

    /// The gradient of `x`: `factor · (dy − mean(dy) − x̂ · mean(dy · x̂))`.
    fn back(&self, x: &[f32], dy: &[f32], lines: &[Channel], sums: &[(f32, f32)]) -> Vec<f32> {
        let share = 1.0 / (self.images * self.places) as f32;
        let mut dx = vec![0.0; x.len()];
        self.by_image(&mut dx, |image, dx| {
            for (channel, dx) in dx.chunks_exact_mut(self.places).enumerate() {
                let (line, (plain, weighted)) = (lines[channel], sums[channel]);
                let slope = line.inverse * weighted * share;
                let plane = self.plane(image, channel);
                let inputs = x[plane.clone()].iter().zip(&dy[plane]);
                for (dx, (x, dy)) in dx.iter_mut().zip(inputs) {
                    *dx = line.factor * (dy - plain * share - (x - line.mean) * slope);
                }
            }
        });
        dx
    }
}

const LANES: usize = 16;

/// Σ f(x), in lanes so that it vectorises.
fn sum(values: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest: f32 = chunks.remainder().iter().map(|x| of(*x)).sum();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += of(*x));
    }
    lanes.iter().sum::<f32>() + rest
}

/// Σ (x − mean) · dy.
fn sum_of_products(x: &[f32], dy: &[f32], mean: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (xs, dys) = (x.chunks_exact(LANES), dy.chunks_exact(LANES));
    let rest = xs.remainder().iter().zip(dys.remainder());
    let rest: f32 = rest.map(|(x, dy)| (x - mean) * dy).sum();
    for (x, dy) in xs.zip(dys) {
        for lane in 0..LANES {
            lanes[lane] += (x[lane] - mean) * dy[lane];
        }
    }
    lanes.iter().sum::<f32>() + rest
}
