//! Algorithms with every codec that their row takes: equivalences, invariants, losses, resuming.

mod support;

use std::sync::Arc;

use quelea_core::algorithms::{self, ALGORITHMS};
use quelea_core::codec::{self, CODECS, CodecShape};
use quelea_core::layout::{Layout, Tensor};
use quelea_core::options::{Options, Value};
use quelea_core::properties::DeployedFrom;
use quelea_core::random::Rng;
use support::{Case, Lab};

const DIMENSIONS: usize = 12;

fn case(algorithm: &'static str, codec: &'static str) -> Case {
    let codec_params = match codec {
        "top-k" | "random-k" => vec![("share", Value::Number(0.4))],
        "tern-grad" => vec![("contract", Value::Flag(true))],
        "unbiased-k" => vec![("contract", Value::Flag(true)), ("share", Value::Number(0.4))],
        "qsgd" => vec![("contract", Value::Flag(true)), ("levels", Value::Number(7.0))],
        _ => Vec::new(),
    };
    let wide = Case::wide(algorithm, 5, DIMENSIONS);
    Case { steps: 30, servers: 2, bucket_bytes: 20, codec, codec_params, ..wide }
}

/// A codec that encodes and decodes, but leaves nothing out.
fn lossless(algorithm: &'static str, codec: &'static str) -> Case {
    let codec_params = vec![("share", Value::Number(1.0))];
    Case { codec_params, ..case(algorithm, codec) }
}

fn finish(mut lab: Lab) -> Lab {
    lab.run_to_end(&mut Rng::new(3, "order", 0));
    lab
}

fn workers(lab: &Lab) -> Vec<Vec<f32>> {
    lab.living_workers().iter().map(|rank| lab.nodes[*rank].params().to_vec()).collect()
}

fn models(case: &Case) -> Vec<Vec<f32>> {
    workers(&finish(Lab::new(case)))
}

fn assert_near(one: &[Vec<f32>], other: &[Vec<f32>]) {
    for (x, y) in one.iter().flatten().zip(other.iter().flatten()) {
        assert!((x - y).abs() < 4e-6, "{x} is not {y}");
    }
}

/// Every pair of a row and a codec that it takes.
fn sound() -> Vec<(&'static str, &'static str)> {
    let takes = |algorithm: &algorithms::Entry, codec: &codec::Entry| {
        let params = case(algorithm.meta.name, codec.meta.name).setup().0.codec.options;
        let codecs = (algorithm.codecs)(&Options::defaults(algorithm.meta.options));
        codecs.refusal(codec, &params, DIMENSIONS).is_none()
    };
    let of = |algorithm: &'static algorithms::Entry| {
        let taken = CODECS.iter().filter(move |codec| takes(algorithm, codec));
        taken.map(move |codec| (algorithm.meta.name, codec.meta.name))
    };
    ALGORITHMS.iter().flat_map(of).collect()
}

#[test]
fn choco_after_the_step_without_compression_is_d_psgd_adapt_then_combine() {
    let choco = |codec| lossless("choco", codec).with("form", "after-step").with("consensus", 1.0);
    let d_psgd = models(&case("d-psgd", "f32").with("form", "adapt-then-combine"));
    for codec in ["top-k", "random-k"] {
        assert_near(&models(&choco(codec)), &d_psgd);
    }
    let plain = Case { codec_params: Vec::new(), ..choco("f32") };
    assert_near(&models(&plain), &d_psgd);
}

#[test]
fn choco_with_overlap_without_compression_is_d_psgd_consensus() {
    let d_psgd = models(&case("d-psgd", "f32").with("form", "consensus"));
    for codec in ["top-k", "random-k"] {
        assert_near(&models(&lossless("choco", codec).with("consensus", 1.0)), &d_psgd);
    }
}

