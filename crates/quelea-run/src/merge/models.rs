//! The checkpoints of all parts, and the best model of them.

use std::fs;
use std::path::Path;

use super::lines::MergedLines;
use super::parts::RunPart;
use super::{copy, failed, has_best};
use crate::checkpoint::{self, BestModel, read};
use crate::error::RunError;
use crate::files::summary::Summary;
use crate::recorder::BEST;

/// What became of checkpoints and of the best model.
#[derive(Debug, Default)]
pub(super) struct MergedModels {
    pub(super) checkpoints: usize,
    /// The best model, which is in the folder.
    pub(super) best: Option<BestModel>,
    /// What was left out, in sentences.
    pub(super) notes: Vec<String>,
}

/// Copies the checkpoints of all parts into `folder`, and the best model.
pub(super) fn take(
    parts: &[RunPart],
    summary: &Summary,
    lines: &MergedLines,
    folder: &Path,
) -> Result<MergedModels, RunError> {
    let mut models = MergedModels::default();
    let mut saved_best = Vec::new();
    // Where two parts have a checkpoint of the same step, the later one is from the run as it went on.
    for part in parts.iter().rev() {
        saved_best.push(models.take_checkpoints(part, summary, folder)?);
    }
    saved_best.reverse();
    let last = parts.last().expect("there are parts");
    let mut best = summary.best.filter(|_| has_best(&last.folder)).map(|best| (last, best));
    for ((part, saved), recorded) in parts.iter().zip(saved_best).zip(&lines.best) {
        let is_last = part.folder == last.folder;
        if is_last || !has_best(&part.folder) {
            continue;
        }
        // The file is that of the newest checkpoint, unless a better one was evaluated after it.
        match (saved, recorded) {
            (Some(saved), Some(recorded)) if saved == *recorded => {
                if best.is_none_or(|(_, best)| saved.beats(&best)) {
                    best = Some((part, saved));
                }
            }
            _ => models.notes.push(format!(
                "{} was left out: it is not certain which evaluation it is of",
                part.folder.join(BEST).display()
            )),
        }
    }
    if let Some((part, model)) = best {
        copy(&part.folder, folder, BEST).map_err(failed(&folder.join(BEST)))?;
        models.best = Some(model);
    }
    Ok(models)
}

impl MergedModels {
    /// Copies the checkpoints of a part that are whole and of this run; the best model that the newest one names.
    fn take_checkpoints(
        &mut self,
        part: &RunPart,
        summary: &Summary,
        folder: &Path,
    ) -> Result<Option<BestModel>, RunError> {
        let from = part.folder.join(checkpoint::FOLDER);
        let mut best = None;
        for step in read::steps(&from).unwrap_or_default() {
            let (source, name) = (from.join(checkpoint::name(step)), checkpoint::name(step));
            let found = match read::open(&source) {
                Ok(found) => found,
                Err(error) => {
                    self.notes.push(format!("a checkpoint was left out: {error}"));
                    continue;
                }
            };
            if found.manifest.config != summary.config {
                let place = source.display();
                self.notes.push(format!("{place} was left out: it is of another configuration"));
                continue;
            }
            best = best.or(found.manifest.best);
            let to = folder.join(checkpoint::FOLDER).join(&name);
            if to.exists() {
                continue;
            }
            copy_checkpoint(&source, &to).map_err(failed(&to))?;
            self.checkpoints += 1;
        }
        Ok(best)
    }
}

/// Copies the files that its list of sums names, and the list.
fn copy_checkpoint(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for name in checkpoint::file_names(from)? {
        copy(from, to, &name)?;
    }
    Ok(())
}
