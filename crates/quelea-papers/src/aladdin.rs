// long: the parameters of the cluster and of five algorithms, each with where it comes from
//! The experiments of the ALADDIN slides (Ko et al. 2021) and what they share: a cluster of four
//! hosts with two workers each on 10 Gbit/s, two model sizes, five algorithms.

pub mod breakdown;
pub mod convergence;
pub mod heterogeneity;
pub mod models;
pub mod own;
pub mod readings;
pub mod scaling;
pub mod theorem;

use quelea_run::trial::{Timing, Trial};

use crate::ReproduceOptions;
use crate::error::ExperimentError;
use crate::fit::Fit;
use crate::report::{PaperReport, ParameterSource};
pub use models::{AladdinModel, MODELS, RESNET, VGG};
use readings::AladdinReading;

/// Whose numbers they are.
pub const PAPER: &str = "Ko, Choi, Jei, Lee, Kim: ALADDIN (CIKM 2021), slides";

/// The slow-downs of the heterogeneity table.
pub const SLOW: [f64; 4] = [1.0, 2.0, 10.0, 100.0];

/// The algorithms, in the order of the paper's table.
pub const METHODS: [AladdinMethod; 5] = [
    AladdinMethod::ArSgd,
    AladdinMethod::Asp,
    AladdinMethod::Easgd,
    AladdinMethod::Sgp,
    AladdinMethod::Aladdin,
];

/// An algorithm as the paper ran it, as far as that can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AladdinMethod {
    /// Synchronous all-reduce: start barrier, no overlap.
    ArSgd,
    /// Asynchronous parameter server.
    Asp,
    /// Elastic averaging, exchanging every step.
    Easgd,
    /// Stochastic gradient push that does not wait for arrivals.
    Sgp,
    /// ALADDIN.
    Aladdin,
    /// Synchronous parameter server; not in the tables.
    SyncPs,
}

impl AladdinMethod {
    /// As the paper calls it.
    pub fn name(self) -> &'static str {
        match self {
            AladdinMethod::ArSgd => "AR-SGD",
            AladdinMethod::Asp => "ASP",
            AladdinMethod::Easgd => "EASGD",
            AladdinMethod::Sgp => "SGP",
            AladdinMethod::Aladdin => "ALADDIN",
            AladdinMethod::SyncPs => "synchronous server",
        }
    }

    /// Its name in a run file.
    fn algorithm(self) -> &'static str {
        match self {
            AladdinMethod::ArSgd => "allreduce",
            AladdinMethod::Asp => "asp",
            AladdinMethod::Easgd => "easgd",
            AladdinMethod::Sgp => "sgp",
            AladdinMethod::Aladdin => "aladdin",
            AladdinMethod::SyncPs => "sync-ps",
        }
    }

    /// Whether its published speed-up at this place of [`SLOW`] was fitted on: without a slow worker
    /// all are, and the size of SGP's buffers was fitted on one more.
    pub fn is_fitted_at(self, model: AladdinModel, place: usize) -> bool {
        let has_figure = model.published(self).is_some();
        let is_buffer = self == AladdinMethod::Sgp && model.name == RESNET.name && place == 3;
        has_figure && (place == 0 || is_buffer)
    }

    /// Whether its hours relative to ALADDIN's were fitted on, or are the ratio of two speed-ups that
    /// were.
    pub fn is_fitted_in_hours(self, model: AladdinModel) -> bool {
        let is_server = self == AladdinMethod::Asp && model.name == VGG.name;
        model.published(self).is_some() || is_server
    }
}

/// Parameters of one model that were fitted.
#[derive(Clone, Copy, Debug)]
pub struct AladdinCosts {
    /// Which.
    pub model: AladdinModel,
    /// Seconds of one gradient.
    pub compute: f64,
    /// Hand-off per step, as a share of `compute`.
    pub handoff: f64,
    /// Hand-off of a received model, as a share of `compute`.
    pub receive: f64,
}

