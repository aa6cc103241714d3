//! What a knob of the virtual cluster is, and the macro that turns one declaration of all knobs
//! into the fields of [`Cluster`], their defaults and the table [`KNOBS`](crate::KNOBS).

use quelea_core::options::{OptionKind, OptionSpec, Value};

use crate::cluster::{Cluster, ClusterError};

/// One number or flag of a [`Cluster`]: all that configuration, checks and manual know about it.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Name, default, range and one line of help, as in the configuration.
    pub spec: OptionSpec,
    /// The smallest number that is allowed beside 0.
    pub least: f64,
    /// What it counts; empty for flags.
    pub unit: &'static str,
    /// What it does in the model, for the manual.
    pub meaning: &'static str,
    /// Reads it.
    pub get: fn(&Cluster) -> Value,
    /// Sets it. Panics if the value is of another kind than the knob's.
    pub set: fn(&mut Cluster, &Value),
}

impl Knob {
    /// Whether the cluster's value is one that the knob may have.
    pub(crate) fn check(&self, cluster: &Cluster) -> Result<(), ClusterError> {
        let (value, zero) = match (self.spec.kind, (self.get)(cluster)) {
            (OptionKind::Real { min, .. }, Value::Number(value)) => (value, min == 0.0),
            (OptionKind::Whole { min, .. }, Value::Number(value)) => (value, min == 0),
            _ => return Ok(()),
        };
        let (least, most) = (self.least, self.most());
        if (least..=most).contains(&value) || zero && value == 0.0 {
            return Ok(());
        }
        let zero = if zero && least > 0.0 { "0, or " } else { "" };
        let allowed = format!("must be {zero}a number from {least} to {most}");
        Err(ClusterError::new(self.spec.name, value, allowed))
    }

    fn most(&self) -> f64 {
        match self.spec.kind {
            OptionKind::Real { max, .. } => max,
            OptionKind::Whole { max, .. } => max as f64,
            _ => f64::INFINITY,
        }
    }
}

/// A default with the values that are allowed in its place.
pub(crate) struct Range {
    pub(crate) kind: OptionKind,
    pub(crate) least: f64,
}

/// A real number.
pub(crate) const fn real(default: f64, min: f64, max: f64) -> Range {
    Range { kind: OptionKind::Real { default, min, max }, least: min }
}

/// A network card or link, from one kilobit to one exabit per second.
pub(crate) const fn card(default: f64) -> Range {
    real(default, 1e-6, 1e9)
}

/// A rate at which something happens, or 0 where it takes no time; 0 by default.
pub(crate) const fn rate() -> Range {
    Range { least: 1e-6, ..real(0.0, 0.0, 1e9) }
}

/// Up to a quarter of an hour.
pub(crate) const fn micros(default: f64) -> Range {
    real(default, 0.0, 1e9)
}

/// Up to about a month.
pub(crate) const fn millis(default: f64) -> Range {
    real(default, 0.0, 3e9)
}

/// A whole number up to a million; 0 by default.
pub(crate) const fn whole() -> Range {
    Range { kind: OptionKind::Whole { default: 0, min: 0, max: 1_000_000 }, least: 0.0 }
}

/// One of these words; the first by default.
pub(crate) const fn choice(words: &'static [&'static str]) -> Range {
    Range { kind: OptionKind::Choice(words), least: 0.0 }
}

/// Yes or no; no by default.
pub(crate) const fn flag() -> Range {
    Range { kind: OptionKind::Flag(false), least: 0.0 }
}

/// The type of a knob's field.
pub(crate) trait Field: Copy {
    fn value(self) -> Value;
    fn read(value: &Value) -> Self;
}

impl Field for f64 {
    fn value(self) -> Value {
        Value::Number(self)
    }

    fn read(value: &Value) -> f64 {
        match value {
            Value::Number(number) => *number,
            other => panic!("the knob is a number, not {other}"),
        }
    }
}

impl Field for u32 {
    fn value(self) -> Value {
        Value::Number(f64::from(self))
    }

    fn read(value: &Value) -> u32 {
        f64::read(value) as u32
    }
}

impl Field for usize {
    fn value(self) -> Value {
        Value::Number(self as f64)
    }

    fn read(value: &Value) -> usize {
        f64::read(value) as usize
    }
}

impl Field for bool {
    fn value(self) -> Value {
        Value::Flag(self)
    }

    fn read(value: &Value) -> bool {
        match value {
            Value::Flag(flag) => *flag,
            other => panic!("the knob is a flag, not {other}"),
        }
    }
}

/// Declares the struct of a cluster: knobs as `name: type = range, unit, help;` with their meaning
/// as comments above, then the fields that are more than a number. It also makes the struct's
/// `Default` and the table `KNOBS`, in the order of the declaration.
macro_rules! knobs {
    (
        $(#[$about:meta])*
        pub struct $cluster:ident;
        $($(#[doc = $meaning:literal])+
        $name:ident: $type:ty = $range:expr, $unit:literal, $help:literal;)+
        others: $($(#[$other_about:meta])+ $other:ident: $other_type:ty,)+
    ) => {
        $(#[$about])*
        pub struct $cluster {
            $($(#[doc = $meaning])+ pub $name: $type,)+
            $($(#[$other_about])+ pub $other: $other_type,)+
        }

        impl Default for $cluster {
            fn default() -> $cluster {
                $cluster {
                    $($name: <$type as $crate::knob::Field>::read(&$range.kind.default()),)+
                    $($other: Default::default(),)+
                }
            }
        }

        /// All knobs of the virtual cluster that are numbers, flags or choices.
        pub const KNOBS: &[Knob] = &[$(Knob {
            spec: OptionSpec { name: stringify!($name), kind: $range.kind, help: $help },
            least: $range.least,
            unit: $unit,
            meaning: concat!($($meaning),+),
            get: |cluster| $crate::knob::Field::value(cluster.$name),
            set: |cluster, value| cluster.$name = $crate::knob::Field::read(value),
        }),+];
    };
}

pub(crate) use knobs;
