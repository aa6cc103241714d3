//! A model of your own in thirty lines: linear regression, eight workers, each with its own samples.

use quelea::{BatchId, Cluster, Error, Run};

/// The weights that the data are made with.
const TRUTH: [f32; 3] = [2.0, -1.0, 0.5];

/// Sample number `k`: two features, a one for the bias, and the answer.
fn sample(k: u64) -> ([f32; 3], f32) {
    let wave = |factor: f32| (factor * k as f32).sin();
    let x = [wave(1.3), wave(2.7), 1.0];
    (x, x.iter().zip(TRUTH).map(|(x, w)| x * w).sum())
}

/// The gradient of `½(w·x − y)²` over the 16 samples of a mini-batch.
fn gradient(batch: BatchId, weights: &[f32], grad: &mut [f32]) -> f32 {
    grad.fill(0.0);
    let first = (batch.step * 8 + batch.worker as u64) * 16;
    let mut loss = 0.0;
    for (x, y) in (first..first + 16).map(sample) {
        let error = x.iter().zip(weights).map(|(x, w)| x * w).sum::<f32>() - y;
        grad.iter_mut().zip(x).for_each(|(g, x)| *g += error * x / 16.0);
        loss += 0.5 * error * error / 16.0;
    }
    loss
}

fn main() -> Result<(), Error> {
    let run = Run::new([0.0; 3]).workers(8).steps(300).learning_rate(0.3).gradient(gradient);
    let outcome = run.algorithm("d-psgd").topology("ring").simulate(&Cluster::default())?;
    println!("weights {:.3?}, loss {:.1e}", outcome.model(), outcome.loss());
    assert!(outcome.model().iter().zip(TRUTH).all(|(found, truth)| (found - truth).abs() < 1e-3));
    Ok(())
}
