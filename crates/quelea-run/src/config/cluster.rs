//! `[cluster]`: what is simulated, who lives where, how many servers there are, what goes wrong.

use quelea_core::options::{OptionKind, OptionSpec};
use quelea_sim::Cluster;
use toml::Table;

use super::faults;
use super::section::{Allowed, ExtraKey, ExtraShape, SectionValues, list as written_list};
use crate::error::RequestError;

/// A card, from one kilobit per second on.
const fn card(name: &'static str, default: f64, help: &'static str) -> OptionSpec {
    OptionSpec { name, kind: OptionKind::Real { default, min: 1e-6, max: 1e9 }, help }
}

/// A rate at which something happens, or 0 where it takes no time.
const fn rate(name: &'static str, help: &'static str) -> OptionSpec {
    OptionSpec { name, kind: OptionKind::Real { default: 0.0, min: 0.0, max: 1e9 }, help }
}

const fn micros(name: &'static str, default: f64, help: &'static str) -> OptionSpec {
    OptionSpec { name, kind: OptionKind::Real { default, min: 0.0, max: 1e9 }, help }
}

/// At most about a month.
pub(super) const fn millis(name: &'static str, default: f64, help: &'static str) -> OptionSpec {
    OptionSpec { name, kind: OptionKind::Real { default, min: 0.0, max: 3e9 }, help }
}

pub(super) const fn share(
    name: &'static str,
    default: f64,
    min: f64,
    help: &'static str,
) -> OptionSpec {
    OptionSpec { name, kind: OptionKind::Real { default, min, max: 1.0 }, help }
}

pub(super) const fn whole(
    name: &'static str,
    default: u64,
    min: u64,
    help: &'static str,
) -> OptionSpec {
    OptionSpec { name, kind: OptionKind::Whole { default, min, max: 1_000_000 }, help }
}

/// The plain keys of `[cluster]`.
pub const KEYS: &[OptionSpec] = &[
    whole("hosts", 0, 1, "machines that the workers are spread over in blocks; one per worker"),
    whole("servers", 1, 0, "servers, for algorithms that have them; each holds a shard"),
    OptionSpec {
        name: "server_hosts",
        kind: OptionKind::Reals,
        help: "the host of each server; hosts of their own after those of the workers",
    },
    card("bandwidth_gbps", 10.0, "every host's network card, in each direction"),
    micros("latency_us", 50.0, "from the first byte leaving one host to its arrival at another"),
    card("internal_gbps", 100.0, "every rank's link to the others of its host"),
    micros("internal_latency_us", 0.0, "as latency_us, inside a host"),
    millis("compute_ms", 100.0, "mean time of one gradient"),
    OptionSpec {
        name: "compute_cv",
        kind: OptionKind::Real { default: 0.0, min: 0.0, max: 10.0 },
        help: "coefficient of variation of that time (log-normal); 0 = constant",
    },
    share("backward_share", 0.67, 0.0, "share of that time that is backward"),
    micros("handoff_send_us", 0.0, "fixed time of a worker for giving a vector to the network"),
    rate("handoff_send_gbps", "rate of the same; 0 = size costs nothing"),
    micros("handoff_receive_us", 0.0, "fixed time of a worker for taking a vector"),
    rate("handoff_receive_gbps", "rate of the same; 0 = size costs nothing"),
    rate("reduce_gbs", "arithmetic at servers and in reduce steps, 10^9 bytes/s; 0 = free"),
    share("collective_efficiency", 1.0, 1e-3, "share of the bandwidth that collectives reach"),
    share(
        "point_to_point_efficiency",
        1.0,
        1e-3,
        "share of the bandwidth that other messages reach",
    ),
    micros("collective_fixed_us", 0.0, "fixed time of a collective before its first message"),
    OptionSpec {
        name: "start_barrier",
        kind: OptionKind::Flag(false),
        help: "a collective starts when all workers have handed over",
    },
    whole("link_messages", 0, 0, "messages that a directed link may hold; 0 = without limit"),
    OptionSpec {
        name: "blocking_sends",
        kind: OptionKind::Flag(false),
        help: "a worker continues only when what it sends has left its card",
    },
    OptionSpec {
        name: "vector_scale",
        kind: OptionKind::Real { default: 1.0, min: 1e-3, max: 1e9 },
        help: "every byte of a vector counts as so many: a small one stands for a large model",
    },
    millis("detect_ms", 1000.0, "from the loss of a rank until the others are notified"),
    whole("threads", 0, 0, "real threads that compute gradients in `simulate`; 0 = one per core"),
];

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
        help: "lists of crashes, pauses, partitions and rules; for `simulate`",
    },
];

/// Reads `[cluster]`.
pub fn read(table: &Table) -> Result<SectionValues, RequestError> {
    Allowed { path: "cluster", keys: KEYS, extras: EXTRAS, others: &[] }.check(table)
}

/// The virtual cluster of these values, checked by itself.
pub fn build(values: &SectionValues) -> Result<Cluster, RequestError> {
    let options = &values.options;
    let cluster = Cluster {
        bandwidth_gbps: options.real("bandwidth_gbps"),
        host_bandwidth_gbps: values.numbered("host_bandwidth_gbps"),
        latency_us: options.real("latency_us"),
        internal_gbps: options.real("internal_gbps"),
        internal_latency_us: options.real("internal_latency_us"),
        compute_ms: options.real("compute_ms"),
        compute_cv: options.real("compute_cv"),
        backward_share: options.real("backward_share"),
        slow: values.numbered("slow"),
        handoff_send_us: options.real("handoff_send_us"),
        handoff_send_gbps: options.real("handoff_send_gbps"),
        handoff_receive_us: options.real("handoff_receive_us"),
        handoff_receive_gbps: options.real("handoff_receive_gbps"),
        reduce_gbs: options.real("reduce_gbs"),
        collective_efficiency: options.real("collective_efficiency"),
        point_to_point_efficiency: options.real("point_to_point_efficiency"),
        collective_fixed_us: options.real("collective_fixed_us"),
        start_barrier: options.flag("start_barrier"),
        link_messages: options.whole("link_messages") as u32,
        blocking_sends: options.flag("blocking_sends"),
        vector_scale: options.real("vector_scale"),
        detect_ms: options.real("detect_ms"),
        faults: faults::read(&values.inside("faults"))?,
        threads: options.whole("threads") as usize,
    };
    cluster.check().map_err(refused)?;
    Ok(cluster)
}

/// A refusal of the virtual cluster in the words of the configuration.
pub fn refused(error: quelea_sim::ClusterError) -> RequestError {
    RequestError::field(format!("cluster.{}", error.field), error.value, error.allowed)
}

/// The host of every rank: workers in blocks, servers after them unless they are placed.
pub fn placement(
    values: &SectionValues,
    workers: usize,
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
    Ok(of_worker.chain(of_servers).collect())
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
