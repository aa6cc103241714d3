//! The worker's side of ALADDIN; the pseudocode is in the parent module.

use super::{ACKNOWLEDGE, ANCHOR, MixOrder, PUSH};
use crate::codec::{CodecShape, ErrorFeedback};
use crate::contract::{Algorithm, Awaited, Context, Fact, Mode, Outbox, Piece};
use crate::message::{Message, Rank};
use crate::options::Options;
use crate::payload::Payload;
use crate::state::Visitor;
use crate::vector;
use crate::view::View;

/// One worker.
pub(super) struct Worker {
    alpha: f32,
    order: MixOrder,
    gradients: bool,
    track_mean: bool,
    /// The worker takes its own steps.
    self_update: bool,
    /// Per piece.
    lanes: Vec<Lane>,
    /// Buckets that are not done with this step.
    remaining: usize,
    draining: bool,
}

/// What a worker keeps for one piece.
#[derive(Debug, Default)]
struct Lane {
    server: Rank,
    /// The number of the last push, from 1.
    seq: u64,
    /// Whether it has not been acknowledged.
    unacknowledged: bool,
    /// What goes with the next push.
    folded: Option<Folded>,
    /// What the codec has left out of the pushes.
    left_out: ErrorFeedback,
    /// An anchor is due with the next push.
    anchor: bool,
    /// The newest model that has arrived and was not used.
    inbox: Option<(u64, Payload)>,
    /// The version that was used last.
    used: u64,
}

#[derive(Debug)]
struct Folded {
    values: Payload,
    gradients: u32,
    /// The learning rate of the gradients; 1 where displacements are sent.
    rate: f32,
}

impl Lane {
    /// The last push of a run with a codec: with all that was left out, exactly.
    fn last(&mut self, outbox: &mut Outbox<'_>, folded: Option<Folded>, len: usize) -> Payload {
        let rate = folded.as_ref().map(|folded| folded.rate);
        let mut values = folded.map_or_else(|| outbox.pool.take(len), |folded| folded.values);
        let out = values.try_mut().expect("folded values have not been sent");
        if rate.is_none() {
            out.fill(0.0);
        }
        self.left_out.at_rate(rate.unwrap_or(1.0));
        self.left_out.flush(out);
        values
    }
}

impl Worker {
    pub(super) fn new(options: &Options) -> Worker {
        Worker {
            alpha: options.real("alpha") as f32,
            order: MixOrder::new(options),
            gradients: options.text("payload") == "gradient",
            track_mean: options.flag("track_mean"),
            self_update: options.flag("self_update"),
            lanes: Vec::new(),
            remaining: 0,
            draining: false,
        }
    }

    fn step(&mut self, cx: &mut Context<'_>, b: usize) {
        if self.gradients {
            self.fold_bucket(cx, b);
        }
        let mode = if self.self_update { self.order.mode() } else { Mode::Displace };
        cx.optimize(b, mode);
    }

