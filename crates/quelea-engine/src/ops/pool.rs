//! Pooling of images.

use rayon::prelude::*;

use crate::tape::{Tape, TapeValue, tensor};

use super::shape::dims;

/// From so many results on, several threads are faster than one.
const WORTH_THREADS: usize = 100_000;

/// Square windows over planes of numbers.
#[derive(Clone, Copy, Debug)]
struct Windows {
    height: usize,
    width: usize,
    size: usize,
    stride: usize,
    pad: usize,
}

impl Windows {
    fn out(&self, length: usize) -> usize {
        (length + 2 * self.pad - self.size) / self.stride + 1
    }

    /// What the windows number `k` covers of an axis.
    fn span(&self, k: usize, length: usize) -> std::ops::Range<usize> {
        let begin = k * self.stride;
        begin.saturating_sub(self.pad)..(begin + self.size - self.pad).min(length)
    }

    /// Writes the largest number under each window, and where in the plane it is; of equal ones
    /// the first.
    fn pool(&self, plane: &[f32], out: &mut [f32], places: &mut [u32]) {
        let width = self.out(self.width);
        let rows = out.chunks_exact_mut(width).zip(places.chunks_exact_mut(width));
        for (y, (out, places)) in rows.enumerate() {
            let lines = self.span(y, self.height);
            for (x, (out, place)) in out.iter_mut().zip(places).enumerate() {
                let columns = self.span(x, self.width);
                let first = lines.start * self.width + columns.start;
                let mut best = (plane[first], first);
                for line in lines.clone() {
                    let start = line * self.width;
                    let row = &plane[start + columns.start..start + columns.end];
                    for (index, value) in row.iter().enumerate() {
                        if *value > best.0 {
                            best = (*value, start + columns.start + index);
                        }
                    }
                }
                (*out, *place) = (best.0, best.1 as u32);
            }
        }
    }
}

impl Tape<'_> {
    /// The largest number under a square window; what lies outside is smaller than anything.
    pub fn max_pool(&mut self, x: &TapeValue, size: usize, stride: usize, pad: usize) -> TapeValue {
        let [images, channels, height, width] = dims(x);
        let windows = Windows { height, width, size, stride, pad };
        let (out_height, out_width) = (windows.out(height), windows.out(width));
        let (plane, out) = (height * width, out_height * out_width);
        let mut y = vec![0.0; images * channels * out];
        let mut places = vec![0; y.len()];
        let work = |((x, y), places): ((&[f32], &mut [f32]), &mut [u32])| {
            let planes = x.chunks_exact(plane).zip(y.chunks_exact_mut(out));
            for ((x, y), places) in planes.zip(places.chunks_exact_mut(out)) {
                windows.pool(x, y, places);
            }
        };
        if y.len() >= WORTH_THREADS {
            let images = x.values().par_chunks(channels * plane);
            let images = images.zip(y.par_chunks_mut(channels * out));
            images.zip(places.par_chunks_mut(channels * out)).with_min_len(4).for_each(work);
        } else {
            work(((x.values(), &mut y), &mut places));
        }
        let slot = x.slot();
        let axes = [images, channels, out_height, out_width];
        self.record_if(&[x], tensor(y, &axes), move |dy, backward| {
            let dy = dy.values();
            let mut dx = vec![0.0; images * channels * plane];
            let gradients = dy.chunks_exact(out).zip(places.chunks_exact(out));
            for (dx, (dy, places)) in dx.chunks_exact_mut(plane).zip(gradients) {
                dy.iter().zip(places).for_each(|(dy, place)| dx[*place as usize] += dy);
            }
            backward.add(slot, tensor(dx, &[images, channels, height, width]));
        })
    }

    /// The mean of every channel: `[images, channels]`.
    pub fn mean_pool(&mut self, x: &TapeValue) -> TapeValue {
        let [images, channels, height, width] = dims(x);
        let places = height * width;
        let planes = x.values().chunks_exact(places);
        let means = planes.map(|plane| plane.iter().sum::<f32>() / places as f32).collect();
        let slot = x.slot();
        self.record_if(&[x], tensor(means, &[images, channels]), move |dy, backward| {
            let dy = dy.values();
            let each = dy.iter().flat_map(|dy| std::iter::repeat_n(dy / places as f32, places));
            backward.add(slot, tensor(each.collect(), &[images, channels, height, width]));
        })
    }
}
