//! Forms of the algorithms, from the table: every combination of an algorithm's words and flags
//! that it accepts, and its whole numbers one at a time.

use quelea_core::algorithms::{ALGORITHMS, Entry, Traffic};
use quelea_core::codec::{self, CODECS, CodecShape};
use quelea_core::options::{OptionKind, OptionSpec, Options, Value};
use quelea_core::properties::Properties;

/// An algorithm with values for some of its options.
#[derive(Clone, Debug)]
pub struct AlgorithmForm {
    /// The algorithm.
    pub entry: &'static Entry,
    /// All options.
    pub options: Options,
    /// Those that were set.
    given: Vec<(&'static str, Value)>,
}

/// All forms of all algorithms.
pub fn forms() -> Vec<AlgorithmForm> {
    ALGORITHMS.iter().flat_map(forms_of).collect()
}

/// The forms that give the same bits under any timing.
pub fn synchronous() -> Vec<AlgorithmForm> {
    forms().into_iter().filter(|form| form.properties().synchronous).collect()
}

/// The forms of one algorithm, its defaults first.
pub fn forms_of(entry: &'static Entry) -> Vec<AlgorithmForm> {
    let mut products = vec![default_of(entry)];
    for key in entry.meta.options {
        let values: Vec<Value> = match key.kind {
            OptionKind::Choice(words) => words.iter().map(|w| Value::Text((*w).into())).collect(),
            OptionKind::Flag(default) => [default, !default].map(Value::Flag).into(),
            _ => continue,
        };
        let with = |value: &Value| products.iter().map(|form| form.with(key, value)).collect();
        products = values.iter().flat_map(|value| -> Vec<AlgorithmForm> { with(value) }).collect();
    }
    let default = default_of(entry);
    let wholes = entry.meta.options.iter().filter(|key| !is_period(key)).flat_map(|key| {
        let OptionKind::Whole { default: usual, min, max } = key.kind else { return Vec::new() };
        let others = [min, 2].into_iter().filter(|n| *n != usual && (min..=max).contains(n));
        others.map(|number| default.with(key, &Value::Number(number as f64))).collect()
    });
    products.extend(wholes);
    products.retain(|form| (entry.check)(&form.options).is_ok());
    products
}

/// The defaults of an algorithm, with a short period where there is one: short runs then have some
/// rounds.
pub fn default_of(entry: &'static Entry) -> AlgorithmForm {
    let form =
        AlgorithmForm { entry, options: Options::defaults(entry.meta.options), given: Vec::new() };
    let period = entry.meta.options.iter().find(|key| is_period(key));
    period.map_or(form.clone(), |period| form.with(period, &Value::Number(3.0)))
}

/// Whether an option is a period of several steps by default.
fn is_period(key: &OptionSpec) -> bool {
    key.name == "period" && !matches!(key.kind, OptionKind::Whole { default: 1, .. })
}

impl AlgorithmForm {
    fn with(&self, key: &OptionSpec, value: &Value) -> AlgorithmForm {
        let mut form = self.clone();
        form.options = form.options.with(key.name, value.clone());
        if *value != key.kind.default() {
            form.given.push((key.name, value.clone()));
        }
        form
    }

    /// What stands in `[algorithm]`.
    pub fn text(&self) -> String {
        let given = self.given.iter().map(|(name, value)| format!("\n{name} = {value}"));
        format!("name = \"{}\"{}", self.entry.meta.name, given.collect::<String>())
    }

    /// What drivers know of it.
    pub fn properties(&self) -> Properties {
        (self.entry.properties)(&self.options)
    }

    /// What it exchanges.
    pub fn traffic(&self) -> Traffic {
        (self.entry.traffic)(&self.options)
    }

    /// Whether its exact averages, if it has any, are rings.
    pub fn averages_in_rings(&self) -> bool {
        let collective = self.options.iter().find(|(name, _)| *name == "collective");
        collective.is_none_or(|(_, value)| *value == Value::Text("ring".to_string()))
    }

    /// The codecs that it accepts for vectors of up to `longest` elements, but for those that need
    /// a matrix. The last of each pair is what stands in `[codec]`.
    pub fn codecs(&self, longest: usize) -> Vec<(&'static codec::Entry, String)> {
        let accepted = (self.entry.codecs)(&self.options);
        let takes = |codec: &&codec::Entry| {
            let given = contraction(codec).map(|key| (key.name.to_string(), Value::Flag(true)));
            let options = Options::check(codec.meta.options, given).expect("a key of the codec");
            // One scale per message would make replicas differ in other collectives.
            let scaled = codec.shape == CodecShape::Rounding && !codec.per_element;
            codec.shape != CodecShape::LowRank
                && (self.averages_in_rings() || !scaled)
                && accepted.refusal(codec, &options, longest).is_none()
        };
        let text = |codec: &'static codec::Entry| {
            let contract = contraction(codec).map(|key| format!("\n{} = true", key.name));
            (codec, format!("name = \"{}\"{}", codec.meta.name, contract.unwrap_or_default()))
        };
        CODECS.iter().filter(takes).map(text).collect()
    }
}

/// The flag that makes a codec a contraction, where it is not always one.
fn contraction(codec: &codec::Entry) -> Option<&'static OptionSpec> {
    codec.meta.options.iter().find(|key| key.name == "contract")
}
