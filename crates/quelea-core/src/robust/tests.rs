//! Every rule against a plain computation of its definition, against closed forms, and at its breakdown
//! point.

use super::*;

fn random(n: usize, len: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut rng = Rng::new(seed, "robust", 0);
    (0..n).map(|_| (0..len).map(|_| rng.normal() as f32).collect()).collect()
}

fn run(vectors: &[Vec<f32>], rule: impl Fn(&[&[f32]], &mut [f32])) -> Vec<f32> {
    let mut out = vec![f32::NAN; vectors[0].len()];
    rule(&slices(vectors), &mut out);
    out
}

fn assert_near(found: &[f32], expected: &[f64], tolerance: f64) {
    for (found, expected) in found.iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() <= tolerance, "{found} is not {expected}");
    }
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
}

/// Removes the largest and the smallest, `f` times, without sorting.
fn trimmed_by_hand(vectors: &[Vec<f32>], f: usize, k: usize) -> f64 {
    let mut values: Vec<f64> = vectors.iter().map(|vector| f64::from(vector[k])).collect();
    for _ in 0..f {
        for sign in [1.0, -1.0] {
            let worst = (0..values.len())
                .max_by(|a, b| (sign * values[*a]).total_cmp(&(sign * values[*b])));
            values.remove(worst.expect("something is left"));
        }
    }
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn trimmed_mean_and_median_are_what_is_left_without_the_extremes() {
    for (n, f) in [(3, 1), (5, 1), (10, 3), (9, 4), (4, 0)] {
        let vectors = random(n, 17, n as u64);
        let expected: Vec<f64> = (0..17).map(|k| trimmed_by_hand(&vectors, f, k)).collect();
        assert_near(&run(&vectors, |v, out| trimmed_mean(v, f, out)), &expected, 1e-6);
        let middle: Vec<f64> = (0..17).map(|k| trimmed_by_hand(&vectors, (n - 1) / 2, k)).collect();
        assert_near(&run(&vectors, median), &middle, 1e-6);
    }
}

/// Krum's score by its definition: the least sum of squared distances over all sets of neighbours.
fn score_by_hand(vectors: &[Vec<f32>], i: usize, neighbours: usize) -> f64 {
    let n = vectors.len();
    let sets = (0u32..1 << n).filter(|set| set.count_ones() as usize == neighbours);
    let sets = sets.filter(|set| set >> i & 1 == 0);
    let sum = |set: u32| -> f64 {
        let members = (0..n).filter(|j| set >> j & 1 == 1);
        members.map(|j| distance(&vectors[i], &vectors[j]).powi(2)).sum()
    };
    sets.map(sum).fold(f64::INFINITY, f64::min)
}

#[test]
fn krum_takes_the_vectors_with_the_least_sum_over_all_sets_of_neighbours() {
    for (n, f) in [(7, 2), (9, 3), (10, 1)] {
        let vectors = random(n, 5, 40 + n as u64);
        let scores: Vec<f64> = (0..n).map(|i| score_by_hand(&vectors, i, n - f - 2)).collect();
        let best = (0..n).min_by(|a, b| scores[*a].total_cmp(&scores[*b])).expect("there are some");
        assert_eq!(run(&vectors, |v, out| krum(v, f, out)), vectors[best]);
        let mut worst: Vec<usize> = (0..n).collect();
        worst.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        let kept: Vec<&Vec<f32>> =
            (0..n).filter(|i| !worst[..f].contains(i)).map(|i| &vectors[i]).collect();
        let mean = |k: usize| kept.iter().map(|v| f64::from(v[k])).sum::<f64>() / kept.len() as f64;
        let expected: Vec<f64> = (0..5).map(mean).collect();
        assert_near(&run(&vectors, |v, out| multi_krum(v, f, out)), &expected, 1e-6);
    }
}

#[test]
fn the_geometric_median_of_known_figures_is_known() {
    // On a line it is the median, of a regular triangle the centre, and of a triangle with an angle of
    // more than 120 degrees the corner of that angle.
    let line: Vec<Vec<f32>> = [0.0, 1.0, 2.0, 10.0, 50.0].map(|x| vec![x, 2.0 * x]).into();
    assert_near(&run(&line, |v, out| geometric_median(v, 50, out)), &[2.0, 4.0], 1e-3);
    let height = 0.75f32.sqrt();
    let regular = vec![vec![0.0, 0.0], vec![1.0, 0.0], vec![0.5, height]];
    let centre = [0.5, f64::from(height) / 3.0];
    assert_near(&run(&regular, |v, out| geometric_median(v, 200, out)), &centre, 1e-4);
    let flat = vec![vec![-5.0, 0.0], vec![0.0, 0.5], vec![5.0, 0.0]];
    assert_near(&run(&flat, |v, out| geometric_median(v, 200, out)), &[0.0, 0.5], 1e-3);
}

#[test]
fn no_step_along_an_axis_improves_the_geometric_median() {
    let vectors = random(9, 6, 5);
    let found = run(&vectors, |v, out| geometric_median(v, 300, out));
    let cost = |point: &[f32]| vectors.iter().map(|v| distance(v, point)).sum::<f64>();
    for k in 0..6 {
        for step in [0.02, -0.02] {
            let mut moved = found.clone();
            moved[k] += step;
            assert!(cost(&moved) > cost(&found), "a step of {step} along {k} is better");
        }
    }
}

#[test]
fn centered_clipping_moves_by_the_clipped_mean_of_the_differences() {
    // One near vector counts whole, two far ones count with the radius: (1 + 2 + 2) / 3 and (0 − 2 + 0)…
    let vectors = vec![vec![1.0, 0.0], vec![100.0, 0.0], vec![0.0, -7.0]];
    let once = run(&vectors, |v, out| centered_clipping(v, &[0.0, 0.0], 2.0, 1, out));
    assert_near(&once, &[1.0, -2.0 / 3.0], 1e-6);
    let wide = run(&vectors, |v, out| centered_clipping(v, &[3.0, 4.0], 1e9, 1, out));
    assert_near(&wide, &[101.0 / 3.0, -7.0 / 3.0], 1e-5);
    let twice = run(&vectors, |v, out| centered_clipping(v, &[0.0, 0.0], 2.0, 2, out));
    let again = run(&vectors, |v, out| centered_clipping(v, &once, 2.0, 1, out));
    assert_near(&twice, &again.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), 1e-6);
}