/// All parameters that were fitted.
#[derive(Clone, Copy, Debug)]
pub struct Calibration {
    /// Of [`RESNET`].
    pub resnet: AladdinCosts,
    /// Of [`VGG`].
    pub vgg: AladdinCosts,
    /// Share of line rate that the all-reduce reached.
    pub collective_efficiency: f64,
    /// Messages that a link of SGP holds.
    pub link_messages: u32,
    /// Arithmetic of a parameter server, 10⁹ bytes per second and pass.
    pub server_gbs: f64,
    /// A reading of the slides that is not ours, where one is tried.
    pub other: Option<AladdinReading>,
}

/// One cell: an algorithm, a model, a number of workers, a slow worker.
#[derive(Clone, Copy, Debug)]
pub struct AladdinCase {
    /// The algorithm.
    pub method: AladdinMethod,
    /// How many workers, two a host.
    pub workers: usize,
    /// How many times as long worker 0 takes.
    pub slow: f64,
}

impl AladdinCase {
    /// The paper's eight workers.
    pub fn eight(method: AladdinMethod, slow: f64) -> AladdinCase {
        AladdinCase { method, workers: 8, slow }
    }
}

/// Vectors that a server reads and writes for a step with momentum, and for adding one up.
const PASSES_MOMENTUM: f64 = 5.0;
const PASSES_SUM: f64 = 3.0;

/// Bandwidth, stated.
const GBPS: f64 = 10.0;

impl Calibration {
    /// Both models.
    pub fn models(&self) -> [AladdinCosts; 2] {
        [self.resnet, self.vgg]
    }

    /// Fits everything, in the order of the report. Slides give speeds, never times; so the
    /// length of a gradient follows from the all-reduce.
    pub fn fit() -> Result<Calibration, ExperimentError> {
        Calibration::fit_with(None)
    }

    /// The same with another reading of the slides.
    pub fn fit_with(other: Option<AladdinReading>) -> Result<Calibration, ExperimentError> {
        let mut fitted = Calibration {
            resnet: AladdinCosts { model: RESNET, compute: 1.0, handoff: 0.0, receive: 0.0 },
            vgg: AladdinCosts { model: VGG, compute: 1.0, handoff: 0.0, receive: 0.0 },
            collective_efficiency: 1.0,
            link_messages: 5,
            server_gbs: 0.0,
            other,
        };
        fitted.resnet.handoff = 8.0 / RESNET.aladdin[0] - 1.0;
        fitted.vgg.handoff = 8.0 / VGG.aladdin[0] - 1.0;
        fitted.fit_collective()?;
        fitted.fit_receive()?;
        fitted.fit_link()?;
        fitted.fit_server()?;
        Ok(fitted)
    }

    /// The share of line rate on SGP with VGG-16: it says how long a gradient is in units of a
    /// transfer, and AR-SGD's own speed-up then says how fast its ring was.
    fn fit_collective(&mut self) -> Result<(), ExperimentError> {
        let fit = Fit {
            parameter: "efficiency of the all-reduce",
            cell: "SGP, VGG-16, ×1",
            goal: VGG.sgp[0],
            range: (0.15, 1.0),
        };
        let base = *self;
        self.collective_efficiency = fit.solve(|efficiency| {
            let mut tried = base;
            tried.collective_efficiency = efficiency;
            tried.vgg.compute = tried.length(VGG)?;
            tried.speedup(tried.vgg, AladdinCase::eight(AladdinMethod::Sgp, 1.0))
        })?;
        self.resnet.compute = self.length(RESNET)?;
        self.vgg.compute = self.length(VGG)?;
        Ok(())
    }

    /// Seconds of a gradient such that AR-SGD reaches its homogeneous speed-up: a step is the
    /// gradient and, after it, the all-reduce.
    fn length(&self, model: AladdinModel) -> Result<f64, ExperimentError> {
        let costs = AladdinCosts { model, compute: 0.0, handoff: 0.0, receive: 0.0 };
        let case = AladdinCase::eight(AladdinMethod::ArSgd, 1.0);
        let all_reduce = self.trial(costs, case).run(4)?.step_seconds();
        let plain = all_reduce / (8.0 / model.ar_sgd[0] - 1.0);
        if self.other != Some(AladdinReading::ArSgdOverlaps) {
            return Ok(plain);
        }
        // A part of the all-reduce is hidden, so that a shorter gradient gives the same speed-up.
        let fit = Fit {
            parameter: "seconds of a gradient",
            cell: model.name,
            goal: model.ar_sgd[0],
            range: (0.05 * plain, plain),
        };
        fit.solve_to(1e-4, |compute| self.speedup(AladdinCosts { compute, ..costs }, case))
    }

