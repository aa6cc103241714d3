//! Which algorithm for this model on this cluster: predicted time, traffic and warnings.
//!
//! ```
//! use quelea_plan::{Advice, scenario::Scenario};
//! use quelea_run::config::{Config, source::parse};
//!
//! let cluster = "workers = 8\n[cluster]\ncompute_ms = 100\nbandwidth_gbps = 10\n[task]\nname = \"quadratic\"";
//! let config = Config::read(parse(cluster).unwrap(), &[], None).unwrap();
//! let advice = Advice::new(Scenario::new(config, Some(25.6e6)).unwrap()).unwrap();
//! assert!(advice.verdict().starts_with("Take "));
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`scenario`] | model and cluster, from a configuration |
//! | [`measured`] | the same from a cluster that was measured |
//! | `candidate` | the ways to train that are compared |
//! | [`cost`] | seconds of a step in closed form, tested against the virtual cluster |
//! | [`grouped`] | rounds of groups that average by all-reduce |
//! | [`mixing`] | what the rounds of a topology ask of cards |
//! | [`unbucketed`] | gossip of undivided models, which meet at cards |
//! | [`theory`] | what sparse mixing costs in iterations |

mod candidate;
pub mod cost;
pub mod grouped;
pub mod measured;
pub mod mixing;
pub mod scenario;
pub mod theory;
pub mod unbucketed;

use quelea_core::algorithms::{Entry, Traffic};
use quelea_plot::{Axis, BarChart, BarSeries, Chart};
use quelea_run::error::RunError;
use serde_json::{Value, json};

pub use candidate::{Candidate, candidates, steps, trial};
use cost::{Cost, CostModel};
use measured::ClusterSurvey;
use scenario::Scenario;
use theory::Transient;

/// What is predicted of a candidate.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// Which.
    pub candidate: Candidate,
    /// In closed form.
    pub cost: Cost,
    /// Seconds of a step in the virtual cluster, where it was asked.
    pub simulated: Option<f64>,
    /// Steps that it loses before it is as good as all-reduce; 0 where its steps are exact.
    pub transient: f64,
    /// What theory says against it.
    pub warning: Option<String>,
}

impl Prediction {
    /// Seconds of a run of this many steps, those of the transient with them.
    pub fn run_seconds(&self, steps: u64) -> f64 {
        (steps as f64 + self.transient) * self.cost.step_seconds
    }

    /// Who comes first of those that take equally long: who leaves nothing out, sends less at a
    /// time, and exchanges in the simpler way.
    fn plainness(&self) -> (bool, u64, u8) {
        let (vectors, kind) = match cost::traffic(&self.candidate) {
            Traffic::Average { period: 1 } => (1, 0),
            Traffic::Gossip { vectors, average: None, .. } => (vectors, 1),
            Traffic::Servers(_) => (1, 2),
            Traffic::Pairs { .. } => (1, 3),
            Traffic::Gossip { vectors, .. } => (vectors, 4),
            Traffic::Average { .. } => (1, 5),
        };
        (self.candidate.codec.is_some(), vectors, kind)
    }
}

/// All candidates, the fastest first.
#[derive(Clone, Debug)]
pub struct Advice {
    /// What was asked about.
    pub scenario: Scenario,
    /// By speed.
    pub predictions: Vec<Prediction>,
    /// Rows of which nothing could be predicted, and why.
    pub unpredicted: Vec<(&'static str, String)>,
    /// Where the scenario was measured: what exactly.
    pub survey: Option<ClusterSurvey>,
}

/// What to expect of a run, and what would be better.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Seconds of a step with its algorithm, at its best.
    pub own_step_seconds: f64,
    /// What to take instead, or the same.
    pub best: String,
    /// Seconds of a step of that.
    pub best_step_seconds: f64,
    /// Why, in a sentence.
    pub verdict: String,
}

