//! A run of a bench's own algorithm over vectors of 25 MiB, with gradients that cost nothing.
#![allow(dead_code, reason = "each user takes its own part")]

use std::sync::Arc;

use quelea_core::algorithms::{ALGORITHMS, Entry};
use quelea_core::contract::Algorithm;
use quelea_core::layout::Layout;
use quelea_core::node::Loan;
use quelea_core::optim;
use quelea_core::options::Options;
use quelea_core::problems::{Computed, GradientSource};
use quelea_core::run_spec::RunSpec;
use quelea_core::view::View;
use quelea_net::Gradients;

/// 25 MiB of `f32`.
pub const ELEMENTS: usize = 25 * (1 << 20) / 4;

/// Gradients without any arithmetic.
struct Nothing;

impl GradientSource for Nothing {
    fn gradient(&mut self, _loan: &mut Loan, _ready: &mut dyn FnMut(usize)) -> Computed {
        Computed::default()
    }
    fn operations(&self) -> u64 {
        0
    }
}

/// Gradients without any arithmetic, of every worker.
pub fn nothing() -> Gradients {
    Gradients::Sources(Box::new(|_| Box::new(Nothing)))
}

pub fn setup(worker: fn(&Options) -> Box<dyn Algorithm>, workers: usize, steps: u64) -> RunSpec {
    let like =
        ALGORITHMS.iter().find(|entry| entry.meta.name == "allreduce").expect("in the table");
    let entry: &'static Entry = Box::leak(Box::new(Entry { worker, server: None, ..*like }));
    let sgd = optim::find("sgd").expect("in the table");
    let params = sgd.params([]).expect("the defaults");
    RunSpec {
        entry,
        options: Options::defaults(entry.meta.options),
        codec: Default::default(),
        layout: Arc::new(Layout::plain(ELEMENTS, 0)),
        initial: vec![1.0; ELEMENTS].into(),
        optimizer: Arc::new(move |len| (sgd.build)(&params, len)),
        learning_rate: Arc::new(|_| 0.0),
        schedule_clock: Default::default(),
        clip: None,
        samples: Arc::from([]),
        steps,
        seed: 1,
        view: Arc::new(View::first(workers, 0, (0..workers as u32).collect(), None)),
        topology: None,
        poison: Default::default(),
        data: Default::default(),
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
