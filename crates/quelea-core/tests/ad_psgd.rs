//! AD-PSGD under every order of events, and under any loss.

mod support;

use std::collections::BTreeSet;

use quelea_core::random::Rng;
use support::{Case, Choice, Lab};

const AVERAGING: [&str; 2] = ["active", "every-gradient"];

fn case(gradients: u64, averaging: &'static str) -> Case {
    let case = Case { steps: gradients, learning_rate: 0.25, ..Case::reference("ad-psgd") };
    case.with("averaging", averaging)
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
    let active = [1, 2, 3].map(|gradients| (gradients, AVERAGING[0]));
    let every = [1, 2].map(|gradients| (gradients, AVERAGING[1]));
    for (gradients, averaging) in active.into_iter().chain(every) {
        let case = case(gradients, averaging);
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
        println!("{averaging}, {gradients} gradients each: {} states, {ends} ends", seen.len());
    }
}

/// With a constant gradient (no curvature to speak of) the mean is known whatever happens: every
/// gradient of worker i moves it by η(i + 1)/n.
fn constant_gradients(topology: &'static str, averaging: &'static str) -> Case {
    let n = 6;
    Case {
        workers: n,
        topology,
        curvature: vec![vec![1e-9]; n],
        target: (0..n).map(|i| vec![1e9 * (i + 1) as f64]).collect(),
        steps: 30,
        learning_rate: 1.0 / 1024.0,
        ..Case::reference("ad-psgd")
    }
    .with("averaging", averaging)
}

fn check_mean(lab: &Lab, what: &str) {
    let moved: f64 = (0..6).map(|i| lab.gradients[i] as f64 * (i + 1) as f64).sum();
    let expected = moved / 1024.0 / 6.0;
    assert!((lab.mean()[0] - expected).abs() < 1e-5, "{what}: {} not {expected}", lab.mean()[0]);
}

#[test]
fn the_mean_moves_by_the_gradients_alone_under_any_order_and_topology() {
    for topology in ["ring", "complete", "exponential", "grid", "star"] {
        for (seed, averaging) in (0..20).zip(AVERAGING.into_iter().cycle()) {
            let mut lab = Lab::new(&constant_gradients(topology, averaging));
            lab.run_to_end(&mut Rng::new(seed, "order", 0));
            check_mean(&lab, topology);
            let apart = lab.nodes.iter().any(|node| node.params() != lab.nodes[0].params());
            assert!(apart, "workers differ, so there is a mean to keep");
        }
    }
}

#[test]
fn a_request_that_comes_twice_is_answered_once() {
    for averaging in AVERAGING {
        let mut rng = Rng::new(1, "twice", 0);
        let mut lab = Lab::new(&constant_gradients("ring", averaging));
        lab.run_with_duplicates(&mut rng);
        lab.run_to_end(&mut rng);
        check_mean(&lab, averaging);
    }
}

#[test]
fn a_lost_worker_is_forgotten_at_any_moment_and_a_second_one_too() {
    for (seed, averaging) in (0..300).zip(AVERAGING.into_iter().cycle()) {
        let case = Case { topology: "ring", ..Case::wide("ad-psgd", 6, 5) };
        let mut case = case.with("averaging", averaging);
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
        // What the lost were computing is lost; the survivors do the rest.
        assert!(lab.gradients.iter().sum::<u64>() >= 58);
    }
}

#[test]
fn where_the_topology_cannot_be_rebuilt_nobody_asks_the_lost() {
    for (seed, averaging) in (0..50).zip(AVERAGING.into_iter().cycle()) {
        let case = Case { steps: 20, ..Case::wide("ad-psgd", 6, 5) };
        let case = case.with("averaging", averaging);
        let mut lab = Lab::new(&case);
        lab.setup.topology = None;
        let mut rng = Rng::new(seed, "stuck", 0);
        lab.run_while(&mut rng, |lab| lab.gradients.iter().sum::<u64>() < 20);
        lab.crash(2);
        (0..6).for_each(|rank| lab.tell_view(rank));
        lab.run_to_end(&mut rng);
    }
}

/// Algorithm 1 averages once per gradient, whoever computes it: also where the active workers, who
/// ask, are ten times slower than the passive ones, or ten times faster.
#[test]
fn every_gradient_leads_to_one_average_and_half_of_them_where_only_active_workers_start() {
    let is_active = |rank: usize| rank % 2 == 1;
    for averaging in AVERAGING {
        for slow in [None, Some(true), Some(false)] {
            let mut lab = Lab::new(&constant_gradients("ring", averaging));
            let mut rng = Rng::new(1, "rate", 0);
            let odds = |choice: &Choice| match choice {
                // Messages arrive before the next gradient, so that no exchange has to wait.
                Choice::Deliver(_) => 1 << 20,
                Choice::Finish(rank) if slow == Some(is_active(*rank)) => 1,
                _ => 10,
            };
            loop {
                let choices = lab.choices();
                let most = choices.iter().map(&odds).sum();
                if most == 0 {
                    break;
                }
                let mut drawn = rng.below(most);
                let chosen = choices.iter().find(|choice| {
                    let is_drawn = drawn < odds(choice);
                    drawn = drawn.saturating_sub(odds(choice));
                    is_drawn
                });
                lab.take(*chosen.expect("the odds sum to `most`"));
            }
            // Models of one element travel, one each way.
            let averages = lab.sent.iter().sum::<u64>() / 8;
            let of_active: u64 = (0..6).filter(|i| is_active(*i)).map(|i| lab.gradients[i]).sum();
            let all: u64 = lab.gradients.iter().sum();
            let expected = if averaging == "active" { of_active } else { all };
            let lacking = expected as f64 - averages as f64;
            assert!(lacking.abs() <= 0.02 * expected as f64, "{averaging}: {averages} {expected}");
        }
    }
}
