//! Gradient tracking: every worker follows the mean gradient, not its own (DIGing, Nedić et al.
//! 2017; adapt-then-combine, Xu et al. 2015; push, for directed graphs).
//!
//! ```text
//! state: y_i (the tracker), g⁻_i (the gradient of the step before)
//! upon g[b] at x_i:      y_i[b] ← y_i[b] + g[b] − g⁻_i[b], at first g[b];   g⁻_i[b] ← g[b]
//!                        d ← η·Opt(y_i[b])
//! diging                 send (x_i, y_i)[b];      upon all:  x_i ← Σ_j W_ij x_j − d;   y_i ← Σ_j W_ij y_j
//! semi-atc               send (x_i − d, y_i)[b];  upon all:  x_i ← Σ_j W_ij (x_j − d_j);   y_i ← Σ_j W_ij y_j
//! atc                    mix y_i before d is taken; send (x_i − d)[b];   upon all:  x_i ← Σ_j W_ij (x_j − d_j)
//! push                   u_i: numerator, v_i: push-sum weight
//!                        u_i ← u_i − d;  send shares of (u_i, v_i, y_i)[b], keep the rest
//!                        upon all:  add them;   x_i ← u_i/v_i
//! upon a lost peer:      its weight goes to myself at once; at the agreed step y_i ← g_i (and v_i ← 1)
//! ```
//! Σ y_i = Σ g_i at every step. Two vectors that belong together travel in one message.

use super::{Codecs, Entry, Gathers, When};
use crate::contract::{Algorithm, Awaited, Context, Mode};
use crate::kit::exchange::{self, Exchange};
use crate::kit::push_sum::{self, PushSum};
use crate::message::{Message, Rank};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::properties::{Properties, TopologyRequirement};
use crate::state::Visitor;
use crate::vector;
use crate::view::View;

const READING: Properties =
    Properties { reads_gradient: true, reloadable: true, ..exchange::PROPERTIES };

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "gradient-tracking",
        summary: "tracks the mean gradient: the exact optimum on unequal data, over any topology",
        paper: "Nedić, Olshevsky and Shi 2017, arXiv:1607.03218 (DIGing, Push-DIGing); \
            Xu et al. 2015 (atc)",
        section: "Algorithm 1 (DIGing), Algorithm 2 (Push-DIGing); atc: Aug-DGM of Xu et al.",
        file: file!(),
        options: &[OptionSpec {
            name: "form",
            kind: OptionKind::Choice(&["diging", "semi-atc", "atc", "push"]),
            help: "what is mixed when; push takes directed and irregular graphs",
        }],
    },
    sends: "the model and the tracked gradient to every neighbour per step, in one message \
            (atc: one after the other)",
    lost_peer: "its weight goes to the receivers at once; at an agreed step the survivors' \
                trackers are reset from their own gradients, over the rebuilt topology",
    resized: "every worker begins with the mean of the models and of the optimizers; \
              trackers are reset from the workers' own gradients, push-sum weights at one",
    check: |_| Ok(()),
    codecs: |_| Codecs::Exact("it carries sums over all steps, in which every rounding would stay"),
    properties: |options| match options.text("form") {
        "push" => Properties { topology: TopologyRequirement::Edges, keeps_mean: false, ..READING },
        _ => READING,
    },
    traffic: |options| match options.text("form") {
        "push" => exchange::traffic(2, When::AfterGradient, Gathers::Vectors),
        _ => exchange::traffic(2, When::AfterGradient, Gathers::Means),
    },
    worker: |options| Box::new(GradientTracking::new(options)),
    server: None,
};

const MODEL: u8 = 1;
const TRACKER: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Diging,
    SemiAtc,
    Atc,
    Push,
}

/// One worker.
struct GradientTracking {
    form: Form,
    /// y.
    tracker: Vec<f32>,
    /// The gradient of the step before: the very one that was used, not one of another batch.
    gradient: Vec<f32>,
    /// The step at which tracking began.
    since: u64,
    /// In push form, where the parameters come from.
    mass: PushSum,
    models: Exchange,
    /// In atc form, trackers are mixed first.
    trackers: Exchange,
}

impl GradientTracking {
    fn new(options: &Options) -> GradientTracking {
        let form = match options.text("form") {
            "diging" => Form::Diging,
            "semi-atc" => Form::SemiAtc,
            "atc" => Form::Atc,
            _ => Form::Push,
        };
        let models =
            if form == Form::Push { Exchange::default() } else { Exchange::of_means(MODEL) };
        GradientTracking {
            form,
            tracker: Vec::new(),
            gradient: Vec::new(),
            since: u64::MAX,
            mass: PushSum::default(),
            models,
            trackers: Exchange::of_means(TRACKER),
        }
    }

