//! Byzantine workers in whole runs: what arrives, when it leaves, and what is refused.

mod common;

use common::{Case, SMALL, Shape};
use quelea_core::options::Value;
use quelea_sim::{Attack, AttackKind, Crash};

const SERVED: Shape = Shape { workers: 4, servers: 1, len: 6, buckets: 2, steps: 1 };

fn attack(rank: u32, kind: AttackKind, strength: f64) -> Attack {
    Attack { rank, kind, strength: Some(strength) }
}

/// The server's model after one step of rate 0.1 from zero, where the gradient of worker `i` is −i.
fn model(attacks: Vec<Attack>) -> f64 {
    let outcome = Case::new("sync-ps", SERVED).on(|c| c.faults.attacks = attacks).run();
    f64::from(outcome.ranks[4].params[0])
}

fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-5, "{found} is not {expected}");
}

#[test]
fn a_server_takes_what_byzantine_workers_send() {
    assert_near(model(vec![]), 0.1 * 6.0 / 4.0);
    assert_near(model(vec![attack(3, AttackKind::SignFlip, 1.0)]), 0.1 * (1.0 + 2.0 - 3.0) / 4.0);
    // Honest workers 0 to 2: mean 1, deviation 1.
    assert_near(model(vec![attack(3, AttackKind::Ipm, 2.0)]), 0.1 * (3.0 - 2.0) / 4.0);
    assert_near(model(vec![attack(3, AttackKind::Alie, 0.5)]), 0.1 * (3.0 + 0.5) / 4.0);
    assert_near(model(vec![attack(3, AttackKind::Mimic, 1.0)]), 0.1 * 3.0 / 4.0);
    let two = [1, 2].map(|rank| attack(rank, AttackKind::Ipm, 1.0));
    assert_near(model(two.into()), 0.1 * (3.0 - 2.0 * 1.5) / 4.0);
}

#[test]
fn a_robust_rule_at_the_server_ignores_a_byzantine_worker() {
    let run = |strength: f64| {
        let bad = vec![attack(3, AttackKind::Ipm, strength)];
        let case = Case::new("sync-ps", SERVED).on(|c| c.faults.attacks = bad);
        let case = case.with("aggregate", Value::Text("median".into()));
        f64::from(case.run().ranks[4].params[0])
    };
    assert_near(run(1e6), run(1e3));
    assert_near(run(1e6), 0.1 * 0.5);
}

/// An attacker that is much faster than the others waits for them, and still knows what they send.
#[test]
fn colluding_attackers_wait_for_the_slowest_honest_worker() {
    let bad = vec![attack(0, AttackKind::Ipm, 1.0)];
    let case = Case::new("sync-ps", SERVED).on(|c| c.faults.attacks = bad);
    let case = case.on(|c| c.slow.extend([(2, 7.0)]));
    let honest = Case::new("sync-ps", SERVED).on(|c| c.slow.extend([(2, 7.0)])).clock_ns();
    // The server waits for the slowest anyway; the attacker's small message comes right behind.
    assert!((honest..honest + honest / 50).contains(&case.clock_ns()), "{honest}");
    assert_near(f64::from(case.run().ranks[4].params[0]), 0.1 * (6.0 - 2.0) / 4.0);
}

#[test]
fn dissensus_of_strength_one_stops_gossip_on_a_ring() {
    // After the first step worker i is at 0.1·i; worker 0 keeps its neighbours where they are.
    let shape = Shape { steps: 1, ..SMALL };
    let bad = vec![attack(0, AttackKind::Dissensus, 1.0)];
    let outcome = Case::new("nna", shape).on(|c| c.faults.attacks = bad).run();
    assert_near(f64::from(outcome.ranks[1].params[0]), 0.1);
    assert_near(f64::from(outcome.ranks[3].params[0]), 0.3);
    assert_near(f64::from(outcome.ranks[2].params[0]), 0.2);
}

#[test]
fn runs_with_attackers_and_crashes_repeat_and_end() {
    for kind in [AttackKind::Ipm, AttackKind::Dissensus, AttackKind::Spectral, AttackKind::Gaussian]
    {
        let run = || {
            let bad = vec![attack(1, kind, 0.5)];
            let case = Case::new("clipped-gossip", Shape { workers: 6, ..SMALL });
            let case = case.on(|c| c.faults.attacks = bad);
            let case = case.on(|c| c.faults.crashes = vec![Crash { rank: 4, at_ms: 250.0 }]);
            case.on(|c| c.detect_ms = 100.0).run()
        };
        let (first, again) = (run(), run());
        for (a, b) in first.ranks.iter().zip(&again.ranks) {
            assert_eq!(a.params, b.params, "{kind:?}");
        }
        assert!(first.ranks[0].steps == SMALL.steps, "{kind:?}");
    }
}

#[test]
fn attacks_that_make_no_sense_are_refused_with_the_reason() {
    let refusal = |algorithm: &str, shape: Shape, attacks: &[Attack]| {
        let case = Case::new(algorithm, shape).on(|c| c.faults.attacks = attacks.to_vec());
        case.try_run().expect_err("refused").to_string()
    };
    let ipm = attack(1, AttackKind::Ipm, 1.0);
    assert!(refusal("ad-psgd", SMALL, &[ipm]).contains("needs rounds"));
    assert!(refusal("allreduce", SMALL, &[ipm]).contains("parts of sums"));
    let spectral = attack(1, AttackKind::Spectral, 1.0);
    assert!(refusal("sync-ps", SERVED, &[spectral]).contains("has no topology"));
    assert!(refusal("d-psgd", SMALL, &[ipm, ipm]).contains("has an attack already"));
    assert!(refusal("sync-ps", SERVED, &[attack(4, AttackKind::Ipm, 1.0)]).contains("4 workers"));
    let flip = attack(1, AttackKind::LabelFlip, 1.0);
    assert!(refusal("d-psgd", SMALL, &[flip]).contains("the task has no labels"));
    let all = [0, 1, 2, 3].map(|rank| attack(rank, AttackKind::SignFlip, 1.0));
    assert!(refusal("d-psgd", SMALL, &all).contains("at least one worker must be honest"));
}
