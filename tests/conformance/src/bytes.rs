//! The bytes that a run sends, from what the table says an algorithm exchanges.

use quelea_core::algorithms::{Gathers, Service, Starters, Traffic};
use quelea_core::codec::CodecShape;
use quelea_run::prepared::PreparedRun;
use quelea_wire::HEADER_BYTES;

use crate::forms::AlgorithmForm;

/// A run with one server, in one bucket, on a network so fast that nothing ever waits; every worker
/// has a host of its own, and exact averages are rings.
#[derive(Clone, Copy, Debug)]
pub struct CountedRun {
    /// Workers.
    pub workers: u64,
    /// Steps of each.
    pub steps: u64,
    /// Parameters of the model.
    pub elements: u64,
    /// Who gossips with whom.
    pub graph: RunGraph,
}

/// A topology of four workers or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunGraph {
    /// Two neighbours each.
    Ring,
    /// One group of all.
    Complete,
}

impl RunGraph {
    /// The name of the topology.
    pub fn name(self) -> &'static str {
        match self {
            RunGraph::Ring => "ring",
            RunGraph::Complete => "complete",
        }
    }

    fn neighbours(self, workers: u64) -> u64 {
        match self {
            RunGraph::Ring => 2,
            RunGraph::Complete => workers - 1,
        }
    }
}

const HEADER: u64 = HEADER_BYTES as u64;

impl CountedRun {
    /// Bytes of all messages of the run.
    pub fn bytes(self, form: &AlgorithmForm, plan: &PreparedRun) -> u64 {
        let CountedRun { workers: n, steps, elements, graph } = self;
        let codec = plan.setup.codec.entry;
        let encoded = |len: u64| codec.bytes(&plan.setup.codec.options, len as usize) as u64;
        // An encoded vector is preceded by its length.
        let vector =
            |len| if codec.shape == CodecShape::Plain { 4 * len } else { 4 + encoded(len) };
        let (plain, coded) = (HEADER + 4 * elements, HEADER + vector(elements));
        // A model may be rounded, and nothing else.
        let model = if codec.shape == CodecShape::Rounding { coded } else { plain };
        let average = match codec.shape {
            // 2(n−1) messages of 1/n of the vector, at every rank.
            CodecShape::Plain | CodecShape::Rounding => {
                n * 2 * (n - 1) * (HEADER + vector(elements / n))
            }
            // The same of those elements that all keep.
            CodecShape::Shared => 2 * (n - 1) * (n * HEADER + encoded(elements)),
            // All to all.
            _ => n * (n - 1) * coded,
        };
        match form.traffic() {
            Traffic::Average { period } => steps / period * average,
            // The vectors in one message to each neighbour; in a group whose mean suffices, one
            // ring for each vector.
            Traffic::Gossip { vectors, every, average: period, gathers, .. } => {
                let averages = period.map_or(0, |period| steps / period);
                let loss = if period.is_some() { loss_bytes(n, form) } else { 0 };
                let is_mean = gathers == Gathers::Means && codec.shape == CodecShape::Plain;
                let in_group = graph == RunGraph::Complete && is_mean;
                let gossip = if in_group {
                    vectors * average
                } else {
                    n * graph.neighbours(n) * (HEADER + vectors * vector(elements))
                };
                averages * (average + loss) + (steps - averages) / every * gossip
            }
            // Half of the workers ask, and are answered.
            Traffic::Pairs { averages, starters: Starters::Half } => {
                steps * n / 2 * averages * 2 * coded
            }
            // And the others invite them to ask once more.
            Traffic::Pairs { averages, starters: Starters::All } => {
                steps * n / 2 * averages * (4 * coded + HEADER)
            }
            Traffic::Servers(Service::Together { period }) => steps / period * n * 2 * coded,
            Traffic::Servers(Service::Alone { .. }) => steps * n * (coded + model),
            // A request, the centre back, the difference up. One that is asked for before the
            // gradient is asked for, and answered, after the last exchange too.
            Traffic::Servers(Service::Elastic { period, prefetch }) => {
                let last = if prefetch { HEADER + coded } else { 0 };
                n * (steps / period * (HEADER + 2 * coded) + last)
            }
            // A displacement up and an acknowledgement back per gradient, a model back per period.
            // What a codec left out follows at the end.
            Traffic::Servers(Service::Folded { period, .. }) => {
                let rest = if codec.shape == CodecShape::Plain { 0 } else { n * (plain + HEADER) };
                steps * n * (coded + HEADER) + steps * n / period * model + rest
            }
        }
    }
}

/// Where losses count, they are averaged with the model.
fn loss_bytes(n: u64, form: &AlgorithmForm) -> u64 {
    if form.properties().needs_loss { n * 2 * (n - 1) * HEADER + 2 * (n - 1) * 4 } else { 0 }
}
