//! `quelea list`: the tables.

use std::collections::BTreeSet;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, ValueEnum};
use quelea_core::options::{OptionKind, OptionSpec, Options};
use quelea_core::registry::Registry;
use quelea_core::{algorithms, codec, collectives, optim, topology};
use quelea_data::catalogue;
use quelea_run::config::chosen::Listed;
use quelea_run::config::resolved::written;
use quelea_run::config::section::ExtraKey;
use quelea_run::config::{self, chaos, cluster};
use quelea_run::tasks::TaskEntry;
use serde_json::{Value, json};

use super::CommandSpec;
use crate::text::{bold, pale, say};

/// The row.
pub const COMMAND: CommandSpec = CommandSpec { name: "list", parser: Args::command, run };

const EXAMPLES: &str = "\
Examples:
  quelea list algorithms             names, what they do, their keys and defaults
  quelea list settings               all other keys of a configuration
  quelea list topologies --json      the same for programs";

/// Print one of the tables: what a configuration may name, with keys and defaults
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    /// Which table
    #[arg(value_enum)]
    table: ListTable,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ListTable {
    Algorithms,
    Topologies,
    Optimizers,
    Schedules,
    Codecs,
    Tasks,
    Collectives,
    Data,
    Settings,
}

/// One row of any table, for printing.
struct ListRow {
    name: &'static str,
    summary: &'static str,
    /// Where it was published, where that is known.
    paper: Option<&'static str>,
    /// Further properties, as name and text.
    properties: Vec<(&'static str, &'static str)>,
    keys: Vec<OptionSpec>,
    /// Keys whose values are more than a number or a word: name, shape, help.
    extras: Vec<(&'static str, &'static str, &'static str)>,
}

fn run(registry: &Registry, matches: &ArgMatches) -> anyhow::Result<()> {
    let args = Args::from_arg_matches(matches)?;
    let rows = rows(registry, args.table);
    if args.json {
        let rows: Vec<Value> = rows.iter().map(row_json).collect();
        say(&serde_json::to_string_pretty(&rows)?);
    } else {
        print(&rows);
    }
    Ok(())
}

fn rows(registry: &Registry, table: ListTable) -> Vec<ListRow> {
    match table {
        ListTable::Algorithms => listed(registry, |row: &algorithms::Entry| {
            let properties = vec![
                ("sends", row.sends),
                ("codecs", (row.codecs)(&Options::defaults(row.meta.options)).words()),
                ("loses a worker", row.lost_peer),
                ("resumes with more or fewer", row.resized),
            ];
            (Some(row.meta.paper), properties)
        }),
        ListTable::Topologies => {
            listed(registry, |row: &topology::Entry| (Some(row.meta.paper), Vec::new()))
        }
        ListTable::Optimizers => {
            listed(registry, |row: &optim::Entry| (Some(row.meta.paper), Vec::new()))
        }
        ListTable::Codecs => listed(registry, |row: &codec::Entry| {
            (Some(row.meta.paper), vec![("bytes of d elements", row.wire)])
        }),
        ListTable::Schedules => listed(registry, |_: &optim::ScheduleEntry| (None, Vec::new())),
        ListTable::Tasks => listed(registry, |_: &TaskEntry| (None, Vec::new())),
        ListTable::Collectives => collectives::COLLECTIVES
            .iter()
            .map(|row| ListRow {
                name: row.meta.name,
                summary: row.meta.summary,
                paper: None,
                properties: Vec::new(),
                keys: Vec::new(),
                extras: Vec::new(),
            })
            .collect(),
        ListTable::Data => catalogue::DATA_SETS.iter().map(data).collect(),
        ListTable::Settings => settings(),
    }
}

fn data(row: &catalogue::DataSet) -> ListRow {
    ListRow {
        name: row.name,
        summary: row.summary,
        paper: None,
        properties: vec![("terms", row.terms)],
        keys: Vec::new(),
        extras: Vec::new(),
    }
}

/// The keys of a configuration that belong to no row of a table.
fn settings() -> Vec<ListRow> {
    let table = |name, summary, keys: &[OptionSpec], extras: &[ExtraKey]| ListRow {
        name,
        summary,
        paper: None,
        properties: Vec::new(),
        keys: keys.to_vec(),
        extras: extras.iter().map(extra).collect(),
    };
    vec![
        table("top", "what stands in no table", config::TOP, &[]),
        table("buckets", "how the model is cut for sending", config::BUCKETS, &[]),
        table("checkpoint", "when the state of the run is saved", config::CHECKPOINT, &[]),
        table("membership", "what happens when a worker is lost", config::MEMBERSHIP, &[]),
        table("trust", "what happens when a rank misbehaves", config::TRUST, &[]),
        table(
            "cluster",
            "the virtual cluster; `train` uses hosts, servers, server_hosts and slow",
            cluster::KEYS,
            cluster::EXTRAS,
        ),
        table("chaos", "random faults in `simulate`", chaos::KEYS, &[]),
    ]
}

fn extra(extra: &ExtraKey) -> (&'static str, &'static str, &'static str) {
    (extra.name, extra.shape.describe(), extra.help)
}

type ListedProperties = (Option<&'static str>, Vec<(&'static str, &'static str)>);

fn listed<T: Listed>(
    registry: &Registry,
    properties: impl Fn(&'static T) -> ListedProperties,
) -> Vec<ListRow> {
    let row = |entry: &'static T| {
        let (paper, properties) = properties(entry);
        ListRow {
            name: entry.meta().name,
            summary: entry.meta().summary,
            paper,
            properties,
            keys: entry.keys(),
            extras: entry.extras().iter().map(extra).collect(),
        }
    };
    registry.entries().map(row).collect()
}

fn print(rows: &[ListRow]) {
    let common = common(rows);
    for row in rows {
        say(&format!("{}  {}", bold(row.name), row.summary));
        for (name, text) in row.paper.map(|paper| ("paper", paper)).iter().chain(&row.properties) {
            say(&format!("    {} {text}", pale(&format!("{name}:"))));
        }
        print_keys(row, |key| !common.contains(key));
    }
    let Some(first) = rows.first().filter(|_| !common.is_empty()) else {
        return;
    };
    say("\nAll of them have:");
    print_keys(first, |key| common.contains(key));
}

/// The keys with their defaults in one column, what they are in the next.
fn print_keys(row: &ListRow, is_wanted: impl Fn(&str) -> bool) {
    let plain = row.keys.iter().map(|key| (key.name, shown(&default(key)), about(key)));
    let extras = row.extras.iter();
    let extras = extras.map(|(name, shape, help)| (*name, "…".into(), format!("{shape}: {help}")));
    let keys: Vec<(String, String)> = plain
        .chain(extras)
        .filter(|(name, ..)| is_wanted(name))
        .map(|(name, default, about)| (format!("{name} = {default}"), about))
        .collect();
    let width = keys.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0);
    for (key, about) in keys {
        say(&format!("    {key:<width$}  {}", pale(&about)));
    }
}

/// The keys that every one of several rows has, with one meaning and one default.
fn common(rows: &[ListRow]) -> BTreeSet<&'static str> {
    let keys = |row: &ListRow| -> BTreeSet<(&'static str, String, String)> {
        row.keys.iter().map(|key| (key.name, shown(&default(key)), about(key))).collect()
    };
    let common = match rows {
        [first, _, ..] => rows.iter().fold(keys(first), |common, row| &common & &keys(row)),
        _ => BTreeSet::new(),
    };
    common.into_iter().map(|(name, ..)| name).collect()
}

