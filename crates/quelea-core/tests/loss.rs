//! Synchronous algorithms that lose a worker at any moment, and a second one soon after.

mod support;

use quelea_core::collectives::average::REDUCE;
use quelea_core::message::{Message, Rank};
use quelea_core::random::Rng;
use quelea_core::time::Time;
use support::{Case, Lab, lose_two};

fn case(algorithm: &'static str) -> Case {
    let mut case = Case { steps: 12, servers: 2, ..Case::wide(algorithm, 5, 7) };
    case.optimizer = vec![("momentum", quelea_core::options::Value::Number(0.5))];
    case
}

#[test]
fn all_reduce_survivors_finish_with_the_same_bits() {
    for collective in ["ring", "halving-doubling", "hierarchical"] {
        for seed in 0..150 {
            let lab = lose_two(&case("allreduce").with("collective", collective), seed);
            let living = lab.living_workers();
            assert_eq!(living.len(), 3);
            for rank in &living[1..] {
                assert_eq!(
                    lab.nodes[*rank].params(),
                    lab.nodes[living[0]].params(),
                    "{collective}, seed {seed}"
                );
            }
        }
    }
}

/// `x₀ − η·Σ s_i ∇f_i(x₀) / Σ s_i` over these workers of a quadratic.
fn after_one_step(case: &Case, samples: &[u32], workers: &[usize]) -> Vec<f64> {
    let start = |d: usize| case.start.get(d).copied().unwrap_or(0.0);
    let slope = |d: usize, w: &usize| case.curvature[*w][d] * (start(d) - case.target[*w][d]);
    let weight = |w: &usize| f64::from(samples[*w]);
    let all: f64 = workers.iter().map(weight).sum();
    let mean = |d| workers.iter().map(|w| weight(w) * slope(d, w)).sum::<f64>() / all;
    (0..case.target[0].len()).map(|d| start(d) - case.learning_rate * mean(d)).collect()
}

#[test]
fn a_step_that_loses_a_worker_half_way_is_the_step_of_the_survivors() {
    for collective in ["ring", "halving-doubling", "hierarchical"] {
        let case = Case { steps: 1, ..Case::wide("allreduce", 5, 7) };
        let case = case.with("collective", collective);
        let samples = [10, 20, 30, 10, 50];
        let (mut of_all, mut of_survivors) = (0, 0);
        for seed in 0..300 {
            let mut lab = Lab::with(&case, |setup| setup.samples = samples.into());
            let mut rng = Rng::new(seed, "half-way", 0);
            let (moment, mut events) = (rng.below(130), 0);
            lab.run_while(&mut rng, |_| {
                events += 1;
                events <= moment
            });
            lab.crash(rng.below(5) as usize);
            (0..5).for_each(|rank| lab.tell_view(rank));
            lab.run_to_end(&mut rng);
            let living = lab.living_workers();
            let params = lab.nodes[living[0]].params();
            let is_at_cut = |workers: &[usize]| {
                let expected = after_one_step(&case, &samples, workers);
                params.iter().zip(expected).all(|(x, y)| (f64::from(*x) - y).abs() < 1e-6)
            };
            // If somebody was through, all take over what that one has.
            of_all += u32::from(is_at_cut(&[0, 1, 2, 3, 4]));
            of_survivors += u32::from(is_at_cut(&living));
            assert_eq!(of_all + of_survivors, seed as u32 + 1, "{collective}, seed {seed}");
        }
        assert!(of_all > 0 && of_survivors > 100, "{collective}: {of_all}, {of_survivors}");
    }
}

#[test]
fn synchronous_server_survivors_finish_with_the_servers_model() {
    for seed in 0..150 {
        let lab = lose_two(&case("sync-ps"), seed);
        for rank in lab.living_workers() {
            assert_eq!(lab.nodes[rank].params(), lab.server_model(), "seed {seed}");
        }
    }
}