    /// Follows the change of my gradient.
    fn track(&mut self, cx: &Context<'_>, b: usize) {
        let range = cx.range(b);
        let (tracker, gradient) =
            (&mut self.tracker[range.clone()], &mut self.gradient[range.clone()]);
        let new = &cx.grad[range];
        if self.since == cx.step {
            tracker.copy_from_slice(new);
        } else {
            vector::add_difference(1.0, new, gradient, tracker);
        }
        gradient.copy_from_slice(new);
    }

    /// The optimizer turns the tracked gradient into a displacement.
    fn follow(&mut self, cx: &mut Context<'_>, b: usize) {
        let range = cx.range(b);
        cx.grad[range.clone()].copy_from_slice(&self.tracker[range]);
        cx.optimize(b, Mode::Displace);
    }

    fn post(&mut self, cx: &mut Context<'_>, b: usize) {
        let mut message = Message::new(MODEL, cx.step, b);
        let pool = cx.outbox.pool;
        let tracker = &mut self.tracker[cx.layout.range(b)];
        let message = match self.form {
            Form::Atc => message.with(cx.params_payload(b)),
            Form::Push => {
                let receivers = cx.outbox.view.row(cx.step, cx.outbox.rank).outgoing.len();
                let (values, scalar) = self.mass.divide(cx, b, receivers);
                let tracker = push_sum::divide(&mut cx.outbox, tracker, receivers);
                message.scalar = scalar;
                message.with(values).and(tracker)
            }
            _ => message.with(cx.params_payload(b)).and(pool.copy(tracker)),
        };
        self.models.post(&mut cx.outbox, message);
    }

    fn advance_tracker(&mut self, cx: &mut Context<'_>, b: usize) {
        let Some(gathered) = self.trackers.gather(&cx.outbox, b) else { return };
        gathered.mix(&mut cx.outbox, 0, &mut self.tracker[cx.layout.range(b)]);
        self.follow(cx, b);
    }

    fn advance_model(&mut self, cx: &mut Context<'_>, b: usize) {
        let Some(gathered) = self.models.gather(&cx.outbox, b) else { return };
        let range = cx.range(b);
        let tracker = &mut self.tracker[range.clone()];
        if self.form == Form::Push {
            gathered.add(&mut cx.outbox, 1, tracker);
            self.mass.absorb(cx, b, &gathered);
            self.mass.show(cx, b);
            return self.models.finish();
        }
        let params = &mut cx.params[range.clone()];
        gathered.mix(&mut cx.outbox, 0, params);
        if self.form != Form::Atc {
            gathered.mix(&mut cx.outbox, 1, tracker);
        }
        if self.form == Form::Diging {
            vector::axpy(-1.0, &cx.grad[range], params);
        }
        self.models.finish();
    }
}

impl Algorithm for GradientTracking {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.tracker.resize(cx.params.len(), 0.0);
        self.gradient.resize(cx.params.len(), 0.0);
        self.since = self.since.min(cx.step);
        if self.form == Form::Push {
            self.mass.start(cx);
        }
        self.models.enter(cx, cx.step);
        self.trackers.enter(cx, cx.step);
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        if b == 0 {
            self.models.begin(cx, cx.step);
            self.trackers.enter(cx, cx.step);
        }
        if cx.outbox.view.changes_at(cx.step) {
            self.since = cx.step;
            if self.form == Form::Push {
                self.mass.restart(cx, b);
            }
        }
        self.track(cx, b);
        if self.form != Form::Atc || self.since == cx.step {
            return self.follow(cx, b);
        }
        let tracker = cx.outbox.pool.copy(&self.tracker[cx.range(b)]);
        let message = Message::new(TRACKER, cx.step, b).with(tracker);
        self.trackers.post(&mut cx.outbox, message);
        self.trackers.wait(b);
        self.advance_tracker(cx, b);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        let range = cx.range(b);
        match self.form {
            Form::Diging => {}
            Form::Push => self.mass.displace(cx, b),
            _ => vector::axpy(-1.0, &cx.grad[range.clone()], &mut cx.params[range]),
        }
        self.post(cx, b);
        self.models.wait(b);
        self.advance_model(cx, b);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        if message.kind & !exchange::PASSED == TRACKER {
            if let Some(b) = self.trackers.on_message(cx, from, message) {
                self.advance_tracker(cx, b);
            }
        } else if let Some(b) = self.models.on_message(cx, from, message) {
            self.advance_model(cx, b);
        }
    }

    fn on_view(&mut self, cx: &mut Context<'_>, _old: &View) {
        self.models.on_view(cx);
        self.trackers.on_view(cx);
        for b in 0..cx.layout.buckets.len() {
            self.advance_tracker(cx, b);
            self.advance_model(cx, b);
        }
    }

    fn is_ready(&self) -> bool {
        self.models.is_over()
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        self.trackers.awaiting("its tracked gradient", out);
        self.models.awaiting("its model", out);
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.vector("tracker", &mut self.tracker);
        visitor.vector("gradient", &mut self.gradient);
        visitor.number("since", &mut self.since);
        self.mass.state(visitor);
    }

    fn keeps_older_views(&self) -> bool {
        true
    }
}
