//! Lazily aggregated gradients: a worker sends its gradient only where it has changed enough.
//!
//! ```text
//! worker, upon g at x^k:   M ← ξ/(D·η²) · Σ_{d=1..D} ‖x^{k+1−d} − x^{k−d}‖²
//!     lazy = "gradient":   send g if ‖g − ĝ‖² > M                  ĝ, x̂: of the last g that was sent
//!     lazy = "parameters": send g if L²·‖x^k − x̂‖² > M, or if the last D steps sent none
//!     else:                send a message without a vector
//! server, upon such a one: the last gradient of that worker counts again
//! server, after a step:    send d = η·g, or a message without a vector if d is that of the last step
//! server and workers:      x ← x − d
//! ```
//!
//! `"gradient"` is LAG-WK (Chen, Giannakis, Sun, Yin 2018) with ξ_d = ξ/D: with plain SGD, M is ξ times
//! the mean square of the last D aggregated gradients, so that what is left out is smaller than the
//! step. It is meant for gradients over all data of a worker: noise of mini-batches looks like change.
//! `"parameters"` is the rule of LASG-PS (Chen, Sun, Yin 2020), which noise does not disturb; the workers,
//! who see the whole model, decide, and not the servers, who hold shards of it.
//!
//! The papers' servers keep the sum of all gradients and add differences. Here they keep the gradient
//! of every worker: sums have the bits of `sync-ps`, do not drift, and can do without a lost worker.
//! And they send the model at every step; here nothing has to be sent back where all workers are lazy.

use std::collections::{BTreeMap, VecDeque};

use crate::contract::Context;
use crate::message::{Message, Part, Rank};
use crate::options::{OptionKind, OptionSpec, Options};
use crate::payload::Payload;
use crate::state::Visitor;
use crate::vector;
use crate::view::View;

pub(super) const LAZY: OptionSpec = OptionSpec {
    name: "lazy",
    kind: OptionKind::Choice(&["never", "gradient", "parameters"]),
    help: "when a worker lets the servers use its last gradient again: never, while its gradient has \
           changed little (LAG-WK), or while the model has moved little (LASG-PS)",
};

pub(super) const THRESHOLD: OptionSpec = OptionSpec {
    name: "lazy_threshold",
    kind: OptionKind::Real { default: 1.0, min: 0.0, max: 1e6 },
    help: "ξ: how large a change is too large, in mean squares of the last steps of the model over \
           the learning rate; 0 sends every change",
};

pub(super) const WINDOW: OptionSpec = OptionSpec {
    name: "lazy_window",
    kind: OptionKind::Whole { default: 10, min: 1, max: 1 << 16 },
    help: "D: how many steps of the model are looked at",
};

pub(super) const SMOOTHNESS: OptionSpec = OptionSpec {
    name: "lazy_smoothness",
    kind: OptionKind::Real { default: 1.0, min: f64::MIN_POSITIVE, max: 1e12 },
    help: "L of `lazy` = \"parameters\": how fast gradients change with the model at most",
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LazyRule {
    Gradient,
    Parameters,
}

/// What a worker remembers to decide.
#[derive(Debug)]
pub(super) struct LazyUploads {
    rule: LazyRule,
    threshold: f64,
    window: usize,
    smoothness: f64,
    /// ĝ, or x̂; empty before the first upload.
    last: Vec<f32>,
    /// Steps since the last upload.
    age: u64,
    /// ‖x^{k+1} − x^k‖² of the last steps, oldest first.
    moves: VecDeque<f64>,
    /// The last displacement of every piece, which may come to be repeated.
    repeated: BTreeMap<usize, Payload>,
}

impl LazyUploads {
    /// What the options say, if anything may be left out.
    pub(super) fn of(options: &Options) -> Option<LazyUploads> {
        let rule = match options.text(LAZY.name) {
            "gradient" => LazyRule::Gradient,
            "parameters" => LazyRule::Parameters,
            _ => return None,
        };
        Some(LazyUploads {
            rule,
            threshold: options.real(THRESHOLD.name),
            window: options.whole(WINDOW.name) as usize,
            smoothness: options.real(SMOOTHNESS.name),
            last: Vec::new(),
            age: 0,
            moves: VecDeque::new(),
            repeated: BTreeMap::new(),
        })
    }

    /// Whether the gradient that is complete now must be sent; if so, it is remembered.
    pub(super) fn needs_upload(&mut self, cx: &Context<'_>) -> bool {
        let now: &[f32] = match self.rule {
            LazyRule::Gradient => cx.grad,
            LazyRule::Parameters => cx.params,
        };
        self.age += 1;
        if !self.last.is_empty() {
            let change = squared_distance(now, &self.last);
            let rate = f64::from(cx.learning_rate);
            let moved: f64 = self.moves.iter().sum();
            let allowed = self.threshold * moved / (self.window as f64 * rate * rate);
            let is_lazy = match self.rule {
                LazyRule::Gradient => change <= allowed,
                LazyRule::Parameters => {
                    let is_young = self.age <= self.window as u64;
                    is_young && self.smoothness * self.smoothness * change <= allowed
                }
            };
            if is_lazy {
                return false;
            }
        }
        self.age = 0;
        self.last.clear();
        self.last.extend_from_slice(now);
        true
    }

    /// How far a piece moves, if `values` came for it.
    pub(super) fn displacement(&mut self, piece: usize, values: &Payload) -> &[f32] {
        if !values.is_empty() {
            self.repeated.insert(piece, values.clone());
        }
        self.repeated.get(&piece).expect("a server sends a displacement before it repeats it")
    }

    /// The model has taken a step with this squared norm.
    pub(super) fn has_moved(&mut self, squared: f64) {
        self.moves.push_back(squared);
        if self.moves.len() > self.window {
            self.moves.pop_front();
        }
    }

    pub(super) fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.vector("lazy.last", &mut self.last);
        visitor.number("lazy.age", &mut self.age);
        let mut moves: Vec<u64> = self.moves.iter().map(|squared| squared.to_bits()).collect();
        visitor.numbers("lazy.moves", &mut moves);
        self.moves = moves.into_iter().map(f64::from_bits).collect();
    }
}

