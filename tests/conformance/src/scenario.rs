//! The scenario of the arms: quadratics with several buckets and shards, different for every worker.

use quelea_record::{Outcome, RankReport};
use quelea_run::prepared::PreparedRun;

use crate::forms::AlgorithmForm;
use crate::{Arm, bits};

/// Parameters of the model.
pub const ELEMENTS: usize = 8;

/// Quadratics with three buckets and two shards, different for every worker. `algorithm` is what
/// stands in `[algorithm]`, `more` follows `[cluster]`.
pub fn scenario(algorithm: &str, workers: usize, steps: u64, more: &str) -> String {
    let rows = |scale: f64| -> Vec<Vec<f64>> {
        let entry = |i: usize, k: usize| scale * (1.0 + ((3 * i + 5 * k) % 7) as f64 / 4.0);
        (0..workers).map(|i| (0..ELEMENTS).map(|k| entry(i, k)).collect()).collect()
    };
    format!(
        "workers = {workers}\nsteps = {steps}\n[algorithm]\n{algorithm}\n[buckets]\nsize_mb = 0.000012\n\
         [task]\nname = \"quadratic\"\ncurvature = {:?}\ntarget = {:?}\n\
         [optimizer]\nlr = 0.05\nmomentum = 0.5\n[cluster]\nservers = 2\n{more}",
        rows(0.5),
        rows(-0.7),
    )
}

/// The scenario of a form; momentum only where its servers can follow it.
pub fn scenario_of(form: &AlgorithmForm, workers: usize, steps: u64, more: &str) -> String {
    let text = scenario(&form.text(), workers, steps, more);
    if !form.properties().optimizer_rule.refused_options().is_empty() {
        text.replace("momentum = 0.5\n", "")
    } else {
        text
    }
}

/// Parameters, bytes and messages of every rank.
pub fn result(arm: Arm, plan: &PreparedRun) -> (Vec<Vec<u32>>, Vec<[u64; 3]>) {
    counted(&arm.run(plan))
}

/// Parameters, bytes and messages of every rank of a run that has ended.
pub fn counted(outcome: &Outcome) -> (Vec<Vec<u32>>, Vec<[u64; 3]>) {
    let counts = |rank: &RankReport| [rank.bytes_sent, rank.bytes_received, rank.messages_sent];
    (bits(outcome), outcome.ranks.iter().map(counts).collect())
}
