//! What the tests of optimizers that adapt to tensors share: five parameters in three tensors.

use super::{At, Optimizer, find};
use crate::layout::TensorRange;
use crate::options::Value;

/// Where the parameters start.
pub(super) const QUADRATIC_START: [f32; 5] = [1.0, -2.0, 0.5, 3.0, 0.25];

pub(super) fn build(name: &str, given: &[(&str, f64)], len: usize) -> Box<dyn Optimizer> {
    let entry = find(name).expect("in the table");
    let given = given.iter().map(|(name, value)| (name.to_string(), Value::Number(*value)));
    (entry.build)(&entry.params(given).expect("good parameters"), len)
}

/// Two tensors of two elements, and between them a vector of one.
pub(super) fn three_tensors() -> Vec<TensorRange> {
    let tensor = |range, is_vector| TensorRange { range, is_vector };
    vec![tensor(0..2, false), tensor(2..3, true), tensor(3..5, false)]
}

/// Steps on quadratics with curvatures 1 to 5, in one call and in two, and compares.
pub(super) fn follow(optimizer: &mut dyn Optimizer, learning_rate: f32, expected: &[[f64; 5]]) {
    let target = [0.5, -1.0, 2.0, 0.0, 1.0];
    for cuts in [&[(0, 5)][..], &[(0, 2), (2, 5)]] {
        let mut x = QUADRATIC_START;
        optimizer.vectors().into_iter().for_each(|state| state.fill(0.0));
        for (step, expected) in expected.iter().enumerate() {
            let at = At { step: step as u64, learning_rate };
            let mut g: [f32; 5] = std::array::from_fn(|k| (k + 1) as f32 * (x[k] - target[k]));
            for (start, end) in cuts {
                let cut = *start..*end;
                optimizer.apply(at, cut.clone(), &mut x[cut.clone()], &mut g[cut]);
            }
            for (found, expected) in x.iter().zip(expected) {
                let error = f64::from(*found) - expected;
                assert!(error.abs() < 2e-6, "step {step}: {x:?}");
            }
        }
    }
}
