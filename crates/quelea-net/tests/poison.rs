//! One worker sends values that no honest worker sends; whoever receives them names it.

mod common;

use common::{Run, Watch, coordinator};
use quelea_core::node::Loan;
use quelea_core::poison::PoisonPolicy;
use quelea_core::problems::{Computed, GradientSource};
use quelea_core::run_spec::RunSpec;
use quelea_net::{Gradients, Hosted, LossPolicy, NetError, NetOptions};
use quelea_record::{Outcome, POISONED, RecordKind};

const POISONER: usize = 2;
const FROM: u64 = 7;

/// Gradients of zeros, and one bad value from a step on at one worker.
struct Source {
    rank: usize,
    value: f32,
}

impl GradientSource for Source {
    fn gradient(&mut self, loan: &mut Loan, _ready: &mut dyn FnMut(usize)) -> Computed {
        let is_bad = self.rank == POISONER && loan.step() >= FROM;
        let (_, gradient) = loan.vectors();
        gradient.fill(0.0);
        if is_bad {
            gradient[11] = self.value;
        }
        Computed { loss: 0.0, samples: 1 }
    }

    fn operations(&self) -> u64 {
        0
    }
}

fn gradients(value: f32) -> Gradients {
    Gradients::Sources(Box::new(move |rank| Box::new(Source { rank, value })))
}

fn poisoned(
    algorithm: &str,
    poison: PoisonPolicy,
    value: f32,
    on_loss: LossPolicy,
) -> (Result<Outcome, NetError>, Watch) {
    let run = Run::of(algorithm, 4).steps(30);
    let setup = RunSpec { poison, ..run.setup() };
    let options = NetOptions { on_loss, ..NetOptions::default() };
    let mut watch = Watch::new();
    let ended = quelea_net::threads(&setup, &gradients(value), &options, &mut watch);
    (ended, watch)
}

#[test]
fn the_sender_of_every_kind_of_poison_is_named_at_once() {
    for (value, shown) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf"), (3e30, "3e30")] {
        for algorithm in ["allreduce", "sync-ps"] {
            let stop = LossPolicy::Stop;
            let (ended, watch) = poisoned(algorithm, PoisonPolicy::Stop, value, stop);
            let told = ended.expect_err("it ends").to_string();
            let expected = format!("rank {POISONER} sent {shown} as element ");
            assert!(told.contains(&expected), "{algorithm}: {told}");
            assert!(told.contains(&format!("in step {FROM};")), "{algorithm}: {told}");
            let is_named = |kind: &RecordKind| match kind {
                RecordKind::Measured { kind, number } => {
                    kind.name == POISONED.name && *number == POISONER as u64
                }
                _ => false,
            };
            assert!(watch.records.iter().any(|record| is_named(&record.event)), "{algorithm}");
        }
    }
}

#[test]
fn what_is_ignored_goes_everywhere_as_before() {
    let stop = LossPolicy::Stop;
    let (ended, _) = poisoned("allreduce", PoisonPolicy::Ignore, f32::NAN, stop);
    let outcome = ended.expect("nobody looks");
    assert!(outcome.ranks.iter().all(|rank| rank.params[11].is_nan()));
}

#[test]
fn a_sender_that_is_dropped_is_lost_to_the_others_over_sockets_too() {
    let run = Run::of("d-psgd", 4).steps(30);
    let setup = RunSpec { poison: PoisonPolicy::Drop, ..run.setup() };
    let on_loss = LossPolicy::Continue { min_workers: 1 };
    let coordinator = coordinator(NetOptions { on_loss, ..NetOptions::default() });
    let address = coordinator.address().to_string();
    let outcome = std::thread::scope(|scope| {
        for rank in [1, 2, 3] {
            let (address, setup) = (&address, setup.clone());
            // The one that is dropped hears that the others have continued.
            scope.spawn(move || {
                let options = NetOptions::default();
                quelea_net::join(address, Some(rank), &options, &mut |_| {
                    Ok((setup.clone(), gradients(f32::NAN)))
                })
            });
        }
        let hosted = Hosted { workers: vec![0] };
        coordinator.run(run.job(), &setup, &gradients(f32::NAN), &hosted, &mut Watch::new())
    });
    let outcome = outcome.expect("the others continue");
    let lost: Vec<u32> = outcome.ranks.iter().filter(|r| r.lost).map(|r| r.rank).collect();
    assert_eq!(lost, [POISONER as u32]);
    let honest = outcome.ranks.iter().filter(|rank| !rank.lost);
    assert!(honest.flat_map(|rank| &rank.params).all(|value| value.is_finite()));
    let named = |text: &String| text.contains(&format!("rank {POISONER} sent NaN"));
    assert!(outcome.warnings.iter().any(named), "{:?}", outcome.warnings);
}

