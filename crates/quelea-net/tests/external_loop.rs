//! Ranks whose gradients and optimizer are an outer loop's, and what processes do together.

mod common;

use std::time::Duration;

use common::{Run, Watch, bits};
use quelea_core::algorithms::ALGORITHMS;
use quelea_core::contract::Mode;
use quelea_core::node::loan::SharedVector;
use quelea_core::options::Options;
use quelea_core::problems::{GradientSource, Problem, gradient_at};
use quelea_core::properties::OptimizerSite;
use quelea_net::Security;
use quelea_net::external_loop::{ExternalLoop, LoopHandle, LoopTurn};
use quelea_net::launcher::{Launched, Rendezvous};
use quelea_net::process_group::{
    Given, GroupCall, Participants, ProcessGroup, ProcessGroupError, RunUnderWay,
};
use quelea_net::{Gradients, NetOptions};
use quelea_record::Outcome;

const MOMENT: Duration = Duration::from_secs(20);

/// A training loop as a script has it: all buckets, then the optimizer, then the next step. It
/// keeps its gradient to itself if the row says that it does not read it.
fn train(run: &Run, handle: &LoopHandle, mut source: Box<dyn GradientSource>) {
    let setup = run.setup();
    let is_read = setup.properties().reads_gradient;
    let mut own = vec![0.0; setup.initial.len()];
    for step in 0..run.steps {
        assert_eq!(handle.wait(MOMENT), Ok(Some(LoopTurn::Gradient(step))));
        let vectors = handle.vectors().expect("lent");
        // SAFETY: it is this loop's turn, until the buckets are handed over.
        let slice =
            |v: &SharedVector| unsafe { std::slice::from_raw_parts_mut(v.address(), v.len()) };
        let (params, grad) = (slice(&vectors.params), slice(&vectors.grad));
        let (computed, computed_grad) = gradient_at(&mut *source, step, params);
        own.copy_from_slice(&computed_grad);
        grad.copy_from_slice(&computed_grad);
        if !is_read {
            grad.fill(f32::NAN);
        }
        for bucket in 0..setup.layout.buckets.len() {
            handle.bucket(bucket).expect("it runs");
        }
        handle.gradient(computed).expect("it runs");
        let Ok(Some(LoopTurn::Optimize(mode))) = handle.wait(MOMENT) else {
            panic!("step {step}: not the turn for the optimizer")
        };
        if is_read {
            own.copy_from_slice(grad);
        }
        for ((x, displacement), g) in params.iter_mut().zip(grad).zip(&own) {
            if mode != Mode::Apply {
                *displacement = 0.1 * g;
            }
            if mode != Mode::Displace {
                *x -= 0.1 * g;
            }
        }
        handle.optimized().expect("it runs");
    }
    assert_eq!(handle.wait(MOMENT), Ok(Some(LoopTurn::Gradient(run.steps))));
    handle.finish().expect("it runs");
}

fn from_outside(run: &Run) -> Outcome {
    let (loops, handles): (Vec<_>, Vec<_>) = (0..run.workers).map(|_| ExternalLoop::new()).unzip();
    let gradients = Gradients::External(Box::new(move |rank| loops[rank].clone()));
    // The loops know when they are done; nobody else does.
    let setup = quelea_core::run_spec::RunSpec { steps: 1 << 40, ..run.setup() };
    std::thread::scope(|scope| {
        for (rank, handle) in handles.iter().enumerate() {
            let source = run.problem().source(rank);
            scope.spawn(move || train(run, handle, source));
        }
        quelea_net::threads(&setup, &gradients, &NetOptions::default(), &mut Watch::new())
            .expect("it ends")
    })
}

#[test]
fn an_outer_loop_with_its_own_optimizer_gives_the_same_bits() {
    let mut tried = 0;
    for entry in ALGORITHMS {
        let properties = (entry.properties)(&Options::defaults(entry.meta.options));
        if !properties.synchronous || properties.optimizer == OptimizerSite::Servers {
            continue;
        }
        for workers in [1, 4] {
            let run = Run::of(entry.meta.name, workers);
            let inside = run.threads().expect("threads");
            assert_eq!(bits(&from_outside(&run)), bits(&inside), "{} × {workers}", entry.meta.name);
        }
        tried += 1;
    }
    assert!(tried > 10, "only {tried} rows were tried");
}

#[test]
fn asynchronous_rows_take_outer_loops_of_any_length() {
    for name in ["ad-psgd", "aladdin", "easgd"] {
        let outcome = from_outside(&Run::of(name, 3));
        assert!(outcome.ranks[..3].iter().all(|rank| rank.steps == 20), "{name}");
    }
}

