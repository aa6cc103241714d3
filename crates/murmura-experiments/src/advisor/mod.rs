//! Which algorithm for this model on this cluster: predicted time, traffic and warnings.
//!
//! | module | what is in it |
//! |---|---|
//! | [`situation`] | model and cluster, from a configuration |
//! | [`cost`] | seconds of a step in closed form, tested against the virtual cluster |
//! | [`theory`] | what sparse mixing costs in iterations |

pub mod cost;
pub mod situation;
pub mod theory;

use murmura_plot::{Axis, Bars, Chart, Values};
use serde_json::{Value, json};

use crate::error::ExperimentError;
use crate::trial::Trial;
use cost::Cost;
use situation::Situation;

/// One way to train.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: &'static str,
    /// Its topology, for those that have one.
    pub topology: Option<&'static str>,
    /// Its collective, for those that have one.
    pub collective: Option<&'static str>,
    /// Megabytes of a bucket; 0 is one bucket.
    pub bucket_mb: f64,
}

impl Candidate {
    /// In few words.
    pub fn name(&self) -> String {
        let detail = self.topology.or(self.collective);
        detail.map_or(self.algorithm.to_string(), |detail| format!("{} / {detail}", self.algorithm))
    }

    /// The settings of a run file.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = vec![("algorithm.name", self.algorithm.to_string())];
        settings.extend(self.topology.map(|name| ("topology.name", name.to_string())));
        settings.extend(self.collective.map(|name| ("algorithm.collective", name.to_string())));
        if self.algorithm == "sgp" {
            settings.push(("algorithm.overlap", "1".into()));
        }
        settings
    }
}

/// What is predicted of a candidate.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// Which.
    pub candidate: Candidate,
    /// In closed form.
    pub cost: Cost,
    /// Seconds of a step in the virtual cluster, where it was asked.
    pub simulated: Option<f64>,
    /// What theory says against it.
    pub warning: Option<String>,
}

/// All candidates, the fastest first.
#[derive(Clone, Debug)]
pub struct Advice {
    /// What was asked about.
    pub situation: Situation,
    /// By speed.
    pub predictions: Vec<Prediction>,
}

/// So many of the fastest are also simulated, up to so many workers.
const SIMULATED: usize = 6;
const SIMULATED_WORKERS_MAX: usize = 64;

impl Advice {
    /// Predicts every candidate.
    pub fn new(situation: Situation) -> Result<Advice, ExperimentError> {
        let mut predictions: Vec<Prediction> = Vec::new();
        for candidate in candidates(&situation) {
            let Some(cost) = cost::predict(&situation, &candidate) else { continue };
            predictions.push(Prediction { candidate, cost, simulated: None, warning: None });
        }
        predictions.sort_by(|a, b| a.cost.step_seconds.total_cmp(&b.cost.step_seconds));
        let mut advice = Advice { situation, predictions };
        advice.keep_best_buckets();
        advice.warn();
        if advice.situation.workers <= SIMULATED_WORKERS_MAX {
            advice.simulate()?;
        }
        Ok(advice)
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
        self.predictions.iter().find(|prediction| prediction.candidate.algorithm == "allreduce")
    }

    fn warn(&mut self) {
        let exact = self.exact().map_or(self.situation.compute, |exact| exact.cost.step_seconds);
        for prediction in &mut self.predictions {
            let Prediction { candidate, cost, .. } = prediction;
            prediction.warning = theory::warning(&self.situation, candidate, cost, exact);
        }
    }

    fn simulate(&mut self) -> Result<(), ExperimentError> {
        for prediction in self.predictions.iter_mut().take(SIMULATED) {
            let trial = trial(&self.situation, &prediction.candidate);
            prediction.simulated = Some(trial.run(STEPS)?.step_seconds());
        }
        Ok(())
    }

    /// The fastest that theory does not warn of; all-reduce, where that is nearly as fast: its
    /// steps are exact.
    pub fn best(&self) -> Option<&Prediction> {
        let fine = self.predictions.iter().find(|prediction| prediction.warning.is_none())?;
        let exact = self.exact();
        let near = |exact: &&Prediction| exact.cost.step_seconds < NEARLY * fine.cost.step_seconds;
        exact.filter(near).or(Some(fine))
    }

    /// Which one to take, and why.
    pub fn verdict(&self) -> String {
        let Some(best) = self.best() else { return "There is nothing to choose from.".into() };
        let name = best.candidate.name();
        let speedup = self.situation.speedup(best.cost.step_seconds);
        let mut text = format!(
            "Take {name}: {:.1} times one worker's speed on {} workers",
            speedup, self.situation.workers
        );
        if let Some(exact) = self.exact().filter(|exact| exact.candidate != best.candidate) {
            let factor = exact.cost.step_seconds / best.cost.step_seconds;
            text += &format!(", {factor:.2} times as fast as all-reduce");
        }
        text.push('.');
        let shorter = |p: &&Prediction| p.cost.step_seconds < 0.995 * best.cost.step_seconds;
        if let Some(faster) = self.predictions.first().filter(shorter) {
            let but = match &faster.warning {
                Some(warning) => format!("but {warning}"),
                None => "but hardly, and all-reduce takes exact steps".to_string(),
            };
            text += &format!(" {} has shorter steps, {but}.", faster.candidate.name());
        }
        text
    }

