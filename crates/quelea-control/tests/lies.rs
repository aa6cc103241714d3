//! Ranks that lie about others and about themselves, in virtual time: whom the controller believes.

mod common;

use common::run_spec;
use quelea_control::{
    Command, ControlLimits, Controller, ControllerConfig, LossPolicy, RankEvent, RunFailure,
    SilenceLimits,
};
use quelea_core::message::Rank;
use quelea_core::run_spec::DataAssignment;
use quelea_core::time::Time;
use quelea_core::view::View;
use quelea_record::{
    CheckpointSchedule, Models, Observer, RankCheckpoint, Record, RecordKind, Request, ResumePoint,
};

const STEPS: u64 = 1000;
const WORKERS: u32 = 5;
const ALL: [u32; WORKERS as usize] = [0, 1, 2, 3, 4];
const CONTINUE: LossPolicy = LossPolicy::Continue { min_workers: 1 };
const LIMITS: ControlLimits = ControlLimits {
    peer_seconds: 30.0,
    silence: SilenceLimits { floor_seconds: 1.5, ceiling_seconds: 30.0 },
    drain_seconds: 30.0,
    ..ControlLimits::NONE
};

/// Remembers who was lost and which checkpoints came; requests what a test wants.
#[derive(Default)]
struct Notes {
    lost: Vec<u32>,
    saved: Vec<(u64, u32)>,
    evaluated: Vec<u64>,
    request: Option<Request>,
    schedule: CheckpointSchedule,
    data: DataAssignment,
}

impl Observer for Notes {
    fn record(&mut self, record: Record) {
        if matches!(record.event, RecordKind::Lost) {
            self.lost.push(record.rank);
        }
    }

    fn checkpoint(&mut self, _now: Time, step: u64, rank: Rank, _part: RankCheckpoint) {
        self.saved.push((step, rank.0));
    }

    fn evaluate(&mut self, _now: Time, step: u64, _models: Models) {
        self.evaluated.push(step);
    }

    fn request(&mut self) -> Request {
        self.request.take().unwrap_or(Request::Continue)
    }
}

/// A controller in virtual time. Ranks of `heard` show that they are alive and take a step each second.
struct Bench {
    controller: Controller,
    notes: Notes,
    now: Time,
    step: u64,
    said: Vec<Command>,
}

impl Bench {
    fn new(on_loss: LossPolicy, own_ranks: &[u32]) -> Bench {
        let mut bench = Bench::of("allreduce", on_loss, own_ranks, Notes::default());
        bench.pass(5.0, &ALL).expect("nothing happens");
        bench
    }

    fn of(algorithm: &str, on_loss: LossPolicy, own_ranks: &[u32], notes: Notes) -> Bench {
        let view = View::first(WORKERS as usize, 0, [0, 1, 2, 3, 4].into(), None);
        let (mut setup, start) = (run_spec(algorithm, view, STEPS), ResumePoint::default());
        setup.data = notes.data;
        let config = ControllerConfig {
            setup: &setup,
            start: &start,
            schedule: notes.schedule,
            limits: LIMITS,
            on_loss,
            watches: true,
            waits_for_disk: false,
            own_ranks,
            is_external: false,
        };
        let controller = Controller::new(config, Time::ZERO);
        Bench { controller, notes, now: Time::ZERO, step: 0, said: Vec::new() }
    }

    fn pass(&mut self, seconds: f64, heard: &[u32]) -> Result<(), RunFailure> {
        for tenth in 0..(seconds * 10.0).round() as u32 {
            self.now = self.now + Time::from_ms(100.0);
            for rank in heard.iter().filter(|_| tenth % 2 == 0) {
                self.controller.alive(self.now, *rank);
            }
            if tenth % 10 == 0 {
                let step = self.step;
                heard.iter().for_each(|rank| self.say(step_record(*rank, step)));
                self.step += 1;
            }
            self.controller.caught_up(self.now);
            self.controller.poll(self.now, &mut self.notes)?;
            self.answer(heard);
        }
        Ok(())
    }

    fn say(&mut self, event: RankEvent) {
        self.controller.handle(self.now, event, &mut self.notes);
    }

    /// Honest ranks say where they stand when they are asked to stop for a new view.
    fn answer(&mut self, heard: &[u32]) {
        let orders: Vec<_> = self.controller.take_orders().collect();
        for order in orders {
            if let Command::Freeze(number) = order.command {
                let step = self.step;
                heard
                    .iter()
                    .for_each(|rank| self.say(RankEvent::Frozen { rank: *rank, number, step }));
            }
            self.said.push(order.command);
        }
    }

    fn accuse(&mut self, rank: u32, peer: u32) {
        self.say(RankEvent::Lost { rank, peer, reason: "the connection was closed".into() });
    }
}

fn step_record(rank: u32, step: u64) -> RankEvent {
    let event =
        RecordKind::Step { loss: 0.0, samples: 1, compute: 0.1, exposed: 0.0, waiting: 0.0 };
    RankEvent::Record(Record { t: 0.0, rank, step, event })
}

