//! Robust gossip: ClippedGossip, CS₊-RG and NNA. Every worker takes a step, and mixes what its neighbours
//! send so that a few of them cannot move it anywhere.
//!
//! ```text
//! upon g[b]:                        x_i[b] ← x_i[b] − η·Opt(g[b]);  send x_i[b]
//! upon all buckets of x_j of this step:
//!                                   d_j ← |x_j − x_i| over all buckets
//!   ClippedGossip, CS₊-RG:          x_i ← x_i + Σ_j W_ij·min(1, τ/d_j)·(x_j − x_i)
//!   NNA:                            x_i ← Σ_{j kept} W_ij x_j / Σ_{j kept} W_ij, itself kept
//! with b = byzantine·max_j W_ij, the weight that may be anybody's, and neighbours from far to near:
//!   ClippedGossip:                  τ² = Σ_j W_ij d_j² / b without the farthest of weight b
//!   CS₊-RG:                         τ = the largest d_j without the farthest of weight 2b
//!   NNA:                            all but the `byzantine` farthest neighbours are kept
//! upon a lost peer:                 its weight goes to myself at once
//! ```
//! With `byzantine` = 0 all three are D-PSGD in adapt-then-combine form.

use std::collections::BTreeMap;

use super::{Codecs, Entry, Gathers, When};
use crate::codec::CodecShape;
use crate::contract::{Context, Mode};
use crate::kit::exchange::{self, Exchange, Gathered, GossipMethod, SyncGossip};
use crate::message::{Message, Rank};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec};
use crate::properties::Properties;
use crate::robust::{NeighbourDistance, NeighbourRule};
use crate::state::Visitor;

/// `byzantine`, of every robust gossip method.
pub(super) const BYZANTINE: OptionSpec = OptionSpec {
    name: "byzantine",
    kind: OptionKind::Whole { default: 0, min: 0, max: 1 << 20 },
    help: "how many neighbours of a worker may send anything; 0 is plain gossip",
};

const LOST_PEER: &str = "its weight goes to the receivers at once; the topology is rebuilt over the \
                         survivors from an agreed step on";
const RESIZED: &str = "every worker begins with the mean of the models and of the optimizers, over \
                       the new topology";

/// Clipping and dropping move the mean.
pub(super) const PROPERTIES: Properties = Properties { keeps_mean: false, ..exchange::PROPERTIES };

/// An entry of the table: all that differs is the rule.
macro_rules! entry {
    ($meta:expr, $rule:expr) => {
        Entry {
            meta: $meta,
            sends: "the model to every neighbour per step",
            lost_peer: LOST_PEER,
            resized: RESIZED,
            check: |_| Ok(()),
            codecs: |_| Codecs::OF_MODELS,
            properties: |_| PROPERTIES,
            traffic: |_| exchange::traffic(1, When::AfterGradient, Gathers::Vectors),
            worker: |options| {
                let byzantine = options.whole(BYZANTINE.name) as usize;
                SyncGossip::boxed(RobustGossip::new($rule, byzantine))
            },
            server: None,
        }
    };
}

/// ClippedGossip.
pub const CLIPPED_GOSSIP: Entry = entry!(
    Meta {
        name: "clipped-gossip",
        summary: "gossip in which differences to the neighbours are clipped to an adaptive length",
        paper: "He, Karimireddy and Jaggi 2022, arXiv:2202.01545",
        section: "ClippedGossip with the adaptive choice of its clipping radius",
        file: file!(),
        options: &[BYZANTINE],
    },
    NeighbourRule::ClippedGossip
);

/// CS₊-RG.
pub const CS_PLUS_RG: Entry = entry!(
    Meta {
        name: "cs-plus-rg",
        summary: "gossip in which the largest differences are clipped to the next smaller one",
        paper: "Gaucher, Dieuleveut and Hendrikx 2025, arXiv:2410.10418",
        section: "F-RG with the clipped sum CS₊",
        file: file!(),
        options: &[BYZANTINE],
    },
    NeighbourRule::ClippedSum
);

