//! Robust aggregation: one vector from many, some of which may be anything.
//!
//! Pure functions over slices of vectors, given in the order of ranks; the same vectors give the same
//! bits. A vector with an element that is not finite counts as infinitely far from all others.
//!
//! | rule | result | holds for |
//! |---|---|---|
//! | `median` | the median of every coordinate (Yin et al. 2018) | n > 2f |
//! | `trimmed-mean` | per coordinate, the mean without the f largest and f smallest (Yin et al. 2018) | n > 2f |
//! | `krum` | the vector with the least sum of squared distances to its n − f − 2 nearest (Blanchard et al. 2017) | n > 2f + 2 |
//! | `multi-krum` | the mean of the n − f vectors with the least such sums | n > 2f + 2 |
//! | `geometric-median` | the point with the least sum of distances, by smoothed Weiszfeld steps (Pillutla et al. 2022) | n > 2f |
//! | `centered-clipping` | the last result plus the mean of the differences to it, each clipped (Karimireddy et al. 2021) | n > 2f |
//! | `majority-vote` | per coordinate, 1 or −1: the sign that most have (Bernstein et al. 2019) | n > 2f, where all others agree |
//!
//! Before a rule, nearest-neighbour mixing (Allouah et al. 2023) replaces every vector by the mean of
//! its n − f nearest, and bucketing (Karimireddy et al. 2022) replaces random groups by their means.

mod clipping;
mod coordinates;
mod distances;
mod geometric;
mod ledger;
mod mixing;
mod neighbours;
#[cfg(test)]
mod tests;

use crate::options::{OptionKind, OptionSpec, Options};
use crate::random::Rng;

pub use clipping::centered_clipping;
pub use coordinates::{majority_vote, mean, median, trimmed_mean};
pub use distances::{SquaredDistances, krum, multi_krum};
pub use geometric::geometric_median;
pub(crate) use ledger::GradientLedger;
pub use mixing::{bucketing, group_size, nearest_neighbour_mixing};
pub use neighbours::{NeighbourDistance, NeighbourRule, screened_mean};

/// `aggregate`.
pub const AGGREGATE: OptionSpec = OptionSpec {
    name: "aggregate",
    kind: OptionKind::Choice(&[
        "mean",
        "median",
        "trimmed-mean",
        "krum",
        "multi-krum",
        "geometric-median",
        "centered-clipping",
        "majority-vote",
    ]),
    help: "how the gradients of a step become one; majority-vote gives 1 or -1 per element",
};

/// `pre_aggregate`.
pub const PRE_AGGREGATE: OptionSpec = OptionSpec {
    name: "pre_aggregate",
    kind: OptionKind::Choice(&["none", "nnm", "bucketing"]),
    help: "what comes before it: nearest-neighbour mixing, or means of random groups",
};

/// `byzantine`.
pub const BYZANTINE: OptionSpec = OptionSpec {
    name: "byzantine",
    kind: OptionKind::Whole { default: 0, min: 0, max: 1 << 20 },
    help: "how many workers may send anything; at most what leaves the others a majority counts",
};

/// `clip_radius`.
pub const CLIP_RADIUS: OptionSpec = OptionSpec {
    name: "clip_radius",
    kind: OptionKind::Real { default: 1.0, min: f64::MIN_POSITIVE, max: 1e30 },
    help: "longest difference that centered clipping leaves as it is",
};

/// `iterations`.
pub const ITERATIONS: OptionSpec = OptionSpec {
    name: "iterations",
    kind: OptionKind::Whole { default: 8, min: 1, max: 1000 },
    help: "steps of the geometric median and of centered clipping",
};

/// A rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AggregationRule {
    /// The mean, which one vector can move anywhere.
    #[default]
    Mean,
    /// [`median`].
    Median,
    /// [`trimmed_mean`].
    TrimmedMean,
    /// [`krum`].
    Krum,
    /// [`multi_krum`].
    MultiKrum,
    /// [`geometric_median`].
    GeometricMedian,
    /// [`centered_clipping`].
    CenteredClipping,
    /// [`majority_vote`].
    MajorityVote,
}

/// What comes before a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreAggregation {
    /// Nothing.
    #[default]
    None,
    /// [`nearest_neighbour_mixing`].
    NearestNeighbours,
    /// [`bucketing`].
    Bucketing,
}

/// A rule with what comes before it and all its numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Aggregation {
    /// The rule.
    pub rule: AggregationRule,
    /// What comes before it.
    pub before: PreAggregation,
    /// How many vectors may be anything.
    pub byzantine: usize,
    /// Where centered clipping clips.
    pub clip_radius: f64,
    /// Steps of the rules that iterate.
    pub iterations: usize,
}

