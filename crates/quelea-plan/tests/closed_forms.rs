//! Closed forms of the advisor against the virtual cluster.

use quelea_core::algorithms::{ALGORITHMS, Service, Traffic};
use quelea_core::options::Value;
use quelea_core::registry::Registry;
use quelea_plan::{
    self as advisor, Advice, Candidate, cost, scenario::Scenario, theory::Transient, trial,
};
use quelea_run::config::{Config, source};

fn scenario(workers: usize, hosts: usize) -> Scenario {
    Scenario {
        registry: Registry::builtin(),
        workers,
        hosts,
        servers: 1,
        parameters: 25e6,
        wire: 1.0,
        steps: 2000,
        compute: 0.3,
        variation: 0.0,
        backward: 0.67,
        slow: Vec::new(),
        bandwidth: 10e9 / 8.0,
        latency: 50e-6,
        internal: 100e9 / 8.0,
        internal_latency: 0.0,
        algorithm: None,
    }
}

/// Steps of the virtual cluster. The first fifth is not counted; what is left should be whole
/// periods, also of the topology.
fn steps(scenario: &Scenario, candidate: &Candidate) -> u64 {
    let changing = |name: &str| name == "aer" || name.starts_with("one-peer");
    let changes = candidate.topology.is_some_and(changing);
    let least = match (scenario.slow.is_empty(), changes) {
        (true, false) => 12,
        (true, true) => 50,
        (false, _) => 150,
    };
    advisor::steps(candidate).max(least)
}

/// How far the closed form is from the virtual cluster, relative to it.
fn error(scenario: &Scenario, candidate: &Candidate) -> Option<f64> {
    let predicted = cost::predict(scenario, candidate).ok()?.step_seconds;
    let steps = steps(scenario, candidate);
    let measured = trial(scenario, candidate).run(steps).expect("it runs").step_seconds();
    Some(predicted / measured - 1.0)
}

fn check(scenario: &Scenario, candidate: &Candidate, within: f64) {
    let Some(error) = error(scenario, candidate) else { return };
    assert!(
        error.abs() < within,
        "{} ({} MB), {} workers on {}, {} MB/s: {:+.1} %",
        candidate.name(),
        candidate.bucket_mb,
        scenario.workers,
        scenario.hosts,
        scenario.bandwidth / 1e6,
        100.0 * error
    );
}

fn fast_and_slow(workers: usize, hosts: usize) -> [Scenario; 2] {
    let fast = scenario(workers, hosts);
    // One tenth of the bandwidth: communication-bound.
    let slow = Scenario { bandwidth: fast.bandwidth / 10.0, ..fast.clone() };
    [fast, slow]
}

const SHAPES: [(usize, usize); 4] = [(4, 4), (8, 4), (16, 16), (64, 16)];

#[test]
fn all_reduce() {
    for (workers, hosts) in SHAPES {
        for scenario in fast_and_slow(workers, hosts) {
            for collective in ["ring", "hierarchical", "halving-doubling"] {
                for bucket_mb in [0.0, 25.0] {
                    let collective = Some(collective);
                    let candidate =
                        Candidate { collective, bucket_mb, ..Candidate::plain("allreduce") };
                    check(&scenario, &candidate, 0.1);
                }
            }
        }
    }
}

#[test]
fn gossip() {
    for (workers, hosts) in SHAPES {
        for scenario in fast_and_slow(workers, hosts) {
            for topology in ["ring", "one-peer-exponential", "exponential", "torus"] {
                for bucket_mb in [0.0, 25.0] {
                    let topology = Some(topology);
                    let candidate = Candidate { topology, bucket_mb, ..Candidate::plain("d-psgd") };
                    check(&scenario, &candidate, 0.1);
                }
            }
            let topology = Some("one-peer-exponential");
            check(&scenario, &Candidate { topology, ..Candidate::plain("sgp") }, 0.1);
        }
    }
}

