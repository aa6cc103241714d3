//! The exact mean of vectors over all workers, part by part, by any collective of the table.
//!
//! The owner lends a part with every call and keeps it as it was until [`Average::finish`] writes
//! the mean over it; so after a loss the same parts can be started again. An owner in a hurry has
//! parts written as they are summed ([`Average::finish_early`]); after a loss it has what was there
//! back ([`Average::undo`]).
//!
//! With a codec, each part goes the way that the codec's shape allows; what is left out comes back
//! with the next average (error feedback), and all workers end with the same bits:
//!
//! | shape | way |
//! |---|---|
//! | rounding | the collective, every hop rounded; a complete sum is rounded once more by its owner |
//! | shared | the collective over the elements that all keep |
//! | own | everybody sends to everybody; sums in the order of ranks |
//! | low rank | two collectives over thin factors, see `low_rank.rs` |

mod remembered;
mod way;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fold::Fold;
use super::low_rank::LowRank;
use super::{AllReduce, COLLECTIVES, Entry, Group, Label, is_taken};
use crate::codec::Coder;
use crate::contract::{Awaited, Context, Outbox};
use crate::message::{Message, Rank};
use crate::options::{OptionKind, OptionSpec, Options};
use crate::payload::Payload;
use crate::state::Visitor;
use crate::vector;
use remembered::Remembered;
use way::Way;

/// The kind of the messages of an average; owners number theirs from 2.
pub const REDUCE: u8 = 1;

/// The option of algorithms that average exactly.
pub const COLLECTIVE: OptionSpec = OptionSpec {
    name: "collective",
    kind: OptionKind::Choice(&["ring", "halving-doubling", "hierarchical", "auto"]),
    help: "how exact averages are summed",
};

/// One average after another.
pub struct Average {
    collective: &'static Entry,
    group: Arc<Group>,
    parts: Vec<PartSum>,
    /// What each part remembers of what a codec has left out; empty without one.
    memories: Vec<Remembered>,
    /// The sum of each (step, part, phase). A peer may be ahead.
    running: BTreeMap<(u64, usize, u64), Sum>,
    /// The step whose average is under way.
    step: u64,
}

/// One part of the vector.
struct PartSum {
    len: usize,
    way: Way,
    /// Handed over, and the average is not over.
    started: bool,
    under_way: UnderWay,
    /// What was handed over, if the mean is written over it already.
    kept: Option<Payload>,
}

/// What a part that was handed over is known by to its sums.
#[derive(Default)]
enum UnderWay {
    /// The owner's vector itself.
    #[default]
    Lent,
    /// What receivers decode of mine, and the elements of it that travel, where all keep the same.
    Offered {
        own: Payload,
        kept: Payload,
    },
    Factors(LowRank),
}

/// A sum under way.
enum Sum {
    Reduce(Box<dyn AllReduce>),
    Gather(Fold),
}

impl Average {
    /// By the collective of these parameters.
    pub fn new(options: &Options) -> Average {
        let name = options.text("collective");
        let collective = COLLECTIVES.iter().find(|entry| entry.meta.name == name);
        Average {
            collective: collective.expect("the choice lists the table's names"),
            group: Arc::new(Group { members: Vec::new(), hosts: Vec::new(), me: 0 }),
            parts: Vec::new(),
            memories: Vec::new(),
            running: BTreeMap::new(),
            step: 0,
        }
    }

    /// From now on among the living workers: the buckets of the model, which the codec may
    /// encode, then vectors of these lengths, which it may not. What was under way is forgotten.
    pub fn enter(&mut self, cx: &Context<'_>, others: &[usize]) {
        self.group = Arc::new(Group::of_workers(cx.outbox.view, cx.outbox.rank));
        let part =
            |len, way| PartSum { len, way, started: false, under_way: UnderWay::Lent, kept: None };
        let alone = self.group.len() == 1;
        let buckets = (0..cx.layout.buckets.len()).map(|b| {
            let way = if alone { Way::Plain { rounds: false } } else { Way::of_bucket(cx, b) };
            part(cx.layout.range(b).len(), way)
        });
        let others = others.iter().map(|len| part(*len, Way::Plain { rounds: false }));
        self.parts = buckets.chain(others).collect();
        self.memories.resize_with(cx.layout.buckets.len(), Remembered::default);
        self.running.clear();
    }

