//! What the rounds of a topology ask of cards, looked at once and used for every row that gossips.

use quelea_core::options::Options;
use quelea_core::properties::TopologyRequirement;
use quelea_core::topology::{self, Round, Schedule};

use crate::grouped::GroupedRounds;
use crate::scenario::Scenario;

/// A topology over the workers of a scenario.
#[derive(Debug)]
pub struct Mixing {
    /// One period of it.
    pub rounds: Vec<RoundLoad>,
    /// The same, where all rounds consist of groups, for methods that average them by all-reduce.
    pub groups: Option<GroupedRounds>,
    /// The topology itself.
    pub schedule: Schedule,
}

/// One round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundLoad {
    /// Vectors that leave or reach the busiest card of a host.
    outside: f64,
    /// Vectors that leave the busiest worker for others of its host.
    inside: f64,
    /// Vectors that a worker sends, on average.
    pub neighbours: f64,
}

/// Rounds that are looked at of a topology that never repeats.
const ROUNDS: usize = 8;
/// Beyond so many workers the eigenvalues of other topologies than rings are not computed.
const EIGENVALUES_WORKERS_MAX: usize = 256;

impl Mixing {
    /// The topology of this name; the error says why it does not fit the workers.
    pub fn new(s: &Scenario, name: &str, edges_only: bool) -> Result<Mixing, String> {
        let entry: &topology::Entry =
            s.registry.find(name).map_err(|_| format!("`{name}` is not a topology"))?;
        let hosts: Vec<u32> = (0..s.workers).map(|worker| s.host_of(worker) as u32).collect();
        let params = Options::defaults(entry.meta.options);
        let request =
            topology::TopologyRequest { hosts: &hosts, seed: 1, options: &params, text: None };
        let built = if edges_only { entry.build_edges(&request) } else { entry.build(&request) };
        let schedule = built.map_err(|error| error.to_string())?;
        let rounds = schedule.period().unwrap_or(ROUNDS) as u64;
        let rounds = (0..rounds).map(|step| RoundLoad::new(s, &schedule.round(step))).collect();
        Ok(Mixing { rounds, groups: GroupedRounds::new(s, &schedule), schedule })
    }

    /// Why a method with this need cannot use it, if it cannot.
    pub fn refusal(&self, need: TopologyRequirement) -> Option<String> {
        let round = self.schedule.round(0);
        let costly = need == TopologyRequirement::MildlyNegative
            && round.workers() > EIGENVALUES_WORKERS_MAX;
        if costly && self.schedule.name() != "ring" {
            return Some("its eigenvalues are not computed for so many workers".into());
        }
        need.refusal(&self.schedule)
    }
}

impl RoundLoad {
    fn new(s: &Scenario, round: &Round) -> RoundLoad {
        let edges: Vec<(usize, usize)> = round.edges().collect();
        let (mut leaving, mut reaching) = (vec![0.0; s.hosts], vec![0.0; s.hosts]);
        let mut inside = vec![0.0_f64; s.workers];
        for (from, to) in &edges {
            let (a, b) = (s.host_of(*from), s.host_of(*to));
            if a == b {
                inside[*from] += 1.0;
            } else {
                leaving[a] += 1.0;
                reaching[b] += 1.0;
            }
        }
        let most = |counts: &[f64]| counts.iter().copied().fold(0.0, f64::max);
        RoundLoad {
            outside: most(&leaving).max(most(&reaching)),
            inside: most(&inside),
            neighbours: edges.len() as f64 / s.workers as f64,
        }
    }

    fn latency(&self, s: &Scenario) -> f64 {
        if self.outside > 0.0 { s.latency } else { s.internal_latency }
    }

    /// Seconds of an exchange of so many bytes per vector, in small pieces.
    pub fn seconds(&self, s: &Scenario, bytes: f64) -> f64 {
        self.latency(s) + bytes * self.busy(s)
    }

    /// Seconds that a byte of every vector keeps the busiest card busy.
    pub fn busy(&self, s: &Scenario) -> f64 {
        (self.outside / s.bandwidth).max(self.inside / s.internal)
    }
}