    fn fit_receive(&mut self) -> Result<(), ExperimentError> {
        let fit = Fit {
            parameter: "hand-off of a received model",
            cell: "SGP, ResNet-50, ×1",
            goal: RESNET.sgp[0],
            range: (0.0, 0.5),
        };
        let base = *self;
        self.resnet.receive = fit.solve(|receive| {
            let costs = AladdinCosts { receive, ..base.resnet };
            base.speedup(costs, AladdinCase::eight(AladdinMethod::Sgp, 1.0))
        })?;
        Ok(())
    }

    fn fit_link(&mut self) -> Result<(), ExperimentError> {
        let mut nearest = f64::INFINITY;
        for messages in 3..=8 {
            let tried = Calibration { link_messages: messages, ..*self };
            let speedup =
                tried.speedup(tried.resnet, AladdinCase::eight(AladdinMethod::Sgp, 100.0))?;
            let error = (speedup / RESNET.sgp[3] - 1.0).abs();
            if error < nearest {
                (nearest, self.link_messages) = (error, messages);
            }
        }
        Ok(())
    }

    fn fit_server(&mut self) -> Result<(), ExperimentError> {
        let ratio = VGG.hours[1] / VGG.hours[4];
        let fit = Fit {
            parameter: "arithmetic of the server",
            cell: "hours of ASP, VGG-16",
            goal: VGG.aladdin[0] / ratio,
            range: (0.5, 100.0),
        };
        let base = *self;
        self.server_gbs = fit.solve(|server_gbs| {
            let tried = Calibration { server_gbs, ..base };
            tried.speedup(tried.vgg, AladdinCase::eight(AladdinMethod::Asp, 1.0))
        })?;
        Ok(())
    }

    /// How many times as many gradients as one worker alone, without communication.
    pub fn speedup(&self, costs: AladdinCosts, case: AladdinCase) -> Result<f64, ExperimentError> {
        Ok(self.time(costs, case)?.rate() * costs.compute)
    }

    /// Runs one cell.
    pub fn time(&self, costs: AladdinCosts, case: AladdinCase) -> Result<Timing, ExperimentError> {
        let steps = match case.method {
            AladdinMethod::ArSgd | AladdinMethod::SyncPs => 6,
            _ if case.workers > 16 => 30,
            // A slow worker must come to some steps of its own.
            _ if case.slow > 10.0 => 1200,
            _ => 150,
        };
        Ok(self.trial(costs, case).run(steps)?)
    }

    /// The run of one cell.
    pub fn trial(&self, costs: AladdinCosts, case: AladdinCase) -> Trial {
        let AladdinCase { method, workers, slow } = case;
        let is = |reading| self.other == Some(reading);
        // ALADDIN takes a gradient off the device at every step, whether it is sent or folded; so
        // its hand-off is part of the step, where the slow-down does not reach it.
        let is_inside = method == AladdinMethod::Aladdin && !is(AladdinReading::HandoffPerMessage);
        let inside = if is_inside { costs.handoff } else { 0.0 };
        let slowed =
            if is(AladdinReading::SlowHandoff) { slow } else { (slow + inside) / (1.0 + inside) };
        let slow_worker = usize::from(is(AladdinReading::SlowWorkerOne) && workers > 1);
        let trial = Trial::new(method.algorithm(), workers, costs.model.parameters)
            .slow(slow_worker, slowed)
            .set("cluster.hosts", workers.div_ceil(2))
            .set("cluster.bandwidth_gbps", GBPS)
            .set("cluster.compute_ms", costs.compute * (1.0 + inside) * 1e3)
            .set("cluster.handoff_send_us", (costs.handoff - inside) * costs.compute * 1e6);
        self.as_published(trial, costs, method)
    }