/// NNA.
pub const NNA: Entry = entry!(
    Meta {
        name: "nna",
        summary: "gossip that averages with the nearest neighbours only, without the farthest few",
        paper: "Farhadkhani et al. 2023, arXiv:2209.10931 (MoNNA)",
        section: "nearest-neighbour averaging; on other graphs than the complete one, by the weights of \
                  the topology",
        file: file!(),
        options: &[BYZANTINE],
    },
    NeighbourRule::Nearest
);

const MODEL: u8 = 1;

/// One worker.
struct RobustGossip {
    rule: NeighbourRule,
    /// Neighbours that may send anything.
    byzantine: usize,
    /// What came, by bucket, until the last bucket of the step is complete.
    gathered: BTreeMap<usize, Gathered>,
}

impl RobustGossip {
    fn new(rule: NeighbourRule, byzantine: usize) -> RobustGossip {
        RobustGossip { rule, byzantine, gathered: BTreeMap::new() }
    }

    /// Distances to all neighbours over all buckets, `seen` being the own model as they see it.
    fn distances(&self, cx: &Context<'_>, seen: &[f32]) -> BTreeMap<Rank, f64> {
        let mut squares: BTreeMap<Rank, f64> = BTreeMap::new();
        for (b, gathered) in &self.gathered {
            let own = &seen[cx.layout.range(*b)];
            for (rank, theirs) in gathered.vectors(0) {
                let terms = own.iter().zip(theirs);
                let sum: f64 = terms.map(|(x, y)| (f64::from(*y) - f64::from(*x)).powi(2)).sum();
                *squares.entry(rank).or_default() += sum;
            }
        }
        let length = |square: f64| if square.is_nan() { f64::INFINITY } else { square.sqrt() };
        squares.into_iter().map(|(rank, square)| (rank, length(square))).collect()
    }

    /// Mixes all buckets.
    fn mix(&mut self, cx: &mut Context<'_>) {
        let mut seen = cx.outbox.pool.copy(cx.params);
        if cx.outbox.coder.shape() == CodecShape::Rounding {
            let seen = seen.try_mut().expect("just taken, so held by nobody else");
            for bucket in &cx.layout.buckets {
                cx.outbox.round(&mut seen[bucket.range.clone()]);
            }
        }
        let distances = self.distances(cx, &seen);
        for (b, gathered) in std::mem::take(&mut self.gathered) {
            let range = cx.layout.range(b);
            let near = |(rank, weight)| NeighbourDistance { weight, distance: distances[&rank] };
            let neighbours: Vec<NeighbourDistance> = gathered.weights().map(near).collect();
            let factors = self.rule.factors(&neighbours, self.byzantine);
            gathered.pull_by(0, &seen[range.clone()], &factors, &mut cx.params[range]);
        }
    }
}

impl GossipMethod for RobustGossip {
    const GATHERS: Gathers = Gathers::Vectors;
    const AWAITED: &'static str = "its model";

    fn on_start(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) {
        exchange.enter(cx, cx.step);
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        if b == 0 {
            exchange.begin(cx, cx.step);
        }
        cx.optimize(b, Mode::Apply);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        let message = Message::new(MODEL, cx.step, b).with(cx.params_payload(b));
        exchange::post(&mut cx.outbox, &message);
        exchange.wait(b);
    }

    fn on_gathered(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange,
        b: usize,
        gathered: Gathered,
    ) {
        self.gathered.insert(b, gathered);
        let buckets = cx.layout.buckets.len();
        if self.gathered.len() == buckets {
            self.mix(cx);
            (0..buckets).for_each(|_| exchange.finish());
        }
    }

    /// Between steps there is nothing but parameters and optimizer.
    fn state(&mut self, _visitor: &mut dyn Visitor) {}
}
