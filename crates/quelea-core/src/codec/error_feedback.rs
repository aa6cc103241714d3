//! Error feedback: what a codec left out is added to the next vector of the same lane.
//!
//! ```text
//! p = v + e;  send C(p);  e ← p − C(p)
//! ```
//!
//! `Σ sent + e = Σ v` up to rounding (Seide et al. 2014; Karimireddy et al. 2019). Keep `v` in
//! units of the parameters (`η·u`, not `u`), so that a change of the learning rate needs no
//! correction. It needs a codec with a contraction above 0; without bias alone it may diverge.

use super::{CodecShape, Coder, VectorId};
use crate::contract::Outbox;
use crate::message::{Message, Part};
use crate::payload::Pool;
use crate::state::Visitor;
use crate::vector;
use crate::vector::dispatch::{Level, kernel};

/// The error of one lane: one sender, one receiver or group of receivers, one range of the model.
///
/// A codec that is no contraction has none: its own lack of bias must do.
#[derive(Clone, Debug, Default)]
pub struct ErrorFeedback {
    error: Vec<f32>,
    /// The learning rate that will multiply what is sent, where that is not done already.
    rate: f64,
}

impl ErrorFeedback {
    /// Packs `values` with what was left out before; afterwards `values` is what receivers
    /// decode, for the sender to use as they do.
    pub fn pack(
        &mut self,
        coder: &mut Coder,
        at: VectorId,
        values: &mut [f32],
        pool: &Pool,
    ) -> Part {
        if !coder.feeds_back(values.len()) {
            let part = coder.pack(at, values, pool);
            coder.read_back(at, &part, values);
            return part;
        }
        self.error.resize(values.len(), 0.0);
        vector::add(values, &mut self.error);
        let part = coder.pack(at, &self.error, pool);
        coder.read_back(at, &part, values);
        subtract(Level::best(), values, &mut self.error);
        part
    }

    /// `message` with `values` as its vector: as they are, or packed where the run has a codec.
    pub fn load(
        &mut self,
        outbox: &mut Outbox<'_>,
        mut message: Message,
        values: &[f32],
    ) -> Message {
        let mut copy = outbox.pool.copy(values);
        if outbox.coder.shape() == CodecShape::Plain {
            return message.with(copy);
        }
        let at = Coder::place(outbox.rank, &message, 0);
        let values = copy.try_mut().expect("just taken, so held by nobody else");
        message.parts[0] = self.pack(outbox.coder, at, values, outbox.pool);
        message
    }

    /// As [`pack`](ErrorFeedback::pack), but nothing is remembered before
    /// [`commit`](ErrorFeedback::commit): what is offered may have to be offered again.
    pub fn offer(&self, coder: &mut Coder, at: VectorId, values: &mut [f32], pool: &Pool) -> Part {
        if coder.feeds_back(values.len()) && !self.error.is_empty() {
            vector::add(&self.error, values);
        }
        let part = coder.pack(at, values, pool);
        coder.read_back(at, &part, values);
        part
    }

    /// What is sent will be multiplied by this learning rate: what is left from another one is
    /// converted, so that it moves the parameters as far as it would have.
    pub fn at_rate(&mut self, rate: f32) {
        convert(&mut self.rate, rate, &mut self.error);
    }

    /// What has been left out so far; nothing at first.
    pub fn error(&self) -> &[f32] {
        &self.error
    }

    /// Adds what was left out to `values` and forgets it: for a last, exact message.
    pub fn flush(&mut self, values: &mut [f32]) {
        if !self.error.is_empty() {
            vector::add(&self.error, values);
            self.error.clear();
        }
    }

    /// Remembers what remains of `values` when `sent` has arrived: `e ← values + e − sent`.
    pub fn commit(&mut self, coder: &Coder, values: &[f32], sent: &[f32]) {
        if !coder.feeds_back(values.len()) {
            return;
        }
        self.error.resize(values.len(), 0.0);
        vector::add(values, &mut self.error);
        subtract(Level::best(), sent, &mut self.error);
    }

    /// Shows its state to `visitor`, as part of an algorithm's.
    pub fn state(&mut self, name: &str, visitor: &mut dyn Visitor) {
        visitor.vector(name, &mut self.error);
        if !self.error.is_empty() {
            visitor.real(&format!("{name}.rate"), &mut self.rate);
        }
    }
}

/// Brings `error` from the learning rate `held` to `rate`; 0 is no rate, and converts nothing.
pub fn convert(held: &mut f64, rate: f32, error: &mut [f32]) {
    let rate = f64::from(rate);
    if rate > 0.0 {
        if *held > 0.0 && *held != rate {
            vector::scale((*held / rate) as f32, error);
        }
        *held = rate;
    }
}

