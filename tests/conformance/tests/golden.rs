//! Closed forms and golden numbers: heterogeneous quadratics whose fixed points are known.
//!
//! The numbers were computed in double precision. Parameters here are `f32`: a fixed point is
//! found to about ulp / (η·a) ≈ 1e-6, hence the tolerance.

use conformance::{Arm, REFERENCE, TempFile, bits, deployed, firsts, plan};

const TOLERANCE: f64 = 3e-6;

/// Runs a scenario on the reference problem; the workers' parameters and the deployed one.
fn fixed_point(head: &str) -> (Vec<f64>, f64) {
    let plan = plan(&format!("workers = 4\nsteps = 20000\n{head}\n{REFERENCE}"));
    let outcome = Arm::Virtual.run(&plan);
    (firsts(&outcome), f64::from(deployed(&plan, &outcome)[0]))
}

fn near(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() < TOLERANCE, "{what}: {found} is not {expected}");
}

/// `W_α = (1−α)I + αJ` for four workers and α = 0.4.
fn w_alpha() -> TempFile {
    let row = |i: usize| (0..4).map(|j| if i == j { "0.7 " } else { "0.1 " }).collect::<String>();
    let rows: Vec<String> = (0..4).map(row).collect();
    let name = format!("w-alpha-{:?}.txt", std::thread::current().id());
    TempFile::new(&name, &format!("matrix\n{}\n", rows.join("\n")))
}

#[test]
fn exact_methods_reach_the_optimum() {
    for name in ["allreduce", "sync-ps"] {
        let (_, model) = fixed_point(&format!("[algorithm]\nname = \"{name}\""));
        near(model, 1.05, name);
    }
}

#[test]
fn corrected_gossip_reaches_the_optimum_on_a_ring() {
    for algorithm in [
        "exact-diffusion\"",
        "d2\"",
        "extra\"",
        "gradient-tracking\"",
        "gradient-tracking\"\nform = \"semi-atc\"",
        "gradient-tracking\"\nform = \"atc\"",
        "gradient-tracking\"\nform = \"push\"",
    ] {
        let (workers, _) = fixed_point(&format!("[algorithm]\nname = \"{algorithm}"));
        workers.iter().for_each(|x| near(*x, 1.05, algorithm));
    }
}

#[test]
fn push_forms_take_one_way_edges_from_a_file() {
    let file = TempFile::new("one-way.txt", "0 -> 1\n0 -> 2\n0 -> 3\n1 -> 2\n2 -> 3\n3 -> 0\n");
    let topology = format!("[topology]\nname = \"custom\"\nfile = \"{}\"", file.path());
    let algorithm = "[algorithm]\nname = \"gradient-tracking\"\nform = \"push\"";
    let optimizer = "[optimizer]\nlr = 0.02";
    let (workers, _) = fixed_point(&format!("{algorithm}\n{topology}\n{optimizer}"));
    workers.iter().for_each(|x| near(*x, 1.05, "push"));
}

#[test]
fn tracking_the_second_moment_leads_near_the_optimum() {
    let keys = "beta1 = 0.9\nbeta2 = 0.99\nepsilon = 1e-3";
    let head = format!("[algorithm]\nname = \"d-amsgrad\"\n{keys}\n[optimizer]\nlr = 0.01");
    let (_, mean) = fixed_point(&head);
    assert!((mean - 1.0464).abs() < 1e-3, "{mean}");
}

#[test]
fn d_psgd_on_a_ring_stops_where_the_linear_system_says() {
    let run =
        |form: &str| fixed_point(&format!("[algorithm]\nname = \"d-psgd\"\nform = \"{form}\""));
    let (workers, mean) = run("consensus");
    let expected = [0.9917965546, 0.5620699469, 0.9009643234, 1.4202926454];
    workers.iter().zip(expected).for_each(|(x, expected)| near(*x, expected, "consensus"));
    near(mean, 0.9687808676, "consensus mean");
    let (workers, mean) = run("adapt-then-combine");
    let expected = [1.0518469019, 0.8507730949, 1.0145516971, 1.1757379542];
    workers.iter().zip(expected).for_each(|(x, expected)| near(*x, expected, "adapt"));
    near(mean, 1.0232274120, "adapt-then-combine mean");
}

