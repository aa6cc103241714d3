// long: a test double with its tests
//! A worker with the credentials of its seat that keeps to the protocol and lies: every lie is refused or
//! contained, and the honest ranks finish.
//!
//! The liar is a real worker. What its rank says to the coordinator, and what it sends to other ranks, passes
//! through functions that change it. It is rank 2 of four on a ring, so that its neighbours are two ranks of
//! other processes; rank 0 lives with the coordinator.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::io;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use quelea_control::LossPolicy;
use quelea_control::RankEvent;
use quelea_core::message::{Message, Part};
use quelea_core::node::Loan;
use quelea_core::options::Value;
use quelea_core::payload::Pool;
use quelea_core::poison::PoisonPolicy;
use quelea_core::problems::{Computed, GradientSource, Problem};
use quelea_core::properties::DeployedFrom;
use quelea_core::time::Time;
use quelea_core::view::View;
use quelea_record::{ModelSlices, Observer, Outcome, RankReport, Record, RecordKind, Request};

use super::*;
use crate::rendezvous::{Coordinator, Hosted};
use crate::transport::{AttachContext, Attached, Link, LinkError, RankEndpoint};
use crate::trust::{RunSecret, Security};
use common::{Run, bits};

const LIAR: u32 = 2;
const WORKERS: u32 = 4;
/// The liar's first lie is about this step.
const FROM: u64 = 5;
/// Honest ranks wait before this step until the liar is gone, where it is to go.
const GATE: u64 = 9;

type ChangeEvent = Box<dyn FnMut(RankEvent) -> Vec<RankEvent> + Send>;
type ChangeMessage = Arc<dyn Fn(Message) -> Vec<Message> + Send + Sync>;

/// What the liar changes.
struct Lies {
    events: Mutex<Option<ChangeEvent>>,
    messages: ChangeMessage,
}

impl Lies {
    /// Lies to the coordinator.
    fn told(events: impl FnMut(RankEvent) -> Vec<RankEvent> + Send + 'static) -> Lies {
        let messages: ChangeMessage = Arc::new(|message| vec![message]);
        Lies { events: Mutex::new(Some(Box::new(events))), messages }
    }

    /// Says `lie` once, after the record of a step, and the truth besides.
    fn said_once(lie: impl Fn() -> Vec<RankEvent> + Send + 'static) -> Lies {
        let mut has_lied = false;
        Lies::told(move |event| {
            let is_time = step_of(&event) == Some(FROM) && !std::mem::replace(&mut has_lied, true);
            let lies = if is_time { lie() } else { Vec::new() };
            std::iter::once(event).chain(lies).collect()
        })
    }

    /// Lies to other ranks.
    fn sent(messages: impl Fn(Message) -> Vec<Message> + Send + Sync + 'static) -> Lies {
        Lies { messages: Arc::new(messages), ..Lies::told(|event| vec![event]) }
    }
}

/// The step that a record says to be complete.
fn step_of(event: &RankEvent) -> Option<u64> {
    match event {
        RankEvent::Record(Record { step, event: RecordKind::Step { .. }, .. }) => Some(*step),
        _ => None,
    }
}

impl Relay for Lies {
    fn links(&self, links: Vec<RankLinks>) -> Vec<RankLinks> {
        let lying = |mut links: RankLinks| {
            let wrap = |inner| {
                let messages = Arc::clone(&self.messages);
                Box::new(LyingEndpoint { inner, messages }) as Box<dyn RankEndpoint>
            };
            links.endpoints = links.endpoints.into_iter().map(wrap).collect();
            links
        };
        links.into_iter().map(lying).collect()
    }

    fn events(&self, incoming: Receiver<Incoming>) -> Receiver<Incoming> {
        let (changed, events) = channel();
        let mut change = self.events.lock().expect("no panic").take().expect("one run each");
        std::thread::spawn(move || {
            for word in incoming {
                let words = match word {
                    Incoming::Event(event) => {
                        change(event).into_iter().map(Incoming::Event).collect()
                    }
                    other => vec![other],
                };
                if words.into_iter().any(|word| changed.send(word).is_err()) {
                    return;
                }
            }
        });
        events
    }
}

/// Ways to other ranks on which messages are changed.
struct LyingEndpoint {
    inner: Box<dyn RankEndpoint>,
    messages: ChangeMessage,
}

