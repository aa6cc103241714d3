//! Checkpoints: the whole state of a run in a folder, and resuming from it.
//!
//! ```text
//! DIR/checkpoints/step-500/   rank-0.safetensors …   state and totals of every rank
//!                             manifest.json          what run this is, and where it stands
//!                             SHA256SUMS             of all of these, as `sha256sum -c` reads it
//! ```
//! A checkpoint is written beside, flushed to the disk and renamed: where it stands under its name
//! it is whole. `docs/decisions/0010-checkpoints.md` says what is in a cut and why.
//!
//! | module | what is in it |
//! |---|---|
//! | [`membership`] | who takes part no more, in the manifest |
//! | [`part`] | one rank as a file |
//! | [`mod@write`] | takes the parts of a cut as they come, on a thread of its own |
//! | [`read`] | finds the newest checkpoint that is whole |
//! | [`fit`] | from a checkpoint to the start of a run, also one of another size |

pub mod fit;
pub mod membership;
pub mod part;
pub mod read;
pub mod write;

use std::path::Path;

use quelea_core::message::Rank;
use quelea_core::view::{DepartedRank, ViewChange};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::membership::{SavedChange, SavedDeparture};
use crate::files::limited::read_limited;
use crate::prepared::PreparedRun;

/// The folder of checkpoints in a run's folder.
pub const FOLDER: &str = "checkpoints";
const MANIFEST: &str = "manifest.json";
const SUMS: &str = "SHA256SUMS";
/// The version of the format.
const FORMAT: u32 = 1;

/// What run a checkpoint is of, and where it stands.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Manifest {
    /// The version of the format.
    pub format: u32,
    /// The version of quelea.
    pub version: String,
    /// Steps of every worker, on average where workers count by themselves.
    pub step: u64,
    /// The run's clock.
    pub clock_seconds: f64,
    /// Ranks that compute gradients, or did before they were lost.
    pub workers: usize,
    /// The same with those as which others may join; as many as `workers` where it is less.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seats: usize,
    /// Ranks that hold shards.
    pub servers: usize,
    /// The changes of membership until then: ranks that were lost have no file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<SavedChange>,
    /// Parameters of the model.
    pub dimensions: usize,
    /// The epochs that were asked for, if they were.
    pub epochs: Option<f64>,
    /// The configuration with all defaults resolved.
    pub config: Value,
    /// The best model until then.
    pub best: Option<BestModel>,
}

impl Manifest {
    /// What all checkpoints of a run have in common.
    pub fn of(prepared: &PreparedRun, best: Option<BestModel>) -> Manifest {
        // Without spare places the manifest is what earlier versions write.
        let has_spare = prepared.config.seats() > prepared.config.workers;
        Manifest {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_string(),
            step: 0,
            clock_seconds: 0.0,
            workers: prepared.config.workers,
            seats: if has_spare { prepared.config.seats() } else { 0 },
            servers: prepared.config.servers(),
            changes: prepared.start.changes.iter().map(SavedChange::from).collect(),
            dimensions: prepared.setup.layout.len(),
            epochs: prepared.epochs,
            config: prepared.config.resolved(),
            best,
        }
    }

    /// The ranks that were lost, with the steps that they had completed.
    pub fn departed(&self) -> impl Iterator<Item = SavedDeparture> {
        let never = (self.workers..self.seats()).map(|rank| DepartedRank {
            rank: Rank::from(rank),
            steps: 0,
            left: true,
        });
        let never = ViewChange { departed: never.collect(), ..ViewChange::default() };
        let later = self.changes.iter().map(ViewChange::from);
        let changes: Vec<ViewChange> = std::iter::once(never).chain(later).collect();
        ViewChange::absent(&changes).into_iter().map(SavedDeparture::from)
    }

    /// Ranks of workers, those as which nobody takes part yet included.
    pub fn seats(&self) -> usize {
        self.seats.max(self.workers)
    }

    /// How many ranks take part.
    pub fn living(&self) -> usize {
        (self.seats() + self.servers).saturating_sub(self.departed().count())
    }
}

/// How good the best model of a run was, and when.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct BestModel {
    /// Steps of every worker.
    pub step: u64,
    /// Loss on all training data.
    pub loss: f64,
    /// Share of right answers on held-out data.
    pub accuracy: Option<f64>,
}

impl BestModel {
    /// Whether this is better: by accuracy, else by loss.
    pub fn beats(&self, other: &BestModel) -> bool {
        match (self.accuracy, other.accuracy) {
            (Some(mine), Some(theirs)) if mine != theirs => mine > theirs,
            _ => self.loss < other.loss,
        }
    }
}

/// Whether the run in this folder has checkpoints.
pub fn exist(run: &Path) -> bool {
    let entries = std::fs::read_dir(run.join(FOLDER)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).any(|n| step_of(&n).is_some())
}

/// Takes away the oldest checkpoint of the run in this folder, if there are several; its name.
pub fn remove_oldest_of_several(run: &Path) -> Option<String> {
    let folder = run.join(FOLDER);
    let mut steps = read::steps(&folder).ok()?;
    let oldest = steps.pop().filter(|_| !steps.is_empty())?;
    std::fs::remove_dir_all(folder.join(name(oldest))).ok()?;
    Some(format!("{FOLDER}/{}", name(oldest)))
}

/// Takes away the only checkpoint of the run in this folder if that gives back at least so many
/// bytes; its name.
pub fn remove_last_for(run: &Path, bytes: u64) -> Option<String> {
    let folder = run.join(FOLDER);
    let [step] = read::steps(&folder).ok()?[..] else { return None };
    let place = folder.join(name(step));
    let files = std::fs::read_dir(&place).ok()?.flatten();
    let held: u64 = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    if held < bytes {
        return None;
    }
    std::fs::remove_dir_all(&place).ok()?;
    let _ = std::fs::remove_dir(&folder);
    Some(format!("{FOLDER}/{}", name(step)))
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The files of the checkpoint in this folder: its sums, and those that they are of. Other names are left out.
pub(crate) fn file_names(folder: &Path) -> std::io::Result<Vec<String>> {
    let sums = read_limited(&folder.join(SUMS), read::TEXT_BYTES)?;
    let sums = String::from_utf8_lossy(&sums).into_owned();
    let listed = sums.lines().filter_map(|line| line.split_once("  ")).map(|(_, name)| name);
    let is_own = |name: &&str| {
        let rank = name.strip_prefix("rank-").and_then(|rest| rest.strip_suffix(".safetensors"));
        *name == MANIFEST || rank.is_some_and(|rank| rank.bytes().all(|byte| byte.is_ascii_digit()))
    };
    Ok(listed.filter(is_own).chain([SUMS]).map(str::to_string).collect())
}

/// The name of the folder of a checkpoint.
pub(crate) fn name(step: u64) -> String {
    format!("step-{step}")
}

/// The step in the name of a checkpoint's folder.
fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok())?
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
