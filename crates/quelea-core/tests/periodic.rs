//! Periodic averaging: fixed points, post-local phases, adaptive periods, buffers, bytes.

mod support;

use quelea_core::options::Value;
use quelea_core::random::Rng;
use support::{Case, Choice, Lab};

fn run(case: &Case) -> Lab {
    let mut lab = Lab::new(case);
    lab.run_to_end(&mut Rng::new(case.seed, "order", 0));
    lab
}

/// Sums of 4000 steps in `f32` are good to a few units in the seventh place.
const TOLERANCE: f64 = 3e-6;

#[test]
fn local_sgd_ends_at_its_fixed_point_under_any_outer_momentum() {
    let case = |algorithm| Case { steps: 4000, ..Case::reference(algorithm) }.with("period", 5.0);
    for case in [
        case("local-sgd"),
        case("slowmo"),
        case("slowmo").with("slow_lr", 0.5).with("slow_momentum", 0.8),
        case("bmuf"),
        case("bmuf").with("form", "nesterov"),
        case("diloco"),
        case("diloco").with("nesterov", false).with("outer_lr", 1.0),
    ] {
        let mean = run(&case).mean()[0];
        let error = (mean - 0.913_086_122_797_9).abs();
        assert!(error < TOLERANCE, "{} {:?}: {mean}", case.algorithm, case.params);
    }
}

#[test]
fn decentralized_adam_ends_where_its_steps_have_equal_signs() {
    let mut case = Case { steps: 20_000, learning_rate: 0.01, ..Case::reference("d-psgd") };
    case.optimizer_name = "adam";
    case.optimizer = vec![("beta2", Value::Number(0.99))];
    let mean = run(&case).mean()[0];
    assert!((mean - 0.6005).abs() < 1e-3, "{mean}");
}

/// After how many of its own steps each average of worker 0 came.
fn averages(case: &Case) -> Vec<u64> {
    let mut lab = Lab::new(case);
    let mut rng = Rng::new(1, "order", 0);
    let mut averages = Vec::new();
    loop {
        let choices = lab.choices();
        if choices.is_empty() {
            return averages;
        }
        lab.take(choices[rng.below(choices.len() as u64) as usize]);
        let collective = lab.flying.last().filter(|flight| flight.message.collective);
        let step = collective.map(|flight| flight.message.step + 1);
        averages.extend(step.filter(|step| averages.last().is_none_or(|last| last < step)));
    }
}

#[test]
fn post_local_sgd_averages_every_step_until_it_may_stop() {
    let case = Case { steps: 12, ..Case::reference("local-sgd") }.with("period", 4.0);
    assert_eq!(averages(&case), [4, 8, 12]);
    assert_eq!(averages(&case.clone().with("start_step", 5.0)), [1, 2, 3, 4, 5, 8, 12]);
    let dropping = Case { schedule: |step| if step < 6 { 1.0 } else { 0.1 }, ..case };
    let after_drop = dropping.clone().with("after_drop", true);
    assert_eq!(averages(&after_drop), [1, 2, 3, 4, 5, 6, 8, 12]);
    assert_eq!(averages(&dropping), [4, 8, 12]);
}

#[test]
fn a_warm_up_is_no_drop_of_the_learning_rate() {
    let rising = |step: u64| (step + 1).min(4) as f64 / 4.0 * if step < 8 { 1.0 } else { 0.5 };
    let mut case = Case { steps: 12, schedule: rising, ..Case::reference("local-sgd") };
    case = case.with("period", 6.0).with("after_drop", true);
    assert_eq!(averages(&case), [1, 2, 3, 4, 5, 6, 7, 8, 12]);
}

#[test]
fn the_period_of_gossip_aga_grows_as_the_loss_falls_and_stays_within_its_limit() {
    // All workers want the same, so the loss falls to nothing.
    let mut case = Case { steps: 300, ..Case::reference("gossip-aga") };
    case.target = vec![vec![2.0]; 4];
    case = case.with("warmup_steps", 8.0).with("period_max", 32.0);
    let averages = averages(&case);
    let gaps: Vec<u64> = averages.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(averages[0], 4);
    assert!(gaps.is_sorted() && gaps[0] == 4, "{gaps:?}");
    assert_eq!(gaps.iter().max(), Some(&32), "{gaps:?}");
}