#[test]
fn memory_that_is_held_outlives_the_run() {
    let run = Run::of("allreduce", 1).steps(2);
    let (outer, handle) = ExternalLoop::new();
    let gradients = Gradients::External(Box::new(move |_| outer.clone()));
    let setup = quelea_core::run_spec::RunSpec { steps: 1 << 40, ..run.setup() };
    let (vectors, params) = std::thread::scope(|scope| {
        let looping = scope.spawn(|| {
            assert_eq!(handle.wait(MOMENT), Ok(Some(LoopTurn::Gradient(0))));
            let vectors = handle.vectors().expect("lent");
            // SAFETY: it is this loop's turn.
            unsafe { *vectors.params.address() = 7.0 };
            handle.finish().expect("it runs");
            vectors
        });
        let outcome =
            quelea_net::threads(&setup, &gradients, &NetOptions::default(), &mut Watch::new());
        let vectors = looping.join().expect("it ended well");
        (vectors, outcome.expect("it ended").ranks[0].params.clone())
    });
    drop((gradients, handle));
    // SAFETY: the memory is held.
    assert_eq!((params[0], unsafe { *vectors.params.address() }), (7.0, 7.0));
}

fn assemblies(name: &str, world: u32) -> Vec<Launched> {
    let path = std::env::temp_dir().join(format!("quelea-test-{}-{name}", std::process::id()));
    let launched = |rank| Launched {
        rank,
        world,
        rendezvous: Rendezvous::LocalFile(path.clone()),
        local_rank: None,
        local_size: None,
        launcher: "a test",
    };
    (0..world).map(launched).collect()
}

fn call(what: &str) -> GroupCall<'_> {
    GroupCall { what, limit: Duration::from_secs(60), participants: Participants::All }
}

fn joined(all: Vec<Given>) -> Result<Vec<u8>, String> {
    Ok(all.into_iter().flat_map(|given| given.bytes).collect())
}

fn at_all<T: Send>(name: &str, world: u32, work: impl Fn(u32, ProcessGroup) -> T + Sync) -> Vec<T> {
    let (launches, work) = (assemblies(name, world), &work);
    std::thread::scope(|scope| {
        let spawn = |launched: &Launched| {
            let launched = launched.clone();
            scope.spawn(move || {
                let process_group =
                    ProcessGroup::open(&launched, &Security::Automatic, 20.0, &mut || true)
                        .expect("all come");
                work(launched.rank, process_group)
            })
        };
        let threads: Vec<_> = launches.iter().map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("it ended well")).collect()
    })
}

#[test]
fn everybody_gets_what_the_hub_makes_of_all() {
    let answers = at_all("all", 4, |rank, mut process_group| {
        process_group.together(call("a test"), vec![rank as u8; 2], joined, &mut || true)
    });
    assert_eq!(answers, vec![Ok(vec![0, 0, 1, 1, 2, 2, 3, 3]); 4]);
}

#[test]
fn a_refusal_a_wrong_call_and_a_lost_process_are_heard_by_all() {
    let refused = at_all("refused", 3, |_, mut process_group| {
        process_group.together(call("a test"), vec![], |_| Err("no".into()), &mut || true)
    });
    assert_eq!(refused, vec![Err(ProcessGroupError::Refused("no".into())); 3]);
    let wrong = at_all("wrong", 2, |rank, mut process_group| {
        let what = if rank == 0 { "this" } else { "that" };
        process_group.together(call(what), vec![], |_| Ok(vec![]), &mut || true)
    });
    for answer in wrong {
        let text = answer.expect_err("refused").to_string();
        assert!(text.contains("rank 0 is at this, but rank 1 at that"), "{text}");
    }
    let lost = at_all("lost", 3, |rank, mut process_group| {
        if rank == 1 {
            return None;
        }
        Some(process_group.together(call("a test"), vec![], |_| Ok(vec![]), &mut || true))
    });
    for answer in lost.into_iter().flatten() {
        let text = answer.expect_err("somebody is gone").to_string();
        assert!(text.contains("rank 1 is gone"), "{text}");
    }
}