kernel! {
    /// `error ← error − sent`; an element that is not finite starts again from 0, or one bad
    /// gradient would be sent for ever.
    fn subtract(sent: &[f32], error: &mut [f32]) {
        for (error, sent) in error.iter_mut().zip(sent) {
            let left = *error - sent;
            *error = if left.is_finite() { left } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{CODECS, Entry};
    use crate::options::Options;
    use crate::random::Rng;

    fn coder(entry: &Entry) -> Coder {
        Coder::new(entry, &Options::defaults(entry.meta.options), 1)
    }

    fn at(step: u64) -> VectorId {
        VectorId { step, ..VectorId::default() }
    }

    #[test]
    fn what_was_sent_and_what_is_left_is_all_there_was() {
        let (len, pool) = (300, Pool::new());
        for entry in CODECS {
            let (mut coder, mut lane) = (coder(entry), ErrorFeedback::default());
            let (mut given, mut sent) = (vec![0.0f64; len], vec![0.0f64; len]);
            let mut rng = Rng::new(2, entry.meta.name, 0);
            for step in 0..200 {
                let mut values: Vec<f32> = (0..len).map(|_| rng.normal() as f32).collect();
                given.iter_mut().zip(&values).for_each(|(sum, x)| *sum += f64::from(*x));
                lane.pack(&mut coder, at(step), &mut values, &pool);
                sent.iter_mut().zip(&values).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            if !coder.feeds_back(len) {
                assert!(lane.error().is_empty(), "{} has none", entry.meta.name);
                continue;
            }
            for ((given, sent), error) in given.iter().zip(&sent).zip(lane.error()) {
                let left = given - sent;
                assert!(
                    (left - f64::from(*error)).abs() < 1e-3,
                    "{}: {left} {error}",
                    entry.meta.name
                );
            }
            let mut last = vec![0.0; len];
            lane.flush(&mut last);
            assert!(lane.error().is_empty());
        }
    }

    #[test]
    fn error_stays_bounded_under_a_contraction() {
        // ‖e‖ ≤ 2·√(1 − δ)/δ·G (Karimireddy et al. 2019, Lemma 3), with G the largest norm.
        let (len, pool) = (200, Pool::new());
        for name in ["top-k", "random-k", "sign"] {
            let entry = crate::codec::find(name).expect("in the table");
            let delta = entry.properties(&Options::defaults(entry.meta.options), len).contraction;
            let (mut coder, mut lane) = (coder(entry), ErrorFeedback::default());
            let (mut rng, mut largest) = (Rng::new(4, name, 0), 0.0f64);
            for step in 0..2000 {
                let mut values: Vec<f32> = (0..len).map(|_| rng.normal() as f32).collect();
                largest = largest.max(vector::norm(&values));
                lane.pack(&mut coder, at(step), &mut values, &pool);
                let bound = 2.0 * (1.0 - delta).sqrt() / delta * largest;
                assert!(vector::norm(lane.error()) <= bound, "{name} at step {step}");
            }
        }
    }

    #[test]
    fn one_bad_gradient_does_not_spoil_the_lane() {
        let pool = Pool::new();
        for entry in CODECS {
            let (mut coder, mut lane) = (coder(entry), ErrorFeedback::default());
            let mut bad = [f32::NAN, f32::INFINITY, 1.0, 2.0];
            lane.pack(&mut coder, at(0), &mut bad, &pool);
            assert!(lane.error().iter().all(|error| error.is_finite()), "{}", entry.meta.name);
            let mut good = [1.0, 2.0, 3.0, 4.0];
            lane.pack(&mut coder, at(1), &mut good, &pool);
            assert!(good.iter().all(|sent| sent.is_finite()), "{}", entry.meta.name);
        }
    }

    #[test]
    fn what_is_left_out_moves_the_model_as_far_at_another_learning_rate() {
        let entry = crate::codec::find("top-k").expect("in the table");
        let (mut coder, mut lane) = (coder(entry), ErrorFeedback::default());
        lane.at_rate(0.1);
        lane.pack(&mut coder, at(0), &mut [8.0, 2.0], &Pool::new());
        assert_eq!(lane.error(), [0.0, 2.0]);
        lane.at_rate(0.05);
        assert_eq!(lane.error(), [0.0, 4.0]);
        lane.at_rate(0.0);
        lane.at_rate(0.1);
        assert_eq!(lane.error(), [0.0, 2.0]);
    }
}
