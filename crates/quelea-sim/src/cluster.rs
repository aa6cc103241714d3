//! The cluster that is simulated: cards, links, speeds, and costs beside the wire.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use quelea_core::options::{OptionSpec, Options, Value};
use quelea_core::run_spec::RunSpec;

use crate::attacks;
use crate::faults::Faults;
use crate::knob::{Field, Knob, card, choice, flag, knobs, micros, millis, rate, real, whole};

knobs! {
    /// A virtual cluster: every knob, units in the names. `docs/virtual-cluster.md` defines the model.
    ///
    /// `gbps` is 10⁹ bits per second, `gbs` is 10⁹ bytes per second. [`KNOBS`] has the defaults and
    /// limits of all numbers, flags and choices.
    #[derive(Clone, Debug)]
    pub struct Cluster;

    /// Bandwidth of every host's network card, in each direction.
    bandwidth_gbps: f64 = card(10.0), "10⁹ bit/s",
        "every host's network card, in each direction";
    /// From the first byte leaving one host to its arrival at another.
    latency_us: f64 = micros(50.0), "µs",
        "from the first byte leaving one host to its arrival at another";
    /// Bandwidth of every rank's link to the other ranks of its host, in each direction.
    internal_gbps: f64 = card(100.0), "10⁹ bit/s",
        "every rank's link to the others of its host";
    /// As `latency_us`, inside a host.
    internal_latency_us: f64 = micros(0.0), "µs",
        "as latency_us, inside a host";
    /// Mean time of one gradient.
    compute_ms: f64 = millis(100.0), "ms",
        "mean time of one gradient";
    /// Coefficient of variation of that time (log-normal); 0 means constant.
    compute_cv: f64 = real(0.0, 0.0, 10.0), "–",
        "coefficient of variation of that time (log-normal); 0 = constant";
    /// The share of a gradient's time that is backward: only then do buckets become ready.
    backward_share: f64 = real(0.67, 0.0, 1.0), "–",
        "share of that time that is backward";
    /// Fixed time that a worker spends on giving a vector to the network, before the message is handed
    /// over.
    handoff_send_us: f64 = micros(0.0), "µs",
        "fixed time of a worker for giving a vector to the network";
    /// Rate at which a worker gives vectors to the network, on top of the fixed time; 0 means that size
    /// costs nothing.
    handoff_send_gbps: f64 = rate(), "10⁹ bit/s",
        "rate of the same; 0 = size costs nothing";
    /// Fixed time that a worker spends on taking a vector from the network, before the algorithm sees
    /// it.
    handoff_receive_us: f64 = micros(0.0), "µs",
        "fixed time of a worker for taking a vector";
    /// Rate at which a worker takes vectors from the network, on top of the fixed time; 0 means that
    /// size costs nothing.
    handoff_receive_gbps: f64 = rate(), "10⁹ bit/s",
        "rate of the same; 0 = size costs nothing";
    /// Rate of the arithmetic that algorithms report: at servers, in the reduce steps of collectives, and
    /// wherever a worker mixes in the vector of a peer, one pass for each; 0 means that it costs nothing.
    /// What workers do with vectors of servers is part of their hand-offs.
    reduce_gbs: f64 = rate(), "10⁹ **byte**/s",
        "arithmetic at servers, in reduce steps and in mixing, 10^9 bytes/s; 0 = free";
    /// Share of the cards' bandwidth that collectives reach; internal links are not concerned.
    collective_efficiency: f64 = real(1.0, 1e-3, 1.0), "–",
        "share of the bandwidth that collectives reach";
    /// Share of the cards' bandwidth that other messages reach; internal links are not concerned.
    point_to_point_efficiency: f64 = real(1.0, 1e-3, 1.0), "–",
        "share of the bandwidth that other messages reach";
    /// Fixed time of a collective (one per bucket and step), from the moment a rank would send its
    /// first message.
    collective_fixed_us: f64 = micros(0.0), "µs",
        "fixed time of a collective before its first message";
    /// The collective of a bucket starts, then pays its fixed cost, only when all living workers have
    /// handed that bucket over.
    start_barrier: bool = flag(), "",
        "a collective starts when all workers have handed over";
    /// Messages that a directed link may hold until the receiving worker takes them, see below; 0 means
    /// without limit.
    link_messages: u32 = whole(), "messages",
        "messages that a directed link may hold; 0 = without limit";
    /// A worker's sends hold up its processor until their last byte has left its card, as with a
    /// blocking send call; not for servers.
    blocking_sends: bool = flag(), "",
        "a worker continues only when what it sends has left its card";
    /// Every byte of a vector counts as so many, in transfers, hand-offs and arithmetic: a small vector
    /// stands for a large model, exactly, where the parts that it is cut into are equal; headers count
    /// as they are.
    vector_scale: f64 = real(1.0, 1e-3, 1e9), "–",
        "every byte of a vector counts as so many: a small one stands for a large model";
    /// From the loss of a rank until the others are notified.
    detect_ms: f64 = millis(1000.0), "ms",
        "from the loss of a rank until the others are notified";
    /// How commands of the controller and events of ranks travel: `free`, at once and at no cost; `network`,
    /// over connections between the ranks' cards and that of a host for the controller, with latency and
    /// bandwidth, in order for each rank; `worker`, as `network`, but the controller lives with worker 0, as in
    /// real runs: when that is lost, another worker takes over, and sides of a partition need a quorum.
    control: ControlPath = choice(CONTROL_PATHS), "",
        "how control messages travel: free, over the network, or there with the controller at worker 0";
    /// Real threads that compute expensive gradients; 0 means one per core. Results do not depend on
    /// it.
    threads: usize = whole(), "–",
        "real threads that compute gradients in `simulate`; 0 = one per core";

    others:
        /// Hosts whose card differs, by number of the host.
        host_bandwidth_gbps: BTreeMap<u32, f64>,
        /// Workers whose gradients take this many times as long, by rank; traffic and hand-offs do not.
        slow: BTreeMap<u32, f64>,
        /// What goes wrong.
        faults: Faults,
}

