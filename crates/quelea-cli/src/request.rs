//! What the commands that run something have in common: a run file, settings, a directory.

use std::ffi::OsString;
use std::net::ToSocketAddrs;
use std::path::PathBuf;

use quelea_core::registry::Registry;
use quelea_page::health::HealthServer;
use quelea_run::checkpoint::read::{self, Checkpoint};
use quelea_run::config::source::{self, ConfigSetting};
use quelea_run::config::{self, Config};
use quelea_run::drive::LocalAddress;
use quelea_run::error::{RequestError, RunError};
use quelea_run::execute::is_asked_to_stop;
use quelea_run::prepared::PreparedRun;

/// A run file with settings on top of it.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// The run file, or the summary.json of a run to repeat; without it, the embedded default
    #[arg(value_name = "RUN.toml")]
    pub file: Option<PathBuf>,

    /// Set a key of the configuration, as in optimizer.lr=0.1; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,

    /// Where the data of the task are, the same as --set task.data=PATH; without it, where
    /// `quelea data get` puts them
    #[arg(long, value_name = "PATH")]
    pub data: Option<String>,

    /// Go on from the newest checkpoint of the run in this folder, with its configuration unless a
    /// run file is given; its files are replaced unless --out names another folder
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
}

/// Where the run's files go, and what is printed.
#[derive(Clone, Debug, clap::Args)]
pub struct Output {
    /// Where the run's files go; without it, a new folder under runs/
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Replace the run that the folder holds
    #[arg(long, requires = "out")]
    pub force: bool,

    /// Print the summary as JSON to standard output, and nothing else there
    #[arg(long)]
    pub json: bool,

    /// Print nothing but errors
    #[arg(long, short)]
    pub quiet: bool,

    /// Show the run on a page at this address while it lasts (docs/seeing-a-run.md)
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub page: Option<String>,

    /// Offer the page to other machines although it is not encrypted: its token can be read on the way
    #[arg(long, requires = "page")]
    pub page_insecure: bool,

    /// Also write an event file for TensorBoard, into tensorboard/ of the run's folder
    #[arg(long)]
    pub tensorboard: bool,
}

/// How this process is reached by others.
#[derive(Clone, Debug, clap::Args)]
pub struct LocalArgs {
    /// Use this interface only: its name, a subnet as in 10.0.0.0/8, or an address; as QUELEA_INTERFACE
    #[arg(long, value_name = "NAME|SUBNET")]
    interface: Option<String>,

    /// The port that other processes of the run connect to; as QUELEA_LISTEN_PORT
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    listen_port: Option<u16>,

    /// What others are told to connect to, where that is not this machine's own address; as QUELEA_ADVERTISE
    #[arg(long, value_name = "HOST[:PORT]")]
    advertise: Option<String>,
}

/// Where a cluster asks how this process is.
#[derive(Clone, Debug, clap::Args)]
pub struct HealthArgs {
    /// Answer /healthz (this process lives) and /readyz (the run has begun) at this address, or at this port of all
    /// addresses; as QUELEA_HEALTH
    #[arg(long, value_name = "[ADDRESS:]PORT")]
    health: Option<String>,
}

impl HealthArgs {
    /// Answers from now on, as long as this is held, if it is asked for.
    pub fn serve(&self) -> anyhow::Result<Option<HealthServer>> {
        let asked = self.health.clone().or_else(|| std::env::var("QUELEA_HEALTH").ok());
        Ok(asked.map(|address| HealthServer::start(&address)).transpose()?)
    }
}

impl LocalArgs {
    /// What is asked for; where nothing is, what the environment says.
    pub fn resolve(&self) -> Result<LocalAddress, RequestError> {
        let given = |name: &str| match name {
            "QUELEA_INTERFACE" => self.interface.clone(),
            "QUELEA_LISTEN_PORT" => self.listen_port.map(|port| port.to_string()),
            "QUELEA_ADVERTISE" => self.advertise.clone(),
            _ => None,
        };
        let found = LocalAddress::from_env(|name| given(name).or_else(|| std::env::var(name).ok()));
        found.map_err(|error| RequestError::Conflict(error.to_string()))
    }
}

/// Refuses a name that does not resolve: somebody has typed it, and waiting does not help.
pub fn check_resolves(name: &str, given: &str) -> Result<(), RequestError> {
    let refuse = |error| {
        RequestError::field(name, given, format!("the name does not resolve here: {error}"))
    };
    given.to_socket_addrs().map(drop).map_err(refuse)
}

/// The command line of a run: the command that was typed, with its run.
#[derive(Clone, Copy)]
pub struct Invocation<'a> {
    /// Its name.
    pub command: &'static str,
    /// What it was given.
    pub run: &'a RunArgs,
}

