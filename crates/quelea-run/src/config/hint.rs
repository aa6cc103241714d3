//! What somebody may have meant by a key that is unknown in its table.

use quelea_core::names::nearest;
use quelea_core::registry::Registry;
use quelea_core::{algorithms, codec, optim, topology};

use super::chosen::Listed;
use super::section::{Allowed, dotted};
use super::{BUCKETS, CHECKPOINT, MEMBERSHIP, TOP, TRUST, chaos, cluster};
use crate::tasks::TaskEntry;

/// What other programs call it, and what it is called here.
const ELSEWHERE: &[(&str, &str)] = &[
    ("batch_size", "batch"),
    ("iterations", "steps"),
    ("learning_rate", "lr"),
    ("max_grad_norm", "clip_norm"),
    ("num_workers", "workers"),
    ("world_size", "workers"),
];

/// A near name of this table; else another row that has the key; else another table that has
/// it; else all that is allowed.
pub(super) fn hint(registry: &Registry, allowed: &Allowed, name: &str) -> String {
    let name = ELSEWHERE.iter().find(|(other, _)| *other == name).map_or(name, |(_, ours)| ours);
    let names = allowed.names();
    let longer = |valid: &&&str| name.len() >= 3 && valid.starts_with(name);
    let near = nearest(name, names.iter().copied()).or(names.iter().find(longer).copied());
    if let Some(near) = near {
        return format!("did you mean `{}`?", allowed.path_of(near));
    }
    let owners = owners(registry, name);
    let here: Vec<&str> = owners.iter().filter(|o| o.path == allowed.path).map(|o| o.row).collect();
    if !here.is_empty() {
        return format!(
            "it is a key of {}; allowed here are {}",
            here.join(", "),
            names.join(", ")
        );
    }
    match owners.as_slice() {
        [owner, rest @ ..] if rest.iter().all(|other| other.path == owner.path) => {
            format!("did you mean `{}`?", dotted(owner.path, name))
        }
        _ => format!("allowed are {}", names.join(", ")),
    }
}

/// A table, and its row if it has rows, that has the key.
struct Owner {
    path: &'static str,
    row: &'static str,
}

fn owners(registry: &Registry, name: &str) -> Vec<Owner> {
    let plain = [
        ("", TOP),
        ("buckets", BUCKETS),
        ("checkpoint", CHECKPOINT),
        ("membership", MEMBERSHIP),
        ("trust", TRUST),
        ("cluster", cluster::KEYS),
        ("chaos", chaos::KEYS),
    ];
    let plain = plain.into_iter().filter(|(_, keys)| keys.iter().any(|key| key.name == name));
    let mut owners: Vec<Owner> = plain.map(|(path, _)| Owner { path, row: "" }).collect();
    owners.extend(rows_with::<algorithms::Entry>(registry, name));
    owners.extend(rows_with::<topology::Entry>(registry, name));
    owners.extend(rows_with::<optim::Entry>(registry, name));
    owners.extend(rows_with::<optim::ScheduleEntry>(registry, name));
    owners.extend(rows_with::<codec::Entry>(registry, name));
    owners.extend(rows_with::<TaskEntry>(registry, name));
    owners
}

fn rows_with<T: Listed>(registry: &Registry, name: &str) -> impl Iterator<Item = Owner> {
    let having = registry.entries::<T>().filter(|row| row.has(name));
    having.map(|row| Owner { path: T::PATH, row: row.meta().name })
}
