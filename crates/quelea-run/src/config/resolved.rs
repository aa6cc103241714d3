//! The configuration with all defaults resolved, as JSON: every key with its value. It is a
//! configuration again, so it also tells another process what to run.

use quelea_core::options::{OptionKind, OptionSpec, Options, Value as Given};
use quelea_core::run_spec::DataAssignment;
use serde_json::{Map, Value, json};

use super::chosen::{Chosen, Listed};
use super::section::{SectionValues, Shaped};
use super::{BUCKETS, CHECKPOINT, Config, Length, MEMBERSHIP, TRUST, chaos, cluster};

impl Config {
    /// All keys with their values.
    pub fn resolved(&self) -> Value {
        let mut optimizer = row(&self.optimizer);
        optimizer.insert("schedule".to_string(), Value::Object(row(&self.schedule)));
        let mut cluster = values(cluster::KEYS, &self.cluster);
        if self.cluster.options.whole("hosts") == 0 {
            cluster.insert("hosts".to_string(), json!(self.workers));
        }
        if let Ok(hosts) = cluster::placement(&self.cluster, self.workers, 0, self.servers()) {
            cluster.insert("server_hosts".to_string(), json!(hosts[self.workers..]));
        }
        let mut config = Map::new();
        let mut put = |name: &str, value: Value| config.insert(name.to_string(), value);
        put("seed", json!(self.seed));
        put("workers", json!(self.workers));
        match self.length {
            Length::Steps(steps) => put("steps", json!(steps)),
            Length::Epochs(epochs) => put("epochs", json!(epochs)),
        };
        let is_shared = self.data == DataAssignment::Shared;
        put("data", json!(if is_shared { "shared" } else { "own" }));
        put("evaluations", json!(self.evaluations));
        put("evaluate_workers", json!(self.evaluate_workers));
        put("plots", json!(self.plots));
        put("transport", json!(self.transport.name()));
        put("algorithm", Value::Object(row(&self.algorithm)));
        put("topology", Value::Object(row(&self.topology)));
        put("optimizer", Value::Object(optimizer));
        put("codec", Value::Object(row(&self.codec)));
        put("buckets", Value::Object(plain(BUCKETS, &self.buckets)));
        put("checkpoint", Value::Object(plain(CHECKPOINT, &self.checkpoint)));
        put("membership", Value::Object(plain(MEMBERSHIP, &self.membership)));
        put("trust", Value::Object(plain(TRUST, &self.trust)));
        put("task", Value::Object(row(&self.task)));
        put("cluster", Value::Object(cluster));
        put("chaos", Value::Object(plain(chaos::KEYS, &self.chaos)));
        Value::Object(config)
    }
}

fn row<T: Listed>(row: &Chosen<T>) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("name".to_string(), json!(row.entry.meta().name));
    map.extend(values(&row.entry.keys(), &row.values));
    map
}

fn values(keys: &[OptionSpec], values: &SectionValues) -> Map<String, Value> {
    let mut map = plain(keys, &values.options);
    for (name, shaped) in &values.extras {
        let value = match shaped {
            Shaped::Matrix(rows) => json!(rows),
            Shaped::Numbered(numbers) => json!(numbers),
            Shaped::Inside(table) => json!(table),
        };
        map.insert(name.to_string(), value);
    }
    map
}

fn plain(keys: &[OptionSpec], options: &Options) -> Map<String, Value> {
    let value = |name: &str| options.iter().find(|(key, _)| *key == name).map(|(_, value)| value);
    keys.iter()
        .filter_map(|key| Some((key.name.to_string(), written(key.kind, value(key.name)?))))
        .collect()
}

/// A value as a person would write it.
pub fn written(kind: OptionKind, value: &Given) -> Value {
    match (kind, value) {
        (OptionKind::Whole { .. }, Given::Number(number)) => json!(*number as u64),
        (_, Given::Number(number)) => json!(number),
        (_, Given::Text(text)) => json!(text),
        (_, Given::Flag(flag)) => json!(flag),
        (_, Given::Numbers(numbers)) => json!(numbers),
    }
}
