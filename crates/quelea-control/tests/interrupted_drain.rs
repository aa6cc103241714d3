//! A loss while a run comes to rest for a checkpoint.

mod common;

use common::{Requests, run_spec};
use quelea_control::{Command, ControlLimits, Controller, ControllerConfig, LossPolicy, RankEvent};
use quelea_core::run_spec::RunSpec;
use quelea_core::time::Time;
use quelea_core::view::View;
use quelea_record::{CheckpointSchedule, Request, ResumePoint};

/// An asynchronous run of two workers and a server.
fn setup() -> RunSpec {
    run_spec("asp", View::first(2, 1, [0, 1, 2].into(), None), 1000)
}

#[test]
fn answers_to_a_probe_that_a_loss_has_overtaken_do_not_end_the_run() {
    let (setup, start) = (setup(), ResumePoint::default());
    let limits = ControlLimits { peer_seconds: 30.0, drain_seconds: 30.0, ..ControlLimits::NONE };
    let config = ControllerConfig {
        setup: &setup,
        start: &start,
        schedule: CheckpointSchedule::default(),
        limits,
        on_loss: LossPolicy::Continue { min_workers: 1 },
        watches: true,
        waits_for_disk: false,
        own_ranks: &[],
        is_external: false,
    };
    let mut controller = Controller::new(config, Time::ZERO);
    let mut observer = Requests(Some(Request::Checkpoint));
    let at = Time::from_ms;
    controller.poll(at(1.0), &mut observer).expect("it pauses");
    for rank in 0..3 {
        controller.handle(at(2.0), RankEvent::Paused { rank }, &mut observer);
    }
    let probed =
        |rank, probe| RankEvent::Probed { rank, probe, drained: true, sent: 5, received: 5 };
    for rank in 0..3 {
        controller.handle(at(3.0), probed(rank, 1), &mut observer);
    }
    // The second round is under way when worker 1 is lost.
    controller.poll(at(100.0), &mut observer).expect("it probes again");
    controller.handle(at(101.0), probed(0, 2), &mut observer);
    controller.take_orders().for_each(drop);
    controller.gone(at(102.0), 1, "the connection was closed".to_string());
    controller.poll(at(102.0), &mut observer).expect("the others continue");
    controller.handle(at(103.0), probed(2, 2), &mut observer);
    controller.poll(at(104.0), &mut observer).expect("they continue");
    let orders: Vec<Command> = controller.take_orders().map(|order| order.command).collect();
    assert!(orders.contains(&Command::Freeze(1)), "{orders:?}");
    assert!(!orders.contains(&Command::Finish), "workers have steps to do: {orders:?}");
}
