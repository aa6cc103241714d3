//! One scenario, three arms: synchronous algorithms agree bit for bit, asynchronous ones within
//! a stated bound.

use conformance::{ARMS, Arm, bits, deployed, plan};

/// Quadratics with three buckets and two shards, different for every worker.
fn scenario(algorithm: &str, workers: usize, steps: u64, more: &str) -> String {
    let rows = |scale: f64| -> Vec<Vec<f64>> {
        let entry = |i: usize, k: usize| scale * (1.0 + ((3 * i + 5 * k) % 7) as f64 / 4.0);
        (0..workers).map(|i| (0..8).map(|k| entry(i, k)).collect()).collect()
    };
    format!(
        "workers = {workers}\nsteps = {steps}\n[algorithm]\n{algorithm}\n[buckets]\nsize_mb = 0.000012\n\
         [task]\nname = \"quadratic\"\ncurvature = {:?}\ntarget = {:?}\n\
         [optimizer]\nlr = 0.05\nmomentum = 0.5\n[cluster]\nservers = 2\n{more}",
        rows(0.5),
        rows(-0.7),
    )
}

const SYNCHRONOUS: &[&str] = &[
    "name = \"allreduce\"",
    "name = \"allreduce\"\ncollective = \"halving-doubling\"",
    "name = \"allreduce\"\ncollective = \"hierarchical\"",
    "name = \"sync-ps\"",
    "name = \"d-psgd\"",
    "name = \"d-psgd\"\nform = \"adapt-then-combine\"",
    "name = \"d-psgd\"\nform = \"combine-then-adapt\"",
    "name = \"d-amsgrad\"",
    "name = \"d2\"",
    "name = \"decentlam\"",
    "name = \"exact-diffusion\"",
    "name = \"extra\"",
    "name = \"gradient-tracking\"",
    "name = \"gradient-tracking\"\nform = \"semi-atc\"",
    "name = \"gradient-tracking\"\nform = \"atc\"",
    "name = \"gradient-tracking\"\nform = \"push\"",
    "name = \"qg-dmsgd\"",
    "name = \"sgp\"",
    "name = \"sgp\"\noverlap = 2",
    "name = \"aladdin\"\nbarrier = true\nperiod = 3",
    "name = \"local-sgd\"\nperiod = 3\nstart_step = 2",
    "name = \"local-sgd\"\nperiod = 3\nbuffers = \"average\"\ncollective = \"halving-doubling\"",
    "name = \"slowmo\"\nperiod = 3\nbuffers = \"reset\"",
    "name = \"bmuf\"\nperiod = 3",
    "name = \"bmuf\"\nperiod = 3\nform = \"nesterov\"",
    "name = \"diloco\"\nperiod = 3",
    "name = \"gossip-pga\"\nperiod = 3",
    "name = \"gossip-aga\"\nperiod = 2\nwarmup_steps = 4",
    "name = \"easgd\"\nperiod = 2\nform = \"synchronous\"",
    "name = \"eamsgd\"\nperiod = 2\nform = \"synchronous\"\nmomentum = 0.9",
    "name = \"ssp\"\nstaleness = 0",
];

#[test]
fn synchronous_algorithms_give_the_same_bits_in_every_arm() {
    for algorithm in SYNCHRONOUS {
        for workers in [1, 2, 3, 4, 8] {
            let plan = plan(&scenario(algorithm, workers, 12, ""));
            assert!(plan.setup.properties().synchronous, "{algorithm}");
            let expected = bits(&Arm::Virtual.run(&plan));
            for arm in ARMS {
                assert_eq!(bits(&arm.run(&plan)), expected, "{arm:?}, n = {workers}, {algorithm}");
            }
        }
    }
}

