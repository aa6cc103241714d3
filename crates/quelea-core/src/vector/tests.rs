//! Every variant of every kernel against a loop that a person can check.

use super::dispatch::Level;
use super::{BLOCK, PART_MIN, loops};
use crate::random::Rng;

/// Around the widths of vectors, of the lanes of a mix, and of a block.
const LENGTHS: &[usize] =
    &[0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 1000, BLOCK - 1, BLOCK, BLOCK + 1];

/// Long enough for three parts.
const LONG: usize = 3 * PART_MIN + 5;

/// Random numbers of many sizes, with some that break careless arithmetic.
fn draw(stream: u64, len: usize) -> Vec<f32> {
    let mut rng = Rng::new(7, "vectors", stream);
    let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE / 4.0];
    let number = |rng: &mut Rng| match rng.below(40) {
        0 => special[rng.below(special.len() as u64) as usize],
        _ => (rng.normal() * 10f64.powf(rng.normal())) as f32,
    };
    (0..len).map(|_| number(&mut rng)).collect()
}

/// Equal bits; which of its many patterns a NaN has is left to the processor.
#[track_caller]
fn assert_same(given: &[f32], expected: &[f32]) {
    assert_eq!(given.len(), expected.len());
    for (k, (given, expected)) in given.iter().zip(expected).enumerate() {
        let same = given.to_bits() == expected.to_bits() || given.is_nan() && expected.is_nan();
        assert!(same, "element {k}: {given} is not {expected}");
    }
}

#[track_caller]
fn assert_same_number(given: f64, expected: f64) {
    let same = given.to_bits() == expected.to_bits() || given.is_nan() && expected.is_nan();
    assert!(same, "{given} is not {expected}");
}

/// A kernel that changes `y` by two other vectors, and what it should do to one element.
struct Elementwise {
    public: fn(&[f32], &[f32], &mut [f32]),
    at_level: fn(Level, &[f32], &[f32], &mut [f32]),
    element: fn(f32, f32, f32) -> f32,
}

const ELEMENTWISE: &[Elementwise] = &[
    Elementwise {
        public: |p, _, y| super::axpy(0.3, p, y),
        at_level: |level, p, _, y| loops::axpy(level, 0.3, p, y),
        element: |p, _, y| y + 0.3 * p,
    },
    Elementwise {
        public: |p, _, y| super::add(p, y),
        at_level: |level, p, _, y| loops::add(level, p, y),
        element: |p, _, y| y + p,
    },
    Elementwise { public: super::sum_into, at_level: loops::sum_into, element: |p, q, _| p + q },
    Elementwise {
        public: |_, _, y| super::scale(0.3, y),
        at_level: |level, _, _, y| loops::scale(level, 0.3, y),
        element: |_, _, y| 0.3 * y,
    },
    Elementwise {
        public: |p, _, y| super::scaled(0.3, p, y),
        at_level: |level, p, _, y| loops::scaled(level, 0.3, p, y),
        element: |p, _, _| 0.3 * p,
    },
    Elementwise {
        public: |p, _, y| super::lerp(0.3, p, y),
        at_level: |level, p, _, y| loops::lerp(level, 0.3, p, y),
        element: |p, _, y| y + 0.3 * (p - y),
    },
    Elementwise {
        public: |p, q, y| super::add_difference(0.3, p, q, y),
        at_level: |level, p, q, y| loops::add_difference(level, 0.3, p, q, y),
        element: |p, q, y| y + 0.3 * (p - q),
    },
];

#[test]
fn every_instruction_set_gives_the_bits_of_a_plain_loop_at_any_alignment() {
    for len in LENGTHS {
        let (p, q, y) = (draw(0, len + 3), draw(1, len + 3), draw(2, len + 3));
        for (skip, kernel) in (0..3).flat_map(|skip| ELEMENTWISE.iter().map(move |k| (skip, k))) {
            let (p, q, y) = (&p[skip..][..*len], &q[3 - skip..][..*len], &y[skip / 2..][..*len]);
            let expected: Vec<f32> =
                (0..*len).map(|k| (kernel.element)(p[k], q[k], y[k])).collect();
            let mut through_public = y.to_vec();
            (kernel.public)(p, q, &mut through_public);
            assert_same(&through_public, &expected);
            for level in Level::all() {
                // The result, too, starts at an odd place.
                let mut given = [&[0.0; 3][..skip], y].concat();
                (kernel.at_level)(level, p, q, &mut given[skip..]);
                assert_same(&given[skip..], &expected);
            }
        }
    }
}

