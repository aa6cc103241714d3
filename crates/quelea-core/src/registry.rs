//! The registry: every algorithm, topology, codec, optimizer, schedule and task that a run may name.
//!
//! A registry is a value that is passed to what reads names: run files, `list`, `compare`, `plan`, the
//! command line. [`Registry::builtin`] has the tables of quelea; [`Registry::with`] adds the entry of
//! another crate. There is no global state, and a clone costs a reference count.
//!
//! ```
//! use quelea_core::algorithms::{self, Entry};
//! use quelea_core::meta::Meta;
//! use quelea_core::registry::Registry;
//!
//! // The entry of another crate is usually a `static`; this one borrows an implementation.
//! let d_psgd = algorithms::find("d-psgd").unwrap();
//! let meta = Meta { name: "my-gossip", summary: "gossip of my own", ..d_psgd.meta };
//! let mine: &'static Entry = Box::leak(Box::new(Entry { meta, ..*d_psgd }));
//!
//! let registry = Registry::builtin().with(mine);
//! assert_eq!(registry.find::<Entry>("my-gossip").unwrap().meta.summary, "gossip of my own");
//! assert_eq!(registry.find::<Entry>("my-gosip").unwrap_err(), Some("my-gossip"));
//! // The built-in registry is as it was.
//! assert!(Registry::builtin().find::<Entry>("my-gossip").is_err());
//! ```

use std::any::Any;
use std::sync::Arc;

use crate::algorithms;
use crate::codec;
use crate::meta::Meta;
use crate::names;
use crate::optim;
use crate::options::OptionSpec;
use crate::topology;

/// A kind of entry that a registry holds.
pub trait Registered: Send + Sync + Sized + 'static {
    /// What such an entry is, for messages: "algorithm".
    const KIND: &'static str;

    /// The entries that come with quelea.
    fn builtin() -> &'static [Self];

    /// Name, summary, paper and options.
    fn meta(&self) -> &Meta;
}

/// All entries that a run may name: the built-in ones, then those that were added, in order.
#[derive(Clone, Default)]
pub struct Registry {
    added: Arc<Vec<Added>>,
}

/// An entry of another crate.
#[derive(Clone, Copy)]
struct Added {
    kind: &'static str,
    name: &'static str,
    entry: &'static (dyn Any + Send + Sync),
}

/// Why an entry cannot be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Another entry of the same kind has the name.
    #[error("the name `{name}` is already taken by another {kind}")]
    Taken {
        /// "algorithm".
        kind: &'static str,
        /// The name.
        name: &'static str,
    },
    /// A name that could not be typed as `--set algorithm.name=NAME`.
    #[error(
        "{kind} `{name}`: a name consists of lower-case letters, digits and hyphens \
         and begins with a letter"
    )]
    Name {
        /// "algorithm".
        kind: &'static str,
        /// The name.
        name: &'static str,
    },
    /// Two options of the entry have one name, or one has the name of a key that all entries have.
    #[error("{kind} `{name}`: the option `{option}` is declared twice or reserved")]
    Option {
        /// "algorithm".
        kind: &'static str,
        /// The entry.
        name: &'static str,
        /// The option.
        option: &'static str,
    },
}

impl Registry {
    /// The tables of quelea.
    pub fn builtin() -> Registry {
        Registry::default()
    }

    /// With one entry more. Panics where [`try_with`](Registry::try_with) refuses: which entries a
    /// program adds is fixed when it is written.
    #[must_use]
    pub fn with<T: Registered>(self, entry: &'static T) -> Registry {
        self.try_with(entry).unwrap_or_else(|error| panic!("{error}"))
    }

    /// With one entry more, unless its name is taken or cannot be typed.
    pub fn try_with<T: Registered>(self, entry: &'static T) -> Result<Registry, RegistryError> {
        let (kind, meta) = (T::KIND, entry.meta());
        let name = meta.name;
        if !is_name(name) {
            return Err(RegistryError::Name { kind, name });
        }
        if self.entries::<T>().any(|other| other.meta().name == name) {
            return Err(RegistryError::Taken { kind, name });
        }
        if let Some(option) = clash(meta.options) {
            return Err(RegistryError::Option { kind, name, option });
        }
        let mut added = Arc::unwrap_or_clone(self.added);
        added.push(Added { kind, name, entry });
        Ok(Registry { added: Arc::new(added) })
    }