#[test]
fn double_squeeze_without_compression_is_the_synchronous_server() {
    for algorithm in ["sync-ps", "ssp"] {
        let squeezed = lossless(algorithm, "top-k");
        let squeezed = if algorithm == "ssp" { squeezed.with("staleness", 0.0) } else { squeezed };
        assert_near(&models(&squeezed), &models(&case("sync-ps", "f32")));
    }
}

/// Twelve parameters as a matrix of 3 × 4.
fn with_matrix(case: &Case) -> Lab {
    Lab::with(case, |setup| {
        let tensor = Tensor { name: "weight".to_string(), shape: vec![3, 4] };
        setup.layout = Arc::new(Layout::of_tensors(vec![tensor], 0));
    })
}

fn ranked(rank: f64) -> Case {
    let codec_params = vec![("rank", Value::Number(rank))];
    Case { codec_params, steps: 400, ..case("allreduce", "power-sgd") }
}

#[test]
fn power_sgd_of_full_rank_is_all_reduce() {
    let plain = Case { steps: 400, bucket_bytes: 0, ..case("allreduce", "f32") };
    assert_eq!(workers(&finish(with_matrix(&ranked(3.0)))), models(&plain));
}

#[test]
fn power_sgd_of_rank_one_keeps_replicas_alike_and_ends_near_all_reduce() {
    let low = workers(&finish(with_matrix(&ranked(1.0))));
    assert!(low.windows(2).all(|pair| pair[0] == pair[1]), "replicas have the same bits");
    let plain = models(&Case { steps: 400, ..case("allreduce", "f32") });
    for (x, y) in low[0].iter().zip(&plain[0]) {
        assert!((x - y).abs() < 0.02, "{x} is far from {y}");
    }
    // Two sums of 3 and of 4 elements instead of one of 12.
    let sent = |lab: Lab| finish(lab).sent.iter().sum::<u64>();
    let whole = sent(with_matrix(&Case { codec: "f32", codec_params: Vec::new(), ..ranked(1.0) }));
    assert_eq!(sent(with_matrix(&ranked(1.0))) * 12, whole * 7);
}

#[test]
fn replicas_have_the_same_bits_with_every_codec_and_collective() {
    for codec in CODECS {
        for collective in ["ring", "halving-doubling", "hierarchical"] {
            if codec.meta.name == "f16" && collective != "ring" {
                continue;
            }
            for workers in 1..=6 {
                let wide = Case::wide("allreduce", workers, DIMENSIONS);
                let case = Case { codec: codec.meta.name, steps: 8, ..wide };
                let models = models(&case.with("collective", collective));
                let same = models.windows(2).all(|pair| pair[0] == pair[1]);
                assert!(same, "{} by {collective}, {workers} workers", codec.meta.name);
            }
        }
        if codec.shape != CodecShape::LowRank {
            let lab = finish(Lab::new(&case("sync-ps", codec.meta.name)));
            let server = lab.server_model();
            assert!(workers(&lab).iter().all(|model| *model == server), "{}", codec.meta.name);
        }
    }
}

