//! How long the events of an algorithm take: nodes of one process play them without a network, a gradient
//! or an optimizer, so that algorithms in Python can be compared with those in Rust.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use quelea_core::contract::Effect;
use quelea_core::message::{Message, Rank};
use quelea_core::node::Node;
use quelea_core::payload::Pool;
use quelea_core::problems::{Computed, ModelSpec};
use quelea_core::time::Time;
use quelea_run::prepared::run_spec;

use crate::Error;
use crate::algorithm::simulated;
use crate::model::Raised;
use crate::settings::{config, value_error};

/// Plays `steps` steps of a synchronous algorithm on a model of `elements` parameters; how many events
/// there were, and how many seconds they took together.
#[pyfunction]
pub(crate) fn event_times(
    py: Python<'_>,
    settings: &Bound<'_, PyDict>,
    elements: usize,
    steps: u64,
) -> PyResult<(u64, f64)> {
    let config = config(settings)?;
    let model =
        ModelSpec { tensors: Vec::new(), initial: vec![1.0; elements], samples: Vec::new() };
    let spec = run_spec(config, model).map_err(value_error)?;
    let raised = Raised::default();
    let play = || {
        let pool = Pool::new();
        let nodes = (0..spec.workers()).map(|rank| spec.node(Rank::from(rank), pool.clone()));
        let mut nodes: Vec<Node> = nodes.collect();
        nodes.iter_mut().for_each(Node::optimize_outside);
        let mut played =
            Played { nodes, in_flight: VecDeque::new(), events: 0, took: Duration::ZERO };
        played.play(steps).map(|()| (played.events, played.took.as_secs_f64()))
    };
    let played = py.detach(|| {
        simulated(raised.clone(), || std::panic::catch_unwind(std::panic::AssertUnwindSafe(play)))
    });
    match played {
        Ok(times) => times,
        Err(panic) => Err(raised.take().unwrap_or_else(|| std::panic::resume_unwind(panic))),
    }
}

/// Nodes and what is on its way between them.
struct Played {
    nodes: Vec<Node>,
    in_flight: VecDeque<Sent>,
    events: u64,
    took: Duration,
}

/// What happens to a node.
enum NodeEvent {
    Start,
    Bucket(usize),
    Gradient,
    Optimized(usize),
    Message(Rank, Message),
}

struct Sent {
    from: Rank,
    to: Rank,
    message: Message,
}

impl Played {
    fn play(&mut self, steps: u64) -> PyResult<()> {
        for rank in 0..self.nodes.len() {
            self.event(rank, NodeEvent::Start);
        }
        while self.nodes.iter().any(|node| node.step() < steps) {
            let begun = self.events;
            for rank in 0..self.nodes.len() {
                if self.nodes[rank].wants_gradient() && self.nodes[rank].step() < steps {
                    self.gradient(rank);
                }
            }
            while let Some(Sent { from, to, message }) = self.in_flight.pop_front() {
                self.event(to.index(), NodeEvent::Message(from, message));
            }
            if self.events == begun {
                return Err(Error::new_err("no worker is ready, and no message is on its way"));
            }
        }
        Ok(())
    }

    fn gradient(&mut self, rank: usize) {
        drop(self.nodes[rank].lend());
        for b in 0..self.nodes[rank].layout().buckets.len() {
            self.event(rank, NodeEvent::Bucket(b));
        }
        self.event(rank, NodeEvent::Gradient);
    }

    /// Times one event, and carries out what it asks for: the optimizer takes no step.
    fn event(&mut self, rank: usize, event: NodeEvent) {
        let (node, now) = (&mut self.nodes[rank], Time::ZERO);
        let began = Instant::now();
        match event {
            NodeEvent::Start => node.start(now),
            NodeEvent::Bucket(b) => node.bucket(now, b),
            NodeEvent::Gradient => node.gradient(now, Computed::default()),
            NodeEvent::Optimized(b) => node.optimized(now, b),
            NodeEvent::Message(from, message) => node.message(now, from, message),
        }
        self.took += began.elapsed();
        self.events += 1;
        let effects: Vec<Effect> = self.nodes[rank].take_effects().collect();
        for effect in effects {
            match effect {
                Effect::Send { to, message } => {
                    self.in_flight.push_back(Sent { from: Rank::from(rank), to, message });
                }
                Effect::Optimize { bucket, .. } => {
                    self.event(rank, NodeEvent::Optimized(bucket));
                }
                Effect::Work { .. } | Effect::JumpToStep(_) | Effect::Measure(_) => {}
            }
        }
    }
}
