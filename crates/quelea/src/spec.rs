//! From a run to what drivers need: everything is looked up and checked here.

use std::sync::Arc;

use quelea_core::layout::Layout;
use quelea_core::options::{OptionError, OptionSpec, Options, Value};
use quelea_core::poison::PoisonPolicy;
use quelea_core::problems::{ModelSpec, Problem};
use quelea_core::properties::{OptimizerSite, Properties, TopologyRequirement};
use quelea_core::registry::Registered;
use quelea_core::run_spec::{CodecChoice, DataAssignment, MakeTopology, RunSpec};
use quelea_core::topology::{
    self, GROUPS, GroupExchange, Schedule, TopologyError, TopologyRequest,
};
use quelea_core::view::View;
use quelea_core::{algorithms, optim};
use quelea_record::CheckpointSchedule;

use crate::error::Error;
use crate::model::{ClosureProblem, Model};
use crate::outcome::RecordKeeper;
use crate::run::Run;

/// A run that was checked.
pub(crate) struct CheckedRun {
    pub(crate) spec: RunSpec,
    pub(crate) problem: Arc<dyn Problem>,
    /// The optimizer and its schedule with all options: of a specification only what they do is known.
    /// Processes compare it.
    #[cfg(feature = "net")]
    pub(crate) optimizer: String,
}

/// An entry with its checked options.
struct CheckedEntry<T: 'static> {
    entry: &'static T,
    options: Options,
}

impl<T: Registered> std::fmt::Display for CheckedEntry<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_entry(f, self.entry.meta().name, &self.options)
    }
}

/// Writes a name with all options.
pub(crate) fn write_entry(
    out: &mut impl std::fmt::Write,
    name: &str,
    options: &Options,
) -> std::fmt::Result {
    let options: Vec<String> =
        options.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    write!(out, "{name} {{ {} }}", options.join(", "))
}

impl Run {
    /// What the nodes of this run have in common, for drivers of your own.
    pub fn spec(&self) -> Result<RunSpec, Error> {
        Ok(self.checked()?.spec)
    }

    pub(crate) fn checked(&self) -> Result<CheckedRun, Error> {
        self.check_numbers()?;
        let problem = self.problem()?;
        let model = ModelSpec::of(&*problem);
        let algorithm = self.chosen_algorithm()?;
        let properties = (algorithm.entry.properties)(&algorithm.options);
        let optimizer = self.chosen_optimizer(&algorithm, &properties)?;
        let servers = self.check_servers(&algorithm, &properties, model.initial.len())?;
        let hosts = self.placement(servers);
        let make = self.make_topology(&properties)?;
        let schedule = match &make {
            Some(make) => {
                let schedule = make.build(&hosts[..self.workers]).map_err(conflict)?;
                let refusal = properties.topology.refusal(&schedule);
                refuse(refusal.map(|why| format!("`{}` {why}", algorithm.entry.meta.name)))?;
                Some(Arc::new(schedule))
            }
            None => None,
        };
        let layout = if model.tensors.is_empty() {
            Layout::plain(model.initial.len(), self.bucket_bytes)
        } else {
            Layout::of_tensors(model.tensors, self.bucket_bytes)
        };
        let codec = self.chosen_codec(&algorithm, &layout)?;
        let rates = chosen(&self.schedule, self, |entry, given| entry.params(given))?;
        #[cfg(feature = "net")]
        let described = format!("{optimizer}, schedule {rates}");
        let lr = optimizer.options.real("lr");
        let clip = optimizer.options.real("clip_norm") as f32;
        let spec = RunSpec {
            entry: algorithm.entry,
            options: algorithm.options,
            codec,
            layout: Arc::new(layout),
            initial: model.initial.into(),
            optimizer: Arc::new(move |len| (optimizer.entry.build)(&optimizer.options, len)),
            learning_rate: rates.entry.build(&rates.options, lr, self.steps),
            schedule_clock: rates.entry.clock(&rates.options),
            clip: (clip > 0.0).then_some(clip),
            samples: model.samples.into(),
            steps: self.steps,
            seed: self.seed,
            poison: PoisonPolicy::Stop,
            data: DataAssignment::Own,
            view: Arc::new(View::first(self.workers, servers, hosts.into(), schedule)),
            topology: make.map(TopologyBuilder::into_function),
        };
        Ok(CheckedRun {
            spec,
            problem,
            #[cfg(feature = "net")]
            optimizer: described,
        })
    }

