// long: the keys of all tables that name no entry, and the whole configuration
//! A run file, checked and with every default filled in.
//!
//! | module | what is in it |
//! |---|---|
//! | [`source`] | text to a table; `--set` on top of it |
//! | [`section`] | one table against the keys that it may have |
//! | [`chosen`] | a table that names a row of one of the tables of quelea |
//! | [`listed`] | those tables, as the configuration sees them |
//! | [`cluster`], [`faults`], [`chaos`], [`membership`] | `[cluster]`, `[cluster.faults]`, `[chaos]`, `[membership]` |
//! | `hint` | what somebody may have meant by a key that is unknown |
//! | [`resolved`] | the configuration with all defaults resolved, as JSON |

pub mod chaos;
pub mod chosen;
pub mod cluster;
pub mod faults;
mod hint;
pub mod listed;
pub mod membership;
pub mod resolved;
pub mod section;
pub mod source;

use quelea_core::options::{OptionKind, OptionSpec, Options};
use quelea_core::properties::{Properties, TopologyRequirement};
use quelea_core::registry::Registry;
use quelea_core::run_spec::DataAssignment;
use quelea_core::{algorithms, codec, optim, topology};
use quelea_net::TransportKind;
use toml::{Table, Value};

use crate::error::RequestError;
use crate::tasks::TaskEntry;
use chosen::{Chosen, rename};
pub use membership::MEMBERSHIP;
use section::{Allowed, SectionValues, dotted};
use source::ConfigSetting;

/// The keys that stand in no table.
pub const TOP: &[OptionSpec] = &[
    OptionSpec {
        name: "seed",
        kind: OptionKind::Whole { default: 1, min: 0, max: 1 << 53 },
        help: "all that is drawn at random follows from it",
    },
    OptionSpec {
        name: "workers",
        kind: OptionKind::Whole { default: 8, min: 1, max: 100_000 },
        help: "how many compute gradients",
    },
    OptionSpec {
        name: "steps",
        kind: OptionKind::Whole { default: 2000, min: 1, max: 1_000_000_000_000 },
        help: "steps of each worker",
    },
    OptionSpec {
        name: "epochs",
        kind: OptionKind::Real { default: 0.0, min: f64::MIN_POSITIVE, max: 1e9 },
        help: "passes over the data, instead of steps",
    },
    OptionSpec {
        name: "data",
        kind: OptionKind::Choice(&["own", "shared"]),
        help: "every worker has a part of the data, or all share them: each batch of an epoch goes to a worker \
               that is ready, exactly once whichever workers are lost or join; asynchronous algorithms, and tasks \
               that go through their data in epochs",
    },
    OptionSpec {
        name: "evaluations",
        kind: OptionKind::Whole { default: 20, min: 0, max: 1_000_000 },
        help: "how often the model is evaluated, evenly, the last time at the end; 0 = as 1",
    },
    OptionSpec {
        name: "evaluate_workers",
        kind: OptionKind::Flag(false),
        help: "evaluate the model of every worker by itself each time, not only at the end",
    },
    OptionSpec {
        name: "plots",
        kind: OptionKind::Flag(true),
        help: "draw loss, accuracy, consensus distance and the split of time at the end",
    },
    OptionSpec {
        name: "transport",
        kind: OptionKind::Choice(&["auto", "tcp", "mpi"]),
        help: "between processes: shared memory within a machine and TCP between machines; TCP everywhere; messages of \
               MPI, under mpirun",
    },
];

/// The keys of `[buckets]`.
pub const BUCKETS: &[OptionSpec] = &[OptionSpec {
    name: "size_mb",
    kind: OptionKind::Real { default: 25.0, min: 0.0, max: 1e6 },
    help: "largest bucket in megabytes of 10^6 bytes; 0 = one bucket",
}];

/// The keys of `[checkpoint]`.
pub const CHECKPOINT: &[OptionSpec] = &[
    OptionSpec {
        name: "every",
        kind: OptionKind::Whole { default: 0, min: 0, max: 1_000_000_000_000 },
        help: "steps of each worker between two checkpoints; 0 = by the clock only",
    },
    OptionSpec {
        name: "every_seconds",
        kind: OptionKind::Real { default: 600.0, min: 0.0, max: 1e9 },
        help: "seconds between two checkpoints, in `train` and `serve`; 0 = by steps only",
    },
    OptionSpec {
        name: "keep",
        kind: OptionKind::Whole { default: 2, min: 1, max: 1_000_000 },
        help: "how many checkpoints are kept, the newest ones",
    },
];

