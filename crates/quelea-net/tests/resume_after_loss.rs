//! A worker's process is killed; the others save checkpoints without it, and resume from them.

mod common;

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use common::{Run, coordinator, worker};
use quelea_core::algorithms::ALGORITHMS;
use quelea_core::message::Rank;
use quelea_core::time::Time;
use quelea_core::view::ViewChange;
use quelea_net::{Hosted, LossPolicy, NetError, NetOptions, Observer};
use quelea_record::{
    CheckpointSchedule, Models, Outcome, RankCheckpoint, Record, Request, ResumePoint,
};

const WORKERS: usize = 4;
const STEPS: u64 = 300;
const CONTINUE: LossPolicy = LossPolicy::Continue { min_workers: 1 };

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

/// What was saved at one step, in one view.
#[derive(Clone, Default)]
struct Cut {
    changes: Vec<ViewChange>,
    parts: BTreeMap<Rank, RankCheckpoint>,
}

impl Cut {
    fn is_whole(&self, ranks: usize) -> bool {
        self.parts.len() + self.changes.len() == ranks
    }
}

/// Keeps what is saved, kills a process when a third of the steps is done, and requests a stop when
/// so many are.
#[derive(Default)]
struct Keeper {
    kill: Option<String>,
    stop_at: Option<u64>,
    done: u64,
    ranks: usize,
    changes: Vec<ViewChange>,
    saved: BTreeMap<u64, Cut>,
    /// Steps whose models were evaluated, and of how many workers.
    evaluated: Vec<(u64, usize)>,
}

impl Observer for Keeper {
    fn record(&mut self, _record: Record) {}

    fn progress(&mut self, done: u64, total: u64, _now: Time) {
        self.done = done;
        if done >= total / 3
            && let Some(pid) = self.kill.take()
        {
            let kill = Command::new("kill").args(["-KILL", &pid]).status();
            assert!(kill.expect("kill is there").success());
        }
    }

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        CheckpointSchedule { save_every: 20, evaluations: 10, steps: STEPS }
    }

    fn evaluate(&mut self, _now: Time, step: u64, models: Models) {
        self.evaluated.push((step, models.workers.len()));
    }

    fn view_changed(&mut self, change: &ViewChange) {
        self.changes.push(change.clone());
    }

    fn checkpoint(&mut self, _now: Time, step: u64, rank: Rank, part: RankCheckpoint) {
        let cut = self.saved.entry(step).or_default();
        // That of an earlier view gives way.
        if cut.changes != self.changes {
            *cut = Cut { changes: self.changes.clone(), ..Cut::default() };
        }
        cut.parts.insert(rank, part);
    }

    /// No rank passes a cut before it is whole.
    fn durable_step(&mut self) -> u64 {
        let whole = self.saved.iter().filter(|(_, cut)| cut.is_whole(self.ranks));
        whole.map(|(step, _)| *step).max().unwrap_or(0)
    }

    fn request(&mut self) -> Request {
        let is_lost = !self.changes.is_empty();
        if is_lost && self.stop_at.is_some_and(|at| self.done >= at) {
            Request::Stop
        } else {
            Request::Continue
        }
    }
}

impl Keeper {
    /// The first whole cut after the loss, and its step.
    fn after_loss(&self, ranks: usize) -> (u64, ResumePoint) {
        let is_after = |cut: &Cut| !cut.changes.is_empty() && cut.is_whole(ranks);
        let (step, cut) = self.saved.iter().find(|(_, cut)| is_after(cut)).expect("a whole cut");
        let mut parts = vec![RankCheckpoint::default(); ranks];
        for (rank, part) in &cut.parts {
            parts[rank.index()] = part.clone();
        }
        let departed = cut.changes[0].departed[0];
        let part = &mut parts[departed.rank.index()];
        part.state.numbers.insert("step".to_string(), departed.steps);
        let now = Time(5_000_000_000);
        (*step, ResumePoint { parts, now, changes: cut.changes.clone(), ..ResumePoint::default() })
    }
}