/// What an absent key means; nothing where the default depends on the rest.
fn default(key: &OptionSpec) -> Value {
    match key.kind {
        OptionKind::Whole { default, min, .. } if default < min => Value::Null,
        OptionKind::Real { default, min, .. } if default < min => Value::Null,
        kind => written(kind, &kind.default()),
    }
}

fn shown(default: &Value) -> String {
    if default.is_null() { "…".to_string() } else { default.to_string() }
}

/// The help of a key, and what it may be where that is not plain.
fn about(key: &OptionSpec) -> String {
    match key.kind {
        OptionKind::Choice(words) if words.len() > 1 => {
            format!("{} ({})", key.help, words.join(", "))
        }
        _ => key.help.to_string(),
    }
}

fn row_json(row: &ListRow) -> Value {
    let keys = row.keys.iter().map(|key| {
        let mut about = json!({
            "name": key.name,
            "default": default(key),
            "help": key.help,
        });
        match key.kind {
            OptionKind::Real { min, max, .. } => about["range"] = json!([min, max]),
            OptionKind::Whole { min, max, .. } => about["range"] = json!([min, max]),
            OptionKind::Choice(words) => about["choices"] = json!(words),
            OptionKind::Flag(_) | OptionKind::Text | OptionKind::Reals => {}
        }
        about
    });
    let extras = row.extras.iter().map(
        |(name, shape, help)| json!({"name": name, "default": null, "shape": shape, "help": help}),
    );
    let mut about = json!({
        "name": row.name,
        "summary": row.summary,
        "paper": row.paper,
        "keys": keys.chain(extras).collect::<Vec<_>>(),
    });
    for (name, text) in &row.properties {
        about[name.replace(' ', "_")] = json!(text);
    }
    about
}
