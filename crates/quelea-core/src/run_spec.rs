//! What the nodes of a run have in common.

use std::ops::Range;
use std::sync::Arc;

use crate::algorithms::{Entry, hierarchy};
use crate::codec;
use crate::contract::JoinRule;
use crate::layout::Layout;
use crate::message::Rank;
use crate::optim::{LearningRate, Optimizer, ScheduleClock};
use crate::options::Options;
use crate::poison::PoisonPolicy;
use crate::properties::Properties;
use crate::topology::Schedule;
use crate::view::{View, ViewChange};

/// Makes an optimizer for a vector of this length.
pub type MakeOptimizer = Arc<dyn Fn(usize) -> Box<dyn Optimizer> + Send + Sync>;

/// Makes the topology over these workers (their hosts are given in order).
pub type MakeTopology = Arc<dyn Fn(&[u32]) -> Option<Arc<Schedule>> + Send + Sync>;

/// Everything that the nodes of a run have in common.
#[derive(Clone)]
pub struct RunSpec {
    /// The algorithm.
    pub entry: &'static Entry,
    /// Its options.
    pub options: Options,
    /// What vectors travel as.
    pub codec: CodecChoice,
    /// How the model is cut.
    pub layout: Arc<Layout>,
    /// Where every worker starts.
    pub initial: Arc<[f32]>,
    /// The optimizer.
    pub optimizer: MakeOptimizer,
    /// The learning rate by step.
    pub learning_rate: LearningRate,
    /// Which step that is, in asynchronous algorithms.
    pub schedule_clock: ScheduleClock,
    /// Clip gradients to this global norm.
    pub clip: Option<f32>,
    /// Samples that a gradient of each worker is averaged over, so that one of more samples
    /// counts for more; empty if all are alike.
    pub samples: Arc<[u32]>,
    /// Steps per worker.
    pub steps: u64,
    /// The run's seed.
    pub seed: u64,
    /// The first view.
    pub view: Arc<View>,
    /// Rebuilds the topology when membership changes.
    pub topology: Option<MakeTopology>,
    /// What a real rank does about messages with values that no honest rank sends.
    pub poison: PoisonPolicy,
    /// Which data a gradient is of.
    pub data: DataAssignment,
}

/// Which data a gradient of a worker is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataAssignment {
    /// The worker's own part, in an order of its own.
    #[default]
    Own,
    /// The next unit of all data, in one order for all workers. Only where all workers together have a number
    /// of gradients ([`Budget::TotalGradients`](crate::properties::Budget::TotalGradients)).
    Shared,
}

/// A codec with its options.
#[derive(Clone, Debug)]
pub struct CodecChoice {
    /// The codec.
    pub entry: &'static codec::Entry,
    /// Its options.
    pub options: Options,
}

impl Default for CodecChoice {
    /// Vectors travel as they are.
    fn default() -> CodecChoice {
        let entry = codec::find("f32").expect("in the table");
        CodecChoice { entry, options: Options::defaults(entry.meta.options) }
    }
}

impl RunSpec {
    /// What drivers need to know of the algorithm.
    pub fn properties(&self) -> Properties {
        let properties = (self.entry.properties)(&self.options);
        match self.view.between() {
            Some(_) => hierarchy::properties(properties, &self.view),
            None => properties,
        }
    }

    /// The same run for a virtual cluster, as run files and the library mean it: there a run that diverges, or
    /// that a scenario attacks, is to be seen to its end, so that [`PoisonPolicy::Stop`], the default, stops
    /// nothing.
    pub fn simulated(&self) -> RunSpec {
        let is_stopped = self.poison == PoisonPolicy::Stop;
        let poison = if is_stopped { PoisonPolicy::Ignore } else { self.poison };
        RunSpec { poison, ..self.clone() }
    }

    /// Ranks in all: workers, then servers.
    pub fn ranks(&self) -> usize {
        self.view.hosts.len()
    }

    /// Number of workers at the start.
    pub fn workers(&self) -> usize {
        self.view.workers.len()
    }

    /// Ranks of workers in all: those at the start, and those as which others may join later.
    pub fn seats(&self) -> usize {
        self.ranks() - self.view.servers.len()
    }

    /// The shard of each server, in order of rank.
    pub fn shards(&self) -> Vec<Range<usize>> {
        self.layout.shards(self.view.servers.len())
    }

    /// Whether the loss of `rank` ends the run: it mixes for others of its host, and none of them
    /// could continue from the parameters alone.
    pub fn cannot_lose(&self, view: &View, rank: Rank) -> bool {
        view.is_leader_of_others(rank) && !(self.entry.worker)(&self.options).can_be_replaced()
    }

    /// The view after `lost` were lost, with the topology rebuilt over the survivors from
    /// `from_step` on.
    pub fn view_without(&self, view: &View, lost: &[Rank], from_step: u64) -> View {
        let mixing = view.mixing_without(lost);
        let hosts: Vec<u32> = mixing.iter().map(|rank| view.hosts[rank.index()]).collect();
        let rebuilt = self.topology.as_ref().and_then(|make| make(&hosts));
        view.without(lost, from_step, rebuilt)
    }

    /// The view that follows `view` by this change.
    pub fn view_after(&self, view: &View, change: &ViewChange) -> View {
        if change.joined.is_empty() {
            return self.view_without(view, &change.ranks(), change.from_step);
        }
        let mut workers = [&view.workers, &change.joined[..]].concat();
        workers.sort_unstable();
        let hosts: Vec<u32> = workers.iter().map(|rank| view.hosts[rank.index()]).collect();
        let rebuilt = self.topology.as_ref().and_then(|make| make(&hosts));
        view.with(&change.joined, change.from_step, rebuilt)
    }

    /// Why no worker can join this run, if none can.
    pub fn join_refusal(&self) -> Option<&'static str> {
        if self.view.between().is_some() {
            return Some("workers of a host average exactly (`topology.within_host`)");
        }
        match (self.entry.worker)(&self.options).join_rule() {
            JoinRule::No(why) => Some(why),
            JoinRule::Common | JoinRule::Whole => None,
        }
    }

    /// Why a real run ends with the process that controls it, if it does: another process cannot take over.
    pub fn takeover_refusal(&self) -> Option<&'static str> {
        (self.ranks() > self.seats()).then_some(
            "the servers of its algorithm live there, and nobody else has their part of the model",
        )
    }

    /// Why no workers can join as these ranks beside those of `view`, if they cannot: the topology must be
    /// built over all of them. In the place of a worker that was there before, a worker takes over that one's
    /// place in the topology.
    pub fn growth_refusal(&self, view: &View, joining: &[Rank]) -> Option<String> {
        let make = self.topology.as_ref()?;
        let mut workers = [&view.workers, joining].concat();
        workers.sort_unstable();
        workers.dedup();
        let hosts: Vec<u32> = workers.iter().map(|rank| view.hosts[rank.index()]).collect();
        let count = workers.len();
        make(&hosts).is_none().then(|| format!("its topology cannot be built over {count} workers"))
    }

    /// The first view and those that follow it by these changes, in order.
    pub fn views(&self, changes: &[ViewChange]) -> Vec<Arc<View>> {
        let mut views = vec![Arc::clone(&self.view)];
        for change in changes {
            let last = views.last().expect("the first view is there");
            let next = Arc::new(self.view_after(last, change));
            views.push(next);
        }
        views
    }
}
