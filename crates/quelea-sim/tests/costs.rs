//! The knobs beside the wire, each worked out by hand; and how a worker's time is split.

#[allow(dead_code, reason = "each test file uses its own part")]
mod common;

use common::{Case, SMALL, Shape, nanoseconds};
use quelea_core::options::Value;
use quelea_record::{Record, RecordKind};
use quelea_wire::HEADER_BYTES;

const COMPUTE: u64 = 100_000_000;
const LATENCY: u64 = 50_000;
const FRAME: u64 = 1_000_000;
/// Elements of a vector whose frame has `FRAME` bytes.
const LEN: usize = (FRAME as usize - HEADER_BYTES) / 4;
const PAYLOAD: u64 = LEN as u64 * 4;

/// At 8 Gbit/s a byte takes a nanosecond.
fn case(name: &str, shape: Shape) -> Case {
    Case::new(name, shape).on(|cluster| cluster.bandwidth_gbps = 8.0)
}

fn one_worker_one_server() -> Case {
    case("sync-ps", Shape { workers: 1, servers: 1, len: LEN, buckets: 1, steps: 2 })
}

fn all_reduce(workers: usize) -> Case {
    case("allreduce", Shape { workers, len: workers * LEN, steps: 2, ..SMALL })
}

#[test]
fn handing_a_vector_over_and_taking_one_costs_the_worker() {
    let case = one_worker_one_server().on(|cluster| {
        cluster.handoff_send_us = 3.0;
        cluster.handoff_send_gbps = 16.0;
        cluster.handoff_receive_us = 5.0;
        cluster.handoff_receive_gbps = 4.0;
    });
    let send = 3_000 + PAYLOAD / 2;
    let receive = 5_000 + PAYLOAD * 2;
    let there_and_back = 2 * (LATENCY + FRAME);
    assert_eq!(case.clock_ns(), 2 * (COMPUTE + send + there_and_back + receive));
    let report = &case.run().ranks[0];
    assert_eq!(nanoseconds(report.compute_seconds), 2 * COMPUTE);
    assert_eq!(nanoseconds(report.exposed_seconds), 2 * (send + there_and_back + receive));
}

#[test]
fn a_hand_off_in_the_backward_pass_holds_up_the_pass() {
    let shape = Shape { workers: 1, servers: 1, len: 2 * LEN, buckets: 2, steps: 1 };
    let case = case("sync-ps", shape).on(|cluster| cluster.handoff_send_us = 7.0);
    // The hand-off of the first bucket delays the second; its model is back long before.
    let there_and_back = 2 * (LATENCY + FRAME);
    assert_eq!(case.clock_ns(), COMPUTE + 7_000 + 7_000 + there_and_back);
    let report = &case.run().ranks[0];
    assert_eq!(nanoseconds(report.compute_seconds), COMPUTE);
    assert_eq!(nanoseconds(report.exposed_seconds), 14_000 + there_and_back);
}

#[test]
fn a_vector_for_two_neighbours_is_handed_over_once() {
    let shape = Shape { len: LEN, steps: 1, ..SMALL };
    let case = case("d-psgd", shape)
        .with("form", Value::Text("adapt-then-combine".into()))
        .on(|cluster| cluster.handoff_send_us = 9.0);
    assert_eq!(case.clock_ns(), COMPUTE + 9_000 + LATENCY + 2 * FRAME);
}

#[test]
fn arithmetic_at_a_server_delays_its_answer() {
    let case = one_worker_one_server().on(|cluster| cluster.reduce_gbs = 0.5);
    // The server folds one vector and takes one step: two passes at two nanoseconds a byte.
    let arithmetic = 2 * 2 * PAYLOAD;
    assert_eq!(case.clock_ns(), 2 * (COMPUTE + 2 * (LATENCY + FRAME) + arithmetic));
}

#[test]
fn arithmetic_of_reduce_steps_delays_the_ring() {
    let case = all_reduce(2).on(|cluster| cluster.reduce_gbs = 1.0);
    let ring = 2 * (LATENCY + FRAME) + PAYLOAD;
    assert_eq!(case.clock_ns(), 2 * (COMPUTE + ring));
}

#[test]
fn mixing_costs_as_much_as_reduce_steps() {
    let seconds = |name: &str, steps: u64, reduce_gbs: f64| {
        let case = case(name, Shape { len: LEN, steps, ..SMALL });
        let case = if name == "d-psgd" {
            case.with("form", Value::Text("adapt-then-combine".into()))
        } else {
            case
        };
        case.on(|cluster| cluster.reduce_gbs = reduce_gbs).clock_ns()
    };
    // What one step more takes: each of the two neighbours' vectors is passed over once.
    let step = |reduce_gbs| seconds("d-psgd", 3, reduce_gbs) - seconds("d-psgd", 2, reduce_gbs);
    assert_eq!(step(1.0) - step(0.0), 2 * PAYLOAD);
    // AD-PSGD mixes while gradients are computed: what takes longer than they do is seen.
    assert!(seconds("ad-psgd", 20, 1e-4) > seconds("ad-psgd", 20, 0.0));
}

#[test]
fn efficiencies_apply_to_their_own_kind_of_traffic() {
    let half = |case: Case| {
        case.on(|cluster| {
            cluster.collective_efficiency = 0.5;
            cluster.point_to_point_efficiency = 0.25;
        })
    };
    assert_eq!(half(all_reduce(2)).clock_ns(), 2 * (COMPUTE + 2 * (LATENCY + 2 * FRAME)));
    let server = half(one_worker_one_server());
    assert_eq!(server.clock_ns(), 2 * (COMPUTE + 2 * (LATENCY + 4 * FRAME)));
}

