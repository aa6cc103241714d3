//! `[cluster]`: what is simulated, who lives where, how many servers there are, what goes wrong.

use quelea_core::options::{OptionKind, OptionSpec};
use quelea_sim::{Cluster, KNOBS};
use toml::Table;

use super::faults::{self, whole};
use super::section::{Allowed, ExtraKey, ExtraShape, SectionValues, list as written_list};
use crate::error::RequestError;

/// The keys that say how many ranks live where; they are not of the virtual cluster alone.
const PLACEMENT: [OptionSpec; 3] = [
    whole("hosts", 0, 1, "machines that the workers are spread over in blocks; one per worker"),
    whole("servers", 1, 0, "servers, for algorithms that have them; each holds a shard"),
    OptionSpec {
        name: "server_hosts",
        kind: OptionKind::Reals,
        help: "the host of each server; hosts of their own after those of the workers",
    },
];

/// The plain keys of `[cluster]`: placement, then the knobs of the virtual cluster.
pub const KEYS: &[OptionSpec] = &{
    let mut keys = [PLACEMENT[0]; PLACEMENT.len() + KNOBS.len()];
    let mut index = 0;
    while index < keys.len() {
        keys[index] = if index < PLACEMENT.len() {
            PLACEMENT[index]
        } else {
            KNOBS[index - PLACEMENT.len()].spec
        };
        index += 1;
    }
    keys
};

/// The other keys of `[cluster]`.
pub const EXTRAS: &[ExtraKey] = &[
    ExtraKey {
        name: "slow",
        shape: ExtraShape::Numbered,
        help: "workers whose gradients take so many times as long, as in { \"3\" = 10.0 }",
    },
    ExtraKey {
        name: "host_bandwidth_gbps",
        shape: ExtraShape::Numbered,
        help: "hosts whose network card differs, as in { \"0\" = 1.0 }",
    },
    ExtraKey {
        name: "faults",
        shape: ExtraShape::Inside,
        help: "lists of crashes, leaves, joins, pauses, partitions, rules and attacks; for `simulate`",
    },
];

/// Reads `[cluster]`.
pub fn read(table: &Table) -> Result<SectionValues, RequestError> {
    Allowed { path: "cluster", keys: KEYS, extras: EXTRAS, others: &[] }.check(table)
}

/// The virtual cluster of these values, checked by itself.
pub fn build(values: &SectionValues) -> Result<Cluster, RequestError> {
    let cluster = Cluster {
        host_bandwidth_gbps: values.numbered("host_bandwidth_gbps"),
        slow: values.numbered("slow"),
        faults: faults::read(&values.inside("faults"))?,
        ..Cluster::from_options(&values.options)
    };
    cluster.check().map_err(refused)?;
    Ok(cluster)
}

/// A refusal of the virtual cluster in the words of the configuration.
pub fn refused(error: quelea_sim::ClusterError) -> RequestError {
    RequestError::field(format!("cluster.{}", error.field), error.value, error.allowed)
}

/// The host of every rank: workers in blocks, servers after them unless they are placed. Workers in `spare`
/// places come from hosts of their own.
pub fn placement(
    values: &SectionValues,
    workers: usize,
    spare: usize,
    servers: usize,
) -> Result<Vec<u32>, RequestError> {
    let hosts = match values.options.whole("hosts") as usize {
        0 => workers,
        hosts if hosts > workers => {
            let problem = format!("must be at most `workers` = {workers}");
            return Err(RequestError::field("cluster.hosts", hosts, problem));
        }
        hosts => hosts,
    };
    let of_worker = (0..workers).map(|worker| (worker * hosts / workers) as u32);
    let placed = values.options.reals("server_hosts");
    let of_servers: Vec<u32> = if servers == 0 || placed.is_empty() {
        (hosts..hosts + servers).map(|host| host as u32).collect()
    } else {
        server_hosts(placed, hosts, servers)?
    };
    let of_spare = (hosts + servers..hosts + servers + spare).map(|host| host as u32);
    Ok(of_worker.chain(of_spare).chain(of_servers).collect())
}

fn server_hosts(placed: &[f64], hosts: usize, servers: usize) -> Result<Vec<u32>, RequestError> {
    let refuse = |problem: String| {
        RequestError::field("cluster.server_hosts", written_list(placed), problem)
    };
    if placed.len() != servers {
        return Err(refuse(format!("must name one host for each of {servers} servers")));
    }
    let most = hosts + servers - 1;
    let host = |host: &f64| match host {
        host if host.fract() == 0.0 && (0.0..=most as f64).contains(host) => Ok(*host as u32),
        _ => Err(refuse(format!("hosts are whole numbers from 0 to {most}"))),
    };
    placed.iter().map(host).collect()
}