/// A run whose last worker is killed on the way; the others are threads of this process, one of them
/// over a socket.
fn with_a_kill(run: &Run, keeper: &mut Keeper) -> Result<Outcome, NetError> {
    let coordinator = coordinator(NetOptions { on_loss: CONTINUE, ..NetOptions::default() });
    let address = coordinator.address().to_string();
    let mut victim = child(&address);
    keeper.kill = Some(victim.id().to_string());
    let hosted = Hosted { workers: vec![0, 1] };
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| drop(worker(&address, Some(2))));
        coordinator.run(run.job(), &run.setup(), &run.gradients(), &hosted, keeper)
    });
    let _ = victim.wait();
    ended
}

/// The survivors, resumed.
fn resumed(run: &Run, start: ResumePoint, keeper: &mut Keeper) -> Result<Outcome, NetError> {
    let coordinator = coordinator(NetOptions { on_loss: CONTINUE, ..NetOptions::default() })
        .resume_from(Arc::new(start));
    let address = coordinator.address().to_string();
    let hosted = Hosted { workers: vec![0, 1] };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let refused = worker(&address, Some(3)).expect_err("it was lost").to_string();
            assert!(refused.contains("worker 3 was lost; the run resumes without it"), "{refused}");
            worker(&address, None).expect("it takes part as the only one that is missing");
        });
        coordinator.run(run.job(), &run.setup(), &run.gradients(), &hosted, keeper)
    })
}

fn living_bits(outcome: &Outcome) -> Vec<Vec<u32>> {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    outcome.ranks.iter().filter(|rank| !rank.lost).map(|rank| bits(&rank.params)).collect()
}

#[test]
fn every_algorithm_saves_and_is_evaluated_after_a_kill_and_resumes_without_the_lost_worker() {
    for entry in ALGORITHMS {
        let name = entry.meta.name;
        let run = Run::of(name, WORKERS).steps(STEPS);
        let ranks = run.setup().ranks();
        let mut keeper = Keeper { ranks, ..Keeper::default() };
        let whole =
            with_a_kill(&run, &mut keeper).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (step, start) = keeper.after_loss(ranks);
        assert!(step < STEPS, "{name}: saved at {step}");
        let after_loss = keeper.evaluated.iter().filter(|(_, workers)| *workers == WORKERS - 1);
        assert!(after_loss.count() > 2, "{name}: {:?}", keeper.evaluated);
        let mut again = Keeper { ranks: ranks - 1, ..Keeper::default() };
        let after = resumed(&run, start, &mut again).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(after.ranks[3].lost, "{name}");
        assert!(!again.saved.is_empty() && again.changes.is_empty(), "{name}");
        if run.setup().properties().synchronous {
            assert_eq!(living_bits(&after), living_bits(&whole), "{name} from step {step}");
        }
    }
}

#[test]
fn a_run_that_is_asked_to_stop_after_a_kill_saves_and_resumes() {
    for name in ["allreduce", "d-psgd", "sync-ps", "ad-psgd", "asp"] {
        let run = Run::of(name, WORKERS).steps(STEPS);
        let ranks = run.setup().ranks();
        let stop_at = Some(STEPS * WORKERS as u64 / 2);
        let mut keeper = Keeper { stop_at, ranks, ..Keeper::default() };
        let ended = with_a_kill(&run, &mut keeper);
        let Err(NetError::Stopped { step, .. }) = ended else { panic!("{name}: {ended:?}") };
        keeper.saved.retain(|saved, _| *saved == step);
        let (_, start) = keeper.after_loss(ranks);
        let mut again = Keeper { ranks: ranks - 1, ..Keeper::default() };
        let after = resumed(&run, start, &mut again).expect("it ends well");
        let done: u64 = after.ranks.iter().filter(|rank| !rank.is_server).map(|r| r.steps).sum();
        assert!(done >= 3 * STEPS, "{name}: {done} steps");
    }
}
