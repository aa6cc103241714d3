//! The topology of a run: built when the run is prepared, and again when a worker is lost.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use quelea_core::options::Value;
use quelea_core::properties::{Properties, TopologyRequirement};
use quelea_core::run_spec::MakeTopology;
use quelea_core::topology::{self, GroupExchange, Schedule, TopologyError};

use super::checks::averages_within_hosts;
use crate::config::Config;
use crate::config::chosen::Chosen;
use crate::config::source::{TOPOLOGY_BYTES, read_text};
use crate::error::RequestError;

/// What makes the topology, for algorithms that ask for one.
pub(super) fn make_topology(
    config: &Config,
    properties: &Properties,
) -> Result<Option<TopologyMaker>, RequestError> {
    if properties.topology == TopologyRequirement::Nothing {
        return Ok(None);
    }
    let make = TopologyMaker::new(config.topology.clone(), config.seed)?;
    Ok(Some(TopologyMaker { need: properties.topology, ..make }))
}

/// Makes the topology of a run, now and after a change of membership.
pub struct TopologyMaker {
    row: Chosen<topology::Entry>,
    seed: u64,
    /// The file of a custom topology.
    text: Option<String>,
    /// What the method asks of it.
    need: TopologyRequirement,
}

impl TopologyMaker {
    /// For this row; reads the file of a custom topology.
    pub fn new(row: Chosen<topology::Entry>, seed: u64) -> Result<TopologyMaker, RequestError> {
        let named = row.options().iter().find(|(name, _)| *name == "file");
        let text = match named {
            Some((_, Value::Text(path))) if !path.is_empty() => {
                let refuse = |problem| {
                    let given = toml::Value::from(path.as_str());
                    RequestError::field("topology.file", given, problem)
                };
                Some(read_text(Path::new(path), TOPOLOGY_BYTES).map_err(refuse)?)
            }
            _ => None,
        };
        Ok(TopologyMaker { row, seed, text, need: TopologyRequirement::Mixing })
    }

    /// The topology over workers on these hosts.
    pub fn build(&self, hosts: &[u32]) -> Result<Arc<Schedule>, RequestError> {
        self.request(hosts).map(Arc::new).map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &TopologyError) -> RequestError {
        let (key, given) = match error {
            TopologyError::NoFile | TopologyError::File { .. } => {
                ("file", self.row.options().text("file"))
            }
            _ => ("name", self.row.entry.meta.name),
        };
        RequestError::field(format!("topology.{key}"), toml::Value::from(given), error.to_string())
    }

    fn request(&self, hosts: &[u32]) -> Result<Schedule, TopologyError> {
        let mut hosts = hosts.to_vec();
        if averages_within_hosts(&self.row) {
            let mut seen = BTreeSet::new();
            hosts.retain(|host| seen.insert(*host));
        }
        let request = topology::TopologyRequest {
            hosts: &hosts,
            seed: self.seed,
            options: self.row.options(),
            text: self.text.as_deref(),
        };
        let schedule = match self.need {
            TopologyRequirement::Edges => self.row.entry.build_edges(&request),
            _ => self.row.entry.build(&request),
        };
        let groups = GroupExchange::named(self.row.options().text(topology::GROUPS.name));
        Ok(schedule?.with_groups(groups))
    }

    pub(super) fn into_function(self) -> MakeTopology {
        Arc::new(move |hosts| self.request(hosts).ok().map(Arc::new))
    }
}
