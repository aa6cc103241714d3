//! Times that a person can work out by hand, to the nanosecond.

#[allow(dead_code, reason = "each test file uses its own part")]
mod common;

use common::{Case, SMALL, Shape, nanoseconds};
use quelea_core::algorithms::{Codecs, Entry, Traffic};
use quelea_core::contract::{Algorithm, Context};
use quelea_core::message::{Message, Rank};
use quelea_core::meta::Meta;
use quelea_core::options::Options;
use quelea_core::properties::{
    Budget, DeployedFrom, OptimizerRequirement, OptimizerSite, OptimizerState, Properties,
    TopologyRequirement,
};
use quelea_core::state::Visitor;
use quelea_record::{Record, RecordKind};
use quelea_wire::HEADER_BYTES;

const LATENCY: u64 = 50_000;

/// A vector whose frame has a round number of bytes.
fn vector(frame_bytes: usize) -> usize {
    (frame_bytes - HEADER_BYTES) / 4
}

/// At 8 Gbit/s a byte takes a nanosecond.
fn byte_per_ns(case: Case) -> Case {
    case.on(|cluster| {
        cluster.bandwidth_gbps = 8.0;
        cluster.internal_gbps = 8.0;
    })
}

/// Sends one model to each of a list of ranks, at the start or with its gradient.
struct Sender {
    script: fn(Rank) -> &'static [u32],
    with_gradient: fn(Rank) -> bool,
}

impl Sender {
    fn send(&self, cx: &mut Context<'_>) {
        for to in (self.script)(cx.outbox.rank) {
            let message = Message::new(0, 0, 0).with(cx.params_payload(0));
            cx.outbox.send(Rank(*to), message);
        }
    }
}

impl Algorithm for Sender {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        if !(self.with_gradient)(cx.outbox.rank) {
            self.send(cx);
        }
    }

    fn on_gradient(&mut self, cx: &mut Context<'_>) {
        if (self.with_gradient)(cx.outbox.rank) {
            self.send(cx);
        }
    }

    fn on_message(&mut self, _cx: &mut Context<'_>, _from: Rank, _message: Message) {}

    fn is_ready(&self) -> bool {
        true
    }

    fn state(&mut self, _visitor: &mut dyn Visitor) {}
}

const fn sender(worker: quelea_core::algorithms::Build) -> Entry {
    Entry {
        meta: Meta {
            name: "sender",
            summary: "",
            paper: "",
            section: "",
            file: file!(),
            options: &[],
        },
        sends: "",
        lost_peer: "",
        resized: "",
        check: |_| Ok(()),
        codecs: |_| Codecs::All,
        properties: |_: &Options| Properties {
            synchronous: true,
            snapshot: false,
            servers: false,
            deploy: DeployedFrom::Workers,
            budget: Budget::Rounds,
            topology: TopologyRequirement::Nothing,
            optimizer: OptimizerSite::Workers,
            reads_gradient: false,
            clips_itself: false,
            keeps_mean: true,
            optimizer_rule: OptimizerRequirement::Any,
            waits_for_peers: false,
            own_start: false,
            reloadable: true,
            needs_loss: false,
            optimizer_state: OptimizerState::Kept,
        },
        traffic: |_| Traffic::Average { period: 1 },
        worker,
        server: None,
    }
}

/// Who sent, to whom, and when it was delivered.
fn deliveries(case: &Case) -> Vec<(u32, u32, u64)> {
    let mut records: Vec<Record> = Vec::new();
    quelea_sim::simulate(&case.setup, &case.problem, &case.cluster, &mut records)
        .expect("the run ends well");
    let delivered = records.iter().filter_map(|record| match record.event {
        RecordKind::Transfer { to, seconds, .. } => {
            Some((record.rank, to, nanoseconds(record.t + seconds)))
        }
        _ => None,
    });
    delivered.collect()
}

static TO_FIRST: Entry = sender(|_| {
    Box::new(Sender {
        script: |rank| if rank == Rank(0) { &[] } else { &[0] },
        with_gradient: |_| false,
    })
});

