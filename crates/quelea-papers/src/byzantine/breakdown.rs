//! Gossip on plain averaging: honest values that are known, no learning, and attackers tied to everyone.
//!
//! In Two Worlds with `cross` edges per worker between the halves and `b` attackers at every worker, no
//! rule can hold for `cross ≤ b`: a worker cannot tell its b attackers from its neighbours in the other
//! half (Gaucher et al. 2025; the algebraic connectivity is 2·cross). With more edges the rules hold.

use quelea_record::Silent;
use quelea_run::prepared::PreparedRun;
use quelea_run::trial::config;

use crate::ReproduceOptions;
use crate::error::ExperimentError;
use crate::report::{PaperReport, ReportCell, ReportTable};

/// Honest workers, half of them in either world.
const HONEST: usize = 12;
/// Attackers, each tied to everyone.
const ATTACKERS: usize = 1;
/// Of the squared distance to the honest mean, what is left where a rule holds, and where it fails: fixed
/// before the first run.
const HOLDS: f64 = 0.5;
const FAILS: f64 = 0.9;

/// Attacks and strengths that are tried.
const TRIED: [(&str, f64); 9] = [
    ("dissensus", 1.0),
    ("dissensus", 0.9),
    ("spectral", 2.0),
    ("dissensus", 1.5),
    ("dissensus", 3.0),
    ("spectral", 10.0),
    ("alie", 1.5),
    ("ipm", 20.0),
    ("gaussian", 100.0),
];

/// One rule on one graph under one attack.
#[derive(Clone, Copy, Debug)]
pub struct Averaging {
    /// The algorithm.
    pub algorithm: &'static str,
    /// Edges of a worker to the other half.
    pub cross: usize,
    /// What the attackers do, and how strongly.
    pub attack: (&'static str, f64),
    /// Steps of plain averaging.
    pub steps: u64,
}

/// Where honest worker `i` starts: at −1 in one world, at 1 in the other.
fn start(i: usize) -> f64 {
    if i < HONEST / 2 { -1.0 } else { 1.0 }
}

impl Averaging {
    /// The mean squared distance of the honest workers to the mean of their starts, relative to that at
    /// the start. Infinite if a value is not finite.
    pub fn error(&self) -> Result<f64, ExperimentError> {
        let Averaging { algorithm, cross, attack: (kind, strength), steps } = *self;
        let targets = (0..HONEST + ATTACKERS).map(|i| {
            let value = if i < HONEST { start(i) } else { 0.0 };
            format!("[{value:?}]")
        });
        let attacks = (HONEST..HONEST + ATTACKERS)
            .map(|rank| format!("{{ rank = {rank}, kind = \"{kind}\", strength = {strength:?} }}"));
        let mut settings = vec![
            format!("workers={}", HONEST + ATTACKERS),
            format!("steps={steps}"),
            format!("algorithm.name={algorithm}"),
            "topology.name=two-worlds".into(),
            // Only a vector that is sent can be replaced.
            "topology.groups=send".into(),
            format!("topology.cross={cross}"),
            format!("topology.attached={ATTACKERS}"),
            "task.name=quadratic".into(),
            format!("task.target=[{}]", targets.collect::<Vec<_>>().join(", ")),
            // One step of rate 1 puts every worker at its target; after it nothing is learnt.
            "optimizer.name=sgd".into(),
            "optimizer.lr=1".into(),
            "optimizer.schedule.name=step".into(),
            "optimizer.schedule.milestones=[1]".into(),
            "optimizer.schedule.gamma=0.0".into(),
            format!("cluster.faults.attacks=[{}]", attacks.collect::<Vec<_>>().join(", ")),
        ];
        if algorithm != PLAIN {
            settings.push(format!("algorithm.byzantine={ATTACKERS}"));
        }
        let plan = PreparedRun::new(config(&settings)?)?;
        let setup = plan.setup.simulated();
        let outcome = quelea_sim::simulate(&setup, &*plan.problem, &plan.cluster, &mut Silent)?;
        let honest = outcome.ranks[..HONEST].iter().map(|rank| f64::from(rank.params[0]));
        // The mean of the starts is 0, and their mean square 1.
        let error = honest.map(|x| x * x).sum::<f64>() / HONEST as f64;
        Ok(if error.is_nan() { f64::INFINITY } else { error })
    }
}

/// Gossip without any defence.
const PLAIN: &str = "d-psgd";

/// The rules with the fewest edges between the worlds with which they are claimed to hold: CS₊-RG with more
/// than twice the attackers, the others where the graph is complete.
const RULES: [(&str, usize); 4] =
    [("cs-plus-rg", 3), ("nna", 6), ("clipped-gossip", 6), ("bridge", 6)];

/// Runs all of it into `report`.
pub fn run(options: &ReproduceOptions, report: &mut PaperReport) -> Result<(), ExperimentError> {
    let steps = options.size(400, 200) as u64;
    let tried = &TRIED[..options.size(TRIED.len(), 3)];
    let rules = &RULES[..options.size(RULES.len(), 2)];
    let crosses: &[usize] = if options.small { &[1, 6] } else { &[1, 2, 3, 4, 6] };
    let mut table = ReportTable {
        title: "Plain averaging in Two Worlds: worst squared distance to the honest mean, 1 at the start"
            .into(),
        cells: Vec::new(),
    };
    for (algorithm, holds_from) in std::iter::once(&(PLAIN, usize::MAX)).chain(rules) {
        for cross in crosses {
            let error =
                |attack: &_| Averaging { algorithm, cross: *cross, attack: *attack, steps }.error();
            let errors = tried.iter().map(error).collect::<Result<Vec<f64>, _>>()?;
            let worst = errors.into_iter().fold(0.0, f64::max);
            claim(report, algorithm, *cross, *holds_from, worst);
            table.cells.push(ReportCell {
                row: algorithm.to_string(),
                column: format!("{cross} cross"),
                // A page has no place for an infinite number.
                ours: worst.min(1e12),
                ..ReportCell::default()
            });
        }
    }
    report.tables.push(table);
    report.note(format!(
        "Two Worlds: {HONEST} honest workers in two complete halves that start at −1 and 1, {ATTACKERS} \
         attacker tied to all, `byzantine` = {ATTACKERS}. Attacks: dissensus, spectral, ALIE, IPM, Gaussian."
    ));
    Ok(())
}

fn claim(report: &mut PaperReport, algorithm: &str, cross: usize, holds_from: usize, worst: f64) {
    let shown = if worst < 1e6 { format!("{worst:.3}") } else { "without bound".to_string() };
    if algorithm == PLAIN || cross <= ATTACKERS {
        let why = if algorithm == PLAIN { "no defence" } else { "no rule can hold" };
        report.claim(
            format!(
                "{algorithm} fails with {cross} cross edges ({why}): {shown}, at least {FAILS}"
            ),
            worst >= FAILS,
        );
    } else if cross >= holds_from {
        report.claim(
            format!("{algorithm} holds with {cross} cross edges: {shown}, at most {HOLDS}"),
            worst <= HOLDS,
        );
    }
}