#[test]
fn combine_then_adapt_follows_adapt_then_combine_by_half_a_step() {
    // y = W x of combine-then-adapt is the fixed point of adapt-then-combine: x = y − η·u(y).
    let head = "[algorithm]\nname = \"d-psgd\"\nform = \"combine-then-adapt\"";
    let (workers, _) = fixed_point(head);
    let mixed = [1.0518469019, 0.8507730949, 1.0145516971, 1.1757379542];
    for (i, x) in workers.iter().enumerate() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0][i], [1.0, -2.0, 0.5, 3.0][i]);
        near(*x, mixed[i] - 0.05 * a * (mixed[i] - b), "combine-then-adapt");
    }
}

#[test]
fn with_w_alpha_fixed_points_are_weighted_means_of_the_targets() {
    let file = w_alpha();
    let topology = format!("[topology]\nname = \"custom\"\nfile = \"{}\"", file.path());
    let run = |form: &str, optimizer: &str| {
        let algorithm = format!("[algorithm]\nname = \"d-psgd\"\nform = \"{form}\"");
        fixed_point(&format!("{algorithm}\n{topology}\n[optimizer]\nlr = 0.05\n{optimizer}")).1
    };
    near(run("adapt-then-combine", ""), 0.9648534948944, "adapt-then-combine");
    near(run("consensus", ""), 0.9240088105727, "consensus");
    let momentum = run("adapt-then-combine", "momentum = 0.9");
    near(momentum, 0.7384923282188, "momentum amplifies the bias: step η/(1−β)");
    for name in ["decentlam", "qg-dmsgd"] {
        let optimizer = "[optimizer]\nlr = 0.05\nmomentum = 0.9";
        let head = format!("[algorithm]\nname = \"{name}\"\n{topology}\n{optimizer}");
        near(fixed_point(&head).1, 0.9648534948944, name);
    }
}

#[test]
fn aladdin_with_a_barrier_is_what_its_theory_says() {
    let run = |alpha: f64, period: u64| {
        let keys = format!("barrier = true\nalpha = {alpha}\nperiod = {period}");
        fixed_point(&format!("[algorithm]\nname = \"aladdin\"\n{keys}")).1
    };
    near(run(0.4, 1), 0.9648534948944, "π = 1: D-PSGD in adapt-then-combine form with W_α");
    near(run(1.0, 5), 0.9130861227979, "α = 1: local SGD with period π");
    near(run(1.0, 1), 1.05, "α = 1, π = 1: AllReduce");
}

#[test]
fn outer_momentum_does_not_move_the_fixed_point_of_local_sgd() {
    for algorithm in [
        "local-sgd\"",
        "slowmo\"",
        "bmuf\"",
        "bmuf\"\nform = \"nesterov\"",
        "diloco\"",
        "diloco\"\nnesterov = false\nouter_lr = 1.0",
    ] {
        let head = format!("[algorithm]\nname = \"{algorithm}\nperiod = 5");
        near(fixed_point(&head).1, 0.9130861227979, algorithm);
    }
}

#[test]
fn the_centre_of_synchronous_easgd_is_a_weighted_mean_of_the_targets() {
    let keys = "form = \"synchronous\"\nmoving_rate = 0.1\nperiod = 1";
    let (_, centre) = fixed_point(&format!("[algorithm]\nname = \"easgd\"\n{keys}"));
    near(centre, 0.7777777777778, "centre");
}

