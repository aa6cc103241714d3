//! AD-PSGD under every order of events, and under any loss.

mod support;

use std::collections::BTreeSet;

use murmura_core::random::Rng;
use support::{Case, Choice, Lab};

fn case(gradients: u64) -> Case {
    Case { steps: gradients, learning_rate: 0.25, ..Case::reference("ad-psgd") }
}

/// Replays `path` from the start.
fn replay(case: &Case, path: &[Choice]) -> Lab {
    let mut lab = Lab::new(case);
    path.iter().for_each(|choice| lab.take(*choice));
    lab
}

/// What may happen next. A start changes nothing but that its worker computes, so it commutes
/// with everything and is taken at once; all orders of the rest are tried.
fn open_choices(lab: &Lab, gradients: u64) -> Vec<Choice> {
    let (starts, rest): (Vec<_>, Vec<_>) =
        lab.choices().into_iter().partition(|choice| matches!(choice, Choice::Start(_)));
    // Every worker computes the same number of gradients, so that all stay in the game.
    let wanted =
        |choice: &Choice| matches!(choice, Choice::Start(r) if lab.gradients[*r] < gradients);
    match starts.into_iter().find(wanted) {
        Some(start) => vec![start],
        None => rest,
    }
}

#[test]
fn every_order_of_messages_and_gradients_ends_without_deadlock() {
    for gradients in [1, 2, 3] {
        let case = case(gradients);
        let mut seen = BTreeSet::new();
        let mut open = vec![Vec::<Choice>::new()];
        let mut ends = 0;
        while let Some(path) = open.pop() {
            let mut lab = replay(&case, &path);
            if !seen.insert(lab.control_digest()) {
                continue;
            }
            let choices = open_choices(&lab, gradients);
            if choices.is_empty() {
                ends += 1;
                assert_eq!(lab.gradients, [gradients; 4], "stuck after {path:?}");
                assert!(lab.nodes.iter().all(|node| node.is_drained()), "open after {path:?}");
            }
            for choice in choices {
                let mut longer = path.clone();
                longer.push(choice);
                open.push(longer);
            }
        }
        assert!(ends > 0 && seen.len() > 20, "{} states, {ends} ends", seen.len());
        println!("{gradients} gradients each: {} states, {ends} ends", seen.len());
    }
}

#[test]
fn exchanges_keep_the_mean_under_any_order_and_any_topology() {
    for (seed, topology) in (0..60).zip(["ring", "complete", "exponential", "grid"].iter().cycle())
    {
        let mut case = Case { topology, learning_rate: 0.0, ..Case::wide("ad-psgd", 6, 5) };
        (case.steps, case.seed) = (20, seed);
        case.start = vec![1.0, -2.0, 3.0, 0.5, 0.25];
        let mut lab = Lab::new(&case);
        lab.run_to_end(&mut Rng::new(seed, "order", 0));
        for (mean, start) in lab.mean().iter().zip(&case.start) {
            assert!((mean - start).abs() < 1e-6);
        }
        assert_eq!(lab.gradients.iter().sum::<u64>(), 120);
    }
}

#[test]
fn the_mean_moves_by_the_displacements_alone() {
    // With a constant gradient (no curvature to speak of) the mean is known whatever happens.
    let n = 6;
    let case = Case {
        workers: n,
        curvature: vec![vec![1e-9]; n],
        target: (0..n).map(|i| vec![1e9 * (i + 1) as f64]).collect(),
        steps: 30,
        learning_rate: 1.0 / 1024.0,
        ..Case::reference("ad-psgd")
    };
    for seed in 0..20 {
        let mut lab = Lab::new(&case);
        lab.run_to_end(&mut Rng::new(seed, "order", 0));
        let moved: f64 = (0..n).map(|i| lab.gradients[i] as f64 * (i + 1) as f64).sum();
        let expected = moved / 1024.0 / n as f64;
        assert!((lab.mean()[0] - expected).abs() < 1e-5, "{} not {expected}", lab.mean()[0]);
    }
}

#[test]
fn a_lost_worker_is_forgotten_at_any_moment_and_a_second_one_too() {
    for seed in 0..300 {
        let mut case = Case { topology: "ring", ..Case::wide("ad-psgd", 6, 5) };
        (case.steps, case.seed) = (10, seed);
        let mut lab = Lab::new(&case);
        let mut rng = Rng::new(seed, "loss", 0);
        lab.run_while(&mut rng, |lab| lab.gradients.iter().sum::<u64>() < 5 + seed % 20);
        lab.crash(seed as usize % 6);
        let told = rng.below(6) as usize;
        (0..told).for_each(|rank| lab.tell_view(rank));
        lab.crash((seed as usize + 1) % 6);
        for rank in 0..6 {
            lab.tell_view(rank);
            lab.tell_view(rank);
        }
        lab.run_to_end(&mut rng);
        assert_eq!(lab.living_workers().len(), 4);
    }
}
