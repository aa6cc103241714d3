//! What a rank says when somebody looks at the run, and the sample of its parameters that it keeps for it.

use quelea_record::{AwaitedRank, LinkTotal, ProcessMemory};

use super::RankMachine;
use crate::messages::RankEvent;
use crate::survey::{RankSurvey, sampled_elements};

/// A random subset of a rank's parameters, taken between two steps.
#[derive(Debug)]
pub(super) struct Sampling {
    seed: u64,
    /// After steps that this divides; 0 as long as nobody looks.
    every: u64,
    /// Which elements; chosen when the first sample is taken.
    elements: Vec<u32>,
    /// Steps after which the last one was taken.
    step: u64,
    values: Vec<f32>,
}

impl Sampling {
    pub(super) fn new(seed: u64) -> Sampling {
        Sampling { seed, every: 0, elements: Vec::new(), step: 0, values: Vec::new() }
    }
}

impl RankMachine {
    /// Takes a sample if one is due. Called when a step is complete and nothing is lent.
    pub(super) fn sample_if_due(&mut self) {
        let step = self.node.step();
        let sampling = &mut self.sampling;
        if sampling.every == 0 || !step.is_multiple_of(sampling.every) {
            return;
        }
        let params = self.node.params();
        if sampling.elements.is_empty() {
            sampling.elements = sampled_elements(sampling.seed, params.len());
        }
        sampling.step = step;
        sampling.values.clear();
        let values = sampling.elements.iter().map(|place| params[*place as usize]);
        sampling.values.extend(values);
    }

    /// Says whom it waits for, what it has exchanged, and its last sample.
    pub(super) fn answer_survey(&mut self, sample_every: u64) {
        self.sampling.every = sample_every;
        let awaiting = if self.is_computing() { Vec::new() } else { self.node.awaiting() };
        let awaiting = awaiting.into_iter();
        let awaiting =
            awaiting.map(|peer| AwaitedRank { rank: peer.from.0, what: peer.what.to_string() });
        let counts = self.sent_to.iter().zip(&self.received_from);
        let bytes = self.bytes_to.iter().zip(&self.bytes_from);
        let links = counts.zip(bytes).enumerate().filter_map(|(peer, (counts, bytes))| {
            let (&sent, &received) = counts;
            let (&bytes_sent, &bytes_received) = bytes;
            let (peer, other) = (peer as u32, LinkTotal::default());
            let link = LinkTotal { peer, sent, received, bytes_sent, bytes_received, ..other };
            (sent + received > 0).then_some(link)
        });
        let survey = Box::new(RankSurvey {
            step: self.node.step(),
            awaiting: awaiting.collect(),
            links: links.collect(),
            memory: ProcessMemory::default(),
            sampled_at: self.sampling.step,
            sample: self.sampling.values.clone(),
        });
        self.events.push(RankEvent::Surveyed { rank: self.node.rank.0, survey });
    }
}