    /// The table, names of the columns first.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let head =
            ["", "step", "simulated", "speed-up", "exposed", "MB per worker and step", "bucket"];
        let mut rows = vec![head.map(String::from).to_vec()];
        for Prediction { candidate, cost, simulated, warning } in &self.predictions {
            let milliseconds = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
            let bucket = match candidate.bucket_mb {
                0.0 => "one".to_string(),
                size => format!("{size} MB"),
            };
            let mark = if warning.is_some() { " *" } else { "" };
            rows.push(vec![
                format!("{}{mark}", candidate.name()),
                milliseconds(cost.step_seconds),
                simulated.map_or("–".into(), milliseconds),
                format!("{:.1}", self.situation.speedup(cost.step_seconds)),
                format!("{:.0} %", 100.0 * cost.exposed),
                format!("{:.1}", cost.bytes / 1e6),
                bucket,
            ]);
        }
        rows
    }

    /// Every warning, with whom it is about.
    pub fn warnings(&self) -> Vec<String> {
        let warned = self.predictions.iter().filter_map(|prediction| {
            let warning = prediction.warning.as_ref()?;
            Some(format!("{}: {warning}", prediction.candidate.name()))
        });
        warned.collect()
    }

    /// Speed-ups as a picture.
    pub fn charts(&self) -> Vec<(String, Chart)> {
        let shown: Vec<&Prediction> = self.predictions.iter().take(10).collect();
        let speed = |seconds: f64| Some(self.situation.speedup(seconds));
        let predicted = shown.iter().map(|p| speed(p.cost.step_seconds)).collect();
        let mut series = vec![Values::new("predicted", predicted)];
        if shown.iter().any(|p| p.simulated.is_some()) {
            let simulated = shown.iter().map(|p| p.simulated.and_then(speed)).collect();
            series.push(Values::new("simulated", simulated));
        }
        let chart = Chart::Bars(Bars {
            title: format!("Speed-up of {} workers", self.situation.workers),
            y: Axis::linear("times one worker alone"),
            groups: shown.iter().map(|p| p.candidate.name()).collect(),
            series,
            stacked: false,
        });
        vec![("speedup".into(), chart)]
    }

    /// What `--json` prints.
    pub fn json(&self) -> Value {
        let predictions = self.predictions.iter().map(|prediction| {
            let Prediction { candidate, cost, simulated, warning } = prediction;
            json!({
                "algorithm": candidate.algorithm,
                "topology": candidate.topology,
                "collective": candidate.collective,
                "bucket_mb": candidate.bucket_mb,
                "step_seconds": cost.step_seconds,
                "simulated_step_seconds": simulated,
                "speedup": self.situation.speedup(cost.step_seconds),
                "exposed_share": cost.exposed,
                "bytes_per_worker_and_step": cost.bytes,
                "gradients_per_message": cost.gradients_per_message,
                "warning": warning,
            })
        });
        json!({
            "situation": self.situation.json(),
            "predictions": predictions.collect::<Vec<_>>(),
            "verdict": self.verdict(),
        })
    }
}

/// So much longer a step may take if it is exact.
const NEARLY: f64 = 1.05;

const STEPS: u64 = 24;

/// The run that a prediction is about.
pub fn trial(situation: &Situation, candidate: &Candidate) -> Trial {
    let bare = Trial::new(candidate.algorithm, situation.workers, situation.parameters).cut(8);
    let settings = situation.settings().into_iter().chain(candidate.settings());
    let trial = settings.fold(bare, |trial, (key, value)| trial.set(key, value));
    match candidate.bucket_mb {
        0.0 => trial,
        size => trial.buckets_mb(size),
    }
}

/// Bucket sizes that are tried, in megabytes.
const BUCKETS_MB: [f64; 3] = [0.0, 25.0, 5.0];

fn candidates(situation: &Situation) -> Vec<Candidate> {
    let plain =
        |algorithm| Candidate { algorithm, topology: None, collective: None, bucket_mb: 0.0 };
    let mut all = Vec::new();
    for bucket_mb in BUCKETS_MB {
        if bucket_mb * 1e6 >= situation.bytes() {
            continue;
        }
        let collectives = ["ring", "hierarchical", "halving-doubling"];
        all.extend(collectives.map(|name| Candidate {
            collective: Some(name),
            bucket_mb,
            ..plain("allreduce")
        }));
        let topologies =
            ["ring", "one-peer-exponential", "exponential", "torus", "grid", "one-peer-ring"];
        all.extend(topologies.map(|name| Candidate {
            topology: Some(name),
            bucket_mb,
            ..plain("d-psgd")
        }));
        all.push(Candidate { topology: Some("one-peer-exponential"), bucket_mb, ..plain("sgp") });
    }
    all.extend(["aladdin", "asp", "easgd", "local-sgd", "sync-ps"].map(plain));
    all.extend(
        ["ring", "bipartite-exponential"]
            .map(|name| Candidate { topology: Some(name), ..plain("ad-psgd") }),
    );
    all
}