    /// What is averaged next will be multiplied by this learning rate, and what a codec leaves out
    /// of it is kept in its units. Owners that average models do not call this.
    pub fn at_rate(&mut self, rate: f32) {
        self.memories.iter_mut().for_each(|memory| memory.at_rate(rate));
    }

    /// My part is ready.
    pub fn start(&mut self, outbox: &mut Outbox<'_>, step: u64, part: usize, data: &[f32]) {
        self.step = step;
        // What came for steps that are over is of no use to anybody.
        if self.running.first_key_value().is_some_and(|(key, _)| key.0 < step) {
            self.running = self.running.split_off(&(step, 0, 0));
        }
        self.parts[part].started = true;
        let label = self.label(step, part, 0);
        let at = Coder::place(outbox.rank, &label.bare(0), 0);
        match &self.parts[part].way {
            Way::Plain { .. } => self.reduce(outbox, step, part, 0).start(outbox, data),
            Way::Shared | Way::Own => {
                let mut own = outbox.pool.copy(data);
                let values = own.try_mut().expect("just taken, so held by nobody else");
                let memory = &self.memories[part].feedback;
                let offered = memory.offer(outbox.coder, at, values, outbox.pool);
                let kept = Coder::kept(&offered);
                if matches!(self.parts[part].way, Way::Shared) {
                    self.reduce(outbox, step, part, 0).start(outbox, &kept);
                } else {
                    let mut message = label.bare(0);
                    message.parts[0] = offered;
                    self.to_all(outbox, &message);
                    self.gather(step, part).take(outbox, outbox.rank, own.clone());
                }
                self.parts[part].under_way = UnderWay::Offered { own, kept };
            }
            Way::LowRank(cut) => {
                let memory = &mut self.memories[part].factors;
                let factors = LowRank::begin(cut, memory, data, outbox.pool);
                self.reduce(outbox, step, part, 0).start(outbox, factors.first());
                self.parts[part].under_way = UnderWay::Factors(factors);
                self.turn(outbox, part);
            }
        }
    }

    /// Whether this part was handed over, so that its vector must be lent.
    pub fn has_started(&self, step: u64, part: usize) -> bool {
        self.step == step && self.parts[part].started
    }

    /// A message of kind [`REDUCE`] has arrived; `data` may be empty before the part is started. Panics,
    /// before anything is changed, if it is not one that `from` sends.
    pub fn on_message(
        &mut self,
        outbox: &mut Outbox<'_>,
        data: &[f32],
        from: Rank,
        message: Message,
    ) {
        let (step, part, phase) = (message.step, message.bucket as usize, message.seq);
        if step < self.step || !self.takes(outbox, from, &message) {
            return;
        }
        if matches!(self.parts[part].way, Way::Own) {
            return self.gather(step, part).take(outbox, from, message.into_values());
        }
        let started = self.has_started(step, part);
        let under_way = std::mem::take(&mut self.parts[part].under_way);
        let data = match &under_way {
            UnderWay::Lent => data,
            _ if !started => &[],
            UnderWay::Offered { kept, .. } => kept,
            UnderWay::Factors(factors) if phase == 0 => factors.first(),
            UnderWay::Factors(factors) => factors.second(),
        };
        self.reduce(outbox, step, part, phase).on_message(outbox, data, from, message);
        self.parts[part].under_way = under_way;
        if started {
            self.turn(outbox, part);
        }
    }