/// What a server keeps to go without messages.
#[derive(Debug, Default)]
pub(super) struct KeptGradients {
    /// The last gradient of every worker, over the whole shard.
    gradients: BTreeMap<Rank, Vec<f32>>,
    /// The last displacement, by bucket; workers that start or join do not have it.
    sent: BTreeMap<usize, Payload>,
}

impl KeptGradients {
    /// `message` with the gradient that it stands for.
    pub(super) fn completed(
        &mut self,
        cx: &Context<'_>,
        from: Rank,
        b: usize,
        message: Message,
    ) -> Message {
        let range = cx.layout.range(b);
        if matches!(message.parts[0], Part::Empty) {
            let kept = self.gradients.get(&from);
            let kept = kept.expect("a worker sends its first gradient before it leaves out others");
            return message.with(cx.outbox.pool.copy(&kept[range]));
        }
        message.expect_length(range.len());
        let kept = self.gradients.entry(from).or_insert_with(|| vec![0.0; cx.layout.len()]);
        if let Part::Values(values) = &message.parts[0] {
            kept[range].copy_from_slice(values);
        }
        message
    }

    /// Moves the model by the displacement, and puts that into `message` unless it is the last one.
    pub(super) fn answer(&mut self, cx: &mut Context<'_>, b: usize, message: Message) -> Message {
        let range = cx.range(b);
        let displacement = &cx.grad[range.clone()];
        vector::axpy(-1.0, displacement, &mut cx.params[range]);
        if self.sent.get(&b).is_some_and(|sent| **sent == *displacement) {
            return message;
        }
        let copy = cx.outbox.pool.copy(displacement);
        self.sent.insert(b, copy.clone());
        message.with(copy)
    }

    /// One that joins in the place of a lost worker sends its own gradient first, and has seen no
    /// displacement.
    pub(super) fn on_view(&mut self, view: &View) {
        self.gradients.retain(|worker, _| view.is_alive(*worker));
        self.sent.clear();
    }

    pub(super) fn state(&mut self, visitor: &mut dyn Visitor) {
        let mut ranks: Vec<u64> = self.gradients.keys().map(|rank| rank.0.into()).collect();
        visitor.numbers("kept", &mut ranks);
        for rank in ranks {
            let kept = self.gradients.entry(Rank(rank as u32)).or_default();
            visitor.vector(&format!("kept.{rank}"), kept);
        }
    }
}

/// `‖x − y‖²`, summed in order.
fn squared_distance(x: &[f32], y: &[f32]) -> f64 {
    let difference = |(x, y): (&f32, &f32)| f64::from(*x) - f64::from(*y);
    x.iter().zip(y).map(difference).map(|difference| difference * difference).sum()
}
