//! Options of a table entry: what may be set, within which limits, with which default.
//!
//! Entries of every table (algorithms, topologies, optimizers, …) declare their [`OptionSpec`]s; what a
//! person wrote is checked against them once, in [`Options::check`].

use std::collections::BTreeMap;

use crate::names::nearest;

/// One option of an entry.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Its name in the configuration.
    pub name: &'static str,
    /// What it may be.
    pub kind: OptionKind,
    /// One line for people.
    pub help: &'static str,
}

/// What a parameter may be, with its default.
#[derive(Clone, Copy, Debug)]
pub enum OptionKind {
    /// A real number from `min` to `max`, both included.
    Real {
        /// If absent.
        default: f64,
        /// Smallest.
        min: f64,
        /// Largest.
        max: f64,
    },
    /// A whole number from `min` to `max`, both included.
    Whole {
        /// If absent.
        default: u64,
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// One of these words; the first is the default.
    Choice(&'static [&'static str]),
    /// Yes or no.
    Flag(bool),
    /// Any text; empty if absent.
    Text,
    /// A list of real numbers; empty if absent.
    Reals,
}

/// A value as a person wrote it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number with or without a fraction.
    Number(f64),
    /// A word.
    Text(String),
    /// Yes or no.
    Flag(bool),
    /// Several numbers.
    Numbers(Vec<f64>),
}

impl From<f64> for Value {
    fn from(number: f64) -> Value {
        Value::Number(number)
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Value {
        Value::Number(f64::from(number))
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Number(number as f64)
    }
}

impl From<&str> for Value {
    fn from(word: &str) -> Value {
        Value::Text(word.to_string())
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Value {
        Value::Flag(flag)
    }
}

impl From<Vec<f64>> for Value {
    fn from(numbers: Vec<f64>) -> Value {
        Value::Numbers(numbers)
    }
}

/// Why a parameter was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{key}` = {given}: {problem}")]
pub struct OptionError {
    /// The key.
    pub key: String,
    /// What was written.
    pub given: String,
    /// What is allowed instead.
    pub problem: String,
}

/// Checked options: every key of the entry has a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    values: BTreeMap<&'static str, Value>,
}

impl Options {
    /// The defaults of these keys.
    pub fn defaults(keys: &[OptionSpec]) -> Options {
        Options { values: keys.iter().map(|key| (key.name, key.kind.default())).collect() }
    }

    /// Checks what was `given` against the entry's `keys`, and fills in defaults.
    pub fn check(
        keys: &[OptionSpec],
        given: impl IntoIterator<Item = (String, Value)>,
    ) -> Result<Options, OptionError> {
        let mut params = Options::defaults(keys);
        for (name, value) in given {
            let Some(key) = keys.iter().find(|key| key.name == name) else {
                return Err(unknown(keys, &name, &value));
            };
            let value = key.kind.check(&value).map_err(|problem| OptionError {
                key: name,
                given: value.to_string(),
                problem,
            })?;
            params.values.insert(key.name, value);
        }
        Ok(params)
    }

    /// Sets a value without checking; for tests and for entries that build on others.
    pub fn with(mut self, name: &'static str, value: Value) -> Options {
        self.values.insert(name, value);
        self
    }

    /// A real number.
    pub fn real(&self, name: &str) -> f64 {
        match self.values.get(name) {
            Some(Value::Number(number)) => *number,
            other => panic!("key `{name}` is declared as a number, not {other:?}"),
        }
    }

    /// A whole number.
    pub fn whole(&self, name: &str) -> u64 {
        self.real(name) as u64
    }

    /// A word.
    pub fn text(&self, name: &str) -> &str {
        match self.values.get(name) {
            Some(Value::Text(text)) => text,
            other => panic!("key `{name}` is declared as text, not {other:?}"),
        }
    }

    /// A yes or no.
    pub fn flag(&self, name: &str) -> bool {
        match self.values.get(name) {
            Some(Value::Flag(flag)) => *flag,
            other => panic!("key `{name}` is declared as a flag, not {other:?}"),
        }
    }

    /// A list of numbers.
    pub fn reals(&self, name: &str) -> &[f64] {
        match self.values.get(name) {
            Some(Value::Numbers(numbers)) => numbers,
            other => panic!("key `{name}` is declared as a list, not {other:?}"),
        }
    }

    /// All values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.values.iter().map(|(name, value)| (*name, value))
    }
}

fn unknown(keys: &[OptionSpec], name: &str, value: &Value) -> OptionError {
    let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
    let near = nearest(name, names.iter().copied());
    let problem = match (near, names.is_empty()) {
        (_, true) => "there is nothing to set here".to_string(),
        (Some(near), _) => format!("unknown key; did you mean `{near}`?"),
        (None, _) => format!("unknown key; allowed are {}", names.join(", ")),
    };
    OptionError { key: name.to_string(), given: value.to_string(), problem }
}