    /// Whether this message is new. Panics unless it is one that `from` sends in the sum that it names.
    fn takes(&mut self, outbox: &Outbox<'_>, from: Rank, message: &Message) -> bool {
        let (step, part, phase) = (message.step, message.bucket as usize, message.seq);
        let parts = self.parts.len();
        assert!(part < parts, "part {part} of the average in step {step}: there are {parts}");
        let last = self.last_phase(part);
        assert!(phase <= last, "sum {phase} of part {part} in step {step}: the last is {last}");
        if matches!(self.parts[part].way, Way::Own) {
            assert!(self.group.members.contains(&from), "{from} takes no part in the average");
            message.expect_length(self.parts[part].len);
            return true;
        }
        is_taken(self.reduce(outbox, step, part, phase), from, message)
    }

    /// Whether all parts are started and summed.
    pub fn is_done(&self) -> bool {
        (0..self.parts.len()).all(|part| self.parts[part].started && self.is_summed(part))
    }

    /// Writes the mean over `data` if this part is summed, before all are: what was there is kept.
    /// Where a codec remembers what it has left out, nothing is done: that cannot be undone.
    pub fn finish_early(&mut self, outbox: &mut Outbox<'_>, part: usize, data: &mut [f32]) {
        let PartSum { way: Way::Plain { .. }, started: true, kept: None, .. } = &self.parts[part]
        else {
            return;
        };
        let alone = self.group.len() == 1;
        if !alone && self.is_summed(part) && !self.is_done() {
            self.parts[part].kept = Some(outbox.pool.copy(data));
            self.write(outbox, part, data);
        }
    }

    /// Gives back what was in `data` if a mean has been written over it early.
    pub fn undo(&mut self, part: usize, data: &mut [f32]) {
        if let Some(kept) = self.parts[part].kept.take() {
            data.copy_from_slice(&kept);
        }
    }

    /// The average is over: writes the mean over `data`, unless it is there.
    pub fn finish(&mut self, outbox: &mut Outbox<'_>, part: usize, data: &mut [f32]) {
        self.parts[part].started = false;
        if self.parts[part].kept.take().is_none() {
            self.write(outbox, part, data);
        }
    }

    /// Writes the mean over `data`, and lets go of the sum.
    fn write(&mut self, outbox: &mut Outbox<'_>, part: usize, data: &mut [f32]) {
        let scale = 1.0 / self.group.len() as f32;
        let label = self.label(self.step, part, 0);
        let sum = self.running.remove(&(self.step, part, self.last_phase(part)));
        let own = std::mem::take(&mut self.parts[part].under_way);
        match (sum.expect("the part was started"), own) {
            (Sum::Gather(fold), UnderWay::Offered { own, .. }) => {
                self.memories[part].feedback.commit(outbox.coder, data, &own);
                vector::scaled(scale, &fold.into_sum().0, data);
            }
            (Sum::Reduce(mut sum), UnderWay::Offered { own, kept }) => {
                self.memories[part].feedback.commit(outbox.coder, data, &own);
                let mean = finished(outbox, &mut *sum, scale, &kept);
                outbox.coder.spread(Coder::place(outbox.rank, &label.bare(0), 0), &mean, data);
            }
            (Sum::Reduce(mut sum), UnderWay::Factors(factors)) => {
                let mean = finished(outbox, &mut *sum, scale, factors.second());
                let Way::LowRank(cut) = &self.parts[part].way else { return };
                factors.end(cut, &mut self.memories[part].factors, &mean, data);
            }
            (Sum::Reduce(mut sum), UnderWay::Lent) => sum.finish(scale, data),
            (Sum::Gather(_), _) => unreachable!("what is gathered was offered"),
        }
    }

    /// All who take part but me, by rank.
    pub fn others(&self) -> Vec<Rank> {
        let me = self.group.members.get(self.group.me);
        self.group.members.iter().filter(|rank| Some(*rank) != me).copied().collect()
    }

    /// Whom it is waiting for.
    pub fn awaiting(&self, out: &mut Vec<Awaited>) {
        for ((step, part, _), sum) in &self.running {
            match sum {
                Sum::Reduce(sum) if !sum.is_done() => sum.awaiting(out),
                Sum::Gather(fold) if self.has_started(*step, *part) => {
                    let missing = fold.missing(&self.group.members).into_iter();
                    out.extend(missing.map(|from| Awaited { from, what: "its encoded vector" }));
                }
                _ => {}
            }
        }
    }

