//! Decentralized methods on the reference problem: where they stop, which of them are the same.
//!
//! The expected numbers were computed in double precision. Parameters here are `f32`: a fixed
//! point is found to about ulp / (η·a) ≈ 1e-6. Methods that carry a sum over all steps add to it
//! the rounding of every mix, a random walk that stays below a few 1e-6 in the runs below.

mod support;

use std::sync::Arc;

use quelea_core::options::{Options, Value};
use quelea_core::random::Rng;
use quelea_core::topology::{GroupExchange, Round, Schedule};
use quelea_core::view::View;
use support::{Case, Choice, Lab};

const TOLERANCE: f64 = 5e-6;

const STATIC_METHODS: [&str; 3] = ["exact-diffusion", "d2", "extra"];
const TRACKING_FORMS: [&str; 4] = ["diging", "semi-atc", "atc", "push"];

/// `W_α = (1−α)I + αJ` for four workers and α = 0.4.
fn w_alpha() -> Arc<View> {
    let row = |i: usize| (0..4).map(|j| (j, if i == j { 0.7 } else { 0.1 })).collect();
    let schedule = Schedule::periodic(vec![Round::new((0..4).map(row).collect())]);
    Arc::new(View::first(4, 0, (0..4).collect(), Some(Arc::new(schedule))))
}

/// Runs to the end; every worker's first parameter.
fn end(lab: &mut Lab) -> Vec<f64> {
    lab.run_to_end(&mut Rng::new(1, "order", 0));
    lab.nodes.iter().map(|node| f64::from(node.params()[0])).collect()
}

fn momentum(case: Case, beta: f64) -> Case {
    Case { optimizer: vec![("momentum", Value::Number(beta))], ..case }
}

fn near(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() < TOLERANCE, "{what}: {found} is not {expected}");
}

/// Every method with a correction, in every form.
fn corrected_methods() -> Vec<Case> {
    let tracking = |form: &&str| Case::reference("gradient-tracking").with("form", *form);
    let mut cases: Vec<Case> = STATIC_METHODS.iter().map(|name| Case::reference(name)).collect();
    cases.extend(TRACKING_FORMS.iter().map(tracking));
    cases
}

#[test]
fn corrected_methods_reach_the_optimum_of_unequal_workers_and_d_psgd_does_not() {
    for case in corrected_methods() {
        let case = Case { steps: 6000, ..case };
        for x in end(&mut Lab::new(&case)) {
            near(x, 1.05, case.algorithm);
        }
    }
    let plain = Case { steps: 6000, ..Case::reference("d-psgd") };
    assert!(end(&mut Lab::new(&plain)).iter().any(|x| (x - 1.05).abs() > 0.3));
}

#[test]
fn gradient_tracking_takes_changing_and_directed_topologies() {
    for topology in ["one-peer-ring", "one-peer-exponential", "exponential", "random-matching"] {
        for form in TRACKING_FORMS {
            let case = Case::reference("gradient-tracking").with("form", form);
            let case = Case { steps: 6000, topology, learning_rate: 0.02, ..case };
            for x in end(&mut Lab::new(&case)) {
                near(x, 1.05, &format!("{form} on {topology}"));
            }
        }
    }
}

#[test]
fn push_forms_take_irregular_degrees() {
    for topology in ["star", "grid"] {
        let case = Case::reference("gradient-tracking").with("form", "push");
        let case = Case { steps: 12000, topology, learning_rate: 0.02, ..case };
        for x in end(&mut Lab::new(&case)) {
            near(x, 1.05, topology);
        }
    }
}

/// Worker 0 sends to everyone, the others only to the next: no two workers are alike, and no
/// weights on these edges would be doubly stochastic.
fn one_way() -> Arc<View> {
    let senders: [&[usize]; 4] = [&[0, 3], &[0, 1], &[0, 1, 2], &[0, 2, 3]];
    let row = |from: &&[usize]| from.iter().map(|j| (*j, 1.0 / from.len() as f64)).collect();
    let schedule = Schedule::periodic(vec![Round::new(senders.iter().map(row).collect())]);
    Arc::new(View::first(4, 0, (0..4).collect(), Some(Arc::new(schedule))))
}

#[test]
fn push_tracking_finds_the_optimum_on_a_one_way_graph_and_plain_tracking_does_not() {
    let run = |form| {
        let case =
            Case { steps: 12000, learning_rate: 0.02, ..Case::reference("gradient-tracking") };
        end(&mut Lab::with(&case.with("form", form), |setup| setup.view = one_way()))
    };
    run("push").iter().for_each(|x| near(*x, 1.05, "push"));
    assert!(run("diging").iter().any(|x| (x - 1.05).abs() > 0.01));
}

