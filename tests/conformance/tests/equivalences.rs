//! Pairs of algorithms that must be the same, each under the name of the equivalence.

use conformance::{Arm, REFERENCE, TempFile, bits, deployed, firsts, plan};

const WIDE: &str = "
workers = 5
steps = 60
[buckets]
size_mb = 0.000012
[task]
name = \"quadratic\"
curvature = [[1, 0.5, 2, 1, 1, 2, 0.5], [2, 1, 1, 0.5, 2, 1, 1], [1, 1, 0.5, 2, 1, 1, 2], [0.5, 2, 1, 1, 2, 0.5, 1], [1, 1, 1, 1, 0.5, 2, 1]]
target = [[1, -1, 0, 2, 1, 0, 1], [0, 1, 1, -2, 0, 1, 0], [-1, 0, 2, 1, 1, 1, -1], [2, 1, 0, 0, -1, 2, 1], [0, -2, 1, 1, 0, 0, 1]]
";

fn model(scenario: &str) -> Vec<f32> {
    let plan = plan(&format!("{WIDE}{scenario}"));
    let outcome = Arm::Virtual.run(&plan);
    deployed(&plan, &outcome)
}

fn same(left: &str, right: &str) {
    for (a, b) in model(left).iter().zip(model(right)) {
        assert!((a - b).abs() < 2e-6, "{a} is not {b}\n{left}\nagainst\n{right}");
    }
}

#[test]
fn bsp_equals_all_reduce() {
    same("[algorithm]\nname = \"sync-ps\"", "[algorithm]\nname = \"allreduce\"");
    let momentum = "[optimizer]\nlr = 0.02\nmomentum = 0.9\nnesterov = true\nweight_decay = 0.01";
    same(
        &format!("[algorithm]\nname = \"sync-ps\"\n{momentum}"),
        &format!("[algorithm]\nname = \"allreduce\"\n{momentum}"),
    );
    let servers = "[cluster]\nservers = 3";
    same(
        &format!("[algorithm]\nname = \"sync-ps\"\n{servers}"),
        "[algorithm]\nname = \"allreduce\"",
    );
}

#[test]
fn bsp_equals_all_reduce_with_clipping_too() {
    let clip = "[optimizer]\nlr = 0.05\nclip_norm = 0.7";
    same(
        &format!("[algorithm]\nname = \"sync-ps\"\n{clip}"),
        &format!("[algorithm]\nname = \"allreduce\"\n{clip}"),
    );
}

#[test]
fn atc_with_exact_averaging_equals_all_reduce() {
    same(
        "[algorithm]\nname = \"d-psgd\"\nform = \"adapt-then-combine\"\n[topology]\nname = \"complete\"",
        "[algorithm]\nname = \"allreduce\"",
    );
}

#[test]
fn all_collectives_give_the_same_training() {
    for collective in ["halving-doubling", "hierarchical", "auto"] {
        same(
            &format!(
                "[algorithm]\nname = \"allreduce\"\ncollective = \"{collective}\"\n[cluster]\nhosts = 2"
            ),
            "[algorithm]\nname = \"allreduce\"",
        );
    }
}

#[test]
fn aladdin_barrier_period_1_alpha_1_equals_all_reduce() {
    same(
        "[algorithm]\nname = \"aladdin\"\nbarrier = true\nperiod = 1\nalpha = 1.0",
        "[algorithm]\nname = \"allreduce\"",
    );
}

/// `W_α = (1−α)I + αJ`, here with α = 0.4 and five workers.
#[test]
fn aladdin_barrier_period_1_equals_atc_with_w_alpha() {
    let row = |i: usize| (0..5).map(|j| if i == j { "0.68 " } else { "0.08 " }).collect::<String>();
    let rows: Vec<String> = (0..5).map(row).collect();
    let file = TempFile::new("w-alpha-of-five.txt", &format!("matrix\n{}\n", rows.join("\n")));
    let atc = format!(
        "[algorithm]\nname = \"d-psgd\"\nform = \"adapt-then-combine\"\n\
         [topology]\nname = \"custom\"\nfile = \"{}\"",
        file.path()
    );
    let aladdin = "[algorithm]\nname = \"aladdin\"\nbarrier = true\nperiod = 1\nalpha = 0.4";
    let workers = |text: &str| firsts(&Arm::Virtual.run(&plan(&format!("{WIDE}{text}"))));
    let (atc, aladdin) = (workers(&atc), workers(aladdin));
    assert!(atc.iter().any(|x| (x - atc[0]).abs() > 1e-3), "workers differ: {atc:?}");
    atc.iter().zip(&aladdin).for_each(|(x, y)| assert!((x - y).abs() < 2e-6, "{x} is not {y}"));
}

