//! Makes the node of a rank.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::loan::SharedVector;
use super::progress::GlobalProgress;
use super::{Node, Phase};
use crate::algorithms::hierarchy;
use crate::codec::Coder;
use crate::contract::Piece;
use crate::layout::{Bucket, Layout, intersect};
use crate::message::Rank;
use crate::optim::Optimizer;
use crate::payload::Pool;
use crate::poison::Inspection;
use crate::problems::Computed;
use crate::properties::{Budget, OptimizerSite};
use crate::random::Rng;
use crate::run_spec::RunSpec;
use crate::time::Time;
use crate::view::View;

impl RunSpec {
    /// The node of `rank` in the first view, with message memory from `pool`.
    pub fn node(&self, rank: Rank, pool: Pool) -> Node {
        self.node_in(&self.view, rank, pool)
    }

    /// The elements of the model that `rank` holds, and how they are cut.
    fn holding(&self, rank: Rank) -> (Range<usize>, Arc<Layout>) {
        match rank.index().checked_sub(self.seats()) {
            Some(server) => {
                let shard = self.shards()[server].clone();
                (shard.clone(), Arc::new(self.layout.restricted(&shard)))
            }
            None => (0..self.initial.len(), Arc::clone(&self.layout)),
        }
    }

    /// The node of `rank` in `view`, before the start.
    pub fn node_in(&self, view: &Arc<View>, rank: Rank, pool: Pool) -> Node {
        let properties = self.properties();
        let is_server = rank.index() >= self.seats();
        let shards = self.shards();
        let (held, layout) = self.holding(rank);
        let params = self.initial[held.clone()].to_vec();
        let algorithm = if is_server {
            (self.entry.server.expect("the entry says that it has servers"))(&self.options)
        } else {
            hierarchy::wrap((self.entry.worker)(&self.options), &self.view)
        };
        let optimizes = is_server == (properties.optimizer == OptimizerSite::Servers);
        let optimizer = self.optimizer_of(&if optimizes { held } else { 0..0 });
        let steps = if properties.budget == Budget::Rounds { self.steps } else { u64::MAX };
        Node {
            rank,
            is_server,
            properties,
            algorithm,
            boundary: Arc::new(AtomicUsize::new(params.len())),
            grad: vec![0.0; params.len()].into(),
            params: params.into(),
            spare: SharedVector::default(),
            pieces: if is_server {
                Vec::new()
            } else {
                pieces(&self.layout, &shards, self.seats())
            },
            optimized: vec![0; layout.buckets.len()],
            asked: Vec::new(),
            layout,
            optimizer,
            learning_rate: Arc::clone(&self.learning_rate),
            progress: GlobalProgress::new(self, properties.budget),
            clip: self.clip,
            share: share(&self.samples, view, rank),
            reweigh: 1.0,
            samples: Arc::clone(&self.samples),
            coder: Coder::new(self.codec.entry, &self.codec.options, self.seed),
            rng: Rng::new(self.seed, "algorithm", u64::from(rank.0)),
            view: Arc::clone(view),
            pool,
            step: 0,
            steps,
            phase: Phase::New,
            outside: false,
            computed: Computed::default(),
            held: Default::default(),
            inspection: Inspection::default(),
            origin: Time::ZERO,
            effects: Vec::new(),
            queue: VecDeque::new(),
            out: Vec::new(),
        }
    }

    /// The optimizer of this part of the vector.
    fn optimizer_of(&self, part: &Range<usize>) -> Box<dyn Optimizer> {
        let mut optimizer = (self.optimizer)(part.len());
        optimizer.set_tensors(&self.layout.tensor_ranges(part));
        optimizer
    }
}

/// `samples_i · n / Σ samples`: with it, the plain mean over the workers is the mean over samples.
pub(super) fn share(samples: &[u32], view: &View, rank: Rank) -> f32 {
    let of = |rank: &Rank| samples.get(rank.index()).map_or(1.0, |samples| f64::from(*samples));
    let sum: f64 = view.workers.iter().map(of).sum();
    (of(&rank) * view.workers.len() as f64 / sum) as f32
}

fn pieces(layout: &Layout, shards: &[Range<usize>], workers: usize) -> Vec<Vec<Piece>> {
    let mut index = 0;
    let mut of_bucket = |bucket: &Bucket| {
        let held = shards.iter().enumerate().filter_map(|(server, shard)| {
            let range = intersect(&bucket.range, shard)?;
            index += 1;
            Some(Piece { server: Rank::from(workers + server), range, index: index - 1 })
        });
        held.collect()
    };
    layout.buckets.iter().map(&mut of_bucket).collect()
}