#[test]
fn momentum_inside_the_recursion_does_not_amplify_the_bias() {
    let run = |algorithm, beta| {
        let case = momentum(Case { steps: 20000, ..Case::reference(algorithm) }, beta);
        let x = end(&mut Lab::with(&case, |setup| setup.view = w_alpha()));
        x.iter().sum::<f64>() / 4.0
    };
    near(run("decentlam", 0.9), 0.9648534948944, "decentlam");
    near(run("qg-dmsgd", 0.9), 0.9648534948944, "qg-dmsgd");
}

#[test]
fn quasi_global_momentum_follows_the_published_recursion() {
    for nesterov in [false, true] {
        let mut case = momentum(Case { steps: 50, ..Case::reference("qg-dmsgd") }, 0.9);
        case.optimizer.push(("nesterov", Value::Flag(nesterov)));
        let case = case.with("mu", 0.7);
        let found = end(&mut Lab::with(&case, |setup| setup.view = w_alpha()));
        let (mut x, mut hat) = ([0.0f64; 4], [0.0f64; 4]);
        for _ in 0..50 {
            let half: Vec<f64> = (0..4)
                .map(|i| {
                    let g = case.curvature[i][0] * (x[i] - case.target[i][0]);
                    let m = 0.9 * hat[i] + g;
                    x[i] - 0.05 * if nesterov { g + 0.9 * m } else { m }
                })
                .collect();
            let mean = half.iter().sum::<f64>() / 4.0;
            for i in 0..4 {
                let new = 0.6 * half[i] + 0.4 * mean;
                hat[i] = 0.7 * hat[i] + 0.3 * (x[i] - new) / 0.05;
                x[i] = new;
            }
        }
        found.iter().zip(x).for_each(|(found, x)| near(*found, x, "qg-dmsgd"));
    }
}

#[test]
fn tracking_the_second_moment_leads_near_the_optimum() {
    let case = Case { steps: 20000, learning_rate: 0.01, ..Case::reference("d-amsgrad") };
    let case = case.with("beta2", 0.99).with("epsilon", 1e-3);
    let mean = end(&mut Lab::new(&case)).iter().sum::<f64>() / 4.0;
    assert!((mean - 1.0464).abs() < 1e-3, "{mean}");
}

/// A rate that falls to a tenth at step 20.
fn falling(step: u64) -> f32 {
    if step < 20 { 0.05 } else { 0.005 }
}

#[test]
fn the_mean_takes_the_mean_step_across_a_change_of_the_learning_rate() {
    for name in STATIC_METHODS {
        let case = Case { steps: 60, ..Case::reference(name) };
        let states: Vec<Vec<f64>> = (0..=60)
            .map(|steps| {
                let mut lab = Lab::with(&Case { steps, ..case.clone() }, |setup| {
                    setup.learning_rate = Arc::new(falling);
                });
                end(&mut lab)
            })
            .collect();
        for (step, pair) in states.windows(2).enumerate() {
            let g = |i: usize| case.curvature[i][0] * (pair[0][i] - case.target[i][0]);
            let moved = (0..4).map(|i| pair[1][i] - pair[0][i]).sum::<f64>();
            let expected = -f64::from(falling(step as u64)) * (0..4).map(g).sum::<f64>();
            assert!((moved - expected).abs() < 2e-6, "{name}, {step}: {moved} not {expected}");
        }
    }
}

#[test]
fn d2_is_not_the_form_that_drifts_after_a_change_of_the_learning_rate() {
    let case = Case { steps: 3000, ..Case::reference("d2") };
    let mut lab = Lab::with(&case, |setup| setup.learning_rate = Arc::new(falling));
    for x in end(&mut lab) {
        near(x, 1.05, "d2");
    }
    // The form with one rate times the difference of gradients, in double precision.
    let (a, b) = ([1.0, 2.0, 3.0, 4.0], [1.0, -2.0, 0.5, 3.0]);
    let g = |x: &[f64; 4]| [0, 1, 2, 3].map(|i| a[i] * (x[i] - b[i]));
    let mix = |x: [f64; 4]| [0, 1, 2, 3].map(|i| (x[i] + x[(i + 1) % 4] + x[(i + 3) % 4]) / 3.0);
    let mut before = [0.0; 4];
    let mut x = mix([0, 1, 2, 3].map(|i| -0.05 * g(&before)[i]));
    for step in 1..3000 {
        let rate = f64::from(falling(step));
        let (new, old) = (g(&x), g(&before));
        let next = [0, 1, 2, 3].map(|i| 2.0 * x[i] - before[i] - rate * (new[i] - old[i]));
        (before, x) = (x, mix(next));
    }
    assert!((x.iter().sum::<f64>() / 4.0 - 1.811).abs() < 1e-3, "{x:?}");
}

