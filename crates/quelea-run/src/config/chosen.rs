//! A table of the configuration that names an entry: an algorithm, a topology, a codec, a task.

use quelea_core::options::{OptionError, OptionSpec, Options, Value as Given};
use quelea_core::registry::{Registered, Registry};
use toml::{Table, Value};

use super::section::{Allowed, ExtraKey, SectionValues, dotted};
use crate::error::RequestError;

/// A registered entry: what the configuration needs to know of it.
pub trait Listed: Registered {
    /// The dotted name of the configuration's table.
    const PATH: &'static str;
    /// The entry that is meant where none is named.
    const DEFAULT: &'static str;
    /// Tables that stand inside this one.
    const INSIDE: &'static [&'static str] = &[];

    /// Its plain keys.
    fn keys(&self) -> Vec<OptionSpec> {
        self.meta().options.to_vec()
    }
    /// Its other keys.
    fn extras(&self) -> &'static [ExtraKey] {
        &[]
    }
    /// Checks its plain keys together.
    fn check(&self, given: Vec<(String, Given)>) -> Result<Options, OptionError> {
        Options::check(&self.keys(), given)
    }

    /// Whether it has this key.
    fn has(&self, name: &str) -> bool {
        let plain = self.keys().iter().any(|key| key.name == name);
        plain || self.extras().iter().any(|extra| extra.name == name)
    }
}

/// A row that was chosen, with its checked keys.
#[derive(Debug)]
pub struct Chosen<T: 'static> {
    /// The row.
    pub entry: &'static T,
    /// Its keys.
    pub values: SectionValues,
}

impl<T> Clone for Chosen<T> {
    fn clone(&self) -> Chosen<T> {
        Chosen { entry: self.entry, values: self.values.clone() }
    }
}

impl<T: Listed> Chosen<T> {
    /// Reads the entry that a table of the configuration names.
    pub fn read(registry: &Registry, table: &Table) -> Result<Chosen<T>, RequestError> {
        let entry = named::<T>(registry, table.get("name"))?;
        let others: Vec<&str> = ["name"].into_iter().chain(T::INSIDE.iter().copied()).collect();
        let keys = entry.keys();
        let allowed =
            Allowed { path: T::PATH, keys: &keys, extras: entry.extras(), others: &others };
        let values = allowed.check_by(registry, table, |given| entry.check(given))?;
        Ok(Chosen { entry, values })
    }

    /// The plain keys.
    pub fn options(&self) -> &Options {
        &self.values.options
    }
}

fn named<T: Listed>(registry: &Registry, name: Option<&Value>) -> Result<&'static T, RequestError> {
    let all =
        || registry.entries::<T>().map(|entry| entry.meta().name).collect::<Vec<_>>().join(", ");
    let name = match name {
        None => T::DEFAULT,
        Some(Value::String(name)) => name,
        Some(other) => {
            let problem = format!("must be a name, one of {}", all());
            return Err(RequestError::field(dotted(T::PATH, "name"), other, problem));
        }
    };
    registry.find(name).map_err(|near| {
        let hint = near.map(|near| format!("did you mean \"{near}\"? ")).unwrap_or_default();
        let problem = format!("unknown name; {hint}known are {}", all());
        RequestError::field(dotted(T::PATH, "name"), Value::from(name), problem)
    })
}

/// Prepares a table for another row than the one it was written for: keys that the new row does
/// not have, but the old one has, are taken out and returned.
pub fn rename<T: Listed>(registry: &Registry, table: &mut Table, new: &str) -> Vec<String> {
    let old = match table.get("name") {
        Some(Value::String(old)) => old.as_str(),
        _ => T::DEFAULT,
    };
    let (Ok(old), Ok(new)) = (registry.find::<T>(old), registry.find::<T>(new)) else {
        return Vec::new();
    };
    let lost: Vec<String> =
        table.keys().filter(|key| old.has(key) && !new.has(key)).cloned().collect();
    for key in &lost {
        table.remove(key);
    }
    lost
}