#[test]
fn a_lone_accuser_of_a_rank_that_is_heard_is_the_one_who_goes() {
    let mut bench = Bench::new(CONTINUE, &[]);
    bench.accuse(2, 3);
    bench.pass(1.9, &ALL).expect("a second witness is waited for");
    assert_eq!(bench.notes.lost, []);
    bench.pass(2.0, &ALL).expect("the others continue");
    assert_eq!(bench.notes.lost, [2]);
}

#[test]
fn two_witnesses_are_believed_at_once_and_so_is_a_rank_of_the_controllers_process() {
    for (own, accusers) in [(&[][..], &[1, 2][..]), (&[0][..], &[0][..])] {
        let mut bench = Bench::new(CONTINUE, own);
        accusers.iter().for_each(|accuser| bench.accuse(*accuser, 3));
        bench.pass(0.7, &ALL).expect("the others continue");
        assert_eq!(bench.notes.lost, [3], "{accusers:?}");
    }
}

#[test]
fn whoever_accuses_several_is_at_every_end_of_it() {
    let mut bench = Bench::new(CONTINUE, &[]);
    [1, 3, 4].into_iter().for_each(|peer| bench.accuse(2, peer));
    bench.pass(5.0, &ALL).expect("the others continue");
    assert_eq!(bench.notes.lost, [2]);
    // Its word does not count later.
    bench.accuse(0, 3);
    bench.pass(5.0, &ALL).expect("the others continue");
    assert_eq!(bench.notes.lost, [2, 0]);
}

#[test]
fn whoever_wrongs_one_rank_after_the_other_is_found_out_by_the_second() {
    let mut bench = Bench::new(CONTINUE, &[]);
    bench.accuse(1, 3);
    bench.pass(5.0, &ALL).expect("the others continue");
    assert_eq!(bench.notes.lost, [1], "one word against another");
    bench.accuse(4, 3);
    bench.pass(1.0, &ALL).expect("the others continue");
    assert_eq!(bench.notes.lost, [1, 3]);
}

#[test]
fn an_accused_rank_that_is_not_heard_is_judged_by_its_silence() {
    let mut bench = Bench::new(CONTINUE, &[]);
    bench.accuse(2, 3);
    bench.pass(10.0, &[0, 1, 2, 4]).expect("the others continue");
    assert_eq!(bench.notes.lost, [3]);
}

#[test]
fn ranks_of_the_controllers_process_are_not_lost_by_what_others_say() {
    let mut bench = Bench::new(CONTINUE, &[0]);
    [2, 3].into_iter().for_each(|accuser| bench.accuse(accuser, 0));
    bench.pass(10.0, &ALL).expect("the others continue");
    assert!(
        !bench.notes.lost.contains(&0) && bench.notes.lost.contains(&2),
        "{:?}",
        bench.notes.lost
    );
}

#[test]
fn where_a_loss_ends_the_run_the_sentence_says_who_sees_what() {
    let mut bench = Bench::new(LossPolicy::Stop, &[]);
    bench.accuse(2, 3);
    let ended = bench.pass(60.0, &ALL).expect_err("it ends").to_string();
    let expected = "lost rank 3: the connection was closed (seen by rank 2 only; the coordinator \
                    hears rank 3)";
    assert_eq!(ended, expected);
}

#[test]
fn a_rank_that_complains_while_it_moves_is_not_heard() {
    let mut bench = Bench::new(LossPolicy::Stop, &[]);
    for _ in 0..40 {
        bench.say(RankEvent::Stalled { rank: 2, complaint: "it waited 30 s for rank 1".into() });
        bench.pass(1.0, &ALL).expect("nobody waits");
    }
}

#[test]
fn a_rank_that_waits_alone_is_lost_and_the_others_continue() {
    let mut bench = Bench::new(CONTINUE, &[]);
    let others = [0, 1, 3, 4];
    for _ in 0..25 {
        let heartbeat = RankEvent::Heartbeat {
            rank: 2,
            computing: false,
            waiting: true,
            gathering: false,
            sent: 0,
            received: 0,
        };
        bench.say(heartbeat);
        bench.controller.alive(bench.now, 2);
        bench.say(RankEvent::Stalled { rank: 2, complaint: "it waited 30 s for rank 1".into() });
        bench.pass(1.0, &others).expect("the others continue");
        if bench.notes.lost.is_empty() {
            bench.controller.alive(bench.now, 2);
        }
    }
    assert_eq!(bench.notes.lost, [2]);
}