#[test]
fn gossip_survivors_finish_in_every_form() {
    for form in ["consensus", "adapt-then-combine", "combine-then-adapt"] {
        for topology in ["ring", "one-peer-exponential", "random-matching"] {
            for seed in 0..100 {
                let mut case = case("d-psgd").with("form", form);
                case.topology = topology;
                lose_two(&case, seed);
            }
        }
    }
}

#[test]
fn corrected_gossip_survivors_finish_on_fixed_topologies() {
    for algorithm in ["exact-diffusion", "d2", "extra"] {
        for topology in ["ring", "star", "complete"] {
            for seed in 0..100 {
                lose_two(&Case { topology, ..case(algorithm) }, seed);
            }
        }
    }
}

#[test]
fn tracking_and_momentum_gossip_survivors_finish_on_any_topology() {
    let forms = ["diging", "semi-atc", "atc", "push"];
    let mut cases = forms.map(|form| case("gradient-tracking").with("form", form)).to_vec();
    cases.extend(["d-amsgrad", "decentlam", "qg-dmsgd", "sgp"].map(case));
    cases.extend([1.0, 3.0].map(|overlap| case("sgp").with("overlap", overlap)));
    cases.push(case("sgp").with("overlap", 3.0).with("sends", "every-step"));
    for case in cases {
        for topology in ["ring", "one-peer-exponential", "random-matching", "star"] {
            for seed in 0..50 {
                let lab = lose_two(&Case { topology, ..case.clone() }, seed);
                for rank in lab.living_workers() {
                    let finite = lab.nodes[rank].params().iter().all(|x| x.is_finite());
                    assert!(finite, "{} on {topology}, seed {seed}", case.algorithm);
                }
            }
        }
    }
}

#[test]
fn asynchronous_methods_go_on_without_the_lost() {
    for case in [case("asp"), case("aladdin"), case("sgp").with("free_running", true)] {
        for seed in 0..100 {
            let lab = lose_two(&case, seed);
            assert_eq!(lab.living_workers().len(), 3);
        }
    }
    for seed in 0..100 {
        lose_two(&case("aladdin").with("barrier", true).with("period", 2.0), seed);
    }
}

#[test]
fn a_survivor_that_is_a_step_behind_takes_over_the_state_of_one_ahead() {
    let mut entered = 0;
    for seed in 0..400 {
        let mut lab = Lab::new(&case("allreduce"));
        let mut rng = Rng::new(seed, "behind", 0);
        lab.run_while(&mut rng, |lab| {
            let steps: Vec<u64> = (0..5).map(|rank| lab.nodes[rank].step()).collect();
            steps.iter().max() == steps.iter().min() || steps[0] < 3
        });
        let behind: Vec<usize> = (0..5).filter(|r| lab.nodes[*r].step() == 3).collect();
        if behind.is_empty() || lab.choices().is_empty() {
            continue;
        }
        entered += 1;
        let lost = (0..5).find(|rank| !behind.contains(rank) || behind.len() == 5);
        lab.crash(lost.expect("somebody is ahead"));
        (0..5).for_each(|rank| lab.tell_view(rank));
        lab.run_to_end(&mut rng);
        let living = lab.living_workers();
        for rank in &living[1..] {
            assert_eq!(lab.nodes[*rank].params(), lab.nodes[living[0]].params(), "seed {seed}");
        }
    }
    assert!(entered > 50, "only {entered} runs had somebody behind");
}

#[test]
fn survivors_of_periodic_averaging_finish_with_the_same_bits() {
    for algorithm in ["local-sgd", "slowmo", "bmuf", "diloco"] {
        for (seed, buffers) in (0..150).zip(["keep", "reset", "average"].iter().cycle()) {
            // The last step ends a round, so all stand at its average.
            let lab =
                lose_two(&case(algorithm).with("period", 3.0).with("buffers", *buffers), seed);
            let living = lab.living_workers();
            for rank in &living[1..] {
                let (one, other) = (lab.nodes[*rank].params(), lab.nodes[living[0]].params());
                assert_eq!(one, other, "{algorithm}, seed {seed}");
            }
        }
    }
}