#[test]
fn aladdin_barrier_keeps_the_server_at_the_workers_mean() {
    let text = "[algorithm]\nname = \"aladdin\"\nbarrier = true\nperiod = 1\nalpha = 0.4";
    let plan = plan(&format!("{WIDE}{text}"));
    let outcome = Arm::Virtual.run(&plan);
    let mean = firsts(&outcome).iter().sum::<f64>() / 5.0;
    assert!((mean - f64::from(deployed(&plan, &outcome)[0])).abs() < 1e-6);
}

/// A gradient step of the mean over the union of the data, by hand, in double precision.
#[test]
fn all_reduce_equals_one_process_on_the_union_of_the_data() {
    let plan =
        plan(&format!("workers = 4\nsteps = 50\n[algorithm]\nname = \"allreduce\"{REFERENCE}"));
    let mut x = 0.0f64;
    let (a, b) = ([1.0, 2.0, 3.0, 4.0], [1.0, -2.0, 0.5, 3.0]);
    for _ in 0..50 {
        x -= 0.05 * (0..4).map(|i| a[i] * (x - b[i])).sum::<f64>() / 4.0;
    }
    for worker in firsts(&Arm::Virtual.run(&plan)) {
        assert!((worker - x).abs() < 1e-6);
    }
}

#[test]
fn one_worker_is_plain_sgd_under_every_synchronous_algorithm() {
    let task = "[task]\nname = \"quadratic\"\ncurvature = [[2]]\ntarget = [[3]]";
    let run = |algorithm: &str| {
        let plan = plan(&format!("workers = 1\nsteps = 30\n[algorithm]\n{algorithm}\n{task}"));
        bits(&Arm::Virtual.run(&plan))[0][0]
    };
    let mut x = 0.0f32;
    for _ in 0..30 {
        x -= 0.05 * (2.0 * (x - 3.0));
    }
    for algorithm in [
        "name = \"allreduce\"",
        "name = \"sync-ps\"",
        "name = \"d-psgd\"",
        "name = \"d-psgd\"\nform = \"adapt-then-combine\"",
        "name = \"d-psgd\"\nform = \"combine-then-adapt\"",
        "name = \"asp\"",
        "name = \"ad-psgd\"",
        "name = \"aladdin\"\nbarrier = true\nperiod = 1\nalpha = 1.0",
    ] {
        assert_eq!(run(algorithm), x.to_bits(), "{algorithm}");
    }
}

/// With full local batches and parts of unequal size, the mean over workers must be the mean over
/// samples: the same as one worker that has all of them.
#[test]
fn all_reduce_counts_a_worker_by_its_samples() {
    let run = |workers: usize| {
        let text = format!(
            "workers = {workers}\nsteps = 40\n[algorithm]\nname = \"allreduce\"\n[optimizer]\nlr = 0.5\n\
             [task]\nname = \"logistic\"\nbatch = 0\npartition = \"dirichlet\"\nconcentration = 0.3"
        );
        let plan = plan(&text);
        let samples = plan.problem.samples();
        let outcome = Arm::Virtual.run(&plan);
        (samples, deployed(&plan, &outcome))
    };
    let ((samples, five), (_, one)) = (run(5), run(1));
    assert!(samples.iter().max() > samples.iter().min(), "parts differ: {samples:?}");
    for (a, b) in five.iter().zip(one) {
        assert!((a - b).abs() < 1e-4, "{a} is not {b}");
    }
}
