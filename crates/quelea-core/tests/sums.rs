//! Sums over the workers that a method must keep: tracked gradients and moments, corrections,
//! push-sum mass; and that they hold again after a worker was lost.

mod support;

use std::sync::Arc;

use quelea_core::random::Rng;
use support::{Case, Choice, Flight, Lab};

const FORMS: [&str; 4] = ["diging", "semi-atc", "atc", "push"];

/// Noisy gradients, several dimensions and buckets.
fn case(algorithm: &'static str) -> Case {
    Case { steps: 15, noise_std: 0.5, ..Case::wide(algorithm, 5, 7) }
}

fn close(left: &[f64], right: &[f64], what: &str) {
    for (left, right) in left.iter().zip(right) {
        assert!((left - right).abs() < 2e-5, "{what}: {left} is not {right}");
    }
}

/// Runs to the end in any order.
fn run(case: &Case, seed: u64) -> Lab {
    let mut lab = Lab::new(&Case { seed, ..case.clone() });
    lab.run_to_end(&mut Rng::new(seed, "order", 0));
    lab
}

/// Loses a worker early in the run, at any moment.
fn run_with_a_loss(case: &Case, seed: u64) -> Lab {
    let mut lab = Lab::new(&Case { seed, ..case.clone() });
    let mut rng = Rng::new(seed, "loss", 0);
    let gradients = 3 + rng.below(15);
    lab.run_while(&mut rng, |lab| lab.gradients.iter().sum::<u64>() < gradients);
    for _ in 0..rng.below(6) {
        let choices = lab.choices();
        lab.take(choices[rng.below(choices.len() as u64) as usize]);
    }
    lab.crash(rng.below(5) as usize);
    let mut order: Vec<usize> = (0..5).collect();
    rng.shuffle(&mut order);
    for rank in order {
        lab.tell_view(rank);
        let choices = lab.choices();
        lab.take(choices[rng.below(choices.len() as u64) as usize]);
    }
    lab.run_to_end(&mut rng);
    lab
}

/// Both kinds of run, with many seeds.
fn runs(case: &Case) -> impl Iterator<Item = Lab> {
    let with = (0..60).map(|seed| run_with_a_loss(case, seed));
    (0..20).map(|seed| run(case, seed)).chain(with)
}

#[test]
fn trackers_sum_to_the_gradients() {
    for form in FORMS {
        for topology in ["ring", "one-peer-exponential"] {
            let case = Case { topology, ..case("gradient-tracking").with("form", form) };
            for mut lab in runs(&case) {
                close(&lab.total("tracker"), &lab.total("gradient"), form);
            }
        }
    }
}

#[test]
fn tracked_second_moments_sum_to_the_largest_ones() {
    for mut lab in runs(&case("d-amsgrad")) {
        close(&lab.total("tracked"), &lab.total("largest"), "d-amsgrad");
    }
}

#[test]
fn corrections_sum_to_nothing() {
    for algorithm in ["exact-diffusion", "d2", "extra"] {
        for mut lab in runs(&case(algorithm)) {
            let total = lab.total("correction");
            close(&total, &vec![0.0; total.len()], algorithm);
        }
    }
}

/// Push-sum weights of the living workers, all buckets.
fn weights(lab: &mut Lab) -> Vec<Vec<f64>> {
    let buckets = lab.nodes[0].layout().buckets.len();
    let names: Vec<String> = (0..buckets).map(|b| format!("weight.{b}")).collect();
    let living = lab.living_workers();
    living.iter().map(|rank| names.iter().map(|name| lab.real(*rank, name)).collect()).collect()
}

