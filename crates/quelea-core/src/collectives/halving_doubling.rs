//! Recursive halving and doubling (Thakur, Rabenseifner and Gropp 2005): all-reduce in about
//! 2 log₂ n stages.
//!
//! ```text
//! n is no power of two, p the one below: the first 2(n−p) places pair up; the even one sends
//!     everything to the odd one (stage 0) and gets the result at the end (last stage).
//! upon halving stage, mask = p/2, …, 1:    send the half that I do not keep to place xor mask;
//!     add what comes to the half that I keep (bit 0 keeps the lower half)
//! upon doubling stage, mask = 1, …, p/2:   send what I have to place xor mask; join what comes
//! ```
//! After halving, every segment is complete at one rank and is only copied from there, so every
//! rank ends with the same bits.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{AllReduce, Expected, Group, Label};
use crate::contract::{Awaited, Outbox};
use crate::message::{Message, Rank};
use crate::payload::{Payload, Pool};
use crate::vector;

/// One halving–doubling all-reduce over one vector.
#[derive(Debug)]
pub struct HalvingDoubling {
    group: Arc<Group>,
    label: Label,
    len: usize,
    started: bool,
    /// What is still to be done, last first.
    plan: Vec<Task>,
    early: BTreeMap<u32, Payload>,
    /// The range that `part` covers.
    range: Range<usize>,
    /// My partial sum over `range`; none while it is still my own vector.
    part: Option<Payload>,
}

/// One message to be received, and what it means.
#[derive(Clone, Debug)]
pub struct Task {
    /// The number of the message.
    pub stage: u32,
    /// The place that it comes from.
    pub from: usize,
    /// What is done with it.
    pub action: Action,
}

impl Task {
    /// How many elements the message has, in the sum of a vector of `len`.
    fn len(&self, len: usize) -> usize {
        match &self.action {
            Action::Fold | Action::Take => len,
            Action::Halve { keep, .. } => keep.len(),
            Action::Double { whole, keep } => whole.len() - keep.len(),
        }
    }
}

/// What a rank does with a message.
#[derive(Clone, Debug)]
pub enum Action {
    /// Add a whole vector to mine.
    Fold,
    /// Send the rest of the range; add what comes to `keep`.
    Halve {
        /// What I sum from now on.
        keep: Range<usize>,
        /// What the other one sums.
        give: Range<usize>,
    },
    /// Send what I have; join what comes (it covers the rest of `whole`).
    Double {
        /// What I have afterwards.
        whole: Range<usize>,
        /// What I had before.
        keep: Range<usize>,
    },
    /// Send my vector; take the result as it is.
    Take,
}

impl HalvingDoubling {
    /// For a vector of `len` elements.
    pub fn new(group: Arc<Group>, label: Label, len: usize) -> HalvingDoubling {
        let mut plan = plan(group.len(), group.me, len);
        plan.reverse();
        HalvingDoubling {
            group,
            label,
            len,
            started: false,
            plan,
            early: BTreeMap::new(),
            range: 0..len,
            part: None,
        }
    }

    fn send(&self, outbox: &mut Outbox<'_>, to: usize, stage: u32, values: Payload) {
        let message = self.label.message(outbox, stage, values);
        outbox.send(self.group.members[to], message);
    }

    /// My sum over `wanted`, shared where it can be.
    fn share(&self, pool: &Pool, data: &[f32], wanted: &Range<usize>) -> Payload {
        match &self.part {
            Some(part) => part.slice(self.within(wanted)),
            None => pool.copy(&data[wanted.clone()]),
        }
    }

    fn within(&self, wanted: &Range<usize>) -> Range<usize> {
        wanted.start - self.range.start..wanted.end - self.range.start
    }

    /// Sends what the next task sends before it can receive.
    fn post(&mut self, outbox: &mut Outbox<'_>, data: &[f32]) {
        let Some(Task { stage, from, action }) = self.plan.last().cloned() else { return };
        match action {
            Action::Halve { give, .. } => {
                let values = self.share(outbox.pool, data, &give);
                self.send(outbox, from, stage, values);
            }
            Action::Double { .. } => {
                let values = self.share(outbox.pool, data, &self.range.clone());
                self.send(outbox, from, stage, values);
            }
            Action::Take => {
                let values = self.share(outbox.pool, data, &self.range.clone());
                self.send(outbox, from, 0, values);
            }
            Action::Fold => {}
        }
    }

