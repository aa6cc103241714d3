//! The ways to train that are compared: algorithm, topology, collective, codec, bucket size.

use quelea_core::algorithms::{self, Codecs, Entry, Service, Traffic};
use quelea_core::codec::{self, CODECS, CodecShape};
use quelea_core::collectives::{self, COLLECTIVES};
use quelea_core::options::{Options, Value as Given};
use quelea_run::trial::Trial;

use crate::cost;
use crate::scenario::Scenario;

/// One way to train.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: &'static str,
    /// Its topology, for those that have one.
    pub topology: Option<&'static str>,
    /// Its collective, for those that have one.
    pub collective: Option<&'static str>,
    /// Its codec, for those that are made for one.
    pub codec: Option<&'static str>,
    /// Megabytes of a bucket; 0 is one bucket.
    pub bucket_mb: f64,
}

impl Candidate {
    /// The algorithm as it is, in one bucket.
    pub fn plain(algorithm: &'static str) -> Candidate {
        Candidate { algorithm, topology: None, collective: None, codec: None, bucket_mb: 0.0 }
    }

    /// In few words.
    pub fn name(&self) -> String {
        let details = [self.topology, self.collective, self.codec];
        let details = details.into_iter().flatten().map(|detail| format!(" / {detail}"));
        format!("{}{}", self.algorithm, details.collect::<String>())
    }

    /// The options of the algorithm. One that can hide the exchange behind the gradient does.
    pub fn params(&self) -> Options {
        let row = algorithms::find(self.algorithm).expect("candidates are rows of the table");
        let own = self.own().into_iter();
        own.fold(Options::defaults(row.meta.options), |params, (key, value)| {
            params.with(key, value)
        })
    }

    fn own(&self) -> Option<(&'static str, Given)> {
        let row = algorithms::find(self.algorithm).expect("candidates are rows of the table");
        let overlaps = row.meta.options.iter().any(|key| key.name == OVERLAP);
        overlaps.then_some((OVERLAP, Given::Number(1.0)))
    }

    /// The settings of a run file.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = vec![("algorithm.name", self.algorithm.to_string())];
        settings.extend(self.topology.map(|name| ("topology.name", name.to_string())));
        settings.extend(self.collective.map(|name| ("algorithm.collective", name.to_string())));
        settings.extend(self.codec.map(|name| ("codec.name", name.to_string())));
        settings.extend(self.own().map(|_| ("algorithm.overlap", "1".to_string())));
        settings
    }
}

/// The key of rows that can take in what is some rounds old.
const OVERLAP: &str = "overlap";

/// Steps of a run that shows a row's exchanges: some of its periods.
pub fn steps(candidate: &Candidate) -> u64 {
    let periods = match cost::traffic(candidate) {
        Traffic::Average { period } | Traffic::Gossip { average: Some(period), .. } => 5 * period,
        Traffic::Servers(Service::Elastic { period, .. }) => 10 * period,
        _ => 0,
    };
    periods.max(24)
}

/// The run that a prediction is about.
pub fn trial(scenario: &Scenario, candidate: &Candidate) -> Trial {
    let bare = Trial::new(candidate.algorithm, scenario.workers, scenario.parameters).cut(8);
    let settings = scenario.settings().into_iter().chain(candidate.settings());
    let trial = settings.fold(bare, |trial, (key, value)| trial.set(key, value));
    match candidate.bucket_mb {
        0.0 => trial,
        size => trial.buckets_mb(size),
    }
}

/// Bucket sizes that are tried, in megabytes.
const BUCKETS_MB: [f64; 3] = [0.0, 25.0, 5.0];

/// Sparse topologies that are tried.
const TOPOLOGIES: [&str; 6] =
    ["ring", "one-peer-exponential", "exponential", "torus", "grid", "one-peer-ring"];
/// Those of pairs between two halves.
const BIPARTITE: [&str; 2] = ["ring", "bipartite-exponential"];

/// The ways to use a row that make sense.
pub(crate) fn candidates(scenario: &Scenario, row: &'static Entry) -> Vec<Candidate> {
    let plain = Candidate::plain(row.meta.name);
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
            COLLECTIVES.iter().flat_map(with).collect()
        }
        Traffic::Gossip { .. } => {
            let on = |name| Candidate { topology: Some(name), ..plain.clone() };
            let coded = |candidate: Candidate| {
                let with = codecs(scenario, row).into_iter();
                with.map(move |codec| Candidate { codec, ..candidate.clone() })
            };
            TOPOLOGIES.into_iter().map(on).flat_map(coded).flat_map(of_sizes).collect()
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
    let made_for: Vec<_> = CODECS.iter().filter(fits).map(|codec| Some(codec.meta.name)).collect();
    if made_for.is_empty() { vec![None] } else { made_for }
}
