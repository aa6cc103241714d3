//! The collectives: which tensors go where, in which order.
//!
//! All-reduce has the schedules of `quelea_core::collectives`, and so its bits: a ring for long
//! tensors, halving and doubling for short ones. Rings and trees move tensors in segments, so that
//! a segment is reduced or sent on while the next one comes.

use std::ops::Range;
use std::time::Instant;

use quelea_core::collectives::halving_doubling::{Action, Task, pairs, plan};
use quelea_core::layout::chunks;

use super::engine::Engine;
use super::frame::{TensorCall, Ticket};
use super::{ElementType, Operation, OwnResult, PeerTensor, Reducer, Reduction, TensorMemory};

/// The length of a segment: two of them are in the cache at once.
const SEGMENT_BYTES: usize = 256 << 10;
/// How many segments may be on their way to a rank that reduces them.
const SEGMENTS_AHEAD: usize = 4;
/// Bytes per rank below which latency costs more than bandwidth.
const SMALL_BYTES_PER_RANK: usize = 256 << 10;

/// Memory for what is reduced into something else.
#[derive(Debug, Default)]
pub(super) struct Scratch(Vec<u64>);

impl Scratch {
    /// Memory of this length, aligned for every element. What was taken before is given up.
    fn take(&mut self, bytes: usize) -> TensorMemory {
        let words = bytes.div_ceil(8);
        if self.0.len() < words {
            self.0.resize(words, 0);
        }
        TensorMemory { address: self.0.as_mut_ptr() as usize, bytes }
    }
}

/// One collective at one rank.
struct Collective<'a> {
    engine: &'a mut Engine,
    call: TensorCall,
    until: Instant,
    /// Sends whose completion nobody has waited for.
    sends: Vec<Ticket>,
}

impl Collective<'_> {
    fn receive(&mut self, peer: usize, memory: TensorMemory) -> Result<Ticket, String> {
        self.engine.receive(self.call, self.engine.key(), peer, memory)
    }

    fn send(&mut self, peer: usize, memory: TensorMemory) -> Result<(), String> {
        let ticket = self.engine.send(self.call, self.engine.key(), peer, memory)?;
        self.sends.push(ticket);
        Ok(())
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), String> {
        self.engine.wait(ticket, self.until)
    }

    /// All that was sent is written: the tensors are no longer needed.
    fn finish(mut self) -> Result<(), String> {
        for ticket in std::mem::take(&mut self.sends) {
            self.wait(ticket)?;
        }
        Ok(())
    }
}

impl Engine {
    /// Runs a collective to its end.
    pub(super) fn execute(&mut self, operation: &Operation, until: Instant) -> Result<(), String> {
        let run = |engine, call| Collective { engine, call, until, sends: Vec::new() };
        match operation {
            Operation::AllReduce { memory, reducer } => {
                all_reduce(run(self, TensorCall::AllReduce), *memory, *reducer)
            }
            Operation::Barrier => {
                let memory = self.token();
                let reducer = Reducer::new(ElementType::U8, Reduction::Or)?;
                let run = run(self, TensorCall::Barrier);
                if run.engine.size() == 1 { Ok(()) } else { halving(run, memory, reducer) }
            }
            Operation::ReduceTo { call, sends, result, reducer } => {
                reduce_to(run(self, *call), sends, *result, *reducer)
            }
            Operation::Broadcast { memory, root } => {
                broadcast(run(self, TensorCall::Broadcast), *memory, *root)
            }
            Operation::Exchange { call, sends, receives, copies } => {
                for (from, to) in copies {
                    copy(*from, *to);
                }
                exchange(run(self, *call), sends, receives)
            }
            Operation::Send { .. } | Operation::Receive { .. } | Operation::Window { .. } => {
                unreachable!("started beside the collectives")
            }
        }
    }
}

fn copy(from: TensorMemory, to: TensorMemory) {
    assert_eq!(from.bytes, to.bytes, "checked when it was submitted");
    // SAFETY: both are lent to this operation; they may be the same memory.
    unsafe {
        std::ptr::copy(from.address as *const u8, to.address as *mut u8, from.bytes);
    }
}

/// `into = into ∘ other` for two tensors that are lent to this operation.
fn combine(reducer: Reducer, into: TensorMemory, other: TensorMemory) {
    // SAFETY: `other` is scratch memory whose receive is complete; nothing of `into` is on its
    // way.
    unsafe { reducer.combine(into.as_mut_slice(), other.as_slice()) }
}

