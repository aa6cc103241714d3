//! What quelea adds to a step of candle: the same steps alone and as one worker, in turns.
//!
//! Prints a line of JSON: the median over rounds of one time divided by the other.

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Linear, Module, Optimizer, SGD, VarBuilder, VarMap, linear, loss};
use quelea::Run;
use quelea_candle::CandleProblem;

const BATCH: usize = 64;
const STEPS: u64 = 40;
const ROUNDS: usize = 15;

struct Mlp {
    layers: [Linear; 3],
}

impl Mlp {
    fn new(vars: VarBuilder) -> Result<Mlp> {
        let layer = |name: &str, from, to| linear(from, to, vars.pp(name));
        Ok(Mlp { layers: [layer("a", 784, 512)?, layer("b", 512, 512)?, layer("c", 512, 10)?] })
    }

    fn loss(&self, images: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let [first, second, third] = &self.layers;
        let hidden = second.forward(&first.forward(images)?.relu()?)?.relu()?;
        loss::cross_entropy(&third.forward(&hidden)?, labels)
    }
}

/// Seconds of a step with candle's own loop.
fn alone(images: &Tensor, labels: &Tensor) -> Result<f64> {
    let vars = VarMap::new();
    let model = Mlp::new(VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu))?;
    let mut optimizer = SGD::new(vars.all_vars(), 0.01)?;
    let begin = Instant::now();
    for _ in 0..STEPS {
        let loss = model.loss(images, labels)?;
        optimizer.backward_step(&loss)?;
        loss.to_scalar::<f32>()?;
    }
    Ok(begin.elapsed().as_secs_f64() / STEPS as f64)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let images = Tensor::rand(0f32, 1f32, (BATCH, 784), &Device::Cpu)?;
    let labels: Vec<u32> = (0..BATCH as u32).map(|k| k % 10).collect();
    let labels = Tensor::from_vec(labels, BATCH, &Device::Cpu)?;
    let of_worker = (images.clone(), labels.clone());
    let problem = CandleProblem::new(&Device::Cpu, Mlp::new, move |model: &Mlp, _| {
        model.loss(&of_worker.0, &of_worker.1)
    })?;
    let run = Run::of(problem).workers(1).learning_rate(0.01);
    // The start and the end of a run are not steps: the difference of a long and a short one.
    let guest = || -> std::result::Result<f64, quelea::Error> {
        let seconds = |steps| run.clone().steps(steps).threads().map(|outcome| outcome.seconds());
        Ok((seconds(STEPS + 2)? - seconds(2)?) / STEPS as f64)
    };
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push((guest()?, alone(&images, &labels)?));
    }
    let median = |of: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[ROUNDS / 2]
    };
    println!(
        "{{\"name\": \"a step of candle as a worker to one alone\", \"ratio\": {:.4}, \"goal\": 1.05, \
         \"ours_ms\": {:.3}, \"alone_ms\": {:.3}}}",
        median(|(ours, alone)| ours / alone),
        1e3 * median(|(ours, _)| *ours),
        1e3 * median(|(_, alone)| *alone),
    );
    Ok(())
}
