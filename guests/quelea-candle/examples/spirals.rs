//! A candle model of one's own in forty lines: points on two spirals, four workers.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{Linear, Module, VarBuilder, linear, loss};
use quelea::problems::{ACCURACY, Evaluation, Problem};
use quelea::{BatchId, Run};
use quelea_candle::CandleProblem;

struct Network {
    layers: [Linear; 3],
}

impl Network {
    fn new(vars: VarBuilder) -> Result<Network> {
        let layer = |name: &str, from, to| linear(from, to, vars.pp(name));
        Ok(Network { layers: [layer("a", 2, 64)?, layer("b", 64, 64)?, layer("c", 64, 2)?] })
    }

    fn forward(&self, points: &Tensor) -> Result<Tensor> {
        let [first, second, third] = &self.layers;
        third.forward(&second.forward(&first.forward(points)?.relu()?)?.relu()?)
    }
}

/// `count` points from number `first` on, and which of the two spirals each is on.
fn spirals(first: u64, count: usize) -> Result<(Tensor, Tensor)> {
    let (mut points, mut labels) = (Vec::new(), Vec::new());
    for k in first..first + count as u64 {
        let (label, turn) = (k % 2, 3.0 * (k as f64 * 0.618_034).fract() as f32);
        let angle = std::f32::consts::PI * (turn + label as f32);
        points.extend([turn * angle.cos(), turn * angle.sin()]);
        labels.push(label as u32);
    }
    let points = Tensor::from_vec(points, (count, 2), &Device::Cpu)?;
    Ok((points, Tensor::from_vec(labels, count, &Device::Cpu)?))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let problem = CandleProblem::new(&Device::Cpu, Network::new, |model, batch: BatchId| {
        let first = (batch.step * 4 + batch.worker as u64) * 32;
        let (points, labels) = spirals(first % 8192, 32)?;
        loss::cross_entropy(&model.forward(&points)?, &labels)
    })?
    .evaluate_with(|model| {
        let (points, labels) = spirals(1_000_000, 1000)?;
        let right = model.forward(&points)?.argmax(D::Minus1)?.eq(&labels)?;
        let share = f64::from(right.to_dtype(DType::F32)?.mean_all()?.to_scalar::<f32>()?);
        Ok(Evaluation::of_loss(1.0 - share).with(ACCURACY, Some(share)))
    });
    for algorithm in ["allreduce", "d-psgd", "aladdin"] {
        let run = Run::of(problem.clone()).workers(4).steps(800).learning_rate(0.2);
        let outcome = run.algorithm(algorithm).threads()?;
        let accuracy = problem.evaluate(outcome.model()).accuracy();
        println!("{algorithm}: {:.1} % of unseen points", 100.0 * accuracy.unwrap_or_default());
    }
    Ok(())
}
