//! Full-batch exactness: with whole local data sets, a constant step and workers whose data differ
//! much, the methods built for that reach the optimum of all data, and plain D-PSGD does not.
//!
//! The optimum is found apart from all of that, by Newton's method in double precision over the
//! whole embedded data set. Workers count by their samples, so that the mean of the workers'
//! objectives is the objective of all data.

use conformance::{Arm, deployed, plan};
use quelea_core::problems::dataset::Dataset;
use quelea_record::RankReport;
use quelea_wire::HEADER_BYTES;

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

/// What a run came to.
struct Sent {
    /// Over all training data.
    loss: f64,
    /// Messages with a gradient.
    gradients: u64,
    /// Messages with a vector, both ways.
    vectors: u64,
}

fn run_of(lazy: &str, steps: u64, task: &str) -> Sent {
    let text = format!(
        "workers = 9\nsteps = {steps}\n[algorithm]\nname = \"sync-ps\"\n{lazy}\n[optimizer]\nlr = 0.5\n\
         [task]\nname = \"logistic\"\nbatch = 0\n{task}\n[cluster]\nservers = 1"
    );
    let plan = plan(&text);
    let outcome = Arm::Virtual.run(&plan);
    let loss = plan.problem.evaluate(&deployed(&plan, &outcome)).loss;
    let vectors = |rank: &RankReport| {
        let bytes = rank.bytes_sent - rank.messages_sent * HEADER_BYTES as u64;
        bytes / (4 * plan.setup.initial.len() as u64)
    };
    let workers = outcome.ranks.iter().filter(|rank| !rank.is_server);
    let gradients = workers.map(vectors).sum();
    Sent { loss, gradients, vectors: outcome.ranks.iter().map(vectors).sum() }
}

/// Lazily aggregated gradients on `task`: after as many rounds, or a tenth more, the same loss with at
/// most half of the messages, of gradients alone and both ways.
fn assert_half_the_messages(task: &str, steps: u64) {
    let plain = run_of("", steps, task);
    assert_eq!((plain.gradients, plain.vectors), (9 * steps, 18 * steps));
    let lazy = run_of("lazy = \"gradient\"", steps * 11 / 10, task);
    println!(
        "loss {} with {} gradients and {} vectors, lazily {} with {} and {}",
        plain.loss, plain.gradients, plain.vectors, lazy.loss, lazy.gradients, lazy.vectors
    );
    assert!(lazy.loss <= plain.loss, "{} is not {}", lazy.loss, plain.loss);
    assert!(2 * lazy.gradients <= plain.gradients, "{} gradients", lazy.gradients);
    assert!(2 * lazy.vectors <= plain.vectors, "{} vectors", lazy.vectors);
}

#[test]
fn lazily_aggregated_gradients_reach_the_same_loss_with_half_the_messages() {
    for partition in ["iid", "dirichlet"] {
        assert_half_the_messages(&format!("partition = \"{partition}\""), 300);
    }
}

/// The same on a9a, which is not part of the repository: `A9A_FOLDER=… cargo test … -- --ignored`.
#[test]
#[ignore = "needs the files a9a.gz and a9a.t.gz in the folder A9A_FOLDER"]
fn lazily_aggregated_gradients_reach_the_same_loss_on_a9a_with_half_the_messages() {
    let folder = std::env::var("A9A_FOLDER").expect("a folder with a9a.gz and a9a.t.gz");
    for partition in ["iid", "dirichlet"] {
        let task = format!(
            "data = \"{folder}/a9a.gz\"\ntest = \"{folder}/a9a.t.gz\"\npartition = \"{partition}\""
        );
        assert_half_the_messages(&task, 300);
    }
}
