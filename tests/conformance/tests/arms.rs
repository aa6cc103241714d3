//! One scenario, three arms: synchronous algorithms agree bit for bit, asynchronous ones within
//! a stated bound.

use conformance::forms::{self, AlgorithmForm};
use conformance::scenario::{ELEMENTS, result, scenario, scenario_of};
use conformance::{ARMS, Arm, attempt, bits, deployed, plan};
use quelea_core::algorithms::{ALGORITHMS, Traffic};
use quelea_core::codec::CodecShape;
use quelea_core::properties::{Budget, OptimizerSite};

#[test]
fn synchronous_forms_give_the_same_bits_and_bytes_in_every_arm() {
    for form in forms::synchronous() {
        for workers in [1, 2, 3, 4, 8] {
            let plan = plan(&scenario_of(&form, workers, 12, ""));
            assert!(plan.setup.properties().synchronous, "{}", form.text());
            let expected = result(Arm::Virtual, &plan);
            assert_eq!(result(Arm::Threads, &plan), expected, "n = {workers}, {}", form.text());
            if workers == 3 {
                for arm in [Arm::Tcp, Arm::SharedMemory] {
                    assert_eq!(result(arm, &plan), expected, "{arm:?}, {}", form.text());
                }
            }
        }
    }
}

#[test]
fn codecs_give_the_same_bits_and_bytes_in_threads() {
    for form in forms::synchronous() {
        for (_, codec) in form.codecs(ELEMENTS) {
            for workers in [2, 5] {
                let more = format!("[codec]\n{codec}");
                let plan = plan(&scenario_of(&form, workers, 12, &more));
                let expected = result(Arm::Virtual, &plan);
                let found = result(Arm::Threads, &plan);
                assert_eq!(found, expected, "n = {workers}, {}, {codec}", form.text());
            }
        }
    }
}

#[test]
fn every_algorithm_gives_the_same_bits_and_bytes_over_tcp_with_every_codec() {
    for form in first_synchronous() {
        for (codec, codec_text) in form.codecs(ELEMENTS) {
            let counts: &[usize] =
                if codec.shape == CodecShape::Plain { &[1, 2, 3, 4, 8] } else { &[3] };
            for workers in counts {
                let more = format!("[codec]\n{codec_text}");
                let plan = plan(&scenario_of(&form, *workers, 12, &more));
                let expected = result(Arm::Virtual, &plan);
                let found = result(Arm::Tcp, &plan);
                assert_eq!(found, expected, "n = {workers}, {}, {codec_text}", form.text());
            }
        }
    }
}

/// Long vectors are read where their sender has them; short ones are copied.
#[test]
fn vectors_that_are_read_in_place_give_the_same_bits_and_bytes() {
    for form in first_synchronous() {
        for (_, codec) in form.codecs(LONG_ELEMENTS) {
            let plan = plan(&long_scenario(&form, &codec));
            let expected = result(Arm::Virtual, &plan);
            let found = result(Arm::SharedMemory, &plan);
            assert!(found == expected, "{}, {codec}", form.text());
        }
    }
}

/// Parameters of a model whose buckets and chunks of buckets are all read in place.
const LONG_ELEMENTS: usize = 20_000;

/// Four workers, two buckets.
fn long_scenario(form: &AlgorithmForm, codec: &str) -> String {
    let algorithm = form.text();
    format!(
        "workers = 4\nsteps = 6\n[algorithm]\n{algorithm}\n[codec]\n{codec}\n[buckets]\nsize_mb = 0.04\n\
         [task]\nname = \"quadratic\"\ndimensions = {LONG_ELEMENTS}\nnoise_std = 0.5\n\
         curvature = [[1], [2], [3], [4]]\ntarget = [[1], [-2], [0.5], [3]]\n\
         [optimizer]\nlr = 0.05\n[cluster]\nservers = 2"
    )
}