/// The keys of `[trust]`.
pub const TRUST: &[OptionSpec] = &[OptionSpec {
    name: "poison",
    kind: OptionKind::Choice(&["stop", "drop", "refuse", "ignore"]),
    help: "when a rank sends NaN, infinities or magnitudes above 1e18: the run stops (in `simulate` it does \
           not), the sender counts as lost, its message is not used (where nobody waits for it), or nothing",
}];

const TABLES: &[&str] = &[
    "algorithm",
    "topology",
    "optimizer",
    "codec",
    "buckets",
    "checkpoint",
    "membership",
    "trust",
    "task",
    "cluster",
    "chaos",
];

/// A configuration in which every key has a value.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where names were looked up.
    pub registry: Registry,
    /// `seed`.
    pub seed: u64,
    /// `workers`.
    pub workers: usize,
    /// `steps` or `epochs`.
    pub length: Length,
    /// `data`.
    pub data: DataAssignment,
    /// `evaluations`.
    pub evaluations: u64,
    /// `evaluate_workers`.
    pub evaluate_workers: bool,
    /// `plots`.
    pub plots: bool,
    /// `transport`.
    pub transport: TransportKind,
    /// `[algorithm]`.
    pub algorithm: Chosen<algorithms::Entry>,
    /// `[topology]`.
    pub topology: Chosen<topology::Entry>,
    /// `[optimizer]`.
    pub optimizer: Chosen<optim::Entry>,
    /// `[optimizer.schedule]`.
    pub schedule: Chosen<optim::ScheduleEntry>,
    /// `[codec]`.
    pub codec: Chosen<codec::Entry>,
    /// `[buckets]`.
    pub buckets: Options,
    /// `[checkpoint]`.
    pub checkpoint: Options,
    /// `[membership]`.
    pub membership: Options,
    /// `[trust]`.
    pub trust: Options,
    /// `[task]`.
    pub task: Chosen<TaskEntry>,
    /// `[cluster]`.
    pub cluster: SectionValues,
    /// `[chaos]`.
    pub chaos: Options,
    /// What was left out of account, in sentences.
    pub notes: Vec<String>,
}

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// Steps of each worker.
    Steps(u64),
    /// Passes over the data, by all workers together.
    Epochs(f64),
}

impl Config {
    /// The configuration of a file's table with settings on top, of built-in entries. `launched` is
    /// the number of workers that a launcher has started, where there is one.
    pub fn read(
        table: Table,
        settings: &[ConfigSetting],
        launched: Option<usize>,
    ) -> Result<Config, RequestError> {
        Config::read_with(&Registry::builtin(), table, settings, launched)
    }

    /// As [`read`](Config::read), of the entries of a registry.
    pub fn read_with(
        registry: &Registry,
        mut table: Table,
        settings: &[ConfigSetting],
        launched: Option<usize>,
    ) -> Result<Config, RequestError> {
        let mut notes = merge(registry, &mut table, settings)?;
        if let (Some(workers), false) = (launched, table.contains_key("workers")) {
            table.insert("workers".to_string(), Value::Integer(workers as i64));
        }
        let mut config = Config::check(registry, &table)?;
        let topology_set = settings.iter().any(|setting| setting.path[0] == "topology");
        if topology_set && config.properties().topology == TopologyRequirement::Nothing {
            let name = config.algorithm.entry.meta.name;
            notes.push(format!("`topology` is not used: {name} has none"));
        }
        config.notes = notes;
        Ok(config)
    }

    /// What drivers need to know of the algorithm.
    pub fn properties(&self) -> Properties {
        (self.algorithm.entry.properties)(self.algorithm.options())
    }

    /// How many servers there are: none for an algorithm that has no use for them.
    pub fn servers(&self) -> usize {
        if self.properties().servers { self.cluster.options.whole("servers") as usize } else { 0 }
    }

    /// How many workers may take part at a time, those who join later included.
    pub fn seats(&self) -> usize {
        self.workers.max(self.membership.whole("max_workers") as usize)
    }

    /// Steps of each worker; a prepared run has turned epochs into them.
    pub fn steps(&self) -> u64 {
        match self.length {
            Length::Steps(steps) => steps,
            Length::Epochs(_) => unreachable!("a prepared run counts in steps"),
        }
    }

