//! The experiments of Zhang, Lian, Zhang and Liu, and what they share: sixteen learners on
//! InfiniBand, three algorithms.

pub mod convergence;
pub mod latency;
pub mod slowdown;

use quelea_run::trial::Trial;

use crate::error::ExperimentError;
use crate::fit::Fit;
use crate::report::{Figure, PaperReport, ParameterSource};

/// Whose numbers they are.
const PAPER: &str = "Zhang, Lian, Zhang, Liu: Decentralized Distributed Deep Learning (AD-PSGD)";

const LEARNERS: usize = 16;
/// Gradients of an epoch of CIFAR-10 in batches of 32.
const GRADIENTS_PER_EPOCH: f64 = 50_000.0 / 32.0;
/// Published seconds of an epoch on one learner.
const SINGLE_SECONDS: f64 = 18.04;
/// Seconds of a gradient of ResNet-20.
const RESNET_COMPUTE: f64 = SINGLE_SECONDS / GRADIENTS_PER_EPOCH;
/// 1 MB of them.
const RESNET_PARAMETERS: f64 = 0.25e6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdpsgdMethod {
    AdPsgd,
    AllReduce,
    DPsgd,
}

const METHODS: [AdpsgdMethod; 3] =
    [AdpsgdMethod::AdPsgd, AdpsgdMethod::AllReduce, AdpsgdMethod::DPsgd];

impl AdpsgdMethod {
    fn name(self) -> &'static str {
        match self {
            AdpsgdMethod::AdPsgd => "AD-PSGD",
            AdpsgdMethod::AllReduce => "AllReduce",
            AdpsgdMethod::DPsgd => "D-PSGD",
        }
    }

    /// Published seconds per epoch and printed decimals, by slow-down; beyond ×100 the paper
    /// gives only bounds for the synchronous ones.
    fn published(self) -> [Option<Figure>; 6] {
        let figure = |value, decimals| Some(Figure::printed(value, decimals));
        match self {
            AdpsgdMethod::AdPsgd => {
                [1.22, 1.28, 1.33, 1.33, 1.33, 1.33].map(|value| figure(value, 2))
            }
            AdpsgdMethod::AllReduce => {
                [figure(1.47, 2), figure(2.6, 1), figure(11.51, 2), figure(100.4, 1), None, None]
            }
            AdpsgdMethod::DPsgd => {
                [figure(1.45, 2), figure(2.36, 2), figure(11.24, 2), figure(100.4, 1), None, None]
            }
        }
    }
}

/// One model on the paper's cluster.
#[derive(Clone, Copy, Debug)]
struct AdpsgdSetting {
    parameters: f64,
    /// Seconds of a gradient.
    compute: f64,
    /// Seconds that a step costs beside the wire.
    overhead: f64,
    /// Arithmetic of reduce steps, 10⁹ bytes per second; 0 costs nothing.
    reduce_gbs: f64,
    /// A reading of the paper that is not ours, where one is tried.
    other: Option<AdpsgdReading>,
}

/// A reading of what the paper leaves open that was not chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdpsgdReading {
    /// AllReduce begins as soon as a learner has its gradient.
    NoBarrier,
    /// D-PSGD exchanges models while the next gradient is computed.
    Overlapped,
    /// AD-PSGD averages once per gradient, not only when an active learner asks.
    EveryGradient,
}

impl AdpsgdSetting {
    /// ResNet-20, with the overhead fitted on the row without a slow learner.
    fn resnet(method: AdpsgdMethod) -> Result<AdpsgdSetting, ExperimentError> {
        AdpsgdSetting::read(method, None)
    }

    /// The same with another reading of the paper.
    fn read(
        method: AdpsgdMethod,
        other: Option<AdpsgdReading>,
    ) -> Result<AdpsgdSetting, ExperimentError> {
        let bare = AdpsgdSetting {
            parameters: RESNET_PARAMETERS,
            compute: RESNET_COMPUTE,
            overhead: 0.0,
            reduce_gbs: 0.0,
            other,
        };
        let first = method.published()[0].map_or(f64::NAN, |figure| figure.value);
        let fit = Fit {
            parameter: "overhead per step",
            cell: method.name(),
            goal: GRADIENTS_PER_EPOCH / first,
            range: (0.0, 0.01),
        };
        let overhead =
            fit.solve(|overhead| AdpsgdSetting { overhead, ..bare }.rate(method, 1.0))?;
        Ok(AdpsgdSetting { overhead, ..bare })
    }

    /// Says on what the overhead was fitted.
    fn tell(&self, report: &mut PaperReport, method: AdpsgdMethod) {
        report.rests_on(
            &format!("overhead per step, {}", method.name()),
            format!("{:.2} ms", self.overhead * 1e3),
            ParameterSource::Fitted(format!("{}, no slow learner", method.name())),
        );
    }

    fn trial(&self, method: AdpsgdMethod, slow: f64) -> Trial {
        let AdpsgdSetting { parameters, compute, overhead, reduce_gbs, other } = *self;
        let (name, inside) = match method {
            // Where nobody waits, the overhead is part of every worker's own step.
            AdpsgdMethod::AdPsgd => ("ad-psgd", overhead / compute),
            AdpsgdMethod::AllReduce => ("allreduce", 0.0),
            AdpsgdMethod::DPsgd => ("d-psgd", 0.0),
        };
        let trial = Trial::new(name, LEARNERS, parameters)
            .slow(0, (slow + inside) / (1.0 + inside))
            .set("cluster.bandwidth_gbps", 100.0)
            .set("cluster.latency_us", 2.0)
            .set("cluster.compute_ms", compute * (1.0 + inside) * 1e3)
            .set("cluster.reduce_gbs", reduce_gbs);
        let is = |reading| other == Some(reading);
        match method {
            AdpsgdMethod::AdPsgd if is(AdpsgdReading::EveryGradient) => trial,
            // As in the published implementation.
            AdpsgdMethod::AdPsgd => trial.set("algorithm.averaging", "active"),
            AdpsgdMethod::AllReduce => trial
                .set("cluster.start_barrier", !is(AdpsgdReading::NoBarrier))
                .set("cluster.collective_fixed_us", overhead * 1e6),
            AdpsgdMethod::DPsgd if is(AdpsgdReading::Overlapped) => {
                trial.set("topology.name", "ring").set("cluster.handoff_send_us", overhead * 1e6)
            }
            AdpsgdMethod::DPsgd => trial
                .set("algorithm.form", "adapt-then-combine")
                .set("topology.name", "ring")
                .set("cluster.handoff_send_us", overhead * 1e6),
        }
    }

    /// Gradients per second of all learners.
    fn rate(&self, method: AdpsgdMethod, slow: f64) -> Result<f64, ExperimentError> {
        let steps = match method {
            AdpsgdMethod::AdPsgd => 600,
            AdpsgdMethod::AllReduce => 6,
            // A slow learner is felt one learner further away with every step.
            AdpsgdMethod::DPsgd => 5 * LEARNERS as u64 / 2,
        };
        Ok(self.trial(method, slow).run(steps)?.rate())
    }
}
