//! States that are saved on the way: a run that goes on from them ends as if it had not stopped.

#[allow(dead_code, reason = "each test file uses its own part")]
mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Case, Shape};
use quelea_core::algorithms::{ALGORITHMS, Entry};
use quelea_core::codec::CODECS;
use quelea_core::message::Rank;
use quelea_core::optim;
use quelea_core::options::{OptionKind, OptionSpec, Options, Value};
use quelea_core::properties::Budget;
use quelea_core::run_spec::{CodecChoice, RunSpec};
use quelea_core::time::Time;
use quelea_core::view::ViewChange;
use quelea_record::{
    CheckpointSchedule, Observer, Outcome, RankCheckpoint, Record, Request, ResumePoint,
};
use quelea_sim::{Crash, SimError};

const SHAPE: Shape = Shape { workers: 4, servers: 2, len: 12, buckets: 3, steps: 24 };

/// Keeps what is saved; requests a cut when so many steps are done in all.
#[derive(Default)]
struct Keeper {
    save_every: u64,
    request_at: Option<(u64, Request)>,
    done: u64,
    changes: Vec<ViewChange>,
    saved: BTreeMap<u64, Cut>,
}

/// What was saved at one step, in one view.
#[derive(Default)]
struct Cut {
    now: Time,
    changes: Vec<ViewChange>,
    parts: BTreeMap<Rank, RankCheckpoint>,
}

impl Cut {
    fn is_whole(&self, ranks: usize) -> bool {
        let lost: usize = self.changes.iter().map(|change| change.departed.len()).sum();
        self.parts.len() + lost == ranks
    }
}

impl Observer for Keeper {
    fn record(&mut self, _record: Record) {}

    fn progress(&mut self, done: u64, _total: u64, _now: Time) {
        self.done = done;
    }

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        CheckpointSchedule { save_every: self.save_every, evaluations: 0, steps: SHAPE.steps }
    }

    fn checkpoint(&mut self, now: Time, step: u64, rank: Rank, part: RankCheckpoint) {
        let changes = self.changes.clone();
        let cut = self.saved.entry(step).or_default();
        // That of an earlier view never becomes whole.
        if cut.changes != changes {
            *cut = Cut { changes, ..Cut::default() };
        }
        cut.now = cut.now.max(now);
        assert_eq!(cut.parts.insert(rank, part), None, "{rank} is saved once at step {step}");
    }

    fn view_changed(&mut self, change: &ViewChange) {
        self.changes.push(change.clone());
    }

    fn request(&mut self) -> Request {
        match self.request_at {
            Some((at, request)) if self.done >= at => request,
            _ => Request::Continue,
        }
    }
}

impl Keeper {
    /// The cut at `step`, which must be whole.
    fn start(&self, step: u64, ranks: usize) -> ResumePoint {
        let cut = &self.saved[&step];
        assert!(cut.is_whole(ranks), "every living rank is in the cut of step {step}");
        let mut parts = vec![RankCheckpoint::default(); ranks];
        for (rank, part) in &cut.parts {
            parts[rank.index()] = part.clone();
        }
        for departed in cut.changes.iter().flat_map(|change| &change.departed) {
            let part = &mut parts[departed.rank.index()];
            part.state.numbers.insert("step".to_string(), departed.steps);
            part.report.steps = departed.steps;
        }
        ResumePoint { parts, now: cut.now, changes: cut.changes.clone(), ..ResumePoint::default() }
    }

    /// The steps of the whole cuts that were saved after a loss.
    fn after_loss(&self, ranks: usize) -> Vec<u64> {
        let cuts = self.saved.iter();
        let cuts = cuts.filter(|(_, cut)| !cut.changes.is_empty() && cut.is_whole(ranks));
        cuts.map(|(step, _)| *step).collect()
    }
}

