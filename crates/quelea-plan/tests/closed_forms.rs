//! Closed forms of the advisor against the virtual cluster.

use quelea_core::algorithms::{ALGORITHMS, Traffic};
use quelea_plan::{self as advisor, Advice, Candidate, cost, scenario::Scenario, trial};

fn scenario(workers: usize, hosts: usize) -> Scenario {
    Scenario {
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
                assert!(
                    of_row.any(|p| p.candidate.algorithm == row.meta.name),
                    "{}",
                    row.meta.name
                );
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
