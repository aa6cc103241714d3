//! The two models of the slides, with what was published of them.

use super::AladdinMethod;

/// A model of the paper, with the published figures that parameters are fitted on.
#[derive(Clone, Copy, Debug)]
pub struct AladdinModel {
    /// As the paper calls it.
    pub name: &'static str,
    /// Parameters, stated.
    pub parameters: f64,
    /// Milliseconds that our own ALADDIN takes a worker per step for a model of this size, beside
    /// computing: the median of `cargo xtask bench handoff` on a machine of two cores.
    pub own_handoff_ms: f64,
    /// Published speed-ups of 8 workers at ×1, ×2, ×10, ×100.
    pub aladdin: [f64; 4],
    /// The same of AR-SGD.
    pub ar_sgd: [f64; 4],
    /// The same of SGP.
    pub sgp: [f64; 4],
    /// Published hours: AR-SGD, ASP, EASGD, SGP, ALADDIN.
    pub hours: [f64; 5],
}

impl AladdinModel {
    /// The published speed-ups of a method, if there are any.
    pub fn published(&self, method: AladdinMethod) -> Option<[f64; 4]> {
        match method {
            AladdinMethod::Aladdin => Some(self.aladdin),
            AladdinMethod::ArSgd => Some(self.ar_sgd),
            AladdinMethod::Sgp => Some(self.sgp),
            _ => None,
        }
    }
}

/// The smaller model.
pub const RESNET: AladdinModel = AladdinModel {
    name: "ResNet-50",
    parameters: 23e6,
    own_handoff_ms: 24.5,
    aladdin: [6.70, 6.30, 5.95, 5.87],
    ar_sgd: [5.40, 3.22, 0.71, 0.08],
    sgp: [6.00, 5.21, 4.83, 1.93],
    hours: [2.37, 2.24, 2.21, 2.11, 1.81],
};

/// The larger model.
pub const VGG: AladdinModel = AladdinModel {
    name: "VGG-16",
    parameters: 128e6,
    own_handoff_ms: 138.0,
    aladdin: [6.18, 5.74, 5.49, 5.41],
    ar_sgd: [2.03, 1.46, 0.62, 0.07],
    sgp: [4.64, 4.15, 3.81, 1.89],
    hours: [14.46, 10.96, 9.04, 6.66, 4.97],
};

/// Both.
pub const MODELS: [AladdinModel; 2] = [RESNET, VGG];
