//! The survey of a run that somebody looks at: now and then ranks say whom they wait for, what they have
//! exchanged with whom, and a random subset of their parameters, from which it is estimated how far
//! each is from the mean of all.

use std::collections::BTreeMap;

use quelea_core::random::Rng;
use quelea_core::time::Time;
use quelea_record::{AwaitedRank, LinkTotal, Observer, ProcessMemory, Record, RecordKind};

use crate::controller::{Controller, RunPhase};
use crate::directive::{Recipient, RunFailure};
use crate::membership::LossPolicy;
use crate::messages::Command;
use crate::text::{REASON_CHARS, shown};

/// Elements of the model that are compared.
pub(crate) const SAMPLED_ELEMENTS: usize = 1024;

/// What a rank says in a survey.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankSurvey {
    /// Its step.
    pub step: u64,
    /// Whom it waits for.
    pub awaiting: Vec<AwaitedRank>,
    /// What it has exchanged with each peer. Round trips are known to the driver alone.
    pub links: Vec<LinkTotal>,
    /// What its process holds, which the driver adds.
    pub memory: ProcessMemory,
    /// A subset of its parameters after this many of its steps.
    pub sampled_at: u64,
    /// Their values; empty at servers, and before the first sample.
    pub sample: Vec<f32>,
}

impl RankSurvey {
    /// Whether it can be of a run with this many ranks.
    pub(crate) fn check(&self, ranks: usize) -> Result<(), String> {
        let named = self.awaiting.iter().map(|awaited| awaited.rank);
        let named =
            named.chain(self.links.iter().map(|link| link.peer)).max().unwrap_or(0) as usize;
        let most = self.awaiting.len().max(self.links.len());
        if named < ranks && most <= ranks.max(1 << 10) && self.sample.len() <= SAMPLED_ELEMENTS {
            return Ok(());
        }
        Err(format!("its survey is of {most} entries and names rank {named}; ranks are {ranks}"))
    }
}

/// The elements that every rank samples: the same at all of them.
pub(crate) fn sampled_elements(seed: u64, length: usize) -> Vec<u32> {
    if length <= SAMPLED_ELEMENTS {
        return (0..length as u32).collect();
    }
    let mut rng = Rng::new(seed, "survey", 0);
    let mut elements: Vec<u32> =
        (0..SAMPLED_ELEMENTS).map(|_| rng.below(length as u64) as u32).collect();
    // In the order of memory.
    elements.sort_unstable();
    elements
}

/// What the controller keeps of surveys.
#[derive(Debug)]
pub(crate) struct Survey {
    /// When ranks were last asked.
    asked: Option<Time>,
    /// How often that is wanted now.
    interval: Option<Time>,
    /// Steps of all workers at the last survey.
    done: u64,
    /// The latest samples, by worker.
    samples: BTreeMap<u32, ModelSample>,
}

#[derive(Debug)]
struct ModelSample {
    step: u64,
    values: Vec<f32>,
    /// Whether it is part of no estimate yet.
    is_new: bool,
}

impl Survey {
    pub(crate) fn new() -> Survey {
        Survey { asked: None, interval: None, done: 0, samples: BTreeMap::new() }
    }
}

impl Controller {
    /// Asks all ranks, if it is time by the interval that is wanted now.
    pub(crate) fn survey_if_due(&mut self, interval: Option<Time>) {
        self.survey.interval = interval;
        let is_due = self.survey_deadline().is_some_and(|deadline| deadline <= self.now);
        if !is_due || self.phase != RunPhase::Running {
            return;
        }
        let steps = (self.done - self.survey.done) / self.setup.workers().max(1) as u64;
        self.survey.asked = Some(self.now);
        self.survey.done = self.done;
        // About two samples between two surveys, so that ranks which are a step apart have one of
        // the same step.
        let sample_every = (steps / 2).max(1).next_power_of_two();
        self.order(Recipient::All, Command::Survey { sample_every });
    }

    /// When the next survey is due, for a driver that sleeps until then.
    pub(crate) fn survey_deadline(&self) -> Option<Time> {
        let interval = self.survey.interval?;
        let due = self.survey.asked.map_or(self.now, |asked| asked + interval);
        Some(due.max(self.now))
    }

    /// A rank has answered.
    pub(crate) fn surveyed(&mut self, rank: u32, survey: RankSurvey, observer: &mut dyn Observer) {
        // It is alive; that it answers does not mean that it moves.
        self.ranks[rank as usize].heard = self.now;
        let RankSurvey { step, awaiting, links, memory, sampled_at, sample } = survey;
        let awaiting = awaiting
            .into_iter()
            .map(|awaited| AwaitedRank { what: shown(&awaited.what, REASON_CHARS), ..awaited });
        let event = RecordKind::Account { awaiting: awaiting.collect(), links, memory };
        let t = self.now.seconds();
        observer.record(Record { t, rank, step, event });
        if (rank as usize) < self.workers && !sample.is_empty() {
            let sample = ModelSample { step: sampled_at, values: sample, is_new: true };
            self.survey.samples.insert(rank, sample);
            self.estimate_deviations(observer);
        }
    }