    fn receive(&mut self, outbox: &mut Outbox<'_>, data: &[f32], action: Action, values: Payload) {
        match action {
            Action::Fold => {
                outbox.work(values.len() * 4);
                self.part = Some(values.plus(data, outbox.pool));
            }
            Action::Halve { keep, .. } => {
                outbox.work(values.len() * 4);
                let own = match &self.part {
                    Some(part) => &part[self.within(&keep)],
                    None => &data[keep.clone()],
                };
                let mut sum = values.plus(own, outbox.pool);
                if !matches!(self.plan.last(), Some(Task { action: Action::Halve { .. }, .. })) {
                    sum = self.label.complete(outbox, sum);
                }
                self.part = Some(sum);
                self.range = keep;
            }
            Action::Double { whole, .. } => {
                let mine = self.share(outbox.pool, data, &self.range.clone());
                let mut joined = outbox.pool.take(whole.len());
                let out = joined.try_mut().expect("just taken, so held by nobody else");
                let split = self.range.start - whole.start;
                if split == 0 {
                    out[..mine.len()].copy_from_slice(&mine);
                    out[mine.len()..].copy_from_slice(&values);
                } else {
                    out[..split].copy_from_slice(&values);
                    out[split..].copy_from_slice(&mine);
                }
                self.part = Some(joined);
                self.range = whole;
            }
            Action::Take => self.part = Some(values),
        }
    }

    fn advance(&mut self, outbox: &mut Outbox<'_>, data: &[f32]) {
        while self.started {
            let Some(task) = self.plan.last() else { return };
            let Some(values) = self.early.remove(&task.stage) else { return };
            let task = self.plan.pop().expect("just seen");
            self.receive(outbox, data, task.action, values);
            self.post(outbox, data);
            if self.plan.is_empty() {
                self.give_back(outbox, data);
            }
        }
    }

    /// An odd rank of the first pairs hands the result to its even neighbour.
    fn give_back(&self, outbox: &mut Outbox<'_>, data: &[f32]) {
        let (pairs, last) = shape(self.group.len());
        if self.group.me < 2 * pairs && self.group.me % 2 == 1 {
            let values = self.share(outbox.pool, data, &(0..self.len));
            self.send(outbox, self.group.me - 1, last, values);
        }
    }
}

/// How many pairs of places there are first: the even place of a pair sends its vector to the odd
/// one, and gets the result from it at the end.
pub fn pairs(n: usize) -> usize {
    shape(n).0
}

/// How many places pair up first, and the number of the last stage.
fn shape(n: usize) -> (usize, u32) {
    let m = n.ilog2();
    (n - (1 << m), 2 * m + 1)
}

/// What the rank at `place` of `n` receives, in order.
pub fn plan(n: usize, place: usize, len: usize) -> Vec<Task> {
    let (pairs, last) = shape(n);
    let m = n.ilog2();
    let paired = place < 2 * pairs;
    if paired && place.is_multiple_of(2) {
        return vec![Task { stage: last, from: place + 1, action: Action::Take }];
    }
    let mut tasks = Vec::new();
    if paired {
        tasks.push(Task { stage: 0, from: place - 1, action: Action::Fold });
    }
    let active = if paired { place / 2 } else { place - pairs };
    let seat = |active: usize| if active < pairs { 2 * active + 1 } else { active + pairs };
    let mut range = 0..len;
    let mut doubling = Vec::new();
    for level in 0..m {
        let mask = 1 << (m - 1 - level);
        let middle = range.start + range.len() / 2;
        let (low, high) = (range.start..middle, middle..range.end);
        let (keep, give) = if active & mask == 0 { (low, high) } else { (high, low) };
        let from = seat(active ^ mask);
        doubling.push(Task {
            stage: 2 * m - level,
            from,
            action: Action::Double { whole: range.clone(), keep: keep.clone() },
        });
        tasks.push(Task {
            stage: level + 1,
            from,
            action: Action::Halve { keep: keep.clone(), give },
        });
        range = keep;
    }
    tasks.extend(doubling.into_iter().rev());
    tasks
}

impl AllReduce for HalvingDoubling {
    fn start(&mut self, outbox: &mut Outbox<'_>, data: &[f32]) {
        self.started = true;
        self.post(outbox, data);
        self.advance(outbox, data);
    }

    fn expected(&self, from: Rank, stage: u32) -> Expected {
        let Group { members, me, .. } = &*self.group;
        let all = plan(members.len(), *me, self.len);
        match all.iter().find(|task| task.stage == stage && members[task.from] == from) {
            None => Expected::Nothing,
            Some(_) if self.early.contains_key(&stage) => Expected::Here,
            Some(_) if !self.plan.iter().any(|task| task.stage == stage) => Expected::Here,
            Some(task) => Expected::Length(task.len(self.len)),
        }
    }

    fn on_message(&mut self, outbox: &mut Outbox<'_>, data: &[f32], _from: Rank, message: Message) {
        self.early.insert(message.stage, message.into_values());
        self.advance(outbox, data);
    }

    fn is_done(&self) -> bool {
        self.started && self.plan.is_empty()
    }

    fn finish(&mut self, scale: f32, data: &mut [f32]) {
        match self.part.take() {
            Some(values) => vector::scaled(scale, &values, data),
            None => vector::scale(scale, data),
        }
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        if let (true, Some(task)) = (self.started, self.plan.last()) {
            let from = self.group.members[task.from];
            out.push(Awaited { from, what: "a part of the halving-doubling all-reduce" });
        }
    }
}