#[test]
fn the_usual_runs_have_nothing_to_be_named() {
    let run = Run::of("d-psgd", 2);
    let setup = RunSpec { poison: PoisonPolicy::Stop, ..run.setup() };
    let outcome =
        quelea_net::threads(&setup, &run.gradients(), &NetOptions::default(), &mut Watch::new());
    let outcome = outcome.expect("all values are good");
    assert_eq!(common::bits(&outcome), common::bits(&run.threads().expect("threads")));
}

/// A run of four over sockets, rank 0 with the coordinator.
fn over_sockets(
    algorithm: &str,
    poison: PoisonPolicy,
    value: f32,
) -> (Result<Outcome, NetError>, Watch) {
    let run = Run::of(algorithm, 4).steps(30);
    let setup = RunSpec { poison, ..run.setup() };
    let on_loss = LossPolicy::Continue { min_workers: 1 };
    // A sender whose message was refused may wait for an answer that it does not get.
    let limits = NetOptions { peer_seconds: 2.0, ..NetOptions::default() };
    let coordinator = coordinator(NetOptions { on_loss, ..limits.clone() });
    let address = coordinator.address().to_string();
    let mut watch = Watch::new();
    let ended = std::thread::scope(|scope| {
        for rank in [1, 2, 3] {
            let (address, setup, limits) = (&address, setup.clone(), &limits);
            scope.spawn(move || {
                quelea_net::join(address, Some(rank), limits, &mut |_| {
                    Ok((setup.clone(), gradients(value)))
                })
            });
        }
        let hosted = Hosted { workers: vec![0] };
        coordinator.run(run.job(), &setup, &gradients(value), &hosted, &mut watch)
    });
    (ended, watch)
}

/// Whose messages were not used, by the records.
fn senders(watch: &Watch) -> std::collections::BTreeSet<u64> {
    let sender = |record: &quelea_record::Record| match record.event {
        RecordKind::Measured { kind, number } if kind.name == POISONED.name => Some(number),
        _ => None,
    };
    watch.records.iter().filter_map(sender).collect()
}

#[test]
fn every_policy_does_what_it_says_with_every_kind_of_poison_over_sockets() {
    for (value, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-3e30, "-3e30")] {
        let named = format!("rank {POISONER} sent {shown} as element ");
        let (ended, watch) = over_sockets("sync-ps", PoisonPolicy::Stop, value);
        let told = ended.expect_err("it ends").to_string();
        assert!(told.contains(&named), "{told}");
        assert_eq!(senders(&watch), [POISONER as u64].into());

        let (ended, watch) = over_sockets("d-psgd", PoisonPolicy::Drop, value);
        let outcome = ended.expect("the others continue");
        let lost: Vec<u32> = outcome.ranks.iter().filter(|r| r.lost).map(|r| r.rank).collect();
        assert_eq!(lost, [POISONER as u32], "{:?}", outcome.warnings);
        assert_eq!(senders(&watch), [POISONER as u64].into());

        let (ended, watch) = over_sockets("asp", PoisonPolicy::Refuse, value);
        let outcome = ended.expect("the others continue");
        assert_eq!(senders(&watch), [POISONER as u64].into());
        let honest = outcome.ranks.iter().filter(|rank| rank.rank as usize != POISONER);
        assert!(honest.flat_map(|rank| &rank.params).all(|value| value.is_finite()));
        let warned = |text: &String| text.contains(&named) && text.contains("it was not used");
        assert!(outcome.warnings.iter().any(warned), "{:?}", outcome.warnings);
    }
}
