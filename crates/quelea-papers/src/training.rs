//! Runs of a real task in the virtual cluster, watched while they train.

use std::sync::Arc;

use quelea_core::problems::Problem;
use quelea_core::time::Time;
use quelea_plot::{Axis, Chart, LineChart, LineSeries, Stroke};
use quelea_record::{CheckpointSchedule, Models as Shown, Record, RecordKind};
use quelea_run::error::RequestError;
use quelea_run::evaluate::{Evaluated, Evaluator, Snapshot};
use quelea_run::files::tensors::ModelSlices;
use quelea_run::prepared::PreparedRun;
use quelea_run::trial::config;

use crate::error::ExperimentError;

/// What is learnt: a task with its data, read once for all runs that share it.
#[derive(Clone)]
pub struct Lesson {
    /// The settings of `[task]` and the seed, as one types them.
    pub settings: Vec<String>,
    /// The model with its data.
    pub problem: Arc<dyn Problem>,
    /// Steps of each worker in which all data are seen once.
    pub steps_per_epoch: u64,
}

impl Lesson {
    /// The task that `settings` make, for this number of workers.
    pub fn new(
        workers: usize,
        seed: u64,
        settings: Vec<String>,
    ) -> Result<Lesson, ExperimentError> {
        let settings = [settings, vec![format!("seed={seed}")]].concat();
        let shared = [format!("workers={workers}"), "epochs=1".into()];
        let plan = PreparedRun::new(config(&[&settings[..], &shared].concat())?)?;
        Ok(Lesson { settings, steps_per_epoch: plan.setup.steps, problem: plan.problem })
    }

    /// The same with so many seeds, from `seed` on.
    pub fn several(
        workers: usize,
        seed: u64,
        count: usize,
        settings: &[String],
    ) -> Result<Vec<Lesson>, ExperimentError> {
        let seeds = (0..count as u64).map(|k| seed.wrapping_add(k));
        seeds.map(|seed| Lesson::new(workers, seed, settings.to_vec())).collect()
    }
}

/// The model at one moment of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// Steps of each worker.
    pub step: f64,
    /// On the virtual clock.
    pub seconds: f64,
    /// Mean loss of the mini-batches since the moment before.
    pub training_loss: f64,
    /// Loss on held-out data.
    pub loss: f64,
    /// Percent of right answers on held-out data; not a number where there are none.
    pub accuracy: f64,
    /// Mean variance of a parameter over the workers.
    pub variance: f64,
}