impl OptionKind {
    /// The value of an absent key.
    pub fn default(&self) -> Value {
        match self {
            OptionKind::Real { default, .. } => Value::Number(*default),
            OptionKind::Whole { default, .. } => Value::Number(*default as f64),
            OptionKind::Choice(words) => Value::Text(words[0].to_string()),
            OptionKind::Flag(default) => Value::Flag(*default),
            OptionKind::Text => Value::Text(String::new()),
            OptionKind::Reals => Value::Numbers(Vec::new()),
        }
    }

    fn check(&self, value: &Value) -> Result<Value, String> {
        match (self, value) {
            (OptionKind::Real { min, max, .. }, Value::Number(x)) if *min <= *x && *x <= *max => {
                Ok(value.clone())
            }
            (OptionKind::Real { min, max, .. }, _) => {
                Err(format!("must be a number {}", span(min, max)))
            }
            (OptionKind::Whole { min, max, .. }, Value::Number(x))
                if x.fract() == 0.0 && *min as f64 <= *x && *x <= *max as f64 =>
            {
                Ok(value.clone())
            }
            (OptionKind::Whole { min, max, .. }, _) => {
                let most = if *max == u64::MAX { f64::INFINITY } else { *max as f64 };
                Err(format!("must be a whole number {}", span(&(*min as f64), &most)))
            }
            (OptionKind::Choice(words), Value::Text(word)) if words.contains(&word.as_str()) => {
                Ok(value.clone())
            }
            (OptionKind::Choice(words), Value::Text(word)) => {
                let near = nearest(word, words.iter().copied());
                let hint = near.map(|near| format!("; did you mean \"{near}\"?"));
                Err(format!("must be one of {}{}", words.join(", "), hint.unwrap_or_default()))
            }
            (OptionKind::Choice(words), _) => Err(format!("must be one of {}", words.join(", "))),
            (OptionKind::Flag(_), Value::Flag(_)) => Ok(value.clone()),
            (OptionKind::Flag(_), _) => Err("must be true or false".to_string()),
            (OptionKind::Text, Value::Text(_)) => Ok(value.clone()),
            (OptionKind::Text, _) => Err("must be text".to_string()),
            (OptionKind::Reals, Value::Numbers(numbers))
                if numbers.iter().all(|x| x.is_finite()) =>
            {
                Ok(value.clone())
            }
            (OptionKind::Reals, _) => Err("must be a list of finite numbers".to_string()),
        }
    }
}

fn span(min: &f64, max: &f64) -> String {
    match (*min == f64::MIN_POSITIVE, max.is_infinite() || *max == f64::MAX) {
        (true, true) => "above 0".to_string(),
        (true, false) => format!("above 0 and at most {max}"),
        (false, true) => format!("of at least {min}"),
        (false, false) => format!("from {min} to {max}"),
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Number(number) => write!(f, "{number}"),
            Value::Text(text) => write!(f, "\"{text}\""),
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::Numbers(numbers) => write!(f, "{numbers:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &[OptionSpec] = &[
        OptionSpec {
            name: "alpha",
            kind: OptionKind::Real { default: 0.5, min: f64::MIN_POSITIVE, max: 1.0 },
            help: "",
        },
        OptionSpec {
            name: "period",
            kind: OptionKind::Whole { default: 4, min: 1, max: u64::MAX },
            help: "",
        },
        OptionSpec {
            name: "form",
            kind: OptionKind::Choice(&["consensus", "adapt-then-combine"]),
            help: "",
        },
    ];

    fn message(name: &str, value: Value) -> String {
        Options::check(KEYS, [(name.to_string(), value)]).expect_err("refused").to_string()
    }

    #[test]
    fn defaults_fill_what_was_not_given() {
        let params =
            Options::check(KEYS, [("period".to_string(), Value::Number(2.0))]).expect("good");
        assert_eq!((params.real("alpha"), params.whole("period")), (0.5, 2));
        assert_eq!(params.text("form"), "consensus");
    }

    #[test]
    fn refusals_name_the_key_the_value_and_what_is_allowed() {
        assert_eq!(
            message("alhpa", Value::Number(1.0)),
            "`alhpa` = 1: unknown key; did you mean `alpha`?"
        );
        assert_eq!(
            message("alpha", Value::Number(-1.0)),
            "`alpha` = -1: must be a number above 0 and at most 1"
        );
        assert_eq!(
            message("alpha", Value::Number(f64::NAN)),
            "`alpha` = NaN: must be a number above 0 and at most 1"
        );
        assert_eq!(
            message("period", Value::Number(1.5)),
            "`period` = 1.5: must be a whole number of at least 1"
        );
        assert!(
            message("form", Value::Text("consesus".into()))
                .ends_with("did you mean \"consensus\"?")
        );
    }
}