/// The weighted sum in the order of the ranks, as the words of the contract have it.
fn plain_mix(own: f32, place: usize, y: &[f32], terms: &[(f32, &[f32])]) -> Vec<f32> {
    let of_element = |k: usize| {
        let mut products: Vec<f32> = terms.iter().map(|(weight, x)| weight * x[k]).collect();
        products.insert(place, own * y[k]);
        products.into_iter().reduce(|sum, product| sum + product).expect("at least my own")
    };
    (0..y.len()).map(of_element).collect()
}

#[test]
fn a_mix_sums_in_the_order_of_the_ranks_wherever_mine_is() {
    for len in LENGTHS {
        let vectors: Vec<Vec<f32>> = (0..6).map(|stream| draw(stream, *len)).collect();
        let y = draw(9, *len);
        for count in 0..=6 {
            let weights = [0.25, 0.1, 0.3, 0.07, 0.2, 0.08];
            let terms: Vec<(f32, &[f32])> =
                weights.into_iter().zip(vectors[..count].iter().map(|x| &x[..])).collect();
            for place in 0..=count {
                let expected = plain_mix(0.4, place, &y, &terms);
                let mut given = y.clone();
                super::mix(0.4, place, &mut given, &terms);
                assert_same(&given, &expected);
                for level in Level::all() {
                    let mut given = y.clone();
                    let (before, after) = terms.split_at(place);
                    loops::mix(level, 0, &mut given, (before, 0.4, after));
                    assert_same(&given, &expected);
                }
            }
        }
    }
}

/// The documented tree: 16 accumulators per block, halved; then the blocks in order.
fn plain_dot(x: &[f32], y: &[f32]) -> f64 {
    let of_block = |(x, y): (&[f32], &[f32])| {
        let mut sums = vec![0.0; 16];
        for (k, (x, y)) in x.iter().zip(y).enumerate() {
            sums[k % 16] += f64::from(*x) * f64::from(*y);
        }
        while sums.len() > 1 {
            let upper = sums.split_off(sums.len() / 2);
            sums.iter_mut().zip(upper).for_each(|(lower, upper)| *lower += upper);
        }
        sums[0]
    };
    x.chunks(BLOCK).zip(y.chunks(BLOCK)).map(of_block).fold(0.0, |sum, block| sum + block)
}

#[test]
fn reductions_follow_one_tree_on_every_instruction_set() {
    for len in LENGTHS {
        let finite = |stream| -> Vec<f32> {
            draw(stream, *len).into_iter().map(|x| if x.is_finite() { x } else { 1.0 }).collect()
        };
        for (x, y) in [(finite(0), finite(1)), (draw(0, *len), draw(1, *len))] {
            assert_same_number(super::dot(&x, &y), plain_dot(&x, &y));
            assert_same_number(super::sum_of_squares(&x), plain_dot(&x, &x));
            let (x, y) = (&x[..BLOCK.min(*len)], &y[..BLOCK.min(*len)]);
            for level in Level::all() {
                assert_same_number(loops::dot_block(level, x, y), plain_dot(x, y));
                assert_same_number(loops::squares_block(level, x), plain_dot(x, x));
            }
        }
    }
}

#[test]
fn long_vectors_give_the_same_bits_on_any_number_of_threads() {
    let mut rng = Rng::new(1, "long", 0);
    let mut draw = || (0..LONG).map(|_| rng.uniform() as f32 - 0.5).collect::<Vec<f32>>();
    let (p, y) = (draw(), draw());
    let expected: Vec<f32> = y.iter().zip(&p).map(|(y, p)| y + 0.3 * p).collect();
    let mixed = plain_mix(0.5, 1, &y, &[(0.2, &p), (0.3, &y)]);
    let dot = plain_dot(&p, &y);
    for threads in [1, 2, 3, 16, 0] {
        super::set_threads(threads);
        let mut given = y.clone();
        super::axpy(0.3, &p, &mut given);
        assert_same(&given, &expected);
        given.copy_from_slice(&y);
        super::mix(0.5, 1, &mut given, &[(0.2, &p), (0.3, &y)]);
        assert_same(&given, &mixed);
        assert_same_number(super::dot(&p, &y), dot);
    }
}

#[test]
fn clipping_shortens_what_is_too_long_and_nothing_else() {
    let mut x = [3.0, 4.0];
    super::clip(5.0, &mut x);
    assert_eq!(x, [3.0, 4.0]);
    super::clip(2.5, &mut x);
    assert_eq!(x, [1.5, 2.0]);
    assert_eq!(super::norm(&x), 2.5);
    assert_eq!(super::norm(&[]), 0.0);
}

#[test]
#[should_panic(expected = "lengths agree")]
fn vectors_of_different_lengths_are_a_bug() {
    super::mix(0.5, 0, &mut [1.0, 2.0], &[(0.5, &[1.0])]);
}
