//! Asks `plan` about a run: what its steps should take, and what would be faster.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use quelea_plan::Advice;
use quelea_plan::scenario::Scenario;
use quelea_run::prepared::PreparedRun;
use serde_json::Value;

use crate::advice::{Adviser, PlanForecast};
use crate::description::readable;
use crate::folder;

/// The longest head of a file of tensors that is read.
const HEAD_MAX: u64 = 64 << 20;

/// Where the time of a gradient comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientTimes {
    /// It is measured.
    Measured,
    /// The configuration of the virtual cluster says it.
    Configured,
}

/// About a run that is ready to be driven.
pub fn of_prepared(prepared: &PreparedRun, times: GradientTimes) -> Option<Adviser> {
    Some(of_scenario(Scenario::of(prepared).ok()?, times))
}

/// About a run with this configuration, whose model has so many elements.
pub fn of_config(config: &Value, elements: f64, times: GradientTimes) -> Option<Adviser> {
    let scenario = Scenario::new(readable(config)?, Some(elements)).ok()?;
    Some(of_scenario(scenario, times))
}

/// About the run in a folder, if it has ended.
pub fn of_folder(run: &Path) -> Option<Adviser> {
    let summary = folder::summary(run).ok()??;
    let is_virtual = summary["clock"] == "virtual";
    let times = if is_virtual { GradientTimes::Configured } else { GradientTimes::Measured };
    of_config(&summary["config"], model_elements(run)?, times)
}

fn of_scenario(scenario: Scenario, times: GradientTimes) -> Adviser {
    Box::new(move |compute| {
        let mut scenario = scenario.clone();
        if times == GradientTimes::Measured {
            scenario.compute = compute;
        }
        let forecast = Advice::forecast(scenario)?;
        Some(PlanForecast {
            step_seconds: forecast.own_step_seconds,
            best: forecast.best,
            best_step_seconds: forecast.best_step_seconds,
            verdict: forecast.verdict,
        })
    })
}

/// Elements of the model that a run ended with, from the head of its file.
fn model_elements(run: &Path) -> Option<f64> {
    let mut file = File::open(run.join("final.safetensors")).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let mut head = Vec::new();
    file.take(u64::from_le_bytes(length).min(HEAD_MAX)).read_to_end(&mut head).ok()?;
    let head: Value = serde_json::from_slice(&head).ok()?;
    head["model"]["shape"][0].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_run_of_a_task_that_nobody_knows_has_a_forecast_that_grows_with_its_gradients() {
        let config = json!({
            "workers": 4, "steps": 0, "algorithm": { "name": "allreduce" },
            "task": { "name": "a PyTorch script" },
        });
        let adviser = of_config(&config, 1e6, GradientTimes::Measured).expect("it can be planned");
        let steps = |compute: f64| adviser(compute).expect("a forecast").step_seconds;
        assert!(steps(0.5) >= 0.5, "{}", steps(0.5));
        // What is sent stays the same: half a second more of computing is half a second more.
        assert!((steps(1.0) - steps(0.5) - 0.5).abs() < 0.05, "{} {}", steps(1.0), steps(0.5));
    }
}
