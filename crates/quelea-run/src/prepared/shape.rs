//! The shape of a run: its ranks, where they are, and who mixes with whom. It needs no data.

use quelea_core::message::Rank;
use quelea_core::topology::Schedule;
use quelea_core::view::View;
use serde::Serialize;

use super::{CheckedConfig, PreparedRun, averages_within_hosts};
use crate::config::Config;
use crate::error::RequestError;

/// Rounds that are listed; of topologies that are drawn at random, the first.
const ROUNDS_MAX: usize = 16;

/// Who takes part in a run, and who mixes with whom.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunShape {
    /// Number of workers; they are the first ranks.
    pub workers: usize,
    /// The host of every rank, servers included.
    pub hosts: Vec<u32>,
    /// Whether workers take their steps together.
    pub synchronous: bool,
    /// For algorithms that have a topology.
    pub topology: Option<TopologyEdges>,
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
        Ok(RunShape::of_view(&view, seats, checked.properties.synchronous))
    }

    fn of_view(view: &View, workers: usize, synchronous: bool) -> RunShape {
        let mixing = view.between().map_or(view, |between| between);
        let topology = mixing.topology(0).map(|(members, schedule)| edges(members, schedule));
        RunShape { workers, hosts: view.hosts.to_vec(), synchronous, topology }
    }
}

impl PreparedRun {
    /// Who takes part, and who mixes with whom at its beginning.
    pub fn shape(&self) -> RunShape {
        let setup = &self.setup;
        RunShape::of_view(&setup.view, setup.seats(), setup.properties().synchronous)
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
}
