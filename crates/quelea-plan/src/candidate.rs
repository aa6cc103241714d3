//! The ways to train that are compared: algorithm, topology, collective, codec, bucket size.

use quelea_core::algorithms::{self, Codecs, Entry, Gathers, Service, Traffic};
use quelea_core::codec::{self, CodecShape};
use quelea_core::collectives::average::COLLECTIVE;
use quelea_core::collectives::{self, COLLECTIVES};
use quelea_core::options::{Options, Value as Given};
use quelea_core::topology;
use quelea_run::trial::Trial;

use crate::cost;
use crate::scenario::Scenario;

/// One way to train.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: &'static Entry,
    /// Its topology, for those that have one.
    pub topology: Option<&'static str>,
    /// Its collective, for those that have one.
    pub collective: Option<&'static str>,
    /// Its codec, for those that are made for one.
    pub codec: Option<&'static str>,
    /// Megabytes of a bucket; 0 is one bucket.
    pub bucket_mb: f64,
    /// Options of the algorithm that are not its defaults.
    pub options: Vec<(&'static str, Given)>,
}

impl Candidate {
    /// The built-in algorithm of this name, in one bucket. Panics where there is none.
    pub fn plain(name: &str) -> Candidate {
        Candidate::of(algorithms::find(name).expect("the name of a built-in algorithm"))
    }

    /// The algorithm as it is, in one bucket.
    pub fn of(algorithm: &'static Entry) -> Candidate {
        let (topology, collective, codec) = (None, None, None);
        let options = Vec::new();
        Candidate { algorithm, topology, collective, codec, bucket_mb: 0.0, options }
    }

    /// In few words.
    pub fn name(&self) -> String {
        let details = [self.topology, self.collective, self.codec];
        let details = details.into_iter().flatten().map(|detail| format!(" / {detail}"));
        format!("{}{}", self.algorithm.meta.name, details.collect::<String>())
    }

    /// The options of the algorithm. One that can hide the exchange behind the gradient does.
    pub fn params(&self) -> Options {
        let own = self.options.iter().cloned().chain(self.own());
        own.fold(Options::defaults(self.algorithm.meta.options), |params, (key, value)| {
            params.with(key, value)
        })
    }

    fn own(&self) -> Option<(&'static str, Given)> {
        let overlaps = self.algorithm.meta.options.iter().any(|key| key.name == OVERLAP);
        overlaps.then_some((OVERLAP, Given::Number(1.0)))
    }

    /// The settings of a run file.
    pub fn settings(&self) -> Vec<(String, String)> {
        let named = [
            ("algorithm.name", Some(self.algorithm.meta.name)),
            ("topology.name", self.topology),
            ("algorithm.collective", self.collective),
            ("codec.name", self.codec),
        ];
        let named = named.into_iter().filter_map(|(key, name)| Some((key.into(), name?.into())));
        let options = self.options.iter().cloned().chain(self.own());
        let options = options.map(|(key, value)| (format!("algorithm.{key}"), value.to_string()));
        named.chain(options).collect()
    }

    /// With the options that the configuration gives this algorithm, but for those that candidates
    /// differ in.
    fn with_given(mut self, scenario: &Scenario) -> Candidate {
        let given =
            scenario.algorithm.as_ref().filter(|given| given.name == self.algorithm.meta.name);
        let given = given.into_iter().flat_map(|given| given.options.iter());
        let differs = |key: &str, value: &Given| {
            let spec = self.algorithm.meta.options.iter().find(|spec| spec.name == key);
            ![COLLECTIVE.name, OVERLAP].contains(&key)
                && spec.is_some_and(|spec| spec.kind.default() != *value)
        };
        let given = given.filter(|(key, value)| differs(key, value));
        self.options = given.map(|(key, value)| (key, value.clone())).collect();
        self
    }
}

/// The key of rows that can take in what is some rounds old.
const OVERLAP: &str = "overlap";

/// Steps of a run that shows a row's exchanges: some of its periods.
pub fn steps(candidate: &Candidate) -> u64 {
    let periods = match cost::traffic(candidate) {
        Traffic::Average { period } | Traffic::Gossip { average: Some(period), .. } => 5 * period,
        Traffic::Servers(Service::Elastic { period, .. } | Service::Folded { period, .. }) => {
            10 * period
        }
        _ => 0,
    };
    periods.max(24)
}

