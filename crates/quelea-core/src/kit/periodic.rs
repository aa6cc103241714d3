//! Rounds of local steps that end with an exact average: the worker of Local SGD, SlowMo, BMUF,
//! DiLoCo, Gossip-PGA and Gossip-AGA.
//!
//! ```text
//! upon bucket b of g:              x_i[b] ← x_i[b] − η·Opt(g[b])
//!     if this step ends the round: start the average of x_i[b]
//!     else, where there is gossip: x_i[b] ← Σ_j W_ij x_j[b] over the neighbours
//! upon all buckets averaged:       a = Σ_i x_i / n;   x₀ ← Outer(x₀, a);   x_i ← x₀
//! upon a lost worker:              send the others the rounds that I have finished
//!     if one of them is ahead:     it sends me x₀ and the outer state; they are my average
//!     else:                        start the average again from the kept x_i
//! ```
//! Between averages a worker waits for its neighbours at most. A worker that has not finished
//! an average when others have is waiting in it, so their result is what it lacks.

mod entries;
mod outer;
mod parts;
mod period;
mod rounds;

use std::ops::Range;

use super::exchange::Exchange;
use crate::codec::CodecShape;
use crate::collectives::average::{Average, REDUCE};
use crate::contract::{Algorithm, Awaited, Context, JoinRule, Mode};
use crate::message::{Message, Rank};
use crate::options::Options;
use crate::state::Visitor;
use crate::vector;
use crate::view::View;
pub use entries::{
    BASE, BUFFERS, LOST_EITHER, LOST_NEIGHBOUR, LOST_PEER, RESIZED, SENDS, properties,
    properties_of_outer, traffic, traffic_of_outer, traffic_with_gossip,
};
pub use outer::{Outer, OuterRound, PlainAveraging, outer_step};
use parts::bucket;
pub use period::{Every, Period, period_key};
use rounds::{RESULT, ROUND, RoundComparison};

/// A neighbour's model; averages have kinds of their own.
const MODEL: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buffers {
    Keep,
    Reset,
    Average,
}

/// One worker of a method with periodic averages.
pub struct Periodic {
    period: Box<dyn Period>,
    outer: Box<dyn Outer>,
    buffers: Buffers,
    /// What happens on steps that do not end a round, if anything.
    gossip: Option<Exchange>,
    average: Average,
    /// Where this round began: x₀.
    start: Vec<f32>,
    /// The means of the period's numbers in the last average.
    numbers: Vec<f32>,
    /// Averages finished.
    round: u64,
    /// Whether this step ends the round.
    due: bool,
    /// Parts of the average that are ready for it.
    handed: Vec<bool>,
    /// The buckets of the model, and whether a codec may leave something out.
    ranges: Vec<Range<usize>>,
    coded: bool,
    /// Buckets that are not done with this step.
    remaining: usize,
    /// After a loss: who stands where.
    rounds: RoundComparison,
}

impl Periodic {
    /// With this period and outer rule. `options` must have [`BUFFERS`] and the options of an
    /// [average](crate::collectives::average).
    pub fn new(options: &Options, period: Box<dyn Period>, outer: Box<dyn Outer>) -> Periodic {
        let buffers = match options.text("buffers") {
            "keep" => Buffers::Keep,
            "reset" => Buffers::Reset,
            _ => Buffers::Average,
        };
        Periodic {
            period,
            outer,
            buffers,
            gossip: None,
            average: Average::new(options),
            start: Vec::new(),
            numbers: Vec::new(),
            round: 0,
            due: false,
            handed: Vec::new(),
            ranges: Vec::new(),
            coded: false,
            remaining: 0,
            rounds: RoundComparison::default(),
        }
    }

    /// With an outer optimizer over the base algorithm of these options, every `period` steps.
    pub fn with_outer(options: &Options, outer: Box<dyn Outer>) -> Periodic {
        let periodic = Periodic::new(options, Box::new(Every(options.whole("period"))), outer);
        match options.text(BASE.name) {
            "sgp" => periodic.with_gossip(),
            _ => periodic,
        }
    }

    /// With gossip on the steps that do not end a round.
    pub fn with_gossip(mut self) -> Periodic {
        self.gossip = Some(Exchange::of_means(MODEL));
        self
    }

    /// Parts of an average: the buckets of the model, those of the optimizer's vectors if they
    /// are averaged, the numbers of the period if there are any. Returns how many these are.
    fn enter(&mut self, cx: &mut Context<'_>) -> usize {
        let averaged = self.buffers == Buffers::Average;
        let vectors = if averaged { cx.optimizer.vectors().len() } else { 0 };
        let buckets = || cx.layout.buckets.iter().map(|bucket| bucket.range.len());
        let mut lens: Vec<usize> = (0..vectors).flat_map(|_| buckets()).collect();
        let numbers = self.period.numbers().len();
        lens.extend((numbers > 0).then_some(numbers));
        self.average.enter(cx, &lens);
        cx.layout.buckets.len() + lens.len()
    }

