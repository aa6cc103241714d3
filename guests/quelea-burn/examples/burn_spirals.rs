//! A Burn module of one's own in forty lines: points on two spirals, four workers.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, activation::relu};
use quelea::{Error, Run};
use quelea_burn::BurnProblem;

#[derive(Module, Debug)]
struct Network {
    layers: [Linear; 3],
}

/// 32 points from number `first` on, and which of the two spirals each is on.
fn spirals(first: u64, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    let (mut points, mut labels) = (Vec::new(), Vec::new());
    for k in first..first + 32 {
        let (label, turn) = (k % 2, 3.0 * (k as f64 * 0.618_034).fract() as f32);
        let angle = std::f32::consts::PI * (turn + label as f32);
        points.extend([turn * angle.cos(), turn * angle.sin()]);
        labels.push(label as i64);
    }
    let points = Tensor::<1>::from_data(points.as_slice(), device).reshape([32, 2]);
    (points, Tensor::from_data(labels.as_slice(), device))
}

fn main() -> Result<(), Error> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let layer = |from, to| LinearConfig::new(from, to).init(&device);
    let network = Network { layers: [layer(2, 64), layer(64, 64), layer(64, 2)] };
    let problem = BurnProblem::new(network, move |model: &Network, batch| {
        let first = (batch.step * 4 + batch.worker as u64) * 32;
        let (points, labels) = spirals(first % 8192, &device);
        let [first, second, third] = &model.layers;
        let logits = third.forward(relu(second.forward(relu(first.forward(points)))));
        CrossEntropyLossConfig::new().init(&device).forward(logits, labels)
    })?;
    for algorithm in ["allreduce", "d-psgd", "aladdin"] {
        let run = Run::of(problem.clone()).workers(4).steps(800).learning_rate(0.2);
        println!("{algorithm}: loss {:.3}", run.algorithm(algorithm).threads()?.loss());
    }
    Ok(())
}