    fn check(registry: &Registry, table: &Table) -> Result<Config, RequestError> {
        let top = Allowed { path: "", keys: TOP, extras: &[], others: TABLES };
        let top = top.check_in(registry, table)?.options;
        let inside = |name| inside(table, "", name);
        let plain = |path, keys: &'static [OptionSpec]| {
            let allowed = Allowed { path, keys, extras: &[], others: &[] };
            allowed.check_in(registry, &inside(path)?).map(|values| values.options)
        };
        let optimizer = inside("optimizer")?;
        let schedule = self::inside(&optimizer, "optimizer", "schedule")?;
        Ok(Config {
            registry: registry.clone(),
            seed: top.whole("seed"),
            workers: top.whole("workers") as usize,
            length: length(table, &top)?,
            data: match top.text("data") {
                "shared" => DataAssignment::Shared,
                _ => DataAssignment::Own,
            },
            evaluations: top.whole("evaluations"),
            evaluate_workers: top.flag("evaluate_workers"),
            plots: top.flag("plots"),
            transport: top.text("transport").parse().expect("one of the choices of the key"),
            algorithm: Chosen::read(registry, &inside("algorithm")?)?,
            topology: Chosen::read(registry, &inside("topology")?)?,
            optimizer: Chosen::read(registry, &optimizer)?,
            schedule: Chosen::read(registry, &schedule)?,
            codec: Chosen::read(registry, &inside("codec")?)?,
            buckets: plain("buckets", BUCKETS)?,
            checkpoint: plain("checkpoint", CHECKPOINT)?,
            membership: plain("membership", MEMBERSHIP)?,
            trust: plain("trust", TRUST)?,
            task: Chosen::read(registry, &inside("task")?)?,
            cluster: cluster::read(&inside("cluster")?)?,
            chaos: plain("chaos", chaos::KEYS)?,
            notes: Vec::new(),
        })
    }
}

/// Puts settings into the table of a file; what that leaves out of account, in sentences.
pub fn merge(
    registry: &Registry,
    table: &mut Table,
    settings: &[ConfigSetting],
) -> Result<Vec<String>, RequestError> {
    let mut notes = Vec::new();
    for setting in settings {
        notes.extend(renamed(registry, table, setting));
        match setting.path.as_slice() {
            // A length that is set is meant instead of the file's.
            [key] if key == "steps" => drop(table.remove("epochs")),
            [key] if key == "epochs" => drop(table.remove("steps")),
            _ => {}
        }
    }
    for setting in settings {
        source::apply(table, setting)?;
    }
    Ok(notes)
}

fn length(table: &Table, top: &Options) -> Result<Length, RequestError> {
    match (table.get("steps"), table.get("epochs")) {
        (Some(_), Some(epochs)) => {
            let problem = "`steps` is given too; a run is as long as one of them says";
            Err(RequestError::field("epochs", epochs, problem))
        }
        (None, Some(_)) => Ok(Length::Epochs(top.real("epochs"))),
        _ => Ok(Length::Steps(top.whole("steps"))),
    }
}

/// The table `name` in the table at `path`; an absent one is empty.
fn inside(table: &Table, path: &str, name: &str) -> Result<Table, RequestError> {
    match table.get(name) {
        None => Ok(Table::new()),
        Some(Value::Table(inside)) => Ok(inside.clone()),
        Some(other) => {
            let path = dotted(path, name);
            let problem = format!("must be a table: [{path}]; did you mean `{path}.name`?");
            Err(RequestError::field(path, other, problem))
        }
    }
}

/// If `setting` names another row than the table does, takes out the keys that only the old row
/// has: they were not meant for the new one.
fn renamed(registry: &Registry, table: &mut Table, setting: &ConfigSetting) -> Vec<String> {
    let (Some((last, path)), Value::String(new)) = (setting.path.split_last(), &setting.value)
    else {
        return Vec::new();
    };
    let mut place = Some(table);
    for name in path {
        place = place.and_then(|table| table.get_mut(name)).and_then(Value::as_table_mut);
    }
    let (Some(place), "name") = (place, last.as_str()) else {
        return Vec::new();
    };
    let path = path.join(".");
    let lost = match path.as_str() {
        "algorithm" => rename::<algorithms::Entry>(registry, place, new),
        "topology" => rename::<topology::Entry>(registry, place, new),
        "optimizer" => rename::<optim::Entry>(registry, place, new),
        "optimizer.schedule" => rename::<optim::ScheduleEntry>(registry, place, new),
        "codec" => rename::<codec::Entry>(registry, place, new),
        "task" => rename::<TaskEntry>(registry, place, new),
        _ => Vec::new(),
    };
    let note =
        |key: String| format!("`{path}.{key}` of the file is not used: {new} has no such key");
    lost.into_iter().map(note).collect()
}

#[cfg(test)]
mod tests;