#[test]
fn a_collective_pays_its_fixed_cost_once() {
    for barrier in [false, true] {
        let case = all_reduce(4).on(|cluster| {
            cluster.collective_fixed_us = 11.0;
            cluster.start_barrier = barrier;
        });
        assert_eq!(case.clock_ns(), 2 * (COMPUTE + 11_000 + 6 * (LATENCY + FRAME)));
    }
}

#[test]
fn with_a_start_barrier_nobody_runs_ahead_of_the_slowest() {
    let slow = |barrier| {
        all_reduce(4).on(|cluster| {
            cluster.slow.insert(2, 1.01);
            cluster.start_barrier = barrier;
        })
    };
    let ring = 6 * (LATENCY + FRAME);
    assert_eq!(slow(true).clock_ns(), 2 * (COMPUTE + COMPUTE / 100 + ring));
    assert!(slow(false).clock_ns() <= slow(true).clock_ns());
    let same = |barrier: bool| slow(barrier).run().ranks.into_iter().map(|rank| rank.params);
    assert!(same(true).eq(same(false)));
}

#[test]
fn waiting_for_a_slow_peer_is_told_from_communication() {
    let case = all_reduce(2).on(|cluster| {
        cluster.slow.insert(1, 3.0);
    });
    let outcome = case.run();
    let split = |rank: usize| {
        let report = &outcome.ranks[rank];
        [report.compute_seconds, report.waiting_seconds, report.exposed_seconds].map(nanoseconds)
    };
    // The slow worker already has the other's chunk when it is done: it sends its own and then
    // the sum, and gets the other sum one latency after the fast worker is through.
    assert_eq!(split(0), [2 * COMPUTE, 4 * COMPUTE + LATENCY, 2 * (LATENCY + 2 * FRAME)]);
    assert_eq!(split(1), [6 * COMPUTE, 0, 2 * (2 * LATENCY + 2 * FRAME)]);
    let clock = nanoseconds(outcome.clock_seconds);
    assert_eq!(split(1).iter().sum::<u64>(), clock);
}

#[test]
fn records_add_up_to_the_reports_and_bytes_to_the_messages() {
    let case = all_reduce(3).on(|cluster| cluster.compute_cv = 0.3);
    let mut records: Vec<Record> = Vec::new();
    let outcome = quelea_sim::simulate(&case.setup, &case.problem, &case.cluster, &mut records)
        .expect("the run ends well");
    for report in &outcome.ranks {
        let steps = records.iter().filter(|record| record.rank == report.rank);
        let split = steps.filter_map(|record| match record.event {
            RecordKind::Step { compute, exposed, waiting, .. } => Some([compute, exposed, waiting]),
            _ => None,
        });
        let sums = split.fold([0.0; 3], |sums, step| [0, 1, 2].map(|k: usize| sums[k] + step[k]));
        assert_eq!(
            sums.map(nanoseconds),
            [report.compute_seconds, report.exposed_seconds, report.waiting_seconds]
                .map(nanoseconds)
        );
        assert_eq!((report.bytes_sent, report.messages_sent), (2 * 4 * FRAME, 2 * 4));
        assert_eq!(report.bytes_received, 2 * 4 * FRAME);
    }
}

#[test]
fn the_parts_of_a_workers_time_add_up_to_the_clock() {
    for form in ["consensus", "adapt-then-combine", "combine-then-adapt"] {
        let shape = Shape { len: 2 * LEN, buckets: 2, ..SMALL };
        let case = case("d-psgd", shape).with("form", Value::Text(form.into())).on(|cluster| {
            cluster.handoff_send_us = 10.0;
            cluster.handoff_receive_us = 20.0;
            cluster.slow.insert(1, 1.5);
            cluster.detect_ms = 5.0;
            cluster.faults.crashes = vec![quelea_sim::Crash { rank: 2, at_ms: 500.0 }];
        });
        let outcome = case.run();
        let total = |rank: &quelea_record::RankReport| {
            nanoseconds(rank.compute_seconds + rank.exposed_seconds + rank.waiting_seconds)
        };
        let living = outcome.ranks.iter().filter(|rank| !rank.lost);
        let last = living.map(total).max();
        assert_eq!(last, Some(nanoseconds(outcome.clock_seconds)), "{form}");
    }
}

#[test]
fn a_blocking_send_holds_up_the_worker_until_it_has_left_the_card() {
    let shape = Shape { len: LEN, steps: 2, ..SMALL };
    let case = case("d-psgd", shape).on(|cluster| cluster.blocking_sends = true);
    // Two models leave before each gradient; what comes in is there long before it is over.
    assert_eq!(case.clock_ns(), 2 * (2 * FRAME + COMPUTE));
    let report = &case.run().ranks[0];
    assert_eq!(nanoseconds(report.compute_seconds), 2 * COMPUTE);
}

#[test]
fn every_byte_of_a_vector_counts_as_many_and_a_header_once() {
    let case = all_reduce(2).on(|cluster| {
        cluster.vector_scale = 3.0;
        cluster.reduce_gbs = 1.0;
    });
    let frame = HEADER_BYTES as u64 + 3 * PAYLOAD;
    assert_eq!(case.clock_ns(), 2 * (COMPUTE + 2 * (LATENCY + frame) + 3 * PAYLOAD));
    assert_eq!(case.run().ranks[0].bytes_sent, 2 * 2 * frame);
}