#[test]
fn the_optimizers_buffers_are_kept_reset_or_averaged() {
    let velocities = |buffers: &'static str| {
        let mut case = Case { steps: 4, bucket_bytes: 8, ..Case::wide("local-sgd", 3, 5) };
        case = case.with("period", 4.0).with("buffers", buffers);
        case.optimizer = vec![("momentum", Value::Number(0.9))];
        let mut lab = run(&case);
        let mut velocities = Vec::new();
        for node in &mut lab.nodes {
            let mut visitor = Named { wanted: "optimizer.0", found: Vec::new() };
            node.state(&mut visitor);
            velocities.push(visitor.found);
        }
        velocities
    };
    let (kept, reset, averaged) = (velocities("keep"), velocities("reset"), velocities("average"));
    assert_ne!(kept[0], kept[1]);
    assert!(reset.iter().flatten().all(|v| *v == 0.0));
    for k in 0..5 {
        let mean: f64 = kept.iter().map(|v| f64::from(v[k]) / 3.0).sum();
        assert!(averaged.iter().all(|v| (f64::from(v[k]) - mean).abs() < 1e-6));
    }
}

/// Finds one vector of a state.
struct Named {
    wanted: &'static str,
    found: Vec<f32>,
}

impl quelea_core::state::Visitor for Named {
    fn number(&mut self, _name: &str, _value: &mut u64) {}

    fn vector(&mut self, name: &str, value: &mut Vec<f32>) {
        if name == self.wanted {
            self.found.clone_from(value);
        }
    }
}

#[test]
fn nothing_is_sent_between_averages_and_a_ring_of_models_at_each() {
    let case = Case { steps: 12, workers: 4, ..Case::wide("local-sgd", 4, 8) };
    let lab = run(&case.with("period", 4.0));
    // Three averages; each sends 2(n−1) chunks of a quarter of the model's 32 bytes.
    assert_eq!(lab.sent[..4].iter().sum::<u64>(), 4 * 3 * 6 * 8);
}

#[test]
fn a_fast_worker_does_its_whole_round_without_the_others() {
    let mut lab = Lab::new(&Case { steps: 20, ..Case::wide("diloco", 3, 4) }.with("period", 10.0));
    for _ in 0..10 {
        lab.take(Choice::Start(0));
        lab.take(Choice::Finish(0));
    }
    assert_eq!((lab.gradients[0], lab.gradients[1]), (10, 0));
    assert!(!lab.choices().contains(&Choice::Start(0)), "now it waits for the average");
    assert!(!lab.nodes[0].awaiting().is_empty());
}

#[test]
fn a_resumed_run_ends_with_the_same_bits() {
    let synchronous = |algorithm| case_of(algorithm).with("form", "synchronous");
    for case in [
        case_of("local-sgd").with("after_drop", true),
        case_of("local-sgd").with("buffers", "average"),
        case_of("slowmo"),
        case_of("bmuf"),
        case_of("diloco"),
        case_of("gossip-pga"),
        case_of("gossip-aga").with("warmup_steps", 3.0).with("period_max", 4.0),
        synchronous("easgd"),
        synchronous("eamsgd"),
        Case { params: Vec::new(), ..case_of("sync-ps") },
    ] {
        let until = |steps| Case { steps, ..case.clone() };
        let end = |mut lab: Lab| -> Vec<Vec<f32>> {
            lab.run_to_end(&mut Rng::new(2, "order", 0));
            lab.nodes.iter().map(|node| node.params().to_vec()).collect()
        };
        for cut in 1..10 {
            let mut first = run(&until(cut));
            let resumed = Lab::resumed(&until(12), &first.saved());
            assert_eq!(end(resumed), end(Lab::new(&until(12))), "{} at {cut}", case.algorithm);
        }
    }
}

fn case_of(algorithm: &'static str) -> Case {
    let mut case = Case { servers: 2, ..Case::wide(algorithm, 3, 5) }.with("period", 3.0);
    case.schedule = |step| if step < 6 { 1.0 } else { 0.5 };
    case.optimizer_name = "accum-adam";
    case.optimizer = vec![("accumulate", Value::Number(2.0))];
    case
}

#[test]
fn asynchronous_servers_can_be_resumed() {
    for case in [
        Case { params: Vec::new(), ..case_of("ssp") },
        case_of("easgd"),
        case_of("eamsgd"),
        Case { params: Vec::new(), ..case_of("sync-ps") }.with("backup", 1.0),
    ] {
        for cut in 1..8 {
            let mut first = run(&Case { steps: cut, ..case.clone() });
            let mut resumed = Lab::resumed(&Case { steps: 12, ..case.clone() }, &first.saved());
            resumed.run_to_end(&mut Rng::new(cut, "order", 0));
        }
    }
}

fn local_gossip(form: &'static str, topology: &'static str, period: u64) -> Case {
    let case = Case { topology, steps: 24, servers: 0, ..Case::wide("d-psgd", 4, 5) };
    case.with("form", form).with("period", period as f64)
}

