//! ALADDIN's ledger, its four normalisation rules, and that nobody waits for a server.

mod support;

use quelea_core::contract::Fact;
use quelea_core::random::Rng;
use support::{Case, Choice, Lab};

const ORDERS: [&str; 2] = ["step-then-mix", "mix-then-step"];

/// Total displacement of every worker and of the server, under a constant gradient of 1 and no
/// mixing to speak of.
fn displacement_ratio(period: u64, settings: &[(&'static str, &'static str)], drop: bool) -> f64 {
    let n = 8;
    // A flat slope: curvature so small that the gradient stays at −curvature·target = −1.
    let mut case = Case {
        workers: n,
        curvature: vec![vec![1e-9]; n],
        target: vec![vec![1e9]; n],
        steps: 64 * period,
        learning_rate: 1.0 / 1024.0,
        ..Case::reference("aladdin")
    }
    .with("period", period as f64)
    .with("alpha", 1e-30)
    .with("drop_trigger", drop);
    for (name, value) in settings {
        case = case.with(name, *value);
    }
    let mut lab = Lab::new(&case);
    take_turns(&mut lab);
    let server = f64::from(lab.server_model()[0]);
    let worker = lab.mean()[0];
    server / worker
}

/// Workers take turns; messages arrive at once, so that nothing is folded.
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

#[test]
fn constant_gradients_move_the_server_as_the_four_rules_say() {
    for (period, count, none, dropped) in
        [(2, 4.0, 8.0, 0.5), (4, 2.0, 8.0, 0.75), (8, 1.0, 8.0, 0.875), (16, 0.5, 8.0, 0.9375)]
    {
        let near = |ratio: f64, expected: f64| {
            assert!((ratio / expected - 1.0).abs() < 0.02, "π={period}: {ratio} not {expected}");
        };
        near(displacement_ratio(period, &[], false), 1.0);
        near(displacement_ratio(period, &[("normaliser", "count")], false), count);
        near(displacement_ratio(period, &[("normaliser", "none")], false), none);
        near(displacement_ratio(period, &[], true), dropped);
        near(displacement_ratio(period, &[("payload", "gradient")], false), 1.0);
    }
}

#[test]
fn the_ledger_balances_under_any_interleaving_with_duplicates_and_reordering() {
    for (seed, order) in (0..200).zip(ORDERS.into_iter().cycle()) {
        let mut case = Case::wide("aladdin", 5, 7).with("track_mean", true).with("order", order);
        (case.steps, case.servers, case.seed) = (12, 1 + seed as usize % 3, seed);
        let mut rng = Rng::new(seed, "play", 0);
        let mut lab = Lab::new(&case);
        lab.run_with_duplicates(&mut rng);
        lab.run_to_end(&mut rng);
        // With mean tracking every change of a worker is in the ledger, so the server's model
        // with nothing pending is the workers' mean.
        for (server, mean) in lab.server_model().iter().zip(lab.mean()) {
            let error = (f64::from(*server) - mean).abs();
            assert!(error < 5e-6, "seed {seed}: server {server}, mean {mean}");
        }
        assert_eq!(lab.gradients.iter().sum::<u64>(), 60);
        let folded: u64 = lab
            .facts
            .iter()
            .map(|(_, fact)| match fact {
                Fact::Folded(gradients) => u64::from(*gradients),
                _ => 0,
            })
            .sum();
        assert_eq!(folded, 60, "every gradient is in exactly one message");
    }
}

#[test]
fn lazy_updates_and_eager_ones_end_at_the_same_model() {
    // One worker: the interleaving is fixed, only π differs; the server sums all the same.
    let model = |period: f64| {
        let mut case = Case::wide("aladdin", 1, 5).with("period", period).with("alpha", 1e-30);
        case.steps = 64;
        let mut lab = Lab::new(&case);
        lab.run_to_end(&mut Rng::new(1, "lazy", 0));
        lab.server_model()
    };
    for (eager, lazy) in model(1.0).iter().zip(model(8.0)) {
        assert!((eager - lazy).abs() < 1e-6);
    }
}

