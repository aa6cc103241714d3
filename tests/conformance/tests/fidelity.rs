//! Algorithms against their papers, by recursions written out here in double precision.

use std::sync::Arc;

use conformance::{Arm, REFERENCE, deployed, firsts, plan};

const CURVATURE: [f64; 4] = [1.0, 2.0, 3.0, 4.0];
const TARGET: [f64; 4] = [1.0, -2.0, 0.5, 3.0];

/// The gradient of worker `i` on the reference problem.
fn gradient(i: usize, x: f64) -> f64 {
    CURVATURE[i] * (x - TARGET[i])
}

fn near(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() < 3e-6, "{what}: {found} is not {expected}");
}

/// Keeps the larger of two numbers: top-k with a share of one half.
fn larger_of(two: [f64; 2]) -> [f64; 2] {
    if two[0].abs() >= two[1].abs() { [two[0], 0.0] } else { [0.0, two[1]] }
}

/// What a codec leaves out of a gradient is a step of the rate that it was left out at.
#[test]
fn what_all_reduce_leaves_out_counts_as_much_after_the_learning_rate_drops() {
    let (steps, drop, rate) = (60, 20, 0.05);
    let text = format!(
        "workers = 2\nsteps = {steps}\n[algorithm]\nname = \"allreduce\"\n\
         [codec]\nname = \"top-k\"\nshare = 0.5\n[optimizer]\nlr = {rate}\n\
         [optimizer.schedule]\nname = \"step\"\nmilestones = [{drop}]\ngamma = 0.1\n\
         [task]\nname = \"quadratic\"\ncurvature = [[1, 0.3], [2, 0.2]]\ntarget = [[1, 2], [-2, 5]]"
    );
    let found = {
        let plan = plan(&text);
        deployed(&plan, &Arm::Virtual.run(&plan))
    };
    let (curvature, target) = ([[1.0, 0.3], [2.0, 0.2]], [[1.0, 2.0], [-2.0, 5.0]]);
    let (mut x, mut left) = ([0.0f64; 2], [[0.0f64; 2]; 2]);
    for step in 0..steps {
        let rate = if step < drop { rate } else { 0.1 * rate };
        let mut moved = [0.0; 2];
        for i in 0..2 {
            let step: [f64; 2] = std::array::from_fn(|k| {
                left[i][k] + rate * curvature[i][k] * (x[k] - target[i][k])
            });
            let sent = larger_of(step);
            for k in 0..2 {
                left[i][k] = step[k] - sent[k];
                moved[k] += sent[k] / 2.0;
            }
        }
        (0..2).for_each(|k| x[k] -= moved[k]);
    }
    (0..2).for_each(|k| near(f64::from(found[k]), x[k], "all-reduce with top-k"));
}

/// The first step of Adam is η·sign(g) whatever g is multiplied by: a worker of five samples among
/// workers of one moves the mean five times as far only if its displacement is weighed.
#[test]
fn under_adam_a_worker_counts_by_its_samples() {
    let samples = [1u32, 1, 1, 5];
    for algorithm in [
        "local-sgd\"\nperiod = 1",
        "d-psgd\"\nform = \"adapt-then-combine\"",
        "d-psgd\"",
        "exact-diffusion\"",
        "sgp\"",
        "aladdin\"\nbarrier = true\nperiod = 1\nalpha = 1.0",
    ] {
        let mut plan = plan(&format!(
            "workers = 4\nsteps = 1\n[algorithm]\nname = \"{algorithm}\n\
             [optimizer]\nname = \"adam\"\nlr = 0.01\n{REFERENCE}"
        ));
        plan.setup.samples = Arc::from(samples);
        let all = f64::from(samples.iter().sum::<u32>());
        let moved = |i: usize| 0.01 * f64::from(samples[i]) / all * gradient(i, 0.0).signum();
        let expected: f64 = -(0..4).map(moved).sum::<f64>();
        near(f64::from(deployed(&plan, &Arm::Virtual.run(&plan))[0]), expected, algorithm);
    }
}
