//! How long anybody may wait for anything in a real run, and what is told at its end.

use quelea_control::{ControlLimits, LossPolicy};

use crate::transport::TransportKind;
use crate::trust::Security;

/// Time limits of every kind of waiting, and what ranks report.
#[derive(Clone, Debug, PartialEq)]
pub struct NetOptions {
    /// How long all processes together may take to join, load their data and connect.
    pub connect_seconds: f64,
    /// How long a peer that has connected may take to say who it is.
    pub handshake_seconds: f64,
    /// How long nothing may move while nobody computes; and how long a process may be silent.
    pub peer_seconds: f64,
    /// For how long a connection between two ranks that broke may be restored before the peer counts
    /// as lost; 0: it counts as lost at once. The last 16 MiB that were sent to each peer are then kept,
    /// to be sent again. The same for all processes of a run.
    pub reconnect_seconds: f64,
    /// How long one gradient may take.
    pub compute_seconds: f64,
    /// How long what is pending may take to arrive after the last gradient.
    pub drain_seconds: f64,
    /// Whether every rank's report has its parameters and its model. Scripts that keep their own
    /// need not wait until all of them have travelled. The same for all processes of a run.
    pub report_models: bool,
    /// What happens when a rank is lost.
    pub on_loss: LossPolicy,
    /// What carries frames between processes. The same for all processes of a run.
    pub transport: TransportKind,
    /// Whether connections are encrypted, and who may take part.
    pub security: Security,
    /// For how long workers may join with a coordinator's token.
    pub token_seconds: f64,
}

impl NetOptions {
    /// Those that the control plane keeps.
    pub(crate) fn control_limits(&self) -> ControlLimits {
        ControlLimits {
            peer_seconds: self.peer_seconds,
            compute_seconds: self.compute_seconds,
            drain_seconds: self.drain_seconds,
            report_models: self.report_models,
        }
    }
}

impl Default for NetOptions {
    fn default() -> NetOptions {
        NetOptions {
            connect_seconds: 30.0,
            handshake_seconds: 5.0,
            peer_seconds: 30.0,
            reconnect_seconds: 0.0,
            compute_seconds: 3600.0,
            drain_seconds: 30.0,
            report_models: true,
            on_loss: LossPolicy::Stop,
            transport: TransportKind::default(),
            security: Security::default(),
            token_seconds: 86_400.0,
        }
    }
}
