//! Changes of membership as the manifest of a checkpoint has them.

use std::collections::BTreeSet;

use quelea_core::message::Rank;
use quelea_core::view::{DepartedRank, ViewChange};
use quelea_record::RankCheckpoint;
use serde::{Deserialize, Serialize};

use super::Manifest;

/// What has changed from one view to the next.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct SavedChange {
    /// The number of the new view, from 1.
    pub number: u32,
    /// The step from which its topology holds.
    pub from_step: u64,
    /// The ranks that take part no more.
    pub departed: Vec<SavedDeparture>,
    /// The ranks that take part again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<u32>,
}

/// A rank that takes part no more.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct SavedDeparture {
    /// Which one.
    pub rank: u32,
    /// Steps that it had completed.
    pub steps: u64,
    /// Whether it left with notice; else it was lost.
    #[serde(default)]
    pub left: bool,
}

impl SavedDeparture {
    /// What is left of it in a checkpoint.
    pub(super) fn part(&self) -> RankCheckpoint {
        let mut part = RankCheckpoint::default();
        part.state.numbers.insert("step".to_string(), self.steps);
        part.report.rank = self.rank;
        (part.report.lost, part.report.left) = (true, self.left);
        part.report.steps = self.steps;
        part
    }
}

impl From<DepartedRank> for SavedDeparture {
    fn from(departed: DepartedRank) -> SavedDeparture {
        let DepartedRank { rank, steps, left } = departed;
        SavedDeparture { rank: rank.0, steps, left }
    }
}

impl From<&ViewChange> for SavedChange {
    fn from(change: &ViewChange) -> SavedChange {
        let departed = change.departed.iter();
        let departed = departed.copied().map(SavedDeparture::from);
        SavedChange {
            number: change.number,
            from_step: change.from_step,
            departed: departed.collect(),
            joined: change.joined.iter().map(|rank| rank.0).collect(),
        }
    }
}

impl From<&SavedChange> for ViewChange {
    fn from(change: &SavedChange) -> ViewChange {
        let departed = change.departed.iter();
        let departed = departed.map(|departed| {
            let SavedDeparture { rank, steps, left } = *departed;
            DepartedRank { rank: Rank(rank), steps, left }
        });
        ViewChange {
            number: change.number,
            from_step: change.from_step,
            departed: departed.collect(),
            joined: change.joined.iter().map(|rank| Rank(*rank)).collect(),
        }
    }
}

/// More places for workers to come than any run has.
const SPARE_MAX: usize = 100_000;

/// Whether the changes that a manifest lists can be: views are numbered from 1, those depart who take
/// part, those join who have departed, and a worker is always left.
pub(super) fn check(manifest: &Manifest) -> Result<(), String> {
    let ranks = manifest.seats().saturating_add(manifest.servers);
    if manifest.seats() - manifest.workers > SPARE_MAX {
        return Err(format!("`seats` = {} is more than any run has", manifest.seats));
    }
    let mut gone: BTreeSet<u32> =
        (manifest.workers..manifest.seats()).map(|rank| rank as u32).collect();
    for (place, change) in manifest.changes.iter().enumerate() {
        if change.number as usize != place + 1 {
            return Err(format!("`changes` has view {} at place {}", change.number, place + 1));
        }
        for departed in &change.departed {
            let rank = departed.rank;
            if rank as usize >= ranks || !gone.insert(rank) {
                return Err(format!("`changes` names rank {rank} of {ranks}, or names it twice"));
            }
        }
        if let Some(rank) = change.joined.iter().find(|rank| !gone.remove(*rank)) {
            return Err(format!("`changes` lets rank {rank} join, which had not departed"));
        }
    }
    let workers = gone.iter().filter(|rank| (**rank as usize) < manifest.seats()).count();
    if workers > 0 && workers >= manifest.seats() {
        return Err("`changes` leaves no worker".to_string());
    }
    Ok(())
}
