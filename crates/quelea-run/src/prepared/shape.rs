//! The shape of a run: its ranks, where they are, and who mixes with whom. It needs no data.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use quelea_core::message::Rank;
use quelea_core::run_spec::MakeTopology;
use quelea_core::topology::Schedule;
use quelea_core::view::View;
use serde::Serialize;

use super::{CheckedConfig, PreparedRun, TopologyMaker, averages_within_hosts};
use crate::config::Config;
use crate::error::RequestError;

/// Rounds that are listed; of topologies that are drawn at random, the first.
const ROUNDS_MAX: usize = 16;

/// Who takes part in a run, and who mixes with whom.
#[derive(Clone, Debug, Default)]
pub struct RunShape {
    /// Number of workers; they are the first ranks.
    pub workers: usize,
    /// The host of every rank, servers included.
    pub hosts: Vec<u32>,
    /// Whether workers take their steps together.
    pub synchronous: bool,
    /// For algorithms that have a topology.
    pub topology: Option<TopologyEdges>,
    /// What makes it anew when ranks are lost or join.
    pub rebuild: Option<TopologyRebuild>,
}

/// The rounds of a topology as pairs of ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TopologyEdges {
    /// Its name.
    pub name: String,
    /// After how many rounds they repeat; nothing where they are drawn at random.
    pub period: Option<usize>,
    /// Messages of each round, from and to; at most 16 rounds.
    pub rounds: Vec<Vec<(u32, u32)>>,
}

/// Makes the topology of a run anew over those who are left, as the run itself does
/// ([`RunSpec::view_without`](quelea_core::run_spec::RunSpec::view_without)).
#[derive(Clone)]
pub struct TopologyRebuild {
    make: MakeTopology,
    hosts: Arc<[u32]>,
    /// Only the first living worker of each host mixes.
    is_of_hosts: bool,
    /// The last one that was made: whoever looks at a run asks for the same again and again.
    last: Arc<Mutex<Option<RebuiltTopology>>>,
}

struct RebuiltTopology {
    living: Vec<u32>,
    topology: Option<Arc<TopologyEdges>>,
}

impl fmt::Debug for TopologyRebuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TopologyRebuild { hosts, is_of_hosts, .. } = self;
        f.debug_struct("TopologyRebuild").field("hosts", hosts).field("of", is_of_hosts).finish()
    }
}

impl TopologyRebuild {
    /// The topology over these workers, in order of rank; nothing where it cannot be made anew, so that
    /// the old one stays without those who are gone.
    pub fn over(&self, living: &[u32]) -> Option<Arc<TopologyEdges>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = last.as_ref().filter(|known| known.living == living) {
            return known.topology.clone();
        }
        let topology = self.make_over(living).map(Arc::new);
        *last = Some(RebuiltTopology { living: living.to_vec(), topology: topology.clone() });
        topology
    }

    fn make_over(&self, living: &[u32]) -> Option<TopologyEdges> {
        let host = |rank: &u32| self.hosts.get(*rank as usize).copied();
        let mut seen = BTreeSet::new();
        let mixing =
            living.iter().copied().filter(|rank| !self.is_of_hosts || seen.insert(host(rank)));
        let mixing: Vec<u32> = mixing.collect();
        let hosts: Vec<u32> = mixing.iter().map(host).collect::<Option<_>>()?;
        let members: Vec<Rank> = mixing.into_iter().map(Rank).collect();
        (self.make)(&hosts).map(|schedule| edges(&members, &schedule))
    }
}

impl RunShape {
    /// Of a configuration, which need not be prepared.
    pub fn of(config: Config) -> Result<RunShape, RequestError> {
        let checked = CheckedConfig::new(config)?;
        let (workers, seats) = (checked.config.workers, checked.config.seats());
        let servers = checked.hosts.len() - seats;
        let view = match checked.schedule {
            Some(schedule) if averages_within_hosts(&checked.config.topology) => {
                View::of_hosts(workers, checked.hosts.into(), schedule)
            }
            schedule => {
                let (spare, hosts) = (seats - workers, checked.hosts.into());
                View::with_spare_seats(workers, spare, servers, hosts, schedule)
            }
        };
        let make = checked.make.map(TopologyMaker::into_function);
        Ok(RunShape::of_view(&view, seats, make.as_ref(), checked.properties.synchronous))
    }

    fn of_view(
        view: &View,
        seats: usize,
        make: Option<&MakeTopology>,
        synchronous: bool,
    ) -> RunShape {
        let mixing = view.between().map_or(view, |between| between);
        let topology = mixing.topology(0).map(|(members, schedule)| edges(members, schedule));
        let rebuild = make.map(|make| TopologyRebuild {
            make: Arc::clone(make),
            hosts: Arc::clone(&view.hosts),
            is_of_hosts: view.between().is_some(),
            last: Arc::default(),
        });
        let (workers, hosts) = (seats, view.hosts.to_vec());
        RunShape { workers, hosts, synchronous, topology, rebuild }
    }
}

