//! `[cluster]`: what is simulated, who lives where, how many servers there are, what goes wrong.

use murmura_core::params::{Key, Kind, Params};
use murmura_core::time::Time;
use murmura_sim::{Cluster, Crash, Cut, Faults, Pause, Plain, Rule, Verdict};
use toml::{Table, Value};

use super::section::{Allowed, Extra, Shape, Values};
use crate::error::RequestError;

const fn real(name: &'static str, default: f64, help: &'static str) -> Key {
    Key { name, kind: Kind::Real { default, min: 0.0, max: f64::MAX }, help }
}

const fn whole(name: &'static str, default: u64, min: u64, help: &'static str) -> Key {
    Key { name, kind: Kind::Whole { default, min, max: 1_000_000 }, help }
}

/// The plain keys of `[cluster]`.
pub const KEYS: &[Key] = &[
    whole("hosts", 0, 1, "machines that the workers are spread over in blocks; one per worker"),
    whole("servers", 1, 0, "servers, for algorithms that have them; each holds a shard"),
    Key {
        name: "server_hosts",
        kind: Kind::Reals,
        help: "the host of each server; hosts of their own after those of the workers",
    },
    real("bandwidth_gbps", 10.0, "every host's network card, in each direction"),
    real("latency_us", 50.0, "from the first byte leaving one host to its arrival at another"),
    real("internal_gbps", 100.0, "every rank's link to the others of its host"),
    real("internal_latency_us", 0.0, "as latency_us, inside a host"),
    real("compute_ms", 100.0, "mean time of one gradient"),
    real("compute_cv", 0.0, "coefficient of variation of that time (log-normal); 0 = constant"),
    real("backward_share", 0.67, "share of that time that is backward"),
    real("handoff_send_us", 0.0, "fixed time of a worker for giving a vector to the network"),
    real("handoff_send_gbps", 0.0, "rate of the same; 0 = size costs nothing"),
    real("handoff_receive_us", 0.0, "fixed time of a worker for taking a vector"),
    real("handoff_receive_gbps", 0.0, "rate of the same; 0 = size costs nothing"),
    real("reduce_gbs", 0.0, "arithmetic at servers and in reduce steps, 10^9 bytes/s; 0 = free"),
    real("collective_efficiency", 1.0, "share of the bandwidth that collectives reach"),
    real("point_to_point_efficiency", 1.0, "share of the bandwidth that other messages reach"),
    real("collective_fixed_us", 0.0, "fixed time of a collective before its first message"),
    Key {
        name: "start_barrier",
        kind: Kind::Flag(false),
        help: "a collective starts when all workers have handed over",
    },
    whole("link_messages", 0, 0, "messages that a directed link may hold; 0 = without limit"),
    real("detect_ms", 1000.0, "from the loss of a rank until the others are told"),
    whole("threads", 0, 0, "real threads that compute gradients in `simulate`; 0 = one per core"),
];

/// The other keys of `[cluster]`.
pub const EXTRAS: &[Extra] = &[
    Extra {
        name: "slow",
        shape: Shape::Numbered,
        help: "workers whose gradients take so many times as long, as in { \"3\" = 10.0 }",
    },
    Extra {
        name: "host_bandwidth_gbps",
        shape: Shape::Numbered,
        help: "hosts whose network card differs, as in { \"0\" = 1.0 }",
    },
    Extra {
        name: "faults",
        shape: Shape::Inside,
        help: "lists of crashes, pauses, cuts and rules; for `simulate`",
    },
];

/// Reads `[cluster]`.
pub fn read(table: &Table) -> Result<Values, RequestError> {
    Allowed { path: "cluster", keys: KEYS, extras: EXTRAS, others: &[] }.check(table)
}

/// The virtual cluster of these values, checked by itself.
pub fn build(values: &Values) -> Result<Cluster, RequestError> {
    let params = &values.params;
    let cluster = Cluster {
        bandwidth_gbps: params.real("bandwidth_gbps"),
        host_bandwidth_gbps: values.numbered("host_bandwidth_gbps"),
        latency_us: params.real("latency_us"),
        internal_gbps: params.real("internal_gbps"),
        internal_latency_us: params.real("internal_latency_us"),
        compute_ms: params.real("compute_ms"),
        compute_cv: params.real("compute_cv"),
        backward_share: params.real("backward_share"),
        slow: values.numbered("slow"),
        handoff_send_us: params.real("handoff_send_us"),
        handoff_send_gbps: params.real("handoff_send_gbps"),
        handoff_receive_us: params.real("handoff_receive_us"),
        handoff_receive_gbps: params.real("handoff_receive_gbps"),
        reduce_gbs: params.real("reduce_gbs"),
        collective_efficiency: params.real("collective_efficiency"),
        point_to_point_efficiency: params.real("point_to_point_efficiency"),
        collective_fixed_us: params.real("collective_fixed_us"),
        start_barrier: params.flag("start_barrier"),
        link_messages: params.whole("link_messages") as u32,
        detect_ms: params.real("detect_ms"),
        faults: faults(&values.inside("faults"))?,
        threads: params.whole("threads") as usize,
    };
    cluster.check().map_err(refused)?;
    Ok(cluster)
}

