//! Models that are shown and states that are saved while a real run goes on, and going on from
//! them: in threads and over sockets.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Run, bits, coordinator, worker};
use quelea_core::algorithms::ALGORITHMS;
use quelea_core::message::Rank;
use quelea_core::options::Value;
use quelea_core::run_spec::RunSpec;
use quelea_core::time::Time;
use quelea_net::{Hosted, NetError, NetOptions, Observer};
use quelea_record::{
    CheckpointSchedule, Models, Outcome, RankCheckpoint, Record, Request, ResumePoint,
};

/// Keeps what is shown and saved; requests a cut when so many steps are done in all.
#[derive(Default)]
struct Keeper {
    cuts: CheckpointSchedule,
    request_at: Option<(u64, Request)>,
    done: u64,
    saved: BTreeMap<u64, BTreeMap<Rank, RankCheckpoint>>,
    shown: Vec<(u64, Models)>,
}

impl Observer for Keeper {
    fn record(&mut self, _record: Record) {}

    fn progress(&mut self, done: u64, _total: u64, _now: Time) {
        self.done = done;
    }

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        self.cuts
    }

    fn evaluate(&mut self, _now: Time, step: u64, models: Models) {
        self.shown.push((step, models));
    }

    fn checkpoint(&mut self, _now: Time, step: u64, rank: Rank, part: RankCheckpoint) {
        let before = self.saved.entry(step).or_default().insert(rank, part);
        assert_eq!(before, None, "{rank} is saved once at step {step}");
    }

    fn request(&mut self) -> Request {
        match self.request_at {
            Some((at, request)) if self.done >= at => {
                self.request_at = None;
                request
            }
            _ => Request::Continue,
        }
    }
}

impl Keeper {
    fn every(save_every: u64, steps: u64) -> Keeper {
        Keeper {
            cuts: CheckpointSchedule { save_every, evaluations: 4, steps },
            ..Keeper::default()
        }
    }

    fn start(&self, step: u64, ranks: usize) -> ResumePoint {
        let parts = &self.saved[&step];
        assert_eq!(parts.len(), ranks, "every rank is in the cut of step {step}");
        ResumePoint {
            parts: parts.values().cloned().collect(),
            now: Time(5_000_000_000),
            ..ResumePoint::default()
        }
    }
}

fn threads(
    run: &Run,
    setup: &RunSpec,
    start: ResumePoint,
    keeper: &mut Keeper,
) -> Result<Outcome, NetError> {
    quelea_net::resume(setup, &run.gradients(), &NetOptions::default(), Arc::new(start), keeper)
}

fn sockets(run: &Run, start: ResumePoint, keeper: &mut Keeper) -> Result<Outcome, NetError> {
    let coordinator = coordinator(NetOptions::default()).resume_from(Arc::new(start));
    let address = coordinator.address().to_string();
    std::thread::scope(|scope| {
        for rank in 0..run.workers {
            let address = &address;
            // A run that stops on the way ends for its workers too.
            scope.spawn(move || drop(worker(address, Some(rank as u32))));
        }
        let hosted = Hosted::default();
        coordinator.run(run.job(), &run.setup(), &run.gradients(), &hosted, keeper)
    })
}

fn synchronous() -> impl Iterator<Item = Run> {
    let rows = ALGORITHMS.iter().map(|entry| Run::of(entry.meta.name, 3));
    rows.filter(|run| run.setup().properties().synchronous)
}

#[test]
fn synchronous_runs_go_on_bit_for_bit_in_threads_and_over_sockets() {
    for run in synchronous() {
        let (setup, name) = (run.setup(), run.algorithm.meta.name);
        let whole = run.threads().expect("it ends");
        let mut keeper = Keeper::every(6, run.steps);
        let watched = sockets(&run, ResumePoint::default(), &mut keeper).expect("it ends");
        assert_eq!(bits(&watched), bits(&whole), "{name}: cuts change nothing");
        for step in [6, 12, 18] {
            let start = || keeper.start(step, setup.ranks());
            let near = threads(&run, &setup, start(), &mut Keeper::default()).expect("it ends");
            assert_eq!(bits(&near), bits(&whole), "{name} from {step} in threads");
            let total = |outcome: &Outcome| -> Vec<u64> {
                outcome.ranks.iter().map(|rank| rank.steps + rank.samples).collect()
            };
            assert_eq!(total(&near), total(&whole), "{name}: totals go on too");
            assert!(near.clock_seconds >= 5.0, "the clock goes on too");
        }
        let far = sockets(&run, keeper.start(12, setup.ranks()), &mut Keeper::default());
        assert_eq!(bits(&far.expect("it ends")), bits(&whole), "{name} over sockets");
    }
}

#[test]
fn forms_with_servers_and_shares_on_their_way_go_on_bit_for_bit() {
    let forms = [
        ("aladdin", "barrier", Value::Flag(true)),
        ("easgd", "form", Value::Text("synchronous".into())),
        ("eamsgd", "form", Value::Text("synchronous".into())),
        ("sgp", "overlap", Value::Number(2.0)),
        ("ssp", "staleness", Value::Number(0.0)),
        ("d-psgd", "form", Value::Text("combine-then-adapt".into())),
        ("gradient-tracking", "form", Value::Text("push".into())),
    ];
    for (name, key, value) in forms {
        let run = Run::of(name, 4);
        let mut setup = run.setup();
        setup.options = setup.options.with(key, value);
        let go = |start, keeper: &mut Keeper| threads(&run, &setup, start, keeper);
        let whole = go(ResumePoint::default(), &mut Keeper::default()).expect("it ends");
        let mut keeper = Keeper::every(7, run.steps);
        go(ResumePoint::default(), &mut keeper).expect("it ends");
        for step in [7, 14] {
            let after = go(keeper.start(step, setup.ranks()), &mut Keeper::default());
            assert_eq!(bits(&after.expect("it ends")), bits(&whole), "{name} from {step}");
        }
    }
}