    /// Whether `part` is that of the period's numbers.
    fn is_numbers(&mut self, part: usize) -> bool {
        part + 1 == self.handed.len() && !self.period.numbers().is_empty()
    }

    fn hand(&mut self, cx: &mut Context<'_>, part: usize) {
        self.handed[part] = true;
        if let Some(range) = self.relative(part) {
            vector::axpy(-1.0, &self.start[range.clone()], &mut cx.params[range]);
        }
        if !self.rounds.is_running() {
            self.start(cx, part);
        }
    }

    /// Where a codec may leave something out, buckets of the model travel as what they have moved
    /// since the round began: that is small, and x₀ is known to all.
    fn relative(&self, part: usize) -> Option<Range<usize>> {
        self.ranges.get(part).filter(|_| self.coded).cloned()
    }

    fn start(&mut self, cx: &mut Context<'_>, part: usize) {
        let numbers = self.is_numbers(part);
        let data = if numbers {
            self.period.numbers()
        } else {
            bucket(part, cx.layout, cx.params, cx.optimizer)
        };
        self.average.start(&mut cx.outbox, cx.step, part, data);
        self.finish_if_done(cx);
    }

    fn finish_if_done(&mut self, cx: &mut Context<'_>) {
        if !self.average.is_done() {
            return;
        }
        for part in 0..self.handed.len() {
            let numbers = self.is_numbers(part);
            let data = if numbers {
                self.period.numbers()
            } else {
                bucket(part, cx.layout, cx.params, cx.optimizer)
            };
            self.average.finish(&mut cx.outbox, part, data);
            if let Some(range) = self.relative(part) {
                vector::add(&self.start[range.clone()], &mut cx.params[range]);
            }
        }
        let round =
            OuterRound { learning_rate: cx.learning_rate, workers: cx.outbox.view.workers.len() };
        self.outer.step(round, &mut self.start, cx.params);
        self.enter_round(cx);
    }

    fn enter_round(&mut self, cx: &mut Context<'_>) {
        if self.buffers == Buffers::Reset {
            cx.optimizer.vectors().into_iter().for_each(|vector| vector.fill(0.0));
        }
        self.numbers = self.period.numbers().to_vec();
        self.period.on_average();
        self.handed.fill(false);
        self.round += 1;
        self.remaining = 0;
        self.due = false;
    }

    /// When all rounds are known, workers that are behind receive the result; the rest continue.
    fn compare(&mut self, cx: &mut Context<'_>) {
        let Some(behind) = self.rounds.conclude(cx, self.round) else { return };
        if !behind.is_empty() {
            // Everything that the last average has changed and that all have in common.
            let mut parts =
                vec![cx.outbox.pool.copy(&self.start), cx.outbox.pool.copy(&self.numbers)];
            parts
                .extend(self.outer.vectors().into_iter().map(|vector| cx.outbox.pool.copy(vector)));
            RoundComparison::help(cx, &behind, &parts);
        }
        let handed = (0..self.handed.len()).filter(|part| self.handed[*part]);
        handed.collect::<Vec<_>>().into_iter().for_each(|part| self.start(cx, part));
    }

    /// The lengths of the parts that a result consists of: after a round, and as they are here.
    fn result_lens(&mut self) -> Vec<[usize; 2]> {
        let len = self.start.len();
        let here: Vec<usize> = self.outer.vectors().iter().map(|vector| vector.len()).collect();
        let outer = here.iter().enumerate().map(|(k, here)| [self.outer.vector_len(k, len), *here]);
        let numbers = self.period.numbers().len();
        [[len; 2], [numbers; 2]].into_iter().chain(outer).collect()
    }

    /// Takes over what others have made of the average that I am waiting in.
    fn take_result(&mut self, cx: &mut Context<'_>) {
        let total = self.result_lens().len();
        let Some(parts) = self.rounds.take_result(self.round, total) else { return };
        self.start.copy_from_slice(&parts[0]);
        cx.params.copy_from_slice(&parts[0]);
        self.period.numbers().copy_from_slice(&parts[1]);
        for (vector, part) in self.outer.vectors().into_iter().zip(&parts[2..]) {
            *vector = part.to_vec();
        }
        self.enter_round(cx);
    }