    /// Folds what `cx.grad` holds for bucket `b`: a gradient, or the displacement made of it.
    fn fold_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        let grad = std::mem::take(&mut cx.grad);
        for piece in &cx.pieces[b] {
            self.fold(cx, piece, &grad[piece.range.clone()], 1);
        }
        cx.grad = grad;
    }

    /// Adds `values` of one gradient to what goes with the next push.
    fn fold(&mut self, cx: &mut Context<'_>, piece: &Piece, values: &[f32], gradients: u32) {
        let rate = if self.gradients { cx.learning_rate } else { 1.0 };
        let lane = &mut self.lanes[piece.index];
        let Some(folded) = &mut lane.folded else {
            lane.folded = Some(Folded { values: cx.outbox.pool.copy(values), gradients, rate });
            return;
        };
        folded.gradients += gradients;
        let sum = folded.values.try_mut().expect("folded values have not been sent");
        if rate == folded.rate {
            vector::add(values, sum);
        } else if rate != 0.0 {
            // The server multiplies by one rate: bring the older gradients to the new one.
            vector::scale(folded.rate / rate, sum);
            vector::add(values, sum);
            folded.rate = rate;
        }
    }

    /// Pushes what is folded, unless the last push is still on its way.
    fn push(&mut self, cx: &mut Context<'_>, b: usize, piece: &Piece) {
        let lane = &mut self.lanes[piece.index];
        if lane.unacknowledged {
            return;
        }
        // An anchor needs the parameters, which are elsewhere while a gradient is computed.
        if lane.anchor && cx.computing {
            return;
        }
        let owes = self.draining && !lane.left_out.error().is_empty();
        if !lane.anchor && lane.folded.is_none() && !owes {
            return;
        }
        let folded = lane.folded.take();
        let kind = if lane.anchor { ANCHOR } else { PUSH };
        let mut message = Message::new(kind, cx.step, b);
        message.count = folded.as_ref().map_or(0, |folded| folded.gradients);
        message.scalar = folded.as_ref().map_or(1.0, |folded| f64::from(folded.rate));
        let message = if lane.anchor {
            // Whatever the server lacks is contained in the whole model.
            lane.left_out = ErrorFeedback::default();
            message.with(cx.outbox.pool.copy(&cx.params[piece.range.clone()]))
        } else if owes {
            message.with(lane.last(&mut cx.outbox, folded, piece.range.len()))
        } else {
            let folded = folded.expect("there is nothing else to send");
            lane.left_out.at_rate(folded.rate);
            match cx.outbox.coder.shape() {
                CodecShape::Plain => message.with(folded.values),
                _ => lane.left_out.load(&mut cx.outbox, message, &folded.values),
            }
        };
        lane.anchor = false;
        lane.seq += 1;
        let mut message = message;
        lane.unacknowledged = true;
        message.seq = lane.seq;
        if piece.index == 0 && message.count > 0 {
            cx.outbox.measure(Fact::Folded(message.count));
        }
        cx.outbox.send(piece.server, message);
    }

    /// `x_i ← x_i + α(x̃ − x_i)`, if a model has arrived.
    fn mix(&mut self, cx: &mut Context<'_>, piece: &Piece) {
        let lane = &mut self.lanes[piece.index];
        let Some((version, model)) = lane.inbox.take() else { return };
        lane.used = version;
        let params = &mut cx.params[piece.range.clone()];
        if !self.track_mean {
            return vector::lerp(self.alpha, &model, params);
        }
        let mut moved = cx.outbox.pool.copy(params);
        vector::lerp(self.alpha, &model, params);
        let displacement = moved.try_mut().expect("just taken, so held by nobody else");
        vector::axpy(-1.0, params, displacement);
        self.fold(cx, piece, &moved, 0);
    }

    fn exchange(&mut self, cx: &mut Context<'_>, b: usize) {
        for piece in &cx.pieces[b] {
            self.push(cx, b, piece);
            if self.order == MixOrder::StepThenMix {
                self.mix(cx, piece);
            }
        }
        self.remaining -= 1;
    }

    /// `x_i ← x_i + α(x̃ − x_i) − Δ`, where mixing comes first.
    fn mix_then_step(&mut self, cx: &mut Context<'_>, b: usize) {
        for piece in &cx.pieces[b] {
            self.mix(cx, piece);
            if !self.self_update {
                continue;
            }
            let range = piece.range.clone();
            vector::axpy(-1.0, &cx.grad[range.clone()], &mut cx.params[range]);
        }
    }
}

