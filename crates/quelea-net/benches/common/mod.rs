//! A run of a bench's own algorithm over vectors of 25 MiB, with gradients that cost nothing.
#![allow(dead_code, reason = "each user takes its own part")]

use std::sync::Arc;

use quelea_core::algorithms::{ALGORITHMS, Entry};
use quelea_core::contract::Algorithm;
use quelea_core::layout::Layout;
use quelea_core::node::RunSpec;
use quelea_core::optim;
use quelea_core::options::Options;
use quelea_core::problems::{Computed, Evaluation, GradientSource, Problem};
use quelea_core::view::View;

/// 25 MiB of `f32`.
pub const ELEMENTS: usize = 25 * (1 << 20) / 4;

/// A problem without any arithmetic.
pub struct Nothing;

impl Problem for Nothing {
    fn dimensions(&self) -> usize {
        ELEMENTS
    }
    fn initial(&self) -> Vec<f32> {
        vec![1.0; ELEMENTS]
    }
    fn source(&self, _rank: usize) -> Box<dyn GradientSource> {
        Box::new(Nothing)
    }
    fn evaluate(&self, _params: &[f32]) -> Evaluation {
        Evaluation { loss: 0.0, accuracy: None, bleu: None }
    }
}

impl GradientSource for Nothing {
    fn gradient(&mut self, _step: u64, _params: &[f32], _grad: &mut [f32]) -> Computed {
        Computed::default()
    }
    fn operations(&self) -> u64 {
        0
    }
}

pub fn setup(worker: fn(&Options) -> Box<dyn Algorithm>, workers: usize, steps: u64) -> RunSpec {
    let like = ALGORITHMS.iter().find(|entry| entry.name == "allreduce").expect("in the table");
    let entry: &'static Entry = Box::leak(Box::new(Entry { worker, server: None, ..*like }));
    let sgd = optim::find("sgd").expect("in the table");
    let params = sgd.params([]).expect("the defaults");
    RunSpec {
        entry,
        options: Options::defaults(entry.keys),
        codec: Default::default(),
        layout: Arc::new(Layout::plain(ELEMENTS, 0)),
        initial: Nothing.initial().into(),
        optimizer: Arc::new(move |len| (sgd.build)(&params, len)),
        learning_rate: Arc::new(|_| 0.0),
        clip: None,
        samples: Arc::from([]),
        steps,
        seed: 1,
        view: Arc::new(View::first(workers, 0, (0..workers as u32).collect(), None)),
        topology: None,
    }
}

pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Whether this run is only `cargo test` making sure that benches run at all.
pub fn is_test() -> bool {
    std::env::args().any(|argument| argument == "--test")
}

pub fn wants_json() -> bool {
    std::env::args().any(|argument| argument == "--json")
}
