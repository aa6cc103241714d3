//! One worker sends NaN, infinities or absurd magnitudes in the virtual cluster: each policy does what it says,
//! and the records tell who.

#[allow(dead_code, reason = "each test file uses its own part")]
mod common;

use common::{Case, SMALL, Shape};
use quelea_core::node::Loan;
use quelea_core::poison::PoisonPolicy;
use quelea_core::problems::quadratic::Quadratic;
use quelea_core::problems::{Computed, Evaluation, GradientSource, Problem};
use quelea_record::{Observer, Outcome, POISONED, Record, RecordKind};
use quelea_sim::SimError;

const POISONER: usize = 2;
const FROM: u64 = 5;
const KINDS: [(f32, &str); 3] = [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf"), (3e30, "3e30")];

/// A problem one of whose workers has one bad value in its gradients from a step on.
struct Poisoned<'a> {
    inner: &'a Quadratic,
    value: f32,
}

struct Source {
    inner: Box<dyn GradientSource>,
    value: Option<f32>,
}

impl GradientSource for Source {
    fn gradient(&mut self, loan: &mut Loan, ready: &mut dyn FnMut(usize)) -> Computed {
        // Nothing is handed over before the bad value is in its place.
        let computed = self.inner.gradient(loan, &mut |_| {});
        let step = loan.step();
        if let Some(value) = self.value.filter(|_| step >= FROM) {
            loan.vectors().1[3] = value;
        }
        let _ = ready;
        computed
    }

    fn operations(&self) -> u64 {
        self.inner.operations()
    }
}

impl Problem for Poisoned<'_> {
    fn dimensions(&self) -> usize {
        self.inner.dimensions()
    }

    fn initial(&self) -> Vec<f32> {
        self.inner.initial()
    }

    fn source(&self, rank: usize) -> Box<dyn GradientSource> {
        let value = (rank == POISONER).then_some(self.value);
        Box::new(Source { inner: self.inner.source(rank), value })
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        self.inner.evaluate(params)
    }
}

/// Counts whose messages were not used.
#[derive(Default)]
struct Senders(Vec<u64>);

impl Observer for Senders {
    fn record(&mut self, record: Record) {
        if let RecordKind::Measured { kind, number } = record.event
            && kind.name == POISONED.name
        {
            self.0.push(number);
        }
    }
}

fn run(
    algorithm: &str,
    shape: Shape,
    poison: PoisonPolicy,
    value: f32,
) -> (Result<Outcome, SimError>, Vec<u64>) {
    let mut case = Case::new(algorithm, shape);
    case.setup.poison = poison;
    let problem = Poisoned { inner: &case.problem, value };
    let mut senders = Senders::default();
    let ended = quelea_sim::simulate(&case.setup, &problem, &case.cluster, &mut senders);
    (ended, senders.0)
}

fn is_finite(outcome: &Outcome) -> bool {
    let honest = outcome.ranks.iter().filter(|rank| rank.rank as usize != POISONER);
    honest.flat_map(|rank| &rank.params).all(|value| value.is_finite())
}

#[test]
fn stop_ends_the_run_and_names_the_sender() {
    for (value, shown) in KINDS {
        for (algorithm, servers) in [("d-psgd", 0), ("sync-ps", 1)] {
            let shape = Shape { servers, ..SMALL };
            let (ended, senders) = run(algorithm, shape, PoisonPolicy::Stop, value);
            let told = ended.expect_err("it ends").to_string();
            // Models are exchanged by gossip, in which the step has another sign and size.
            let shown = if servers > 0 { shown } else { "" };
            assert!(told.contains(&format!("rank {POISONER} sent {shown}")), "{algorithm}: {told}");
            assert!(senders.iter().all(|sender| *sender == POISONER as u64), "{senders:?}");
            assert!(!senders.is_empty());
        }
    }
}

#[test]
fn drop_goes_on_without_the_sender_whom_two_neighbours_name() {
    for (value, _) in KINDS {
        let (ended, senders) = run("d-psgd", SMALL, PoisonPolicy::Drop, value);
        let outcome = ended.expect("the others continue");
        let lost: Vec<u32> = outcome.ranks.iter().filter(|r| r.lost).map(|r| r.rank).collect();
        assert_eq!(lost, [POISONER as u32], "{:?}", outcome.warnings);
        assert!(is_finite(&outcome));
        let honest = outcome.ranks.iter().filter(|rank| !rank.lost);
        assert!(honest.clone().all(|rank| rank.steps == SMALL.steps));
        let named = |text: &String| {
            // Models are exchanged, in which the step has another sign and size.
            text.contains(&format!("rank {POISONER} sent "))
                && text.contains("(seen by rank 1 and rank 3)")
        };
        assert!(outcome.warnings.iter().any(named), "{:?}", outcome.warnings);
        assert!(senders.iter().all(|sender| *sender == POISONER as u64), "{senders:?}");
    }
}

#[test]
fn refuse_leaves_the_messages_out_and_everybody_continues() {
    for (value, shown) in KINDS {
        let shape = Shape { servers: 1, ..SMALL };
        let (ended, senders) = run("asp", shape, PoisonPolicy::Refuse, value);
        match ended {
            Ok(outcome) => {
                assert!(is_finite(&outcome), "{shown}");
                let named = |text: &String| text.contains(&format!("rank {POISONER} sent {shown}"));
                assert!(outcome.warnings.iter().any(named), "{:?}", outcome.warnings);
            }
            // Its sender waits for an answer that it does not get; a real run has time limits for that.
            Err(SimError::Deadlock { stuck, .. }) => {
                assert!(stuck.iter().all(|stuck| stuck.rank.index() == POISONER), "{stuck:?}");
            }
            Err(other) => panic!("{other}"),
        }
        assert!(senders.iter().all(|sender| *sender == POISONER as u64), "{senders:?}");
        assert!(!senders.is_empty());
    }
}

#[test]
fn what_is_ignored_goes_everywhere() {
    let (ended, senders) = run("d-psgd", SMALL, PoisonPolicy::Ignore, f32::NAN);
    assert!(!is_finite(&ended.expect("nobody looks")));
    assert_eq!(senders, []);
}
