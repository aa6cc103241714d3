//! Which ranks the controller takes for lost because they are silent, and which it does not.

mod common;

use common::run_spec;
use quelea_control::{
    Command, ComputeLimits, ControlLimits, Controller, ControllerConfig, LossPolicy, RankEvent,
    RunFailure, SilenceLimits,
};
use quelea_core::run_spec::RunSpec;
use quelea_core::time::Time;
use quelea_core::view::View;
use quelea_record::{CheckpointSchedule, Observer, Record, RecordKind, ResumePoint};

const WORKERS: u32 = 3;
const LIMITS: ControlLimits = ControlLimits {
    peer_seconds: 30.0,
    silence: SilenceLimits { floor_seconds: 1.5, ceiling_seconds: 30.0 },
    compute: ComputeLimits { factor: 20.0, floor_seconds: 60.0, ceiling_seconds: 3600.0 },
    report_models: false,
    ..ControlLimits::NONE
};
const CONTINUE: LossPolicy = LossPolicy::Continue { min_workers: 1 };

/// All-reduce among three workers.
fn setup() -> RunSpec {
    run_spec("allreduce", View::first(WORKERS as usize, 0, [0, 1, 2].into(), None), 1000)
}

/// Remembers who was lost, and when.
#[derive(Default)]
struct Losses(Vec<(u32, f64)>);

impl Observer for Losses {
    fn record(&mut self, record: Record) {
        if matches!(record.event, RecordKind::Lost) {
            self.0.push((record.rank, record.t));
        }
    }
}

/// A controller in virtual time, whose ranks say what a test lets them say.
struct Bench {
    controller: Controller,
    losses: Losses,
    now: Time,
}

impl Bench {
    fn new(on_loss: LossPolicy) -> Bench {
        let (setup, start) = (setup(), ResumePoint::default());
        let config = ControllerConfig {
            setup: &setup,
            start: &start,
            schedule: CheckpointSchedule::default(),
            limits: LIMITS,
            on_loss,
            watches: true,
            waits_for_disk: true,
            own_ranks: &[],
            is_external: false,
        };
        let controller = Controller::new(config, Time::ZERO);
        Bench { controller, losses: Losses::default(), now: Time::ZERO }
    }

    /// Lets time pass in steps of 100 ms. Every rank of `alive` shows every 200 ms that its process
    /// is; every rank of `talking` says every second what it does.
    fn pass(&mut self, seconds: f64, alive: &[u32], talking: &[u32]) -> Result<(), RunFailure> {
        for tenth in 0..(seconds * 10.0).round() as u32 {
            self.now = self.now + Time::from_ms(100.0);
            for rank in alive.iter().filter(|_| tenth % 2 == 0) {
                self.controller.alive(self.now, *rank);
            }
            for rank in talking.iter().filter(|_| tenth % 10 == 0) {
                self.say(RankEvent::Heartbeat {
                    rank: *rank,
                    computing: false,
                    waiting: false,
                    gathering: false,
                    sent: 0,
                    received: 0,
                });
            }
            self.controller.caught_up(self.now);
            self.controller.poll(self.now, &mut self.losses)?;
            self.answer();
        }
        Ok(())
    }

    fn say(&mut self, event: RankEvent) {
        self.controller.handle(self.now, event, &mut self.losses);
    }

    /// Survivors answer when they are asked to stop for a new view.
    fn answer(&mut self) {
        let orders: Vec<_> = self.controller.take_orders().collect();
        for number in orders.iter().filter_map(|order| match order.command {
            Command::Freeze(number) => Some(number),
            _ => None,
        }) {
            (0..WORKERS).for_each(|rank| self.say(RankEvent::Frozen { rank, number, step: 1 }));
        }
    }
}

const ALL: [u32; 3] = [0, 1, 2];

#[test]
fn a_silent_process_is_lost_within_two_seconds_and_the_others_continue() {
    let mut bench = Bench::new(CONTINUE);
    bench.pass(20.0, &ALL, &ALL).expect("nothing happens");
    bench.pass(10.0, &[0, 1], &[0, 1]).expect("they continue");
    let [(rank, at)] = bench.losses.0[..] else { panic!("{:?}", bench.losses.0) };
    assert_eq!(rank, 2);
    assert!((21.3..22.0).contains(&at), "{at} s: heard last at about 19.9 s");
    assert_eq!(bench.controller.view().workers.len(), 2);
}