#[test]
fn a_server_that_never_answers_leaves_independent_runs() {
    let case = Case { steps: 40, servers: 2, ..Case::wide("aladdin", 4, 7) };
    let mut lab = Lab::new(&case);
    loop {
        let wanted = |choice: &Choice| match choice {
            Choice::Deliver(_) => false,
            Choice::Start(rank) => lab.gradients[*rank] < case.steps,
            Choice::Finish(_) => true,
        };
        let Some(choice) = lab.choices().into_iter().find(wanted) else { break };
        lab.take(choice);
    }
    assert_eq!(lab.gradients[..4], [40; 4]);
    for (rank, node) in lab.nodes[..4].iter().enumerate() {
        for (k, x) in node.params().iter().enumerate() {
            let (a, b) = (case.curvature[rank][k] as f32, case.target[rank][k] as f32);
            let mut alone = 0.0f32;
            for _ in 0..40 {
                alone -= 0.05 * (a * (alone - b));
            }
            assert!((x - alone).abs() < 1e-6, "rank {rank}: {x} is not {alone}");
        }
    }
    // One message per piece is on its way, whatever the number of gradients: the rest is folded.
    let pieces = 3;
    assert_eq!(lab.flying.len(), 4 * pieces);
}

#[test]
fn one_worker_with_immediate_answers_is_plain_sgd() {
    let case = Case { workers: 1, steps: 50, ..Case::wide("aladdin", 1, 4) }
        .with("period", 1.0)
        .with("alpha", 1.0)
        .with("barrier", true);
    let mut lab = Lab::new(&case);
    lab.run_to_end(&mut Rng::new(1, "alone", 0));
    for (k, x) in lab.server_model().iter().enumerate() {
        let (a, b) = (case.curvature[0][k] as f32, case.target[0][k] as f32);
        let mut alone = 0.0f32;
        for _ in 0..50 {
            alone -= 0.05 * (a * (alone - b));
        }
        assert_eq!(x.to_bits(), alone.to_bits());
    }
}

/// With one worker x̃ is x_0 − ΣΔ, and the model that a step mixes with lacks that step alone. Mixing
/// before the step is then plain SGD; the printed order takes back α of every step and gives it again
/// with the next model.
#[test]
fn one_worker_that_mixes_before_the_step_is_plain_sgd_and_one_that_mixes_after_it_lags() {
    let (steps, rate, alpha) = (40, 0.05, 0.5);
    let end = |order: &'static str| {
        let case = Case { workers: 1, steps, ..Case::wide("aladdin", 1, 1) }
            .with("period", 1.0)
            .with("alpha", alpha)
            .with("order", order);
        let mut lab = Lab::new(&case);
        take_turns(&mut lab);
        (f64::from(lab.nodes[0].params()[0]), case.curvature[0][0], case.target[0][0])
    };
    let (found, a, b) = end("mix-then-step");
    let plain = b - b * (1.0 - rate * a).powi(steps as i32);
    assert!((found - plain).abs() < 1e-5, "{found} is not {plain}");
    let (found, ..) = end("step-then-mix");
    let (mut x, mut server) = (0.0, 0.0);
    for k in 0..steps {
        let step = rate * a * (x - b);
        x -= step;
        // The model of the push before; at the first step none has come.
        if k > 0 {
            x += alpha * (server - x);
        }
        server -= step;
    }
    assert!((found - x).abs() < 1e-5, "{found} is not {x}");
    assert!((found - plain).abs() > 1e-3, "the newest step is missing in part: {found}");
}

/// Two losses; the workers hear of the first before the server does, and go on in between.
#[test]
fn after_losses_mean_tracking_follows_the_survivors_mean() {
    for (seed, order) in (0..200).zip(ORDERS.into_iter().cycle()) {
        let mut case = Case::wide("aladdin", 5, 7).with("track_mean", true).with("order", order);
        (case.steps, case.servers, case.seed) = (12, 1, seed);
        let mut lab = Lab::new(&case);
        let mut rng = Rng::new(seed, "loss", 0);
        lab.run_while(&mut rng, |lab| lab.gradients.iter().sum::<u64>() < 20);
        lab.crash(2);
        (0..5).for_each(|rank| lab.tell_view(rank));
        lab.some_events(&mut rng, 15);
        if seed % 2 == 0 {
            lab.crash(4);
        }
        lab.tell_view(5);
        lab.tell_view(5);
        lab.some_events(&mut rng, 15);
        (0..5).for_each(|rank| lab.tell_view(rank));
        lab.run_to_end(&mut rng);
        for (server, mean) in lab.server_model().iter().zip(lab.mean()) {
            assert!((f64::from(*server) - mean).abs() < 5e-6, "seed {seed}: {server} {mean}");
        }
    }
}

