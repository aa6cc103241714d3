//! `[cluster.faults]`: crashes, leaves, pauses, partitions, late control messages, rules about messages,
//! and attacks.

use quelea_core::options::{OptionKind, OptionSpec, Options};
use quelea_core::time::Time;
use quelea_sim::{
    ATTACKS, Attack, ControlDelay, Crash, Faults, Join, Leave, PairPartition, Pause, PlainRule,
    RankPartition, Rule, SidePartition, Verdict,
};
use toml::{Table, Value};

use super::section::{Allowed, SectionValues};
use crate::error::RequestError;

const FAULTS: [&str; 10] = [
    "crashes",
    "leaves",
    "joins",
    "pauses",
    "partitions",
    "pair_partitions",
    "splits",
    "control_delays",
    "rules",
    "attacks",
];

/// At most about a month.
const fn millis(name: &'static str, default: f64, help: &'static str) -> OptionSpec {
    OptionSpec { name, kind: OptionKind::Real { default, min: 0.0, max: 3e9 }, help }
}

pub(super) const fn whole(
    name: &'static str,
    default: u64,
    min: u64,
    help: &'static str,
) -> OptionSpec {
    OptionSpec { name, kind: OptionKind::Whole { default, min, max: 1_000_000 }, help }
}

const CRASH: &[OptionSpec] = &[whole("rank", 0, 0, "which"), millis("at_ms", 0.0, "when")];
const SPAN: &[OptionSpec] = &[
    whole("rank", 0, 0, "which"),
    millis("from_ms", 0.0, "since when"),
    millis("until_ms", f64::MAX, "until when"),
];
const PAIR: &[OptionSpec] = &[
    whole("rank", 0, 0, "one of the two"),
    whole("peer", 0, 0, "the other"),
    millis("from_ms", 0.0, "since when"),
    millis("until_ms", f64::MAX, "until when"),
];
const SPLIT: &[OptionSpec] = &[
    whole("from", 0, 0, "one side: the ranks from this one"),
    whole("to", 0, 0, "to this one"),
    millis("from_ms", 0.0, "since when"),
    millis("until_ms", f64::MAX, "until when"),
];
const CONTROL_DELAY: &[OptionSpec] = &[
    whole("rank", 0, 0, "whose control messages"),
    millis("from_ms", 0.0, "since when"),
    millis("until_ms", f64::MAX, "until when"),
    millis("delay_ms", 0.0, "how much later they arrive"),
];
const RULE: &[OptionSpec] = &[
    whole("from", 0, 0, "only messages from this rank"),
    whole("to", 0, 0, "only messages to this rank"),
    millis("from_ms", 0.0, "since when"),
    millis("until_ms", f64::MAX, "until when"),
    OptionSpec {
        name: "share",
        kind: OptionKind::Real { default: 1.0, min: 0.0, max: 1.0 },
        help: "only this share of them, chosen by the seed",
    },
    OptionSpec {
        name: "verdict",
        kind: OptionKind::Choice(&["drop", "delay", "duplicate"]),
        help: "what then",
    },
    millis("delay_ms", 0.0, "how much later, for delay"),
];

/// The names of all attacks.
const KINDS: &[&str] = &{
    let mut names = [""; ATTACKS.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = ATTACKS[index].name;
        index += 1;
    }
    names
};
const ATTACK: &[OptionSpec] = &[
    whole("rank", 0, 0, "which worker"),
    OptionSpec { name: "kind", kind: OptionKind::Choice(KINDS), help: "what it sends" },
    OptionSpec {
        name: "strength",
        kind: OptionKind::Real { default: 0.0, min: 0.0, max: 1e30 },
        help: "how strongly; each kind has its own default",
    },
];

