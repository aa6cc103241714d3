//! Bounded staleness, elastic averaging and backup workers.

mod support;

use quelea_core::random::Rng;
use quelea_core::state::Visitor;
use support::{Case, Choice, Flight, Lab};

/// Takes choices at random, but lets fast workers finish more often than slow ones.
fn choose(lab: &Lab, rng: &mut Rng, odds: &[u64]) -> Option<Choice> {
    let mut weighted = Vec::new();
    for choice in lab.choices() {
        let weight = if let Choice::Finish(rank) = choice { odds[rank] } else { 12 };
        weighted.extend((0..weight).map(|_| choice));
    }
    let place = (!weighted.is_empty()).then(|| rng.below(weighted.len() as u64) as usize);
    place.map(|place| weighted[place])
}

fn gap(lab: &Lab) -> u64 {
    let clocks = lab.living_workers().into_iter().map(|rank| lab.gradients[rank]);
    clocks.clone().max().unwrap_or(0) - clocks.min().unwrap_or(0)
}

#[test]
fn clocks_of_ssp_differ_by_at_most_one_more_than_the_bound_under_random_speeds() {
    for (seed, staleness) in (0..40).zip([1, 2, 3, 7].iter().cycle()) {
        let mut case = Case { steps: 40, servers: 2, ..Case::wide("ssp", 4, 7) };
        case = case.with("staleness", *staleness as f64);
        let (mut lab, mut rng) = (Lab::new(&case), Rng::new(seed, "speeds", 0));
        let mut widest = 0;
        while let Some(choice) = choose(&lab, &mut rng, &[24, 12, 6, 1]) {
            lab.take(choice);
            widest = widest.max(gap(&lab));
        }
        assert_eq!(widest, staleness + 1, "seed {seed}: the bound is kept, and reached");
        assert_eq!(lab.gradients.iter().sum::<u64>(), 160, "seed {seed}: nobody is stuck");
    }
}

#[test]
fn a_dead_worker_does_not_freeze_the_others_of_ssp() {
    for seed in 0..60 {
        let case = Case { steps: 30, servers: 2, ..Case::wide("ssp", 4, 7) }.with("staleness", 2.0);
        let (mut lab, mut rng) = (Lab::new(&case), Rng::new(seed, "speeds", 0));
        // Worker 3 never finishes anything: the others come to a stop behind it.
        while let Some(choice) = choose(&lab, &mut rng, &[12, 12, 12, 0]) {
            lab.take(choice);
        }
        assert_eq!(lab.gradients[..4], [3, 3, 3, 0], "seed {seed}");
        let server = lab.nodes.last().expect("there are servers");
        assert!(server.awaiting().iter().all(|awaited| awaited.from.0 == 3));
        lab.crash(3);
        (0..lab.nodes.len()).for_each(|rank| lab.tell_view(rank));
        lab.run_to_end(&mut rng);
        assert_eq!(lab.gradients[..3], [30; 3], "seed {seed}");
    }
}

#[test]
fn a_push_of_ssp_that_comes_twice_is_applied_once() {
    for seed in 0..60 {
        let case = Case { steps: 12, servers: 2, ..Case::wide("ssp", 4, 7) }.with("staleness", 2.0);
        let lab = play(Lab::new(&case), seed);
        assert_eq!(lab.gradients.iter().sum::<u64>(), 48);
        let staleness = lab.facts.iter().filter(|(rank, _)| *rank == 4).count();
        assert_eq!(staleness, 48, "seed {seed}: one update per gradient");
    }
}

/// Plays any interleaving, now and then delivering a message twice or out of turn.
fn play(mut lab: Lab, seed: u64) -> Lab {
    let mut rng = Rng::new(seed, "play", 0);
    loop {
        let choices = lab.choices();
        if choices.is_empty() {
            break;
        }
        let choice = choices[rng.below(choices.len() as u64) as usize];
        if let (Choice::Deliver(place), 0) = (choice, rng.below(4)) {
            let Flight { from, to, message } = &lab.flying[place];
            let copy = Flight { from: *from, to: *to, message: message.clone() };
            lab.flying.push(copy);
        }
        lab.take(choice);
    }
    lab.run_to_end(&mut rng);
    lab
}

/// Puts a worker somewhere else.
struct Place(f32);

impl Visitor for Place {
    fn number(&mut self, _name: &str, _value: &mut u64) {}

    fn vector(&mut self, name: &str, value: &mut Vec<f32>) {
        if name == "params" {
            value.iter_mut().enumerate().for_each(|(k, x)| *x = self.0 * (k + 1) as f32);
        }
    }
}