#[test]
fn smaller_groups_are_groups_of_their_own() {
    let answers = at_all("smaller", 6, |rank, mut process_group| {
        // Ranks 0, 2, 4 and ranks 5, 3; rank 1 is alone.
        let members =
            [&[0, 2, 4][..], &[1], &[0, 2, 4], &[5, 3], &[0, 2, 4], &[5, 3]][rank as usize];
        let security = Security::Automatic;
        let mut part = process_group
            .subgroup(call("a part"), members, &security, &mut || true)
            .expect("all of the part come");
        let join = |all: Vec<Given>| Ok(all.into_iter().flat_map(|given| given.bytes).collect());
        part.together(call("a test"), vec![rank as u8], join, &mut || true)
    });
    let expected = [&[0, 2, 4][..], &[1], &[0, 2, 4], &[5, 3], &[0, 2, 4], &[5, 3]];
    let expected: Vec<_> = expected.iter().map(|ranks| Ok(ranks.to_vec())).collect();
    assert_eq!(answers, expected);
}

#[test]
fn smaller_groups_that_do_not_fit_together_are_refused_at_all_ranks() {
    let answers = at_all("unfit", 2, |rank, mut process_group| {
        let members = if rank == 0 { vec![0, 1] } else { vec![1] };
        let part =
            process_group.subgroup(call("a part"), &members, &Security::Automatic, &mut || true);
        part.expect_err("refused").to_string()
    });
    for text in answers {
        assert!(text.contains("rank 0 has named the group [0, 1], but rank 1"), "{text}");
    }
}

#[test]
fn a_process_that_does_not_come_is_named() {
    let launched = assemblies("alone", 3).swap_remove(0);
    let error = ProcessGroup::open(&launched, &Security::Automatic, 0.1, &mut || true)
        .expect_err("nobody comes");
    assert!(error.to_string().contains("rank 1, rank 2 did not come"), "{error}");
}

/// Rank 2 of three goes after the first call; another comes in its place once the hub knows of a run, and makes
/// calls from its first step on.
#[test]
fn calls_of_a_run_continue_without_a_lost_process_and_with_the_one_in_its_place() {
    let launches = assemblies("late", 3);
    let security = Security::Automatic;
    let open = |rank: usize| ProcessGroup::open(&launches[rank], &security, 20.0, &mut || true);
    let at = |step| GroupCall { participants: Participants::Living { step }, ..call("a call") };
    let (gone, has_gone) = std::sync::mpsc::channel::<()>();
    let (open, at) = (&open, &at);
    std::thread::scope(|scope| {
        let first = scope.spawn(move || {
            let mut hub = open(0).expect("all come");
            let mut give = |step| hub.together(at(step), vec![0], joined, &mut || true);
            let mut answers = vec![give(0)];
            has_gone.recv().expect_err("rank 2 drops its end");
            let members = hub.members().clone();
            // The run says so while the hub waits for it.
            let losing = scope.spawn(move || members.lose(2));
            let mut give = |step| hub.together(at(step), vec![0], joined, &mut || true);
            answers.push(give(1));
            // Not after another has come in its place.
            losing.join().expect("no panic");
            hub.members().begin_run(RunUnderWay { port: 9 });
            let mut late = open(2).expect("it comes late");
            assert_eq!(late.joinable(), Some(RunUnderWay { port: 9 }));
            hub.members().enter(2, 2);
            let mut give = |step| hub.together(at(step), vec![0], joined, &mut || true);
            answers.push(give(2));
            let calling = scope.spawn(move || late.together(at(3), vec![2], joined, &mut || true));
            answers.push(give(3));
            assert_eq!(calling.join().expect("no panic"), Ok(vec![0, 1, 2]));
            hub.members().lose(2);
            let all = hub.together(call("wrap()"), vec![0], joined, &mut || true);
            (answers, all.expect_err("one is missing").to_string())
        });
        let second = scope.spawn(move || {
            let mut group = open(1).expect("all come");
            let mut give = |step| group.together(at(step), vec![1], joined, &mut || true);
            let answers: Vec<_> = (0..4).map(&mut give).collect();
            let all = group.together(call("wrap()"), vec![1], joined, &mut || true);
            (answers, all.expect_err("one is missing").to_string())
        });
        scope.spawn(move || {
            let mut group = open(2).expect("all come");
            let all = group.together(at(0), vec![2], joined, &mut || true);
            assert_eq!(all, Ok(vec![0, 1, 2]));
            drop((group, gone));
        });
        let answers = [vec![0, 1, 2], vec![0, 1], vec![0, 1], vec![0, 1, 2]].map(Ok).to_vec();
        let told = "rank 2 was lost, and wrap() needs all processes".to_string();
        assert_eq!(first.join().expect("no panic"), (answers.clone(), told.clone()));
        assert_eq!(second.join().expect("no panic"), (answers, told));
    });
}