#[test]
fn push_sum_weights_sum_to_the_number_of_workers_under_any_delay_and_after_a_loss() {
    let mut cases =
        [0.0, 1.0, 2.0, 5.0].map(|overlap| case("sgp").with("overlap", overlap)).to_vec();
    cases.push(case("sgp").with("overlap", 3.0).with("sends", "every-step"));
    cases.push(case("gradient-tracking").with("form", "push"));
    for case in cases {
        for topology in ["ring", "star", "grid", "one-peer-exponential"] {
            for mut lab in runs(&Case { topology, ..case.clone() }) {
                let weights = weights(&mut lab);
                for b in 0..weights[0].len() {
                    let total: f64 = weights.iter().map(|of| of[b]).sum();
                    let living = weights.len() as f64;
                    assert!((total - living).abs() < 1e-12, "{topology}: {total} of {living}");
                    assert!(weights.iter().all(|of| of[b] > 0.0));
                }
            }
        }
    }
}

#[test]
fn what_is_held_and_what_is_on_its_way_never_changes_in_sum() {
    // On a star the middle sends to everyone and the others to it alone.
    let (n, tau) = (5, 3);
    for steps in 0..20 {
        let case = Case { steps, topology: "star", bucket_bytes: 0, ..Case::wide("sgp", n, 1) };
        let case = case.with("overlap", tau as f64);
        // As published one exchange is under way at a time, else one per step of the overlap.
        for (sends, slots) in [("every-overlap", 1), ("every-step", tau)] {
            let mut lab = Lab::new(&case.clone().with("sends", sends));
            lab.run(&mut Rng::new(steps, "order", 0));
            let mut total = 0.0;
            for rank in 0..n {
                total += lab.real(rank, "weight.0");
                let receivers = if rank == 0 { n - 1 } else { 1 };
                for slot in 0..slots.min(steps as usize) {
                    total += receivers as f64 * lab.real(rank, &format!("share.{slot}.weight"));
                }
            }
            assert!((total - n as f64).abs() < 1e-12, "{sends}, after {steps} steps: {total}");
        }
    }
}

/// A slope that is the same everywhere: worker i moves its numerator by η·(i + 1) per step.
fn slope(n: usize) -> Case {
    Case {
        workers: n,
        curvature: vec![vec![1e-9]; n],
        target: (0..n).map(|i| vec![1e9 * (i + 1) as f64]).collect(),
        learning_rate: 1.0 / 64.0,
        ..Case::reference("sgp")
    }
}

#[test]
fn push_sum_finds_the_mean_on_irregular_graphs_and_numerators_alone_do_not() {
    let n = 6;
    for topology in ["star", "grid", "one-peer-exponential"] {
        for overlap in [0.0, 1.0, 3.0] {
            let case = Case { steps: 400, topology, ..slope(n) }.with("overlap", overlap);
            let early = |step: u64| if step < 5 { 1.0 / 64.0 } else { 0.0 };
            let end = |case: &Case| {
                let mut lab = Lab::with(case, |setup| setup.learning_rate = Arc::new(early));
                lab.run_to_end(&mut Rng::new(1, "order", 0));
                lab.nodes.iter().map(|node| f64::from(node.params()[0])).collect::<Vec<f64>>()
            };
            let mean = 5.0 / 64.0 * 21.0 / 6.0;
            for z in end(&case) {
                assert!((z - mean).abs() < 1e-5, "{topology}, τ = {overlap}: {z} not {mean}");
            }
            if topology == "star" {
                let biased = end(&case.with("biased", true));
                assert!(biased.iter().any(|x| (x - mean).abs() > 0.1), "{biased:?}");
            }
        }
    }
}