fn total(lab: &Lab) -> Vec<f64> {
    let mut total: Vec<f64> = lab.server_model().iter().map(|x| f64::from(*x)).collect();
    for node in &lab.nodes[..lab.workers()] {
        total.iter_mut().zip(node.params()).for_each(|(sum, x)| *sum += f64::from(*x));
    }
    total
}

/// With constant gradients the model is known whatever the order: every gradient of worker i moves
/// it by η·i/n, once, however often its message comes.
#[test]
fn the_ledger_of_asp_balances_under_any_interleaving_with_duplicates_and_reordering() {
    for seed in 0..100 {
        let n = 4;
        let case = Case {
            workers: n,
            servers: 1,
            curvature: vec![vec![1e-9]; n],
            target: (0..n).map(|i| vec![1e9 * (i + 1) as f64]).collect(),
            steps: 20,
            learning_rate: 1.0 / 1024.0,
            ..Case::reference("asp")
        };
        let mut lab = Lab::new(&case);
        let mut rng = Rng::new(seed, "ledger", 0);
        lab.run_with_duplicates(&mut rng);
        lab.run_to_end(&mut rng);
        let moved: f64 = (0..n).map(|i| lab.gradients[i] as f64 * (i + 1) as f64).sum();
        let (model, expected) = (f64::from(lab.server_model()[0]), moved / 1024.0 / n as f64);
        assert!((model - expected).abs() < 1e-5, "seed {seed}: {model} is not {expected}");
    }
}

#[test]
fn elastic_exchanges_keep_the_sum_of_workers_and_centre_under_any_interleaving() {
    for algorithm in ["easgd", "eamsgd"] {
        for (seed, form) in (0..100).zip(["asynchronous", "synchronous"].iter().cycle()) {
            let mut case = Case { learning_rate: 0.0, steps: 12, ..Case::wide(algorithm, 5, 7) };
            case.servers = 1 + seed as usize % 3;
            case = case.with("period", 1.0 + (seed % 3) as f64).with("form", *form);
            let mut lab = Lab::new(&case);
            for rank in 0..5 {
                lab.nodes[rank].state(&mut Place(rank as f32 - 1.0));
            }
            let before = total(&lab);
            let moved = lab.nodes[0].params().to_vec();
            let lab = play(lab, seed);
            assert_ne!(lab.nodes[0].params(), moved, "{form}: something was exchanged");
            for (before, after) in before.iter().zip(total(&lab)) {
                assert!((before - after).abs() < 5e-5, "{form}, seed {seed}: {before}, {after}");
            }
        }
    }
}

#[test]
fn synchronous_elastic_averaging_ends_at_its_fixed_point() {
    let case = Case { steps: 4000, ..Case::reference("easgd") };
    let case = case.with("form", "synchronous").with("moving_rate", 0.1).with("period", 1.0);
    let mut lab = Lab::new(&case);
    lab.run_to_end(&mut Rng::new(1, "order", 0));
    let centre = f64::from(lab.server_model()[0]);
    // Sums of 4000 steps in `f32` are good to a few units in the seventh place.
    assert!((centre - 0.777_777_777_777_8).abs() < 3e-6, "{centre}");
}

#[test]
fn synchronous_eamsgd_is_its_recursion() {
    let (eta, alpha, delta, period) = (0.05, 0.2, 0.9, 3);
    let case = Case { steps: 60, ..Case::reference("eamsgd") };
    let case = case.with("form", "synchronous").with("moving_rate", alpha);
    let case = case.with("momentum", delta).with("period", period as f64);
    let mut lab = Lab::new(&case);
    lab.run_to_end(&mut Rng::new(1, "order", 0));
    let (mut x, mut v, mut centre) = ([0.0f64; 4], [0.0f64; 4], 0.0f64);
    for t in 0..60 {
        let mut pull = 0.0;
        for i in 0..4 {
            let (a, b) = (case.curvature[i][0], case.target[i][0]);
            let e = if t % period == 0 { alpha * (x[i] - centre) } else { 0.0 };
            v[i] = delta * v[i] - eta * a * (x[i] + delta * v[i] - b);
            x[i] += v[i] - e;
            pull += e;
        }
        centre += pull;
    }
    assert!((f64::from(lab.server_model()[0]) - centre).abs() < 1e-5);
    for i in 0..4 {
        let held = f64::from(lab.nodes[i].params()[0]);
        assert!((held - (x[i] + delta * v[i])).abs() < 1e-5, "worker {i} holds {held}");
        let model = f64::from(lab.nodes[i].model()[0]);
        assert!((model - x[i]).abs() < 1e-5, "worker {i} would deploy {model}");
    }
}

