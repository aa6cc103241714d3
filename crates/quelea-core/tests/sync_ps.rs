//! The synchronous parameter server with majority votes and with lazy uploads.

mod support;

use quelea_core::random::Rng;
use support::{Case, Lab};

fn finish(case: &Case, seed: u64) -> Lab {
    let mut lab = Lab::new(case);
    lab.run_to_end(&mut Rng::new(seed, "order", 0));
    lab
}

fn vote(dimensions: usize) -> Case {
    let case = Case { steps: 15, servers: 2, ..Case::wide("sync-ps", 7, dimensions) };
    case.with("aggregate", "majority-vote")
}

fn gradient(case: &Case, worker: usize, model: &[f32]) -> Vec<f32> {
    let terms = model.iter().zip(&case.curvature[worker]).zip(&case.target[worker]);
    terms.map(|((x, a), b)| (a * (f64::from(*x) - b)) as f32).collect()
}

#[test]
fn a_majority_vote_moves_every_element_by_the_learning_rate_towards_most_workers() {
    let case = vote(9);
    let mut model = vec![0.0f32; 9];
    for _ in 0..case.steps {
        let gradients: Vec<Vec<f32>> = (0..7).map(|i| gradient(&case, i, &model)).collect();
        for (k, x) in model.iter_mut().enumerate() {
            let votes: f32 = gradients.iter().map(|g| g[k].signum()).sum();
            *x -= case.learning_rate as f32 * votes.signum();
        }
    }
    for seed in 0..10 {
        assert_eq!(finish(&case, seed).server_model(), model, "seed {seed}");
    }
}

#[test]
fn votes_have_the_same_bits_as_whole_gradients_and_as_single_bits() {
    let plain = finish(&vote(40), 1);
    let coded = finish(&Case { codec: "sign", ..vote(40) }, 2);
    assert_eq!(coded.server_model(), plain.server_model());
    for rank in coded.living_workers() {
        assert_eq!(coded.nodes[rank].params(), plain.nodes[rank].params());
    }
}

/// Beside the votes, a message has the number of elements and one magnitude: 8 bytes.
#[test]
fn a_vote_takes_one_bit_per_element_in_each_direction() {
    let (elements, steps, workers) = (4096, 3, 7);
    let case =
        |codec| Case { steps, servers: 1, bucket_bytes: 0, codec, ..vote(elements as usize) };
    let directions = |codec| {
        let lab = finish(&case(codec), 1);
        (lab.sent[..7].iter().sum::<u64>(), lab.sent[7])
    };
    let (plain_up, plain_down) = directions("f32");
    assert_eq!((plain_up, plain_down), (steps * workers * 4 * elements, plain_up));
    let (up, down) = directions("sign");
    let beside = steps * workers * 8;
    assert_eq!(((up - beside) * 32, (down - beside) * 32), (plain_up, plain_down));
}

fn lazy(rule: &'static str, threshold: f64) -> Case {
    let case = Case { steps: 80, servers: 1, bucket_bytes: 0, ..Case::wide("sync-ps", 5, 6) };
    case.with("lazy", rule).with("lazy_threshold", threshold)
}

/// How many gradients the workers have sent.
fn uploads(lab: &Lab, elements: u64) -> u64 {
    lab.sent[..lab.workers()].iter().sum::<u64>() / (4 * elements)
}

#[test]
fn a_threshold_of_zero_is_the_synchronous_server_bit_for_bit() {
    let plain =
        finish(&Case { steps: 80, servers: 2, ..Case::wide("sync-ps", 5, 6) }, 1).server_model();
    for rule in ["gradient", "parameters"] {
        for seed in 0..5 {
            let case = Case { servers: 2, bucket_bytes: 12, ..lazy(rule, 0.0) };
            assert_eq!(finish(&case, seed).server_model(), plain, "{rule}, seed {seed}");
        }
    }
}

/// The last gradient that a worker has sent, of which model it was, and when.
type SentGradient = (Vec<f64>, Vec<f64>, usize);

/// LAG-WK and the rule of LASG-PS in double precision, as the papers have them, with sums of
/// differences at the server. Returns the model and how many gradients were sent.
fn by_hand(case: &Case, rule: &str, threshold: f64, smoothness: f64) -> (Vec<f64>, u64) {
    let (window, rate, n) = (10usize, case.learning_rate, case.workers);
    let d = case.curvature[0].len();
    let distance =
        |x: &[f64], y: &[f64]| -> f64 { x.iter().zip(y).map(|(x, y)| (x - y) * (x - y)).sum() };
    let (mut model, mut sum, mut moves) = (vec![0.0; d], vec![0.0; d], Vec::new());
    let mut sent: Vec<Option<SentGradient>> = vec![None; n];
    let mut uploads = 0;
    for step in 0..case.steps as usize {
        let newest = &moves[moves.len().saturating_sub(window)..];
        let allowed = threshold * newest.iter().sum::<f64>() / (window as f64 * rate * rate);
        for (i, last) in sent.iter_mut().enumerate() {
            let g: Vec<f64> =
                (0..d).map(|k| case.curvature[i][k] * (model[k] - case.target[i][k])).collect();
            let is_lazy = last.as_ref().is_some_and(|(old, at, when)| match rule {
                "gradient" => distance(&g, old) <= allowed,
                _ => {
                    step - when <= window
                        && smoothness * smoothness * distance(&model, at) <= allowed
                }
            });
            if is_lazy {
                continue;
            }
            let zeros = vec![0.0; d];
            let old = last.as_ref().map_or(&zeros, |(old, _, _)| old);
            (0..d).for_each(|k| sum[k] += g[k] - old[k]);
            *last = Some((g, model.clone(), step));
            uploads += 1;
        }
        let before = model.clone();
        (0..d).for_each(|k| model[k] -= rate * sum[k] / n as f64);
        moves.push(distance(&model, &before));
    }
    (model, uploads)
}

