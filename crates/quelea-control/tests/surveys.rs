//! Surveys of a run: as often as the observer wants at the moment, which changes when somebody comes to look.

mod common;

use common::run_spec;
use quelea_control::{Command, ControlLimits, Controller, ControllerConfig, LossPolicy, RankEvent};
use quelea_core::time::Time;
use quelea_core::view::View;
use quelea_record::{CheckpointSchedule, Observer, Record, ResumePoint};

const LIMITS: ControlLimits =
    ControlLimits { peer_seconds: 300.0, drain_seconds: 300.0, ..ControlLimits::NONE };

/// Wants surveys this often.
struct Onlooker(Option<Time>);

impl Observer for Onlooker {
    fn record(&mut self, _record: Record) {}

    fn survey_interval(&self) -> Option<Time> {
        self.0
    }
}

/// Times at which ranks are asked between `first` and `end`, in tenths of a second.
fn asked(controller: &mut Controller, onlooker: &mut Onlooker, first: u32, end: u32) -> Vec<u32> {
    let mut times = Vec::new();
    for tenth in first..end {
        let now = Time::from_ms(100.0 * f64::from(tenth));
        let (sent, received) = (0, 0);
        let (computing, waiting, gathering) = (true, false, false);
        let heartbeat =
            RankEvent::Heartbeat { rank: 0, computing, waiting, gathering, sent, received };
        controller.handle(now, heartbeat, onlooker);
        controller.poll(now, onlooker).expect("nothing is wrong");
        let orders = controller.take_orders();
        let surveys = orders.filter(|order| matches!(order.command, Command::Survey { .. }));
        times.extend(surveys.map(|_| tenth));
        if let Some(interval) = onlooker.0 {
            assert!(controller.next_deadline() <= now + interval, "it would sleep too long");
        }
    }
    times
}

#[test]
fn ranks_are_asked_as_often_as_the_observer_wants_at_the_moment() {
    let setup = run_spec("allreduce", View::first(1, 0, [0].into(), None), 1000);
    let start = ResumePoint::default();
    let config = ControllerConfig {
        setup: &setup,
        start: &start,
        schedule: CheckpointSchedule::default(),
        limits: LIMITS,
        on_loss: LossPolicy::Stop,
        watches: true,
        waits_for_disk: false,
        own_ranks: &[],
        is_external: false,
    };
    let mut controller = Controller::new(config, Time::ZERO);
    let mut onlooker = Onlooker(None);
    assert!(asked(&mut controller, &mut onlooker, 0, 20).is_empty(), "nobody wants to know");
    onlooker.0 = Some(Time::from_seconds(5.0));
    assert_eq!(asked(&mut controller, &mut onlooker, 20, 140), [20, 70, 120]);
    // Somebody comes: at once, not when the long time is over.
    onlooker.0 = Some(Time::from_seconds(0.5));
    assert_eq!(asked(&mut controller, &mut onlooker, 140, 152), [140, 145, 150]);
    onlooker.0 = Some(Time::from_seconds(5.0));
    assert_eq!(asked(&mut controller, &mut onlooker, 152, 210), [200]);
}