/// The centre after `rounds` rounds in which `workers` workers take turns on f(x) = x²/2.
fn round_robin(workers: usize, eta: f64, alpha: f64, rounds: u64) -> f32 {
    let mut case = Case { workers, learning_rate: eta, ..Case::reference("easgd") };
    case.curvature = vec![vec![1.0]; workers];
    case.target = vec![vec![0.0]; workers];
    (case.start, case.steps) = (vec![1.0], rounds);
    let mut lab = Lab::new(&case.with("moving_rate", alpha).with("period", 1.0));
    for turn in 0..rounds as usize * workers {
        let worker = turn % workers;
        let mine = |lab: &Lab| {
            let of_mine = |f: &Flight| f.from.index() == worker || f.to.index() == worker;
            lab.flying.iter().position(of_mine)
        };
        // It asks only now: the request that it left after its last turn arrives, and the answer.
        for _ in 0..2 {
            let place = mine(&lab).expect("a request or its answer is on its way");
            lab.take(Choice::Deliver(place));
        }
        lab.take(Choice::Start(worker));
        lab.take(Choice::Finish(worker));
        let place = mine(&lab).expect("the difference comes before the next request");
        lab.take(Choice::Deliver(place));
    }
    lab.server_model()[0]
}

#[test]
fn round_robin_elastic_averaging_is_stable_exactly_within_its_bound() {
    for workers in [1, 3, 8] {
        for eta in [0.5, 1.0] {
            let bound = (4.0 - 2.0 * eta) / (4.0 - eta);
            let inside = round_robin(workers, eta, 0.98 * bound, 2000);
            let outside = round_robin(workers, eta, 1.02 * bound, 2000);
            assert!(inside.abs() < 1e-3, "{workers} workers, η = {eta}: {inside}");
            assert!(outside.abs() > 1e3 || outside.is_nan(), "{workers}, η = {eta}: {outside}");
        }
    }
}

#[test]
fn a_slow_worker_does_not_stall_the_steps_of_a_server_with_a_backup() {
    let case = Case { steps: 20, servers: 2, ..Case::wide("sync-ps", 4, 7) };
    for seed in 0..40 {
        let mut lab = Lab::new(&case.clone().with("backup", 1.0));
        let mut rng = Rng::new(seed, "speeds", 0);
        while let Some(choice) = choose(&lab, &mut rng, &[12, 12, 12, 0]) {
            lab.take(choice);
        }
        assert_eq!(lab.gradients[..4], [20, 20, 20, 0], "seed {seed}");
        // The late one is one gradient late, throws it away and stands where the others are.
        lab.run_to_end(&mut rng);
        assert_eq!((lab.gradients[3], lab.nodes[3].step()), (1, 20), "seed {seed}");
        assert_eq!(lab.nodes[3].params(), lab.server_model());
        // Three gradients were divided by three.
        let mut three = Case { workers: 3, ..case.clone() };
        (three.curvature, three.target) = (case.curvature[..3].to_vec(), case.target[..3].to_vec());
        let mut without = Lab::new(&three);
        without.run_to_end(&mut rng);
        assert_eq!(lab.server_model(), without.server_model(), "seed {seed}");
    }
}

#[test]
fn backups_of_any_speed_end_with_the_servers_model() {
    for seed in 0..100 {
        let case = Case { steps: 15, servers: 3, ..Case::wide("sync-ps", 5, 7) };
        let mut lab = Lab::new(&case.with("backup", 1.0 + (seed % 4) as f64));
        let mut rng = Rng::new(seed, "speeds", 0);
        while let Some(choice) = choose(&lab, &mut rng, &[24, 12, 6, 3, 1]) {
            lab.take(choice);
        }
        lab.run_to_end(&mut rng);
        for rank in 0..5 {
            assert_eq!(lab.nodes[rank].params(), lab.server_model(), "seed {seed}");
        }
    }
}

/// Workers take turns and messages arrive at once: in every round but the first, n − 1 updates
/// lie between the model of a gradient and its own.
fn take_turns(lab: &mut Lab) {
    let turn = |lab: &Lab, choice: &Choice| match choice {
        Choice::Deliver(_) => 0,
        Choice::Finish(_) => 1,
        Choice::Start(rank) => 2 + lab.gradients[*rank],
    };
    while let Some(choice) = lab.choices().into_iter().min_by_key(|choice| turn(lab, choice)) {
        lab.take(choice);
    }
}

