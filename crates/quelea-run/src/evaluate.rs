//! How good models are, while a run continues: on a thread of its own, so that nobody waits, or at
//! once where the clock is virtual.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use quelea_core::problems::{Evaluation, Problem};
use quelea_core::properties::DeployedFrom;
use quelea_core::time::Time;
use quelea_record::Models;

use crate::files::tensors;

/// What every rank would deploy at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// On the run's clock.
    pub now: Time,
    /// Steps of every worker.
    pub step: u64,
    /// By rank.
    pub models: Models,
}

/// How good the models of one moment are.
#[derive(Clone, Debug)]
pub struct Evaluated {
    /// On the run's clock.
    pub now: Time,
    /// Steps of every worker.
    pub step: u64,
    /// What one would deploy.
    pub model: Vec<f32>,
    /// How good it is.
    pub evaluation: Evaluation,
    /// How far the workers are apart.
    pub consensus: f64,
    /// How good the workers' own models are, if that was asked for.
    pub workers: Option<Spread>,
}

/// The mean and the worst over the workers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Of the loss.
    pub loss: [f64; 2],
    /// Of the accuracy.
    pub accuracy: Option<[f64; 2]>,
}

/// Evaluates models of one problem.
#[derive(Clone)]
pub struct Evaluator {
    /// What the models are for.
    pub problem: Arc<dyn Problem>,
    /// Whose model is deployed.
    pub deploy: DeployedFrom,
}

impl Evaluator {
    /// How good these models are; with those of every worker, if `each`.
    pub fn evaluate(&self, snapshot: &Snapshot, each: bool) -> Evaluated {
        let Snapshot { now, step, models } = snapshot;
        let models = tensors::ModelSlices {
            workers: models.workers.iter().map(|(_, model)| model.as_slice()).collect(),
            servers: models.servers.iter().map(|(_, model)| model.as_slice()).collect(),
        };
        self.evaluate_models(*now, *step, &models, each)
    }

    /// As [`evaluate`](Evaluator::evaluate), of models that are somebody else's.
    pub fn evaluate_models(
        &self,
        now: Time,
        step: u64,
        models: &tensors::ModelSlices<'_>,
        each: bool,
    ) -> Evaluated {
        let model = models.deployed(self.deploy);
        let evaluation = self.problem.evaluate(&model);
        let consensus = models.consensus_distance();
        let workers = each.then(|| self.spread(&models.workers, &model, &evaluation));
        Evaluated { now, step, model, evaluation, consensus, workers }
    }

    /// Workers that hold the deployed model itself are not evaluated again.
    fn spread(&self, workers: &[&[f32]], model: &[f32], known: &Evaluation) -> Spread {
        let evaluate = |params: &&[f32]| {
            if *params == model { known.clone() } else { self.problem.evaluate(params) }
        };
        let all: Vec<Evaluation> = workers.iter().map(evaluate).collect();
        let losses: Vec<f64> = all.iter().map(|one| one.loss).collect();
        let accuracies: Option<Vec<f64>> = all.iter().map(Evaluation::accuracy).collect();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        // What is not a number is worse than any number.
        let worse = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
        let worst = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, worse);
        let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
        Spread {
            loss: [mean(&losses), worst(&losses)],
            accuracy: accuracies.filter(|a| !a.is_empty()).map(|a| [mean(&a), least(&a)]),
        }
    }
}

/// Snapshots that may wait; more are left out.
const WAITING: usize = 2;

/// An evaluator on a thread of its own.
pub struct BackgroundEvaluator {
    snapshots: Sender<Snapshot>,
    results: Receiver<Evaluated>,
    thread: JoinHandle<()>,
    waiting: usize,
    left_out: u64,
}

impl BackgroundEvaluator {
    /// Starts the thread; with every worker's model each time, if `each`.
    pub fn start(evaluator: Evaluator, each: bool) -> BackgroundEvaluator {
        let (snapshots, asked) = channel::<Snapshot>();
        let (answer, results) = channel();
        let thread = std::thread::spawn(move || {
            for snapshot in asked {
                if answer.send(evaluator.evaluate(&snapshot, each)).is_err() {
                    return;
                }
            }
        });
        BackgroundEvaluator { snapshots, results, thread, waiting: 0, left_out: 0 }
    }

    /// Has this evaluated, unless too many wait.
    pub fn take(&mut self, snapshot: Snapshot) {
        if self.waiting >= WAITING {
            self.left_out += 1;
            return;
        }
        self.waiting += 1;
        // The thread ends only after this does.
        let _ = self.snapshots.send(snapshot);
    }

    /// What is done since the last question.
    pub fn news(&mut self) -> Vec<Evaluated> {
        if self.waiting == 0 {
            return Vec::new();
        }
        let news: Vec<Evaluated> = self.results.try_iter().collect();
        self.waiting -= news.len();
        news
    }

    /// Waits for the rest; with how many snapshots were left out.
    pub fn finish(self) -> (Vec<Evaluated>, u64) {
        drop(self.snapshots);
        let rest = self.results.iter().collect();
        // A panic of the task's evaluation shows where the final model is evaluated, too.
        let _ = self.thread.join();
        (rest, self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quelea_core::message::Rank;
    use quelea_core::problems::quadratic::{Quadratic, QuadraticOptions};

    fn evaluator() -> Evaluator {
        let (curvature, target) = (vec![vec![1.0]], vec![vec![1.0]]);
        let options = QuadraticOptions { workers: 1, curvature, target, ..Default::default() };
        let problem = Quadratic::new(&options).expect("good");
        Evaluator { problem: Arc::new(problem), deploy: DeployedFrom::Workers }
    }

    /// `½(x − 1)²`
    #[test]
    fn mean_and_worst_are_over_the_workers() {
        let workers = vec![(Rank(0), vec![1.0]), (Rank(1), vec![3.0])];
        let models = Models { workers, servers: Vec::new() };
        let snapshot = Snapshot { now: Time(5), step: 7, models };
        let evaluated = evaluator().evaluate(&snapshot, true);
        assert_eq!((evaluated.step, evaluated.model.as_slice()), (7, &[2.0][..]));
        assert_eq!(evaluated.evaluation.loss, 0.5);
        assert_eq!(evaluated.workers, Some(Spread { loss: [1.0, 2.0], accuracy: None }));
        assert_eq!(evaluator().evaluate(&snapshot, false).workers, None);
    }

    #[test]
    fn what_is_shown_is_evaluated_beside_and_too_much_is_left_out() {
        let mut background = BackgroundEvaluator::start(evaluator(), false);
        let models = Models { workers: vec![(Rank(0), vec![1.0])], servers: Vec::new() };
        let mut done = 0;
        for step in 0..50 {
            background.take(Snapshot { now: Time(step), step, models: models.clone() });
            done += background.news().len() as u64;
        }
        let (rest, left_out) = background.finish();
        assert_eq!(done + rest.len() as u64 + left_out, 50);
        assert!(done + rest.len() as u64 > 0);
    }
}
