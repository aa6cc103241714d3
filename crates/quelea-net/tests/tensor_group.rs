//! Collective calls on tensors: ranks are threads, connections are real.

use std::sync::Arc;
use std::time::Duration;

use quelea_net::tensor_group::{
    CallOutcome, ElementType, Listener, Operation, OwnResult, PeerTensor, Peers, Reach, Reducer,
    Reduction, TensorCall, TensorGroup, TensorMemory,
};

const LIMIT: Duration = Duration::from_secs(30);

/// Runs `work` at every rank of a group, and returns what it returns, by rank.
fn with_group<T: Send>(size: usize, work: impl Fn(&Rank) -> T + Sync) -> Vec<T> {
    let listeners: Vec<Listener> =
        (0..size).map(|_| Listener::bind(Reach::Loopback).expect("a free port")).collect();
    let addresses: Vec<Vec<String>> =
        listeners.iter().map(|listener| vec![format!("127.0.0.1:{}", listener.port())]).collect();
    let connect = |(rank, listener)| {
        let peers = Peers { rank, addresses: addresses.clone(), token: [7; 16] };
        let names = (0..size as u32).map(|name| 10 * name).collect();
        Rank(TensorGroup::connect(listener, &peers, names, LIMIT).expect("all are there"))
    };
    std::thread::scope(|scope| {
        let (work, connect) = (&work, &connect);
        let threads: Vec<_> = listeners
            .into_iter()
            .enumerate()
            .map(|listener| scope.spawn(move || work(&connect(listener))))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

struct Rank(TensorGroup);

impl Rank {
    fn run(&self, operation: Operation) -> Result<CallOutcome, String> {
        self.within(operation, LIMIT)
    }

    fn within(&self, operation: Operation, limit: Duration) -> Result<CallOutcome, String> {
        let pending = self.0.submit(operation, limit, Box::new(()));
        pending.wait(None, &mut || true).expect("waits for the end")
    }

    fn all_reduce<T: bytemuck::Pod>(
        &self,
        values: &mut [T],
        element: ElementType,
        reduction: Reduction,
    ) -> Result<CallOutcome, String> {
        let reducer = Reducer::new(element, reduction).expect("supported");
        self.run(Operation::AllReduce { memory: lent(values), reducer })
    }
}

fn lent<T: bytemuck::Pod>(values: &mut [T]) -> TensorMemory {
    let bytes = std::mem::size_of_val(values);
    // SAFETY: the tests wait for every operation before they use its memory.
    unsafe { TensorMemory::new(values.as_mut_ptr() as usize, bytes) }
}

fn part<T: bytemuck::Pod>(peer: usize, values: &mut [T]) -> PeerTensor {
    PeerTensor { peer, memory: lent(values) }
}

#[test]
fn an_all_reduce_of_any_length_over_any_number_of_ranks_is_the_sum() {
    for size in 1..=5 {
        for len in [0, 1, 2, 7, 1000, 70_001, 500_003] {
            let sums = with_group(size, |rank| {
                let mut values: Vec<i64> =
                    (0..len).map(|k| (k * (rank.0.rank() + 1)) as i64).collect();
                rank.all_reduce(&mut values, ElementType::I64, Reduction::Sum)
                    .expect("all take part");
                values
            });
            let weight = (size * (size + 1) / 2) as i64;
            for sum in sums {
                assert!(sum.iter().enumerate().all(|(k, value)| *value == k as i64 * weight));
            }
        }
    }
}

/// Numbers whose sums depend on the order.
fn noise(rank: usize, len: usize) -> Vec<f32> {
    let mut state = 12345 + rank as u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 1e6
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn a_long_sum_has_the_bits_of_the_ring_of_the_core() {
    let (size, len) = (3, 600_001);
    let sums = with_group(size, |rank| {
        let mut values = noise(rank.0.rank(), len);
        rank.all_reduce(&mut values, ElementType::F32, Reduction::Sum).expect("all take part");
        values
    });
    // Chunk c is summed in the order of the places c, c + 1, …
    let inputs: Vec<Vec<f32>> = (0..size).map(|rank| noise(rank, len)).collect();
    for chunk in 0..size {
        for k in len * chunk / size..len * (chunk + 1) / size {
            let first = inputs[chunk][k];
            let sum = (1..size).fold(first, |sum, step| sum + inputs[(chunk + step) % size][k]);
            for rank in &sums {
                assert_eq!(rank[k].to_bits(), sum.to_bits());
            }
        }
    }
}

#[test]
fn short_sums_have_the_same_bits_at_all_ranks() {
    for size in [2, 3, 4, 5] {
        let sums = with_group(size, |rank| {
            let mut values = noise(rank.0.rank(), 101);
            rank.all_reduce(&mut values, ElementType::F32, Reduction::Mean).expect("all take part");
            values
        });
        for (k, value) in sums[0].iter().enumerate() {
            let exact: f64 = (0..size).map(|rank| f64::from(noise(rank, 101)[k])).sum();
            let exact = exact / size as f64;
            assert!((f64::from(*value) - exact).abs() <= 1e-6 * exact.abs());
            assert!(sums.iter().all(|sum| sum[k].to_bits() == value.to_bits()));
        }
    }
}

#[test]
fn a_broadcast_gives_everybody_the_tensor_of_any_root() {
    for size in [1, 2, 3, 5, 8] {
        for root in [0, size / 2, size - 1] {
            let got = with_group(size, |rank| {
                let mut values = vec![rank.0.rank() as u32; 200_000];
                let memory = lent(&mut values);
                rank.run(Operation::Broadcast { memory, root }).expect("all take part");
                values
            });
            assert!(got.iter().flatten().all(|value| *value == root as u32));
        }
    }
}

#[test]
fn parts_are_reduced_where_they_go() {
    let (size, len) = (4, 100_000);
    let got = with_group(size, |rank| {
        let me = rank.0.rank();
        let mut parts: Vec<Vec<i32>> =
            (0..size).map(|to| vec![(10 * me + to) as i32; len]).collect();
        let mut result = vec![0; len];
        let own = OwnResult { own: lent(&mut parts[me]), result: lent(&mut result) };
        let sends = (0..size).filter(|to| *to != me).map(|to| part(to, &mut parts[to])).collect();
        let reducer = Reducer::new(ElementType::I32, Reduction::Sum).expect("supported");
        let call = TensorCall::ReduceScatter;
        rank.run(Operation::ReduceTo { call, sends, result: Some(own), reducer }).expect("reduced");
        result
    });
    for (to, result) in got.into_iter().enumerate() {
        assert!(result.iter().all(|value| *value == (60 + 4 * to) as i32));
    }
}

#[test]
fn sends_with_different_tags_are_received_in_any_order_beside_a_collective() {
    let got = with_group(2, |rank| {
        let other = 1 - rank.0.rank();
        let mut sent: Vec<Vec<u64>> = (0..3).map(|tag| vec![tag; 50_000]).collect();
        let mut received = vec![vec![9u64; 50_000]; 3];
        let mut pending = Vec::new();
        for tag in [0, 1, 2] {
            let operation = Operation::Send { part: part(other, &mut sent[tag]), tag: tag as u32 };
            pending.push(rank.0.submit(operation, LIMIT, Box::new(())));
        }
        let mut sum = [1i32];
        rank.all_reduce(&mut sum, ElementType::I32, Reduction::Sum).expect("all take part");
        for tag in [2, 0, 1] {
            let memory = lent(&mut received[tag]);
            let from = if tag == 1 { None } else { Some(other) };
            let outcome = rank.run(Operation::Receive { from, memory, tag: tag as u32 });
            assert_eq!(outcome, Ok(CallOutcome { source: Some(other) }));
        }
        for send in pending {
            send.wait(None, &mut || true).expect("waits").expect("sent");
        }
        (sum[0], received)
    });
    for (sum, received) in got {
        assert_eq!(sum, 2);
        for (tag, values) in received.iter().enumerate() {
            assert!(values.iter().all(|value| *value == tag as u64));
        }
    }
}

#[test]
fn ranks_that_disagree_about_a_call_or_a_size_learn_what_the_others_do() {
    let sizes = with_group(2, |rank| {
        let mut values = vec![0f32; 3 + rank.0.rank()];
        let memory = lent(&mut values);
        rank.run(Operation::Broadcast { memory, root: 0 }).expect_err("sizes differ")
    });
    for reason in sizes {
        assert_eq!(
            reason,
            "rank 0 has a tensor of 12 bytes in broadcast, rank 10 one of 16: tensors must have \
             the same size and type at both"
        );
    }
    let calls = with_group(2, |rank| {
        if rank.0.rank() == 0 {
            return rank.run(Operation::Barrier).expect_err("another call");
        }
        let mut values = [0u8; 1];
        rank.all_reduce(&mut values, ElementType::U8, Reduction::Sum).expect_err("another call")
    });
    for reason in calls {
        assert!(
            reason.contains("rank 0 is at barrier")
                || reason.contains("rank 10 at all_reduce")
                || reason.contains("but rank 0 at barrier"),
            "{reason}"
        );
    }
}

#[test]
fn a_rank_that_leaves_or_aborts_is_named_by_all_others() {
    let left = with_group(3, |rank| {
        if rank.0.rank() == 1 {
            rank.0.leave(LIMIT);
            return String::new();
        }
        rank.run(Operation::Barrier).expect_err("one is missing")
    });
    for reason in [&left[0], &left[2]] {
        assert_eq!(reason, "rank 10 is gone: it has left the group");
    }
    let aborted = with_group(3, |rank| {
        if rank.0.rank() == 1 {
            rank.0.abort("rank 10 has had enough");
        }
        rank.run(Operation::Barrier).expect_err("aborted")
    });
    assert!(aborted.iter().all(|reason| reason == "rank 10 has had enough"));
}

#[test]
fn a_rank_that_abandons_the_group_does_not_break_a_collective_that_it_has_completed() {
    let abandoned = std::sync::Barrier::new(2);
    let outcomes = with_group(3, |rank| {
        let mut values = [rank.0.rank() as u8; 3];
        let [from_1, from_2, own] = &mut values;
        let part =
            |peer, byte: &mut u8| PeerTensor { peer, memory: lent(std::slice::from_mut(byte)) };
        let (sends, receives) = match rank.0.rank() {
            0 => (vec![], vec![part(1, from_1), part(2, from_2)]),
            _ => (vec![part(0, own)], vec![]),
        };
        let gather =
            Operation::Exchange { call: TensorCall::Gather, sends, receives, copies: vec![] };
        if rank.0.rank() == 2 {
            abandoned.wait();
        }
        let gathered = rank.run(gather);
        if rank.0.rank() == 1 {
            rank.0.abandon("rank 10 has other plans");
            let refused = rank.run(Operation::Barrier).expect_err("abandoned");
            assert_eq!(refused, "rank 10 has other plans");
            abandoned.wait();
        }
        gathered.map(|_| values)
    });
    assert_eq!(outcomes[0], Ok([1, 2, 0]));
    assert_eq!(outcomes[1..], [Ok([1; 3]), Ok([2; 3])]);
}

#[test]
fn a_time_limit_names_the_rank_that_did_not_come() {
    let barrier = Arc::new(std::sync::Barrier::new(2));
    let reasons = with_group(2, |rank| {
        let reason = if rank.0.rank() == 0 {
            let limit = Duration::from_millis(50);
            rank.within(Operation::Barrier, limit).expect_err("nobody comes")
        } else {
            String::new()
        };
        barrier.wait();
        reason
    });
    assert_eq!(
        reasons[0],
        "timed out: rank 0 waited for rank 10 (barrier) until the timeout of the call"
    );
}

#[test]
fn an_operation_that_ends_with_a_write_ends_at_once() {
    // Ten of them, each a second late, would take ten seconds.
    let begun = std::time::Instant::now();
    with_group(2, |rank| {
        for _ in 0..10 {
            let mut values = vec![1f32; 1 << 19];
            rank.all_reduce(&mut values, ElementType::F32, Reduction::Sum).expect("all take part");
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(9));
}

/// What rank 0 at these addresses is told about a rank 1 at those.
fn refusal(own: &[&str], other: &[&str]) -> String {
    let listener = Listener::bind(Reach::Loopback).expect("a free port");
    let addresses = [own, other].map(|list| list.iter().map(|&one| one.into()).collect()).to_vec();
    let peers = Peers { rank: 0, addresses, token: [7; 16] };
    let limit = Duration::from_millis(1);
    let connected = TensorGroup::connect(listener, &peers, vec![0, 1], limit);
    connected.map(|_| ()).expect_err("rank 1 does not come")
}

#[test]
fn plain_connections_do_not_leave_this_machine_unless_that_is_asked_for() {
    for (own, other) in [
        (&["127.0.0.1:1"][..], &["10.0.0.2:1"][..]),
        (&["127.0.0.1:1", "10.0.0.1:1"], &["127.0.0.1:2", "10.0.0.2:2"]),
        (&["127.0.0.1:1"], &["127.0.0.1:2", "10.0.0.2:2"]),
    ] {
        let told = refusal(own, other);
        assert!(
            told.starts_with(&format!("rank 1 at {} is not on this", other.join(", "))),
            "{told}"
        );
        assert!(told.contains("QUELEA_INSECURE=1"), "{told}");
    }
    let here = refusal(&["127.0.0.1:1", "10.0.0.1:1"], &["127.0.0.1:2", "10.0.0.1:2"]);
    assert_eq!(here, "rank 1 has not connected within the time limit");
}