fn played(case: &Case, seed: u64) -> Vec<Vec<f32>> {
    let mut lab = Lab::new(case);
    lab.run_to_end(&mut Rng::new(seed, "order", 0));
    lab.living_workers().iter().map(|rank| lab.nodes[*rank].params().to_vec()).collect()
}

/// Gossip with local steps on a ring of four, with weights of a third, in double precision.
fn local_gossip_by_hand(case: &Case, form: &str, period: u64) -> Vec<Vec<f64>> {
    let (n, d) = (case.workers, case.curvature[0].len());
    let mix = |models: &[Vec<f64>]| -> Vec<Vec<f64>> {
        let third = |i: usize, k: usize| {
            (models[i][k] + models[(i + 1) % n][k] + models[(i + n - 1) % n][k]) / 3.0
        };
        (0..n).map(|i| (0..d).map(|k| third(i, k)).collect()).collect()
    };
    let step = |at: &[Vec<f64>], from: &[Vec<f64>]| -> Vec<Vec<f64>> {
        let gradient = |i: usize, k: usize| case.curvature[i][k] * (at[i][k] - case.target[i][k]);
        let moved = |i: usize, k: usize| from[i][k] - case.learning_rate * gradient(i, k);
        (0..n).map(|i| (0..d).map(|k| moved(i, k)).collect()).collect()
    };
    let mut models = vec![vec![0.0; d]; n];
    for t in 0..case.steps {
        let mixes = |t: u64| t.is_multiple_of(period);
        models = match form {
            "consensus" if mixes(t) => step(&models, &mix(&models)),
            "combine-then-adapt" if mixes(t) => {
                let mixed = mix(&models);
                step(&mixed, &mixed)
            }
            "adapt-then-combine" if mixes(t + 1) => mix(&step(&models, &models)),
            _ => step(&models, &models),
        };
    }
    models
}

#[test]
fn gossip_with_local_steps_is_that_of_the_recursions_in_every_form_and_order_of_events() {
    for form in ["consensus", "adapt-then-combine", "combine-then-adapt"] {
        for period in [1, 2, 3, 5, 100] {
            let case = local_gossip(form, "ring", period);
            let expected = local_gossip_by_hand(&case, form, period);
            for seed in 0..4 {
                for (found, expected) in played(&case, seed).iter().zip(&expected) {
                    for (x, y) in found.iter().zip(expected) {
                        let near = (f64::from(*x) - y).abs() < 1e-5;
                        assert!(near, "{form}, period {period}, seed {seed}: {x} {y}");
                    }
                }
            }
        }
    }
}

/// Groups of all workers average by all-reduce.
#[test]
fn gossip_with_local_steps_on_a_complete_graph_is_local_sgd() {
    for period in [2, 3, 4] {
        let gossip = played(&local_gossip("adapt-then-combine", "complete", period), 1);
        let local = Case { steps: 24, servers: 0, ..Case::wide("local-sgd", 4, 5) };
        let local = played(&local.with("period", period as f64), 2);
        for (x, y) in gossip.iter().flatten().zip(local.iter().flatten()) {
            assert!((x - y).abs() < 1e-6, "period {period}: {x} {y}");
        }
    }
}

/// The rounds of a topology that changes follow one another at every exchange, not at every step.
#[test]
fn exchanges_go_through_all_rounds_of_a_topology_whatever_the_period() {
    // Two rounds of the hypercube of four are the exact mean.
    for period in [1, 2, 4] {
        let once = |step: u64| if step == 0 { 1.0 } else { 0.0 };
        let case = local_gossip("adapt-then-combine", "one-peer-hypercube", period);
        let models = played(&Case { schedule: once, steps: 2 * period, ..case }, 1);
        let spread = |k: usize| {
            let of = models.iter().map(|model| model[k]);
            of.clone().fold(f32::MIN, f32::max) - of.fold(f32::MAX, f32::min)
        };
        assert!((0..5).all(|k| spread(k) < 1e-6), "period {period}: {models:?}");
    }
}

#[test]
fn survivors_of_gossip_with_local_steps_finish_in_groups_too() {
    for topology in ["ring", "complete"] {
        for (seed, form) in
            (0..30).zip(["consensus", "adapt-then-combine", "combine-then-adapt"].iter().cycle())
        {
            let mut lab = Lab::new(&local_gossip(form, topology, 3));
            let mut rng = Rng::new(seed, "loss", 0);
            lab.some_events(&mut rng, 60);
            lab.crash(rng.below(4) as usize);
            for rank in 0..lab.nodes.len() {
                lab.tell_view(rank);
                lab.some_events(&mut rng, 5);
            }
            lab.run_to_end(&mut rng);
            assert!(lab.mean().iter().all(|x| x.is_finite()), "{form} on {topology}");
        }
    }
}