    /// `x_i[b] ← Σ_j W_ij x_j[b]`, once all neighbours' are here.
    fn mix(&mut self, cx: &mut Context<'_>, b: usize) {
        if let Some(gathered) = self.gossip.as_mut().and_then(|gossip| gossip.gather(&cx.outbox, b))
        {
            gathered.mix(&mut cx.outbox, 0, &mut cx.params[cx.layout.range(b)]);
            self.remaining -= 1;
        }
    }

    fn on_reduce(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let part = message.bucket as usize;
        let started = self.average.has_started(message.step, part);
        let numbers = self.is_numbers(part);
        let data = match (started, numbers) {
            (false, _) => &[],
            (true, true) => &*self.period.numbers(),
            (true, false) => bucket(part, cx.layout, cx.params, cx.optimizer),
        };
        self.average.on_message(&mut cx.outbox, data, from, message);
        if started {
            self.finish_if_done(cx);
        }
    }
}

impl Algorithm for Periodic {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        if self.start.is_empty() {
            self.start = cx.params.to_vec();
        }
        self.handed = vec![false; self.enter(cx)];
        self.ranges = cx.layout.buckets.iter().map(|bucket| bucket.range.clone()).collect();
        self.coded = cx.outbox.coder.shape() != CodecShape::Plain;
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        if b == 0 {
            self.remaining = cx.layout.buckets.len();
            self.due = self.period.is_due(cx);
            if let Some(gossip) = &mut self.gossip {
                gossip.begin(cx, cx.step);
            }
        }
        cx.optimize(b, Mode::Apply);
    }

    fn on_gradient(&mut self, cx: &mut Context<'_>) {
        self.period.on_loss(cx.loss);
        let last = self.handed.len() - 1;
        if self.due && self.is_numbers(last) {
            self.hand(cx, last);
        }
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        if self.due {
            let parts = (b..self.handed.len()).step_by(cx.layout.buckets.len());
            for part in parts.collect::<Vec<_>>() {
                if !self.is_numbers(part) {
                    self.hand(cx, part);
                }
            }
            return;
        }
        match &mut self.gossip {
            Some(gossip) => {
                gossip.wait(b);
                let message = Message::new(MODEL, cx.step, b).with(cx.params_payload(b));
                gossip.post(&mut cx.outbox, message);
                self.mix(cx, b);
            }
            None => self.remaining -= 1,
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let outdated = message.view < cx.outbox.view.number;
        match message.kind {
            REDUCE | ROUND | RESULT if outdated => {}
            REDUCE => self.on_reduce(cx, from, message),
            ROUND => {
                self.rounds.on_round(from, &message);
                self.take_result(cx);
                self.compare(cx);
            }
            RESULT => {
                let lens = self.result_lens();
                self.rounds.on_result(from, message, &lens);
                self.take_result(cx);
            }
            _ => {
                let gossip = self.gossip.as_mut();
                if let Some(b) = gossip.and_then(|gossip| gossip.on_message(cx, from, message)) {
                    self.mix(cx, b);
                }
            }
        }
    }

    fn on_view(&mut self, cx: &mut Context<'_>, _old: &View) {
        self.enter(cx);
        self.rounds.begin(cx, self.round);
        self.compare(cx);
        if let Some(gossip) = &mut self.gossip {
            gossip.on_view(cx);
            (0..cx.layout.buckets.len()).for_each(|b| self.mix(cx, b));
        }
    }

    fn is_ready(&self) -> bool {
        self.remaining == 0
    }

    /// Rounds, the model of the last average and outer momentum are the same at all workers.
    fn join_rule(&self) -> JoinRule {
        JoinRule::Whole
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        self.rounds.awaiting(&self.average.others(), out);
        self.average.awaiting(out);
        if let Some(gossip) = &self.gossip {
            gossip.awaiting("its model", out);
        }
    }

    fn model(&self, params: &[f32], out: &mut [f32]) {
        out.copy_from_slice(params);
        let handed = (0..self.ranges.len()).filter(|part| self.handed[*part]);
        for range in handed.filter_map(|part| self.relative(part)) {
            vector::add(&self.start[range.clone()], &mut out[range]);
        }
        if let Some((a, back)) = self.outer.look_back() {
            vector::axpy(a, back, out);
        }
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        self.average.state(visitor);
        visitor.number("round", &mut self.round);
        visitor.vector("start", &mut self.start);
        visitor.vector("numbers", &mut self.numbers);
        for (slot, vector) in self.outer.vectors().into_iter().enumerate() {
            visitor.vector(&format!("outer.{slot}"), vector);
        }
        self.period.state(visitor);
    }

    /// Rounds are counted from the beginning, and all workers must count alike.
    fn can_be_replaced(&self) -> bool {
        false
    }

    /// Gossip must not lose what was sent in an older view; averages drop it by themselves.
    fn keeps_older_views(&self) -> bool {
        self.gossip.is_some()
    }
}
