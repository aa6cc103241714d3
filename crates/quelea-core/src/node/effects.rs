//! Runs an event, and carries out what the algorithm asks for in it.

use super::{Node, Phase};
use crate::contract::{Algorithm, Context, Effect, Mode, Outbox, VectorMemory};
use crate::optim::At;
use crate::time::Time;
use crate::vector;

impl Node {
    /// Runs one event, then everything that follows from it at once.
    pub(super) fn event(
        &mut self,
        now: Time,
        handle: impl FnOnce(&mut dyn Algorithm, &mut Context<'_>),
    ) {
        self.call(now, handle);
        // Most events lead to nothing.
        if !self.effects.is_empty() {
            self.carry_out_all(now);
        }
        let after = match self.phase {
            Phase::Exchanging => Phase::Idle,
            Phase::Draining { exchanging: true } => Phase::Draining { exchanging: false },
            _ => return,
        };
        if self.algorithm.is_ready() {
            self.phase = after;
            self.step += 1;
        }
    }

    fn carry_out_all(&mut self, now: Time) {
        self.queue.extend(self.effects.drain(..));
        while let Some(effect) = self.queue.pop_front() {
            self.carry_out(now, effect);
            // What an optimized bucket leads to comes before what was asked for after it.
            for effect in self.effects.drain(..).rev() {
                self.queue.push_front(effect);
            }
        }
    }

    fn call(&mut self, now: Time, handle: impl FnOnce(&mut dyn Algorithm, &mut Context<'_>)) {
        let (visible, visible_params) = (self.visible(), self.visible_params());
        let learning_rate = self.rate_of(self.step);
        // SAFETY: what is visible is this node's, and the context is the only way to it while the
        // event is handled.
        let (params, grad) =
            unsafe { (self.params.slice_mut(0..visible_params), self.grad.slice_mut(0..visible)) };
        let mut cx = Context {
            outbox: Outbox {
                now,
                origin: self.origin,
                rank: self.rank,
                view: &self.view,
                pool: &self.pool,
                coder: &mut self.coder,
                rng: &mut self.rng,
                out: &mut self.effects,
            },
            step: self.step,
            steps: self.steps,
            computing: self.phase == Phase::Computing,
            loss: self.computed.loss,
            samples: self.computed.samples,
            reweigh: self.reweigh,
            learning_rate,
            clip: self.clip.filter(|_| self.properties.clips_itself),
            params,
            grad,
            memory: VectorMemory { params: &self.params, grad: &self.grad },
            layout: &self.layout,
            pieces: &self.pieces,
            optimizer: &mut *self.optimizer,
        };
        handle(&mut *self.algorithm, &mut cx);
    }

    fn carry_out(&mut self, now: Time, effect: Effect) {
        match effect {
            Effect::Send { to, mut message } => {
                message.stamp(self.view.number, self.origin);
                self.out.push(Effect::Send { to, message });
            }
            Effect::Optimize { .. } if self.outside => self.out.push(effect),
            Effect::Optimize { bucket, mode, step } => match self.clip {
                Some(limit) if !self.properties.clips_itself => {
                    self.asked.push((bucket, mode, step));
                    if self.asked.len() == self.layout.buckets.len() {
                        // SAFETY: all buckets were handed over, and no event is being handled.
                        let grad = unsafe { self.grad.slice_mut(0..self.visible()) };
                        vector::clip(f64::from(limit), grad);
                        for (bucket, mode, step) in std::mem::take(&mut self.asked) {
                            self.optimize(now, bucket, mode, step);
                        }
                    }
                }
                _ => self.optimize(now, bucket, mode, step),
            },
            Effect::JumpToStep(step) => {
                self.step = step;
                // The step that was pending is not counted on top of the one that it jumps to.
                match self.phase {
                    Phase::Exchanging => self.phase = Phase::Idle,
                    Phase::Draining { .. } => self.phase = Phase::Draining { exchanging: false },
                    Phase::New | Phase::Idle | Phase::Computing => {}
                }
                self.optimized.fill(step);
                self.asked.clear();
            }
            Effect::Work { .. } | Effect::Measure(_) => self.out.push(effect),
        }
    }

    fn optimize(&mut self, now: Time, bucket: usize, mode: Mode, step: u64) {
        let at = At { step: self.optimized[bucket], learning_rate: self.rate_of(step) };
        self.optimized[bucket] += 1;
        let range = self.layout.range(bucket);
        let weight = if self.weighs_gradient() { 1.0 } else { self.share };
        assert!(range.end <= self.visible(), "only what was handed over is optimized");
        // SAFETY: the bucket was handed over, and no event is being handled.
        let (params, grad) =
            unsafe { (self.params.slice_mut(range.clone()), self.grad.slice_mut(range.clone())) };
        if mode == Mode::Apply && weight == 1.0 {
            self.optimizer.apply(at, range, params, grad);
        } else {
            self.optimizer.displace(at, range, params, grad);
            if weight != 1.0 {
                vector::scale(weight, grad);
            }
            if mode != Mode::Displace {
                vector::axpy(-1.0, grad, params);
            }
        }
        self.call(now, |algorithm, cx| algorithm.on_optimized(cx, bucket));
    }
}