    fn check_numbers(&self) -> Result<(), Error> {
        refuse((self.workers == 0).then(|| "a run needs at least one worker".to_string()))?;
        refuse((self.steps == 0).then(|| "a run needs at least one step".to_string()))?;
        let hosts = self.hosts.filter(|hosts| !(1..=self.workers).contains(hosts));
        refuse(hosts.map(|hosts| {
            format!("{hosts} hosts for {} workers: there must be from 1 to as many", self.workers)
        }))
    }

    fn problem(&self) -> Result<Arc<dyn Problem>, Error> {
        let problem: Arc<dyn Problem> = match (&self.model, &self.gradient) {
            (Model::Problem(problem), None) => Arc::clone(problem),
            (Model::Problem(_), Some(_)) => {
                return Err(Error::Conflict(
                    "a problem computes its own gradients; `gradient` goes with `Run::new`".into(),
                ));
            }
            (Model::Plain(_), None) => {
                return Err(Error::Conflict("a plain vector needs `gradient`".into()));
            }
            (Model::Plain(initial), Some(gradient)) => Arc::new(ClosureProblem {
                initial: initial.clone(),
                gradient: Arc::clone(gradient),
                workers: self.workers,
                steps: self.steps,
            }),
        };
        refuse((problem.dimensions() == 0).then(|| "the model has no parameters".to_string()))?;
        Ok(problem)
    }

    fn chosen_algorithm(&self) -> Result<CheckedEntry<algorithms::Entry>, Error> {
        let algorithm = chosen(&self.algorithm, self, |entry: &algorithms::Entry, given| {
            Options::check(entry.meta.options, given)
        })?;
        let problem = (algorithm.entry.check)(&algorithm.options).err();
        refuse(problem.map(|why| format!("algorithm `{}`: {why}", algorithm.entry.meta.name)))?;
        Ok(algorithm)
    }

    fn chosen_optimizer(
        &self,
        algorithm: &CheckedEntry<algorithms::Entry>,
        properties: &Properties,
    ) -> Result<CheckedEntry<optim::Entry>, Error> {
        let mut choice = self.optimizer.clone();
        if let Some(rate) = self.learning_rate {
            choice = choice.with("lr", rate);
        }
        let optimizer = chosen(&choice, self, |entry: &optim::Entry, given| entry.params(given))?;
        let rule = properties.optimizer_rule;
        let (name, own) = (algorithm.entry.meta.name, optimizer.entry.meta.name);
        let refusal = rule.refusal(optimizer.entry, &optimizer.options);
        refuse(refusal.map(|key| match key {
            "name" => format!("`{name}` does not go with the optimizer `{own}`: {}", rule.reason()),
            key => format!("`{name}` does not go with `{key}` of `{own}`: {}", rule.reason()),
        }))?;
        let clips = optimizer.options.real("clip_norm") > 0.0
            && properties.optimizer == OptimizerSite::Servers
            && !properties.clips_itself
            && self.servers > 1;
        refuse(clips.then(|| {
            format!(
                "`{name}` clips at its servers, each of which sees only its shard: use one server"
            )
        }))?;
        Ok(optimizer)
    }

    /// How many servers the run has: none for an algorithm that has no use for them.
    fn check_servers(
        &self,
        algorithm: &CheckedEntry<algorithms::Entry>,
        properties: &Properties,
        dimensions: usize,
    ) -> Result<usize, Error> {
        if !properties.servers {
            return Ok(0);
        }
        let name = algorithm.entry.meta.name;
        refuse((!(1..=dimensions).contains(&self.servers)).then(|| {
            format!("`{name}` needs from 1 server to one per parameter, not {}", self.servers)
        }))?;
        Ok(self.servers)
    }

    fn chosen_codec(
        &self,
        algorithm: &CheckedEntry<algorithms::Entry>,
        layout: &Layout,
    ) -> Result<CodecChoice, Error> {
        let codec = chosen(&self.codec, self, |entry: &quelea_core::codec::Entry, given| {
            Options::check(entry.meta.options, given)
        })?;
        let longest = layout.buckets.iter().map(|bucket| bucket.range.len()).max().unwrap_or(0);
        let codecs = (algorithm.entry.codecs)(&algorithm.options);
        let refusal = codecs.refusal(codec.entry, &codec.options, longest);
        refuse(refusal.map(|why| format!("`{}` {why}", algorithm.entry.meta.name)))?;
        Ok(CodecChoice { entry: codec.entry, options: codec.options })
    }

