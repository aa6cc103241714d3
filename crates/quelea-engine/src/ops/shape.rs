//! Sums, and other views of the same numbers.

use crate::tape::{Tape, TapeValue, tensor};

impl Tape<'_> {
    /// `x + y`, of one shape.
    pub fn add(&mut self, x: &TapeValue, y: &TapeValue) -> TapeValue {
        assert_eq!(x.shape(), y.shape(), "what is added is of one shape");
        let sum = x.values().iter().zip(y.values()).map(|(x, y)| x + y).collect();
        let slots = [x.slot(), y.slot()];
        self.record_if(&[x, y], tensor(sum, x.shape()), move |dz, backward| {
            backward.add(slots[0], dz.clone());
            backward.add(slots[1], dz);
        })
    }

    /// `x` with these numbers added to each element of its first axis: positions, say.
    pub fn add_constant(&mut self, x: &TapeValue, numbers: &[f32]) -> TapeValue {
        let rows = x.values().chunks_exact(numbers.len());
        let sum = rows.flat_map(|row| row.iter().zip(numbers).map(|(x, y)| x + y)).collect();
        let slot = x.slot();
        self.record_if(&[x], tensor(sum, x.shape()), move |dy, backward| backward.add(slot, dy))
    }

    /// The same numbers in another shape.
    pub fn reshape(&mut self, x: &TapeValue, shape: &[usize]) -> TapeValue {
        let (slot, before) = (x.slot(), x.shape().to_vec());
        let y = x.tensor.clone().reshaped(shape);
        self.record_if(&[x], y, move |dy, backward| backward.add(slot, dy.reshaped(&before)))
    }

    /// Axes in another order: axis `k` of the result is axis `axes[k]` of `x`.
    pub fn permute(&mut self, x: &TapeValue, axes: &[usize]) -> TapeValue {
        let mut back = vec![0; axes.len()];
        axes.iter().enumerate().for_each(|(new, old)| back[*old] = new);
        let slot = x.slot();
        let y = x.tensor.permuted(axes);
        self.record_if(&[x], y, move |dy, backward| backward.add(slot, dy.permuted(&back)))
    }

    /// Every second pixel of images, with channels of zeros on both sides: the shortcut without
    /// parameters of He et al. 2016 (option A).
    pub fn subsample_and_pad(&mut self, x: &TapeValue, channels: usize) -> TapeValue {
        let [n, c, h, w] = dims(x);
        let (half_h, half_w, before) = (h.div_ceil(2), w.div_ceil(2), (channels - c) / 2);
        let shape = [n, channels, half_h, half_w];
        let mut y = vec![0.0; shape.iter().product()];
        let place = move |image: usize, channel: usize, row: usize| {
            (((image * channels + before + channel) * half_h + row) * half_w)
                ..(((image * channels + before + channel) * half_h + row + 1) * half_w)
        };
        let source = move |image: usize, channel: usize, row: usize| {
            ((image * c + channel) * h + 2 * row) * w
        };
        each(n, c, half_h, |image, channel, row| {
            let from = x.values()[source(image, channel, row)..].iter().step_by(2);
            y[place(image, channel, row)].iter_mut().zip(from).for_each(|(y, x)| *y = *x);
        });
        let slot = x.slot();
        self.record_if(&[x], tensor(y, &shape), move |dy, backward| {
            let dy = dy.values();
            let mut dx = vec![0.0; n * c * h * w];
            each(n, c, half_h, |image, channel, row| {
                let to = dx[source(image, channel, row)..].iter_mut().step_by(2);
                to.zip(&dy[place(image, channel, row)]).for_each(|(dx, dy)| *dx = *dy);
            });
            backward.add(slot, tensor(dx, &[n, c, h, w]));
        })
    }
}

fn each(n: usize, c: usize, rows: usize, mut visit: impl FnMut(usize, usize, usize)) {
    for image in 0..n {
        for channel in 0..c {
            (0..rows).for_each(|row| visit(image, channel, row));
        }
    }
}

/// The axes of images: number, channels, height, width.
pub(crate) fn dims(x: &TapeValue) -> [usize; 4] {
    x.shape().try_into().expect("images have four axes")
}
