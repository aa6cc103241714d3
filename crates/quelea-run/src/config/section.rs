//! One table of the configuration against the keys that it may have.

use std::collections::BTreeMap;

use quelea_core::options::{OptionError, OptionSpec, Options, Value as Given};
use quelea_core::registry::Registry;
use toml::{Table, Value};

use super::hint::hint;
use crate::error::RequestError;

/// A key whose value is more than a number, a word or a list of numbers.
#[derive(Clone, Copy, Debug)]
pub struct ExtraKey {
    /// Its name in the configuration.
    pub name: &'static str,
    /// What it may be.
    pub shape: ExtraShape,
    /// One line for people.
    pub help: &'static str,
}

/// What an [`ExtraKey`] may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraShape {
    /// Rows of numbers.
    Matrix,
    /// A positive number for some workers or hosts: `{ "3" = 10.0 }`.
    Numbered,
    /// A table inside, dealt with by itself.
    Inside,
}

/// The value of an [`ExtraKey`].
#[derive(Clone, Debug, PartialEq)]
pub enum Shaped {
    /// Rows of numbers.
    Matrix(Vec<Vec<f64>>),
    /// Numbers by worker or host.
    Numbered(BTreeMap<u32, f64>),
    /// A table as it was written.
    Inside(Table),
}

/// What a table may hold.
#[derive(Clone, Copy, Debug)]
pub struct Allowed<'a> {
    /// The table's dotted name; empty for the top.
    pub path: &'a str,
    /// Its plain keys.
    pub keys: &'a [OptionSpec],
    /// Its other keys.
    pub extras: &'a [ExtraKey],
    /// Names that are dealt with elsewhere (`name`, tables inside).
    pub others: &'a [&'a str],
}

/// The checked values of one table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SectionValues {
    /// The plain keys, every one with a value.
    pub options: Options,
    /// The other keys, where given.
    pub extras: BTreeMap<&'static str, Shaped>,
}

impl SectionValues {
    /// The matrix `name`, if it was given.
    pub fn matrix(&self, name: &str) -> Option<&[Vec<f64>]> {
        match self.extras.get(name) {
            Some(Shaped::Matrix(rows)) => Some(rows),
            _ => None,
        }
    }

    /// The numbers by worker or host of `name`; none if they were not given.
    pub fn numbered(&self, name: &str) -> BTreeMap<u32, f64> {
        match self.extras.get(name) {
            Some(Shaped::Numbered(numbers)) => numbers.clone(),
            _ => BTreeMap::new(),
        }
    }

    /// The table `name` inside this one; empty if it was not given.
    pub fn inside(&self, name: &str) -> Table {
        match self.extras.get(name) {
            Some(Shaped::Inside(table)) => table.clone(),
            _ => Table::new(),
        }
    }
}

impl Allowed<'_> {
    /// The dotted path of a key of this table.
    pub fn path_of(&self, key: &str) -> String {
        dotted(self.path, key)
    }

    /// Checks a table against what it may hold and fills in the defaults.
    pub fn check(&self, table: &Table) -> Result<SectionValues, RequestError> {
        self.check_in(&Registry::builtin(), table)
    }

    /// As [`check`](Allowed::check); an unknown key is looked for in a registry, to say whose it is.
    pub fn check_in(
        &self,
        registry: &Registry,
        table: &Table,
    ) -> Result<SectionValues, RequestError> {
        self.check_by(registry, table, |given| Options::check(self.keys, given))
    }

    /// As [`check_in`](Allowed::check_in), with another check of the plain keys.
    pub fn check_by(
        &self,
        registry: &Registry,
        table: &Table,
        check: impl FnOnce(Vec<(String, Given)>) -> Result<Options, OptionError>,
    ) -> Result<SectionValues, RequestError> {
        let mut plain = Vec::new();
        let mut extras = BTreeMap::new();
        for (name, value) in table {
            if self.others.contains(&name.as_str()) {
                continue;
            } else if let Some(extra) = self.extras.iter().find(|extra| extra.name == name) {
                let shaped = extra.shape.read(value);
                let refuse = |problem| RequestError::field(self.path_of(name), value, problem);
                extras.insert(extra.name, shaped.map_err(refuse)?);
            } else if self.keys.iter().any(|key| key.name == name) {
                plain.push((name.clone(), given(value)));
            } else {
                return Err(self.unknown(registry, name, value));
            }
        }
        let options = check(plain).map_err(|error| match error.key.as_str() {
            "" => RequestError::field(self.path, Value::Table(table.clone()), error.problem),
            key => {
                let written = table.get(key).map_or(error.given, ToString::to_string);
                RequestError::field(self.path_of(key), written, error.problem)
            }
        })?;
        Ok(SectionValues { options, extras })
    }

    fn unknown(&self, registry: &Registry, name: &str, value: &Value) -> RequestError {
        let problem = format!("unknown key; {}", hint(registry, self, name));
        RequestError::field(self.path_of(name), value, problem)
    }

    /// Every name that may stand in the table.
    pub fn names(&self) -> Vec<&str> {
        let keys = self.keys.iter().map(|key| key.name);
        let extras = self.extras.iter().map(|extra| extra.name);
        self.others.iter().copied().chain(keys).chain(extras).collect()
    }
}