/// The run that a prediction is about.
pub fn trial(scenario: &Scenario, candidate: &Candidate) -> Trial {
    let (registry, name) = (&scenario.registry, candidate.algorithm.meta.name);
    let bare = Trial::new_with(registry, name, scenario.workers, scenario.parameters).cut(8);
    let cluster = scenario.settings().into_iter().map(|(key, value)| (key.to_string(), value));
    let settings = cluster.chain(candidate.settings());
    let trial = settings.fold(bare, |trial, (key, value)| trial.set(&key, value));
    match candidate.bucket_mb {
        0.0 => trial,
        size => trial.buckets_mb(size),
    }
}

/// Bucket sizes that are tried, in megabytes.
const BUCKETS_MB: [f64; 3] = [0.0, 25.0, 5.0];

/// Sparse topologies that are tried, besides those that other crates have registered.
const TOPOLOGIES: [&str; 8] = [
    "ring",
    "one-peer-exponential",
    "exponential",
    "torus",
    "grid",
    "one-peer-ring",
    AER,
    COMPLETE,
];
/// Those whose rounds are groups, for methods that average groups by all-reduce.
const AER: &str = "aer";
const COMPLETE: &str = "complete";
/// The weights of a complete graph are n × n numbers.
const COMPLETE_WORKERS_MAX: usize = 512;
/// Those of pairs between two halves.
const BIPARTITE: [&str; 2] = ["ring", "bipartite-exponential"];

/// The ways to use an algorithm that are worth comparing.
pub fn candidates(scenario: &Scenario, row: &'static Entry) -> Vec<Candidate> {
    let plain = Candidate::of(row).with_given(scenario);
    let sizes = BUCKETS_MB.into_iter().filter(|size| size * 1e6 < scenario.bytes());
    let of_sizes = |candidate: Candidate| {
        let sizes = sizes.clone();
        sizes.map(move |bucket_mb| Candidate { bucket_mb, ..candidate.clone() })
    };
    match cost::traffic(&plain) {
        Traffic::Average { .. } => {
            let with = |entry: &collectives::Entry| {
                of_sizes(Candidate { collective: Some(entry.meta.name), ..plain.clone() })
            };
            let chooses = row.meta.options.iter().any(|key| key.name == COLLECTIVE.name);
            if chooses {
                COLLECTIVES.iter().flat_map(with).collect()
            } else {
                of_sizes(plain).collect()
            }
        }
        Traffic::Gossip { gathers, .. } => {
            let suits = |name: &&str| match *name {
                AER => gathers == Gathers::Means,
                COMPLETE => gathers == Gathers::Means && scenario.workers <= COMPLETE_WORKERS_MAX,
                _ => true,
            };
            let on = |name| Candidate { topology: Some(name), ..plain.clone() };
            let coded = |candidate: Candidate| {
                let with = codecs(scenario, row).into_iter();
                with.map(move |codec| Candidate { codec, ..candidate.clone() })
            };
            let added = scenario.registry.added::<topology::Entry>().map(|entry| entry.meta.name);
            TOPOLOGIES
                .into_iter()
                .filter(suits)
                .chain(added)
                .map(on)
                .flat_map(coded)
                .flat_map(of_sizes)
                .collect()
        }
        Traffic::Pairs { .. } => {
            BIPARTITE.map(|name| Candidate { topology: Some(name), ..plain.clone() }).to_vec()
        }
        Traffic::Servers(_) => vec![plain],
    }
}

/// Codecs that a row is made for, in which each sender decides what to keep; none for others.
fn codecs(scenario: &Scenario, row: &Entry) -> Vec<Option<&'static str>> {
    let takes = (row.codecs)(&Options::defaults(row.meta.options));
    let len = scenario.parameters as usize;
    let fits = |codec: &&codec::Entry| {
        let refusal = takes.refusal(codec, &Options::defaults(codec.meta.options), len);
        takes == Codecs::Contraction && codec.shape == CodecShape::Own && refusal.is_none()
    };
    let all = scenario.registry.entries::<codec::Entry>();
    let made_for: Vec<_> = all.filter(fits).map(|codec| Some(codec.meta.name)).collect();
    if made_for.is_empty() { vec![None] } else { made_for }
}