#[test]
fn extra_is_the_published_recursion() {
    let case = Case { steps: 40, ..Case::reference("extra") };
    let found = end(&mut Lab::new(&case));
    let g = |x: &[f64; 4]| [0, 1, 2, 3].map(|i| case.curvature[i][0] * (x[i] - case.target[i][0]));
    let mix = |x: &[f64; 4]| [0, 1, 2, 3].map(|i| (x[i] + x[(i + 1) % 4] + x[(i + 3) % 4]) / 3.0);
    let mut before = [0.0; 4];
    let mut x = [0, 1, 2, 3].map(|i| mix(&before)[i] - 0.05 * g(&before)[i]);
    for _ in 1..40 {
        let next = [0, 1, 2, 3].map(|i| {
            x[i] + mix(&x)[i]
                - (before[i] + mix(&before)[i]) / 2.0
                - 0.05 * (g(&x)[i] - g(&before)[i])
        });
        (before, x) = (x, next);
    }
    found.iter().zip(x).for_each(|(found, x)| near(*found, x, "extra"));
}

/// All workers' parameters after some steps on a problem of several dimensions and buckets.
fn wide(case: Case) -> Vec<Vec<f32>> {
    let mut lab = Lab::new(&Case { steps: 60, ..case });
    lab.run_to_end(&mut Rng::new(3, "order", 0));
    lab.nodes.iter().map(|node| node.params().to_vec()).collect()
}

fn atc(topology: &'static str) -> Case {
    let case = Case::wide("d-psgd", 6, 7).with("form", "adapt-then-combine");
    momentum(Case { topology, ..case }, 0.5)
}

#[test]
fn sgp_with_doubly_stochastic_shares_equals_atc() {
    for topology in ["one-peer-exponential", "exponential", "ring", "complete"] {
        let sgp = momentum(Case { topology, ..Case::wide("sgp", 6, 7) }, 0.5);
        // Shares are sent, and summed in the order of ranks.
        let atc = Case { groups: GroupExchange::Send, ..atc(topology) };
        assert_eq!(wide(sgp), wide(atc), "{topology}: to the bit");
    }
}

#[test]
fn osgp_with_overlap_0_equals_sgp() {
    let case = || Case { topology: "star", ..Case::wide("sgp", 6, 7) };
    assert_eq!(wide(case().with("overlap", 0.0)), wide(case()), "to the bit");
    assert_ne!(wide(case().with("overlap", 1.0)), wide(case()));
}

#[test]
fn decentlam_with_momentum_0_equals_atc() {
    let atc = Case::wide("d-psgd", 6, 7).with("form", "adapt-then-combine");
    let pairs = wide(Case::wide("decentlam", 6, 7)).concat().into_iter().zip(wide(atc).concat());
    for (decentlam, atc) in pairs {
        assert!((decentlam - atc).abs() < 2e-6, "{decentlam} is not {atc}");
    }
}

#[test]
fn qg_dmsgd_with_momentum_0_equals_atc() {
    let atc = Case::wide("d-psgd", 6, 7).with("form", "adapt-then-combine");
    assert_eq!(wide(Case::wide("qg-dmsgd", 6, 7)), wide(atc), "to the bit");
}

#[test]
fn push_tracking_with_doubly_stochastic_shares_equals_semi_atc() {
    let case = |form| Case::wide("gradient-tracking", 6, 7).with("form", form);
    assert_eq!(wide(case("push")), wide(case("semi-atc")), "to the bit");
}

fn all_methods() -> Vec<Case> {
    let mut cases = corrected_methods();
    cases.extend(["d-amsgrad", "decentlam", "qg-dmsgd", "sgp"].map(Case::reference));
    cases.extend([1.0, 3.0].map(|overlap| Case::reference("sgp").with("overlap", overlap)));
    cases.push(Case::reference("sgp").with("overlap", 2.0).with("sends", "every-step"));
    let wide = |case: Case| Case {
        params: case.params,
        optimizer: vec![("momentum", Value::Number(0.3))],
        ..Case::wide(case.algorithm, 5, 7)
    };
    cases.into_iter().map(wide).collect()
}

#[test]
fn the_order_of_events_does_not_change_a_bit() {
    for case in all_methods() {
        for clip in [None, Some(0.5)] {
            let case = Case { steps: 12, clip, ..case.clone() };
            let run = |seed| {
                let mut lab = Lab::new(&case);
                lab.run_to_end(&mut Rng::new(seed, "order", 0));
                lab.nodes.iter().map(|node| node.params().to_vec()).collect::<Vec<_>>()
            };
            (1..6).for_each(|seed| assert_eq!(run(seed), run(0), "{}", case.algorithm));
        }
    }
}

#[test]
fn buckets_do_not_change_a_bit() {
    for case in all_methods() {
        let case = Case { steps: 12, ..case };
        let whole = Case { bucket_bytes: 0, ..case.clone() };
        assert_eq!(wide(case.clone()), wide(whole), "{}", case.algorithm);
    }
}