/// Groups of a topology average by all-reduce, over hosts that several of them share.
#[test]
fn gossip_in_groups_gives_the_same_bits_and_bytes_in_every_arm() {
    let gossips = |form: &AlgorithmForm| matches!(form.traffic(), Traffic::Gossip { .. });
    for form in first_synchronous().into_iter().filter(gossips) {
        for (topology, workers, hosts) in [("aer", 8, 4), ("aer", 8, 2), ("complete", 6, 3)] {
            let more = format!("hosts = {hosts}\n[topology]\nname = \"{topology}\"");
            let text = scenario_of(&form, workers, 12, &more);
            // Methods that need the same weights at every step refuse `aer`.
            let Ok(plan) = attempt(&text) else {
                assert_eq!(topology, "aer", "{}", form.text());
                continue;
            };
            let expected = result(Arm::Virtual, &plan);
            for arm in [Arm::Threads, Arm::Tcp, Arm::SharedMemory] {
                let what = format!("{arm:?}, {topology} on {hosts} hosts, {}", form.text());
                assert_eq!(result(arm, &plan), expected, "{what}");
            }
        }
    }
}

/// One synchronous form of each algorithm that has any.
fn first_synchronous() -> Vec<AlgorithmForm> {
    let first =
        |entry| forms::forms_of(entry).into_iter().find(|form| form.properties().synchronous);
    ALGORITHMS.iter().filter_map(first).collect()
}

#[test]
fn a_slow_worker_does_not_change_the_bits_of_synchronous_algorithms() {
    let check = |form: &AlgorithmForm, arms: &[Arm]| {
        let even = plan(&scenario_of(form, 4, 12, ""));
        let slow = plan(&scenario_of(form, 4, 12, "slow = { \"2\" = 10.0 }"));
        let expected = bits(&Arm::Virtual.run(&even));
        for arm in arms {
            assert_eq!(bits(&arm.run(&slow)), expected, "{arm:?}, {}", form.text());
        }
    };
    forms::synchronous().iter().for_each(|form| check(form, &[Arm::Virtual]));
    first_synchronous().iter().for_each(|form| check(form, &ARMS));
}

#[test]
fn clipping_and_schedules_are_the_same_in_every_arm() {
    let more = "[optimizer.schedule]\nname = \"cosine\"\nwarmup_steps = 3";
    let at_workers = |form: &AlgorithmForm| form.properties().optimizer == OptimizerSite::Workers;
    for form in forms::synchronous().into_iter().filter(at_workers) {
        let text = scenario_of(&form, 3, 12, more);
        let plan = plan(&text.replace("lr = 0.05", "lr = 0.05\nclip_norm = 0.8"));
        let expected = bits(&Arm::Virtual.run(&plan));
        for arm in ARMS {
            assert_eq!(bits(&arm.run(&plan)), expected, "{arm:?}, {}", form.text());
        }
    }
}

/// The optimum of the mean is known; asynchronous runs end near it in every arm. The bound is on
/// the loss above the optimum's, relative to the start's.
#[test]
fn asynchronous_algorithms_end_near_the_optimum_in_every_arm() {
    let never_waits = |form: &AlgorithmForm| form.properties().budget == Budget::TotalGradients;
    let first = |entry| forms::forms_of(entry).into_iter().find(never_waits);
    for form in ALGORITHMS.iter().filter_map(first) {
        let algorithm = form.text();
        let text = scenario(&algorithm, 4, 400, "").replace("momentum = 0.5", "momentum = 0.0");
        let plan = plan(&text);
        let best = {
            let exact = scenario("name = \"allreduce\"", 4, 2000, "");
            let exact = conformance::plan(&exact);
            let outcome = Arm::Virtual.run(&exact);
            exact.problem.evaluate(&deployed(&exact, &outcome)).loss
        };
        let start = plan.problem.evaluate(&plan.setup.initial).loss;
        for arm in ARMS {
            let outcome = arm.run(&plan);
            let gradients: u64 = outcome.ranks.iter().map(|rank| rank.steps).sum();
            assert_eq!(gradients, 1600, "{arm:?}, {algorithm}: gradients in all");
            let loss = plan.problem.evaluate(&deployed(&plan, &outcome)).loss;
            let excess = (loss - best) / (start - best);
            assert!(excess < 0.15, "{arm:?}, {algorithm}: {excess} of the way is left");
        }
    }
}
