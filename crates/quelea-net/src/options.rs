//! How long anybody may wait for anything in a real run, and what is told at its end.

use quelea_control::{ComputeLimits, ControlLimits, LossPolicy, QuorumRule, SilenceLimits};

use crate::leave::LeaveNotice;
use crate::local_address::LocalAddress;
use crate::transport::TransportKind;
use crate::trust::Security;

/// Time limits of every kind of waiting, and what ranks report.
#[derive(Clone, Debug, PartialEq)]
pub struct NetOptions {
    /// How long all processes together may take to join, load their data and connect.
    pub connect_seconds: f64,
    /// How long a worker that joins a run which has begun waits until it may enter.
    pub entrance_seconds: f64,
    /// How long a peer that has connected may take to say who it is.
    pub handshake_seconds: f64,
    /// How long nothing may move while nobody computes; and how long a process may be silent at most.
    pub peer_seconds: f64,
    /// How long a process may be silent, judged by what was heard of it: within these bounds, and at
    /// most for `peer_seconds`.
    pub silence: SilenceLimits,
    /// For how long a connection between two ranks that broke may be restored before the peer counts
    /// as lost; 0: it counts as lost at once. The last 16 MiB that were sent to each peer are then kept,
    /// to be sent again. The coordinator's choice holds for all processes of a run.
    pub reconnect_seconds: f64,
    /// Whether that holds for TCP connections within one machine too. Nothing is between their ends that
    /// could break: they end with a process.
    pub reconnects_near: bool,
    /// How long one gradient may take at most.
    pub compute_seconds: f64,
    /// How many times as long as the longest gradient of the same rank before, but at least a minute;
    /// infinite for loops that do other things than computing between two gradients.
    pub compute_factor: f64,
    /// How long what is pending may take to arrive after the last gradient.
    pub drain_seconds: f64,
    /// How long a run with fewer workers than its loss policy wants waits for others to join; 0: it ends.
    pub joiner_seconds: f64,
    /// Whether every rank's report has its parameters and its model. Scripts that keep their own
    /// need not wait until all of them have travelled. The same for all processes of a run.
    pub report_models: bool,
    /// What happens when a rank is lost.
    pub on_loss: LossPolicy,
    /// Who may continue when the process that controls the run is lost.
    pub quorum: QuorumRule,
    /// Whether the run survives the process that controls it, where its algorithm allows that: the processes
    /// of the workers can take over.
    pub survives: bool,
    /// Notice to leave, for the workers of this process.
    pub leave: LeaveNotice,
    /// What carries frames between processes. The coordinator's choice holds for all; a process that joins
    /// may keep to TCP.
    pub transport: TransportKind,
    /// Whether connections are encrypted, and who may take part.
    pub security: Security,
    /// For how long workers may join with a coordinator's token.
    pub token_seconds: f64,
    /// How the ranks of this process are reached.
    pub local: LocalAddress,
}

impl NetOptions {
    /// Those that the control plane keeps.
    pub(crate) fn control_limits(&self) -> ControlLimits {
        ControlLimits {
            peer_seconds: self.peer_seconds,
            silence: SilenceLimits {
                ceiling_seconds: self.silence.ceiling_seconds.min(self.peer_seconds),
                ..self.silence
            },
            compute: ComputeLimits {
                factor: self.compute_factor,
                ceiling_seconds: self.compute_seconds,
                ..ComputeLimits::default()
            },
            drain_seconds: self.drain_seconds,
            joiner_seconds: self.joiner_seconds,
            report_models: self.report_models,
        }
    }
}

impl Default for NetOptions {
    fn default() -> NetOptions {
        NetOptions {
            connect_seconds: 30.0,
            entrance_seconds: 30.0,
            handshake_seconds: 5.0,
            peer_seconds: 30.0,
            silence: SilenceLimits::default(),
            reconnect_seconds: 0.0,
            reconnects_near: false,
            compute_seconds: ComputeLimits::default().ceiling_seconds,
            compute_factor: ComputeLimits::default().factor,
            drain_seconds: 30.0,
            joiner_seconds: 0.0,
            report_models: true,
            on_loss: LossPolicy::Stop,
            quorum: QuorumRule::default(),
            survives: false,
            leave: LeaveNotice::default(),
            transport: TransportKind::default(),
            security: Security::default(),
            token_seconds: 86_400.0,
            local: LocalAddress::default(),
        }
    }
}
