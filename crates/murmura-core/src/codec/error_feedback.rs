//! Error feedback: what a codec left out is added to the next vector of the same lane.
//!
//! ```text
//! p = v + e;  send C(p);  e ← p − C(p)
//! ```
//!
//! `Σ sent + e = Σ v` up to rounding (Seide et al. 2014; Karimireddy et al. 2019). Keep `v` in
//! units of the parameters (`η·u`, not `u`), so that a change of the learning rate needs no
//! correction. It needs a codec with a contraction above 0; without bias alone it may diverge.

use super::{Codec, Place};
use crate::state::Visitor;
use crate::vector;
use crate::vector::dispatch::{Level, kernel};

/// The error of one lane: one sender, one receiver or group of receivers, one range of the model.
#[derive(Clone, Debug, Default)]
pub struct ErrorFeedback {
    error: Vec<f32>,
}

impl ErrorFeedback {
    /// For vectors of `len` elements.
    pub fn new(len: usize) -> ErrorFeedback {
        ErrorFeedback { error: vec![0.0; len] }
    }

    /// Encodes `values` with what was left out before; afterwards `values` is what receivers
    /// decode, for the sender to use as they do. Returns the bytes written.
    pub fn encode(
        &mut self,
        codec: &mut dyn Codec,
        at: Place,
        values: &mut [f32],
        out: &mut [u8],
    ) -> usize {
        vector::add(values, &mut self.error);
        let bytes = codec.encode(at, &self.error, out);
        codec.decode(at, &out[..bytes], values).expect("a codec reads what it wrote");
        subtract(Level::best(), values, &mut self.error);
        bytes
    }

    /// What has been left out so far.
    pub fn error(&self) -> &[f32] {
        &self.error
    }

    /// Adds what was left out to `values` and forgets it: for a last, exact message.
    pub fn flush(&mut self, values: &mut [f32]) {
        vector::add(&self.error, values);
        self.error.fill(0.0);
    }

    /// Shows its state to `visitor`, as part of an algorithm's.
    pub fn state(&mut self, name: &str, visitor: &mut dyn Visitor) {
        visitor.vector(name, &mut self.error);
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
    use crate::codec::CODECS;
    use crate::params::Params;
    use crate::random::Rng;

    #[test]
    fn what_was_sent_and_what_is_left_is_all_there_was() {
        let len = 300;
        for entry in CODECS {
            let mut codec = (entry.build)(&Params::defaults(entry.keys), 1);
            let (mut lane, mut bytes) = (ErrorFeedback::new(len), vec![0; codec.bytes(len)]);
            let (mut given, mut sent) = (vec![0.0f64; len], vec![0.0f64; len]);
            let mut rng = Rng::new(2, entry.name, 0);
            for step in 0..200 {
                let mut values: Vec<f32> = (0..len).map(|_| rng.normal() as f32).collect();
                given.iter_mut().zip(&values).for_each(|(sum, x)| *sum += f64::from(*x));
                lane.encode(
                    &mut *codec,
                    Place { step, ..Place::default() },
                    &mut values,
                    &mut bytes,
                );
                sent.iter_mut().zip(&values).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            for ((given, sent), error) in given.iter().zip(&sent).zip(lane.error()) {
                let left = given - sent;
                assert!((left - f64::from(*error)).abs() < 1e-3, "{}: {left} {error}", entry.name);
            }
            let mut last = vec![0.0; len];
            lane.flush(&mut last);
            assert!(lane.error().iter().all(|error| *error == 0.0));
        }
    }

    #[test]
    fn error_stays_bounded_under_a_contraction() {
        // ‖e‖ ≤ 2·√(1 − δ)/δ·G (Karimireddy et al. 2019, Lemma 3), with G the largest norm.
        let len = 200;
        for name in ["top-k", "random-k", "sign"] {
            let entry = crate::codec::find(name).expect("in the table");
            let params = Params::defaults(entry.keys);
            let mut codec = (entry.build)(&params, 1);
            let delta = codec.facts(len).contraction;
            let (mut lane, mut bytes) = (ErrorFeedback::new(len), vec![0; codec.bytes(len)]);
            let (mut rng, mut largest) = (Rng::new(4, name, 0), 0.0f64);
            for step in 0..2000 {
                let mut values: Vec<f32> = (0..len).map(|_| rng.normal() as f32).collect();
                largest = largest.max(vector::norm(&values));
                lane.encode(
                    &mut *codec,
                    Place { step, ..Place::default() },
                    &mut values,
                    &mut bytes,
                );
                let bound = 2.0 * (1.0 - delta).sqrt() / delta * largest;
                assert!(vector::norm(lane.error()) <= bound, "{name} at step {step}");
            }
        }
    }

    #[test]
    fn one_bad_gradient_does_not_spoil_the_lane() {
        for entry in CODECS {
            let mut codec = (entry.build)(&Params::defaults(entry.keys), 1);
            let (mut lane, mut bytes) = (ErrorFeedback::new(4), vec![0; codec.bytes(4)]);
            let bad = [f32::NAN, f32::INFINITY, 1.0, 2.0];
            lane.encode(&mut *codec, Place::default(), &mut bad.clone(), &mut bytes);
            assert!(lane.error().iter().all(|error| error.is_finite()), "{}", entry.name);
            let mut good = [1.0, 2.0, 3.0, 4.0];
            lane.encode(&mut *codec, Place::default(), &mut good, &mut bytes);
            assert!(good.iter().all(|sent| sent.is_finite()), "{}", entry.name);
        }
    }
}