impl std::fmt::Debug for LyingEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl RankEndpoint for LyingEndpoint {
    fn attach(self: Box<Self>, context: &AttachContext<'_>) -> io::Result<Attached> {
        let mut attached = self.inner.attach(context)?;
        for (_, link) in &mut attached.links {
            let (inner, messages) = (Rc::clone(link), Arc::clone(&self.messages));
            *link = Rc::new(LyingLink { inner, messages });
        }
        Ok(attached)
    }

    fn socket(&self, peer: Rank) -> Option<&TcpStream> {
        self.inner.socket(peer)
    }
}

struct LyingLink {
    inner: Rc<dyn Link>,
    messages: ChangeMessage,
}

impl std::fmt::Debug for LyingLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl Link for LyingLink {
    fn push(&self, sent_micros: u32, message: Message) {
        for message in (self.messages)(message) {
            self.inner.push(sent_micros, message);
        }
    }

    fn flush(&self) -> Result<(), LinkError> {
        self.inner.flush()
    }
}

/// Opens once somebody was lost.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().expect("no panic") = true;
        self.opened.notify_all();
    }

    /// A liar that stays fails the test, and does not keep it for ever.
    fn wait(&self) {
        let is_open = self.is_open.lock().expect("no panic");
        let limit = Duration::from_secs(40);
        drop(self.opened.wait_timeout_while(is_open, limit, |is_open| !*is_open));
    }
}

/// A source whose gradients wait at the gate.
struct GatedSource {
    inner: Box<dyn GradientSource>,
    gate: Option<Arc<Gate>>,
}

impl GradientSource for GatedSource {
    fn gradient(&mut self, loan: &mut Loan, ready: &mut dyn FnMut(usize)) -> Computed {
        if loan.step() >= GATE
            && let Some(gate) = &self.gate
        {
            gate.wait();
        }
        self.inner.gradient(loan, ready)
    }

    fn operations(&self) -> u64 {
        // Not on the rank's own thread.
        1 << 40
    }
}

/// Keeps records, opens the gate when somebody is lost, and requests a checkpoint once if it is to.
struct Keeper {
    records: Vec<Record>,
    gate: Arc<Gate>,
    request: Option<Request>,
    done: u64,
}

impl Observer for Keeper {
    fn record(&mut self, record: Record) {
        if matches!(record.event, RecordKind::Lost) {
            self.gate.open();
        }
        self.records.push(record);
    }

    fn progress(&mut self, done: u64, _total: u64, _now: Time) {
        self.done = done;
    }

    fn request(&mut self) -> Request {
        if self.done < u64::from(WORKERS) * 3 {
            return Request::Continue;
        }
        self.request.take().unwrap_or(Request::Continue)
    }
}

/// A run in which rank 2 lies.
struct LyingRun {
    run: Run,
    poison: PoisonPolicy,
    request: Option<Request>,
    /// Whether honest ranks wait until somebody was lost.
    is_gated: bool,
    /// Options of the algorithm that are not its defaults.
    options: Vec<(&'static str, Value)>,
}

impl LyingRun {
    fn of(algorithm: &str) -> LyingRun {
        let run = Run::of(algorithm, WORKERS as usize).steps(30);
        let poison = PoisonPolicy::Ignore;
        LyingRun { run, poison, request: None, is_gated: true, options: Vec::new() }
    }

    fn option(mut self, name: &'static str, value: Value) -> LyingRun {
        self.options.push((name, value));
        self
    }

    /// Ranks 0 and 1 are on one host, 2 and 3 on another.
    fn setup(&self) -> RunSpec {
        let mut setup = RunSpec { poison: self.poison, ..self.run.setup() };
        for (name, value) in &self.options {
            setup.options = setup.options.with(name, value.clone());
        }
        if self.options.iter().any(|(name, _)| *name == "collective") {
            let hosts: Vec<u32> = (0..WORKERS).map(|rank| rank / 2).collect();
            setup.view = Arc::new(View::first(WORKERS as usize, 0, hosts.into(), None));
        }
        setup
    }