impl Aggregation {
    /// What the options of this module say.
    pub fn of(options: &Options) -> Aggregation {
        let rule = match options.text(AGGREGATE.name) {
            "median" => AggregationRule::Median,
            "trimmed-mean" => AggregationRule::TrimmedMean,
            "krum" => AggregationRule::Krum,
            "multi-krum" => AggregationRule::MultiKrum,
            "geometric-median" => AggregationRule::GeometricMedian,
            "centered-clipping" => AggregationRule::CenteredClipping,
            "majority-vote" => AggregationRule::MajorityVote,
            _ => AggregationRule::Mean,
        };
        let before = match options.text(PRE_AGGREGATE.name) {
            "nnm" => PreAggregation::NearestNeighbours,
            "bucketing" => PreAggregation::Bucketing,
            _ => PreAggregation::None,
        };
        Aggregation {
            rule,
            before,
            byzantine: options.whole(BYZANTINE.name) as usize,
            clip_radius: options.real(CLIP_RADIUS.name),
            iterations: options.whole(ITERATIONS.name) as usize,
        }
    }

    /// Whether it is the mean of all vectors, which can be summed as they come.
    pub fn is_mean(&self) -> bool {
        self.rule == AggregationRule::Mean && self.before == PreAggregation::None
    }

    /// Whether the next result depends on the last one.
    pub fn has_center(&self) -> bool {
        self.rule == AggregationRule::CenteredClipping
    }

    /// The aggregate of `vectors`, at least one, into `out`. `center` is the last result, for rules
    /// that [have one](Aggregation::has_center); `rng` draws the groups of bucketing.
    pub fn combine(&self, vectors: &[&[f32]], center: &[f32], rng: &mut Rng, out: &mut [f32]) {
        let f = tolerated(self.byzantine, vectors.len());
        match self.before {
            PreAggregation::None => self.apply(vectors, f, center, out),
            PreAggregation::NearestNeighbours => {
                let mixed = nearest_neighbour_mixing(vectors, f);
                self.apply(&slices(&mixed), f, center, out);
            }
            PreAggregation::Bucketing => {
                let size = group_size(vectors.len(), self.least(f));
                let means = bucketing(vectors, size, rng);
                self.apply(&slices(&means), f, center, out);
            }
        }
    }

    fn apply(&self, vectors: &[&[f32]], f: usize, center: &[f32], out: &mut [f32]) {
        match self.rule {
            AggregationRule::Mean => mean(vectors, out),
            AggregationRule::Median => median(vectors, out),
            AggregationRule::TrimmedMean => trimmed_mean(vectors, f, out),
            AggregationRule::Krum => krum(vectors, f, out),
            AggregationRule::MultiKrum => multi_krum(vectors, f, out),
            AggregationRule::GeometricMedian => geometric_median(vectors, self.iterations, out),
            AggregationRule::MajorityVote => majority_vote(vectors, out),
            AggregationRule::CenteredClipping => {
                centered_clipping(vectors, center, self.clip_radius, self.iterations, out)
            }
        }
    }

    /// The least number of vectors of which `f` may be anything.
    pub fn least(&self, f: usize) -> usize {
        match self.rule {
            _ if f == 0 => usize::MAX,
            AggregationRule::Krum | AggregationRule::MultiKrum => 2 * f + 3,
            _ => 2 * f + 1,
        }
    }

    /// How often all of `n` vectors are read, for the cost of the arithmetic.
    pub fn passes(&self, n: usize) -> usize {
        let rule = match self.rule {
            AggregationRule::Mean
            | AggregationRule::Median
            | AggregationRule::TrimmedMean
            | AggregationRule::MajorityVote => 1,
            AggregationRule::Krum | AggregationRule::MultiKrum => n,
            AggregationRule::GeometricMedian => 1 + 2 * self.iterations,
            AggregationRule::CenteredClipping => 2 * self.iterations,
        };
        let before = match self.before {
            PreAggregation::None => 0,
            PreAggregation::NearestNeighbours => 2 * n,
            PreAggregation::Bucketing => 1,
        };
        rule + before
    }
}

/// How many of `n` vectors may be anything: `byzantine`, but always fewer than half of them.
pub fn tolerated(byzantine: usize, n: usize) -> usize {
    byzantine.min(n.saturating_sub(1) / 2)
}

fn slices(vectors: &[Vec<f32>]) -> Vec<&[f32]> {
    vectors.iter().map(Vec::as_slice).collect()
}
