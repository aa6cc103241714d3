//! Layers of neurons with ReLU in between.

use super::{Classifier, ImageModel, ImageSpec};
use crate::ops::Linear;
use crate::parameters::Init;
use crate::tape::{Tape, TapeValue};

struct Mlp {
    layers: Vec<Linear>,
}

/// A network with hidden layers of these widths, started as in He et al. 2015.
pub fn mlp(images: ImageSpec, hidden: &[usize]) -> ImageModel {
    let inputs = images.channels * images.height * images.width;
    let widths = [&[inputs], hidden, &[images.classes]].concat();
    ImageModel::build(|builder| {
        let layers = widths.windows(2).enumerate().map(|(index, pair)| {
            let declare = |b: &mut _| Linear::new(b, pair[0], pair[1], Init::he(pair[0]));
            builder.scope(format!("layers.{index}"), declare)
        });
        Mlp { layers: layers.collect() }
    })
}

impl Classifier for Mlp {
    fn scores(&self, tape: &mut Tape<'_>, images: TapeValue) -> TapeValue {
        let number = images.shape()[0];
        let mut x = tape.reshape(&images, &[number, images.values().len() / number]);
        let (last, hidden) = self.layers.split_last().expect("at least the output");
        for layer in hidden {
            let sums = tape.linear(&x, layer);
            x = tape.relu(sums);
        }
        tape.linear(&x, last)
    }
}