impl RunArgs {
    /// What is asked for, ready to be driven, for as many workers as a launcher has started.
    pub fn prepare(
        &self,
        registry: &Registry,
        launched: Option<usize>,
    ) -> Result<PreparedRun, RequestError> {
        let checkpoint = self.resume.as_deref().map(read::open).transpose()?;
        let is_workers = |setting: &ConfigSetting| setting.path == ["workers"];
        let refills = launched.is_some() || self.settings()?.iter().any(is_workers);
        let checkpoint = checkpoint.map(|checkpoint| checkpoint.refilled(refills));
        let prepared = PreparedRun::new(self.config(registry, launched, checkpoint.as_ref())?)?;
        match checkpoint {
            Some(checkpoint) => prepared.resume_from(&checkpoint),
            None => Ok(prepared),
        }
    }

    /// The configuration of commands that start new runs.
    pub fn fresh(&self, registry: &Registry) -> Result<Config, RequestError> {
        match &self.resume {
            Some(path) => {
                let problem = "only `train` and `simulate` resume from a checkpoint";
                Err(RequestError::field("--resume", path.display(), problem))
            }
            None => self.config(registry, None, None),
        }
    }

    /// The configuration of a new run with this number of workers, unless it says how many; no data are read.
    pub fn for_workers(&self, registry: &Registry, workers: usize) -> Result<Config, RequestError> {
        self.config(registry, Some(workers), None)
    }

    /// The configuration that is asked for.
    fn config(
        &self,
        registry: &Registry,
        launched: Option<usize>,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<Config, RequestError> {
        let settings = self.settings()?;
        let table = match (&self.file, checkpoint) {
            (Some(path), _) => source::read(path)?,
            (None, Some(checkpoint)) => checkpoint.config(&settings, launched)?,
            // The embedded default is what is meant where nothing is said.
            (None, None) => source::Table::new(),
        };
        Config::read_with(registry, table, &settings, launched)
    }

    /// The file's table with the settings in it, for writing it down; checked only as such.
    pub fn merged(&self, registry: &Registry) -> Result<source::Table, RequestError> {
        let mut table = self.file.as_deref().map(source::read).transpose()?.unwrap_or_default();
        config::merge(registry, &mut table, &self.settings()?)?;
        Ok(table)
    }

    fn settings(&self) -> Result<Vec<ConfigSetting>, RequestError> {
        let given = self.settings.iter().map(|given| source::setting(given));
        let data = self.data.iter().map(|data| {
            let path = vec!["task".to_string(), "data".to_string()];
            Ok(ConfigSetting { path, value: data.as_str().into() })
        });
        given.chain(data).collect()
    }

    /// The run as it was typed, for typing it again, but for the settings of some keys.
    pub fn as_typed(&self, but: &[&str]) -> String {
        let is_kept = |given: &&String| !but.iter().any(|key| given.split('=').next() == Some(key));
        let file = self.file.iter().map(|path| format!(" {}", quoted(&path.to_string_lossy())));
        let settings = self.settings.iter().filter(is_kept);
        let data = self.data.iter().map(|data| format!(" --data {}", quoted(data)));
        let resume =
            self.resume.iter().map(|path| format!(" --resume {}", quoted(&path.to_string_lossy())));
        file.chain(resume)
            .chain(settings.map(|given| format!(" --set {}", quoted(given))))
            .chain(data)
            .collect()
    }
}

/// As a shell takes it.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_string()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// What was typed, with `train` where the options come without a command.
pub fn words(typed: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = typed.collect();
    let of_all = ["-h", "--help", "-V", "--version"];
    let is_option = |word: &OsString| {
        word.to_str().is_some_and(|word| word.starts_with('-') && !of_all.contains(&word))
    };
    if words.get(1).is_none_or(is_option) {
        words.insert(words.len().min(1), "train".into());
    }
    words
}

/// Refuses what is not an address with a port.
pub fn check_address(name: &str, given: &str) -> Result<(), RequestError> {
    let parts = given.rsplit_once(':');
    let good = parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    let problem = "must be a host and a port, as in 10.0.0.1:29470";
    if good { Ok(()) } else { Err(RequestError::field(name, given, problem)) }
}

/// Refuses a wait in which nobody can come.
pub fn check_wait(seconds: u32) -> Result<(), RequestError> {
    let problem = "must be at least 1 second; nobody can be there at once";
    if seconds > 0 { Ok(()) } else { Err(RequestError::field("--wait", seconds, problem)) }
}

/// What shells report for a command that was ended by Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// What mail programs report for a failure that may pass: too few of a run's processes are within reach, and
/// the others may continue.
pub const NO_QUORUM: u8 = 75;

/// The exit status of a command that ended with this error.
pub fn status(error: &anyhow::Error) -> u8 {
    if is_asked_to_stop() {
        return INTERRUPTED;
    }
    if error.downcast_ref::<RunError>().is_some_and(RunError::is_missing_quorum) {
        return NO_QUORUM;
    }
    let of_run = error.downcast_ref::<RunError>().is_some_and(RunError::is_request);
    if of_run || error.is::<RequestError>() { 2 } else { 1 }
}
