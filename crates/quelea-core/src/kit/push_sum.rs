//! Push-sum: averages on directed and irregular graphs (Kempe, Dobra and Gehrke 2003).
//!
//! ```text
//! x_i: numerator, w_i: weight (1 at first), z_i = x_i/w_i: the average as i sees it
//! every round:  send the share p·(x_i, w_i) to each of d receivers, keep the rest;  p = 1/(d+1)
//!               (x_i, w_i) ← what was kept + what came in
//! ```
//! What all workers hold and what is on its way never changes in sum.

use crate::codec::CodecShape;
use crate::contract::{Context, Outbox};
use crate::payload::Payload;
use crate::state::Visitor;
use crate::vector;

use super::exchange::Gathered;

/// The mass of one worker.
#[derive(Debug, Default)]
pub struct PushSum {
    numerator: Vec<f32>,
    /// Per bucket, because buckets take their rounds one by one.
    weights: Vec<f64>,
}

/// How mass is divided among `receivers` and oneself: what is kept, and what each receives.
/// In `f32`, and so that all of it sums to one without rounding: the same numbers divide the
/// weights, or weights and numerators would drift apart.
pub fn division(receivers: usize) -> (f32, f32) {
    let each = 1.0 / (receivers + 1) as f32;
    ((1.0 - receivers as f64 * f64::from(each)) as f32, each)
}

impl PushSum {
    /// Whether it has not begun and no state was loaded.
    pub fn is_fresh(&self) -> bool {
        self.weights.is_empty()
    }

    /// Begins with the parameters as they are, unless a saved state was loaded.
    pub fn start(&mut self, cx: &Context<'_>) {
        if self.is_fresh() {
            self.numerator = cx.params.to_vec();
            self.weights = vec![1.0; cx.layout.buckets.len()];
        }
    }

    /// Bucket `b` is reset from what it shows, with weight one.
    pub fn restart(&mut self, cx: &Context<'_>, b: usize) {
        let range = cx.range(b);
        self.numerator[range.clone()].copy_from_slice(&cx.params[range]);
        self.weights[b] = 1.0;
    }

    /// The numerator takes the displacement that stands in `cx.grad`.
    pub fn displace(&mut self, cx: &Context<'_>, b: usize) {
        let range = cx.range(b);
        vector::axpy(-1.0, &cx.grad[range.clone()], &mut self.numerator[range]);
    }

    /// The weight of bucket `b`.
    pub fn weight(&self, b: usize) -> f64 {
        self.weights[b]
    }

    /// Divides the mass of bucket `b`; returns the share that each of `receivers` gets.
    pub fn divide(&mut self, cx: &mut Context<'_>, b: usize, receivers: usize) -> (Payload, f64) {
        let (kept, each) = division(receivers);
        let range = cx.range(b);
        let share = divide(&mut cx.outbox, &mut self.numerator[range], receivers);
        let weight = f64::from(each) * self.weights[b];
        self.weights[b] *= f64::from(kept);
        (share, weight)
    }

    /// Takes in the shares of others.
    pub fn absorb(&mut self, cx: &mut Context<'_>, b: usize, gathered: &Gathered) {
        let range = cx.range(b);
        gathered.add(&mut cx.outbox, 0, &mut self.numerator[range]);
        self.weights[b] += gathered.scalars();
    }

    /// Adds mass that somebody gave, or gives back.
    pub fn add(&mut self, cx: &mut Context<'_>, b: usize, values: &[f32], weight: f64) {
        cx.outbox.work(4 * values.len());
        vector::add(values, &mut self.numerator[cx.range(b)]);
        self.weights[b] += weight;
    }

    /// Takes all mass of bucket `b` out, for somebody else.
    pub fn give_up(&mut self, cx: &mut Context<'_>, b: usize) -> (Payload, f64) {
        let values = &mut self.numerator[cx.range(b)];
        let all = cx.outbox.pool.copy(values);
        values.fill(0.0);
        (all, std::mem::take(&mut self.weights[b]))
    }

    /// Shows z = x/w in the parameters.
    pub fn show(&self, cx: &mut Context<'_>, b: usize) {
        let range = cx.range(b);
        let scale = (1.0 / self.weights[b]) as f32;
        vector::scaled(scale, &self.numerator[range.clone()], &mut cx.params[range]);
    }

    /// Shows the numerator itself, as if every weight were one.
    pub fn show_biased(&self, cx: &mut Context<'_>, b: usize) {
        let range = cx.range(b);
        cx.params[range.clone()].copy_from_slice(&self.numerator[range]);
    }

    /// Lists the state.
    pub fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.vector("numerator", &mut self.numerator);
        let mut buckets = self.weights.len() as u64;
        visitor.number("buckets", &mut buckets);
        self.weights.resize(buckets as usize, 1.0);
        for (b, weight) in self.weights.iter_mut().enumerate() {
            visitor.real(&format!("weight.{b}"), weight);
        }
    }
}

/// Keeps in `values` what division leaves; returns one share. Where shares are rounded, what
/// rounding takes from them is kept too: mass is not lost.
pub fn divide(outbox: &mut Outbox<'_>, values: &mut [f32], receivers: usize) -> Payload {
    let (kept, each) = division(receivers);
    let mut share = outbox.pool.take(values.len());
    let out = share.try_mut().expect("just taken, so held by nobody else");
    vector::scaled(each, values, out);
    if outbox.coder.shape() == CodecShape::Rounding {
        outbox.round(out);
        vector::axpy(-(receivers as f32), out, values);
    } else {
        vector::scale(kept, values);
    }
    share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mass_is_divided_without_a_remainder() {
        for receivers in 0..200 {
            let (kept, each) = division(receivers);
            let sum = f64::from(kept) + receivers as f64 * f64::from(each);
            assert_eq!(sum, 1.0, "{receivers} receivers");
        }
    }
}