/// A refusal of the virtual cluster in the words of the configuration.
pub fn refused(error: murmura_sim::ClusterError) -> RequestError {
    RequestError::field(format!("cluster.{}", error.field), error.value, error.allowed)
}

/// The host of every rank: workers in blocks, servers after them unless they are placed.
pub fn placement(
    values: &Values,
    workers: usize,
    servers: usize,
) -> Result<Vec<u32>, RequestError> {
    let hosts = match values.params.whole("hosts") as usize {
        0 => workers,
        hosts if hosts > workers => {
            let problem = format!("must be at most `workers` = {workers}");
            return Err(RequestError::field("cluster.hosts", hosts, problem));
        }
        hosts => hosts,
    };
    let of_worker = (0..workers).map(|worker| (worker * hosts / workers) as u32);
    let placed = values.params.reals("server_hosts");
    let of_servers: Vec<u32> = if servers == 0 || placed.is_empty() {
        (hosts..hosts + servers).map(|host| host as u32).collect()
    } else {
        server_hosts(placed, hosts, servers)?
    };
    Ok(of_worker.chain(of_servers).collect())
}

fn server_hosts(placed: &[f64], hosts: usize, servers: usize) -> Result<Vec<u32>, RequestError> {
    let refuse = |problem: String| {
        RequestError::field("cluster.server_hosts", format!("{placed:?}"), problem)
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

const FAULTS: [&str; 4] = ["crashes", "pauses", "cuts", "rules"];

const CRASH: &[Key] = &[whole("rank", 0, 0, "which"), real("at_ms", 0.0, "when")];
const SPAN: &[Key] = &[
    whole("rank", 0, 0, "which"),
    real("from_ms", 0.0, "since when"),
    real("until_ms", f64::MAX, "until when"),
];
const RULE: &[Key] = &[
    whole("from", 0, 0, "only messages from this rank"),
    whole("to", 0, 0, "only messages to this rank"),
    Key {
        name: "kind",
        kind: Kind::Whole { default: 0, min: 0, max: 255 },
        help: "only this kind",
    },
    real("from_ms", 0.0, "since when"),
    real("until_ms", f64::MAX, "until when"),
    real("share", 1.0, "only this share of them, chosen by the seed"),
    Key { name: "verdict", kind: Kind::Choice(&["drop", "delay", "duplicate"]), help: "what then" },
    real("delay_ms", 0.0, "how much later, for delay"),
];

fn faults(table: &Table) -> Result<Faults, RequestError> {
    Allowed { path: "cluster.faults", keys: &[], extras: &[], others: &FAULTS }.check(table)?;
    let crash = |(_, params): (&Table, Params)| Crash {
        rank: params.whole("rank") as u32,
        at_ms: params.real("at_ms"),
    };
    let span = |params: &Params| {
        (params.whole("rank") as u32, params.real("from_ms"), params.real("until_ms"))
    };
    let pause = |(_, params): (&Table, Params)| {
        let (rank, from_ms, until_ms) = span(&params);
        Pause { rank, from_ms, until_ms }
    };
    let cut = |(_, params): (&Table, Params)| {
        let (rank, from_ms, until_ms) = span(&params);
        Cut { rank, from_ms, until_ms }
    };
    Ok(Faults {
        crashes: list(table, "crashes", CRASH)?.into_iter().map(crash).collect(),
        pauses: list(table, "pauses", SPAN)?.into_iter().map(pause).collect(),
        cuts: list(table, "cuts", SPAN)?.into_iter().map(cut).collect(),
        rules: list(table, "rules", RULE)?.into_iter().map(rule).collect(),
    })
}

fn rule((written, params): (&Table, Params)) -> Rule {
    let only = |name: &str| written.get(name).map(|_| params.whole(name) as u32);
    let verdict = match params.text("verdict") {
        "delay" => Verdict::Delay(Time::from_ms(params.real("delay_ms"))),
        "duplicate" => Verdict::Duplicate,
        _ => Verdict::Drop,
    };
    Rule::Plain(Plain {
        from: only("from"),
        to: only("to"),
        kind: only("kind").map(|kind| kind as u8),
        from_ms: params.real("from_ms"),
        until_ms: params.real("until_ms"),
        share: params.real("share"),
        verdict,
    })
}

/// The entries of one list of faults, each with its checked keys.
fn list<'a>(
    table: &'a Table,
    name: &str,
    keys: &[Key],
) -> Result<Vec<(&'a Table, Params)>, RequestError> {
    let path = format!("cluster.faults.{name}");
    let Some(value) = table.get(name) else {
        return Ok(Vec::new());
    };
    let refuse =
        || RequestError::field(&path, value, "must be a list of tables, as in [{ rank = 1 }]");
    let entry = |(number, entry): (usize, &'a Value)| {
        let path = format!("{path}.{number}");
        let written = entry.as_table().ok_or_else(refuse)?;
        let allowed = Allowed { path: &path, keys, extras: &[], others: &[] };
        Ok((written, allowed.check(written)?.params))
    };
    value.as_array().ok_or_else(refuse)?.iter().enumerate().map(entry).collect()
}