#[test]
fn mixing_averages_the_nearest_and_bucketing_keeps_the_mean() {
    let vectors: Vec<Vec<f32>> = [0.0, 1.0, 3.0, 100.0].map(|x| vec![x]).into();
    let mixed = nearest_neighbour_mixing(&slices(&vectors), 1);
    let third = 4.0f32 / 3.0;
    let expected = [third, third, third, (1.0 + 3.0 + 100.0) / 3.0];
    for (mixed, expected) in mixed.iter().zip(expected) {
        assert!((mixed[0] - expected).abs() < 1e-4, "{mixed:?} {expected}");
    }
    let vectors = random(12, 4, 8);
    let groups = bucketing(&slices(&vectors), 3, &mut Rng::new(1, "groups", 0));
    assert_eq!(groups.len(), 4);
    let whole: Vec<f64> = run(&vectors, mean).into_iter().map(f64::from).collect();
    assert_near(&run(&groups, mean), &whole, 1e-6);
    assert_eq!(bucketing(&slices(&vectors), 5, &mut Rng::new(1, "groups", 0)).len(), 3);
    for (n, groups) in [(10usize, 3), (10, 5), (10, 7), (7, 7), (100, 9)] {
        assert!(n.div_ceil(group_size(n, groups)) >= groups, "{n} in {groups} groups");
    }
}

const RULES: [AggregationRule; 6] = [
    AggregationRule::Median,
    AggregationRule::TrimmedMean,
    AggregationRule::Krum,
    AggregationRule::MultiKrum,
    AggregationRule::GeometricMedian,
    AggregationRule::CenteredClipping,
];
const BEFORE: [PreAggregation; 3] =
    [PreAggregation::None, PreAggregation::NearestNeighbours, PreAggregation::Bucketing];

fn aggregation(rule: AggregationRule, before: PreAggregation, byzantine: usize) -> Aggregation {
    Aggregation { rule, before, byzantine, clip_radius: 1.0, iterations: 8 }
}

fn combine(aggregation: &Aggregation, vectors: &[Vec<f32>]) -> Vec<f32> {
    let mut out = vec![0.0; vectors[0].len()];
    let center = vec![0.0; out.len()];
    aggregation.combine(&slices(vectors), &center, &mut Rng::new(3, "groups", 0), &mut out);
    out
}

/// Ten vectors, of which `bad` are this far out, all in the same place.
fn spoiled(bad: usize, far: f32) -> Vec<Vec<f32>> {
    let mut vectors = random(10, 4, 11);
    vectors[10 - bad..].iter_mut().for_each(|vector| vector.fill(far));
    vectors
}

