//! Checkpoints that are requested while ranks come to steps at which their models are evaluated.

mod common;

use std::sync::Arc;

use common::{Requests, run_spec};
use quelea_control::{
    Command, ControlLimits, Controller, ControllerConfig, GradientTime, LossPolicy, RankEvent,
    RankMachine, RankMachineConfig,
};
use quelea_core::message::Rank;
use quelea_core::payload::Pool;
use quelea_core::problems::Computed;
use quelea_core::run_spec::RunSpec;
use quelea_core::time::Time;
use quelea_core::view::View;
use quelea_record::{CheckpointSchedule, Request, ResumePoint};

const STEPS: u64 = 4;
const LIMITS: ControlLimits =
    ControlLimits { peer_seconds: 30.0, drain_seconds: 30.0, ..ControlLimits::NONE };

/// All-reduce among one worker: its steps are complete as soon as their gradients are.
fn alone() -> RunSpec {
    run_spec("allreduce", View::first(1, 0, [0].into(), None), STEPS)
}

fn machine(schedule: CheckpointSchedule) -> RankMachine {
    let (setup, start) = (Arc::new(alone()), ResumePoint::default());
    let config = RankMachineConfig {
        setup: &setup,
        start: &start,
        view: &setup.view,
        schedule,
        poison: Default::default(),
        limits: LIMITS,
        timeline: false,
        is_external: false,
        asks_ahead: false,
        waits_for_disk: false,
        counts_links: false,
    };
    let mut machine =
        RankMachine::new(config, Rank(0), Pool::new(), Time::ZERO).expect("a new run");
    machine.start(Time::ZERO);
    machine
}

/// Completes the gradient that is being computed; whether the next one has begun.
fn complete_gradient(machine: &mut RankMachine) -> bool {
    machine.bucket(Time::ZERO, 0);
    machine.gradient(Time::ZERO, Computed::default(), GradientTime::default());
    machine.take_effects().for_each(drop);
    machine.advance(Time::ZERO).is_some()
}

#[test]
fn a_step_whose_model_was_evaluated_is_saved_if_it_is_agreed_on_afterwards() {
    let schedule = CheckpointSchedule { save_every: 0, evaluations: 2, steps: STEPS };
    assert!(schedule.evaluates_at(2) && !schedule.saves_at(2), "only evaluated");
    let mut machine = machine(schedule);
    assert!(machine.advance(Time::ZERO).is_some(), "the first gradient");
    assert!(complete_gradient(&mut machine), "the second gradient");
    machine.take_events().for_each(drop);

    // It computes the second gradient, so that the first step at which it can be saved is step 2.
    machine.command(Time::ZERO, Command::ProposeCut);
    assert!(!complete_gradient(&mut machine), "it stops where it has proposed to be saved");
    let said: Vec<RankEvent> = machine.take_events().collect();
    assert!(said.iter().any(|event| matches!(event, RankEvent::CutProposal { step: 2, .. })));
    assert!(said.iter().any(|event| matches!(event, RankEvent::Model { step: 2, .. })));

    machine.command(Time::ZERO, Command::SaveAt { step: 2, last: false });
    assert!(machine.advance(Time::ZERO).is_some(), "it continues once it is saved");
    let said: Vec<RankEvent> = machine.take_events().collect();
    let saved = said.iter().filter(|event| matches!(event, RankEvent::Saved { step: 2, .. }));
    let shown = said.iter().filter(|event| matches!(event, RankEvent::Model { .. }));
    assert_eq!((saved.count(), shown.count()), (1, 0), "saved once, and not evaluated again");
}

#[test]
fn a_checkpoint_that_does_not_come_about_ends_the_run_with_a_sentence() {
    let (setup, start) = (alone(), ResumePoint::default());
    let config = ControllerConfig {
        setup: &setup,
        start: &start,
        schedule: CheckpointSchedule::default(),
        limits: LIMITS,
        on_loss: LossPolicy::Stop,
        watches: true,
        waits_for_disk: true,
        own_ranks: &[],
        is_external: false,
    };
    let mut controller = Controller::new(config, Time::ZERO);
    let mut observer = Requests(Some(Request::Checkpoint));
    let failure = (1..1000).find_map(|second| {
        let now = Time::from_seconds(f64::from(second));
        for order in controller.take_orders().collect::<Vec<_>>() {
            // The rank agrees to every step, and never saves.
            if let Command::ProposeCut = order.command {
                let proposal = RankEvent::CutProposal { rank: 0, step: 2 };
                controller.handle(now, proposal, &mut observer);
            }
        }
        let heartbeat = RankEvent::Heartbeat {
            rank: 0,
            computing: false,
            waiting: false,
            gathering: false,
            sent: 0,
            received: 0,
        };
        controller.handle(now, heartbeat, &mut observer);
        controller.caught_up(now);
        controller.poll(now, &mut observer).err().map(|failure| (second, failure.to_string()))
    });
    let (second, text) = failure.expect("it does not wait for ever");
    assert!(text.contains("for all ranks: the checkpoint of step 2"), "{text}");
    assert!(second < 120, "{second} s");
}