#[test]
fn a_lone_message_takes_latency_and_size_over_bandwidth() {
    let shape = Shape { workers: 2, len: vector(1_000_000), steps: 0, ..SMALL };
    let case = byte_per_ns(Case::of(&TO_FIRST, shape));
    assert_eq!(deliveries(&case), [(1, 0, LATENCY + 1_000_000)]);
}

#[test]
fn messages_to_one_rank_arrive_one_after_the_other() {
    let shape = Shape { workers: 5, len: vector(1_000_000), steps: 0, ..SMALL };
    let case = byte_per_ns(Case::of(&TO_FIRST, shape));
    let last = deliveries(&case).into_iter().map(|(_, _, at)| at).max();
    assert_eq!(last, Some(LATENCY + 4 * 1_000_000));
}

#[test]
fn a_slow_card_on_either_side_sets_the_pace() {
    let shape = Shape { workers: 2, len: vector(1_000_000), steps: 0, ..SMALL };
    for slow_host in [0, 1] {
        let case = byte_per_ns(Case::of(&TO_FIRST, shape)).on(|cluster| {
            cluster.host_bandwidth_gbps.insert(slow_host, 0.8);
        });
        assert_eq!(deliveries(&case), [(1, 0, LATENCY + 10_000_000)]);
    }
}

#[test]
fn transfer_times_are_rounded_up_to_whole_nanoseconds() {
    let shape = Shape { workers: 2, len: 1, steps: 0, ..SMALL };
    let case = Case::of(&TO_FIRST, shape).on(|cluster| cluster.bandwidth_gbps = 9.0);
    let bytes = HEADER_BYTES as u64 + 4;
    assert_eq!(deliveries(&case), [(1, 0, LATENCY + (bytes * 8).div_ceil(9))]);
}

static TENTH_TO_SECOND: Entry = sender(|_| {
    Box::new(Sender {
        script: |rank| match rank.0 {
            0 => &[3, 3, 3, 3, 3, 3, 3, 3, 3, 1],
            2 => &[1],
            _ => &[],
        },
        with_gradient: |rank| rank == Rank(2),
    })
});

#[test]
fn a_message_that_queues_at_its_sender_does_not_reserve_the_receiver() {
    let shape = Shape { len: vector(1_000_000), steps: 1, ..SMALL };
    // Rank 0 hands over ten messages of 1 ms each, the tenth to rank 1; rank 2 sends to rank 1
    // after 0.1 ms.
    let case = byte_per_ns(Case::of(&TENTH_TO_SECOND, shape)).on(|c| c.compute_ms = 0.1);
    let to_second: Vec<_> = deliveries(&case).into_iter().filter(|(_, to, _)| *to == 1).collect();
    assert_eq!(
        to_second,
        [(2, 1, 100_000 + LATENCY + 1_000_000), (0, 1, LATENCY + 10 * 1_000_000)]
    );
}

#[test]
fn ranks_of_one_host_use_their_own_links_side_by_side() {
    let shape = Shape { workers: 4, len: vector(1_000_000), steps: 0, ..SMALL };
    let mut case = byte_per_ns(Case::of(&TO_FIRST, shape)).on(|c| c.bandwidth_gbps = 0.008);
    case.setup.view =
        std::sync::Arc::new(quelea_core::view::View::first(4, 0, [0, 0, 0, 0].into(), None));
    let last = deliveries(&case).into_iter().map(|(_, _, at)| at).max();
    assert_eq!(last, Some(3 * 1_000_000));
}

static PUSH_TO_FIRST: Entry = sender(|_| {
    Box::new(Sender {
        script: |rank| if rank == Rank(0) { &[] } else { &[0] },
        with_gradient: |_| true,
    })
});

#[test]
fn a_full_link_holds_up_its_sender_until_the_receiver_reads_between_gradients() {
    let shape = Shape { workers: 2, steps: 5, ..SMALL };
    let case = Case::of(&PUSH_TO_FIRST, shape).on(|cluster| {
        cluster.link_messages = 2;
        cluster.slow.insert(0, 10.0);
    });
    let outcome = case.run();
    // Pushes at 100 and 200 ms fill the link; that of 300 ms leaves when rank 0 reads at 1000 ms.
    // Then one more fits, at 1100 ms; that of 1200 ms leaves at 2000 ms.
    let split = |rank: usize| {
        let report = &outcome.ranks[rank];
        [report.compute_seconds, report.exposed_seconds].map(nanoseconds)
    };
    assert_eq!(split(1), [500_000_000, 700_000_000 + 800_000_000]);
    assert_eq!(split(0), [5_000_000_000, 0]);
    assert_eq!(outcome.in_flight.peak_messages, 2);
}