impl Moment {
    /// Entry by entry.
    fn combine(moments: &[Moment], of: impl Fn(&[f64]) -> f64) -> Moment {
        let each = |entry: fn(&Moment) -> f64| of(&moments.iter().map(entry).collect::<Vec<_>>());
        Moment {
            step: each(|m| m.step),
            seconds: each(|m| m.seconds),
            training_loss: each(|m| m.training_loss),
            loss: each(|m| m.loss),
            accuracy: each(|m| m.accuracy),
            variance: each(|m| m.variance),
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Trained {
    /// Evenly over its steps, the last one at its end.
    pub moments: Vec<Moment>,
    /// What one would deploy at the end.
    pub model: Vec<f32>,
    /// The runs of which this is the mean; empty for one run.
    pub seeds: Vec<Trained>,
}

impl Trained {
    /// Simulates a plan, evaluating so many times.
    pub fn of(plan: &PreparedRun, evaluations: u64) -> Result<Trained, ExperimentError> {
        let deploy = plan.setup.properties().deploy;
        let mut watch = MomentObserver {
            judge: Evaluator { problem: Arc::clone(&plan.problem), deploy },
            cuts: CheckpointSchedule { save_every: 0, evaluations, steps: plan.setup.steps },
            losses: (0.0, 0),
            moments: Vec::new(),
        };
        let setup = plan.setup.simulated();
        let outcome = quelea_sim::simulate(&setup, &*plan.problem, &plan.cluster, &mut watch)?;
        let end = Time::from_seconds(outcome.clock_seconds);
        let models = ModelSlices::of(&outcome);
        let last = watch.judge.evaluate_models(end, plan.setup.steps, &models, false);
        watch.take(&last);
        Ok(Trained { moments: watch.moments, model: last.model, seeds: Vec::new() })
    }

    /// The mean of the same run on several lessons.
    pub fn over(
        lessons: &[Lesson],
        evaluations: u64,
        plan: impl Fn(&Lesson) -> Result<PreparedRun, RequestError>,
    ) -> Result<Trained, ExperimentError> {
        let runs = lessons.iter().map(|lesson| Trained::of(&plan(lesson)?, evaluations));
        Ok(Trained::mean(runs.collect::<Result<Vec<_>, _>>()?))
    }

    /// The mean of runs, moment by moment; the model is the first one's.
    fn mean(runs: Vec<Trained>) -> Trained {
        let shortest = runs.iter().map(|run| run.moments.len()).min().unwrap_or(0);
        let at = |index: usize| {
            let all: Vec<Moment> = runs.iter().map(|run| run.moments[index]).collect();
            Moment::combine(&all, |values| values.iter().sum::<f64>() / values.len() as f64)
        };
        let moments = (0..shortest).map(at).collect();
        let model = runs.first().map_or(Vec::new(), |run| run.model.clone());
        Trained { moments, model, seeds: if runs.len() > 1 { runs } else { Vec::new() } }
    }

    /// How far the farthest seed is from the mean over seeds, in a number of a run; nothing of one run,
    /// or where a seed does not have the number.
    pub fn spread(&self, of: impl Fn(&Trained) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.seeds.iter().map(of).collect::<Option<_>>()?;
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|value| (value - mean).abs()).reduce(f64::max)
    }

    /// The mean over the run's evaluations.
    pub fn throughout(&self, of: impl Fn(&Moment) -> f64) -> f64 {
        self.moments.iter().map(of).sum::<f64>() / self.moments.len() as f64
    }

    /// The end.
    pub fn last(&self) -> Moment {
        *self.moments.last().expect("a run is evaluated at its end")
    }

    /// The model after so many seconds, on the straight line between two evaluations; its end, if
    /// it ends before.
    pub fn at(&self, seconds: f64) -> Moment {
        let after = self.moments.partition_point(|moment| moment.seconds < seconds);
        match (after.checked_sub(1).map(|k| self.moments[k]), self.moments.get(after)) {
            (Some(a), Some(b)) => between(a, *b, (seconds - a.seconds) / (b.seconds - a.seconds)),
            (None, Some(first)) => *first,
            _ => self.last(),
        }
    }

    /// Seconds until the accuracy is this high, on the straight line between two evaluations.
    pub fn reached(&self, accuracy: f64) -> Option<f64> {
        let after = self.moments.iter().position(|moment| moment.accuracy >= accuracy)?;
        let b = self.moments[after];
        let Some(a) = after.checked_sub(1).map(|before| self.moments[before]) else {
            return Some(b.seconds);
        };
        Some(between(a, b, (accuracy - a.accuracy) / (b.accuracy - a.accuracy)).seconds)
    }
}

fn between(a: Moment, b: Moment, share: f64) -> Moment {
    Moment::combine(&[a, b], |values| values[0] + share * (values[1] - values[0]))
}

/// Evaluates what is shown.
struct MomentObserver {
    judge: Evaluator,
    cuts: CheckpointSchedule,
    /// Sum and number of the mini-batches' losses since the last moment.
    losses: (f64, u64),
    moments: Vec<Moment>,
}

impl MomentObserver {
    fn take(&mut self, evaluated: &Evaluated) {
        let (loss, accuracy) = (evaluated.evaluation.loss, evaluated.evaluation.accuracy());
        let (sum, count) = std::mem::take(&mut self.losses);
        self.moments.push(Moment {
            step: evaluated.step as f64,
            seconds: evaluated.now.seconds(),
            training_loss: sum / count as f64,
            loss,
            accuracy: accuracy.map_or(f64::NAN, |share| 100.0 * share),
            variance: evaluated.consensus.powi(2) / evaluated.model.len() as f64,
        });
    }
}

impl quelea_sim::Observer for MomentObserver {
    fn record(&mut self, record: Record) {
        if let RecordKind::Step { loss, .. } = record.event {
            self.losses.0 += f64::from(loss);
            self.losses.1 += 1;
        }
    }

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        self.cuts
    }

    fn evaluate(&mut self, now: Time, step: u64, models: Shown) {
        let evaluated = self.judge.evaluate(&Snapshot { now, step, models }, false);
        self.take(&evaluated);
    }
}

/// Runs by name, in the order in which they are shown.
pub type NamedRuns = Vec<(String, Trained)>;

/// A line for every run through its moments, at `place` of each.
pub fn chart(
    title: &str,
    runs: &NamedRuns,
    x: Axis,
    y: Axis,
    place: impl Fn(&Moment) -> (f64, f64),
) -> Chart {
    let line = |(name, run): &(String, Trained)| {
        let points = run.moments.iter().map(&place).collect();
        LineSeries { stroke: Stroke::Line, ..LineSeries::line(name.clone(), points) }
    };
    Chart::Lines(LineChart { title: title.into(), x, y, series: runs.iter().map(line).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(points: &[(f64, f64)]) -> Trained {
        let moment = |&(seconds, accuracy)| Moment {
            step: 0.0,
            seconds,
            training_loss: 1.0,
            loss: 1.0,
            accuracy,
            variance: 0.0,
        };
        Trained { moments: points.iter().map(moment).collect(), model: vec![], seeds: vec![] }
    }

    #[test]
    fn between_evaluations_a_curve_is_straight() {
        let run = run(&[(1.0, 50.0), (2.0, 70.0), (4.0, 90.0)]);
        assert_eq!(run.at(3.0).accuracy, 80.0);
        assert_eq!((run.at(0.5).accuracy, run.at(9.0).accuracy), (50.0, 90.0));
        assert_eq!(run.reached(80.0), Some(3.0));
        assert_eq!((run.reached(40.0), run.reached(91.0)), (Some(1.0), None));
    }

    #[test]
    fn seeds_are_averaged_moment_by_moment() {
        let both = Trained::mean(vec![run(&[(1.0, 50.0), (2.0, 70.0)]), run(&[(3.0, 60.0)])]);
        assert_eq!(both.moments.len(), 1);
        assert_eq!((both.last().seconds, both.last().accuracy), (2.0, 55.0));
        assert_eq!(both.spread(|run| Some(run.moments[0].accuracy)), Some(5.0));
        assert_eq!(both.spread(|run| run.reached(65.0)), None, "one seed never has 65 %");
        assert_eq!(run(&[(1.0, 50.0)]).spread(|run| Some(run.last().accuracy)), None);
    }
}
