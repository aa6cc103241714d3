//! An algorithm, topology, codec, optimizer or schedule with its options.

use quelea_core::options::Value;
use quelea_core::registry::{Registered, Registry};

use crate::error::Error;

/// An entry with its options: by name, or the entry itself.
///
/// ```
/// use quelea::{Choice, algorithms};
///
/// let by_name: Choice<algorithms::Entry> = "aladdin".into();
/// let with_options = by_name.with("alpha", 0.5).with("period", 4);
/// let entry: Choice<algorithms::Entry> = algorithms::find("d-psgd").unwrap().into();
/// ```
#[derive(Debug)]
pub struct Choice<T: 'static> {
    named: Named<T>,
    given: Vec<(String, Value)>,
}

#[derive(Debug)]
enum Named<T: 'static> {
    Name(String),
    Entry(&'static T),
}

// Not derived, which would ask entries to be cloned.
impl<T> Clone for Choice<T> {
    fn clone(&self) -> Choice<T> {
        let named = match &self.named {
            Named::Name(name) => Named::Name(name.clone()),
            Named::Entry(entry) => Named::Entry(*entry),
        };
        Choice { named, given: self.given.clone() }
    }
}

impl<T: Registered> From<&str> for Choice<T> {
    fn from(name: &str) -> Choice<T> {
        Choice { named: Named::Name(name.to_string()), given: Vec::new() }
    }
}

impl<T: Registered> From<&'static T> for Choice<T> {
    fn from(entry: &'static T) -> Choice<T> {
        Choice { named: Named::Entry(entry), given: Vec::new() }
    }
}

impl<T: Registered> Choice<T> {
    /// With an option. It is checked when the run starts; the last value of a key counts.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Choice<T> {
        self.given.push((key.to_string(), value.into()));
        self
    }

    /// The entry.
    pub(crate) fn entry(&self, registry: &Registry) -> Result<&'static T, Error> {
        match &self.named {
            Named::Entry(entry) => Ok(entry),
            Named::Name(name) => registry.find(name).map_err(|near| Error::Unknown {
                kind: T::KIND,
                name: name.clone(),
                hint: near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default(),
            }),
        }
    }

    /// The options that were given.
    pub(crate) fn given(&self) -> impl Iterator<Item = (String, Value)> {
        self.given.iter().cloned()
    }
}
