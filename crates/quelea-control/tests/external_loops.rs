//! Runs whose gradients are computed by loops outside: calls that these make together, and losses that end
//! the run.

mod common;

use common::{Requests, run_spec};
use quelea_control::{Command, ControlLimits, Controller, ControllerConfig, LossPolicy, RankEvent};
use quelea_core::message::Rank;
use quelea_core::payload::Pool;
use quelea_core::run_spec::RunSpec;
use quelea_core::time::Time;
use quelea_core::view::View;
use quelea_record::{CheckpointSchedule, Request, ResumePoint};

/// Two workers and a server, of which the controller's process has worker 0 and the server.
fn controller(setup: &RunSpec) -> Controller {
    let start = ResumePoint::default();
    let limits = ControlLimits { peer_seconds: 30.0, drain_seconds: 30.0, ..ControlLimits::NONE };
    let config = ControllerConfig {
        setup,
        start: &start,
        schedule: CheckpointSchedule::default(),
        limits,
        on_loss: LossPolicy::Continue { min_workers: 1 },
        watches: true,
        waits_for_disk: false,
        own_ranks: &[0, 2],
        is_external: true,
    };
    Controller::new(config, Time::ZERO)
}

fn asynchronous() -> RunSpec {
    run_spec("asp", View::first(2, 1, [0, 1, 2].into(), None), 1000)
}

fn heartbeat(rank: u32, gathering: bool) -> RankEvent {
    let (computing, waiting) = (!gathering, gathering);
    RankEvent::Heartbeat { rank, computing, waiting, gathering, sent: 0, received: 0 }
}

fn commands(controller: &mut Controller) -> Vec<Command> {
    controller.take_orders().map(|order| order.command).collect()
}

#[test]
fn a_run_does_not_stop_for_a_cut_while_a_loop_waits_for_the_others_outside_it() {
    let setup = asynchronous();
    let (mut controller, mut observer) = (controller(&setup), Requests(Some(Request::Checkpoint)));
    let at = Time::from_ms;
    controller.poll(at(1.0), &mut observer).expect("it pauses");
    assert!(commands(&mut controller).contains(&Command::Pause));
    // Worker 0 stops; worker 1 has come to the call before it heard of it.
    controller.handle(at(2.0), RankEvent::Paused { rank: 0 }, &mut observer);
    controller.handle(at(3.0), heartbeat(1, true), &mut observer);
    controller.poll(at(3.0), &mut observer).expect("it gives way");
    let said = commands(&mut controller);
    assert!(said.contains(&Command::Continue) && !said.contains(&Command::Pause), "{said:?}");
    controller.handle(at(4.0), heartbeat(0, true), &mut observer);
    controller.poll(at(4.0), &mut observer).expect("both are there");
    assert!(!commands(&mut controller).contains(&Command::Pause));
    for rank in 0..2 {
        controller.handle(at(5.0), heartbeat(rank, false), &mut observer);
    }
    controller.poll(at(5.0), &mut observer).expect("it pauses again");
    assert!(commands(&mut controller).contains(&Command::Pause));
}

#[test]
fn a_loop_in_the_controllers_process_takes_the_run_with_it_and_no_other_does() {
    let setup = asynchronous();
    let fail = |rank| {
        let (mut controller, mut observer) = (controller(&setup), Requests(None));
        let failed = RankEvent::Failed { rank, reason: "it raised".to_string() };
        controller.handle(Time::from_ms(1.0), failed, &mut observer);
        let ended = controller.poll(Time::from_ms(1.0), &mut observer);
        (ended.err().map(|failure| failure.to_string()), commands(&mut controller))
    };
    let told = fail(0).0.expect("it ends");
    assert!(told.contains("its process has the controller of the run"), "{told}");
    let (ended, said) = fail(1);
    assert!(ended.is_none() && said.contains(&Command::Freeze(1)), "{ended:?} {said:?}");
}

#[test]
fn a_node_made_from_a_saved_state_continues_in_the_memory_of_the_one_before() {
    let setup = run_spec("allreduce", View::first(1, 0, [0].into(), None), 10);
    let mut before = setup.node(Rank(0), Pool::new());
    before.start(Time::ZERO);
    let (params, grad) = before.lend().shared();
    before.cancel_gradient();
    // As a loop outside does at its turn: these parameters are part of the state.
    // SAFETY: nothing is lent, and the node is not in use.
    unsafe { *params.address() = 7.0 };
    let mut after = setup.node(Rank(0), Pool::new());
    after.load(&before.save()).expect("the state of the same run");
    after.take_over(before);
    assert_eq!(after.params(), [7.0, 2.0, 3.0]);
    after.start(Time::ZERO);
    let (params_after, grad_after) = after.lend().shared();
    let addresses = [&params, &grad, &params_after, &grad_after].map(|vector| vector.address());
    assert_eq!(addresses[..2], addresses[2..]);
}
