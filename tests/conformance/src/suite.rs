//! The properties of one algorithm, each as a function that panics where it does not hold.
//!
//! [`suite!`](crate::suite!) makes a test of each. The built-in algorithms pass the same functions.

mod faults;
mod keeper;
mod tests_macro;

use quelea_core::algorithms::Entry;
use quelea_core::options::Options;
use quelea_core::properties::{Budget, DeployedFrom};
use quelea_core::registry::Registry;
use quelea_record::{Outcome, RankReport, Silent};
use quelea_run::prepared::PreparedRun;

use crate::bytes::{CountedRun, RunGraph};
use crate::forms::{self, AlgorithmForm};
use crate::scenario::{result, scenario, scenario_of};
use crate::{Arm, bits, deployed, firsts, plan_in};
use keeper::Keeper;

/// One algorithm under test.
#[derive(Clone, Debug)]
pub struct Suite {
    registry: Registry,
    entry: &'static Entry,
    /// Options of the algorithm, as lines of a run file.
    keys: String,
    learning_rate: f64,
}

/// A property of algorithms, for callers that make no tests of them.
#[derive(Clone, Copy, Debug)]
pub struct SuiteProperty {
    /// The name of the test.
    pub name: &'static str,
    /// Panics with a sentence where it does not hold.
    pub check: fn(&Suite),
}

macro_rules! properties {
    ($($name:ident),* $(,)?) => {
        &[$(SuiteProperty { name: stringify!($name), check: Suite::$name }),*]
    };
}

/// All properties.
pub const PROPERTIES: &[SuiteProperty] = properties![
    is_described,
    learns_equal_and_unequal_data,
    keeps_the_mean_if_it_says_so,
    gives_the_same_run_every_time,
    agrees_in_every_driver,
    sends_the_bytes_of_its_traffic,
    takes_the_time_of_its_traffic,
    does_not_wait_for_a_slow_worker_unless_it_says_so,
    survives_delays_and_lost_workers,
    resumes_from_every_checkpoint,
];

impl From<&'static Entry> for Suite {
    fn from(entry: &'static Entry) -> Suite {
        Suite::of(entry)
    }
}

/// Whole periods, with four workers.
pub const RUN: CountedRun =
    CountedRun { workers: 4, steps: 42, elements: 1000, graph: RunGraph::Ring };
/// The topologies on which bytes are counted.
pub const GRAPHS: [RunGraph; 2] = [RunGraph::Ring, RunGraph::Complete];

/// Four workers that start together and whose optima differ.
const QUADRATICS: &str = "[task]\nname = \"quadratic\"\ncurvature = [[1], [2], [3], [4]]\n\
                          target = [[1], [-2], [0.5], [3]]\n";

impl Suite {
    /// For an algorithm, built in or of another crate.
    pub fn of(entry: &'static Entry) -> Suite {
        let builtin = Registry::builtin();
        // The tables are constants, so that an entry may have several addresses.
        let known = builtin.find::<Entry>(entry.meta.name);
        let is_builtin = known.is_ok_and(|known| known.meta.file == entry.meta.file);
        let registry = if is_builtin { builtin } else { builtin.with(entry) };
        Suite { registry, entry, keys: String::new(), learning_rate: 0.2 }
    }

    /// With options of the algorithm other than its defaults, as lines of a run file.
    #[must_use]
    pub fn with_keys(mut self, keys: &str) -> Suite {
        self.keys = keys.to_string();
        self
    }

    /// With another learning rate than 0.2 where it [learns](Suite::learns_equal_and_unequal_data).
    #[must_use]
    pub fn with_learning_rate(mut self, learning_rate: f64) -> Suite {
        self.learning_rate = learning_rate;
        self
    }

    fn plan(&self, text: &str) -> PreparedRun {
        plan_in(&self.registry, text)
    }

    fn algorithm(&self) -> String {
        format!("[algorithm]\nname = \"{}\"\n{}", self.entry.meta.name, self.keys)
    }