#[test]
fn survivors_of_gossip_with_global_averages_finish() {
    for topology in ["ring", "one-peer-exponential"] {
        for seed in 0..150 {
            let case = Case { topology, ..case("gossip-pga") }.with("period", 3.0);
            let lab = lose_two(&case, seed);
            let living = lab.living_workers();
            for rank in &living[1..] {
                let (one, other) = (lab.nodes[*rank].params(), lab.nodes[living[0]].params());
                assert_eq!(one, other, "{topology}, seed {seed}");
            }
            let case = Case { topology, ..self::case("gossip-aga") };
            lose_two(&case.with("period", 2.0).with("warmup_steps", 2.0), seed);
        }
    }
}

#[test]
fn a_worker_that_missed_an_average_gets_its_result_from_one_that_has_it() {
    let mut helped = 0;
    for seed in 0..200 {
        let mut lab = Lab::new(&case("diloco").with("period", 3.0));
        let mut rng = Rng::new(seed, "behind", 0);
        // Until somebody is through the first average and somebody is not.
        lab.run_while(&mut rng, |lab| (0..5).all(|rank| lab.nodes[rank].step() < 3));
        let behind: Vec<usize> = (0..5).filter(|rank| lab.nodes[*rank].step() < 3).collect();
        let ahead: Vec<usize> = (0..5).filter(|rank| !behind.contains(rank)).collect();
        if ahead.len() != 1 {
            continue;
        }
        let model = lab.nodes[ahead[0]].params().to_vec();
        lab.crash(behind[0]);
        (0..5).for_each(|rank| lab.tell_view(rank));
        lab.run_while(&mut rng, |lab| lab.nodes[behind[1]].step() < 3);
        assert_eq!(lab.nodes[behind[1]].params(), model, "seed {seed}");
        helped += 1;
        lab.run_to_end(&mut rng);
    }
    assert!(helped > 50, "only {helped} runs had somebody behind");
}

#[test]
fn bounded_staleness_and_elastic_averaging_go_on_without_the_lost() {
    for seed in 0..100 {
        for case in [
            case("ssp").with("staleness", (seed % 4) as f64),
            case("easgd").with("period", 2.0),
            case("eamsgd").with("period", 2.0).with("form", "synchronous"),
        ] {
            let lab = lose_two(&case, seed);
            assert_eq!(lab.living_workers().len(), 3);
        }
    }
}

#[test]
fn servers_with_backups_lose_workers_and_the_rest_finish_with_their_model() {
    for seed in 0..150 {
        let lab = lose_two(&case("sync-ps").with("backup", 1.0 + (seed % 2) as f64), seed);
        for rank in lab.living_workers() {
            assert_eq!(lab.nodes[rank].params(), lab.server_model(), "seed {seed}");
        }
    }
}

#[test]
fn a_bad_message_that_was_held_for_its_view_is_its_senders_and_does_not_end_the_receiver() {
    let mut lab = Lab::new(&case("allreduce"));
    lab.nodes[0].contain_held();
    // Rank 4 is before rank 0 on the ring; it sends too many elements for the view without rank 2.
    let mut message = Message::new(REDUCE, 0, 0).with(lab.pool.copy(&[1.0; 50]));
    message.view = 1;
    lab.nodes[0].message(Time::ZERO, Rank(4), message);
    assert_eq!(lab.nodes[0].take_refused(), [], "it is held");
    lab.crash(2);
    (0..5).for_each(|rank| lab.tell_view(rank));
    let refused = lab.nodes[0].take_refused();
    let reason = refused.first().map(|refused| (refused.from, refused.reason.contains("elements")));
    assert_eq!((refused.len(), reason), (1, Some((Rank(4), true))), "{refused:?}");
    lab.run_to_end(&mut Rng::new(1, "held", 0));
    let living = lab.living_workers();
    assert!(living.iter().all(|rank| lab.nodes[*rank].params() == lab.nodes[0].params()));
}
