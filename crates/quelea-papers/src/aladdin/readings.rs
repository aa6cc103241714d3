//! What the slides leave open: each choice was made because it explains the published figures best, so
//! the other reading is run too, with everything fitted anew, and its error is printed.

use std::sync::OnceLock;

use super::{AladdinCase, AladdinMethod, Calibration, METHODS};
use crate::ReproduceOptions;
use crate::error::ExperimentError;
use crate::report::{PaperReport, ParameterSource};

/// A reading that was not chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AladdinReading {
    /// AR-SGD sums buckets of 25 MB while the backward pass runs.
    ArSgdOverlaps,
    /// AR-SGD has no barrier before its all-reduce.
    ArSgdHasNoBarrier,
    /// SGP waits for what its neighbour has sent.
    SgpWaits,
    /// A worker of SGP continues while its model is on its way.
    SgpSendsWithoutBlocking,
    /// A worker of ASP or EASGD continues while its vector is on its way.
    ServersWithoutBlocking,
    /// EASGD asks for the centre before its gradient.
    EasgdAsksBefore,
    /// The server has a host of its own.
    ServerApart,
    /// ALADDIN pays its hand-off per message.
    HandoffPerMessage,
    /// The slow-down multiplies hand-offs too.
    SlowHandoff,
    /// Worker 1 is the slow one.
    SlowWorkerOne,
}

/// A choice: its name, what was chosen, what was not, and the methods whose figures tell.
struct ReadingChoice {
    name: &'static str,
    chosen: &'static str,
    reading: AladdinReading,
    other: &'static str,
    of: &'static [AladdinMethod],
}

const CHOICES: &[ReadingChoice] = &[
    ReadingChoice {
        name: "AR-SGD, overlap",
        chosen: "none: the all-reduce begins after the gradient",
        reading: AladdinReading::ArSgdOverlaps,
        other: "in buckets of 25 MB during the backward pass",
        of: &[AladdinMethod::ArSgd],
    },
    ReadingChoice {
        name: "AR-SGD, start",
        chosen: "a barrier: nobody sends before all have their gradients",
        reading: AladdinReading::ArSgdHasNoBarrier,
        other: "no barrier",
        of: &[AladdinMethod::ArSgd],
    },
    ReadingChoice {
        name: "SGP, arrivals",
        chosen: "it never waits for them",
        reading: AladdinReading::SgpWaits,
        other: "it waits for every one",
        of: &[AladdinMethod::Sgp],
    },
    ReadingChoice {
        name: "SGP, sends",
        chosen: "block until the model has left",
        reading: AladdinReading::SgpSendsWithoutBlocking,
        other: "do not block",
        of: &[AladdinMethod::Sgp],
    },
    ReadingChoice {
        name: "ASP and EASGD, sends",
        chosen: "block until the vector has left",
        reading: AladdinReading::ServersWithoutBlocking,
        other: "do not block",
        of: &[AladdinMethod::Asp, AladdinMethod::Easgd],
    },
    ReadingChoice {
        name: "EASGD",
        chosen: "exchanges every step, after its gradient",
        reading: AladdinReading::EasgdAsksBefore,
        other: "asks for the centre before its gradient",
        of: &[AladdinMethod::Easgd],
    },
    ReadingChoice {
        name: "the server",
        chosen: "1, on the host of workers 0 and 1",
        reading: AladdinReading::ServerApart,
        other: "on a host of its own",
        of: &[AladdinMethod::Asp, AladdinMethod::Easgd],
    },
    ReadingChoice {
        name: "ALADDIN, hand-off",
        chosen: "every step: a gradient is taken off the device whether it is sent or folded",
        reading: AladdinReading::HandoffPerMessage,
        other: "per message",
        of: &[AladdinMethod::Aladdin],
    },
    ReadingChoice {
        name: "the slow-down",
        chosen: "multiplies computing, not traffic and not hand-offs",
        reading: AladdinReading::SlowHandoff,
        other: "multiplies hand-offs too",
        of: &[AladdinMethod::Aladdin],
    },
    ReadingChoice {
        name: "the slow worker",
        chosen: "worker 0",
        reading: AladdinReading::SlowWorkerOne,
        other: "worker 1",
        of: &[AladdinMethod::ArSgd],
    },
];

/// What the other readings come to: the same for all experiments of a process.
static OTHERS: OnceLock<Vec<String>> = OnceLock::new();

/// Says what was chosen, and what the other reading would have come to.
pub fn tell(report: &mut PaperReport, chosen: &Calibration, options: &ReproduceOptions) {
    let left_out = || vec!["the other readings are left out of a small version".to_string()];
    let others = if options.small {
        &left_out()
    } else {
        OTHERS.get_or_init(|| CHOICES.iter().map(|choice| outcome(choice, chosen)).collect())
    };
    for (choice, other) in CHOICES.iter().zip(others.iter().cycle()) {
        let source = ParameterSource::FittedDiscrete { other: other.clone() };
        report.rests_on(choice.name, choice.chosen, source);
    }
}

fn outcome(choice: &ReadingChoice, chosen: &Calibration) -> String {
    let percent = |error: f64| format!("{:.1} %", 100.0 * error);
    let names: Vec<&str> = choice.of.iter().map(|method| method.name()).collect();
    let before = worst(chosen, choice.of).map_or("?".into(), percent);
    let otherwise = Calibration::fit_with(Some(choice.reading)).and_then(|c| worst(&c, choice.of));
    let after = match otherwise {
        Ok(error) => format!("the worst error of {} is {}", names.join(" and "), percent(error)),
        Err(ExperimentError::Fit { parameter, cell, .. }) => {
            format!("no value of the {parameter} gives {cell}")
        }
        Err(other) => other.to_string(),
    };
    format!("otherwise ({}): {after}, instead of {before}", choice.other)
}

/// The largest error of these methods, over every figure on which nothing was fitted: speed-ups with a
/// slow worker, and hours relative to ALADDIN's.
fn worst(calibration: &Calibration, methods: &[AladdinMethod]) -> Result<f64, ExperimentError> {
    let mut worst = 0.0_f64;
    for costs in calibration.models() {
        let speed = |method, slow| calibration.speedup(costs, AladdinCase::eight(method, slow));
        for (method, hours) in METHODS.into_iter().zip(costs.model.hours) {
            let is_fitted = method.is_fitted_in_hours(costs.model);
            if methods.contains(&method) && !is_fitted {
                let ours = speed(AladdinMethod::Aladdin, 1.0)? / speed(method, 1.0)?;
                worst = worst.max((ours / (hours / costs.model.hours[4]) - 1.0).abs());
            }
            let Some(published) = costs.model.published(method) else { continue };
            for (place, slow) in super::SLOW.into_iter().enumerate().skip(1) {
                if methods.contains(&method) && !method.is_fitted_at(costs.model, place) {
                    worst = worst.max((speed(method, slow)? / published[place] - 1.0).abs());
                }
            }
        }
    }
    Ok(worst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_reading_changes_what_comes_out() {
        let chosen = Calibration::fit().expect("can be fitted");
        let other = Calibration::fit_with(Some(AladdinReading::HandoffPerMessage)).expect("too");
        let aladdin = &[AladdinMethod::Aladdin];
        let [before, after] = [&chosen, &other].map(|c| worst(c, aladdin).expect("runs"));
        assert!(before < 0.03 && after > before, "{before} {after}");
    }
}
