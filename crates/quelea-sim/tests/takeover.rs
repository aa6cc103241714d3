//! The controller lives with a worker: another takes over when that is lost, and sides of a partition need a
//! quorum.

#[allow(dead_code, reason = "each test file uses its own part")]
mod common;

use common::{Case, SMALL, Shape};
use quelea_record::{Outcome, RankReport};
use quelea_sim::{ControlPath, Crash, Pause, SidePartition, SimError};

fn every_algorithm(workers: usize) -> impl Iterator<Item = Case> {
    quelea_core::algorithms::ALGORITHMS.iter().map(move |entry| {
        let servers = if entry.server.is_some() { 2 } else { 0 };
        Case::of(entry, Shape { workers, servers, len: 12, buckets: 2, steps: 20 }).on(|cluster| {
            cluster.compute_ms = 1.0;
            cluster.detect_ms = 3.0;
            cluster.control = ControlPath::Worker;
        })
    })
}

fn lost(outcome: &Outcome) -> Vec<u32> {
    let is_lost = |rank: &&RankReport| rank.lost;
    outcome.ranks.iter().filter(is_lost).map(|rank| rank.rank).collect()
}

#[test]
fn without_a_fault_synchronous_runs_have_the_same_bits_wherever_the_controller_lives() {
    let bits = |outcome: &Outcome| -> Vec<Vec<u32>> {
        let of = |rank: &RankReport| rank.params.iter().map(|x| x.to_bits()).collect();
        outcome.ranks.iter().map(of).collect()
    };
    for case in every_algorithm(4).filter(|case| case.setup.properties().synchronous) {
        let name = case.setup.entry.meta.name;
        let there = case.run();
        let free = case.on(|cluster| cluster.control = ControlPath::Free).run();
        assert_eq!(bits(&there), bits(&free), "{name}");
        assert_eq!(there.warnings, [""; 0], "{name}");
    }
}

#[test]
fn every_algorithm_survives_the_loss_of_the_worker_with_the_controller() {
    for case in every_algorithm(4) {
        let name = case.setup.entry.meta.name;
        let case = case.on(|c| c.faults.crashes = vec![Crash { rank: 0, at_ms: 7.3 }]);
        let outcome = case.run();
        assert_eq!(lost(&outcome), [0], "{name}");
        let warning =
            "the process of rank 0, which controlled the run, was lost; that of rank 1 took over";
        assert_eq!(outcome.warnings, [warning], "{name}");
        let steps = |rank: usize| outcome.ranks[rank].steps;
        if case.setup.properties().synchronous {
            assert!((1..4).all(|rank| steps(rank) == 20), "{name}");
        } else {
            let others = steps(1) + steps(2) + steps(3);
            assert!((60..=80).contains(&others), "{name}: {others} steps of the others");
        }
    }
}

#[test]
fn one_after_the_other_may_be_lost_as_long_as_there_is_a_quorum() {
    let crash = |rank, at_ms| Crash { rank, at_ms };
    let case = Case::new("d-psgd", Shape { workers: 5, steps: 200, ..SMALL }).on(|cluster| {
        cluster.compute_ms = 1.0;
        cluster.detect_ms = 1.0;
        cluster.control = ControlPath::Worker;
        cluster.faults.crashes = vec![crash(0, 20.0), crash(1, 60.0), crash(2, 100.0)];
    });
    let outcome = case.run();
    assert_eq!(lost(&outcome), [0, 1, 2]);
    assert_eq!(outcome.ranks[3].steps, 200);
    assert!(outcome.warnings.iter().any(|warning| warning.contains("rank 3 took over")));
}

#[test]
fn a_controller_that_stood_still_for_a_minute_changes_nothing_when_it_wakes() {
    let base = || {
        Case::new("ad-psgd", Shape { workers: 4, steps: 2_000, ..SMALL }).on(|cluster| {
            cluster.compute_ms = 40.0;
            cluster.detect_ms = 100.0;
            cluster.control = ControlPath::Worker;
        })
    };
    let pause = Pause { rank: 0, from_ms: 500.0, until_ms: 60_500.0 };
    let outcome = base().on(|cluster| cluster.faults.pauses = vec![pause]).run();
    assert_eq!(
        lost(&outcome),
        [0],
        "the others continue without it, and it ends when it hears that"
    );
    let others: u64 = (1..4).map(|rank| outcome.ranks[rank].steps).sum();
    assert!((7_900..=8_000).contains(&others), "{others}");
    assert!(outcome.clock_seconds > 80.0, "it wakes before the run has ended");
}

#[test]
fn five_of_eight_continue_and_three_end() {
    let split =
        |ranks: &[u32]| SidePartition { ranks: ranks.into(), from_ms: 5.5, until_ms: 2_000.0 };
    // The controller is among the three, then among the five.
    for (three, five) in [([0, 1, 2], [3, 4, 5, 6, 7]), ([5, 6, 7], [0, 1, 2, 3, 4])] {
        for case in every_algorithm(8).filter(|case| case.setup.ranks() == 8) {
            let name = case.setup.entry.meta.name;
            let outcome = case.on(|c| c.faults.splits = vec![split(&three)]).run();
            assert_eq!(lost(&outcome), three, "{name}");
            assert!(five.iter().all(|rank| !outcome.ranks[*rank as usize].lost), "{name}");
        }
    }
}

#[test]
fn of_four_and_four_only_the_side_of_the_controller_continues() {
    let case = Case::new("d-psgd", Shape { workers: 8, steps: 400, ..SMALL }).on(|cluster| {
        cluster.compute_ms = 1.0;
        cluster.detect_ms = 1.0;
        cluster.control = ControlPath::Worker;
        let split = SidePartition { ranks: vec![4, 5, 6, 7], from_ms: 5.5, until_ms: 2_000.0 };
        cluster.faults.splits = vec![split];
    });
    assert_eq!(lost(&case.run()), [4, 5, 6, 7]);
}

#[test]
fn without_a_quorum_on_any_side_the_run_ends_and_names_who_is_missing() {
    let case = Case::new("d-psgd", SMALL).on(|cluster| {
        cluster.compute_ms = 1.0;
        cluster.detect_ms = 1.0;
        cluster.control = ControlPath::Worker;
        let crash = |rank| Crash { rank, at_ms: 5.5 };
        cluster.faults.crashes = vec![crash(0), crash(1)];
    });
    let Err(SimError::NoQuorum { missing, .. }) = case.try_run() else { panic!("it cannot go on") };
    assert_eq!(missing.missing, [0, 1]);
}

#[test]
fn sides_of_a_partition_need_a_controller_that_lives_with_a_worker() {
    let split = SidePartition { ranks: vec![1], from_ms: 1.0, until_ms: 2.0 };
    let case = Case::new("d-psgd", SMALL).on(|cluster| cluster.faults.splits = vec![split]);
    let error = case.try_run().expect_err("refused").to_string();
    assert!(error.contains("need `cluster.control` = \"worker\""), "{error}");
}