    /// The host of every rank: workers in blocks, servers on hosts of their own after them.
    fn placement(&self, servers: usize) -> Vec<u32> {
        let hosts = self.hosts.unwrap_or(self.workers);
        let of_worker = (0..self.workers).map(|worker| (worker * hosts / self.workers) as u32);
        of_worker.chain((hosts..hosts + servers).map(|host| host as u32)).collect()
    }

    fn make_topology(&self, properties: &Properties) -> Result<Option<TopologyBuilder>, Error> {
        if properties.topology == TopologyRequirement::Nothing {
            return Ok(None);
        }
        let topology = chosen(&self.topology, self, |entry: &topology::Entry, given| {
            let keys: Vec<OptionSpec> =
                entry.meta.options.iter().copied().chain([GROUPS]).collect();
            Options::check(&keys, given)
        })?;
        let file = topology.options.iter().find(|(name, _)| *name == "file");
        let text = match file {
            Some((_, Value::Text(path))) if !path.is_empty() => {
                let text = std::fs::read_to_string(path);
                Some(text.map_err(|error| Error::Conflict(format!("{path}: {error}")))?)
            }
            _ => None,
        };
        let edges_only = properties.topology == TopologyRequirement::Edges;
        Ok(Some(TopologyBuilder { topology, seed: self.seed, text, edges_only }))
    }
}

impl CheckedRun {
    /// What hears of the run.
    pub(crate) fn keeper(&self, evaluations: u64) -> RecordKeeper {
        let schedule = CheckpointSchedule { save_every: 0, evaluations, steps: self.spec.steps };
        RecordKeeper {
            problem: Arc::clone(&self.problem),
            deploy: self.spec.properties().deploy,
            schedule,
            records: Vec::new(),
        }
    }
}

/// Makes the topology of a run, now and after a change of membership.
struct TopologyBuilder {
    topology: CheckedEntry<topology::Entry>,
    seed: u64,
    /// The contents of a topology's file.
    text: Option<String>,
    /// Only who sends to whom matters, not the weights.
    edges_only: bool,
}

impl TopologyBuilder {
    fn build(&self, hosts: &[u32]) -> Result<Schedule, TopologyError> {
        let CheckedEntry { entry, options } = &self.topology;
        let request =
            TopologyRequest { hosts, seed: self.seed, options, text: self.text.as_deref() };
        let schedule =
            if self.edges_only { entry.build_edges(&request) } else { entry.build(&request) };
        Ok(schedule?.with_groups(GroupExchange::named(options.text(GROUPS.name))))
    }

    fn into_function(self) -> MakeTopology {
        Arc::new(move |hosts| self.build(hosts).ok().map(Arc::new))
    }
}

/// Looks an entry up and checks its options.
fn chosen<T: Registered>(
    choice: &crate::Choice<T>,
    run: &Run,
    check: impl FnOnce(&T, Vec<(String, Value)>) -> Result<Options, OptionError>,
) -> Result<CheckedEntry<T>, Error> {
    let entry = choice.entry(&run.registry)?;
    let options = check(entry, choice.given().collect());
    let (kind, name) = (T::KIND, entry.meta().name);
    let options = options.map_err(|source| Error::Option { kind, name, source })?;
    Ok(CheckedEntry { entry, options })
}

/// An error where there is a reason for one.
fn refuse(why: Option<String>) -> Result<(), Error> {
    why.map_or(Ok(()), |why| Err(Error::Conflict(why)))
}

fn conflict(error: TopologyError) -> Error {
    Error::Conflict(error.to_string())
}

#[cfg(feature = "sim")]
impl Run {
    /// Runs it in a virtual cluster: real mathematics, virtual time.
    pub fn simulate(&self, cluster: &quelea_sim::Cluster) -> Result<crate::RunOutcome, Error> {
        let checked = self.checked()?;
        let mut keeper = checked.keeper(self.evaluations);
        let spec = checked.spec.simulated();
        let outcome = quelea_sim::simulate(&spec, &*checked.problem, cluster, &mut keeper)?;
        Ok(keeper.finish(outcome))
    }
}
