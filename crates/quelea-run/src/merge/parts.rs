//! The parts of a run, found and in order.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use crate::error::RequestError;
use crate::files::delivery::FINAL;
use crate::files::directory::records_of;
use crate::files::part_note::{PartNote, TAKEN_OVER, controller_words};

/// A part of a run.
#[derive(Clone, Debug)]
pub(super) struct RunPart {
    pub(super) folder: PathBuf,
    pub(super) note: PartNote,
    /// Its records; a process that was killed early has none.
    pub(super) records: Option<PathBuf>,
}

/// All parts of the run in `run`, in order: those below it, and the named ones.
pub(super) fn find(run: &Path, others: &[PathBuf]) -> Result<Vec<RunPart>, RequestError> {
    let mut folders: Vec<PathBuf> = Vec::new();
    let below = if run.is_dir() { below(run)? } else { Vec::new() };
    for folder in [run.to_path_buf()].into_iter().chain(below).chain(others.iter().cloned()) {
        let place = folder.canonicalize().map_err(|error| RequestError::file(&folder, error))?;
        let is_known = |known: &PathBuf| known.canonicalize().is_ok_and(|known| known == place);
        if !folders.iter().any(is_known) {
            folders.push(folder);
        }
    }
    let parts: Vec<RunPart> = folders.into_iter().map(open).collect::<Result<_, _>>()?;
    let parts = in_order(parts)?;
    check_end(&parts)?;
    Ok(parts)
}

/// The folders that processes on this machine have written to after they had taken over.
fn below(run: &Path) -> Result<Vec<PathBuf>, RequestError> {
    let unreadable = |error| RequestError::file(run, error);
    let mut found = Vec::new();
    for entry in fs::read_dir(run).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let is_part = entry.file_name().to_string_lossy().starts_with(TAKEN_OVER);
        // A worker that was left alone keeps its model there, and no part.
        if is_part && PartNote::read(&entry.path()).is_ok() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn open(folder: PathBuf) -> Result<RunPart, RequestError> {
    if !folder.is_dir() {
        return Err(RequestError::file(folder, "is a file; a part of a run is a folder"));
    }
    let note = PartNote::read(&folder).map_err(|why| {
        let is_whole = folder.join(FINAL).exists() && folder.join("summary.json").exists();
        let more = if is_whole { "; what is there is a whole run" } else { "" };
        RequestError::file(&folder, format!("{why}{more}"))
    })?;
    let lock = File::open(&folder).map(|file| file.try_lock_shared());
    if let Ok(Err(TryLockError::WouldBlock)) = lock {
        return Err(RequestError::file(folder, "is still being written: the run has not ended"));
    }
    let records = records_of(&folder);
    Ok(RunPart { folder, note, records })
}

/// From the first part to the last, each after the one whose writer it names.
fn in_order(mut parts: Vec<RunPart>) -> Result<Vec<RunPart>, RequestError> {
    let shown = |part: &RunPart| part.folder.display().to_string();
    let run = parts[0].note.run.clone();
    if let Some(other) = parts.iter().find(|part| part.note.run != run) {
        return Err(RequestError::Conflict(format!(
            "{} and {} are parts of different runs ({run} and {})",
            shown(&parts[0]),
            shown(other),
            other.note.run
        )));
    }
    for (place, part) in parts.iter().enumerate() {
        let is_same = |other: &&RunPart| other.note.predecessor == part.note.predecessor;
        if let Some(other) = parts[..place].iter().find(is_same) {
            return Err(RequestError::Conflict(format!(
                "{} and {} overlap: both follow on the same part of the run, or are copies of one",
                shown(other),
                shown(part)
            )));
        }
    }
    let first = parts.iter().position(|part| part.note.predecessor.is_none());
    let Some(first) = first else {
        return Err(RequestError::Conflict(
            "the part with which the run began is missing: name the folder that the coordinator wrote to".into(),
        ));
    };
    let mut ordered = vec![parts.swap_remove(first)];
    while let Some(last) = ordered.last() {
        let writer = last.note.controller;
        let follows =
            |part: &RunPart| part.note.predecessor.is_some_and(|p| p.controller == writer);
        let Some(next) = parts.iter().position(follows) else { break };
        ordered.push(parts.swap_remove(next));
    }
    let Some(left) = parts.first() else { return Ok(ordered) };
    let missing = left.note.predecessor.and_then(|before| before.controller);
    Err(RequestError::Conflict(format!(
        "a part is missing: {} continues what {} wrote, whose folder is not among the parts; name it too",
        shown(left),
        controller_words(missing)
    )))
}

/// The run has come to its end, in the last part only.
fn check_end(parts: &[RunPart]) -> Result<(), RequestError> {
    let (last, before) = parts.split_last().expect("there is a first part");
    let has_end = |part: &RunPart| part.folder.join(FINAL).is_file();
    let shown = last.folder.display();
    if let Some(part) = before.iter().find(|part| has_end(part)) {
        return Err(RequestError::Conflict(format!(
            "{} and {shown} overlap: the former has a final model, although the latter continues it",
            part.folder.display()
        )));
    }
    if has_end(last) && last.folder.join("summary.json").is_file() {
        return Ok(());
    }
    Err(RequestError::Conflict(format!(
        "the last part is missing: what {} wrote to {shown} has no final model and no summary; name the folder of \
         the process that took over from it, which says so on its standard error",
        last.note.writer()
    )))
}