fn complete(reducer: Reducer, memory: TensorMemory, ranks: usize) {
    // SAFETY: nothing of it is on its way.
    unsafe { reducer.complete(memory.as_mut_slice(), ranks) }
}

/// A range of bytes in pieces that are no longer than a segment; an empty one has one piece.
fn segments(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let count = range.len().div_ceil(SEGMENT_BYTES).max(1);
    (0..count).map(move |at| {
        let start = range.start + at * SEGMENT_BYTES;
        start..range.end.min(start + SEGMENT_BYTES)
    })
}

fn all_reduce(run: Collective<'_>, memory: TensorMemory, reducer: Reducer) -> Result<(), String> {
    let n = run.engine.size();
    if n == 1 {
        complete(reducer, memory, 1);
        return Ok(());
    }
    if memory.bytes() < SMALL_BYTES_PER_RANK * n {
        halving(run, memory, reducer)
    } else {
        ring(run, memory, reducer)
    }
}

/// `quelea_core::collectives::Ring` in segments.
fn ring(mut run: Collective<'_>, memory: TensorMemory, reducer: Reducer) -> Result<(), String> {
    let (n, me) = (run.engine.size(), run.engine.rank());
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    let size = reducer.bytes();
    let chunks: Vec<Range<usize>> = chunks(memory.bytes() / size, n)
        .into_iter()
        .map(|chunk| chunk.start * size..chunk.end * size)
        .collect();
    let pieces = |stages: Range<usize>, back: usize| -> Vec<(usize, Range<usize>)> {
        let chunk = |stage: usize| chunks[(me + 2 * n - stage - back) % n].clone();
        stages.flat_map(|s| segments(chunk(s)).map(move |range| (s, range))).collect()
    };
    let (reduced, gathered) = (pieces(0..n - 1, 1), pieces(0..n - 1, 0));
    for range in segments(chunks[me].clone()) {
        run.send(next, memory.part(range))?;
    }
    let slots = run.engine.scratch.take(SEGMENTS_AHEAD * SEGMENT_BYTES);
    let slot = |at: usize, len: usize| {
        let start = at % SEGMENTS_AHEAD * SEGMENT_BYTES;
        slots.part(start..start + len)
    };
    let mut coming = Vec::new();
    for (at, (_, range)) in reduced.iter().enumerate().take(SEGMENTS_AHEAD) {
        coming.push(run.receive(before, slot(at, range.len()))?);
    }
    for (at, (stage, range)) in reduced.iter().enumerate() {
        run.wait(coming[at])?;
        let part = memory.part(range.clone());
        combine(reducer, part, slot(at, range.len()));
        if stage + 2 == n {
            complete(reducer, part, n);
        }
        run.send(next, part)?;
        if let Some((_, ahead)) = reduced.get(at + SEGMENTS_AHEAD) {
            coming.push(run.receive(before, slot(at, ahead.len()))?);
        }
    }
    // What comes now has passed all ranks: nothing of it is still on its way from here.
    let mut coming = Vec::new();
    for (_, range) in &gathered {
        coming.push(run.receive(before, memory.part(range.clone()))?);
    }
    for ((stage, range), ticket) in gathered.iter().zip(coming) {
        run.wait(ticket)?;
        if stage + 2 < n {
            run.send(next, memory.part(range.clone()))?;
        }
    }
    run.finish()
}

/// `quelea_core::collectives::HalvingDoubling`, in place.
fn halving(mut run: Collective<'_>, memory: TensorMemory, reducer: Reducer) -> Result<(), String> {
    let (n, me) = (run.engine.size(), run.engine.rank());
    let size = reducer.bytes();
    let elements = memory.bytes() / size;
    let bytes = |range: &Range<usize>| range.start * size..range.end * size;
    let tasks = plan(n, me, elements);
    let room: usize = tasks.iter().map(|task| scratch_elements(task, elements) * size).sum();
    let scratch = run.engine.scratch.take(room);
    let (mut used, mut range) = (0, 0..elements);
    let mut coming = Vec::new();
    for task in &tasks {
        let target = match &task.action {
            Action::Fold | Action::Halve { .. } => {
                let part = used..used + scratch_elements(task, elements) * size;
                used = part.end;
                scratch.part(part)
            }
            Action::Double { whole, keep } => {
                let is_low = keep.start == whole.start;
                let rest = if is_low { keep.end..whole.end } else { whole.start..keep.start };
                memory.part(bytes(&rest))
            }
            Action::Take => memory,
        };
        coming.push((run.receive(task.from, target)?, target));
    }
    for (at, (task, (ticket, target))) in tasks.iter().zip(coming).enumerate() {
        match &task.action {
            Action::Fold => {}
            Action::Halve { give, .. } => run.send(task.from, memory.part(bytes(give)))?,
            Action::Double { .. } => run.send(task.from, memory.part(bytes(&range)))?,
            Action::Take => run.send(task.from, memory)?,
        }
        run.wait(ticket)?;
        match &task.action {
            Action::Fold => combine(reducer, memory, target),
            Action::Halve { keep, .. } => {
                let part = memory.part(bytes(keep));
                combine(reducer, part, target);
                range = keep.clone();
                let halves_again =
                    matches!(tasks.get(at + 1), Some(Task { action: Action::Halve { .. }, .. }));
                if !halves_again {
                    complete(reducer, part, n);
                }
            }
            Action::Double { whole, .. } => range = whole.clone(),
            Action::Take => {}
        }
    }
    if me < 2 * pairs(n) && me % 2 == 1 {
        run.send(me - 1, memory)?;
    }
    run.finish()
}