#[test]
fn decentralized_adam_stops_where_its_steps_have_equal_signs() {
    let optimizer = "[optimizer]\nname = \"adam\"\nlr = 0.01\nbeta1 = 0.9\nbeta2 = 0.99";
    let (_, mean) = fixed_point(&format!("[algorithm]\nname = \"d-psgd\"\n{optimizer}"));
    assert!((mean - 0.6005).abs() < 1e-3, "{mean}");
}

#[test]
fn gradients_cancel_at_every_gossip_fixed_point() {
    let (workers, _) = fixed_point("[algorithm]\nname = \"d-psgd\"");
    let (a, b) = ([1.0, 2.0, 3.0, 4.0], [1.0, -2.0, 0.5, 3.0]);
    let sum: f64 = workers.iter().enumerate().map(|(i, x)| a[i] * (x - b[i])).sum();
    assert!(sum.abs() < 2e-5, "Σ a_i(x_i − b_i) = {sum}");
}

/// Consensus form needs `η < (1 + λ_min(W))/L`: 2/3 on a ring of four with L = 1.
#[test]
fn consensus_form_is_stable_just_below_its_bound_and_not_just_above() {
    let end = |lr: f64| {
        let task = "[task]\nname = \"quadratic\"\ncurvature = [[1], [1], [1], [1]]\n\
                    target = [[1], [-2], [0.5], [3]]";
        let head = format!("workers = 4\nsteps = 1000\n[optimizer]\nlr = {lr}");
        let plan = plan(&format!("{head}\n[algorithm]\nname = \"d-psgd\"\n{task}"));
        firsts(&Arm::Virtual.run(&plan)).iter().fold(0.0, |most: f64, x| most.max(x.abs()))
    };
    assert!(end(0.64) < 10.0);
    assert!(end(0.70) > 1e6);
}

/// The golden runs of synchronous methods, as far as time allows over sockets: the fixed points
/// above are then those of TCP too.
#[test]
fn golden_runs_have_the_same_bits_over_tcp() {
    let file = w_alpha();
    let topology = format!("[topology]\nname = \"custom\"\nfile = \"{}\"", file.path());
    let momentum = format!("{topology}\n[optimizer]\nlr = 0.05\nmomentum = 0.9");
    let adam = "[optimizer]\nname = \"adam\"\nlr = 0.01\nbeta1 = 0.9\nbeta2 = 0.99".to_string();
    let slow = "[optimizer]\nlr = 0.01".to_string();
    for (algorithm, more) in [
        ("allreduce\"", String::new()),
        ("sync-ps\"", String::new()),
        ("d-psgd\"", String::new()),
        ("d-psgd\"\nform = \"adapt-then-combine\"", String::new()),
        ("d-psgd\"", topology.clone()),
        ("d-psgd\"\nform = \"adapt-then-combine\"", momentum.clone()),
        ("d-psgd\"", adam),
        ("decentlam\"", momentum.clone()),
        ("qg-dmsgd\"", momentum),
        ("d-amsgrad\"\nbeta1 = 0.9\nbeta2 = 0.99\nepsilon = 1e-3", slow),
        ("exact-diffusion\"", String::new()),
        ("d2\"", String::new()),
        ("extra\"", String::new()),
        ("gradient-tracking\"", String::new()),
        ("gradient-tracking\"\nform = \"atc\"", String::new()),
        ("aladdin\"\nbarrier = true\nalpha = 0.4\nperiod = 1", String::new()),
        ("local-sgd\"\nperiod = 5", String::new()),
        ("diloco\"\nperiod = 5", String::new()),
        ("easgd\"\nform = \"synchronous\"\nmoving_rate = 0.1\nperiod = 1", String::new()),
    ] {
        let head = format!("workers = 4\nsteps = 500\n[algorithm]\nname = \"{algorithm}\n{more}");
        let plan = plan(&format!("{head}\n{REFERENCE}"));
        assert!(plan.setup.properties().synchronous, "{algorithm}");
        assert_eq!(bits(&Arm::Tcp.run(&plan)), bits(&Arm::Virtual.run(&plan)), "{algorithm}");
    }
}