#[test]
fn where_nobody_can_continue_without_it_a_process_may_be_silent_until_the_ceiling() {
    for on_loss in [LossPolicy::Stop, LossPolicy::Continue { min_workers: 3 }] {
        let mut bench = Bench::new(on_loss);
        bench.pass(20.0, &ALL, &ALL).expect("nothing happens");
        bench.pass(28.0, &[0, 1], &[0, 1]).expect("it may come back");
        let text = bench.pass(5.0, &[0, 1], &[0, 1]).expect_err("too long").to_string();
        assert!(text.starts_with("lost rank 2: it has been silent for 3"), "{text}");
    }
}

#[test]
fn a_process_that_comes_back_before_the_ceiling_is_heard_again_where_it_is_needed() {
    let mut bench = Bench::new(LossPolicy::Stop);
    bench.pass(20.0, &ALL, &ALL).expect("nothing happens");
    bench.pass(25.0, &[0, 1], &[0, 1]).expect("it may come back");
    bench.pass(60.0, &ALL, &ALL).expect("it has come back");
}

#[test]
fn computing_for_a_long_time_is_not_silence() {
    let mut bench = Bench::new(CONTINUE);
    bench.pass(5.0, &ALL, &ALL).expect("nothing happens");
    // The thread of rank 2 computes for ten minutes; its process shows that it is alive.
    bench.say(RankEvent::Alive { rank: 2, computing: true });
    bench.pass(600.0, &ALL, &[0, 1]).expect("it is waited for");
    assert_eq!(bench.losses.0, []);
}

#[test]
fn a_thread_that_says_nothing_and_does_not_compute_is_lost_although_its_process_is_alive() {
    let mut bench = Bench::new(CONTINUE);
    bench.pass(5.0, &ALL, &ALL).expect("nothing happens");
    bench.pass(40.0, &ALL, &[0, 1]).expect("the others continue");
    assert_eq!(bench.losses.0.len(), 1);
    assert_eq!(bench.losses.0[0].0, 2);
}

#[test]
fn a_gradient_may_take_a_multiple_of_the_longest_before_and_the_sentence_names_both() {
    let mut bench = Bench::new(LossPolicy::Stop);
    for step in 0..10 {
        let event = RecordKind::Step {
            loss: 1.0,
            samples: 1,
            compute: if step == 4 { 5.0 } else { 0.5 },
            exposed: 0.0,
            waiting: 0.0,
        };
        bench.say(RankEvent::Record(Record { t: 0.0, rank: 2, step, event }));
    }
    bench.say(RankEvent::Alive { rank: 2, computing: true });
    // Twenty times five seconds, and as long again as anybody may be late.
    bench.pass(129.0, &ALL, &[0, 1]).expect("it is waited for");
    let text = bench.pass(5.0, &ALL, &[0, 1]).expect_err("too long").to_string();
    let expected =
        "s for rank 2: its gradient (limit 100.0 s; its longest gradient before took 5.0 s)";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn what_was_said_while_the_controller_was_busy_counts_from_when_it_arrived() {
    let mut bench = Bench::new(CONTINUE);
    bench.pass(20.0, &ALL, &ALL).expect("nothing happens");
    // The controller evaluates a model for ten seconds; heartbeats arrive meanwhile and wait to be heard.
    let began = bench.now;
    bench.now = bench.now + Time::from_seconds(10.0);
    bench
        .controller
        .poll(bench.now, &mut bench.losses)
        .expect("it does not judge what it has not heard");
    for tenth in (0..100).step_by(2) {
        for rank in ALL {
            bench.controller.alive(began + Time::from_ms(f64::from(tenth) * 100.0), rank);
            bench.controller.poll(bench.now, &mut bench.losses).expect("nor in the middle");
        }
    }
    bench.pass(20.0, &ALL, &ALL).expect("all are alive");
    assert_eq!(bench.losses.0, []);
}

#[test]
fn an_observer_that_stood_still_suspects_nobody() {
    let mut bench = Bench::new(CONTINUE);
    bench.pass(20.0, &ALL, &ALL).expect("nothing happens");
    let still = Time::from_seconds(40.0);
    bench.now = bench.now + still;
    bench.controller.excuse(bench.now, still);
    bench.controller.caught_up(bench.now);
    bench.pass(20.0, &ALL, &ALL).expect("all are alive");
    assert_eq!(bench.losses.0, []);
    bench.pass(10.0, &[1, 2], &[1, 2]).expect("the others continue");
    assert_eq!(bench.losses.0.len(), 1, "and it still notices a silence");
}