    /// All entries of a kind, the built-in ones first.
    pub fn entries<T: Registered>(&self) -> impl Iterator<Item = &'static T> + Clone {
        T::builtin().iter().chain(self.added::<T>())
    }

    /// The entries of a kind that other crates have added.
    pub fn added<T: Registered>(&self) -> impl Iterator<Item = &'static T> + Clone {
        self.added.iter().filter_map(|added| added.entry.downcast_ref())
    }

    /// The entry of this name, or the nearest name if there is one.
    pub fn find<T: Registered>(&self, name: &str) -> Result<&'static T, Option<&'static str>> {
        let names = self.entries::<T>().map(|entry| entry.meta().name);
        self.entries::<T>()
            .find(|entry| entry.meta().name == name)
            .ok_or_else(|| names::nearest(name, names))
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registry(builtin")?;
        for added in &*self.added {
            write!(f, " + {} {}", added.kind, added.name)?;
        }
        f.write_str(")")
    }
}

impl PartialEq for Registry {
    /// Whether both have the same entries.
    fn eq(&self, other: &Registry) -> bool {
        let of = |registry: &Registry| -> Vec<_> {
            registry.added.iter().map(|added| (added.kind, added.name)).collect()
        };
        of(self) == of(other)
    }
}

/// Whether it can be typed in a run file and after `--set` without quotes.
fn is_name(name: &str) -> bool {
    let typed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(typed)
}

/// An option whose name is not its own.
fn clash(options: &'static [OptionSpec]) -> Option<&'static str> {
    let is_taken = |(k, option): &(usize, &OptionSpec)| {
        option.name == "name" || options[..*k].iter().any(|other| other.name == option.name)
    };
    options.iter().enumerate().find(is_taken).map(|(_, option)| option.name)
}

impl Registered for algorithms::Entry {
    const KIND: &'static str = "algorithm";

    fn builtin() -> &'static [Self] {
        algorithms::ALGORITHMS
    }
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl Registered for topology::Entry {
    const KIND: &'static str = "topology";

    fn builtin() -> &'static [Self] {
        topology::TOPOLOGIES
    }
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl Registered for codec::Entry {
    const KIND: &'static str = "codec";

    fn builtin() -> &'static [Self] {
        codec::CODECS
    }
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl Registered for optim::Entry {
    const KIND: &'static str = "optimizer";

    fn builtin() -> &'static [Self] {
        optim::OPTIMIZERS
    }
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl Registered for optim::ScheduleEntry {
    const KIND: &'static str = "schedule";

    fn builtin() -> &'static [Self] {
        optim::SCHEDULES
    }
    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn named(name: &'static str, options: &'static [OptionSpec]) -> optim::ScheduleEntry {
        let meta = Meta { name, summary: "", paper: "", section: "", file: file!(), options };
        optim::ScheduleEntry { meta, check: |_| Ok(()), factor: |_, _| Box::new(|_| 1.0) }
    }

    static SAWTOOTH: optim::ScheduleEntry = named("sawtooth", &[]);
    static CONSTANT: optim::ScheduleEntry = named("constant", &[]);
    static UPPER: optim::ScheduleEntry = named("Saw tooth", &[]);
    static TWICE: optim::ScheduleEntry = named("twice", &[KEY, KEY]);
    const KEY: OptionSpec =
        OptionSpec { name: "key", kind: crate::options::OptionKind::Flag(false), help: "" };

    fn schedules(registry: &Registry) -> Vec<&'static str> {
        registry.entries::<optim::ScheduleEntry>().map(|entry| entry.meta.name).collect()
    }

    #[test]
    fn an_added_entry_comes_after_the_built_in_ones_and_only_where_it_was_added() {
        let builtin = Registry::builtin();
        let more = builtin.clone().with(&SAWTOOTH);
        assert_eq!(schedules(&builtin), ["constant", "cosine", "inverse-sqrt", "step"]);
        assert_eq!(schedules(&more), ["constant", "cosine", "inverse-sqrt", "step", "sawtooth"]);
        assert_eq!(more.entries::<codec::Entry>().count(), codec::CODECS.len());
        assert!(std::ptr::eq(more.find("sawtooth").expect("added"), &raw const SAWTOOTH));
        assert_eq!(format!("{more:?}"), "Registry(builtin + schedule sawtooth)");
        assert!(builtin != more);
    }

    #[test]
    fn names_that_are_taken_or_cannot_be_typed_are_refused() {
        let refusal = |entry| Registry::builtin().try_with(entry).expect_err("refused").to_string();
        assert_eq!(refusal(&CONSTANT), "the name `constant` is already taken by another schedule");
        assert!(refusal(&UPPER).starts_with("schedule `Saw tooth`: a name consists of"));
        assert_eq!(
            refusal(&TWICE),
            "schedule `twice`: the option `key` is declared twice or reserved"
        );
        let again = Registry::builtin().with(&SAWTOOTH).try_with(&SAWTOOTH);
        assert!(matches!(again, Err(RegistryError::Taken { name: "sawtooth", .. })));
    }
}
