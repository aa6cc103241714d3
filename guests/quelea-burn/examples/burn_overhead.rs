//! What quelea adds to a step of Burn: the same steps alone and as one worker, in turns.
//!
//! Prints a line of JSON for each of two models: the median over rounds of one time divided by the other.
//! The first has many parameters for what it computes, the second has the usual ratio.

use std::time::Instant;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Int, Tensor};
use quelea::{Error, Run};
use quelea_burn::BurnProblem;

const BATCH: usize = 64;
const STEPS: u64 = 40;
const ROUNDS: usize = 15;

#[derive(Module, Debug)]
struct Mlp {
    layers: [Linear; 3],
}

impl Mlp {
    fn new(device: &Device) -> Mlp {
        let layer = |from, to| LinearConfig::new(from, to).init(device);
        Mlp { layers: [layer(784, 512), layer(512, 512), layer(512, 10)] }.materialize()
    }

    fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let [first, second, third] = &self.layers;
        third.forward(relu(second.forward(relu(first.forward(images)))))
    }
}

#[derive(Module, Debug)]
struct Cnn {
    convolutions: [Conv2d; 2],
    layers: [Linear; 2],
}

impl Cnn {
    fn new(device: &Device) -> Cnn {
        let convolution =
            |from, to| Conv2dConfig::new([from, to], [3, 3]).with_stride([2, 2]).init(device);
        let layer = |from, to| LinearConfig::new(from, to).init(device);
        let (convolutions, layers) =
            ([convolution(1, 16), convolution(16, 32)], [layer(32 * 36, 64), layer(64, 10)]);
        Cnn { convolutions, layers }.materialize()
    }

    fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let [first, second] = &self.convolutions;
        let hidden = relu(first.forward(images.reshape([BATCH, 1, 28, 28])));
        let hidden = relu(second.forward(hidden)).flatten::<2>(1, 3);
        self.layers[1].forward(relu(self.layers[0].forward(hidden)))
    }
}

/// Both times of a step, in milliseconds, and the median of their ratios.
struct Overhead {
    ours_ms: f64,
    alone_ms: f64,
    ratio: f64,
}

fn measure<M: Module + 'static>(
    model: &M,
    forward: fn(&M, Tensor<2>) -> Tensor<2>,
    device: &Device,
) -> Result<Overhead, Error> {
    let images = Tensor::<2>::random([BATCH, 784], Distribution::Default, device);
    let labels = Tensor::<1, Int>::arange(0..BATCH as i64, device).remainder_scalar(10);
    let loss = move |model: &M| {
        let logits = forward(model, images.clone());
        CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, labels.clone())
    };
    let of_worker = loss.clone();
    let problem = BurnProblem::new(model.clone(), move |model: &M, _| of_worker(model))?;
    let run = Run::of(problem).workers(1).learning_rate(0.01);

    let alone = || {
        let (mut model, mut optimizer) = (model.clone(), SgdConfig::new().init());
        let begin = Instant::now();
        for _ in 0..STEPS {
            let loss = loss(&model);
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(0.01, model, gradients);
            let _: f32 = loss.into_scalar();
        }
        begin.elapsed().as_secs_f64() / STEPS as f64
    };
    // The start and the end of a run are not steps: the difference of a long and a short one.
    let guest = || -> Result<f64, Error> {
        let seconds = |steps| Ok::<f64, Error>(run.clone().steps(steps).threads()?.seconds());
        Ok((seconds(STEPS + 2)? - seconds(2)?) / STEPS as f64)
    };
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push((guest()?, alone()));
    }
    let median = |of: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[ROUNDS / 2]
    };
    Ok(Overhead {
        ours_ms: 1e3 * median(|(ours, _)| *ours),
        alone_ms: 1e3 * median(|(_, alone)| *alone),
        ratio: median(|(ours, alone)| ours / alone),
    })
}

fn main() -> Result<(), Error> {
    let device = Device::flex().autodiff();
    let dense = measure(&Mlp::new(&device), Mlp::forward, &device)?;
    let convolutional = measure(&Cnn::new(&device), Cnn::forward, &device)?;
    for (what, found) in [("", dense), (", convolutional", convolutional)] {
        let Overhead { ours_ms, alone_ms, ratio } = found;
        println!(
            "{{\"name\": \"a step of Burn as a worker to one alone{what}\", \"ratio\": {ratio:.4}, \
             \"goal\": 1.05, \"ours_ms\": {ours_ms:.3}, \"alone_ms\": {alone_ms:.3}}}"
        );
    }
    Ok(())
}
