//! Seconds of a step with parameter servers: all together, each alone, elastic, or folded.

use quelea_core::algorithms::Service;

use super::{Cost, cost, slowest_over, unhindered};
use crate::scenario::Scenario;

/// The cost of a step with this service.
pub(super) fn cost_of(s: &Scenario, service: Service) -> Cost {
    match service {
        Service::Together { period } => together(s, period as f64),
        Service::Alone { ahead } => alone(s, ahead),
        Service::Elastic { period, prefetch } => elastic(s, period as f64, prefetch),
        Service::Folded { period, .. } => folded(s, period as f64),
    }
}

/// Seconds in which every worker's vector gets through the servers' cards.
fn through_servers(s: &Scenario) -> f64 {
    s.workers as f64 * s.sent() / (s.servers as f64 * s.bandwidth)
}

/// The same for its own host's card.
pub(super) fn through_card(s: &Scenario) -> f64 {
    s.per_host() as f64 * s.sent() / s.bandwidth
}

/// All gradients into the servers' cards, all models out of them; the worker that gets the model
/// first also sends first. A worker that is late by more than that finds the cards empty, and
/// gets its model in its turn.
fn together(s: &Scenario, period: f64) -> Cost {
    let computing = slowest_over(s, period);
    let one = s.sent() / (s.servers as f64 * s.bandwidth);
    let most = (s.workers as f64 + 1.0) * one;
    let late = s.slow.iter().filter(|(_, factor)| (factor - 1.0) * s.compute * period > most);
    let through = late.map(|(rank, _)| (f64::from(*rank) + 2.0) * one).reduce(f64::max);
    let exchange = through.unwrap_or(most.max(2.0 * through_card(s)));
    let step = computing + (2.0 * s.latency + exchange) / period;
    cost(step, computing, s.sent() / period)
}

/// A worker's own round trip, or the servers' cards. Whoever may not be far ahead of the slowest
/// has its pace in the long run; and the slowest gets its model in its turn, after those who were
/// waiting for it.
fn alone(s: &Scenario, ahead: u64) -> Cost {
    let trip = 2.0 * (s.latency + s.sent() / s.bandwidth);
    let (step, waited_for) = match ahead {
        u64::MAX => (unhindered(&Scenario { compute: s.compute + trip, ..s.clone() }), s.compute),
        ahead => {
            let computing = slowest_over(s, ahead as f64 + 1.0);
            let one = s.sent() / (s.servers as f64 * s.bandwidth);
            let late = |(rank, factor): &(u32, f64)| {
                factor * s.compute + 2.0 * s.latency + (f64::from(*rank) + 2.0) * one
            };
            (s.slow.iter().map(late).fold(computing + trip, f64::max), computing)
        }
    };
    cost(step.max(through_servers(s)).max(through_card(s)), waited_for, s.sent())
}

/// Nobody waits; what the servers cannot take before the next gradient is folded. They acknowledge a
/// vector when it is there; that may have to wait for half of a model that is on its way out, one
/// of which leaves per `period` gradients.
fn folded(s: &Scenario, period: f64) -> Cost {
    let step = unhindered(s);
    let one = s.sent() / (s.servers as f64 * s.bandwidth);
    let behind = (through_servers(s) / (period * step)).min(1.0) * one / 2.0;
    let trip = 2.0 * s.latency + one + behind;
    let folded = (through_servers(s).max(through_card(s)).max(trip) / step).max(1.0);
    Cost { gradients_per_message: folded, ..cost(step, step, s.sent() / folded) }
}

/// The centre comes while the gradient is computed, where it is asked for before; only the
/// servers' cards can hold it up.
fn elastic(s: &Scenario, period: f64, prefetch: bool) -> Cost {
    let own = unhindered(s);
    // A request may have to wait for half of another worker's vector on its way in.
    let one = s.sent() / (s.servers as f64 * s.bandwidth);
    let behind = (through_servers(s) / (period * own)).min(1.0) * one / 2.0;
    let trip = s.latency * 2.0 + s.sent() / s.bandwidth + behind;
    let hidden = if prefetch { s.compute } else { 0.0 };
    let late = (trip - hidden).max(0.0) / period;
    cost((own + late).max(through_servers(s) / period), own, s.sent() / period)
}
