//! The bytes that a run sends, from what the table says an algorithm exchanges.

use quelea_core::algorithms::{Service, Traffic};
use quelea_core::codec::CodecShape;
use quelea_core::options::OptionKind;
use quelea_run::prepared::PreparedRun;
use quelea_wire::HEADER_BYTES;

use crate::forms::AlgorithmForm;

/// A run on a ring of workers with one server, in one bucket, on a network so fast that nothing
/// ever waits; exact averages are rings too.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Workers.
    pub workers: u64,
    /// Steps of each.
    pub steps: u64,
    /// Parameters of the model.
    pub elements: u64,
}

const HEADER: u64 = HEADER_BYTES as u64;

impl Run {
    /// Bytes of all messages of the run.
    pub fn bytes(self, form: &AlgorithmForm, plan: &PreparedRun) -> u64 {
        let Run { workers: n, steps, elements } = self;
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
            // The vectors in one message to two neighbours.
            Traffic::Gossip { vectors, average: every, .. } => {
                let averages = every.map_or(0, |period| steps / period);
                // Where losses count, they are averaged with the model.
                let loss = if every.is_some() && form.properties().needs_loss {
                    n * 2 * (n - 1) * HEADER + 2 * (n - 1) * 4
                } else {
                    0
                };
                let gossip = n * 2 * (HEADER + vectors * vector(elements));
                averages * (average + loss) + (steps - averages) * gossip
            }
            // Half of the workers ask, and are answered.
            Traffic::Pairs { averages } => steps * n / 2 * averages * 2 * coded,
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
            Traffic::Servers(Service::Folded) => {
                let rest = if codec.shape == CodecShape::Plain { 0 } else { n * (plain + HEADER) };
                steps * n * (coded + HEADER) + steps * n / period(form) * model + rest
            }
        }
    }
}

/// The number of steps under the name `period`, which [`Service::Folded`] does not tell.
fn period(form: &AlgorithmForm) -> u64 {
    let key = form.entry.meta.options.iter().find(|key| key.name == "period");
    assert!(key.is_some_and(|key| matches!(key.kind, OptionKind::Whole { .. })));
    form.options.whole("period")
}