    /// What is particular to a method, as far as the published figures tell.
    fn as_published(&self, trial: Trial, costs: AladdinCosts, method: AladdinMethod) -> Trial {
        let is = |reading| self.other == Some(reading);
        let served = |trial: Trial, passes: f64| {
            let trial = trial.set("cluster.reduce_gbs", self.server_gbs / passes);
            if is(AladdinReading::ServerApart) {
                trial
            } else {
                trial.set("cluster.server_hosts", "[0]")
            }
        };
        let blocking = |trial: Trial, unless: AladdinReading| {
            trial
                .set("cluster.blocking_sends", !is(unless))
                .set("cluster.handoff_receive_us", costs.receive * costs.compute * 1e6)
        };
        let asking = |trial: Trial| blocking(trial, AladdinReading::ServersWithoutBlocking);
        match method {
            AladdinMethod::ArSgd => {
                let trial = trial
                    .set("cluster.start_barrier", !is(AladdinReading::ArSgdHasNoBarrier))
                    .set("cluster.collective_efficiency", self.collective_efficiency);
                if is(AladdinReading::ArSgdOverlaps) {
                    trial.buckets_mb(25.0).set("cluster.backward_share", 2.0 / 3.0)
                } else {
                    trial
                }
            }
            AladdinMethod::Sgp => blocking(trial, AladdinReading::SgpSendsWithoutBlocking)
                .set("algorithm.free_running", !is(AladdinReading::SgpWaits))
                .set("algorithm.fold", false)
                .set("topology.name", "one-peer-exponential")
                .set("cluster.link_messages", self.link_messages),
            AladdinMethod::Asp => served(asking(trial), PASSES_MOMENTUM),
            AladdinMethod::Easgd => served(asking(trial), PASSES_SUM)
                .set("algorithm.period", 1)
                .set("algorithm.prefetch", is(AladdinReading::EasgdAsksBefore)),
            AladdinMethod::Aladdin => served(trial, PASSES_SUM),
            AladdinMethod::SyncPs => served(asking(trial), PASSES_SUM),
        }
    }

    /// Says what the numbers rest on.
    pub fn tell(&self, report: &mut PaperReport, options: &ReproduceOptions) {
        report.rests_on("cluster", "4 hosts × 2 workers, 10 Gbit/s", ParameterSource::Stated);
        for costs in self.models() {
            let AladdinCosts { model, compute, handoff, receive } = costs;
            let name = model.name;
            let size = format!("{} million", model.parameters / 1e6);
            report.rests_on(&format!("parameters, {name}"), size, ParameterSource::Stated);
            report.rests_on(
                &format!("seconds of a gradient, {name}"),
                format!("{compute:.3} s"),
                ParameterSource::Fitted(format!("AR-SGD, {name}, ×1, given the all-reduce")),
            );
            report.rests_on(
                &format!("hand-off per step, {name}"),
                format!("{handoff:.4} of a gradient"),
                ParameterSource::Fitted(format!("ALADDIN, {name}, ×1")),
            );
            let source = if receive > 0.0 {
                ParameterSource::Fitted(format!("SGP, {name}, ×1"))
            } else {
                ParameterSource::Assumed("nothing published asks for one".into())
            };
            report.rests_on(
                &format!("hand-off of a received model, {name}"),
                format!("{receive:.4} of a gradient"),
                source,
            );
        }
        report.rests_on(
            "efficiency of the all-reduce",
            format!("{:.3} of line rate", self.collective_efficiency),
            ParameterSource::Fitted("SGP, VGG-16, ×1".into()),
        );
        report.rests_on(
            "unread messages per link of SGP",
            self.link_messages.to_string(),
            ParameterSource::Fitted("SGP, ResNet-50, ×100".into()),
        );
        report.rests_on(
            "memory rate of the server",
            format!("{:.2} GB/s", self.server_gbs),
            ParameterSource::Fitted("hours of ASP, VGG-16".into()),
        );
        readings::tell(report, self, options);
        report.assumes([
            (
                "vectors read and written per update",
                "5 with momentum (ASP), 3 to add (others)",
                "what the arithmetic of each takes",
            ),
            ("ALADDIN, period", "π = 4", "the default; the slides do not say"),
            ("SGP, graph", "one-peer exponential", "its paper's"),
            ("AR-SGD, ring", "over all workers", "as its name says"),
            (
                "latency",
                "50 µs; inside a host 100 Gbit/s per worker",
                "usual, and it hardly matters",
            ),
        ]);
    }
}