/// How commands of the controller and events of ranks travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControlPath {
    /// At once and at no cost.
    #[default]
    Free,
    /// Over the simulated links, to a host of the controller's own.
    Network,
    /// Over the simulated links, to the controller at worker 0 and to those who take over from it.
    Worker,
}

const CONTROL_PATHS: &[&str] = &["free", "network", "worker"];

impl Field for ControlPath {
    fn value(self) -> Value {
        let word = match self {
            ControlPath::Free => CONTROL_PATHS[0],
            ControlPath::Network => CONTROL_PATHS[1],
            ControlPath::Worker => CONTROL_PATHS[2],
        };
        Value::Text(word.to_string())
    }

    fn read(value: &Value) -> ControlPath {
        let all = [ControlPath::Network, ControlPath::Worker];
        all.into_iter().find(|path| *value == path.value()).unwrap_or(ControlPath::Free)
    }
}

/// Why a cluster cannot be simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`cluster.{field}` = {value}: {allowed}")]
pub struct ClusterError {
    /// The field.
    pub field: String,
    /// What it was set to.
    pub value: String,
    /// What is allowed.
    pub allowed: String,
}

impl ClusterError {
    pub(crate) fn new(
        field: impl Into<String>,
        value: impl ToString,
        allowed: impl Into<String>,
    ) -> ClusterError {
        ClusterError { field: field.into(), value: value.to_string(), allowed: allowed.into() }
    }
}

/// Cards of single hosts: as `bandwidth_gbps`.
const HOST_GBPS: RangeInclusive<f64> = 1e-6..=1e9;
const SLOW: RangeInclusive<f64> = 1e-6..=1e6;

/// A run may last ten virtual years: far below what 64 bits of nanoseconds hold.
const LONGEST_MS: f64 = 10.0 * 365.0 * 86_400_000.0;

impl Cluster {
    /// The cluster whose knobs have these values; a knob that is absent has its default.
    pub fn from_options(options: &Options) -> Cluster {
        let mut cluster = Cluster::default();
        for (name, value) in options.iter() {
            if let Some(knob) = KNOBS.iter().find(|knob| knob.spec.name == name) {
                (knob.set)(&mut cluster, value);
            }
        }
        cluster
    }

    /// Whether all numbers make sense by themselves.
    pub fn check(&self) -> Result<(), ClusterError> {
        KNOBS.iter().try_for_each(|knob| knob.check(self))?;
        check_numbered("host_bandwidth_gbps", &self.host_bandwidth_gbps, HOST_GBPS)?;
        check_numbered("slow", &self.slow, SLOW)?;
        self.faults.check()
    }

    /// Whether it also fits the run: ranks and hosts exist, and the run fits the clock.
    pub fn check_for(&self, setup: &RunSpec) -> Result<(), ClusterError> {
        self.check()?;
        let workers = setup.seats() as u32;
        if let Some(rank) = self.slow.keys().find(|rank| **rank >= workers) {
            let allowed = format!("there are {workers} workers, numbered from 0");
            return Err(ClusterError::new("slow", format!("{{ {rank} = … }}"), allowed));
        }
        let hosts: BTreeSet<u32> = setup.view.hosts.iter().copied().collect();
        if let Some(host) = self.host_bandwidth_gbps.keys().find(|host| !hosts.contains(host)) {
            let allowed = format!("no rank lives there; hosts are {hosts:?}");
            return Err(ClusterError::new(
                "host_bandwidth_gbps",
                format!("{{ {host} = … }}"),
                allowed,
            ));
        }
        self.faults.check_ranks(setup.ranks() as u32)?;
        if !self.faults.splits.is_empty() && self.control != ControlPath::Worker {
            let allowed = "sides of a partition need `cluster.control` = \"worker\"";
            return Err(ClusterError::new("faults.splits", self.faults.splits.len(), allowed));
        }
        if let (Some(join), Some(why)) = (self.faults.joins.first(), setup.join_refusal()) {
            let allowed = format!("nobody can join this run: {why}");
            return Err(ClusterError::new("faults.joins.rank", join.rank, allowed));
        }
        attacks::check(&self.faults.attacks, setup)?;
        let slowest = self.slow.values().copied().fold(1.0, f64::max);
        let longest_ms = self.compute_ms * slowest * setup.steps as f64;
        if longest_ms > LONGEST_MS {
            let allowed = format!(
                "with {} steps and a slow-down of {slowest} the run would exceed ten years",
                setup.steps
            );
            return Err(ClusterError::new("compute_ms", self.compute_ms, allowed));
        }
        Ok(())
    }
}