    fn name(&self) -> &'static str {
        self.entry.meta.name
    }

    /// The entry says what people need to know, and its defaults go together.
    pub fn is_described(&self) {
        let (entry, name) = (self.entry, self.name());
        for (what, text) in [
            ("summary", entry.meta.summary),
            ("sends", entry.sends),
            ("lost_peer", entry.lost_peer),
            ("resized", entry.resized),
        ] {
            assert!(!text.is_empty(), "{name}: `{what}` is empty");
        }
        for option in entry.meta.options {
            assert!(!option.help.is_empty(), "{name}: option `{}` has no help", option.name);
        }
        let defaults = Options::defaults(entry.meta.options);
        assert_eq!((entry.check)(&defaults), Ok(()), "{name}: its defaults");
        let properties = (entry.properties)(&defaults);
        assert_eq!(entry.server.is_some(), properties.servers, "{name}: a server's side");
    }

    /// Held-out accuracy and training loss of the embedded data set, from a centralized solution:
    /// accuracy 0.974, loss 0.06. The algorithm comes near it, also where workers see few labels.
    pub fn learns_equal_and_unequal_data(&self) {
        for (partition, most) in [("iid", 0.085), ("dirichlet", 0.14)] {
            let plan = self.plan(&format!(
                "workers = 8\nsteps = 1500\n{}[optimizer]\nlr = {}\n\
                 [task]\nname = \"logistic\"\nbatch = 16\npartition = \"{partition}\"\nconcentration = 0.5\n\
                 [cluster]\nhosts = 4",
                self.algorithm(),
                self.learning_rate
            ));
            let outcome = Arm::Virtual.run(&plan);
            let found = plan.problem.evaluate(&deployed(&plan, &outcome));
            let what = format!("{partition}, {}", self.algorithm());
            assert!(found.loss < most, "loss {} of at most {most}: {what}", found.loss);
            let accuracy = found.accuracy().expect("there is held-out data");
            assert!(accuracy > 0.93, "accuracy {accuracy}: {what}");
        }
    }

    /// Workers that start apart: one step with a learning rate, then none. The mean of what the
    /// first step did survives any number of exchanges.
    pub fn keeps_the_mean_if_it_says_so(&self) {
        let text = |steps: u64| {
            format!(
                "workers = 4\nsteps = {steps}\n{}[optimizer]\nlr = 0.05\n[optimizer.schedule]\n\
                 name = \"step\"\nmilestones = [1]\ngamma = 0.0\n{QUADRATICS}",
                self.algorithm()
            )
        };
        let properties = self.plan(&text(1)).setup.properties();
        if !properties.keeps_mean {
            return;
        }
        let mean = |steps: u64| {
            let plan = self.plan(&text(steps));
            let outcome = Arm::Virtual.run(&plan);
            match properties.deploy {
                DeployedFrom::Servers => f64::from(deployed(&plan, &outcome)[0]),
                DeployedFrom::Workers => firsts(&outcome).iter().sum::<f64>() / 4.0,
            }
        };
        let (one, many) = (mean(1), mean(200));
        assert!(one != 0.0, "{}: the first step moved nothing", self.name());
        // Methods that carry corrections from step to step also carry their rounding.
        let near = (one - many).abs() < 2e-5 * one.abs().max(1.0);
        assert!(near, "{}: the mean was {one} and became {many}", self.name());
    }

    /// A run is a function of its configuration and seed, whatever the real threads.
    pub fn gives_the_same_run_every_time(&self) {
        for form in forms::forms_of(self.entry) {
            let run = |threads: usize| {
                let more = format!("compute_cv = 0.3\nthreads = {threads}");
                Arm::Virtual.run(&self.plan(&scenario_of(&form, 5, 12, &more)))
            };
            let once = run(1);
            assert_eq!(run(1), once, "{}", form.text());
            assert_eq!(run(3), once, "three threads, {}", form.text());
        }
    }

    /// Synchronous forms give the same bits, bytes and messages in the virtual cluster, in threads and
    /// over TCP, with a slow worker too. The others end near the optimum in each of them.
    pub fn agrees_in_every_driver(&self) {
        for form in forms::forms_of(self.entry) {
            if form.properties().synchronous {
                self.has_the_same_bits_in_every_driver(&form);
            } else {
                self.ends_near_the_optimum_in_every_driver(&form);
            }
        }
    }

    fn has_the_same_bits_in_every_driver(&self, form: &AlgorithmForm) {
        for workers in [1, 2, 3, 4] {
            let plan = self.plan(&scenario_of(form, workers, 12, ""));
            let expected = result(Arm::Virtual, &plan);
            let found = result(Arm::Threads, &plan);
            assert_eq!(found, expected, "{workers} workers in threads, {}", form.text());
            if workers == 3 {
                for arm in [Arm::Tcp, Arm::SharedMemory] {
                    assert_eq!(result(arm, &plan), expected, "{arm:?}, {}", form.text());
                }
            }
        }
        let slow = self.plan(&scenario_of(form, 4, 12, "slow = { \"2\" = 10.0 }"));
        let even = self.plan(&scenario_of(form, 4, 12, ""));
        let expected = bits(&Arm::Virtual.run(&even));
        assert_eq!(bits(&Arm::Virtual.run(&slow)), expected, "a slow worker, {}", form.text());
    }

    /// The bound is on the loss above the optimum's, relative to the start's.
    fn ends_near_the_optimum_in_every_driver(&self, form: &AlgorithmForm) {
        let text = scenario_of(form, 4, 400, "").replace("momentum = 0.5\n", "");
        let plan = self.plan(&text);
        let exact = self.plan(&scenario("name = \"allreduce\"", 4, 2000, ""));
        let optimum = deployed(&exact, &Arm::Virtual.run(&exact));
        let best = exact.problem.evaluate(&optimum).loss;
        let start = plan.problem.evaluate(&plan.setup.initial).loss;
        for arm in crate::ARMS {
            let outcome = arm.run(&plan);
            if form.properties().budget == Budget::TotalGradients {
                let gradients: u64 = outcome.ranks.iter().map(|rank| rank.steps).sum();
                assert_eq!(gradients, 1600, "{arm:?}, {}: gradients in all", form.text());
            }
            let loss = plan.problem.evaluate(&deployed(&plan, &outcome)).loss;
            let left = (loss - best) / (start - best);
            assert!(left < 0.15, "{arm:?}, {}: {left} of the way is left", form.text());
        }
    }

    /// The bytes on the wire are those that follow from the entry's `traffic`, with every codec that
    /// it takes, on a sparse and on a complete topology.
    pub fn sends_the_bytes_of_its_traffic(&self) {
        let form = forms::default_of(self.entry);
        for (_, codec) in form.codecs(RUN.elements as usize) {
            for graph in GRAPHS {
                let (sent, expected) = self.bytes(CountedRun { graph, ..RUN }, &form, &codec);
                assert_eq!(sent, expected, "{}, {codec}, {graph:?}", form.text());
            }
        }
    }

    /// Bytes that all ranks together send in a run, and those that its traffic says.
    pub fn bytes(&self, run: CountedRun, form: &AlgorithmForm, codec: &str) -> (u64, u64) {
        let CountedRun { workers, steps, elements, graph } = run;
        let plan = self.plan(&format!(
            "workers = {workers}\nsteps = {steps}\n[algorithm]\n{}\n[codec]\n{codec}\n\
             [topology]\nname = \"{}\"\n{QUADRATICS}dimensions = {elements}\n",
            form.text(),
            graph.name(),
        ));
        let ranks = Arm::Virtual.run(&plan).ranks;
        let sent: u64 = ranks.iter().map(|rank| rank.bytes_sent).sum();
        let received: u64 = ranks.iter().map(|rank| rank.bytes_received).sum();
        assert_eq!(sent, received, "{}, {codec}", form.text());
        (sent, run.bytes(form, &plan))
    }

    /// The closed form of `quelea plan` is near the virtual cluster for every way to use the
    /// algorithm that the advisor considers, on a fast and on a slow network.
    pub fn takes_the_time_of_its_traffic(&self) {
        let config = |gbps: f64| {
            self.plan(&format!(
                "workers = 4\nsteps = 2000\n[task]\nname = \"quadratic\"\n[cluster]\nhosts = 4\n\
                 compute_ms = 300\nbandwidth_gbps = {gbps}"
            ))
            .config
        };
        for gbps in [10.0, 1.0] {
            let scenario = quelea_plan::scenario::Scenario::new(config(gbps), Some(25e6));
            let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
            let mut predicted = 0;
            for candidate in quelea_plan::candidates(&scenario, self.entry) {
                let Ok(cost) = quelea_plan::cost::predict(&scenario, &candidate) else { continue };
                let steps = quelea_plan::steps(&candidate).max(50);
                let timing = quelea_plan::trial(&scenario, &candidate).run(steps);
                let timing = timing.unwrap_or_else(|error| panic!("{}: {error}", candidate.name()));
                let error = cost.step_seconds / timing.step_seconds() - 1.0;
                let what = format!("{} at {gbps} Gbit/s", candidate.name());
                assert!(error.abs() < 0.15, "{what}: predicted {:+.1} %", 100.0 * error);
                predicted += 1;
            }
            assert!(predicted > 0, "{}: nothing could be predicted", self.name());
        }
    }

    /// Where the entry says that nobody waits for slower workers, a worker that takes a hundred times
    /// as long leaves the pace of the others within one percent.
    pub fn does_not_wait_for_a_slow_worker_unless_it_says_so(&self) {
        let text = |slow: &str| {
            format!(
                "workers = 8\nsteps = 500\n{}[task]\nname = \"quadratic\"\n\
                 dimensions = 1000\ncurvature = {:?}\ntarget = {:?}\n[cluster]\ncompute_cv = 0.1\n{slow}",
                self.algorithm(),
                vec![[1.0]; 8],
                vec![[1.0]; 8],
            )
        };
        let (even, slow) = (self.plan(&text("")), self.plan(&text("slow = { \"3\" = 100.0 }")));
        let properties = even.setup.properties();
        if properties.budget != Budget::TotalGradients || properties.waits_for_peers {
            return;
        }
        // Seconds per step of everybody but the slow one.
        let pace = |plan: &PreparedRun| {
            let outcome = Arm::Virtual.run(plan);
            let others = outcome.ranks.iter().filter(|rank| !rank.is_server && rank.rank != 3);
            let busy = |rank: &RankReport| {
                rank.compute_seconds + rank.exposed_seconds + rank.waiting_seconds
            };
            let (seconds, steps) =
                others.fold((0.0, 0), |(s, n), rank| (s + busy(rank), n + rank.steps));
            seconds / steps as f64
        };
        let ratio = pace(&slow) / pace(&even);
        assert!((ratio - 1.0).abs() < 0.01, "{}: {ratio}", self.name());
    }

    /// No mixture of costs, delays of messages and lost workers makes a run hang, and none leaves
    /// anything undelivered.
    pub fn survives_delays_and_lost_workers(&self) {
        let form = forms::default_of(self.entry);
        for seed in 0..40 {
            let mut plan = self.plan(&scenario_of(&form, 5, 20, ""));
            faults::disturb(&mut plan.cluster, 5, seed);
            let outcome =
                quelea_sim::simulate(&plan.setup, &*plan.problem, &plan.cluster, &mut Silent)
                    .unwrap_or_else(|error| panic!("{}, seed {seed}: {error}", self.name()));
            assert_eq!(outcome.warnings, [""; 0], "{}, seed {seed}", self.name());
        }
    }

    /// A run continues from every checkpoint and leaves nothing undelivered. Synchronous forms end with
    /// the same bits as if they had not stopped.
    pub fn resumes_from_every_checkpoint(&self) {
        for form in forms::forms_of(self.entry) {
            let plan = self.plan(&scenario_of(&form, 4, 24, "compute_cv = 0.6"));
            let whole = Arm::Virtual.run(&plan);
            let mut keeper = Keeper::every(5, plan.setup.steps);
            let watched =
                quelea_sim::simulate(&plan.setup, &*plan.problem, &plan.cluster, &mut keeper)
                    .unwrap_or_else(|error| panic!("while it is saved, {}: {error}", form.text()));
            let synchronous = form.properties().synchronous;
            if synchronous {
                let text = form.text();
                assert_eq!(bits(&watched), bits(&whole), "saving changes nothing, {text}");
            }
            for (step, start) in keeper.starts(plan.setup.ranks()) {
                let resumed = quelea_sim::resume(
                    &plan.setup,
                    &*plan.problem,
                    &plan.cluster,
                    &start,
                    &mut Silent,
                );
                let what = format!("from step {step}, {}", form.text());
                let after = resumed.unwrap_or_else(|error| panic!("{what}: {error}"));
                let steps = |outcome: &Outcome| -> u64 {
                    outcome.ranks.iter().map(|rank| rank.steps).sum()
                };
                assert_eq!(after.warnings, [""; 0], "{what}");
                if synchronous {
                    assert_eq!(steps(&after), steps(&whole), "gradients, {what}");
                    assert_eq!(bits(&after), bits(&whole), "{what}");
                }
            }
        }
    }
}
