//! Control messages that travel over the simulated links.

#[allow(dead_code, reason = "each test file uses its own part")]
mod common;

use common::{Case, SMALL, Shape};
use quelea_record::{Outcome, RankReport};
use quelea_sim::{ControlDelay, ControlPath, Crash, Pause};

fn bits(outcome: &Outcome) -> Vec<Vec<u32>> {
    let of = |rank: &RankReport| -> Vec<u32> { rank.params.iter().map(|x| x.to_bits()).collect() };
    outcome.ranks.iter().map(of).collect()
}

fn every_algorithm() -> impl Iterator<Item = Case> {
    quelea_core::algorithms::ALGORITHMS.iter().map(|entry| {
        let servers = if entry.server.is_some() { 2 } else { 0 };
        let shape = Shape { workers: 5, servers, len: 12, buckets: 2, steps: 20 };
        Case::of(entry, shape).on(|cluster| {
            cluster.compute_ms = 1.0;
            cluster.detect_ms = 3.0;
        })
    })
}

#[test]
fn synchronous_algorithms_give_the_same_bits_however_control_messages_travel() {
    for case in every_algorithm().filter(|case| case.setup.properties().synchronous) {
        let name = case.setup.entry.meta.name;
        let free = case.run();
        let network = case.on(|cluster| cluster.control = ControlPath::Network).run();
        assert_eq!(bits(&free), bits(&network), "{name}");
        assert_eq!(
            free.clock_seconds, network.clock_seconds,
            "{name}: no step waits for a command"
        );
    }
}

#[test]
fn every_algorithm_ends_with_all_its_steps_and_survives_a_crash() {
    for case in every_algorithm() {
        let name = case.setup.entry.meta.name;
        let case = case.on(|cluster| cluster.control = ControlPath::Network);
        let steps = |outcome: &Outcome| outcome.ranks.iter().map(|rank| rank.steps).sum::<u64>();
        assert_eq!(steps(&case.run()), 100, "{name}");
        let crashed = case.on(|c| c.faults.crashes = vec![Crash { rank: 2, at_ms: 7.3 }]).run();
        assert!(crashed.ranks[2].lost, "{name}");
        assert_eq!(crashed.warnings, [""; 0], "{name}");
    }
}

/// Nanoseconds that a worker of a budget waits for the right to its first gradient: the question and the
/// answer take a latency each, and their bytes at the card's rate in each of two ports.
#[test]
fn the_first_gradient_of_a_budget_waits_for_a_question_and_its_answer() {
    let clock = |control| {
        let shape = Shape { workers: 1, servers: 1, steps: 1, ..SMALL };
        let case = Case::new("asp", shape).on(|cluster| {
            cluster.control = control;
            cluster.latency_us = 1000.0;
            cluster.bandwidth_gbps = 1.0;
        });
        case.clock_ns()
    };
    let difference = clock(ControlPath::Network) - clock(ControlPath::Free);
    // Question and answer of 68 bytes each, at 1 Gbit/s out of one card and, as it arrives, into another.
    assert_eq!(difference, 2 * (1_000_000 + 68 * 8));
}

#[test]
fn a_rank_that_stands_still_reads_its_commands_afterwards() {
    let base = || {
        Case::new("d-psgd", SMALL).on(|cluster| {
            cluster.control = ControlPath::Network;
            cluster.compute_ms = 1.0;
            cluster.detect_ms = 1.0;
            cluster.faults.crashes = vec![Crash { rank: 1, at_ms: 3.5 }];
        })
    };
    let plain = base().run().clock_seconds;
    let pause = Pause { rank: 2, from_ms: 4.0, until_ms: 54.0 };
    let paused = base().on(|cluster| cluster.faults.pauses = vec![pause]).run().clock_seconds;
    // All must say at which step they stand before the view without rank 1 holds.
    assert!(paused - plain > 0.045, "{paused} s, {plain} s without the pause");
}

#[test]
fn late_control_messages_delay_a_view_by_as_much() {
    let run = |delay_ms: f64| {
        let late = ControlDelay { rank: 2, from_ms: 0.0, until_ms: 1000.0, delay_ms };
        let case = Case::new("d-psgd", SMALL).on(|cluster| {
            cluster.control = ControlPath::Network;
            cluster.compute_ms = 1.0;
            cluster.detect_ms = 1.0;
            cluster.faults.crashes = vec![Crash { rank: 1, at_ms: 3.5 }];
            cluster.faults.control_delays = if delay_ms > 0.0 { vec![late] } else { Vec::new() };
        });
        case.run().clock_seconds
    };
    // Rank 2 learns that it is to stop, answers, and learns of the view: three late messages, and no step
    // without it meanwhile.
    let difference = run(40.0) - run(0.0);
    assert!((0.118..0.122).contains(&difference), "{difference} s");
}

#[test]
fn what_the_controller_exchanges_grows_with_workers_and_steps_and_not_faster() {
    let load = |workers, steps| {
        let shape = Shape { workers, steps, ..SMALL };
        let case = Case::new("aladdin", shape).on(|cluster| {
            cluster.control = ControlPath::Network;
            cluster.compute_ms = 10.0;
        });
        let silent = &mut quelea_record::Silent;
        quelea_sim::simulate_counted(&case.setup, &case.problem, &case.cluster, silent)
            .expect("it ends well")
            .1
    };
    let few = load(8, 40);
    assert!(few.received >= 8 * 40, "every step is reported: {few:?}");
    for (workers, steps) in [(32, 40), (8, 160)] {
        let many = load(workers, steps);
        let [few, many] = [few, many].map(|load| (load.received + load.sent) as f64);
        assert!(
            (3.0..4.4).contains(&(many / few)),
            "{workers} workers, {steps} steps: {few}, {many}"
        );
    }
}

#[test]
fn a_controller_whose_messages_cost_nothing_sends_nothing_over_the_network() {
    let case = Case::new("d-psgd", SMALL);
    let silent = &mut quelea_record::Silent;
    let (_, load) = quelea_sim::simulate_counted(&case.setup, &case.problem, &case.cluster, silent)
        .expect("it ends well");
    assert_eq!(load, quelea_sim::ControlLoad::default());
}
