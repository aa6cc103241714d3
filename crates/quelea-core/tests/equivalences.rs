//! Methods that are the same method: each test is named after its equivalence.

mod support;

use std::sync::Arc;

use quelea_core::options::Value;
use quelea_core::random::Rng;
use quelea_core::topology::{Round, Schedule};
use quelea_core::view::View;
use support::{Case, Choice, Lab};

fn models(case: &Case) -> Vec<Vec<f32>> {
    finish(Lab::new(case))
}

fn finish(mut lab: Lab) -> Vec<Vec<f32>> {
    lab.run_to_end(&mut Rng::new(3, "order", 0));
    (0..lab.workers()).map(|rank| lab.nodes[rank].params().to_vec()).collect()
}

/// The same up to the order of sums.
fn assert_near(one: &[Vec<f32>], other: &[Vec<f32>]) {
    assert_eq!(one.len(), other.len());
    for (x, y) in one.iter().flatten().zip(other.iter().flatten()) {
        assert!((x - y).abs() < 2e-6, "{x} is not {y}");
    }
}

fn case(algorithm: &'static str) -> Case {
    Case { steps: 40, servers: 2, ..Case::wide(algorithm, 5, 7) }
}

fn periodic(algorithm: &'static str) -> Case {
    case(algorithm).with("period", 4.0)
}

/// With the velocity of plain momentum, where the two sides run the same optimizer.
fn with_momentum(mut case: Case) -> Case {
    case.optimizer = vec![("momentum", Value::Number(0.8))];
    case
}

#[test]
fn local_sgd_with_period_one_is_all_reduce() {
    assert_near(&models(&case("local-sgd").with("period", 1.0)), &models(&case("allreduce")));
}

#[test]
fn gossip_pga_with_period_one_is_all_reduce() {
    assert_near(&models(&case("gossip-pga").with("period", 1.0)), &models(&case("allreduce")));
}

/// The models where nobody mixes with anybody: W = I.
fn models_without_mixing(case: &Case) -> Vec<Vec<f32>> {
    let alone = Round::new((0..5).map(|i| vec![(i, 1.0)]).collect());
    let identity = Arc::new(Schedule::periodic(vec![alone]));
    finish(Lab::with(case, |setup| {
        setup.view = Arc::new(View::first(5, 0, Arc::clone(&setup.view.hosts), Some(identity)));
    }))
}

#[test]
fn gossip_pga_without_mixing_is_local_sgd() {
    let pga = models_without_mixing(&with_momentum(periodic("gossip-pga")));
    assert_eq!(pga, models(&with_momentum(periodic("local-sgd"))));
}

#[test]
fn d_psgd_without_mixing_is_independent_runs() {
    for form in ["consensus", "adapt-then-combine", "combine-then-adapt"] {
        let case = with_momentum(case("d-psgd").with("form", form));
        let together = models_without_mixing(&case);
        for (worker, model) in together.iter().enumerate() {
            let alone = Case {
                workers: 1,
                curvature: vec![case.curvature[worker].clone()],
                target: vec![case.target[worker].clone()],
                ..with_momentum(self::case("allreduce"))
            };
            assert_eq!(models(&alone)[0], *model, "{form}, worker {worker}");
        }
        assert_ne!(together[0], together[1], "{form}: workers differ");
    }
}

#[test]
fn gossip_pga_that_never_averages_is_d_psgd() {
    let pga = with_momentum(case("gossip-pga").with("period", 1000.0));
    let d_psgd = with_momentum(case("d-psgd").with("form", "adapt-then-combine"));
    assert_eq!(models(&pga), models(&d_psgd));
}

#[test]
fn gossip_aga_with_a_fixed_period_is_gossip_pga() {
    let aga = periodic("gossip-aga").with("period_max", 4.0).with("warmup_steps", 1000.0);
    assert_eq!(models(&aga), models(&periodic("gossip-pga")));
}

#[test]
fn slowmo_is_classic_bmuf_is_diloco_with_heavy_ball() {
    let slowmo = periodic("slowmo").with("slow_momentum", 0.6).with("slow_lr", 0.9);
    let bmuf = periodic("bmuf").with("block_momentum", 0.6).with("block_lr", 0.9);
    let diloco = periodic("diloco").with("outer_momentum", 0.6).with("outer_lr", 0.9);
    let slowmo = models(&slowmo);
    assert_near(&slowmo, &models(&bmuf));
    assert_near(&slowmo, &models(&diloco.with("nesterov", false)));
}

