//! All collectives, all group sizes, awkward lengths, any order of delivery.

use super::all_gather::AllGather;
use super::broadcast::Broadcast;
use super::*;
use crate::codec::{self, Coder};
use crate::contract::Effect;
use crate::options::Options;
use crate::payload::Pool;
use crate::random::Rng;
use crate::time::Time;

/// Messages on their way between the ranks of a test, delivered in random order.
struct Wires {
    view: View,
    pool: Pool,
    rng: Rng,
    coder: Coder,
    flying: Vec<(Rank, Rank, Message)>,
    sent: Vec<u64>,
}

fn coder(name: &str) -> Coder {
    let entry = codec::find(name).expect("in the table");
    Coder::new(entry, &Options::defaults(entry.meta.options), 1)
}

impl Wires {
    fn new(hosts: &[u32], seed: u64) -> Wires {
        Wires {
            view: View::first(hosts.len(), 0, hosts.into(), None),
            pool: Pool::new(),
            rng: Rng::new(seed, "wires", 0),
            coder: coder("f32"),
            flying: Vec::new(),
            sent: vec![0; hosts.len()],
        }
    }

    fn group(&self, place: usize) -> Arc<Group> {
        Arc::new(Group::of_workers(&self.view, Rank::from(place)))
    }

    fn event(&mut self, rank: usize, event: impl FnOnce(&mut Outbox<'_>)) {
        let mut out = Vec::new();
        event(&mut Outbox {
            now: Time::ZERO,
            origin: Time::ZERO,
            rank: Rank::from(rank),
            view: &self.view,
            pool: &self.pool,
            coder: &mut self.coder,
            rng: &mut self.rng.clone(),
            out: &mut out,
        });
        for effect in out {
            if let Effect::Send { to, message } = effect {
                self.sent[rank] += message.payload_bytes() as u64;
                self.flying.push((Rank::from(rank), to, message));
            }
        }
    }

    fn next(&mut self) -> Option<(Rank, usize, Message)> {
        let count = self.flying.len() as u64;
        if count == 0 {
            return None;
        }
        let (from, to, message) = self.flying.swap_remove(self.rng.below(count) as usize);
        Some((from, to.index(), message))
    }
}

const LABEL: Label = Label { kind: 1, step: 0, bucket: 0, phase: 0, rounds: true };

/// Runs one all-reduce; starts and deliveries are interleaved at random.
fn all_reduce(entry: &Entry, hosts: &[u32], inputs: &[Vec<f32>], seed: u64) -> Vec<Vec<f32>> {
    let n = hosts.len();
    let mut wires = Wires::new(hosts, seed);
    let mut data = inputs.to_vec();
    let mut machines: Vec<_> =
        (0..n).map(|r| (entry.build)(wires.group(r), LABEL, inputs[r].len())).collect();
    let mut to_start: Vec<usize> = (0..n).collect();
    wires.rng.shuffle(&mut to_start);
    loop {
        let start_one = wires.flying.is_empty() || wires.rng.below(3) == 0;
        if let Some(rank) = start_one.then(|| to_start.pop()).flatten() {
            wires.event(rank, |io| machines[rank].start(io, &data[rank]));
        } else if let Some((from, to, message)) = wires.next() {
            // Before its start a machine is not lent the data.
            let lent: &[f32] = if to_start.contains(&to) { &[] } else { &data[to] };
            assert!(is_taken(&*machines[to], from, &message));
            wires.event(to, |io| machines[to].on_message(io, lent, from, message));
        } else {
            break;
        }
    }
    for (rank, machine) in machines.iter_mut().enumerate() {
        let mut awaited = Vec::new();
        machine.awaiting(&mut awaited);
        assert!(machine.is_done(), "{}: rank {rank} of {n} awaits {awaited:?}", entry.meta.name);
        machine.finish(0.5, &mut data[rank]);
    }
    drop(machines);
    assert_eq!(wires.pool.outstanding(), 0, "all memory came back");
    data
}

fn inputs(n: usize, len: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut rng = Rng::new(seed, "inputs", 0);
    (0..n).map(|_| (0..len).map(|_| rng.normal() as f32).collect()).collect()
}

fn check(entry: &Entry, hosts: &[u32], len: usize, seed: u64) {
    let n = hosts.len();
    let inputs = inputs(n, len, seed);
    let results = all_reduce(entry, hosts, &inputs, seed);
    for k in 0..len {
        let exact: f64 = inputs.iter().map(|x| f64::from(x[k])).sum::<f64>() * 0.5;
        let size: f64 = inputs.iter().map(|x| f64::from(x[k]).abs()).sum();
        let error = (f64::from(results[0][k]) - exact).abs();
        let bound = n as f64 * f64::from(f32::EPSILON) * size;
        assert!(error <= bound, "{} n={n} len={len} k={k}: off by {error}", entry.meta.name);
    }
    for other in &results[1..] {
        assert_eq!(bits(other), bits(&results[0]), "{} n={n} len={len}", entry.meta.name);
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn all_reduce_is_the_sum_with_the_same_bits_everywhere_for_every_n_and_length() {
    for entry in COLLECTIVES {
        for n in 1..=17 {
            let hosts: Vec<u32> = (0..n as u32).map(|r| r / 3).collect();
            for len in [0, 1, n - 1, n, n + 1, 1000] {
                check(entry, &hosts, len, 7 + n as u64);
            }
        }
    }
}

#[test]
fn all_reduce_does_not_depend_on_the_order_of_delivery() {
    for entry in COLLECTIVES {
        let hosts = [0, 0, 0, 1, 1, 2, 2];
        let inputs = inputs(7, 50, 1);
        let first = all_reduce(entry, &hosts, &inputs, 0);
        for seed in 1..50 {
            let again = all_reduce(entry, &hosts, &inputs, seed);
            assert_eq!(bits(&again[3]), bits(&first[3]), "{} seed {seed}", entry.meta.name);
        }
    }
}

#[test]
fn a_large_vector_and_unequal_hosts_work_too() {
    for entry in COLLECTIVES {
        check(entry, &[0, 0, 0, 0, 1, 1, 2], 100_003, 5);
    }
}

#[test]
fn a_ring_sends_twice_n_minus_one_nth_of_the_vector() {
    let hosts = [0, 1, 2, 3];
    let mut wires = Wires::new(&hosts, 1);
    let data = inputs(4, 400, 1);
    let mut rings: Vec<_> = (0..4).map(|r| Ring::new(wires.group(r), LABEL, 400)).collect();
    for rank in 0..4 {
        wires.event(rank, |io| rings[rank].start(io, &data[rank]));
    }
    while let Some((from, to, message)) = wires.next() {
        wires.event(to, |io| rings[to].on_message(io, &data[to], from, message));
    }
    assert_eq!(wires.sent, [2 * 3 * 400; 4]);
}

#[test]
fn a_broadcast_reaches_everybody_from_every_root() {
    for n in 1..=17usize {
        for root in [0, n / 2, n - 1] {
            let hosts: Vec<u32> = (0..n as u32).collect();
            let mut wires = Wires::new(&hosts, n as u64);
            let mut machines: Vec<_> =
                (0..n).map(|r| Broadcast::new(wires.group(r), LABEL, root)).collect();
            wires.event(root, |io| machines[root].start(io, io.pool.copy(&[1.0, 2.0])));
            while let Some((from, to, message)) = wires.next() {
                wires.event(to, |io| machines[to].on_message(io, from, message));
            }
            for machine in &machines {
                assert_eq!(machine.values().expect("reached")[..], [1.0, 2.0]);
            }
        }
    }
}

#[test]
fn an_all_gather_brings_everybodys_vector_to_everybody() {
    for n in 1..=9usize {
        let hosts: Vec<u32> = (0..n as u32).collect();
        let mut wires = Wires::new(&hosts, n as u64);
        let mut machines: Vec<_> = (0..n).map(|r| AllGather::new(wires.group(r), LABEL)).collect();
        for (rank, machine) in machines.iter_mut().enumerate() {
            let own = wires.pool.copy(&vec![rank as f32; rank + 1]);
            wires.event(rank, |io| machine.start(io, own));
        }
        while let Some((from, to, message)) = wires.next() {
            wires.event(to, |io| machines[to].on_message(io, from, message));
        }
        for machine in &machines {
            let gathered = machine.gathered().expect("all are here");
            for (place, values) in gathered.iter().enumerate() {
                assert_eq!(values[..], vec![place as f32; place + 1]);
            }
        }
    }
}

/// What a machine of rank 1 says to one message, before and after its start.
fn refusal(entry: &Entry, from: u32, stage: u32, len: usize) -> Option<String> {
    let wires = Wires::new(&[0, 0, 1, 1], 1);
    let machine = (entry.build)(wires.group(1), LABEL, 40);
    let values = wires.pool.copy(&vec![1.0; len]);
    let mut message = Message::new(1, 0, 0).with(values);
    message.stage = stage;
    let expect = || assert!(is_taken(&*machine, Rank(from), &message));
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(expect)).err()?;
    Some(refused.downcast_ref::<String>().expect("a sentence").clone())
}

#[test]
fn only_what_a_rank_sends_in_a_stage_is_taken_and_at_its_length() {
    // From whom rank 1 gets the messages of a stage, and how long they are.
    let expected: [(&str, &[[u32; 3]]); 3] = [
        ("ring", &[[0, 0, 10], [0, 1, 10], [0, 2, 10], [0, 3, 10], [0, 4, 10], [0, 5, 10]]),
        ("halving-doubling", &[[3, 1, 20], [0, 2, 10], [0, 3, 10], [3, 4, 20]]),
        // Chunk 0 is rank 0's; that of rank 1 comes from rank 0 and by a ring with rank 3.
        ("hierarchical", &[[0, 3, 20], [0, 4, 20], [3, 5, 10], [3, 6, 10]]),
    ];
    for (name, expected) in expected {
        let entry = COLLECTIVES.iter().find(|entry| entry.meta.name == name).expect("in the table");
        for (from, stage) in (0..4).flat_map(|from| (0..9).map(move |stage| (from, stage))) {
            let good = expected.iter().find(|[who, when, _]| (*who, *when) == (from, stage));
            for len in [0, 9, 10, 11, 20, 40] {
                let refused = refusal(entry, from, stage, len);
                let sentence = match good {
                    Some([.., right]) if *right as usize == len => None,
                    Some([.., right]) => Some(format!(
                        "its vectors of bucket 0 in step 0 do not have {right} elements"
                    )),
                    None => Some(format!(
                        "no message of stage {stage} of bucket 0 in step 0 is to come from rank {from}"
                    )),
                };
                assert_eq!(refused, sentence, "{name}, rank {from}, stage {stage}, {len} elements");
            }
        }
    }
}

#[test]
fn a_message_that_is_here_is_not_taken_again() {
    for entry in COLLECTIVES {
        let mut wires = Wires::new(&[0, 0, 0, 1, 1], 3);
        let data = inputs(5, 40, 1);
        let mut machines: Vec<_> =
            (0..5).map(|r| (entry.build)(wires.group(r), LABEL, 40)).collect();
        for rank in 0..5 {
            wires.event(rank, |io| machines[rank].start(io, &data[rank]));
        }
        while let Some((from, to, message)) = wires.next() {
            let stage = message.stage;
            let expected = machines[to].expected(from, stage);
            assert!(matches!(expected, Expected::Length(_)), "{} {stage}", entry.meta.name);
            wires.event(to, |io| machines[to].on_message(io, &data[to], from, message));
            let expected = machines[to].expected(from, stage);
            assert_eq!(expected, Expected::Here, "{} {stage}", entry.meta.name);
        }
    }
}