/// With codecs, one of each shape for every way that vectors travel.
const CODED: &[(&str, &[&str])] = &[
    ("name = \"allreduce\"", &["bf16", "f16", "qsgd", "random-k", "sign", "top-k"]),
    ("name = \"allreduce\"\ncollective = \"hierarchical\"", &["bf16", "random-k"]),
    ("name = \"local-sgd\"\nperiod = 3", &["bf16", "random-k", "top-k"]),
    ("name = \"diloco\"\nperiod = 3", &["f16"]),
    ("name = \"sync-ps\"", &["bf16", "sign", "top-k"]),
    ("name = \"aladdin\"\nbarrier = true\nperiod = 3", &["f16", "top-k"]),
    ("name = \"easgd\"\nperiod = 2\nform = \"synchronous\"", &["bf16"]),
    ("name = \"d-psgd\"", &["bf16", "f16"]),
    ("name = \"sgp\"\noverlap = 2", &["bf16"]),
    ("name = \"gossip-pga\"\nperiod = 3", &["bf16"]),
    ("name = \"choco\"", &["f32", "bf16", "random-k", "sign", "top-k"]),
    ("name = \"choco\"\nform = \"after-step\"", &["f32", "sign"]),
];

#[test]
fn codecs_give_the_same_bits_and_bytes_in_every_arm() {
    for (algorithm, codecs) in CODED {
        for codec in *codecs {
            for workers in [1, 2, 5] {
                let more = format!("[codec]\nname = \"{codec}\"");
                let plan = plan(&scenario(algorithm, workers, 12, &more));
                let run = |arm: Arm| {
                    let outcome = arm.run(&plan);
                    let sent: Vec<u64> = outcome.ranks.iter().map(|r| r.bytes_sent).collect();
                    (bits(&outcome), sent)
                };
                let expected = run(Arm::Virtual);
                for arm in ARMS {
                    assert_eq!(run(arm), expected, "{arm:?}, n = {workers}, {algorithm}, {codec}");
                }
            }
        }
    }
}

#[test]
fn a_slow_worker_does_not_change_the_bits_of_synchronous_algorithms() {
    for algorithm in SYNCHRONOUS {
        let even = plan(&scenario(algorithm, 4, 12, ""));
        let slow = plan(&scenario(algorithm, 4, 12, "slow = { \"2\" = 10.0 }"));
        let expected = bits(&Arm::Virtual.run(&even));
        for arm in ARMS {
            assert_eq!(bits(&arm.run(&slow)), expected, "{arm:?}, {algorithm}");
        }
    }
}

#[test]
fn clipping_and_schedules_are_the_same_in_every_arm() {
    let more = "[optimizer.schedule]\nname = \"cosine\"\nwarmup_steps = 3";
    let at_server = |name: &str| name.contains("sync-ps") || name.contains("ssp");
    for algorithm in SYNCHRONOUS.iter().filter(|name| !at_server(name)) {
        let text =
            scenario(algorithm, 3, 12, more).replace("lr = 0.05", "lr = 0.05\nclip_norm = 0.8");
        let plan = plan(&text);
        let expected = bits(&Arm::Virtual.run(&plan));
        for arm in ARMS {
            assert_eq!(bits(&arm.run(&plan)), expected, "{arm:?}, {algorithm}");
        }
    }
}

/// The optimum of the mean is known; asynchronous runs end near it in every arm. The bound is on
/// the loss above the optimum's, relative to the start's.
#[test]
fn asynchronous_algorithms_end_near_the_optimum_in_every_arm() {
    for algorithm in [
        "name = \"asp\"",
        "name = \"aladdin\"",
        "name = \"ad-psgd\"",
        "name = \"sgp\"\nfree_running = true",
    ] {
        let text = scenario(algorithm, 4, 400, "").replace("momentum = 0.5", "momentum = 0.0");
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

#[test]
fn bytes_are_counted_alike_in_every_arm() {
    for algorithm in SYNCHRONOUS {
        let plan = plan(&scenario(algorithm, 3, 7, ""));
        let counts = |arm: Arm| -> Vec<(u64, u64, u64)> {
            let ranks = arm.run(&plan).ranks;
            ranks.iter().map(|r| (r.bytes_sent, r.bytes_received, r.messages_sent)).collect()
        };
        let expected = counts(Arm::Virtual);
        for arm in ARMS {
            assert_eq!(counts(arm), expected, "{arm:?}, {algorithm}");
        }
    }
}