#[test]
fn slowmo_differs_from_bmuf_when_the_learning_rate_changes() {
    let dropping = |case: Case| Case { schedule: |step| if step < 20 { 1.0 } else { 0.1 }, ..case };
    let slowmo = dropping(periodic("slowmo").with("slow_momentum", 0.6));
    let bmuf = dropping(periodic("bmuf").with("block_momentum", 0.6));
    let (slowmo, bmuf) = (models(&slowmo), models(&bmuf));
    let apart = slowmo[0].iter().zip(&bmuf[0]).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    assert!(apart > 1e-3, "{apart}");
}

#[test]
fn nesterov_bmuf_is_diloco() {
    let bmuf = periodic("bmuf").with("form", "nesterov");
    let bmuf = bmuf.with("block_momentum", 0.6).with("block_lr", 0.9);
    let diloco = periodic("diloco").with("outer_momentum", 0.6).with("outer_lr", 0.9);
    assert_near(&models(&bmuf), &models(&diloco));
}

#[test]
fn outer_steps_without_momentum_and_of_length_one_are_local_sgd() {
    let local = models(&with_momentum(periodic("local-sgd")));
    for outer in [
        periodic("slowmo").with("slow_momentum", 0.0),
        periodic("bmuf").with("block_momentum", 0.0),
        periodic("bmuf").with("block_momentum", 0.0).with("form", "nesterov"),
        periodic("diloco").with("outer_momentum", 0.0).with("outer_lr", 1.0),
    ] {
        assert_near(&local, &models(&with_momentum(outer)));
    }
}

#[test]
fn aladdin_with_a_barrier_and_full_mixing_is_local_sgd() {
    let aladdin = periodic("aladdin").with("barrier", true).with("alpha", 1.0);
    assert_near(&models(&aladdin), &models(&periodic("local-sgd")));
}

#[test]
fn accum_adam_of_one_step_is_decentralized_adam() {
    let with = |name, given: Vec<(&'static str, Value)>| {
        let mut case = case("d-psgd");
        (case.optimizer_name, case.optimizer) = (name, given);
        models(&case)
    };
    assert_eq!(with("accum-adam", vec![("accumulate", Value::Number(1.0))]), with("adam", vec![]));
    assert_ne!(with("accum-adam", vec![("accumulate", Value::Number(4.0))]), with("adam", vec![]));
}

/// The servers' model of an asynchronous run in which every worker does its share, in an order
/// that depends on the seed alone.
fn server_model(case: &Case, seed: u64) -> Vec<f32> {
    let (mut lab, mut rng) = (Lab::new(case), Rng::new(seed, "order", 0));
    loop {
        let mut choices = lab.choices();
        choices.retain(|c| !matches!(c, Choice::Start(r) if lab.gradients[*r] >= case.steps));
        if choices.is_empty() {
            return lab.server_model();
        }
        lab.take(choices[rng.below(choices.len() as u64) as usize]);
    }
}

#[test]
fn ssp_without_staleness_is_the_synchronous_server() {
    let ssp = with_momentum(case("ssp").with("staleness", 0.0));
    assert_eq!(models(&ssp), models(&with_momentum(case("sync-ps"))));
}

#[test]
fn ssp_with_boundless_staleness_is_asp() {
    for seed in 0..20 {
        let ssp = with_momentum(case("ssp").with("staleness", 1e9));
        let asp = with_momentum(case("asp"));
        assert_eq!(server_model(&ssp, seed), server_model(&asp, seed), "seed {seed}");
    }
}

#[test]
fn the_synchronous_server_is_all_reduce() {
    assert_near(
        &models(&with_momentum(case("sync-ps"))),
        &models(&with_momentum(case("allreduce"))),
    );
}

#[test]
fn one_worker_without_elasticity_is_sgd() {
    for form in ["asynchronous", "synchronous"] {
        let alone = |algorithm| Case { steps: 40, ..Case::wide(algorithm, 1, 5) };
        let easgd = alone("easgd").with("moving_rate", 1e-30).with("form", form);
        assert_eq!(models(&with_momentum(easgd)), models(&with_momentum(alone("allreduce"))));
    }
}

#[test]
fn eamsgd_without_momentum_is_easgd() {
    let easgd = periodic("easgd").with("form", "synchronous");
    let eamsgd = periodic("eamsgd").with("form", "synchronous").with("momentum", 0.0);
    assert_eq!(models(&eamsgd), models(&easgd));
}