#[test]
fn a_second_copy_of_a_message_changes_nothing() {
    let mut cases = vec![case("sgp"), case("sgp").with("overlap", 2.0), case("exact-diffusion")];
    cases.extend(FORMS.map(|form| case("gradient-tracking").with("form", form)));
    for case in cases {
        let params = |lab: &Lab| -> Vec<Vec<f32>> {
            lab.nodes.iter().map(|node| node.params().to_vec()).collect()
        };
        let plain = params(&run(&case, 1));
        let mut lab = Lab::new(&Case { seed: 1, ..case.clone() });
        let mut rng = Rng::new(7, "copies", 0);
        while !lab.choices().is_empty() {
            let choices = lab.choices();
            let choice = choices[rng.below(choices.len() as u64) as usize];
            if let (Choice::Deliver(place), true) = (choice, rng.below(4) == 0) {
                let copy = copy(&lab.flying[place]);
                lab.flying.push(copy);
            }
            lab.take(choice);
        }
        lab.run_to_end(&mut rng);
        assert_eq!(params(&lab), plain, "{}", case.algorithm);
    }
}

#[test]
fn free_running_push_sum_loses_no_mass_when_messages_are_lost_doubled_and_reordered() {
    for seed in 0..60 {
        let topology = ["ring", "star", "one-peer-exponential"][seed as usize % 3];
        let case = Case { steps: 40, topology, seed, ..slope(5) }.with("free_running", true);
        let mut lab = Lab::new(&case);
        let mut rng = Rng::new(seed, "faults", 0);
        while !lab.choices().is_empty() {
            let choices = lab.choices();
            let choice = choices[rng.below(choices.len() as u64) as usize];
            match (choice, rng.below(5)) {
                (Choice::Deliver(place), 0) => drop(lab.flying.remove(place)),
                (Choice::Deliver(place), 1) => {
                    let copy = copy(&lab.flying[place]);
                    lab.flying.push(copy);
                    lab.take(choice);
                }
                _ => lab.take(choice),
            }
        }
        lab.run_to_end(&mut rng);
        let total: f64 = weights(&mut lab).iter().map(|of| of[0]).sum();
        assert!((total - 5.0).abs() < 1e-12, "{topology}, seed {seed}: {total}");
        let moved: f64 = (0..5).map(|i| lab.gradients[i] as f64 * (i + 1) as f64 / 64.0).sum();
        let mass = lab.total("numerator")[0];
        assert!((mass - moved).abs() < 2e-5, "{topology}, seed {seed}: {mass} not {moved}");
    }
}

#[test]
fn free_running_workers_take_back_what_a_lost_one_has_not_acknowledged() {
    for seed in 0..60 {
        let case = Case { steps: 20, ..case("sgp") }.with("free_running", true);
        let mut lab = Lab::new(&case);
        let mut rng = Rng::new(seed, "loss", 0);
        // Messages from and to worker 2 never arrive, so all that it has is its own.
        while lab.gradients.iter().sum::<u64>() < 30 {
            lab.flying.retain(|flight| flight.from.0 != 2 && flight.to.0 != 2);
            let choices = lab.choices();
            lab.take(choices[rng.below(choices.len() as u64) as usize]);
        }
        lab.crash(2);
        (0..5).for_each(|rank| lab.tell_view(rank));
        lab.run_to_end(&mut rng);
        let weights = weights(&mut lab);
        for b in 0..weights[0].len() {
            let total: f64 = weights.iter().map(|of| of[b]).sum();
            assert!((total - 4.0).abs() < 1e-12, "seed {seed}: {total}");
        }
    }
}

#[test]
fn a_free_running_worker_goes_on_though_nobody_answers() {
    let case = Case { steps: 40, ..case("sgp") }.with("free_running", true);
    let mut lab = Lab::new(&case);
    while lab.gradients[0] < 40 {
        lab.flying.clear();
        let own = |choice: &Choice| matches!(choice, Choice::Start(0) | Choice::Finish(0));
        let choice = lab.choices().into_iter().find(own);
        lab.take(choice.expect("it never waits"));
    }
    // It has given away what it could spare, and steps on with the rest: no further than six times.
    assert!(weights(&mut lab)[0].iter().all(|weight| *weight > 1.0 / 6.0));
}

fn copy(flight: &Flight) -> Flight {
    Flight { from: flight.from, to: flight.to, message: flight.message.clone() }
}