    /// What it comes to: all processes but that of rank 0 are threads, over TLS.
    fn with(self, lies: Lies) -> (Outcome, Vec<Record>) {
        let secret = RunSecret::random().expect("random numbers");
        let options = NetOptions { security: Security::Secret(secret), ..NetOptions::default() };
        let on_loss = LossPolicy::Continue { min_workers: 1 };
        let here = NetOptions { on_loss, drain_seconds: 2.0, ..options.clone() };
        let coordinator = Coordinator::bind("127.0.0.1:0", here).expect("a free port");
        let address = coordinator.address().to_string();
        let gate = Arc::<Gate>::default();
        let (setup, problem) = (self.setup(), self.run.problem());
        let problem: Arc<dyn Problem> = Arc::new(problem);
        let gradients = || {
            let (problem, gate) = (Arc::clone(&problem), self.is_gated.then(|| Arc::clone(&gate)));
            Gradients::Sources(Box::new(move |rank| {
                // The liar computes as everybody, and waits for nobody.
                let gate = gate.clone().filter(|_| rank as u32 != LIAR);
                Box::new(GatedSource { inner: problem.source(rank), gate })
            }))
        };
        let mut keeper =
            Keeper { records: Vec::new(), gate: Arc::clone(&gate), request: self.request, done: 0 };
        let outcome = std::thread::scope(|scope| {
            for rank in 1..WORKERS {
                let build = |setup: &RunSpec, gradients: Gradients| Ok((setup.clone(), gradients));
                let (address, options, setup, lies) = (&address, &options, &setup, &lies);
                let gradients = gradients();
                scope.spawn(move || {
                    let relay: &dyn Relay = if rank == LIAR { lies } else { &Direct };
                    let mut gradients = Some(gradients);
                    join_through(
                        address,
                        SeatWish::Rank(rank),
                        options,
                        &mut |_| build(setup, gradients.take().expect("asked once")),
                        Around { relay, heir: None },
                    )
                });
            }
            let hosted = Hosted { workers: vec![0] };
            coordinator.run(self.run.job(), &setup, &gradients(), &hosted, &mut keeper)
        });
        (outcome.expect("honest ranks finish"), keeper.records)
    }
}

fn lost(outcome: &Outcome) -> Vec<u32> {
    outcome.ranks.iter().filter(|rank| rank.lost).map(|rank| rank.rank).collect()
}

/// The liar, and nobody else, is taken for lost, with a warning that has `reason` in it; all others have
/// taken all their steps.
fn assert_expelled(outcome: &Outcome, reason: &str) {
    assert_eq!(lost(outcome), [LIAR], "{:?}", outcome.warnings);
    for rank in outcome.ranks.iter().filter(|rank| !rank.lost && !rank.is_server) {
        assert_eq!(rank.steps, 30, "rank {}", rank.rank);
        assert!(rank.params.iter().all(|value| value.is_finite()), "rank {}", rank.rank);
    }
    let named = |text: &String| text.starts_with("lost rank 2: ") && text.contains(reason);
    let has_failed = |text: &String| text.starts_with("rank 2 failed: ") && text.contains(reason);
    let warnings = &outcome.warnings;
    assert!(warnings.iter().any(|text| named(text) || has_failed(text)), "{reason}: {warnings:?}");
}

fn event(event: impl Fn() -> RankEvent + Send + 'static) -> Lies {
    Lies::said_once(move || vec![event()])
}

fn step_record(rank: u32, step: u64) -> RankEvent {
    let event =
        RecordKind::Step { loss: 0.0, samples: 1, compute: 0.0, exposed: 0.0, waiting: 0.0 };
    RankEvent::Record(Record { t: 0.0, rank, step, event })
}

fn accusation(peer: u32) -> RankEvent {
    RankEvent::Lost { rank: LIAR, peer, reason: "the connection was closed".into() }
}

#[test]
fn whoever_accuses_an_innocent_rank_is_the_one_who_goes() {
    let (outcome, _) = LyingRun::of("d-psgd").with(event(|| accusation(3)));
    assert_expelled(&outcome, "it says that it has lost rank 3 (the connection was closed)");
}

#[test]
fn whoever_accuses_all_others_is_the_one_who_goes() {
    let lies = Lies::said_once(|| vec![accusation(0), accusation(1), accusation(3)]);
    let (outcome, _) = LyingRun::of("d-psgd").with(lies);
    assert_expelled(&outcome, "it says that it has lost rank");
}

#[test]
fn whoever_says_that_an_innocent_rank_sent_nan_is_the_one_who_goes() {
    let lie = || RankEvent::Poisoned { rank: LIAR, peer: 1, reason: "rank 1 sent NaN".into() };
    let trial = LyingRun { poison: PoisonPolicy::Drop, ..LyingRun::of("d-psgd") };
    let (outcome, _) = trial.with(event(lie));
    assert_expelled(&outcome, "it says that it has lost rank 1 (rank 1 sent NaN)");
}

#[test]
fn impossible_steps_records_reports_and_cuts_cost_the_liar_its_place() {
    let report = || {
        let (params, model) = (vec![0.0; 37], vec![0.0; 37]);
        RankEvent::Report(Box::new(RankReport { rank: LIAR, params, model, ..Default::default() }))
    };
    let heartbeat = || RankEvent::Heartbeat {
        rank: LIAR,
        computing: false,
        waiting: false,
        gathering: false,
        sent: u64::MAX,
        received: 0,
    };
    let lies: [(Lies, &str); 8] = [
        (event(|| step_record(LIAR, 1 << 40)), "it sent a record of step 1099511627776 of 31"),
        (
            Lies::said_once(|| (0..100).map(|_| step_record(LIAR, 6)).collect()),
            "it reported more than 30 steps",
        ),
        (event(|| step_record(3, 6)), "it sent an event of rank 3"),
        (event(report), "it sent its report before the end"),
        (event(heartbeat), "it claims `sent` = 18446744073709551615"),
        (
            event(|| RankEvent::CutProposal { rank: LIAR, step: 32 }),
            "a proposal for a cut of step 32",
        ),
        (event(|| RankEvent::Frozen { rank: LIAR, number: 1, step: u64::MAX }), "its step of step"),
        (
            event(|| RankEvent::Failed { rank: LIAR, reason: "no \u{1b}[31mmemory".into() }),
            "no \\u{1b}[31mmemory",
        ),
    ];
    for (lie, reason) in lies {
        let (outcome, _) = LyingRun::of("d-psgd").with(lie);
        assert_expelled(&outcome, reason);
    }
}

#[test]
fn lies_that_change_nothing_are_left_without_an_answer() {
    let trial = || LyingRun { is_gated: false, ..LyingRun::of("d-psgd") };
    let expected = bits(&trial().run.threads().expect("threads"));
    let model = || RankEvent::Model { rank: LIAR, step: 7, model: vec![9.0; 37] };
    let stalled = || RankEvent::Stalled { rank: LIAR, complaint: "rank 1 is too slow".into() };
    let salvaged = || RankEvent::Salvaged { rank: LIAR, step: 7, model: vec![9.0; 37] };
    let ticket = || RankEvent::Ticket { rank: LIAR, number: u64::MAX, urgent: true };
    let probed = || RankEvent::Probed {
        rank: LIAR,
        probe: u64::MAX,
        drained: true,
        sent: 1 << 40,
        received: 1 << 41,
    };
    let frozen = || RankEvent::Frozen { rank: LIAR, number: 9, step: 7 };
    let lies = Lies::said_once(move || {
        let once = [
            model(),
            stalled(),
            salvaged(),
            ticket(),
            probed(),
            frozen(),
            RankEvent::Paused { rank: LIAR },
        ];
        let warnings = (0..1000).map(|n| RankEvent::Warning(format!("\u{1b}[2J{n}")));
        once.into_iter().chain(warnings).collect()
    });
    let (outcome, records) = trial().with(lies);
    assert_eq!((lost(&outcome), bits(&outcome)), (vec![], expected));
    assert!(outcome.warnings.len() <= 51, "{}", outcome.warnings.len());
    let shown = |text: &String| !text.chars().any(char::is_control);
    assert!(outcome.warnings.iter().all(shown), "{:?}", outcome.warnings);
    assert!(!records.iter().any(|record| matches!(record.event, RecordKind::Evaluation { .. })));
}

#[test]
fn a_report_says_nothing_about_who_somebody_is_or_when_the_run_ended() {
    let lies = Lies::told(|event| match event {
        RankEvent::Report(report) => {
            let claims = RankReport { is_server: true, lost: true, left: true, ..*report };
            vec![RankEvent::Report(Box::new(claims))]
        }
        RankEvent::Finished { rank, .. } => vec![RankEvent::Finished { rank, at: Time(u64::MAX) }],
        event => vec![event],
    });
    let trial = LyingRun { is_gated: false, ..LyingRun::of("sync-ps") };
    let expected = trial.run.threads().expect("threads");
    let (outcome, _) = trial.with(lies);
    let roles = |outcome: &Outcome| -> Vec<[bool; 3]> {
        outcome.ranks.iter().map(|rank| [rank.is_server, rank.lost, rank.left]).collect()
    };
    assert_eq!((roles(&outcome), bits(&outcome)), (roles(&expected), bits(&expected)));
    assert!(outcome.clock_seconds < 1000.0, "{}", outcome.clock_seconds);
}

#[test]
fn a_report_that_is_poisoned_is_left_out_of_the_final_model_and_named() {
    for algorithm in ["allreduce", "d-psgd"] {
        let lies = Lies::told(|event| match event {
            RankEvent::Report(mut report) => {
                report.model[3] = f32::NAN;
                vec![RankEvent::Report(report)]
            }
            event => vec![event],
        });
        let of = LyingRun::of(algorithm);
        let trial = LyingRun { poison: PoisonPolicy::Stop, is_gated: false, ..of };
        let (outcome, _) = trial.with(lies);
        let models = ModelSlices::of(&outcome);
        assert_eq!(models.workers.len(), WORKERS as usize - 1);
        let deployed = models.deployed(DeployedFrom::Workers);
        assert!(deployed.iter().all(|value| value.is_finite()), "{deployed:?}");
        let told = "the model of rank 2 is left out of the final one: its element 3 is NaN";
        assert!(outcome.warnings.iter().any(|text| text == told), "{:?}", outcome.warnings);
    }
}

#[test]
fn whoever_counts_messages_that_nobody_has_received_does_not_keep_the_run_from_its_end() {
    let lies = Lies::told(|event| match event {
        RankEvent::Probed { rank, probe, drained, sent, received } => {
            vec![RankEvent::Probed { rank, probe, drained, sent: sent + 7, received }]
        }
        RankEvent::Account { rank, mut account } => {
            account.sent[1] += 7;
            vec![RankEvent::Account { rank, account }]
        }
        event => vec![event],
    });
    let (outcome, _) = LyingRun { is_gated: false, ..LyingRun::of("d-psgd") }.with(lies);
    assert_expelled(&outcome, "rank 2 could not reach rank 1: 7 messages did not arrive");
}

/// Lies from a step on.
fn from_step(lie: impl Fn(Message) -> Vec<Message> + Send + Sync + 'static) -> Lies {
    Lies::sent(move |message| if message.step < FROM { vec![message] } else { lie(message) })
}

/// Changes every message from that step on.
fn changed(change: impl Fn(&mut Message) + Send + Sync + 'static) -> Lies {
    from_step(move |mut message| {
        change(&mut message);
        vec![message]
    })
}

#[test]
fn messages_of_other_views_buckets_lengths_and_steps_cost_the_liar_its_place() {
    let short = Pool::new().copy(&[1.0]);
    let lies: [(Lies, &str); 5] = [
        (changed(|message| message.view = 9), "it is of view 9"),
        (changed(|message| message.bucket = 9999), "there is no bucket 9999"),
        (
            changed(move |message| message.parts = [Part::Values(short.clone()), Part::Empty]),
            "it sent a message that could not be taken",
        ),
        (
            changed(|message| message.parts = Default::default()),
            "it sent a message that could not be taken",
        ),
        (
            // Frames without vectors, which cost their sender next to nothing.
            from_step(|message| {
                let flood =
                    (0..40_000).map(|n| Message::new(message.kind, message.step + 2 + n, 0));
                std::iter::once(message.clone()).chain(flood).collect()
            }),
            "it sent a message that could not be taken",
        ),
    ];
    for (lie, reason) in lies {
        let (outcome, _) = LyingRun::of("d-psgd").with(lie);
        assert_expelled(&outcome, reason);
    }
}

/// As [`assert_expelled`], but the rank that got the lies may be gone too: where it is one alone, its word stands
/// against the liar's, and the second complaint counts.
fn assert_contained(outcome: &Outcome, reason: &str) {
    let lost = lost(outcome);
    assert!(lost.contains(&LIAR) && lost.len() <= 2, "{reason}: {:?}", outcome.warnings);
    for rank in outcome.ranks.iter().filter(|rank| !rank.lost && !rank.is_server) {
        assert_eq!(rank.steps, 30, "rank {}", rank.rank);
        assert!(rank.params.iter().all(|value| value.is_finite()), "rank {}", rank.rank);
    }
    let warnings = &outcome.warnings;
    // The rank that refuses a message closes the connection: the liar may be the first to complain of that.
    let complains = "which the coordinator hears and nobody else has lost";
    let is_named = |text: &String| {
        text.starts_with("lost rank 2: ") && (text.contains(reason) || text.contains(complains))
    };
    assert!(warnings.iter().any(is_named), "{reason}: {warnings:?}");
    let has_failed = |text: &String| text.contains("panicked");
    assert!(!warnings.iter().any(has_failed), "an honest rank failed: {warnings:?}");
}

/// Lies in the messages of collectives and to servers, and what is said of each.
fn lies_of_content() -> Vec<(Lies, &'static str)> {
    let vector = |values: &[f32]| {
        let values = Pool::new().copy(values);
        changed(move |message| message.parts = [Part::Values(values.clone()), Part::Empty])
    };
    let refused = "it sent a message that could not be taken: its vectors of bucket ";
    vec![
        (vector(&[1.0]), refused),
        (vector(&[]), refused),
        (vector(&[2.0; 37]), refused),
        (changed(|message| message.parts = Default::default()), refused),
        (changed(|message| message.view = 9), "it is of view 9"),
        (changed(|message| message.bucket = 9999), "there is no bucket 9999"),
    ]
}

#[test]
fn whoever_lies_in_a_collective_or_to_a_server_is_the_one_who_goes() {
    let runs: [fn() -> LyingRun; 6] = [
        || all_reduce_by("ring"),
        || all_reduce_by("halving-doubling"),
        || all_reduce_by("hierarchical"),
        || all_reduce_by("auto"),
        || LyingRun::of("local-sgd").option("period", Value::Number(2.0)),
        || LyingRun::of("sync-ps"),
    ];
    // Beside each other: where one rank's word stands against another's, two seconds pass.
    std::thread::scope(|scope| {
        for run in runs {
            scope.spawn(move || {
                for (lie, reason) in lies_of_content() {
                    let (outcome, _) = run().with(lie);
                    assert_contained(&outcome, reason);
                }
            });
        }
    });
}

fn all_reduce_by(collective: &str) -> LyingRun {
    let run = LyingRun::of("allreduce"); // names: default
    run.option("collective", Value::Text(collective.to_string()))
}

#[test]
fn whoever_sends_what_is_not_its_to_send_in_a_collective_is_the_one_who_goes() {
    let refused = "it sent a message that could not be taken: ";
    for name in ["ring", "halving-doubling", "hierarchical"] {
        let lies: [(Lies, &str); 2] = [
            (changed(|message| message.stage += 77), "no message of stage"),
            (changed(|message| message.seq = 7), "sum 7 of part"),
        ];
        for (lie, reason) in lies {
            let (outcome, _) = all_reduce_by(name).with(lie);
            assert_contained(&outcome, &format!("{refused}{reason}"));
        }
    }
}

#[test]
fn a_false_model_of_a_replica_is_left_out_of_the_final_one_and_named() {
    let lies = Lies::told(|event| match event {
        RankEvent::Report(mut report) => {
            // Far from absurd, and far from the truth.
            report.model[3] = 1e17;
            vec![RankEvent::Report(report)]
        }
        event => vec![event],
    });
    let trial = LyingRun { is_gated: false, ..LyingRun::of("allreduce") };
    let expected = trial.run.threads().expect("threads");
    let expected = ModelSlices::of(&expected).deployed(DeployedFrom::Workers);
    let (outcome, _) = trial.with(lies);
    let models = ModelSlices::of(&outcome);
    assert_eq!(models.workers.len(), WORKERS as usize - 1);
    assert_eq!(models.deployed(DeployedFrom::Workers), expected);
    let named = "the model of rank 2 is left out of the final one: its element 3 is 1e17";
    let warnings = &outcome.warnings;
    assert!(warnings.iter().any(|text| text.starts_with(named)), "{warnings:?}");
}
