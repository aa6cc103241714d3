//! Cross-entropy of scores.

use quelea_core::problems::{ACCURACY, Evaluation};

use crate::tape::TapeValue;

/// Marks a target that does not count: padding.
pub const NO_TARGET: u32 = u32::MAX;

/// What came of scores.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scored {
    /// Σ over targets of the cross-entropy, smoothed if that was asked for.
    pub loss: f64,
    /// How many targets have the highest score.
    pub right: usize,
    /// How many targets count.
    pub counted: usize,
}

impl Scored {
    /// All together.
    pub fn sum(parts: &[Scored]) -> Scored {
        Scored {
            loss: parts.iter().map(|part| part.loss).sum(),
            right: parts.iter().map(|part| part.right).sum(),
            counted: parts.iter().map(|part| part.counted).sum(),
        }
    }

    /// Means over the targets that count.
    pub fn evaluation(&self) -> Evaluation {
        let counted = self.counted as f64;
        let accuracy = Some(self.right as f64 / counted);
        Evaluation::of_loss(self.loss / counted).with(ACCURACY, accuracy)
    }
}

/// Scores `[rows, classes]` against one target per row.
pub fn score(scores: &TapeValue, targets: &[u32], smoothing: f32) -> Scored {
    walk(scores, targets, smoothing, |_, _| ())
}

/// As [`score`], with the gradient of `loss / divisor`.
pub fn score_with_gradient(
    scores: &TapeValue,
    targets: &[u32],
    smoothing: f32,
    divisor: f32,
) -> (Scored, Vec<f32>) {
    let classes = classes(scores, targets);
    let mut grad = vec![0.0; scores.values().len()];
    let even = smoothing / classes as f32;
    let scored = walk(scores, targets, smoothing, |row, softmax| {
        let grad = &mut grad[row * classes..][..classes];
        let softmax = softmax.probabilities();
        grad.iter_mut().zip(softmax).for_each(|(grad, p)| *grad = (p - even) / divisor);
        grad[targets[row] as usize] -= (1.0 - smoothing) / divisor;
    });
    (scored, grad)
}

/// The softmax of one row.
struct Softmax<'a> {
    row: &'a [f32],
    most: f32,
    sum: f64,
}

impl Softmax<'_> {
    fn probabilities(&self) -> impl Iterator<Item = f32> {
        let share = (1.0 / self.sum) as f32;
        self.row.iter().map(move |x| (x - self.most).exp() * share)
    }
}

fn classes(scores: &TapeValue, targets: &[u32]) -> usize {
    let classes = *scores.shape().last().expect("scores have classes");
    assert_eq!(scores.values().len(), classes * targets.len(), "one target per row");
    classes
}

fn walk(
    scores: &TapeValue,
    targets: &[u32],
    smoothing: f32,
    mut visit: impl FnMut(usize, &Softmax<'_>),
) -> Scored {
    let classes = classes(scores, targets);
    let mut scored = Scored::default();
    let rows = scores.values().chunks_exact(classes).zip(targets).enumerate();
    for (index, (row, target)) in rows.filter(|(_, (_, target))| **target != NO_TARGET) {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum = row.iter().map(|x| f64::from((x - most).exp())).sum::<f64>();
        let normaliser = f64::from(most) + sum.ln();
        let (before, after) = row.split_at(*target as usize);
        let target = after[0];
        scored.loss += (1.0 - f64::from(smoothing)) * (normaliser - f64::from(target));
        if smoothing > 0.0 {
            let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / classes as f64;
            scored.loss += f64::from(smoothing) * (normaliser - mean);
        }
        // Of equal scores the first is the answer; NaN is never right.
        let first = before.iter().all(|x| *x < target);
        scored.right += usize::from(first && after.iter().all(|x| *x <= target));
        scored.counted += 1;
        visit(index, &Softmax { row, most, sum });
    }
    scored
}