#[test]
fn a_learning_rate_of_zero_keeps_the_mean_and_brings_no_nan() {
    for case in all_methods() {
        let case = Case { steps: 30, learning_rate: 0.0, start: vec![0.5; 7], ..case };
        let mut lab = Lab::new(&case);
        lab.run_to_end(&mut Rng::new(1, "order", 0));
        for mean in lab.mean() {
            assert!((mean - 0.5).abs() < 1e-6, "{}: {mean}", case.algorithm);
        }
    }
}

#[test]
fn one_worker_alone_is_plain_sgd() {
    for case in all_methods() {
        if case.algorithm == "d-amsgrad" {
            continue;
        }
        let alone = Case { workers: 1, optimizer: Vec::new(), steps: 30, ..case };
        let alone = Case { curvature: vec![vec![2.0]], target: vec![vec![3.0]], ..alone };
        let found = end(&mut Lab::new(&alone));
        let x = (0..30).fold(0.0f64, |x, _| x - 0.05 * (2.0 * (x - 3.0)));
        assert!((found[0] - x).abs() < 2e-6, "{}: {} is not {x}", case_name(&alone), found[0]);
    }
}

#[test]
fn a_resumed_run_ends_with_the_same_bits() {
    for case in all_methods() {
        let until = |steps| Case { steps, noise_std: 0.5, ..case.clone() };
        let end = |mut lab: Lab| {
            lab.run_to_end(&mut Rng::new(2, "order", 0));
            lab.nodes.iter().map(|node| node.params().to_vec()).collect::<Vec<_>>()
        };
        for cut in [0, 1, 5, 9] {
            let mut first = Lab::new(&until(cut));
            first.run(&mut Rng::new(1, "order", 0));
            let resumed = Lab::resumed(&until(10), &first.saved());
            assert_eq!(end(resumed), end(Lab::new(&until(10))), "{} at {cut}", case_name(&case));
        }
    }
}

#[test]
fn free_running_sgp_reaches_a_common_optimum_in_any_order() {
    for seed in 0..10 {
        let case = Case { steps: 600, target: vec![vec![3.0]; 4], ..Case::reference("sgp") };
        let mut lab = Lab::new(&case.with("free_running", true));
        lab.run_to_end(&mut Rng::new(seed, "order", 0));
        lab.nodes.iter().for_each(|node| near(f64::from(node.params()[0]), 3.0, "free sgp"));
    }
}

/// The link of rank 0 takes as long for a payment as 1,000 steps: what waits before it is what was sent.
#[test]
fn copies_of_a_payment_do_not_pile_up_before_a_slow_link() {
    // Gradients are counted in all: rank 0 takes those of both.
    let case = Case { steps: 500, ..Case::wide("sgp", 2, 7) }.with("free_running", true);
    let mut lab = Lab::new(&case);
    let is_of_worker_0 = |choice: &Choice| matches!(choice, Choice::Start(0) | Choice::Finish(0));
    while let Some(choice) = lab.choices().into_iter().find(is_of_worker_0) {
        lab.take(choice);
    }
    assert_eq!(lab.gradients[0], 1000);
    // One payment, and copies after 8, 24, 56, …, 8·(2^k − 1) steps.
    let copies = (1..).take_while(|k| 8 * ((1u64 << k) - 1) < 1000).count();
    let buckets = lab.setup.layout.buckets.len();
    assert_eq!(lab.flying.len(), buckets * (1 + copies));
    lab.run_to_end(&mut Rng::new(1, "slow link", 0));
}

#[test]
fn a_free_running_run_can_be_resumed_with_everything_on_its_way_lost() {
    let until = |steps| Case { steps, ..Case::wide("sgp", 5, 7) }.with("free_running", true);
    let mut first = Lab::new(&until(6));
    let mut rng = Rng::new(1, "order", 0);
    first.run_while(&mut rng, |lab| lab.gradients.iter().sum::<u64>() < 30);
    let mut resumed = Lab::resumed(&until(6), &first.saved());
    resumed.run_to_end(&mut rng);
    let total: f64 = (0..5).map(|rank| resumed.real(rank, "weight.0")).sum();
    assert!((total - 5.0).abs() < 1e-12, "{total}");
}

#[test]
fn parameters_that_contradict_each_other_are_refused() {
    let entry = quelea_core::algorithms::find("sgp").expect("in the table");
    for other in [("overlap", Value::Number(1.0)), ("biased", Value::Flag(true))] {
        let given = [("free_running".to_string(), Value::Flag(true)), (other.0.into(), other.1)];
        let params = Options::check(entry.meta.options, given).expect("good one by one");
        assert!((entry.check)(&params).expect_err("refused").contains(other.0));
    }
}

fn case_name(case: &Case) -> String {
    format!("{} {:?}", case.algorithm, case.params)
}