/// Reads `[cluster.faults]`.
pub fn read(table: &Table) -> Result<Faults, RequestError> {
    if let Some(value) = table.get("cuts") {
        let problem = "was renamed; write `cluster.faults.partitions`";
        return Err(RequestError::field("cluster.faults.cuts", value, problem));
    }
    Allowed { path: "cluster.faults", keys: &[], extras: &[], others: &FAULTS }.check(table)?;
    let crash = |entry: FaultEntry<'_>| {
        Ok(Crash { rank: entry.rank()?, at_ms: entry.options.real("at_ms") })
    };
    let leave = |entry: FaultEntry<'_>| {
        Ok(Leave { rank: entry.rank()?, at_ms: entry.options.real("at_ms") })
    };
    let join = |entry: FaultEntry<'_>| {
        Ok(Join { rank: entry.rank()?, at_ms: entry.options.real("at_ms") })
    };
    let pause = |entry: FaultEntry<'_>| {
        let (rank, (from_ms, until_ms)) = (entry.rank()?, entry.span()?);
        if until_ms == f64::MAX {
            return Err(entry.lacks("until_ms", "a rank that never resumes has crashed"));
        }
        Ok(Pause { rank, from_ms, until_ms })
    };
    let partition = |entry: FaultEntry<'_>| {
        let (rank, (from_ms, until_ms)) = (entry.rank()?, entry.span()?);
        Ok(RankPartition { rank, from_ms, until_ms })
    };
    let control_delay = |entry: FaultEntry<'_>| {
        let (rank, (from_ms, until_ms)) = (entry.rank()?, entry.span()?);
        Ok(ControlDelay { rank, from_ms, until_ms, delay_ms: entry.options.real("delay_ms") })
    };
    Ok(Faults {
        crashes: list(table, "crashes", CRASH)?.into_iter().map(crash).collect::<Result<_, _>>()?,
        leaves: list(table, "leaves", CRASH)?.into_iter().map(leave).collect::<Result<_, _>>()?,
        joins: list(table, "joins", CRASH)?.into_iter().map(join).collect::<Result<_, _>>()?,
        pauses: list(table, "pauses", SPAN)?.into_iter().map(pause).collect::<Result<_, _>>()?,
        partitions: list(table, "partitions", SPAN)?
            .into_iter()
            .map(partition)
            .collect::<Result<_, _>>()?,
        pair_partitions: list(table, "pair_partitions", PAIR)?
            .into_iter()
            .map(pair)
            .collect::<Result<_, _>>()?,
        splits: list(table, "splits", SPLIT)?.into_iter().map(split).collect::<Result<_, _>>()?,
        control_delays: list(table, "control_delays", CONTROL_DELAY)?
            .into_iter()
            .map(control_delay)
            .collect::<Result<_, _>>()?,
        rules: list(table, "rules", RULE)?.into_iter().map(rule).collect::<Result<_, _>>()?,
        attacks: list(table, "attacks", ATTACK)?
            .into_iter()
            .map(attack)
            .collect::<Result<_, _>>()?,
    })
}

/// Refuses faults of ranks that do not exist: there are so many places for workers, then servers.
pub fn check_ranks(
    values: &SectionValues,
    seats: usize,
    servers: usize,
) -> Result<(), RequestError> {
    let ranks = seats + servers;
    let faults = values.inside("faults");
    let lists = [
        ("crashes", CRASH),
        ("leaves", CRASH),
        ("joins", CRASH),
        ("pauses", SPAN),
        ("partitions", SPAN),
        ("pair_partitions", PAIR),
        ("splits", SPLIT),
        ("control_delays", CONTROL_DELAY),
        ("rules", RULE),
        ("attacks", ATTACK),
    ];
    for (name, keys) in lists {
        for entry in list(&faults, name, keys)? {
            let whole = |key: &&str| entry.written.get(*key).and_then(Value::as_integer);
            let beyond = |key: &&str| whole(key).is_some_and(|rank| rank >= ranks as i64);
            if let Some(key) = ["rank", "peer", "from", "to"].iter().find(|key| beyond(key)) {
                let hint = match name {
                    "joins" => "; `membership.max_workers` makes room for more workers",
                    _ => "",
                };
                let problem = format!("there are {ranks} ranks, numbered from 0{hint}");
                return Err(entry.refusal(key, problem));
            }
        }
    }
    Ok(())
}

/// One fault of a list, its keys checked one by one.
struct FaultEntry<'a> {
    /// Dotted, with its number in the list.
    path: String,
    written: &'a Table,
    options: Options,
}

