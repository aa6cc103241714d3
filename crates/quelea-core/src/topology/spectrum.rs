//! `‖W − J‖₂`: by how much mixing shrinks the distance to the mean, at worst; least eigenvalues.

use std::f64::consts::TAU;
use std::sync::Arc;

use super::Round;
use super::symmetric::SquareMatrix;
use super::validate::Parts;

/// A norm below this is rounding: the workers agree exactly.
const ZERO: f64 = 1e-12;

/// `‖W − J‖₂` of one round.
pub(super) fn rho(round: &Arc<Round>) -> f64 {
    if keeps_a_difference(round) { 1.0 } else { product_rho(std::slice::from_ref(round)) }
}

/// `‖W_{P−1} … W_0 − J‖₂` of these rounds, the first one first.
pub(super) fn product_rho(rounds: &[Arc<Round>]) -> f64 {
    let is_circulant = rounds.iter().all(|round| is_circulant(round));
    let rho = if is_circulant { circulant_rho(rounds) } else { dense_rho(rounds) };
    if rho < ZERO { 0.0 } else { rho }
}

/// The least eigenvalue of symmetric weights: near −1, mixing overshoots and swings.
pub fn least_eigenvalue(round: &Arc<Round>) -> f64 {
    let n = round.workers();
    if !is_circulant(round) {
        let dense = product(std::slice::from_ref(round));
        return dense.symmetric_eigenvalues().into_iter().fold(f64::INFINITY, f64::min);
    }
    let wave = |mode: usize, j: usize| (TAU * (mode * j % n) as f64 / n as f64).cos();
    let of_mode = |mode| round.rows()[0].iter().map(|(j, weight)| weight * wave(mode, *j)).sum();
    (0..n).map(of_mode).fold(1.0, f64::min)
}

/// Whether some difference between workers survives the round in full.
///
/// `WᵀW` is doubly stochastic; its eigenvalue 1 is there as often as its graph has parts, and two
/// workers are joined in that graph when a row takes in both.
fn keeps_a_difference(round: &Round) -> bool {
    let mut parts = Parts::new(round.workers());
    for row in round.rows() {
        row.windows(2).for_each(|pair| parts.join(pair[0].0, pair[1].0));
    }
    !parts.is_whole()
}

/// Whether every worker has the weights of worker 0, shifted.
fn is_circulant(round: &Round) -> bool {
    let n = round.workers();
    let first = &round.rows()[0];
    let is_shifted = |(i, row): (usize, &Vec<(usize, f64)>)| {
        row.len() == first.len()
            && first.iter().all(|(j, weight)| round.weight(i, (i + j) % n) == *weight)
    };
    round.rows().iter().enumerate().all(is_shifted)
}

/// Circulant matrices share their eigenvectors, the Fourier modes, so that the norm of a product
/// is found mode by mode. Mode 0 is the mean.
fn circulant_rho(rounds: &[Arc<Round>]) -> f64 {
    let n = rounds[0].workers();
    let wave: Vec<(f64, f64)> =
        (0..n).map(|place| (TAU * place as f64 / n as f64).sin_cos()).collect();
    let gain = |round: &Round, mode: usize| {
        let add = |(re, im): (f64, f64), &(j, weight): &(usize, f64)| {
            let (sin, cos) = wave[mode * j % n];
            (re + weight * cos, im + weight * sin)
        };
        let (re, im) = round.rows()[0].iter().fold((0.0, 0.0), add);
        re.hypot(im)
    };
    let gains = |mode| rounds.iter().map(|round| gain(round, mode)).product();
    (1..n).map(gains).fold(0.0, f64::max)
}

fn dense_rho(rounds: &[Arc<Round>]) -> f64 {
    let mut difference = product(rounds);
    difference.shift(-1.0 / rounds[0].workers() as f64);
    let largest = |matrix: SquareMatrix| {
        let values = matrix.symmetric_eigenvalues().into_iter();
        values.fold(0.0, |most: f64, value| most.max(value.abs()))
    };
    if rounds.len() == 1 && rounds[0].is_symmetric() {
        return largest(difference);
    }
    // The largest singular value is as exact through the Gram matrix, and much faster.
    largest(difference.gram()).sqrt()
}

/// `W_{P−1} … W_0`.
fn product(rounds: &[Arc<Round>]) -> SquareMatrix {
    let n = rounds[0].workers();
    let mut product = SquareMatrix::identity(n);
    for round in rounds {
        let mut next = SquareMatrix::zeros(n);
        for (i, row) in round.rows().iter().enumerate() {
            for (j, weight) in row {
                let added = product.row(*j).iter();
                next.row_mut(i).iter_mut().zip(added).for_each(|(sum, x)| *sum += weight * x);
            }
        }
        product = next;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::build;

    #[test]
    fn the_circulant_shortcut_agrees_with_the_dense_norm() {
        let names = ["ring", "complete", "exponential", "one-peer-exponential"];
        for (name, n) in names.iter().flat_map(|name| (2..=24).map(move |n| (*name, n))) {
            let schedule = build(name, n);
            let rounds: Vec<_> =
                (0..schedule.period().unwrap()).map(|step| schedule.round(step as u64)).collect();
            assert!(rounds.iter().all(|round| is_circulant(round)), "{name} {n}");
            let (fast, dense) = (circulant_rho(&rounds), dense_rho(&rounds));
            assert!((fast - dense).abs() < 1e-9, "{name} {n}: {fast} {dense}");
        }
        assert!(!is_circulant(&build("grid", 12).round(0)));
    }

    #[test]
    fn least_eigenvalues_are_the_known_ones() {
        let least = |name, n| least_eigenvalue(&build(name, n).round(0));
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
        near(least("ring", 8), -1.0 / 3.0);
        near(least("ring", 5), 1.0 / 3.0 + 2.0 / 3.0 * (0.8 * TAU / 2.0).cos());
        near(least("torus", 16), -0.6);
        near(least("hypercube", 8), -0.5);
        near(least("complete", 5), 0.0);
        near(least("complete", 1), 1.0);
    }

    #[test]
    fn a_round_keeps_a_difference_exactly_when_its_dense_norm_is_one() {
        for (name, n) in [("one-peer-exponential", 12), ("one-peer-ring", 9), ("hypercube", 12)] {
            let schedule = build(name, n);
            for step in 0..schedule.period().unwrap() as u64 {
                let round = schedule.round(step);
                let dense = dense_rho(std::slice::from_ref(&round));
                assert_eq!(keeps_a_difference(&round), (dense - 1.0).abs() < 1e-9, "{name} {step}");
            }
        }
    }
}
