//! Full-batch exactness: with whole local data sets, a constant step and workers whose data differ
//! much, the methods built for that reach the optimum of all data, and plain D-PSGD does not.
//!
//! The optimum is found apart from all of that, by Newton's method in double precision over the
//! whole embedded data set. Workers count by their samples, so that the mean of the workers'
//! objectives is the objective of all data.

use conformance::{Arm, plan};
use quelea_core::problems::dataset::Dataset;

const EMBEDDED: &[u8] = include_bytes!("../../../crates/quelea-run/data/wdbc.libsvm");
const L2: f64 = 0.1;

/// Weights, then the bias, which is not penalised.
fn optimum() -> Vec<f64> {
    let data = Dataset::parse(EMBEDDED).expect("the embedded data are good");
    let features = data.features();
    let dimensions = features + 1;
    let rows: Vec<(Vec<f64>, f64)> = data
        .samples()
        .map(|sample| {
            let mut row = vec![0.0; dimensions];
            for (index, value) in sample.indices.iter().zip(sample.values) {
                row[*index as usize] = f64::from(*value);
            }
            row[features] = 1.0;
            (row, f64::from(sample.label))
        })
        .collect();
    let mut x = vec![0.0; dimensions];
    for _ in 0..50 {
        let penalty = |i: usize| if i < features { L2 } else { 0.0 };
        let mut gradient: Vec<f64> = (0..dimensions).map(|i| penalty(i) * x[i]).collect();
        let mut hessian: Vec<Vec<f64>> = vec![vec![0.0; dimensions]; dimensions];
        (0..dimensions).for_each(|i| hessian[i][i] = penalty(i));
        for (row, label) in &rows {
            let margin: f64 = row.iter().zip(&x).map(|(a, b)| a * b).sum::<f64>() * label;
            let wrong = 1.0 / (1.0 + margin.exp());
            for i in 0..dimensions {
                gradient[i] -= wrong * label * row[i] / rows.len() as f64;
                for j in 0..dimensions {
                    hessian[i][j] += wrong * (1.0 - wrong) * row[i] * row[j] / rows.len() as f64;
                }
            }
        }
        let step = solve(hessian, gradient);
        x.iter_mut().zip(step).for_each(|(x, step)| *x -= step);
    }
    x
}

/// Gauss elimination of a positive definite system.
fn solve(mut a: Vec<Vec<f64>>, mut b: Vec<f64>) -> Vec<f64> {
    let n = b.len();
    for pivot in 0..n {
        for row in pivot + 1..n {
            let factor = a[row][pivot] / a[pivot][pivot];
            let above = a[pivot].clone();
            a[row].iter_mut().zip(above).for_each(|(entry, above)| *entry -= factor * above);
            b[row] -= factor * b[pivot];
        }
    }
    for row in (0..n).rev() {
        let rest: f64 = (row + 1..n).map(|column| a[row][column] * b[column]).sum();
        b[row] = (b[row] - rest) / a[row][row];
    }
    b
}

/// The largest distance of a worker from the optimum, relative to its norm.
fn distance(algorithm: &str, steps: u64) -> f64 {
    let text = format!(
        "workers = 8\nsteps = {steps}\n[algorithm]\n{algorithm}\n[optimizer]\nlr = 0.05\n\
         [task]\nname = \"logistic\"\nbatch = 0\nhold_out = 0.0\nl2 = {L2}\n\
         partition = \"dirichlet\"\nconcentration = 0.1"
    );
    let plan = plan(&text);
    let samples = plan.problem.samples();
    assert!(samples.iter().max() > samples.iter().min().map(|least| least * 5).as_ref());
    let optimum = optimum();
    let norm = optimum.iter().map(|x| x * x).sum::<f64>().sqrt();
    let far = |params: &Vec<f32>| {
        let pairs = params.iter().zip(&optimum);
        pairs.map(|(x, best)| (f64::from(*x) - best).powi(2)).sum::<f64>().sqrt() / norm
    };
    let outcome = Arm::Virtual.run(&plan);
    outcome.ranks.iter().map(|rank| far(&rank.params)).fold(0.0, f64::max)
}

#[test]
fn methods_built_for_heterogeneity_reach_the_optimum_of_all_data() {
    for algorithm in [
        "name = \"exact-diffusion\"",
        "name = \"d2\"",
        "name = \"extra\"",
        "name = \"gradient-tracking\"",
        "name = \"gradient-tracking\"\nform = \"semi-atc\"",
        "name = \"gradient-tracking\"\nform = \"atc\"",
        "name = \"gradient-tracking\"\nform = \"push\"",
    ] {
        let distance = distance(algorithm, 6000);
        assert!(distance < 5e-5, "{algorithm}: {distance}");
    }
}

#[test]
fn plain_d_psgd_stays_away_from_the_optimum() {
    for form in ["consensus", "adapt-then-combine", "combine-then-adapt"] {
        let at = |steps| distance(&format!("name = \"d-psgd\"\nform = \"{form}\""), steps);
        let (half, whole) = (at(3000), at(6000));
        assert!(whole > 0.02, "{form}: {whole}");
        assert!((whole - half).abs() < 1e-3 * whole, "{form} has stopped: {half}, {whole}");
    }
}