impl FaultEntry<'_> {
    fn refusal(&self, key: &str, problem: impl Into<String>) -> RequestError {
        let given = self.written.get(key).map_or("absent".to_string(), ToString::to_string);
        RequestError::field(format!("{}.{key}", self.path), given, problem)
    }

    fn lacks(&self, key: &str, why: &str) -> RequestError {
        let problem = format!("needs `{key}`: {why}");
        RequestError::field(&self.path, Value::Table(self.written.clone()), problem)
    }

    fn rank(&self) -> Result<u32, RequestError> {
        if self.written.contains_key("rank") {
            Ok(self.options.whole("rank") as u32)
        } else {
            Err(self.lacks("rank", "which rank is it about?"))
        }
    }

    fn span(&self) -> Result<(f64, f64), RequestError> {
        let (from_ms, until_ms) = (self.options.real("from_ms"), self.options.real("until_ms"));
        if until_ms > from_ms {
            Ok((from_ms, until_ms))
        } else {
            Err(self.refusal("until_ms", format!("must be after `from_ms` = {from_ms}")))
        }
    }
}

fn pair(entry: FaultEntry<'_>) -> Result<PairPartition, RequestError> {
    let (rank, (from_ms, until_ms)) = (entry.rank()?, entry.span()?);
    if !entry.written.contains_key("peer") {
        return Err(entry.lacks("peer", "which rank does it not reach?"));
    }
    if until_ms == f64::MAX {
        return Err(entry.lacks("until_ms", "what they send arrives when it is over"));
    }
    Ok(PairPartition { rank, peer: entry.options.whole("peer") as u32, from_ms, until_ms })
}

fn split(entry: FaultEntry<'_>) -> Result<SidePartition, RequestError> {
    let (from_ms, until_ms) = entry.span()?;
    if until_ms == f64::MAX {
        return Err(entry.lacks("until_ms", "when do the sides reach each other again?"));
    }
    let (from, to) = (entry.options.whole("from") as u32, entry.options.whole("to") as u32);
    Ok(SidePartition { ranks: (from..=to).collect(), from_ms, until_ms })
}

fn attack(entry: FaultEntry<'_>) -> Result<Attack, RequestError> {
    if !entry.written.contains_key("kind") {
        return Err(entry.lacks("kind", &format!("one of {}", KINDS.join(", "))));
    }
    let (rank, options) = (entry.rank()?, &entry.options);
    let found = ATTACKS.iter().find(|known| known.name == options.text("kind"));
    let kind = found.expect("checked against the same table").kind;
    let strength = entry.written.get("strength").map(|_| options.real("strength"));
    Ok(Attack { rank, kind, strength })
}

fn rule(entry: FaultEntry<'_>) -> Result<Rule, RequestError> {
    let options = &entry.options;
    let only = |name: &str| entry.written.get(name).map(|_| options.whole(name) as u32);
    let (from_ms, until_ms) = entry.span()?;
    let verdict = match (options.text("verdict"), options.real("delay_ms")) {
        ("delay", 0.0) => return Err(entry.lacks("delay_ms", "how much later, above 0?")),
        ("delay", delay_ms) => Verdict::Delay(Time::from_ms(delay_ms)),
        (_, delay_ms) if delay_ms > 0.0 => {
            return Err(entry.refusal("delay_ms", "is only for verdict = \"delay\""));
        }
        ("duplicate", _) => Verdict::Duplicate,
        _ => Verdict::Drop,
    };
    Ok(Rule::Plain(PlainRule {
        from: only("from"),
        to: only("to"),
        // Kinds are numbered by the algorithms, for themselves.
        kind: None,
        from_ms,
        until_ms,
        share: options.real("share"),
        verdict,
    }))
}

/// The entries of one list of faults.
fn list<'a>(
    table: &'a Table,
    name: &str,
    keys: &[OptionSpec],
) -> Result<Vec<FaultEntry<'a>>, RequestError> {
    let path = format!("cluster.faults.{name}");
    let Some(value) = table.get(name) else {
        return Ok(Vec::new());
    };
    let refuse =
        || RequestError::field(&path, value, "must be a list of tables, as in [{ rank = 1 }]");
    let entry = |(number, entry): (usize, &'a Value)| {
        let path = format!("{path}.{number}");
        let written = entry.as_table().ok_or_else(refuse)?;
        let options =
            Allowed { path: &path, keys, extras: &[], others: &[] }.check(written)?.options;
        Ok(FaultEntry { path, written, options })
    };
    value.as_array().ok_or_else(refuse)?.iter().enumerate().map(entry).collect()
}
