//! A candle model of one's own in forty lines: points on two spirals, four workers.

use candle_core::{Device, Result, Tensor};
use candle_nn::{Linear, Module, VarBuilder, linear, loss};
use quelea::Run;
use quelea_candle::CandleProblem;

/// Three layers.
fn network(vars: VarBuilder) -> Result<[Linear; 3]> {
    let layer = |name: &str, from, to| linear(from, to, vars.pp(name));
    Ok([layer("a", 2, 64)?, layer("b", 64, 64)?, layer("c", 64, 2)?])
}

/// 32 points from number `first` on, and which of the two spirals each is on.
fn spirals(first: u64) -> Result<(Tensor, Tensor)> {
    let (mut points, mut labels) = (Vec::new(), Vec::new());
    for k in first..first + 32 {
        let (label, turn) = (k % 2, 3.0 * (k as f64 * 0.618_034).fract() as f32);
        let angle = std::f32::consts::PI * (turn + label as f32);
        points.extend([turn * angle.cos(), turn * angle.sin()]);
        labels.push(label as u32);
    }
    let points = Tensor::from_vec(points, (32, 2), &Device::Cpu)?;
    Ok((points, Tensor::from_vec(labels, 32, &Device::Cpu)?))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let loss = |[first, second, third]: &[Linear; 3], batch: quelea::BatchId| {
        let (points, labels) = spirals((batch.step * 4 + batch.worker as u64) * 32 % 8192)?;
        let hidden = second.forward(&first.forward(&points)?.relu()?)?.relu()?;
        loss::cross_entropy(&third.forward(&hidden)?, &labels)
    };
    let problem = CandleProblem::new(&Device::Cpu, network, loss)?;
    for algorithm in ["allreduce", "d-psgd", "aladdin"] {
        let run = Run::of(problem.clone()).workers(4).steps(800).learning_rate(0.2);
        println!("{algorithm}: loss {:.3}", run.algorithm(algorithm).threads()?.loss());
    }
    Ok(())
}