#[test]
fn groups_that_average_by_all_reduce() {
    for (workers, hosts) in SHAPES {
        for scenario in fast_and_slow(workers, hosts) {
            for (algorithm, topology) in
                [("d-psgd", "aer"), ("d-psgd", "complete"), ("qg-dmsgd", "aer")]
            {
                for bucket_mb in [0.0, 25.0] {
                    let topology = Some(topology);
                    let candidate =
                        Candidate { topology, bucket_mb, ..Candidate::plain(algorithm) };
                    check(&scenario, &candidate, 0.13);
                }
            }
        }
    }
}

/// Every row of the table, on every topology, collective and codec that it is planned with.
#[test]
fn every_row_is_predicted_and_near_the_virtual_cluster() {
    for (workers, hosts) in SHAPES {
        for scenario in fast_and_slow(workers, hosts) {
            let advice = Advice::new(scenario.clone()).expect("it advises");
            assert_eq!(advice.unpredicted, vec![]);
            for row in ALGORITHMS {
                let mut of_row = advice.predictions.iter();
                assert!(of_row.any(|p| p.candidate.algorithm == row), "{}", row.meta.name);
            }
            let all = advice.predictions.iter();
            let checked = if workers < 16 { all.collect() } else { advice.best_of_each() };
            for prediction in checked {
                check(&scenario, &prediction.candidate, 0.13);
            }
        }
    }
}

#[test]
fn servers() {
    for (workers, hosts) in SHAPES {
        for scenario in fast_and_slow(workers, hosts) {
            for algorithm in ["sync-ps", "asp", "aladdin", "easgd", "local-sgd"] {
                check(&scenario, &Candidate::plain(algorithm), 0.12);
            }
            let topology = Some("ring");
            check(&scenario, &Candidate { topology, ..Candidate::plain("ad-psgd") }, 0.12);
        }
    }
}

#[test]
fn a_slow_worker_and_varying_times() {
    let slow = Scenario { slow: vec![(3, 4.0)], ..scenario(8, 8) };
    let varied = Scenario { variation: 0.2, ..scenario(8, 8) };
    for scenario in [slow, varied] {
        let ring = Candidate { collective: Some("ring"), ..Candidate::plain("allreduce") };
        check(&scenario, &ring, 0.1);
        check(&scenario, &Candidate::plain("aladdin"), 0.05);
        check(&scenario, &Candidate::plain("sync-ps"), 0.1);
        for row in ALGORITHMS {
            let plain = Candidate::plain(row.meta.name);
            let gossips =
                matches!(cost::traffic(&plain), Traffic::Gossip { .. } | Traffic::Pairs { .. });
            let topology = gossips.then_some("ring");
            check(&scenario, &Candidate { topology, ..plain }, 0.1);
        }
    }
}

/// ALADDIN with these options, on a cluster whose network is the bottleneck or is not.
fn aladdin(period: f64, alpha: f64) -> Candidate {
    let options = vec![("period", Value::Number(period)), ("alpha", Value::Number(alpha))];
    Candidate { options, ..Candidate::plain("aladdin") }
}

#[test]
fn gradients_that_aladdin_folds_follow_its_period() {
    for (workers, hosts) in [(4, 4), (8, 4), (16, 16)] {
        for scenario in fast_and_slow(workers, hosts) {
            for period in [1.0, 4.0, 16.0] {
                let candidate = aladdin(period, 0.5);
                let cost = cost::predict(&scenario, &candidate).expect("it is predicted");
                let folded = cost.gradients_per_message;
                // The first message and the last are shorter: enough of them in between.
                let timing = trial(&scenario, &candidate).run((30.0 * folded).max(160.0) as u64);
                let error = folded / timing.expect("it runs").gradients_per_message() - 1.0;
                assert!(error.abs() < 0.15, "π = {period}, {workers} on {hosts}: {error:+.2}");
            }
        }
    }
}