const COMPUTE: u64 = 100_000_000;

#[test]
fn ring_all_reduce_takes_its_closed_form() {
    for n in [2, 3, 4, 8] {
        let chunk = 100_000;
        let shape = Shape { workers: n, len: n * vector(chunk), steps: 3, ..SMALL };
        let case = byte_per_ns(Case::new("allreduce", shape));
        let ring = 2 * (n as u64 - 1) * (LATENCY + chunk as u64);
        assert_eq!(case.clock_ns(), 3 * (COMPUTE + ring), "{n} workers");
    }
}

#[test]
fn sync_ps_takes_its_closed_form() {
    let frame = 1_000_000;
    for (n, steps) in [(1, 3), (2, 1), (4, 3), (8, 2)] {
        let shape = Shape { workers: n, servers: 1, len: vector(frame), buckets: 1, steps };
        let case = byte_per_ns(Case::new("sync-ps", shape));
        let (n, u) = (n as u64, frame as u64);
        let first = COMPUTE + LATENCY + n * u;
        // Worker i gets the model i·u after the first one; its gradient comes as much later.
        let round = LATENCY + COMPUTE + LATENCY + (n + 1) * u;
        let back = LATENCY + n * u;
        assert_eq!(case.clock_ns(), first + (steps - 1) * round + back, "{n} workers");
    }
}

#[test]
fn overlapped_all_reduce_exposes_the_last_bucket_when_the_link_is_fast() {
    let (n, chunk, buckets) = (4, 100_000, 4);
    let len = buckets * n * vector(chunk);
    let shape = Shape { workers: n, len, buckets, steps: 3, ..SMALL };
    let case = byte_per_ns(Case::new("allreduce", shape));
    let ring = 2 * (n as u64 - 1) * (LATENCY + chunk as u64);
    assert_eq!(case.clock_ns(), 3 * (COMPUTE + ring));
}

#[test]
fn overlapped_all_reduce_is_bound_by_bytes_when_the_link_is_never_idle() {
    let (chunk, buckets) = (1_000_000, 6);
    let shape = Shape { workers: 2, len: buckets * 2 * vector(chunk), buckets, ..SMALL };
    let case = byte_per_ns(Case::new("allreduce", Shape { steps: 2, ..shape })).on(|cluster| {
        cluster.compute_ms = 10.0;
        cluster.backward_share = 0.06;
    });
    // Forward 9.4 ms, then a bucket every 0.1 ms; each sends two chunks of 1 ms.
    let first_ready = 9_400_000 + 100_000;
    let bytes = 2 * buckets as u64 * chunk as u64;
    assert_eq!(case.clock_ns(), 2 * (first_ready + bytes + LATENCY));
}

/// The length of a step of consensus D-PSGD on a ring, in the long run.
fn d_psgd_step_ns(frame: usize, buckets: usize) -> u64 {
    let clock = |steps| {
        let shape = Shape { workers: 6, servers: 0, len: buckets * vector(frame), buckets, steps };
        byte_per_ns(Case::new("d-psgd", shape)).on(|c| c.compute_ms = 1.0).clock_ns()
    };
    let (long, short) = (clock(30), clock(10));
    assert_eq!((long - short) % 20, 0);
    (long - short) / 20
}

#[test]
fn a_step_of_consensus_d_psgd_takes_the_longer_of_computing_and_sending() {
    for buckets in [2, 4] {
        assert_eq!(d_psgd_step_ns(10_000, buckets), 1_000_000);
        let frame = 800_000;
        // Every bucket goes to two neighbours.
        assert_eq!(d_psgd_step_ns(frame, buckets), 2 * (buckets * frame) as u64);
    }
}