/// The server's model after `rounds` gradients of each of n workers on x²/2 − x, by hand, in double
/// precision: `collect` gradients, each divided by its staleness (Zhang et al. 2016, equations 3
/// and 4), are averaged per update.
fn staleness_aware(n: usize, rounds: u64, rate: f64, collect: u64) -> f64 {
    let (mut model, mut version) = (0.0, 0);
    let mut held = vec![(0.0, 0); n];
    let (mut sum, mut gradients) = (0.0, 0);
    for push in 0..rounds as usize * n {
        let (x, base) = held[push % n];
        sum += (x - 1.0) / f64::max(1.0, (version - base) as f64);
        gradients += 1;
        if gradients == collect {
            model -= rate * sum / collect as f64;
            version += 1;
            (sum, gradients) = (0.0, 0);
        }
        held[push % n] = (model, version);
    }
    if gradients > 0 {
        model -= rate * sum / gradients as f64;
    }
    model
}

#[test]
fn a_gradient_of_asp_that_is_scaled_by_staleness_counts_one_over_its_staleness() {
    let (n, rounds, rate) = (8, 20, 0.1);
    for collect in [1, 2, 3, 8] {
        let case = Case {
            workers: n,
            curvature: vec![vec![1.0]; n],
            target: vec![vec![1.0]; n],
            steps: rounds,
            learning_rate: rate,
            ..Case::reference("asp")
        }
        .with("scale", "staleness");
        let case = if collect > 1 { case.with("collect", collect as f64) } else { case };
        let mut lab = Lab::new(&case);
        take_turns(&mut lab);
        lab.run_to_end(&mut Rng::new(1, "end", 0));
        let (found, expected) =
            (f64::from(lab.server_model()[0]), staleness_aware(n, rounds, rate, collect));
        assert!((found - expected).abs() < 1e-5, "c = {collect}: {found} is not {expected}");
        // About as far as so many synchronous steps, not as an eighth of them.
        let synchronous = 1.0 - (1.0 - rate).powi(rounds as i32);
        assert!((found / synchronous - 1.0).abs() < 0.2, "c = {collect}: {found}, {synchronous}");
    }
}

/// n pushes move the model like one synchronous step, however many are collected per update.
#[test]
fn softsync_of_asp_applies_every_gradient_once() {
    let n = 6;
    for scale in ["workers", "none"] {
        for (collect, seed) in [1.0, 2.0, 4.0, 5.0].into_iter().zip(0..) {
            // A slope of one: 60 gradients, whatever their order.
            let case = Case {
                workers: n,
                curvature: vec![vec![1e-9]; n],
                target: vec![vec![1e9]; n],
                steps: 10,
                learning_rate: 1.0 / 64.0,
                ..Case::reference("asp")
            };
            let mut lab = Lab::new(&case.with("scale", scale).with("collect", collect));
            let mut rng = Rng::new(seed, "order", 0);
            lab.run_with_duplicates(&mut rng);
            lab.run_to_end(&mut rng);
            let updates = (60.0 / collect).ceil();
            let expected = if scale == "workers" { 10.0 } else { updates } / 64.0;
            let found = f64::from(lab.server_model()[0]);
            assert!((found - expected).abs() < 1e-5, "{scale}, c = {collect}: {found}");
        }
    }
}

/// A robust rule at the servers, whatever the order of events and the number of buckets: the model is
/// that of the rule applied to whole gradients by hand.
#[test]
fn servers_with_a_robust_rule_apply_it_to_whole_gradients_in_any_order_of_events() {
    use quelea_core::robust::{multi_krum, trimmed_mean};
    for (rule, byzantine) in [("trimmed-mean", 1), ("multi-krum", 2)] {
        for seed in 0..10 {
            let case = Case { steps: 15, servers: 1, ..Case::wide("sync-ps", 7, 7) };
            let case = case.with("aggregate", rule).with("byzantine", f64::from(byzantine));
            let mut lab = Lab::new(&case);
            lab.run_to_end(&mut Rng::new(seed, "order", 0));
            let mut model = vec![0.0f32; 7];
            for _ in 0..15 {
                let gradient = |i: usize| -> Vec<f32> {
                    let terms = model.iter().zip(&case.curvature[i]).zip(&case.target[i]);
                    terms.map(|((x, a), b)| (a * (f64::from(*x) - b)) as f32).collect()
                };
                let gradients: Vec<Vec<f32>> = (0..7).map(gradient).collect();
                let slices: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
                let mut out = vec![0.0; 7];
                if rule == "multi-krum" {
                    multi_krum(&slices, 2, &mut out);
                } else {
                    trimmed_mean(&slices, 1, &mut out);
                }
                model.iter_mut().zip(out).for_each(|(x, g)| *x -= case.learning_rate as f32 * g);
            }
            for (found, expected) in lab.server_model().iter().zip(&model) {
                assert!((found - expected).abs() < 1e-5, "{rule}, seed {seed}: {found} {expected}");
            }
        }
    }
}
