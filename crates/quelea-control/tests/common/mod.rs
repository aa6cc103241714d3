//! Small runs for the tests of this crate, and an observer that requests something once.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::sync::Arc;

use quelea_core::algorithms;
use quelea_core::layout::Layout;
use quelea_core::optim;
use quelea_core::options::{Options, Value};
use quelea_core::run_spec::RunSpec;
use quelea_core::view::View;
use quelea_record::{Observer, Record, Request};

/// A run of three parameters with this algorithm and view.
pub fn run_spec(algorithm: &str, view: View, steps: u64) -> RunSpec {
    let entry = algorithms::find(algorithm).expect("in the table");
    let sgd = optim::find("sgd").expect("in the table");
    let options = sgd.params([("lr".to_string(), Value::Number(0.1))]).expect("good");
    RunSpec {
        entry,
        options: Options::defaults(entry.meta.options),
        codec: Default::default(),
        layout: Arc::new(Layout::plain(3, 64)),
        initial: [1.0, 2.0, 3.0].into(),
        optimizer: Arc::new(move |len| (sgd.build)(&options, len)),
        learning_rate: Arc::new(|_| 0.1),
        schedule_clock: Default::default(),
        clip: None,
        samples: Arc::from([]),
        steps,
        seed: 1,
        poison: Default::default(),
        data: Default::default(),
        view: Arc::new(view),
        topology: None,
    }
}

/// Requests a checkpoint once.
pub struct Requests(pub Option<Request>);

impl Observer for Requests {
    fn record(&mut self, _record: Record) {}

    fn request(&mut self) -> Request {
        self.0.take().unwrap_or(Request::Continue)
    }
}