impl Algorithm for Worker {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.lanes.resize_with(cx.pieces.iter().map(Vec::len).sum(), Lane::default);
        for piece in cx.pieces.iter().flatten() {
            self.lanes[piece.index].server = piece.server;
        }
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        if b == 0 {
            self.remaining = cx.layout.buckets.len();
        }
        if cx.clip.is_none() {
            self.step(cx, b);
        }
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        if self.order == MixOrder::MixThenStep {
            self.mix_then_step(cx, b);
        }
        if !self.gradients {
            self.fold_bucket(cx, b);
        }
        self.exchange(cx, b);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let b = message.bucket as usize;
        let piece = cx.pieces.get(b).and_then(|p| p.iter().find(|piece| piece.server == from));
        let Some(piece) = piece else { return };
        let lane = &mut self.lanes[piece.index];
        if message.kind == ACKNOWLEDGE {
            if message.seq == lane.seq {
                lane.unacknowledged = false;
                self.push(cx, b, piece);
            }
            return;
        }
        let newest = lane.inbox.as_ref().map_or(lane.used, |(version, _)| *version);
        if message.seq > newest {
            lane.inbox = Some((message.seq, message.into_values()));
        }
    }

    /// With mean tracking, the survivors send the server their positions again.
    fn on_view(&mut self, cx: &mut Context<'_>, _old: &View) {
        if !self.track_mean {
            return;
        }
        self.lanes.iter_mut().for_each(|lane| lane.anchor = true);
        self.flush(cx);
    }

    fn on_gradient(&mut self, cx: &mut Context<'_>) {
        // What is sent as it is has to be clipped before it is sent.
        if let Some(limit) = cx.clip {
            vector::clip(f64::from(limit), cx.grad);
            (0..cx.layout.buckets.len()).for_each(|b| self.step(cx, b));
        }
        if self.lanes.iter().any(|lane| lane.anchor) {
            self.flush(cx);
        }
    }

    fn on_drain(&mut self, cx: &mut Context<'_>) {
        self.draining = true;
        self.flush(cx);
    }

    fn is_ready(&self) -> bool {
        self.remaining == 0
    }

    fn is_drained(&self) -> bool {
        let owes = |lane: &Lane| lane.folded.is_some() || !lane.left_out.error().is_empty();
        let open = |lane: &Lane| owes(lane) || lane.anchor || lane.unacknowledged;
        !self.lanes.iter().any(open)
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        for lane in &self.lanes {
            if self.draining && lane.unacknowledged {
                out.push(Awaited { from: lane.server, what: "an acknowledgement" });
            }
        }
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        let mut lanes = self.lanes.len() as u64;
        visitor.number("lanes", &mut lanes);
        self.lanes.resize_with(lanes as usize, Lane::default);
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            visitor.number(&format!("lane.{index}.seq"), &mut lane.seq);
            visitor.number(&format!("lane.{index}.used"), &mut lane.used);
            visitor.flag(&format!("lane.{index}.unacknowledged"), &mut lane.unacknowledged);
            visitor.flag(&format!("lane.{index}.anchor"), &mut lane.anchor);
            lane.left_out.state(&format!("lane.{index}.left_out"), visitor);
            let mut gradients =
                lane.folded.as_ref().map_or(0, |folded| u64::from(folded.gradients));
            let mut rate = lane.folded.as_ref().map_or(1.0, |folded| f64::from(folded.rate));
            let mut values = lane.folded.take().map(|folded| folded.values);
            let (mut version, mut model) = match lane.inbox.take() {
                Some((version, model)) => (version, Some(model)),
                None => (0, None),
            };
            visitor.number(&format!("lane.{index}.version"), &mut version);
            visitor.payload(&format!("lane.{index}.inbox"), &mut model);
            lane.inbox = model.map(|model| (version, model));
            visitor.number(&format!("lane.{index}.gradients"), &mut gradients);
            visitor.real(&format!("lane.{index}.rate"), &mut rate);
            visitor.payload(&format!("lane.{index}.folded"), &mut values);
            lane.folded = values.map(|values| Folded {
                values,
                gradients: gradients as u32,
                rate: rate as f32,
            });
        }
    }

    /// The ledger must not lose what was sent in an older view.
    fn keeps_older_views(&self) -> bool {
        true
    }
}

impl Worker {
    fn flush(&mut self, cx: &mut Context<'_>) {
        for (b, pieces) in cx.pieces.iter().enumerate() {
            for piece in pieces {
                self.push(cx, b, piece);
            }
        }
    }
}