/// A key with the table it stands in.
pub fn dotted(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_string() } else { format!("{path}.{key}") }
}

impl ExtraShape {
    /// What a value of this shape looks like, for people.
    pub fn describe(self) -> &'static str {
        match self {
            ExtraShape::Matrix => "rows of numbers",
            ExtraShape::Numbered => "numbers by worker or host",
            ExtraShape::Inside => "a table",
        }
    }

    fn read(self, value: &Value) -> Result<Shaped, String> {
        match self {
            ExtraShape::Matrix => matrix(value).map(Shaped::Matrix).ok_or_else(|| {
                "must be a list of rows of finite numbers, as in [[1, 2], [3, 4]]".to_string()
            }),
            ExtraShape::Numbered => numbered(value).map(Shaped::Numbered),
            ExtraShape::Inside => match value {
                Value::Table(table) => Ok(Shaped::Inside(table.clone())),
                _ => Err("must be a table".to_string()),
            },
        }
    }
}

fn matrix(value: &Value) -> Option<Vec<Vec<f64>>> {
    let row = |row: &Value| row.as_array()?.iter().map(number).collect::<Option<Vec<f64>>>();
    value.as_array()?.iter().map(row).collect()
}

fn numbered(value: &Value) -> Result<BTreeMap<u32, f64>, String> {
    let form = || "must be a table from number to value, as in { \"3\" = 10.0 }".to_string();
    let read = |(key, value): (&String, &Value)| {
        // "03" and "3" would be the same worker.
        let plain = |key: &str| key.parse().ok().filter(|number: &u32| number.to_string() == key);
        let key: u32 = plain(key).ok_or_else(form)?;
        match number(value) {
            Some(value) if value > 0.0 => Ok((key, value)),
            _ => Err(format!("the value of {key} must be a number above 0")),
        }
    };
    value.as_table().ok_or_else(form)?.iter().map(read).collect()
}

/// Numbers as a person would write them.
pub fn list(numbers: &[f64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    format!("[{}]", numbers.join(", "))
}

/// A finite number.
fn number(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Integer(whole) => *whole as f64,
        Value::Float(real) => *real,
        _ => return None,
    };
    number.is_finite().then_some(number)
}

/// A value in the core's terms. What no key could be (a date, a table, an infinity) becomes a
/// list that every kind of key refuses, so that the refusal says what is allowed there.
fn given(value: &Value) -> Given {
    let refused = || Given::Numbers(vec![f64::NAN]);
    match value {
        Value::Integer(_) | Value::Float(_) => number(value).map_or_else(refused, Given::Number),
        Value::String(text) => Given::Text(text.clone()),
        Value::Boolean(flag) => Given::Flag(*flag),
        Value::Array(items) => {
            let numbers: Option<Vec<f64>> = items.iter().map(number).collect();
            numbers.map_or_else(refused, Given::Numbers)
        }
        _ => refused(),
    }
}