/// n³C² with C = (1+ζ²)/(1−ζ²)·π − 1 and ζ = 1 − α, against Theorem 1 worked out by hand.
#[test]
fn a_long_period_or_a_small_alpha_of_aladdin_is_warned_of() {
    let scenario = Scenario { steps: 500, servers: 16, ..scenario(16, 16) };
    let warning = |period: f64, alpha: f64| {
        let candidate = aladdin(period, alpha);
        let cost = cost::predict(&scenario, &candidate).expect("it is predicted");
        let transient = Transient::of(&scenario, &candidate, &cost).expect("it is known");
        transient.warning(&scenario, &cost, 0.3)
    };
    assert_eq!(warning(4.0, 0.5), None, "4096·(20/3 − 1)²/10⁴ is 13 steps");
    let long = warning(100.0, 0.5).expect("4096·(500/3 − 1)²/10⁴ is 11,242 steps");
    assert!(long.contains("once per 100 gradients") && long.contains("11250 steps"), "{long}");
    let weak = warning(4.0, 0.01).expect("ζ = 0.99: 4096·(4·99.5 − 1)²/10⁴ is 64,560 steps");
    assert!(weak.contains("by 0.01") && weak.contains("64560 steps"), "{weak}");
}

#[test]
fn what_ad_psgd_sends_is_that_of_the_virtual_cluster() {
    for (workers, hosts) in [(4, 4), (8, 4), (16, 16)] {
        for scenario in fast_and_slow(workers, hosts) {
            for averaging in ["every-gradient", "active"] {
                let candidate = Candidate {
                    topology: Some("ring"),
                    options: vec![("averaging", Value::Text(averaging.into()))],
                    ..Candidate::plain("ad-psgd")
                };
                let predicted = cost::predict(&scenario, &candidate).expect("it is predicted");
                let ranks = trial(&scenario, &candidate).run(100).expect("it runs").outcome.ranks;
                let sent: u64 = ranks.iter().map(|rank| rank.bytes_sent).sum();
                let steps: u64 = ranks.iter().map(|rank| rank.steps).sum();
                let error = predicted.bytes * steps as f64 / sent as f64 - 1.0;
                assert!(error.abs() < 0.2, "{averaging}, {workers} on {hosts}: {error:+.2}");
            }
        }
    }
}

#[test]
fn a_run_file_gives_its_algorithm_its_options() {
    let table = source::parse(
        "workers = 8\nsteps = 100\n[algorithm]\nname = \"aladdin\"\nperiod = 32\nalpha = 0.125\n\
         [task]\nname = \"quadratic\"\n[cluster]\ncompute_ms = 10",
    );
    let config = Config::read(table.expect("TOML"), &[], None).expect("good");
    let advice = Advice::new(Scenario::new(config, Some(1e6)).expect("it fits")).expect("advice");
    let found = advice.predictions.iter().find(|p| p.candidate.algorithm.meta.name == "aladdin");
    let traffic = cost::traffic(&found.expect("it is predicted").candidate);
    assert_eq!(traffic, Traffic::Servers(Service::Folded { period: 32, alpha: 0.125 }));
}

#[test]
fn four_thousand_workers_are_planned_for_in_seconds() {
    let advice = Advice::new(scenario(4096, 512)).expect("it advises");
    assert!(advice.predictions.len() > 8);
    assert!(advice.verdict().starts_with("Take "), "{}", advice.verdict());
    let all: Vec<_> = advice.predictions.iter().collect();
    let ring = advice.warnings(&all).into_iter().find(|text| text.contains("d-psgd / ring"));
    assert!(ring.is_some_and(|text| text.contains("1 − ρ")), "a ring of 4096 is warned of");
}

#[test]
fn advice_is_the_same_every_time_and_simulates_the_best() {
    let advice = || Advice::new(scenario(8, 4)).expect("it advises");
    assert_eq!(advice().json(), advice().json());
    assert!(advice().predictions[0].simulated.is_some());
}