/// The defaults of a row, and every other choice of one key.
fn variants(entry: &'static Entry) -> Vec<(&'static str, Option<Value>)> {
    let choices = |key: &OptionSpec| -> Vec<Value> {
        match key.kind {
            OptionKind::Choice(words) => {
                words.iter().map(|word| Value::Text((*word).into())).collect()
            }
            OptionKind::Flag(default) => vec![Value::Flag(!default)],
            OptionKind::Whole { .. } => match key.name {
                "overlap" | "staleness" => [0.0, 1.0, 2.0].map(Value::Number).into(),
                "backup" => [0.0, 1.0, 2.0].map(Value::Number).into(),
                "period" => [2.0, 5.0].map(Value::Number).into(),
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    };
    let keys =
        entry.meta.options.iter().flat_map(|key| choices(key).into_iter().map(|v| (key.name, v)));
    let all = keys.map(|(name, value)| (name, Some(value)));
    std::iter::once(("", None)).chain(all).collect()
}

fn cases() -> Vec<(String, Case)> {
    let mut cases = Vec::new();
    for entry in ALGORITHMS {
        for (key, value) in variants(entry) {
            let servers = if entry.server.is_some() { SHAPE.servers } else { 0 };
            let mut case = Case::of(entry, Shape { servers, ..SHAPE });
            let name = format!("{} {key} {value:?}", entry.meta.name);
            if let Some(value) = value {
                case = case.with(key, value);
            }
            if (entry.check)(&case.setup.options).is_err() {
                continue;
            }
            let plain = !case.setup.properties().optimizer_rule.refused_options().is_empty();
            let sgd = optim::find("sgd").expect("in the table");
            let momentum = Value::Number(if plain { 0.0 } else { 0.5 });
            let params = Options::defaults(sgd.meta.options).with("momentum", momentum);
            case.setup.optimizer = Arc::new(move |len| (sgd.build)(&params, len));
            let shown = name.clone();
            // Unequal speeds, so that ranks stand at different steps when one of them is cut.
            case.cluster.compute_cv = 0.6;
            if key.is_empty() {
                cases.extend(
                    coded(entry, &case).map(|(codec, case)| (format!("{shown}{codec}"), case)),
                );
            }
            cases.push((name, case));
        }
    }
    cases
}

/// The same with every codec that the row takes.
fn coded(entry: &'static Entry, case: &Case) -> impl Iterator<Item = (&'static str, Case)> {
    let codecs = CODECS.iter().filter(|codec| codec.meta.name != "f32").filter_map(|codec| {
        let params = Options::defaults(codec.meta.options);
        let takes = (entry.codecs)(&case.setup.options);
        let refusal = takes.refusal(codec, &params, SHAPE.len);
        refusal.is_none().then_some(CodecChoice { entry: codec, options: params })
    });
    codecs.map(move |codec| {
        let servers = case.setup.ranks() - case.setup.workers();
        let mut coded = Case::of(entry, Shape { servers, ..SHAPE });
        coded.setup = RunSpec { codec, ..case.setup.clone() };
        coded.cluster = case.cluster.clone();
        (coded.setup.codec.entry.meta.name, coded)
    })
}

fn resumed(case: &Case, start: &ResumePoint) -> Outcome {
    let observer = &mut quelea_record::Silent;
    quelea_sim::resume(&case.setup, &case.problem, &case.cluster, start, observer)
        .expect("the run ends well")
}

fn watched(case: &Case, keeper: &mut Keeper) -> Result<Outcome, SimError> {
    quelea_sim::simulate(&case.setup, &case.problem, &case.cluster, keeper)
}

fn bits(outcome: &Outcome) -> Vec<Vec<u32>> {
    let bits = |model: &[f32]| model.iter().map(|x| x.to_bits()).collect();
    outcome.ranks.iter().flat_map(|rank| [bits(&rank.params), bits(&rank.model)]).collect()
}

#[test]
fn a_synchronous_run_goes_on_bit_for_bit_from_every_cut() {
    for (name, case) in cases().iter().filter(|(_, case)| case.setup.properties().synchronous) {
        let whole = case.run();
        let mut keeper = Keeper { save_every: 5, ..Keeper::default() };
        let watched = watched(case, &mut keeper).expect("the run ends well");
        assert_eq!(bits(&watched), bits(&whole), "{name}: saving changes nothing");
        assert_eq!(keeper.saved.keys().copied().collect::<Vec<_>>(), [5, 10, 15, 20], "{name}");
        for step in [5, 10, 15, 20] {
            let after = resumed(case, &keeper.start(step, case.setup.ranks()));
            assert_eq!(bits(&after), bits(&whole), "{name} from step {step}");
            let steps = |outcome: &Outcome| -> u64 { outcome.ranks.iter().map(|r| r.steps).sum() };
            assert_eq!(steps(&after), steps(&whole), "{name}: totals go on too");
        }
    }
}

#[test]
fn a_cut_that_is_wished_for_at_any_moment_is_whole_and_can_be_gone_on_from() {
    for (name, case) in cases().iter().filter(|(_, case)| case.setup.properties().synchronous) {
        let whole = case.run();
        for done in [1, 6, 13, 30, 57, 80] {
            let request_at = Some((done, Request::Stop));
            let mut keeper = Keeper { request_at, ..Keeper::default() };
            let stopped = watched(case, &mut keeper);
            let Err(SimError::Stopped { step, .. }) = stopped else {
                panic!("{name}: {stopped:?}")
            };
            let after = resumed(case, &keeper.start(step, case.setup.ranks()));
            assert_eq!(bits(&after), bits(&whole), "{name} stopped at step {step}");
        }
    }
}

/// Where the deployed model stands.
fn deployed(case: &Case, outcome: &Outcome) -> f32 {
    let server = case.setup.properties().deploy == quelea_core::properties::DeployedFrom::Servers;
    let models = outcome.ranks.iter().filter(|rank| rank.is_server == server);
    let values: Vec<f32> = models.flat_map(|rank| rank.model.iter().copied()).collect();
    values.iter().sum::<f32>() / values.len() as f32
}

#[test]
fn an_asynchronous_run_rests_is_saved_and_goes_on() {
    for (name, case) in cases().iter().filter(|(_, case)| !case.setup.properties().synchronous) {
        let mut keeper = Keeper { save_every: 6, ..Keeper::default() };
        let outcome = watched(case, &mut keeper).expect("the run ends well");
        assert_eq!(keeper.saved.keys().copied().collect::<Vec<_>>(), [6, 12, 18], "{name}");
        let budget = SHAPE.workers as u64 * SHAPE.steps;
        let steps = |outcome: &Outcome| -> u64 {
            outcome.ranks.iter().filter(|rank| !rank.is_server).map(|rank| rank.steps).sum()
        };
        assert!(steps(&outcome) <= budget, "{name}: {}", steps(&outcome));
        assert!(outcome.warnings.is_empty(), "{name}: {:?}", outcome.warnings);
        // Which gradient comes when depends on timing, and so does the end, a little.
        let without = deployed(case, &case.run());
        let near = |outcome: &Outcome| (deployed(case, outcome) - without).abs() < 0.35;
        assert!(near(&outcome), "{name}: {} {without}", deployed(case, &outcome));
        for step in [6, 18] {
            let start = keeper.start(step, case.setup.ranks());
            let after = resumed(case, &start);
            assert!(after.warnings.is_empty(), "{name}: {:?}", after.warnings);
            assert!(near(&after), "{name}: {} {without}", deployed(case, &after));
        }
    }
}

/// What the mean of the workers is with a learning rate of zero must be the same with and without
/// cuts: nothing is lost or counted twice by one.
#[test]
fn resting_loses_nothing() {
    for (name, mut case) in cases() {
        let properties = case.setup.properties();
        if properties.synchronous || !properties.keeps_mean {
            continue;
        }
        case.setup.learning_rate = Arc::new(|step| if step < 12 { 0.1 } else { 0.0 });
        let mut keeper = Keeper { save_every: 1, ..Keeper::default() };
        watched(&case, &mut keeper).expect("the run ends well");
        let mean = |start: &ResumePoint| -> f64 {
            let workers = start.parts.iter().take(SHAPE.workers);
            let params = workers.flat_map(|part| &part.state.vectors["params"]);
            params.map(|x| f64::from(*x)).sum()
        };
        let steps: Vec<u64> = keeper.saved.keys().copied().filter(|step| *step >= 20).collect();
        let means: Vec<f64> =
            steps.iter().map(|step| mean(&keeper.start(*step, case.setup.ranks()))).collect();
        let spread = means.iter().fold(0.0f64, |most, mean| most.max((mean - means[0]).abs()));
        assert!(spread < 1e-3, "{name}: {means:?}");
    }
}

/// The rate is 0 from step 12 on, which a slow worker reaches only together with the others: after
/// a cut at step 18 nothing may move, whoever computes.
#[test]
fn a_resumed_run_keeps_the_progress_of_all_workers() {
    let sum = |values: &[f32]| values.iter().map(|x| f64::from(*x)).sum::<f64>();
    for name in ["ad-psgd", "asp"] {
        let servers = if name == "asp" { SHAPE.servers } else { 0 };
        let mut case = Case::new(name, Shape { servers, ..SHAPE });
        case.cluster.slow = [(0, 20.0)].into();
        case.setup.learning_rate = Arc::new(|step| if step < 12 { 0.1 } else { 0.0 });
        let mut keeper = Keeper { save_every: 18, ..Keeper::default() };
        watched(&case, &mut keeper).expect("the run ends well");
        let start = keeper.start(18, case.setup.ranks());
        assert!(start.parts[0].step() < 6, "{name}: worker 0 is slow");
        // Who holds the model: the servers, or all workers together.
        let holders = if servers > 0 { SHAPE.workers.. } else { 0.. };
        let of_part = |part: &RankCheckpoint| sum(&part.state.vectors["params"]);
        let before: f64 = start.parts[holders.clone()].iter().map(of_part).sum();
        let after = resumed(&case, &start);
        let after: f64 = after.ranks[holders].iter().map(|rank| sum(&rank.params)).sum();
        assert!((after - before).abs() < 1e-4, "{name}: {before} became {after}");
    }
}

/// The same run, whose worker 1 crashes when this share of the time of the whole run has passed.
fn crashing(case: &Case, share: f64) -> Case {
    let at_ms = case.run().clock_seconds * 1e3 * share;
    let Case { setup, cluster, .. } = case;
    let servers = setup.ranks() - setup.workers();
    let mut case = Case::of(setup.entry, Shape { servers, ..SHAPE });
    (case.setup, case.cluster) = (setup.clone(), cluster.clone());
    case.cluster.detect_ms = 1.0;
    case.cluster.faults.crashes = vec![Crash { rank: 1, at_ms }];
    case
}

/// The bits of those who are left.
fn living_bits(outcome: &Outcome) -> Vec<Vec<u32>> {
    let bits = |rank: &quelea_record::RankReport| {
        rank.params.iter().chain(&rank.model).map(|x| x.to_bits()).collect()
    };
    outcome.ranks.iter().filter(|rank| !rank.lost).map(bits).collect()
}

#[test]
fn a_synchronous_run_resumes_bit_for_bit_from_every_cut_after_a_loss() {
    for (name, case) in cases().iter().filter(|(_, case)| case.setup.properties().synchronous) {
        for share in [0.2, 0.5] {
            let case = crashing(case, share);
            let (whole, ranks) = (case.run(), case.setup.ranks());
            let mut keeper = Keeper { save_every: 1, ..Keeper::default() };
            let outcome = watched(&case, &mut keeper).expect("the run ends well");
            assert_eq!(bits(&outcome), bits(&whole), "{name}: saving changes nothing");
            let steps = keeper.after_loss(ranks);
            assert!(steps.len() > 4, "{name}: {steps:?}");
            for step in steps.iter().step_by(2).filter(|step| **step < SHAPE.steps) {
                let after = resumed(&case, &keeper.start(*step, ranks));
                assert_eq!(living_bits(&after), living_bits(&whole), "{name} from step {step}");
                assert!(after.ranks[1].lost, "{name}");
            }
        }
    }
}

#[test]
fn a_run_that_is_asked_to_stop_after_a_loss_saves_and_resumes() {
    for (name, case) in cases() {
        let case = crashing(&case, 0.4);
        let ranks = case.setup.ranks();
        let mut keeper = Keeper { request_at: Some((60, Request::Stop)), ..Keeper::default() };
        let stopped = watched(&case, &mut keeper);
        let Err(SimError::Stopped { step, .. }) = stopped else { panic!("{name}: {stopped:?}") };
        let start = keeper.start(step, ranks);
        assert_eq!(start.departed().collect::<Vec<_>>(), [Rank(1)], "{name}");
        let after = resumed(&case, &start);
        assert!(after.warnings.is_empty(), "{name}: {:?}", after.warnings);
        if case.setup.properties().synchronous {
            assert_eq!(living_bits(&after), living_bits(&case.run()), "{name} at step {step}");
        }
    }
}

/// Where all workers share a number of gradients, all of them are computed, whoever was lost.
fn check_total(case: &Case, outcome: &Outcome) {
    if case.setup.properties().budget == Budget::TotalGradients {
        let workers = outcome.ranks.iter().filter(|rank| !rank.is_server);
        let total = workers.map(|rank| rank.steps).sum::<u64>();
        let (budget, name) = (SHAPE.workers as u64 * SHAPE.steps, case.setup.entry.meta.name);
        assert!(total <= budget && total + 4 >= budget, "{name}: {total} of {budget}");
    }
}

/// A crash at every stage of a cut: before, while it comes to rest, while it is saved, after.
#[test]
fn a_loss_in_the_middle_of_a_cut_neither_hangs_nor_loses_the_next_one() {
    for (name, case) in cases().iter().filter(|(_, case)| !case.setup.properties().synchronous) {
        for moment in 0..24 {
            let case = crashing(case, 0.2 + 0.02 * f64::from(moment));
            let mut keeper = Keeper { save_every: 2, ..Keeper::default() };
            let outcome = watched(&case, &mut keeper)
                .unwrap_or_else(|error| panic!("{name} at moment {moment}: {error:?}"));
            assert!(outcome.warnings.is_empty(), "{name}: {:?}", outcome.warnings);
            check_total(&case, &outcome);
            let steps = keeper.after_loss(case.setup.ranks());
            assert!(!steps.is_empty(), "{name} at moment {moment}");
            let start = keeper.start(steps[steps.len() / 2], case.setup.ranks());
            let after = resumed(&case, &start);
            assert!(after.warnings.is_empty(), "{name}: {:?}", after.warnings);
            check_total(&case, &after);
        }
    }
}
