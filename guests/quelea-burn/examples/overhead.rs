//! What quelea adds to a step of Burn: the same steps alone and as one worker, in turns.
//!
//! Prints a line of JSON: the median over rounds of one time divided by the other.

use std::time::Instant;

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Distribution, Int, Tensor};
use quelea::{Error, Run};
use quelea_burn::BurnProblem;

const BATCH: usize = 64;
const STEPS: u64 = 40;
const ROUNDS: usize = 9;

#[derive(Module, Debug)]
struct Mlp {
    layers: Vec<Linear>,
    relu: Relu,
}

impl Mlp {
    fn new(device: &Device) -> Mlp {
        let widths = [784, 512, 512, 10];
        let layer = |pair: &[usize]| LinearConfig::new(pair[0], pair[1]).init(device);
        Mlp { layers: widths.windows(2).map(layer).collect(), relu: Relu::new() }.materialize()
    }

    fn loss(&self, images: &Tensor<2>, labels: &Tensor<1, Int>) -> Tensor<1> {
        let (last, hidden) = self.layers.split_last().expect("there are layers");
        let forward = |x, layer: &Linear| self.relu.forward(layer.forward(x));
        let logits = last.forward(hidden.iter().fold(images.clone(), forward));
        CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, labels.clone())
    }
}

fn main() -> Result<(), Error> {
    let device = Device::flex().autodiff();
    let images = Tensor::random([BATCH, 784], Distribution::Default, &device);
    let labels = Tensor::<1, Int>::arange(0..BATCH as i64, &device).remainder_scalar(10);
    let (model, (of_worker, answers)) = (Mlp::new(&device), (images.clone(), labels.clone()));
    let loss = move |model: &Mlp, _| model.loss(&of_worker, &answers);
    let problem = BurnProblem::new(model.clone(), loss)?;
    let run = Run::of(problem).workers(1).learning_rate(0.01);

    let alone = || {
        let (mut model, mut optimizer) = (model.clone(), SgdConfig::new().init());
        let begin = Instant::now();
        for _ in 0..STEPS {
            let loss = model.loss(&images, &labels);
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
    println!(
        "{{\"name\": \"a step of Burn as a worker to one alone\", \"ratio\": {:.4}, \"goal\": 1.05, \
         \"ours_ms\": {:.3}, \"alone_ms\": {:.3}}}",
        median(|(ours, alone)| ours / alone),
        1e3 * median(|(ours, _)| *ours),
        1e3 * median(|(_, alone)| *alone),
    );
    Ok(())
}