#[test]
fn every_sound_pair_comes_near_the_optimum() {
    let mut problems = Vec::new();
    for (algorithm, codec) in sound() {
        let mut case = Case { steps: 900, learning_rate: 0.02, ..case(algorithm, codec) };
        if algorithm == "eamsgd" {
            case = case.with("momentum", 0.5);
        }
        let lab = finish(Lab::new(&case));
        let deployed = match lab.setup.properties().deploy {
            DeployedFrom::Workers => lab.mean(),
            DeployedFrom::Servers => lab.server_model().iter().map(|x| f64::from(*x)).collect(),
        };
        let plain = finish(Lab::new(&Case { codec: "f32", codec_params: Vec::new(), ..case }));
        let exact = match plain.setup.properties().deploy {
            DeployedFrom::Workers => plain.mean(),
            DeployedFrom::Servers => plain.server_model().iter().map(|x| f64::from(*x)).collect(),
        };
        let far = deployed.iter().zip(&exact).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
        if far.is_nan() || far > 0.1 {
            problems.push(format!("{algorithm} with {codec} ends {far} from where f32 does"));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

/// One step, then none: what it did to the mean must survive any number of exchanges.
#[test]
fn gossip_keeps_the_mean_with_every_codec() {
    for (algorithm, codec) in sound() {
        if !["choco", "d-psgd"].contains(&algorithm) {
            continue;
        }
        let once = |step: u64| if step == 0 { 1.0 } else { 0.0 };
        let case = Case { schedule: once, ..case(algorithm, codec) };
        let one = Case { learning_rate: case.learning_rate, ..self::case("allreduce", "f32") };
        let expected = finish(Lab::new(&Case { steps: 1, ..one })).mean();
        for (x, y) in finish(Lab::new(&case)).mean().iter().zip(expected) {
            assert!((x - y).abs() < 1e-5, "{algorithm} with {codec}: {x} is not {y}");
        }
    }
}

#[test]
fn rounded_push_sum_loses_no_mass() {
    for codec in ["bf16", "f16"] {
        let case = Case { learning_rate: 0.0, start: vec![0.1; DIMENSIONS], ..case("sgp", codec) };
        let case = Case { topology: "exponential", ..case };
        for model in models(&case) {
            assert!(model.iter().all(|x| (x - 0.1).abs() < 1e-3), "{codec}: {model:?}");
        }
    }
}

/// Without mixing a worker is at `x₀ − ΣΔ`, so the servers' model is the workers' mean as soon as
/// everything has arrived.
#[test]
fn the_last_push_of_aladdin_brings_all_that_was_left_out() {
    for codec in CODECS.iter().filter(|codec| codec.shape != CodecShape::LowRank) {
        for payload in ["delta", "gradient"] {
            let case =
                case("aladdin", codec.meta.name).with("period", 1e9).with("payload", payload);
            for seed in 0..20 {
                let mut lab = Lab::new(&case);
                lab.run_to_end(&mut Rng::new(seed, "order", 0));
                for (server, mean) in lab.server_model().iter().zip(lab.mean()) {
                    let far = (f64::from(*server) - mean).abs();
                    // Unbiased noise is no debt: what has no feedback stays left out.
                    assert!(far < 2e-5, "{} as {payload}: {far}", codec.meta.name);
                }
            }
        }
    }
}

#[test]
fn survivors_finish_with_every_codec() {
    for (algorithm, codec) in sound() {
        for seed in 0..12 {
            let mut lab = Lab::new(&Case { steps: 12, ..case(algorithm, codec) });
            let mut rng = Rng::new(seed, "loss", 0);
            lab.some_events(&mut rng, 300);
            lab.crash(rng.below(5) as usize);
            for rank in 0..lab.nodes.len() {
                lab.tell_view(rank);
                lab.some_events(&mut rng, 5);
            }
            lab.run_to_end(&mut rng);
            let models = workers(&lab);
            assert!(models.iter().flatten().all(|x| x.is_finite()), "{algorithm} with {codec}");
            if algorithm == "allreduce" {
                assert!(models.windows(2).all(|pair| pair[0] == pair[1]), "{codec}, seed {seed}");
            }
        }
    }
}

#[test]
fn a_resumed_run_ends_with_the_same_bits_with_every_codec() {
    for (algorithm, codec) in sound() {
        let whole = case(algorithm, codec);
        if !Lab::new(&whole).setup.properties().synchronous {
            continue;
        }
        // A cut at a step boundary: everybody has done 13 rounds, nothing is drained.
        let mut first = Lab::new(&whole);
        first.run_until_step(13, &mut Rng::new(5, "cut", 0));
        let saved = first.saved();
        let mut second = Lab::resumed(&whole, &saved);
        second.run_to_end(&mut Rng::new(6, "order", 0));
        assert_eq!(workers(&second), models(&whole), "{algorithm} with {codec}");
    }
}