#[test]
fn lazy_uploads_are_those_of_the_papers_rules() {
    for (rule, threshold) in
        [("gradient", 1.0), ("gradient", 0.1), ("parameters", 1.0), ("parameters", 0.3)]
    {
        let case = lazy(rule, threshold).with("lazy_smoothness", 3.0);
        let (model, expected) = by_hand(&case, rule, threshold, 3.0);
        for seed in 0..5 {
            let lab = finish(&case, seed);
            assert_eq!(uploads(&lab, 6), expected, "{rule} {threshold}, seed {seed}");
            for (found, expected) in lab.server_model().iter().zip(&model) {
                let far = (f64::from(*found) - expected).abs();
                assert!(far < 1e-5, "{rule} {threshold}: {found} {expected}");
            }
        }
        assert!(expected < 5 * case.steps * 2 / 3, "{rule} {threshold}: {expected} are few");
    }
}

#[test]
fn lazy_workers_reach_the_optimum_of_all_with_fewer_gradients() {
    for rule in ["gradient", "parameters"] {
        let case = Case { steps: 1500, ..lazy(rule, 1.0).with("lazy_smoothness", 2.0) };
        let lab = finish(&case, 3);
        let (all, sent) = (case.steps * 5, uploads(&lab, 6));
        assert!(sent * 2 < all, "{rule}: {sent} of {all}");
        for (k, found) in lab.server_model().iter().enumerate() {
            let sum = |of: &dyn Fn(usize) -> f64| (0..5).map(of).sum::<f64>();
            let optimum =
                sum(&|i| case.curvature[i][k] * case.target[i][k]) / sum(&|i| case.curvature[i][k]);
            assert!((f64::from(*found) - optimum).abs() < 1e-4, "{rule}: {found} {optimum}");
        }
    }
}

/// Where nobody has sent a gradient, the servers have nothing new to send either.
#[test]
fn servers_send_a_displacement_only_if_it_is_not_the_last_one() {
    let case = Case { steps: 150, ..lazy("parameters", 1.0).with("lazy_smoothness", 3.0) };
    let lab = finish(&case, 3);
    // All workers see the same model, and so decide alike.
    let rounds = uploads(&lab, 6) / 5;
    assert_eq!(lab.sent[5], rounds * 5 * 4 * 6, "{rounds} rounds of {}", case.steps);
    assert!(rounds * 2 < case.steps);
}

#[test]
fn survivors_of_lazy_runs_forget_the_gradient_of_a_lost_worker() {
    for (rule, seed) in [("gradient", 1), ("gradient", 2), ("parameters", 3), ("parameters", 4)] {
        let case = Case { steps: 1500, ..lazy(rule, 1.0).with("lazy_smoothness", 2.0) };
        let (mut lab, mut rng) = (Lab::new(&case), Rng::new(seed, "loss", 0));
        lab.some_events(&mut rng, 400);
        lab.crash(2);
        for rank in 0..lab.nodes.len() {
            lab.tell_view(rank);
            lab.some_events(&mut rng, 5);
        }
        lab.run_to_end(&mut rng);
        let living = [0, 1, 3, 4];
        for (k, found) in lab.server_model().iter().enumerate() {
            let weighted = living.iter().map(|i| case.curvature[*i][k] * case.target[*i][k]);
            let optimum =
                weighted.sum::<f64>() / living.iter().map(|i| case.curvature[*i][k]).sum::<f64>();
            assert!((f64::from(*found) - optimum).abs() < 1e-4, "{rule}: {found} {optimum}");
        }
    }
}

#[test]
fn lazy_runs_go_on_bit_for_bit_from_a_cut() {
    for rule in ["gradient", "parameters"] {
        let case = Case { servers: 2, bucket_bytes: 12, ..lazy(rule, 1.0) };
        let whole = finish(&case, 1).server_model();
        let mut first = Lab::new(&case);
        first.run_until_step(37, &mut Rng::new(5, "cut", 0));
        let saved = first.saved();
        let mut second = Lab::resumed(&case, &saved);
        second.run_to_end(&mut Rng::new(6, "order", 0));
        assert_eq!(second.server_model(), whole, "{rule}");
    }
}
