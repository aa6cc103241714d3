//! A cluster without time: events happen in any order that a test asks for.
//!
//! A [`Lab`] holds the nodes of a run and the messages on their way. At every moment it lists the
//! possible [`Choice`]s (a gradient starts, a gradient ends, a message arrives); a test takes
//! them at random, or all of them in turn.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::sync::Arc;

use quelea_core::algorithms;
use quelea_core::codec;
use quelea_core::contract::{Effect, Fact};
use quelea_core::layout::Layout;
use quelea_core::message::{Message, Rank};
use quelea_core::node::{Loan, Node};
use quelea_core::optim;
use quelea_core::options::{Options, Value};
use quelea_core::payload::Pool;
use quelea_core::problems::quadratic::{Quadratic, QuadraticOptions};
use quelea_core::problems::{Computed, GradientSource, Problem};
use quelea_core::properties::Budget;
use quelea_core::random::Rng;
use quelea_core::run_spec::{CodecChoice, MakeTopology, RunSpec};
use quelea_core::state::{Digest, Visitor};
use quelea_core::time::Time;
use quelea_core::topology::{self, GroupExchange};
use quelea_core::view::View;

/// What a test runs.
#[derive(Clone)]
pub struct Case {
    pub algorithm: &'static str,
    pub params: Vec<(&'static str, Value)>,
    pub workers: usize,
    pub servers: usize,
    pub topology: &'static str,
    pub steps: u64,
    pub learning_rate: f64,
    /// What the learning rate is multiplied by at a step.
    pub schedule: fn(u64) -> f64,
    pub codec: &'static str,
    pub codec_params: Vec<(&'static str, Value)>,
    pub optimizer_name: &'static str,
    pub optimizer: Vec<(&'static str, Value)>,
    pub clip: Option<f32>,
    pub bucket_bytes: usize,
    pub curvature: Vec<Vec<f64>>,
    pub target: Vec<Vec<f64>>,
    pub start: Vec<f64>,
    pub noise_std: f64,
    pub seed: u64,
    /// On how many hosts the workers average exactly and gossip between; none: all gossip.
    pub hosts: Option<usize>,
    /// Where all gossip: workers on each host.
    pub per_host: usize,
    /// How groups of the topology exchange vectors.
    pub groups: GroupExchange,
}

impl Case {
    /// The reference problem: four workers, curvatures 1 to 4, optimum 1.05.
    pub fn reference(algorithm: &'static str) -> Case {
        Case {
            algorithm,
            params: Vec::new(),
            workers: 4,
            servers: 1,
            topology: "ring",
            steps: 100,
            learning_rate: 0.05,
            schedule: |_| 1.0,
            codec: "f32",
            codec_params: Vec::new(),
            optimizer_name: "sgd",
            optimizer: Vec::new(),
            clip: None,
            bucket_bytes: 0,
            curvature: vec![vec![1.0], vec![2.0], vec![3.0], vec![4.0]],
            target: vec![vec![1.0], vec![-2.0], vec![0.5], vec![3.0]],
            start: Vec::new(),
            noise_std: 0.0,
            seed: 1,
            hosts: None,
            per_host: 1,
            groups: GroupExchange::AllReduce,
        }
    }

    /// Several dimensions, all workers different, so that buckets and shards matter.
    pub fn wide(algorithm: &'static str, workers: usize, dimensions: usize) -> Case {
        let mut rng = Rng::new(9, "wide", 0);
        let mut rows = |low: f64, high: f64| -> Vec<Vec<f64>> {
            let mut row = || (0..dimensions).map(|_| low + (high - low) * rng.uniform()).collect();
            (0..workers).map(|_| row()).collect()
        };
        let (curvature, target) = (rows(0.5, 2.0), rows(-1.0, 1.0));
        Case { workers, curvature, target, bucket_bytes: 12, ..Case::reference(algorithm) }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<Setting>) -> Case {
        self.params.push((name, value.into().0));
        self
    }

    pub fn setup(&self) -> (RunSpec, Quadratic) {
        let entry = algorithms::find(self.algorithm).expect("in the table");
        let params =
            Options::check(entry.meta.options, named(&self.params)).expect("good parameters");
        (entry.check)(&params).expect("good together");
        let servers = if (entry.properties)(&params).servers { self.servers } else { 0 };
        let problem = Quadratic::new(&QuadraticOptions {
            workers: self.workers,
            dimensions: None,
            curvature: self.curvature.clone(),
            target: self.target.clone(),
            start: self.start.clone(),
            noise_std: self.noise_std,
            seed: self.seed,
        })
        .expect("a good problem");
        let (name, groups) = (self.topology, self.groups);
        let make: MakeTopology = Arc::new(move |hosts: &[u32]| {
            let entry = topology::find(name).expect("in the table");
            let params = Options::defaults(entry.meta.options);
            let request =
                topology::TopologyRequest { hosts, seed: 1, options: &params, text: None };
            // Some exist for certain numbers of workers only, and stay as they are after a loss.
            entry.build(&request).ok().map(|schedule| Arc::new(schedule.with_groups(groups)))
        });
        let ranks = 0..self.workers + servers;
        let hosts: Arc<[u32]> = ranks.map(|rank| (rank / self.per_host) as u32).collect();
        let view = match self.hosts {
            Some(count) => {
                let host = |worker| (worker * count / self.workers) as u32;
                let between = make(&(0..count as u32).collect::<Vec<u32>>());
                let hosts = (0..self.workers).map(host).collect();
                View::of_hosts(self.workers, hosts, between.expect("just made"))
            }
            None => {
                let schedule = make(&hosts[..self.workers]);
                View::first(self.workers, servers, hosts, schedule)
            }
        };
        let optimizer = optim::find(self.optimizer_name).expect("in the table");
        let optimizer_params = optimizer.params(named(&self.optimizer)).expect("good parameters");
        let codec = codec::find(self.codec).expect("in the table");
        let codec_params = Options::check(codec.meta.options, named(&self.codec_params));
        let (rate, factor) = (self.learning_rate, self.schedule);
        let setup = RunSpec {
            entry,
            options: params,
            codec: CodecChoice { entry: codec, options: codec_params.expect("good parameters") },
            layout: Arc::new(Layout::plain(problem.dimensions(), self.bucket_bytes)),
            initial: problem.initial().into(),
            optimizer: Arc::new(move |len| (optimizer.build)(&optimizer_params, len)),
            learning_rate: Arc::new(move |step| (rate * factor(step)) as f32),
            schedule_clock: Default::default(),
            clip: self.clip,
            samples: Arc::from([]),
            steps: self.steps,
            seed: self.seed,
            view: Arc::new(view),
            topology: Some(make),
            poison: Default::default(),
            data: Default::default(),
        };
        (setup, problem)
    }
}

fn named(given: &[(&'static str, Value)]) -> Vec<(String, Value)> {
    given.iter().map(|(name, value)| (name.to_string(), value.clone())).collect()
}

/// A value for [`Case::with`].
pub struct Setting(Value);

impl From<f64> for Setting {
    fn from(number: f64) -> Setting {
        Setting(Value::Number(number))
    }
}

impl From<bool> for Setting {
    fn from(flag: bool) -> Setting {
        Setting(Value::Flag(flag))
    }
}

impl From<&str> for Setting {
    fn from(text: &str) -> Setting {
        Setting(Value::Text(text.to_string()))
    }
}

/// Something that can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A worker starts computing.
    Start(usize),
    /// A worker's gradient is there.
    Finish(usize),
    /// The message at this place arrives.
    Deliver(usize),
}

/// A message on its way.
pub struct Flight {
    pub from: Rank,
    pub to: Rank,
    pub message: Message,
}

/// The cluster without time.
pub struct Lab {
    pub setup: RunSpec,
    pub nodes: Vec<Node>,
    pub flying: Vec<Flight>,
    pub pool: Pool,
    pub facts: Vec<(usize, Fact)>,
    /// Gradients that each worker has finished.
    pub gradients: Vec<u64>,
    /// Bytes of vectors sent, by rank.
    pub sent: Vec<u64>,
    alive: Vec<bool>,
    view: Arc<View>,
    sources: Vec<Box<dyn GradientSource>>,
    computing: Vec<Option<(Loan, Computed)>>,
    /// Gradients that may still start, where they are counted in all.
    budget: u64,
    /// Survivors may not start a gradient before they know of the new view.
    frozen: Vec<bool>,
    /// Views on their way to each rank, in order.
    pub views: Vec<Vec<Arc<View>>>,
}

impl Lab {
    pub fn new(case: &Case) -> Lab {
        Lab::with(case, |_| {})
    }

    /// As [`new`](Lab::new), with a setup that no case describes.
    pub fn with(case: &Case, change: impl FnOnce(&mut RunSpec)) -> Lab {
        Lab::build(case, change, &[])
    }

    /// Goes on from what [`saved`](Lab::saved) returned.
    pub fn resumed(case: &Case, saved: &[Saved]) -> Lab {
        Lab::build(case, |_| {}, saved)
    }

    fn build(case: &Case, change: impl FnOnce(&mut RunSpec), saved: &[Saved]) -> Lab {
        let (mut setup, problem) = case.setup();
        change(&mut setup);
        let pool = Pool::new();
        let ranks = setup.ranks();
        let nodes = (0..ranks).map(|rank| setup.node(Rank::from(rank), pool.clone())).collect();
        let budget = match setup.properties().budget {
            Budget::Rounds => u64::MAX,
            Budget::TotalGradients => case.steps * case.workers as u64,
        };
        let mut lab = Lab {
            nodes,
            flying: Vec::new(),
            pool,
            facts: Vec::new(),
            gradients: vec![0; ranks],
            sent: vec![0; ranks],
            alive: vec![true; ranks],
            view: Arc::clone(&setup.view),
            sources: (0..case.workers).map(|rank| problem.source(rank)).collect(),
            computing: (0..ranks).map(|_| None).collect(),
            budget,
            frozen: vec![false; ranks],
            views: vec![Vec::new(); ranks],
            setup,
        };
        for rank in 0..ranks {
            if let Some(saved) = saved.get(rank) {
                lab.nodes[rank].state(&mut Loader(saved.clone()));
            }
            lab.nodes[rank].start(Time::ZERO);
            lab.collect(rank);
        }
        lab
    }

    pub fn workers(&self) -> usize {
        self.sources.len()
    }

    pub fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for rank in (0..self.nodes.len()).filter(|rank| self.alive[*rank]) {
            if self.computing[rank].is_some() {
                choices.push(Choice::Finish(rank));
            } else if self.budget > 0 && !self.frozen[rank] && self.nodes[rank].wants_gradient() {
                choices.push(Choice::Start(rank));
            }
        }
        choices.extend((0..self.flying.len()).map(Choice::Deliver));
        choices
    }

    pub fn take(&mut self, choice: Choice) {
        match choice {
            Choice::Start(rank) => self.start(rank),
            Choice::Finish(rank) => self.finish(rank),
            Choice::Deliver(place) => {
                let flight = self.flying.remove(place);
                self.deliver(flight);
            }
        }
    }

    fn start(&mut self, rank: usize) {
        let mut loan = self.nodes[rank].lend().whole();
        let computed = self.sources[rank].gradient(&mut loan, &mut |_| {});
        self.computing[rank] = Some((loan, computed));
        if self.budget != u64::MAX {
            self.budget -= 1;
        }
    }

    fn finish(&mut self, rank: usize) {
        let (loan, computed) = self.computing[rank].take().expect("it is computing");
        let done = self.nodes[..self.sources.len()].iter().map(Node::step).sum();
        self.nodes.iter_mut().for_each(|node| node.progress(done));
        self.gradients[rank] += 1;
        let node = &mut self.nodes[rank];
        drop(loan);
        for b in 0..node.layout().buckets.len() {
            node.bucket(Time::ZERO, b);
        }
        node.gradient(Time::ZERO, computed);
        self.collect(rank);
    }

    pub fn deliver(&mut self, flight: Flight) {
        let to = flight.to.index();
        if self.alive[to] {
            self.nodes[to].message(Time::ZERO, flight.from, flight.message);
            self.collect(to);
        }
    }

    fn collect(&mut self, rank: usize) {
        let effects: Vec<Effect> = self.nodes[rank].take_effects().collect();
        for effect in effects {
            match effect {
                Effect::Send { to, message } => {
                    self.sent[rank] += message.payload_bytes() as u64;
                    self.flying.push(Flight { from: Rank::from(rank), to, message });
                }
                Effect::Measure(fact) => self.facts.push((rank, fact)),
                _ => {}
            }
        }
    }

    /// Takes choices at random until nothing can happen any more.
    pub fn run(&mut self, rng: &mut Rng) {
        self.run_while(rng, |_| true);
    }

    pub fn run_while(&mut self, rng: &mut Rng, mut go_on: impl FnMut(&Lab) -> bool) {
        while go_on(self) {
            let choices = self.choices();
            if choices.is_empty() {
                break;
            }
            self.take(choices[rng.below(choices.len() as u64) as usize]);
        }
    }

    /// Until every worker has done so many steps, and nobody one more: a cut between steps.
    pub fn run_until_step(&mut self, step: u64, rng: &mut Rng) {
        loop {
            let mut choices = self.choices();
            choices.retain(|choice| match choice {
                Choice::Start(rank) => self.nodes[*rank].step() < step,
                _ => true,
            });
            if choices.is_empty() {
                return;
            }
            self.take(choices[rng.below(choices.len() as u64) as usize]);
        }
    }

    /// At most so many events.
    pub fn some_events(&mut self, rng: &mut Rng, most: u64) {
        for _ in 0..rng.below(most) {
            let choices = self.choices();
            if !choices.is_empty() {
                self.take(choices[rng.below(choices.len() as u64) as usize]);
            }
        }
    }

    /// As [`run`](Lab::run), delivering about every fourth message twice.
    pub fn run_with_duplicates(&mut self, rng: &mut Rng) {
        loop {
            let choices = self.choices();
            if choices.is_empty() {
                return;
            }
            let choice = choices[rng.below(choices.len() as u64) as usize];
            if let (Choice::Deliver(place), 0) = (choice, rng.below(4)) {
                let Flight { from, to, message } = &self.flying[place];
                let copy = Flight { from: *from, to: *to, message: message.clone() };
                self.flying.push(copy);
            }
            self.take(choice);
        }
    }

    /// As [`run`](Lab::run), then drains; panics unless everybody is done and drained.
    pub fn run_to_end(&mut self, rng: &mut Rng) {
        self.run(rng);
        self.check_finished();
        self.drain();
        self.run(rng);
        for (rank, node) in self.nodes.iter().enumerate().filter(|(rank, _)| self.alive[*rank]) {
            assert!(node.is_drained(), "rank {rank} is not drained: {:?}", node.awaiting());
        }
    }

    /// Comes to rest, as for a checkpoint: gradients that were started are finished, no others begin,
    /// and everything that is on its way arrives, in any order.
    pub fn rest(&mut self, rng: &mut Rng) {
        for rank in 0..self.nodes.len() {
            if self.computing[rank].is_some() {
                self.finish(rank);
            }
        }
        self.drain();
        self.run(rng);
    }

    fn drain(&mut self) {
        for rank in 0..self.nodes.len() {
            if self.alive[rank] {
                self.nodes[rank].drain(Time::ZERO);
                self.collect(rank);
            }
        }
    }

    pub fn check_finished(&self) {
        let rounds = self.setup.properties().budget == Budget::Rounds;
        assert!(rounds || self.budget == 0, "{} gradients were never started", self.budget);
        for rank in self.living_workers().into_iter().filter(|_| rounds) {
            let node = &self.nodes[rank];
            let stuck = format!("rank {rank} at step {} awaits {:?}", node.step(), node.awaiting());
            assert!(node.has_finished_rounds(), "{stuck}");
        }
    }

    pub fn living_workers(&self) -> Vec<usize> {
        (0..self.workers()).filter(|rank| self.alive[*rank]).collect()
    }

    /// Kills a rank: what it sent may still arrive. The survivors stop before their next gradient.
    pub fn crash(&mut self, rank: usize) {
        self.alive[rank] = false;
        self.computing[rank] = None;
        let from_step = self.living_workers().iter().map(|r| self.nodes[*r].step()).max();
        let from_step = from_step.expect("somebody survives") + 2;
        let view = self.setup.view_without(&self.view, &[Rank::from(rank)], from_step);
        self.view = Arc::new(view);
        for survivor in (0..self.nodes.len()).filter(|survivor| self.alive[*survivor]) {
            self.frozen[survivor] = true;
            self.views[survivor].push(Arc::clone(&self.view));
        }
    }

    /// Tells a survivor the next view that it does not know.
    pub fn tell_view(&mut self, rank: usize) {
        if !self.alive[rank] || self.views[rank].is_empty() {
            return;
        }
        let view = self.views[rank].remove(0);
        self.frozen[rank] = !self.views[rank].is_empty();
        self.nodes[rank].change_view(Time::ZERO, view);
        self.collect(rank);
    }

    pub fn mean(&self) -> Vec<f64> {
        let living = self.living_workers();
        let mut mean = vec![0.0; self.nodes[living[0]].params().len()];
        for rank in &living {
            for (mean, x) in mean.iter_mut().zip(self.nodes[*rank].params()) {
                *mean += f64::from(*x) / living.len() as f64;
            }
        }
        mean
    }

    /// The state of every rank.
    pub fn saved(&mut self) -> Vec<Saved> {
        let save = |node: &mut Node| {
            let mut saved = Saved::default();
            node.state(&mut saved);
            saved
        };
        self.nodes.iter_mut().map(save).collect()
    }

    /// A named vector of a rank's state.
    pub fn vector(&mut self, rank: usize, name: &str) -> Vec<f32> {
        self.named(rank, name).1
    }

    /// A named number of a rank's state that is real.
    pub fn real(&mut self, rank: usize, name: &str) -> f64 {
        f64::from_bits(self.named(rank, name).0)
    }

    fn named(&mut self, rank: usize, name: &str) -> (u64, Vec<f32>) {
        let mut saved = Saved::default();
        self.nodes[rank].state(&mut saved);
        let found = saved.0.into_iter().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("rank {rank} has no `{name}`")).1
    }

    /// The sum over the living workers of a named vector.
    pub fn total(&mut self, name: &str) -> Vec<f64> {
        let vectors: Vec<Vec<f32>> =
            self.living_workers().iter().map(|rank| self.vector(*rank, name)).collect();
        (0..vectors[0].len()).map(|k| vectors.iter().map(|v| f64::from(v[k])).sum()).collect()
    }

    /// The servers' shards, with nothing pending.
    pub fn server_model(&self) -> Vec<f32> {
        self.nodes[self.workers()..].iter().flat_map(Node::model).collect()
    }

    /// Everything that decides what can still happen: counters, flags and what is on its way, but
    /// not the values of vectors, on which no algorithm's control depends.
    pub fn control_digest(&mut self) -> u64 {
        let mut control = Control::default();
        for node in &mut self.nodes {
            node.state(&mut control);
        }
        let mut digest = control.0;
        for computing in &self.computing {
            digest.flag("computing", &mut computing.is_some());
        }
        let mut flights: Vec<u64> = self.flying.iter().map(flight_digest).collect();
        flights.sort_unstable();
        flights.iter_mut().for_each(|flight| digest.number("flight", flight));
        digest.0
    }
}

/// Hashes numbers, and of vectors only that they are there.
#[derive(Default)]
struct Control(Digest);

impl Visitor for Control {
    fn number(&mut self, name: &str, value: &mut u64) {
        self.0.number(name, value);
    }

    fn vector(&mut self, _name: &str, _value: &mut Vec<f32>) {}
}

/// The named parts of a state, in order; a part is a number or a vector.
#[derive(Clone, Default)]
pub struct Saved(std::collections::VecDeque<(String, (u64, Vec<f32>))>);

impl Visitor for Saved {
    fn number(&mut self, name: &str, value: &mut u64) {
        self.0.push_back((name.to_string(), (*value, Vec::new())));
    }

    fn vector(&mut self, name: &str, value: &mut Vec<f32>) {
        self.0.push_back((name.to_string(), (0, value.clone())));
    }
}

/// Writes a saved state back.
struct Loader(Saved);

impl Loader {
    fn next(&mut self, name: &str) -> (u64, Vec<f32>) {
        let (known, part) = self.0.0.pop_front().expect("as many parts as were saved");
        assert_eq!(known, name, "parts come in the order in which they were saved");
        part
    }
}

impl Visitor for Loader {
    fn number(&mut self, name: &str, value: &mut u64) {
        *value = self.next(name).0;
    }

    fn vector(&mut self, name: &str, value: &mut Vec<f32>) {
        *value = self.next(name).1;
    }
}

fn flight_digest(flight: &Flight) -> u64 {
    let message = &flight.message;
    let header = [
        u64::from(flight.from.0),
        u64::from(flight.to.0),
        u64::from(message.kind),
        message.step,
        u64::from(message.bucket),
        message.seq,
    ];
    let mut digest = Digest::default();
    header.iter().for_each(|word| digest.bytes(&word.to_le_bytes()));
    digest.0
}

/// Loses two workers in any order of events; returns the survivors' end.
pub fn lose_two(case: &Case, seed: u64) -> Lab {
    let mut lab = Lab::new(case);
    let mut rng = Rng::new(seed, "loss", 0);
    let moment = 1 + rng.below(case.steps * 30);
    let mut events = 0;
    while events < moment && !lab.choices().is_empty() {
        let choices = lab.choices();
        lab.take(choices[rng.below(choices.len() as u64) as usize]);
        events += 1;
    }
    let workers = lab.workers() as u64;
    let first = rng.below(workers) as usize;
    lab.crash(first);
    // Some hear of it at once, some events pass, then the second is lost.
    for rank in 0..lab.nodes.len() {
        if rng.below(2) == 0 {
            lab.tell_view(rank);
        }
    }
    let pause = rng.below(20);
    for _ in 0..pause {
        let choices = lab.choices();
        if !choices.is_empty() {
            lab.take(choices[rng.below(choices.len() as u64) as usize]);
        }
    }
    let second = (first + 1 + rng.below(workers - 1) as usize) % workers as usize;
    lab.crash(second);
    let mut order: Vec<usize> = (0..lab.nodes.len()).collect();
    rng.shuffle(&mut order);
    for rank in order {
        lab.tell_view(rank);
        lab.tell_view(rank);
        let choices = lab.choices();
        if !choices.is_empty() {
            lab.take(choices[rng.below(choices.len() as u64) as usize]);
        }
    }
    lab.run_to_end(&mut rng);
    lab
}
