//! Data that all workers share, in real runs: a worker's process is killed, and every unit is confirmed exactly once.

mod common;

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use common::{Run, Watch, coordinator, worker};
use quelea_core::algorithms::ALGORITHMS;
use quelea_core::node::Loan;
use quelea_core::problems::{Computed, GradientSource, Problem};
use quelea_core::properties::Budget;
use quelea_core::run_spec::{DataAssignment, RunSpec};
use quelea_net::{Gradients, Hosted, LossPolicy, NetOptions};
use quelea_record::DataBooks;

const WORKERS: usize = 4;
const STEPS: u64 = 200;
const UNITS: u64 = WORKERS as u64 * STEPS;

/// Not a test by itself: what [`child`] runs in a process of its own.
#[test]
fn child_process() {
    let Ok(address) = std::env::var("QUELEA_TEST_COORDINATOR") else { return };
    // Its coordinator says why it ends.
    let _ = worker(&address, Some(WORKERS as u32 - 1));
    std::process::exit(0);
}

fn child(address: &str) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child_process", "--nocapture"])
        .env("QUELEA_TEST_COORDINATOR", address)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts")
}

/// Which units the workers of this process have drawn.
type Drawn = Arc<Mutex<Vec<u64>>>;

struct NotingSource {
    inner: Box<dyn GradientSource>,
    drawn: Drawn,
}

impl GradientSource for NotingSource {
    fn gradient(&mut self, loan: &mut Loan, ready: &mut dyn FnMut(usize)) -> Computed {
        self.drawn.lock().expect("nobody panics with it").push(loan.batch());
        self.inner.gradient(loan, ready)
    }

    fn operations(&self) -> u64 {
        self.inner.operations()
    }
}

fn noting(run: &Run, drawn: &Drawn) -> Gradients {
    let (problem, drawn) = (run.problem(), Arc::clone(drawn));
    Gradients::Sources(Box::new(move |rank| {
        Box::new(NotingSource { inner: problem.source(rank), drawn: Arc::clone(&drawn) })
    }))
}

#[test]
fn units_that_a_killed_process_had_not_confirmed_are_drawn_by_others_and_no_other_twice() {
    for entry in ALGORITHMS {
        let (name, run) = (entry.meta.name, Run::of(entry.meta.name, WORKERS).steps(STEPS));
        if run.setup().properties().budget != Budget::TotalGradients {
            continue;
        }
        let on_loss = LossPolicy::Continue { min_workers: 1 };
        let coordinator = coordinator(NetOptions { on_loss, ..NetOptions::default() });
        let mut victim = child(&coordinator.address().to_string());
        let pid = victim.id().to_string();
        let mut watch = Watch::calling(move |done| {
            if done == UNITS / 3 {
                let kill = Command::new("kill").args(["-KILL", &pid]).status();
                assert!(kill.expect("kill is there").success());
            }
        });
        let (drawn, setup) =
            (Drawn::default(), RunSpec { data: DataAssignment::Shared, ..run.setup() });
        let hosted = Hosted { workers: vec![0, 1, 2] };
        let ended = coordinator.run(run.job(), &setup, &noting(&run, &drawn), &hosted, &mut watch);
        let _ = victim.wait();
        let outcome = ended.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(outcome.ranks[WORKERS - 1].lost, "{name}");
        let books = outcome.data.expect("the data are shared");
        let DataBooks { units, confirmed, handed_out_again } = books;
        assert_eq!((units, confirmed), (UNITS, UNITS), "{name}");
        assert!(handed_out_again <= 2, "{name}: one that it computed, and the next: {books:?}");
        let drawn = drawn.lock().expect("nobody panicked").clone();
        let distinct: BTreeSet<u64> = drawn.iter().copied().collect();
        assert_eq!(distinct.len(), drawn.len(), "{name}: nobody here draws what another has");
        // What nobody here has drawn is what the lost process had confirmed.
        let of_victim = UNITS - drawn.len() as u64;
        let steps = outcome.ranks[WORKERS - 1].steps;
        // It may have been killed between the two things that it says of a step.
        assert!(of_victim == steps || of_victim == steps + 1, "{name}: {of_victim} of {steps}");
        assert!(distinct.last().is_some_and(|last| *last < UNITS), "{name}");
    }
}

#[test]
fn threads_that_share_their_data_draw_every_unit_once() {
    let run = Run::of("ad-psgd", WORKERS).steps(STEPS);
    let (drawn, setup) =
        (Drawn::default(), RunSpec { data: DataAssignment::Shared, ..run.setup() });
    let options = NetOptions::default();
    let ended = quelea_net::threads(&setup, &noting(&run, &drawn), &options, &mut Watch::new());
    let outcome = ended.expect("it ends well");
    let whole = DataBooks { units: UNITS, confirmed: UNITS, handed_out_again: 0 };
    assert_eq!(outcome.data, Some(whole));
    let mut drawn = drawn.lock().expect("nobody panicked").clone();
    drawn.sort_unstable();
    assert_eq!(drawn, (0..UNITS).collect::<Vec<u64>>());
}