/// What a task receives that is then reduced into the tensor.
fn scratch_elements(task: &Task, whole: usize) -> usize {
    match &task.action {
        Action::Fold => whole,
        Action::Halve { keep, .. } => keep.len(),
        Action::Double { .. } | Action::Take => 0,
    }
}

/// Sends parts to others, and reduces what comes from all others with the own part, in the order
/// of ranks from the own one on.
fn reduce_to(
    mut run: Collective<'_>,
    sends: &[PeerTensor],
    result: Option<OwnResult>,
    reducer: Reducer,
) -> Result<(), String> {
    for part in sends {
        for range in segments(0..part.memory.bytes()) {
            run.send(part.peer, part.memory.part(range))?;
        }
    }
    if let Some(OwnResult { own, result }) = result {
        let (n, me) = (run.engine.size(), run.engine.rank());
        copy(own, result);
        let pieces: Vec<(usize, Range<usize>)> = segments(0..result.bytes())
            .flat_map(|range| (1..n).map(move |k| ((me + k) % n, range.clone())))
            .collect();
        let ahead = SEGMENTS_AHEAD.max(2 * (n - 1));
        let slots = run.engine.scratch.take(ahead * SEGMENT_BYTES);
        let slot = |at: usize, len: usize| {
            let start = at % ahead * SEGMENT_BYTES;
            slots.part(start..start + len)
        };
        let mut coming = Vec::new();
        for (at, (peer, range)) in pieces.iter().enumerate().take(ahead) {
            coming.push(run.receive(*peer, slot(at, range.len()))?);
        }
        for (at, (_, range)) in pieces.iter().enumerate() {
            run.wait(coming[at])?;
            combine(reducer, result.part(range.clone()), slot(at, range.len()));
            if let Some((peer, range)) = pieces.get(at + ahead) {
                coming.push(run.receive(*peer, slot(at, range.len()))?);
            }
        }
        complete(reducer, result, n);
    }
    run.finish()
}

/// A binomial tree from `root`, in segments.
fn broadcast(mut run: Collective<'_>, memory: TensorMemory, root: usize) -> Result<(), String> {
    let (n, me) = (run.engine.size(), run.engine.rank());
    let place = (me + n - root) % n;
    let rank = |place: usize| (place + root) % n;
    let below = if place == 0 { usize::BITS } else { place.trailing_zeros() };
    let children: Vec<usize> = (0..below)
        .map_while(|bit| 1usize.checked_shl(bit))
        .take_while(|bit| *bit < n)
        .map(|bit| place | bit)
        .filter(|child| *child < n)
        .collect();
    let mut coming = Vec::new();
    if place > 0 {
        let parent = rank(place & (place - 1));
        for range in segments(0..memory.bytes()) {
            coming.push(run.receive(parent, memory.part(range))?);
        }
    }
    for (at, range) in segments(0..memory.bytes()).enumerate() {
        if let Some(ticket) = coming.get(at) {
            run.wait(*ticket)?;
        }
        for child in children.iter().rev() {
            run.send(rank(*child), memory.part(range.clone()))?;
        }
    }
    run.finish()
}

/// Everything at once, directly.
fn exchange(
    mut run: Collective<'_>,
    sends: &[PeerTensor],
    receives: &[PeerTensor],
) -> Result<(), String> {
    let mut coming = Vec::new();
    for part in receives {
        coming.push(run.receive(part.peer, part.memory)?);
    }
    for part in sends {
        run.send(part.peer, part.memory)?;
    }
    for ticket in coming {
        run.wait(ticket)?;
    }
    run.finish()
}