#[test]
fn plain_gradients_are_clipped_before_they_are_sent() {
    let case = Case {
        workers: 1,
        curvature: vec![vec![1.0]],
        target: vec![vec![100.0]],
        steps: 10,
        clip: Some(1.0),
        ..Case::reference("aladdin")
    };
    let mut lab = Lab::new(&case.with("payload", "gradient").with("alpha", 1e-30));
    lab.run_to_end(&mut Rng::new(1, "clip", 0));
    assert!((lab.server_model()[0] - 0.5).abs() < 1e-6, "ten steps of 0.05");
    assert!((lab.nodes[0].params()[0] - 0.5).abs() < 1e-6);
}

#[test]
fn the_deployed_model_has_nothing_pending_under_every_normaliser() {
    for (normaliser, factor) in [("workers", 1.0), ("none", 4.0)] {
        let model = |period: f64| {
            let case = Case { steps: 3, ..Case::reference("aladdin") }
                .with("normaliser", normaliser)
                .with("alpha", 1e-30)
                .with("period", period);
            let mut lab = Lab::new(&case);
            take_turns(&mut lab);
            (f64::from(lab.server_model()[0]), lab.mean()[0])
        };
        let ((applied, mean), (pending, _)) = (model(1.0), model(1000.0));
        assert!((applied - pending).abs() < 1e-6, "{normaliser}: {applied}, {pending}");
        assert!((applied - factor * mean).abs() < 1e-6, "{normaliser}: {applied}, {mean}");
    }
}

/// One worker whose messages arrive between two gradients, on f(x) = a(x − b)²/2, in double precision.
/// A model is used after the first gradient that follows its arrival.
fn asymmetric_by_hand(a: f64, b: f64, rate: f64, steps: u64, self_update: bool) -> f64 {
    let (mut x, mut server, mut sum, mut inbox) = (0.0, 0.0, 0.0, None);
    for step in 1..=steps {
        let displacement = rate * a * (x - b);
        sum += displacement;
        if self_update {
            x -= displacement;
        }
        x = inbox.take().unwrap_or(x);
        if step.is_multiple_of(4) {
            server -= std::mem::take(&mut sum);
            inbox = Some(server);
        }
    }
    server - sum
}

#[test]
fn without_self_update_a_worker_repeats_the_gradient_of_the_last_model() {
    let (curvature, target, steps) = (0.8, 2.0, 24);
    let run = |rate: f64, self_update: bool| {
        let case = Case {
            workers: 1,
            curvature: vec![vec![curvature]],
            target: vec![vec![target]],
            steps,
            learning_rate: rate,
            ..Case::reference("aladdin")
        };
        let case = case.with("period", 4.0).with("alpha", 1.0);
        let mut lab = Lab::new(&case.with("self_update", self_update));
        take_turns(&mut lab);
        lab.run_to_end(&mut Rng::new(1, "end", 0));
        let found = f64::from(lab.server_model()[0]);
        let expected = asymmetric_by_hand(curvature, target, rate, steps, self_update);
        assert!((found - expected).abs() < 1e-4, "rate {rate}, {self_update}: {found} {expected}");
        found
    };
    for rate in [0.05, 0.3, 0.5] {
        run(rate, true);
        run(rate, false);
    }
    // A rate that the method stands, and naive asymmetric training does not.
    assert!((run(0.9, true) - target).abs() < 1e-3);
    assert!((run(0.9, false) - target).abs() > 1.0);
}

#[test]
fn without_self_update_and_without_models_the_server_collects_gradients_of_the_start() {
    for payload in ["delta", "gradient"] {
        let case = Case { steps: 20, ..Case::wide("aladdin", 5, 7) };
        let case = case.with("period", 1e9).with("self_update", false).with("payload", payload);
        let mut lab = Lab::new(&case);
        lab.run_to_end(&mut Rng::new(4, "order", 0));
        // All gradients are −a·b, and there are 100 of them, in any division.
        let gradients = |rank: usize| lab.gradients[rank] as f64;
        for (k, found) in lab.server_model().iter().enumerate() {
            let step = |i: usize| gradients(i) * case.curvature[i][k] * case.target[i][k];
            let expected = case.learning_rate / 5.0 * (0..5).map(step).sum::<f64>();
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{payload}: {found} {expected}");
        }
        assert!(lab.mean().iter().all(|x| *x == 0.0), "{payload}: no worker has moved");
    }
}