    /// Estimates how far each worker is from the mean, once all living ones have a new sample: of the
    /// same step where they take their steps together.
    fn estimate_deviations(&mut self, observer: &mut dyn Observer) {
        let lost: Vec<u32> =
            (0..self.workers as u32).filter(|rank| self.ranks[*rank as usize].is_lost()).collect();
        lost.iter().for_each(|rank| {
            self.survey.samples.remove(rank);
        });
        let samples = &mut self.survey.samples;
        let first = samples.values().next().map(|sample| (sample.step, sample.values.len()));
        let Some((step, length)) = first else { return };
        let is_synchronous = self.properties.synchronous;
        let fits = |sample: &ModelSample| {
            sample.is_new
                && sample.values.len() == length
                && (!is_synchronous || sample.step == step)
        };
        if samples.len() + lost.len() < self.workers || !samples.values().all(fits) {
            return;
        }
        let elements = self.setup.layout.len();
        let values: Vec<&[f32]> = samples.values().map(|sample| &sample.values[..]).collect();
        let estimates = deviations(&values, elements);
        let t = self.now.seconds();
        for ((rank, sample), [distance, error]) in samples.iter_mut().zip(estimates) {
            sample.is_new = false;
            let event = RecordKind::Deviation { distance, error };
            observer.record(Record { t, rank: *rank, step: sample.step, event });
        }
    }

    /// Continues without a rank as asked, if the run can; otherwise a warning says why not.
    pub(crate) fn drop_rank(&mut self, rank: u32, observer: &mut dyn Observer) {
        let place = rank as usize;
        if place >= self.ranks.len()
            || self.ranks[place].is_lost()
            || self.phase != RunPhase::Running
        {
            return;
        }
        let refusal = match self.on_loss {
            LossPolicy::Stop => Some("`membership.on_loss` is \"stop\""),
            LossPolicy::Continue { min_workers } => {
                self.loss_refusal(rank, min_workers).map(|refusal| refusal.consequence())
            }
        };
        match refusal {
            Some(why) => self.warnings.push(format!("rank {rank} was not dropped: {why}")),
            None => {
                let failure = RunFailure::Lost { rank, reason: "dropped as asked".to_string() };
                self.warnings.push(format!("{failure}; the others continued"));
                self.lose(self.now, rank, self.now, observer);
            }
        }
    }
}

/// Estimates of `‖x_i − x̄‖` over vectors of `elements`, of which the same random subset is given of
/// each, with their standard errors. Where the subset is the whole there is no error.
fn deviations(samples: &[&[f32]], elements: usize) -> Vec<[f64; 2]> {
    let length = samples.first().map_or(0, |sample| sample.len());
    let count = samples.len() as f64;
    let mean: Vec<f64> = (0..length)
        .map(|k| samples.iter().map(|sample| f64::from(sample[k])).sum::<f64>() / count)
        .collect();
    let of_one = |sample: &&[f32]| {
        let squares = sample.iter().zip(&mean).map(|(x, m)| (f64::from(*x) - m).powi(2));
        let squares: Vec<f64> = squares.collect();
        let (taken, all) = (length as f64, elements as f64);
        let average = squares.iter().sum::<f64>() / taken;
        let distance = (all * average).sqrt();
        if length >= elements || distance == 0.0 || length < 2 {
            return [distance, 0.0];
        }
        let variance = squares.iter().map(|s| (s - average).powi(2)).sum::<f64>() / (taken - 1.0);
        // The error of a root is that of the square over twice the root.
        let error = all * (variance / taken).sqrt() / (2.0 * distance);
        [distance, error]
    };
    samples.iter().map(of_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_vector_gives_the_exact_distance() {
        let samples: [&[f32]; 2] = [&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]];
        for [distance, error] in deviations(&samples, 3) {
            assert!((distance - 2.0_f64.sqrt()).abs() < 1e-12);
            assert_eq!(error, 0.0);
        }
    }

    #[test]
    fn a_subset_gives_the_distance_within_four_of_its_standard_errors() {
        let elements = 200_000;
        let mut rng = Rng::new(3, "models", 0);
        let models: Vec<Vec<f32>> =
            (0..4).map(|_| (0..elements).map(|_| rng.normal() as f32).collect()).collect();
        let exact: Vec<f64> = {
            let whole: Vec<&[f32]> = models.iter().map(|model| &model[..]).collect();
            deviations(&whole, elements).into_iter().map(|[distance, _]| distance).collect()
        };
        let places = sampled_elements(7, elements);
        assert_eq!(places.len(), SAMPLED_ELEMENTS);
        let samples: Vec<Vec<f32>> = models
            .iter()
            .map(|model| places.iter().map(|place| model[*place as usize]).collect())
            .collect();
        let samples: Vec<&[f32]> = samples.iter().map(|sample| &sample[..]).collect();
        for ([estimate, error], exact) in deviations(&samples, elements).into_iter().zip(exact) {
            // Squares of normal numbers vary by √2 of their mean, so the root by 1/√(2k).
            let expected = exact / (2.0 * SAMPLED_ELEMENTS as f64).sqrt();
            assert!((error / expected - 1.0).abs() < 0.2, "{error} for {expected}");
            assert!((estimate - exact).abs() < 4.0 * error, "{estimate} ± {error} for {exact}");
        }
    }

    #[test]
    fn all_ranks_sample_the_same_elements() {
        assert_eq!(sampled_elements(5, 1 << 20), sampled_elements(5, 1 << 20));
        assert_eq!(sampled_elements(5, 3), [0, 1, 2]);
    }
}