/// How far the result moves when the bad vectors go from far out to a thousand times as far.
fn shift(aggregation: &Aggregation, bad: usize) -> f64 {
    let [near, far] = [1e3, 1e6].map(|far| combine(aggregation, &spoiled(bad, far)));
    distance(&near, &far)
}

#[test]
fn the_mean_breaks_down_with_one_bad_vector_exactly() {
    let mean = aggregation(AggregationRule::Mean, PreAggregation::None, 3);
    let expected = 2.0 * (1e6 - 1e3) / 10.0;
    assert!((shift(&mean, 1) / expected - 1.0).abs() < 1e-5, "{}", shift(&mean, 1));
}

/// With f = 1, 2, 3 of ten the result stays with the honest vectors however far the others are.
#[test]
fn every_rule_holds_up_to_its_f_with_every_pre_aggregator() {
    for rule in RULES {
        for before in BEFORE {
            for f in 1..=3 {
                let aggregation = aggregation(rule, before, f);
                let name = format!("{aggregation:?}");
                assert!(shift(&aggregation, f) < 0.1, "{name}: moved {}", shift(&aggregation, f));
                let result = combine(&aggregation, &spoiled(f, 1e6));
                let honest = &spoiled(f, 1e6)[..10 - f];
                let center = run(honest, mean);
                let radius = honest.iter().map(|v| distance(v, &center)).fold(0.0, f64::max);
                // Centered clipping may be moved by its radius in every iteration.
                let bias = if aggregation.has_center() { 8.0 } else { 0.0 };
                assert!(distance(&result, &center) < 2.0 * radius + bias, "{name}: {result:?}");
            }
        }
    }
}

/// Six equal vectors of ten are the majority: every rule that looks for one follows them.
#[test]
fn every_rule_fails_where_the_bad_vectors_are_the_majority() {
    for rule in RULES.into_iter().filter(|rule| *rule != AggregationRule::CenteredClipping) {
        let aggregation = aggregation(rule, PreAggregation::None, 4);
        assert!(shift(&aggregation, 6) > 1e5, "{rule:?}: moved {}", shift(&aggregation, 6));
    }
}

/// Trimming one at each end leaves the second bad vector in the mean: (n − 2f) shares.
#[test]
fn a_trimmed_mean_fails_exactly_with_one_bad_vector_more_than_it_trims() {
    for f in 1..=3 {
        let aggregation = aggregation(AggregationRule::TrimmedMean, PreAggregation::None, f);
        let expected = 2.0 * (1e6 - 1e3) / (10 - 2 * f) as f64;
        let found = shift(&aggregation, f + 1);
        assert!((found / expected - 1.0).abs() < 1e-4, "f = {f}: {found}, not {expected}");
    }
}

#[test]
fn vectors_that_are_not_finite_count_as_infinitely_far() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for rule in RULES {
            for before in [PreAggregation::None, PreAggregation::NearestNeighbours] {
                let result = combine(&aggregation(rule, before, 2), &spoiled(2, bad));
                assert!(result.iter().all(|x| x.is_finite()), "{rule:?}, {before:?}: {result:?}");
            }
        }
    }
}

#[test]
fn more_than_a_minority_is_never_tolerated() {
    assert_eq!([1, 2, 3, 10].map(|n| tolerated(4, n)), [0, 0, 1, 4]);
}

#[test]
fn a_majority_decides_every_sign_and_a_tie_is_positive() {
    let vectors =
        [vec![1.0, -2.0, 0.0, -5.0], vec![-3.0, -0.1, -0.0, 5.0], vec![9.0, 4.0, f32::NAN, -1e-30]];
    assert_eq!(run(&vectors, majority_vote), [1.0, -1.0, 1.0, -1.0]);
    assert_eq!(run(&vectors[..2], majority_vote), [1.0, -1.0, 1.0, 1.0]);
}

#[test]
fn no_minority_turns_a_vote_where_all_others_agree_and_every_majority_does() {
    for n in 1..=9 {
        for bad in 0..=n {
            let vectors: Vec<Vec<f32>> =
                (0..n).map(|i| if i < bad { vec![1e30] } else { vec![-1e-30] }).collect();
            let turned = run(&vectors, majority_vote) == [1.0];
            assert_eq!(turned, 2 * bad >= n, "{bad} of {n}");
        }
    }
}