impl PreparedRun {
    /// Who takes part, and who mixes with whom at its beginning.
    pub fn shape(&self) -> RunShape {
        let setup = &self.setup;
        RunShape::of_view(
            &setup.view,
            setup.seats(),
            setup.topology.as_ref(),
            setup.properties().synchronous,
        )
    }
}

fn edges(members: &[Rank], schedule: &Schedule) -> TopologyEdges {
    let period = schedule.period();
    let count = period.unwrap_or(ROUNDS_MAX).min(ROUNDS_MAX);
    let of_round = |step: usize| {
        let round = schedule.round(step as u64);
        round.edges().map(|(from, to)| (members[from].0, members[to].0)).collect()
    };
    let rounds = (0..count).map(of_round).collect();
    TopologyEdges { name: schedule.name().to_string(), period, rounds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::source::parse;

    fn shape(text: &str) -> RunShape {
        let table = parse(text).expect("TOML");
        RunShape::of(Config::read(table, &[], None).expect("good")).expect("good")
    }

    #[test]
    fn a_ring_has_an_edge_from_and_to_both_neighbours_of_every_worker() {
        let shape =
            shape("workers = 4\nsteps = 5\nalgorithm.name = \"d-psgd\"\ntopology.name = \"ring\"");
        let topology = shape.topology.expect("d-psgd has a topology");
        let mut edges = topology.rounds[0].clone();
        edges.sort_unstable();
        let mut expected: Vec<(u32, u32)> =
            (0..4).flat_map(|i| [(i, (i + 1) % 4), (i, (i + 3) % 4)]).collect();
        expected.sort_unstable();
        assert_eq!((topology.period, edges), (Some(1), expected));
        assert!(shape.synchronous);
    }

    #[test]
    fn servers_follow_the_workers_and_have_no_topology() {
        let shape = shape("workers = 3\nsteps = 5\nalgorithm.name = \"asp\"\ncluster.servers = 2");
        assert_eq!((shape.workers, shape.hosts.len(), shape.topology), (3, 5, None));
        assert!(!shape.synchronous);
    }

    #[test]
    fn a_ring_without_a_worker_is_a_ring_of_the_others() {
        let shape =
            shape("workers = 5\nsteps = 5\nalgorithm.name = \"d-psgd\"\ntopology.name = \"ring\"");
        let rebuild = shape.rebuild.expect("d-psgd has a topology");
        let mut edges = rebuild.over(&[0, 1, 3, 4]).expect("a ring can be made").rounds[0].clone();
        edges.sort_unstable();
        // Rank 2 stood between 1 and 3, which are neighbours now.
        let around = [0, 1, 3, 4];
        let mut expected: Vec<(u32, u32)> = (0..4)
            .flat_map(|i| [(around[i], around[(i + 1) % 4]), (around[i], around[(i + 3) % 4])])
            .collect();
        expected.sort_unstable();
        assert_eq!(edges, expected);
        let again = rebuild.over(&[0, 1, 3, 4]).expect("a ring can be made");
        assert_eq!(again, rebuild.over(&[0, 1, 3, 4]).expect("a ring can be made"));
        let pair = rebuild.over(&[0, 4]).expect("a ring of two");
        assert!(pair.rounds[0].contains(&(0, 4)) && pair.rounds[0].contains(&(4, 0)));
    }

    #[test]
    fn what_is_made_anew_is_what_the_run_itself_mixes_with() {
        let text = "workers = 6\nsteps = 5\nalgorithm.name = \"d-psgd\"\n\
                    topology.name = \"exponential\"\ntask.name = \"quadratic\"";
        let config = Config::read(parse(text).expect("TOML"), &[], None).expect("good");
        let prepared = PreparedRun::new(config).expect("good");
        let setup = &prepared.setup;
        let view = setup.view_without(&setup.view, &[Rank(1), Rank(4)], 3);
        let rebuild = prepared.shape().rebuild.expect("d-psgd has a topology");
        let topology = rebuild.over(&[0, 2, 3, 5]).expect("it can be made");
        for step in 3..9 {
            let mut used: Vec<(u32, u32)> = Vec::new();
            for rank in [0, 2, 3, 5].map(Rank) {
                used.extend(view.row(step, rank).outgoing.iter().map(|to| (rank.0, to.0)));
            }
            let mut edges = topology.rounds[step as usize % topology.rounds.len()].clone();
            edges.sort_unstable();
            used.sort_unstable();
            assert_eq!(edges, used, "step {step}");
        }
    }
}
