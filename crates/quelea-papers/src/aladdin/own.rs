//! The same comparison with an implementation of ours for every method: what the slides' order rests on.

use super::{AladdinCase, AladdinCosts, AladdinMethod, Calibration};
use crate::error::ExperimentError;
use crate::fit::Fit;
use crate::report::{PaperReport, ParameterSource, ReportCell, ReportTable};
use quelea_run::trial::Trial;

/// Shares of line rate that an all-reduce may reach; the first is what was fitted on the slides.
const EFFICIENCIES: [f64; 3] = [0.5, 0.75, 1.0];

/// Adds the table, the range in which ALADDIN is ahead, and what they rest on.
pub fn compare(report: &mut PaperReport, calibration: &Calibration) -> Result<(), ExperimentError> {
    let mut cells = Vec::new();
    for costs in calibration.models() {
        let row = |slow: f64| format!("{}, ×{slow}", costs.model.name);
        for slow in [1.0, 2.0] {
            let fitted = calibration.collective_efficiency;
            for efficiency in [fitted, EFFICIENCIES[0], EFFICIENCIES[1], EFFICIENCIES[2]] {
                let column = format!("all-reduce at {efficiency:.3} of line rate");
                let ours = all_reduce(calibration, costs, efficiency, slow)?;
                cells.push(ReportCell::new(row(slow), column, ours));
            }
            cells.push(ReportCell::new(row(slow), "SGP, overlap 1", sgp(costs, slow)?));
            let ours = aladdin(calibration, costs, slow)?;
            cells.push(ReportCell::new(row(slow), "ALADDIN", ours));
        }
        report.finding(crossing(calibration, costs)?);
    }
    let title = "Speed-up with an implementation of ours for every method".to_string();
    report.tables.push(ReportTable { title, cells });
    tell(report, calibration);
    Ok(())
}

/// Our hand-off as a share of a gradient.
fn handoff(costs: AladdinCosts) -> f64 {
    costs.model.own_handoff_ms / (costs.compute * 1e3)
}

/// ALADDIN with the hand-off that our implementation was measured to take.
fn aladdin(
    calibration: &Calibration,
    costs: AladdinCosts,
    slow: f64,
) -> Result<f64, ExperimentError> {
    let costs = AladdinCosts { handoff: handoff(costs), ..costs };
    calibration.speedup(costs, AladdinCase::eight(AladdinMethod::Aladdin, slow))
}

/// A step of ours on the slides' cluster: the hand-off is a part of every step, and is not slowed down.
fn trial(name: &str, costs: AladdinCosts, slow: f64) -> Trial {
    let inside = handoff(costs);
    Trial::new(name, 8, costs.model.parameters)
        .slow(0, (slow + inside) / (1.0 + inside))
        .set("cluster.hosts", 4)
        .set("cluster.bandwidth_gbps", super::GBPS)
        .set("cluster.compute_ms", costs.compute * (1.0 + inside) * 1e3)
}

/// Overlapped in buckets of 25 MB, at this share of line rate.
fn all_reduce(
    _calibration: &Calibration,
    costs: AladdinCosts,
    efficiency: f64,
    slow: f64,
) -> Result<f64, ExperimentError> {
    let trial = trial("allreduce", costs, slow)
        .buckets_mb(25.0)
        .set("cluster.backward_share", 2.0 / 3.0)
        .set("cluster.collective_efficiency", efficiency);
    Ok(trial.run(8)?.rate() * costs.compute)
}

fn sgp(costs: AladdinCosts, slow: f64) -> Result<f64, ExperimentError> {
    let trial = trial("sgp", costs, slow)
        .set("algorithm.overlap", 1)
        .set("topology.name", "one-peer-exponential");
    Ok(trial.run(40)?.rate() * costs.compute)
}

/// From which share of line rate on the all-reduce is as fast, without a slow worker.
fn crossing(calibration: &Calibration, costs: AladdinCosts) -> Result<String, ExperimentError> {
    let name = costs.model.name;
    let goal = aladdin(calibration, costs, 1.0)?;
    let fit = Fit { parameter: "share of line rate", cell: name, goal, range: (0.05, 1.0) };
    let found = fit.solve_to(1e-3, |efficiency| all_reduce(calibration, costs, efficiency, 1.0));
    let fitted = calibration.collective_efficiency;
    Ok(match found {
        Ok(share) => format!(
            "{name}, nobody slow: with an implementation of ours for both, ALADDIN is ahead of an \
             overlapped all-reduce while that reaches less than {share:.2} of line rate (the slides' \
             reached {fitted:.2}, as fitted)"
        ),
        Err(ExperimentError::Fit { .. }) => {
            let at_most = all_reduce(calibration, costs, 1.0, 1.0)?;
            format!(
                "{name}, nobody slow: with an implementation of ours for both, ALADDIN ({goal:.2}) and \
                 an overlapped all-reduce at line rate ({at_most:.2}) do not cross: {}",
                if at_most < goal {
                    "ALADDIN is ahead at every rate"
                } else {
                    "all-reduce is ahead"
                }
            )
        }
        Err(other) => return Err(other),
    })
}

fn tell(report: &mut PaperReport, calibration: &Calibration) {
    let how = "`cargo xtask bench handoff`: `train --processes`, one worker and its server on a \
               machine of two cores, median over steps";
    for costs in calibration.models() {
        report.rests_on(
            &format!("our own hand-off per step, {}", costs.model.name),
            format!("{} ms, {:.3} of a gradient", costs.model.own_handoff_ms, handoff(costs)),
            ParameterSource::Measured(how.into()),
        );
    }
    report.note(
        "The comparison with implementations of ours gives every method the same measured hand-off \
         as a part of each step; it rests on gradient times that were fitted on the slides' AR-SGD. It \
         says what the order depends on, not how fast the published systems were.",
    );
}