fn check_numbered(
    field: &str,
    numbers: &BTreeMap<u32, f64>,
    range: RangeInclusive<f64>,
) -> Result<(), ClusterError> {
    match numbers.iter().find(|(_, value)| !range.contains(value)) {
        None => Ok(()),
        Some((number, value)) => {
            let allowed = format!("must be a number from {} to {}", range.start(), range.end());
            Err(ClusterError::new(format!("{field}.{number}"), value, allowed))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut Cluster)) -> String {
        let mut cluster = Cluster::default();
        change(&mut cluster);
        cluster.check().expect_err("refused").to_string()
    }

    #[test]
    fn impossible_numbers_are_refused_by_name() {
        assert_eq!(
            refusal(|c| c.bandwidth_gbps = 0.0),
            "`cluster.bandwidth_gbps` = 0: must be a number from 0.000001 to 1000000000"
        );
        assert!(refusal(|c| c.latency_us = f64::NAN).starts_with("`cluster.latency_us` = NaN"));
        assert!(refusal(|c| c.compute_ms = f64::INFINITY).contains("compute_ms"));
        assert!(refusal(|c| c.compute_ms = -1.0).contains("compute_ms"));
        assert!(refusal(|c| c.backward_share = 1.5).contains("from 0 to 1"));
        assert!(refusal(|c| c.collective_efficiency = 0.0).contains("collective_efficiency"));
        assert!(refusal(|c| c.reduce_gbs = -3.0).contains("0, or a number"));
        let slow = refusal(|c| c.slow = BTreeMap::from([(3, 0.0)]));
        assert!(slow.starts_with("`cluster.slow.3` = 0"), "{slow}");
        let card = refusal(|c| c.host_bandwidth_gbps = BTreeMap::from([(1, -1.0)]));
        assert!(card.starts_with("`cluster.host_bandwidth_gbps.1` = -1"), "{card}");
    }

    #[test]
    fn the_default_cluster_is_good() {
        assert_eq!(Cluster::default().check(), Ok(()));
    }

    /// The plain fields of a cluster as `Debug` writes them, without those inside other fields.
    fn plain_fields(cluster: &Cluster) -> BTreeMap<String, String> {
        let text = format!("{cluster:#?}");
        let fields = text.lines().filter_map(|line| {
            let (name, value) = line.strip_prefix("    ")?.strip_suffix(',')?.split_once(": ")?;
            let value = value.to_lowercase();
            let is_plain = value.parse::<f64>().is_ok()
                || value.parse::<bool>().is_ok()
                || CONTROL_PATHS.contains(&value.as_str());
            (is_plain && !name.starts_with(' ')).then(|| (name.to_string(), value))
        });
        fields.collect()
    }

    #[test]
    fn every_plain_field_has_a_knob_and_its_default() {
        let fields = plain_fields(&Cluster::default());
        assert_eq!(fields.len(), KNOBS.len());
        for knob in KNOBS {
            // `Debug` writes 10.0 where `Display` writes 10.
            let default = knob.spec.kind.default().to_string();
            let default = default.trim_matches('"');
            let written = &fields[knob.spec.name];
            assert_eq!(written.strip_suffix(".0").unwrap_or(written), default, "{knob:?}");
            let read = (knob.get)(&Cluster::default());
            assert_eq!(read, knob.spec.kind.default(), "{}", knob.spec.name);
        }
    }

    #[test]
    fn a_knob_sets_its_own_field_and_no_other() {
        for knob in KNOBS {
            let value = match knob.spec.kind.default() {
                Value::Flag(default) => Value::Flag(!default),
                Value::Text(_) => Value::Text(CONTROL_PATHS[1].to_string()),
                Value::Number(1.0) => Value::Number(0.5),
                _ => Value::Number(1.0),
            };
            let options = Options::defaults(&[knob.spec]).with(knob.spec.name, value.clone());
            let cluster = Cluster::from_options(&options);
            assert_eq!((knob.get)(&cluster), value);
            let (before, after) = (plain_fields(&Cluster::default()), plain_fields(&cluster));
            let changed = after.iter().filter(|(name, value)| before[*name] != **value);
            let changed: Vec<&String> = changed.map(|(name, _)| name).collect();
            assert_eq!(changed, [knob.spec.name]);
        }
    }
}