#[test]
fn a_step_that_nobody_can_be_at_decides_neither_a_cut_nor_a_view() {
    // A cut: the liar proposes a step that the run has, but that nobody is near.
    let mut bench = Bench::new(CONTINUE, &[]);
    bench.notes.request = Some(Request::Checkpoint);
    bench.pass(0.2, &ALL).expect("a checkpoint is requested");
    let step = bench.step + 1;
    let claims = ALL.map(|rank| (rank, if rank == 2 { STEPS - 1 } else { step }));
    for (rank, step) in claims {
        bench.say(RankEvent::CutProposal { rank, step });
    }
    bench.pass(20.0, &ALL).expect("the others continue");
    assert_eq!(bench.notes.lost, [2]);
    let agreed = |said: &Command| matches!(said, Command::SaveAt { step, .. } if *step > 100);
    assert!(!bench.said.iter().any(agreed), "{:?}", bench.said);

    // A view: rank 4 is lost, and rank 2 says that it stands at the end.
    let mut bench = Bench::new(CONTINUE, &[]);
    bench.controller.gone(bench.now, 4, "the connection was closed".into());
    bench.controller.poll(bench.now, &mut bench.notes).expect("the others continue");
    bench.say(RankEvent::Frozen { rank: 2, number: 1, step: STEPS });
    bench.pass(20.0, &[0, 1, 2, 3]).expect("the others continue");
    assert_eq!(bench.notes.lost, [4, 2]);
    let last = bench.said.iter().rev().find_map(|said| match said {
        Command::View(change) => Some(change.from_step),
        _ => None,
    });
    assert!(last.is_some_and(|step| step < 60), "{last:?}");
}

#[test]
fn parts_of_a_checkpoint_count_once_per_rank_and_only_where_they_are_due() {
    let schedule = CheckpointSchedule { save_every: 100, evaluations: 10, steps: STEPS };
    let notes = Notes { schedule, ..Notes::default() };
    let mut bench = Bench::of("allreduce", CONTINUE, &[], notes);
    bench.pass(5.0, &ALL).expect("nothing happens");
    let saved = |rank: u32, step: u64| {
        let part = Box::new(RankCheckpoint::default());
        RankEvent::Saved { rank, step, view: 0, part }
    };
    for step in [100, 100, 100, 7, 8, 9] {
        bench.say(saved(2, step));
    }
    assert_eq!(bench.notes.saved, [(100, 2)], "once, and not at steps of its own choice");
    // Models of steps to come push out nobody else's.
    let model = |rank: u32, step: u64| RankEvent::Model { rank, step, model: vec![0.0; 3] };
    assert!(schedule.evaluates_at(100));
    for rank in [0, 1, 3, 4] {
        bench.say(model(rank, 100));
    }
    (1..=10).rev().for_each(|tenth| bench.say(model(2, tenth * 100)));
    assert_eq!(bench.notes.evaluated, [100]);
}

#[test]
fn a_rank_that_pauses_again_and_again_pauses_once() {
    let mut bench = Bench::of("ad-psgd", CONTINUE, &ALL, Notes::default());
    bench.notes.request = Some(Request::Checkpoint);
    bench.pass(0.2, &ALL).expect("a checkpoint is requested");
    assert!(bench.said.contains(&Command::Pause), "{:?}", bench.said);
    (0..10).for_each(|_| bench.say(RankEvent::Paused { rank: 2 }));
    bench.pass(0.2, &ALL).expect("the others compute");
    assert!(!bench.said.contains(&Command::Drain));
    [0, 1, 3, 4].into_iter().for_each(|rank| bench.say(RankEvent::Paused { rank }));
    bench.pass(0.2, &ALL).expect("all have paused");
    assert!(bench.said.contains(&Command::Drain));
}

#[test]
fn a_gradient_that_was_not_granted_is_no_gradient() {
    let mut bench = Bench::of("ad-psgd", LossPolicy::Stop, &[0, 1, 3, 4], Notes::default());
    bench.say(RankEvent::Ticket { rank: 2, number: 1, urgent: true });
    bench.say(step_record(2, 0));
    bench.pass(1.0, &[0, 1, 3, 4]).expect("one was granted");
    bench.say(step_record(2, 1));
    let ended = bench.pass(60.0, &[0, 1, 3, 4]).expect_err("the second was not").to_string();
    assert_eq!(ended, "lost rank 2: it reported a gradient that it was not granted");
}

#[test]
fn data_that_were_handed_to_another_cannot_be_confirmed() {
    let notes = Notes { data: DataAssignment::Shared, ..Notes::default() };
    let mut bench = Bench::of("ad-psgd", CONTINUE, &[0], notes);
    for rank in [1, 2] {
        bench.say(RankEvent::Ticket { rank, number: 1, urgent: true });
    }
    bench.pass(0.1, &[]).expect("both are handed one");
    let units: Vec<_> =
        bench.said.iter().filter(|said| matches!(said, Command::Unit { .. })).collect();
    let unit = |unit| Command::Unit { done: 0, unit, settled: 0 };
    assert_eq!(units, [&unit(0), &unit(1)]);
    // Twice the same changes nothing; another's costs the place.
    bench.say(RankEvent::Confirmed { rank: 2, unit: 1 });
    bench.say(RankEvent::Confirmed { rank: 2, unit: 1 });
    bench.pass(1.0, &[]).expect("it was handed this one");
    assert_eq!(bench.notes.lost, []);
    bench.say(RankEvent::Confirmed { rank: 2, unit: 0 });
    bench.pass(1.0, &[]).expect("the others continue");
    assert_eq!(bench.notes.lost, [2]);
}