/// So many of the fastest are also simulated, up to so many workers.
const SIMULATED: usize = 6;
const SIMULATED_WORKERS_MAX: usize = 64;

impl Advice {
    /// Predicts every candidate.
    pub fn new(scenario: Scenario) -> Result<Advice, RunError> {
        let mut advice = Advice::in_closed_form(scenario);
        if advice.scenario.workers <= SIMULATED_WORKERS_MAX {
            advice.simulate()?;
        }
        Ok(advice)
    }

    /// Predicts every candidate in closed form, which takes no time.
    fn in_closed_form(scenario: Scenario) -> Advice {
        let mut predictions: Vec<Prediction> = Vec::new();
        let mut unpredicted: Vec<(&'static str, String)> = Vec::new();
        let mut costs = CostModel::new(&scenario);
        for row in scenario.registry.entries::<Entry>() {
            let (before, mut refusals) = (predictions.len(), Vec::new());
            for candidate in candidates(&scenario, row) {
                match costs.predict(&candidate) {
                    Ok(cost) => {
                        let (simulated, transient, warning) = (None, 0.0, None);
                        let made = Prediction { candidate, cost, simulated, transient, warning };
                        predictions.push(made);
                    }
                    Err(reason) => refusals.push(reason),
                }
            }
            if predictions.len() == before {
                refusals.dedup();
                unpredicted.push((row.meta.name, refusals.join("; ")));
            }
        }
        predictions.sort_by(|a, b| {
            let order = a.cost.step_seconds.total_cmp(&b.cost.step_seconds);
            order.then_with(|| a.plainness().cmp(&b.plainness()))
        });
        let mut advice = Advice { scenario, predictions, unpredicted, survey: None };
        advice.keep_best_buckets();
        advice.warn();
        advice
    }

    /// What to expect of the run that a scenario is of, and what would be better, in closed form.
    pub fn forecast(scenario: Scenario) -> Option<Forecast> {
        let own = scenario.algorithm.as_ref()?.name;
        let advice = Advice::in_closed_form(scenario);
        let own = advice
            .predictions
            .iter()
            .find(|prediction| prediction.candidate.algorithm.meta.name == own)?;
        let best = advice.best()?;
        Some(Forecast {
            own_step_seconds: own.cost.step_seconds,
            best: best.candidate.name(),
            best_step_seconds: best.cost.step_seconds,
            verdict: advice.verdict(),
        })
    }

    /// Of a row that differs in nothing but the size of its buckets, the fastest stays.
    fn keep_best_buckets(&mut self) {
        let mut seen: Vec<String> = Vec::new();
        self.predictions.retain(|prediction| {
            let name = prediction.candidate.name();
            let is_new = !seen.contains(&name);
            seen.push(name);
            is_new
        });
    }

    fn exact(&self) -> Option<&Prediction> {
        let is_exact =
            |p: &&Prediction| matches!(cost::traffic(&p.candidate), Traffic::Average { period: 1 });
        self.predictions.iter().find(is_exact)
    }

    fn warn(&mut self) {
        let exact = self.exact().map_or(self.scenario.compute, |exact| exact.cost.step_seconds);
        for prediction in &mut self.predictions {
            let Prediction { candidate, cost, .. } = prediction;
            if let Some(found) = Transient::of(&self.scenario, candidate, cost) {
                prediction.warning = found.warning(&self.scenario, cost, exact);
                prediction.transient = found.steps;
            }
        }
    }

    /// The fastest of so many algorithms, and the one to take.
    fn simulate(&mut self) -> Result<(), RunError> {
        let chosen = self.best_of_each().into_iter().take(SIMULATED).chain(self.best());
        let chosen: Vec<Candidate> =
            chosen.map(|prediction| prediction.candidate.clone()).collect();
        for prediction in &mut self.predictions {
            let steps = steps(&prediction.candidate);
            if chosen.contains(&prediction.candidate) && steps <= STEPS_MAX {
                let trial = trial(&self.scenario, &prediction.candidate);
                prediction.simulated = Some(trial.run(steps)?.step_seconds());
            }
        }
        Ok(())
    }

    /// The one whose whole run takes least, the steps of its transient with it; all-reduce, where that is
    /// nearly as fast: its steps are exact.
    pub fn best(&self) -> Option<&Prediction> {
        let seconds = |prediction: &Prediction| prediction.run_seconds(self.scenario.steps);
        let fine = || self.predictions.iter().filter(|prediction| prediction.warning.is_none());
        let least = fine().map(seconds).reduce(f64::min)?;
        let alike = fine().filter(|prediction| seconds(prediction) < ALIKE * least);
        let fine = alike.min_by_key(|prediction| prediction.plainness())?;
        let exact = self.exact().filter(|exact| seconds(exact) < NEARLY * seconds(fine));
        exact.or(Some(fine))
    }

    /// Which one to take, and why.
    pub fn verdict(&self) -> String {
        let Some(best) = self.best() else { return "There is nothing to choose from.".into() };
        let name = best.candidate.name();
        let speedup = self.scenario.speedup(best.cost.step_seconds);
        let mut text = format!(
            "Take {name}: {:.1} times one worker's speed on {}",
            speedup,
            match self.scenario.workers {
                1 => "one worker".to_string(),
                workers => format!("{workers} workers"),
            }
        );
        if let Some(exact) = self.exact().filter(|exact| exact.candidate != best.candidate) {
            let factor = exact.cost.step_seconds / best.cost.step_seconds;
            text += &format!(", {factor:.2} times as fast as all-reduce");
        }
        text.push('.');
        let shorter = |p: &&Prediction| p.cost.step_seconds < 0.995 * best.cost.step_seconds;
        if let Some(faster) = self.predictions.first().filter(shorter) {
            let steps = self.scenario.steps;
            let but = match &faster.warning {
                Some(warning) => format!("but {warning}"),
                None if faster.run_seconds(steps) > best.run_seconds(steps) => {
                    format!("but needs about {:.0} more of them", faster.transient.ceil())
                }
                None => "but hardly, and all-reduce takes exact steps".to_string(),
            };
            text += &format!(" {} has shorter steps, {but}.", faster.candidate.name());
        }
        text
    }

    /// Of every algorithm the fastest, and the fastest that theory does not warn of.
    pub fn best_of_each(&self) -> Vec<&Prediction> {
        let mut seen: Vec<(&str, bool)> = Vec::new();
        let is_new = |prediction: &&Prediction| {
            let (name, warned) =
                (prediction.candidate.algorithm.meta.name, prediction.warning.is_some());
            let is_new = !seen.contains(&(name, false)) && !seen.contains(&(name, warned));
            seen.push((name, warned));
            is_new
        };
        self.predictions.iter().filter(is_new).collect()
    }

    /// The table of these, names of the columns first.
    pub fn rows(&self, shown: &[&Prediction]) -> Vec<Vec<String>> {
        let head = [
            "",
            "step",
            "simulated",
            "speed-up",
            "exposed",
            "MB per worker and step",
            "bucket",
            "lost",
        ];
        let mut rows = vec![head.map(String::from).to_vec()];
        for Prediction { candidate, cost, simulated, transient, warning } in shown {
            let milliseconds = |seconds: f64| match seconds * 1e3 {
                ms if ms < 0.1 => format!("{:.1} µs", ms * 1e3),
                ms if ms < 10.0 => format!("{ms:.2} ms"),
                ms => format!("{ms:.1} ms"),
            };
            let bucket = match candidate.bucket_mb {
                0.0 => "one".to_string(),
                size => format!("{size} MB"),
            };
            let mark = if warning.is_some() { " *" } else { "" };
            rows.push(vec![
                format!("{}{mark}", candidate.name()),
                milliseconds(cost.step_seconds),
                simulated.map_or("–".into(), milliseconds),
                format!("{:.1}", self.scenario.speedup(cost.step_seconds)),
                format!("{:.0} %", 100.0 * cost.exposed),
                format!("{:.1}", cost.bytes / 1e6),
                bucket,
                theory::lost(*transient),
            ]);
        }
        rows
    }

    /// Every warning of these, with all whom it is about.
    pub fn warnings(&self, shown: &[&Prediction]) -> Vec<String> {
        let mut warned: Vec<(&String, Vec<String>)> = Vec::new();
        for prediction in shown {
            let Some(warning) = &prediction.warning else { continue };
            let name = prediction.candidate.name();
            match warned.iter_mut().find(|(text, _)| *text == warning) {
                Some((_, names)) => names.push(name),
                None => warned.push((warning, vec![name])),
            }
        }
        warned.iter().map(|(warning, names)| format!("{}: {warning}", names.join(", "))).collect()
    }

    /// Speed-ups as a picture.
    pub fn charts(&self) -> Vec<(String, Chart)> {
        let shown: Vec<&Prediction> = self.best_of_each().into_iter().take(10).collect();
        let speed = |seconds: f64| Some(self.scenario.speedup(seconds));
        let predicted = shown.iter().map(|p| speed(p.cost.step_seconds)).collect();
        let mut series = vec![BarSeries::new("predicted", predicted)];
        if shown.iter().any(|p| p.simulated.is_some()) {
            let simulated = shown.iter().map(|p| p.simulated.and_then(speed)).collect();
            series.push(BarSeries::new("simulated", simulated));
        }
        let chart = Chart::Bars(BarChart {
            title: format!("Speed-up of {} workers", self.scenario.workers),
            y: Axis::linear("times one worker alone"),
            groups: shown.iter().map(|p| label(p, &shown)).collect(),
            series,
            stacked: false,
        });
        vec![("speedup".into(), chart)]
    }

    /// What `--json` prints.
    pub fn json(&self) -> Value {
        let predictions = self.predictions.iter().map(|prediction| {
            let Prediction { candidate, cost, simulated, transient, warning } = prediction;
            json!({
                "algorithm": candidate.algorithm.meta.name,
                "topology": candidate.topology,
                "collective": candidate.collective,
                "codec": candidate.codec,
                "bucket_mb": candidate.bucket_mb,
                "step_seconds": cost.step_seconds,
                "simulated_step_seconds": simulated,
                "speedup": self.scenario.speedup(cost.step_seconds),
                "exposed_share": cost.exposed,
                "bytes_per_worker_and_step": cost.bytes,
                "gradients_per_message": cost.gradients_per_message,
                "transient_steps": transient,
                "warning": warning,
            })
        });
        let unpredicted = self.unpredicted.iter();
        let unpredicted =
            unpredicted.map(|(name, reason)| json!({ "algorithm": name, "reason": reason }));
        json!({
            "situation": self.scenario.json(),
            "measured": self.survey.as_ref().map(ClusterSurvey::json),
            "predictions": predictions.collect::<Vec<_>>(),
            "not_predicted": unpredicted.collect::<Vec<_>>(),
            "verdict": self.verdict(),
        })
    }
}

/// The algorithm's name, and more where that does not tell it from others.
fn label(prediction: &Prediction, others: &[&Prediction]) -> String {
    let Candidate { algorithm, topology, collective, .. } = &prediction.candidate;
    let alike = others.iter().filter(|other| other.candidate.algorithm == *algorithm).count();
    match topology.or(*collective).filter(|_| alike > 1) {
        Some(detail) => format!("{}, {detail}", algorithm.meta.name),
        None => algorithm.meta.name.to_string(),
    }
}

/// So much longer a step may take if it is exact.
const NEARLY: f64 = 1.05;

/// Steps that are nearer than this take equally long.
const ALIKE: f64 = 1.002;

/// Longer runs are not simulated in passing.
const STEPS_MAX: u64 = 300;