#[test]
fn a_run_that_is_asked_to_stop_ends_with_a_whole_cut_wherever_it_is() {
    for (index, run) in synchronous().enumerate() {
        let (run, setup) = (run.clone().steps(300), run.steps(300).setup());
        let whole = threads(&run, &setup, ResumePoint::default(), &mut Keeper::default());
        let request_at = Some((7 + 13 * index as u64, Request::Stop));
        // Often enough that ranks come to a cut of the schedule while they agree on this one.
        let mut keeper = Keeper { request_at, ..Keeper::every(2, 300) };
        let name = run.algorithm.meta.name;
        let stopped = match index % 2 {
            0 => threads(&run, &setup, ResumePoint::default(), &mut keeper),
            _ => sockets(&run, ResumePoint::default(), &mut keeper),
        };
        let step = match stopped {
            Err(NetError::Stopped { step, .. }) => step,
            // It was done before it could be asked.
            Ok(_) => continue,
            Err(error) => panic!("{name}: {error}"),
        };
        let start = keeper.start(step, setup.ranks());
        let after = threads(&run, &setup, start, &mut Keeper::default()).expect("it ends");
        assert_eq!(bits(&after), bits(&whole.expect("it ends")), "{name} stopped at {step}");
    }
}

#[test]
fn asynchronous_runs_rest_are_saved_and_keep_their_budget() {
    let rows = ALGORITHMS.iter().map(|entry| Run::of(entry.meta.name, 3));
    for run in rows.filter(|run| !run.setup().properties().synchronous) {
        let (setup, name) = (run.setup(), run.algorithm.meta.name);
        let steps = |outcome: &Outcome| -> u64 {
            outcome.ranks[..run.workers].iter().map(|rank| rank.steps).sum()
        };
        let budget = run.workers as u64 * run.steps;
        let mut keeper = Keeper::every(5, run.steps);
        let near = threads(&run, &setup, ResumePoint::default(), &mut keeper).expect("it ends");
        assert_eq!(steps(&near), budget, "{name}");
        assert!(!keeper.saved.is_empty(), "{name} was saved");
        for step in keeper.saved.keys().copied().collect::<Vec<_>>() {
            let start = keeper.start(step, setup.ranks());
            let done = start.steps(run.workers);
            let mut again = Keeper::every(5, run.steps);
            let after = sockets(&run, start, &mut again).expect("it ends");
            assert_eq!(steps(&after), budget, "{name} from {done} of {budget}");
        }
    }
}

#[test]
fn models_are_shown_at_their_step_while_the_run_goes_on() {
    for name in ["allreduce", "d-psgd", "sync-ps", "aladdin", "ad-psgd"] {
        let run = Run::of(name, 3).steps(40);
        let setup = run.setup();
        for far in [false, true] {
            let mut keeper = Keeper::every(0, run.steps);
            let outcome = if far {
                sockets(&run, ResumePoint::default(), &mut keeper)
            } else {
                threads(&run, &setup, ResumePoint::default(), &mut keeper)
            };
            outcome.expect("it ends");
            let steps: Vec<u64> = keeper.shown.iter().map(|(step, _)| *step).collect();
            assert_eq!(steps, [10, 20, 30], "{name}, far {far}");
            for (_, models) in &keeper.shown {
                let whole = models.workers.iter().all(|(_, model)| model.len() == run.dimensions);
                assert!(whole && models.workers.len() == run.workers, "{name}");
                let shards: usize = models.servers.iter().map(|(_, shard)| shard.len()).sum();
                assert_eq!(shards, if setup.properties().servers { run.dimensions } else { 0 });
            }
        }
    }
    // Those of a synchronous run are of that very step, so a shorter run ends with them.
    let run = Run::of("d-psgd", 3).steps(40);
    let mut keeper = Keeper::every(0, run.steps);
    threads(&run, &run.setup(), ResumePoint::default(), &mut keeper).expect("it ends");
    let short = Run::of("d-psgd", 3).steps(10).threads().expect("it ends");
    let models = keeper.shown[0].1.workers.iter().map(|(_, model)| model);
    assert!(models.eq(short.ranks.iter().map(|rank| &rank.model)));
}

#[test]
fn a_state_of_another_run_is_refused() {
    let run = Run::of("d-psgd", 2);
    let mut keeper = Keeper::every(5, run.steps);
    threads(&run, &run.setup(), ResumePoint::default(), &mut keeper).expect("it ends");
    let other = Run { dimensions: 36, ..run.clone() };
    let start = keeper.start(5, 2);
    let refused = threads(&other, &other.setup(), start, &mut Keeper::default());
    let text = refused.expect_err("it does not fit").to_string();
    assert!(text.contains("does not fit") && text.contains("`params`"), "{text}");
}