    /// Lists what it remembers between averages.
    pub fn state(&mut self, visitor: &mut dyn Visitor) {
        let mut count = self.memories.len() as u64;
        visitor.number("average.parts", &mut count);
        self.memories.resize_with(count as usize, Remembered::default);
        for (part, memory) in self.memories.iter_mut().enumerate() {
            memory.state(part, visitor);
        }
    }

    fn label(&self, step: u64, part: usize, phase: u64) -> Label {
        let rounds = matches!(self.parts[part].way, Way::Plain { rounds: true });
        Label { kind: REDUCE, step, bucket: part, phase, rounds }
    }

    /// Sends to all others, each rank beginning with the one after it.
    fn to_all(&self, outbox: &mut Outbox<'_>, message: &Message) {
        let (n, me) = (self.group.len(), self.group.me);
        for offset in 1..n {
            outbox.send(self.group.members[(me + offset) % n], message.clone());
        }
    }

    fn reduce(
        &mut self,
        outbox: &Outbox<'_>,
        step: u64,
        part: usize,
        phase: u64,
    ) -> &mut dyn AllReduce {
        let len = match &self.parts[part].way {
            Way::Shared => outbox.coder.kept_len(self.parts[part].len),
            Way::LowRank(cut) if phase == 0 => cut.first_len(),
            Way::LowRank(cut) => cut.second_len(),
            Way::Plain { .. } | Way::Own => self.parts[part].len,
        };
        let label = self.label(step, part, phase);
        let (group, build) = (&self.group, self.collective.build);
        let new = || Sum::Reduce(build(Arc::clone(group), label, len));
        match self.running.entry((step, part, phase)).or_insert_with(new) {
            Sum::Reduce(sum) => sum.as_mut(),
            Sum::Gather(_) => unreachable!("a part goes one way"),
        }
    }

    fn gather(&mut self, step: u64, part: usize) -> &mut Fold {
        let new = || Sum::Gather(Fold::default());
        match self.running.entry((step, part, 0)).or_insert_with(new) {
            Sum::Gather(fold) => fold,
            Sum::Reduce(_) => unreachable!("a part goes one way"),
        }
    }

    fn last_phase(&self, part: usize) -> u64 {
        u64::from(matches!(self.parts[part].way, Way::LowRank(_)))
    }

    fn is_summed(&self, part: usize) -> bool {
        if self.parts[part].kept.is_some() {
            return true;
        }
        match self.running.get(&(self.step, part, self.last_phase(part))) {
            Some(Sum::Reduce(sum)) => sum.is_done(),
            Some(Sum::Gather(fold)) => fold.len() == self.group.len(),
            None => false,
        }
    }

    /// Starts the second sum over thin factors when the first is there.
    fn turn(&mut self, outbox: &mut Outbox<'_>, part: usize) {
        let first = (self.step, part, 0);
        let done = matches!(self.running.get(&first), Some(Sum::Reduce(sum)) if sum.is_done());
        let (Way::LowRank(_), true) = (&self.parts[part].way, done) else { return };
        let Some(Sum::Reduce(mut sum)) = self.running.remove(&first) else { return };
        let under_way = std::mem::take(&mut self.parts[part].under_way);
        let (UnderWay::Factors(mut factors), Way::LowRank(cut)) =
            (under_way, &self.parts[part].way)
        else {
            return;
        };
        let scale = 1.0 / self.group.len() as f32;
        let mean = finished(outbox, &mut *sum, scale, factors.first());
        factors.turn(cut, &mean, outbox.pool);
        self.reduce(outbox, self.step, part, 1).start(outbox, factors.second());
        self.parts[part].under_way = UnderWay::Factors(factors);
    }
}

/// `scale ×` the sum, where `data` is what this rank put into it.
fn finished(outbox: &Outbox<'_>, sum: &mut dyn AllReduce, scale: f32, data: &[f32]) -> Payload {
    let mut mean = outbox.pool.copy(data);
    sum.finish(scale, mean.try_mut().expect("just taken, so held by nobody else"));
    mean
}
