//! Rules for gossip: how much a worker lets each neighbour move it.

/// A neighbour as a rule sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NeighbourDistance {
    /// Its weight in the topology.
    pub weight: f32,
    /// How far its vector is from the own one.
    pub distance: f64,
}

/// What a worker does with the differences to its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourRule {
    /// Clips them to a radius from their weighted squares (ClippedGossip).
    ClippedGossip,
    /// Clips the largest to the next smaller one (CS₊-RG).
    ClippedSum,
    /// Drops the largest, and gives their weight to the others (NNA).
    Nearest,
}

/// Weights are `f32` that were rounded: sums that should be equal may differ by so much.
const ROUNDING: f64 = 1e-6;

impl NeighbourRule {
    /// The factor of every neighbour's difference in `x ← x + Σ_j factor_j·(x_j − x)`, where `byzantine`
    /// of the neighbours may send anything.
    pub fn factors(self, neighbours: &[NeighbourDistance], byzantine: usize) -> Vec<f32> {
        let heaviest = neighbours.iter().map(|near| f64::from(near.weight)).fold(0.0, f64::max);
        let bad = byzantine as f64 * heaviest;
        let mut order: Vec<usize> = (0..neighbours.len()).collect();
        order.sort_by(|a, b| neighbours[*b].distance.total_cmp(&neighbours[*a].distance));
        match self {
            NeighbourRule::ClippedGossip if byzantine > 0 => {
                let rest = without(neighbours, &order, bad);
                let squares = rest.iter().map(|j| weighted_square(&neighbours[*j]));
                clipped(neighbours, (squares.sum::<f64>() / bad).sqrt())
            }
            NeighbourRule::ClippedSum if byzantine > 0 => {
                let rest = without(neighbours, &order, 2.0 * bad);
                clipped(neighbours, rest.first().map_or(0.0, |j| neighbours[*j].distance))
            }
            NeighbourRule::Nearest if byzantine > 0 => {
                nearest(neighbours, &order[..byzantine.min(order.len())])
            }
            _ => neighbours.iter().map(|near| near.weight).collect(),
        }
    }
}

/// What is left of the neighbours, in `order` from far to near, without the farthest that together have
/// at least this weight.
fn without<'a>(neighbours: &[NeighbourDistance], order: &'a [usize], weight: f64) -> &'a [usize] {
    let mut dropped = 0.0;
    for (place, j) in order.iter().enumerate() {
        if dropped >= weight - ROUNDING {
            return &order[place..];
        }
        dropped += f64::from(neighbours[*j].weight);
    }
    &[]
}

fn weighted_square(near: &NeighbourDistance) -> f64 {
    f64::from(near.weight) * near.distance * near.distance
}

fn clipped(neighbours: &[NeighbourDistance], radius: f64) -> Vec<f32> {
    let factor = |near: &NeighbourDistance| {
        if near.distance <= radius {
            near.weight
        } else {
            (f64::from(near.weight) * radius / near.distance) as f32
        }
    };
    neighbours.iter().map(factor).collect()
}

/// Weights of the kept and of the worker itself, divided by their sum.
fn nearest(neighbours: &[NeighbourDistance], dropped: &[usize]) -> Vec<f32> {
    let lost: f64 = dropped.iter().map(|j| f64::from(neighbours[*j].weight)).sum();
    let factor = |(j, near): (usize, &NeighbourDistance)| {
        if dropped.contains(&j) { 0.0 } else { (f64::from(near.weight) / (1.0 - lost)) as f32 }
    };
    neighbours.iter().enumerate().map(factor).collect()
}

/// BRIDGE's screening: `own ←` per coordinate, the mean of `own` and of the neighbours' values without
/// the `f` largest and the `f` smallest of these.
pub fn screened_mean(neighbours: &[&[f32]], f: usize, own: &mut [f32]) {
    if neighbours.len() <= 2 * f {
        return;
    }
    let kept = f..neighbours.len() - f;
    let share = 1.0 / (kept.len() + 1) as f32;
    let mut column = vec![0.0; neighbours.len()];
    for (k, own) in own.iter_mut().enumerate() {
        column.iter_mut().zip(neighbours).for_each(|(value, theirs)| *value = theirs[k]);
        if f > 0 {
            column.sort_unstable_by(f32::total_cmp);
        }
        *own = share * (*own + column[kept.clone()].iter().sum::<f32>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn near(distance: f64) -> NeighbourDistance {
        NeighbourDistance { weight: 0.1, distance }
    }

    const EQUAL: [NeighbourDistance; 5] = [near(3.0), near(1.0), near(50.0), near(2.0), near(4.0)];

    fn assert_near(found: Vec<f32>, expected: [f64; 5]) {
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((f64::from(found) - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

    /// With one bad neighbour of equal weight CS₊ clips the two farthest to the third.
    #[test]
    fn clipped_sum_clips_twice_the_bad_weight_to_the_next_distance() {
        let factors = NeighbourRule::ClippedSum.factors(&EQUAL, 1);
        assert_near(factors, [0.1, 0.1, 0.1 * 3.0 / 50.0, 0.1, 0.1 * 3.0 / 4.0]);
        assert_near(NeighbourRule::ClippedSum.factors(&EQUAL, 3), [0.0; 5]);
    }

    /// τ² = (9 + 1 + 4 + 16)·0.1/0.1 = 30.
    #[test]
    fn clipped_gossip_has_the_radius_of_the_paper() {
        let factors = NeighbourRule::ClippedGossip.factors(&EQUAL, 1);
        assert_near(factors, [0.1, 0.1, 0.1 * 30f64.sqrt() / 50.0, 0.1, 0.1]);
    }

    /// On a complete graph of six, NNA is the plain mean of the own vector and the four nearest.
    #[test]
    fn nearest_neighbour_averaging_is_the_mean_of_the_nearest() {
        let sixth = EQUAL.map(|near| NeighbourDistance { weight: 1.0 / 6.0, ..near });
        let fifth = 1.0 / 5.0;
        let factors = NeighbourRule::Nearest.factors(&sixth, 1);
        assert_near(factors, [fifth, fifth, 0.0, fifth, fifth]);
    }

    #[test]
    fn without_bad_neighbours_all_rules_are_plain_gossip() {
        use NeighbourRule::{ClippedGossip, ClippedSum, Nearest};
        for rule in [ClippedGossip, ClippedSum, Nearest] {
            assert_near(rule.factors(&EQUAL, 0), [0.1f32; 5].map(f64::from));
        }
    }

    /// An infinitely far neighbour moves nobody.
    #[test]
    fn neighbours_that_are_not_finite_have_no_weight() {
        use NeighbourRule::{ClippedGossip, ClippedSum, Nearest};
        let mut neighbours = EQUAL;
        neighbours[2].distance = f64::INFINITY;
        for rule in [ClippedGossip, ClippedSum, Nearest] {
            assert_eq!(rule.factors(&neighbours, 1)[2], 0.0, "{rule:?}");
        }
    }

    #[test]
    fn screening_averages_the_middle_with_the_own_value() {
        let neighbours: [&[f32]; 4] = [&[1.0, f32::NAN], &[100.0, 2.0], &[-7.0, 4.0], &[3.0, 0.0]];
        let mut own = [8.0, 9.0];
        screened_mean(&neighbours, 1, &mut own);
        assert_eq!(own, [4.0, 5.0]);
        let mut own = [8.0, 9.0];
        screened_mean(&neighbours, 2, &mut own);
        assert_eq!(own, [8.0, 9.0]);
    }
}
