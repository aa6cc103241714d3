//! A Burn module of one's own in forty lines: points on two spirals, four workers.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig, Relu};
use burn::tensor::{Device, Int, Tensor, TensorData};
use quelea::problems::{ACCURACY, Evaluation, Problem};
use quelea::{BatchId, Error, Run};
use quelea_burn::BurnProblem;

#[derive(Module, Debug)]
struct Network {
    first: Linear,
    second: Linear,
    third: Linear,
    relu: Relu,
}

impl Network {
    fn new(device: &Device) -> Network {
        let layer = |from, to| LinearConfig::new(from, to).init(device);
        Network {
            first: layer(2, 64),
            second: layer(64, 64),
            third: layer(64, 2),
            relu: Relu::new(),
        }
    }

    fn forward(&self, points: Tensor<2>) -> Tensor<2> {
        let hidden = self.relu.forward(self.first.forward(points));
        self.third.forward(self.relu.forward(self.second.forward(hidden)))
    }
}

/// `count` points from number `first` on, and which of the two spirals each is on.
fn spirals(first: u64, count: usize, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    let (mut points, mut labels) = (Vec::new(), Vec::new());
    for k in first..first + count as u64 {
        let (label, turn) = (k % 2, 3.0 * (k as f64 * 0.618_034).fract() as f32);
        let angle = std::f32::consts::PI * (turn + label as f32);
        points.extend([turn * angle.cos(), turn * angle.sin()]);
        labels.push(label as i64);
    }
    let points = Tensor::from_data(TensorData::new(points, [count, 2]), device);
    (points, Tensor::from_data(TensorData::new(labels, [count]), device))
}

fn main() -> Result<(), Error> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let (data, held_out) = (device.clone(), device.clone().without_autodiff());
    let problem =
        BurnProblem::new(Network::new(&device), move |model: &Network, batch: BatchId| {
            let first = (batch.step * 4 + batch.worker as u64) * 32;
            let (points, labels) = spirals(first % 8192, 32, &data);
            CrossEntropyLossConfig::new().init(&data).forward(model.forward(points), labels)
        })?
        .evaluate_with(move |model| {
            let (points, labels) = spirals(1_000_000, 1000, &held_out);
            let right = model.forward(points).argmax(1).squeeze_dim::<1>(1).equal(labels);
            let share = right.int().sum().into_scalar::<f64>() / 1000.0;
            Evaluation::of_loss(1.0 - share).with(ACCURACY, Some(share))
        });
    for algorithm in ["allreduce", "d-psgd", "aladdin"] {
        let run = Run::of(problem.clone()).workers(4).steps(800).learning_rate(0.2);
        let outcome = run.algorithm(algorithm).threads()?;
        let accuracy = problem.evaluate(outcome.model()).accuracy();
        println!("{algorithm}: {:.1} % of unseen points", 100.0 * accuracy.unwrap_or_default());
    }
    Ok(())
}
