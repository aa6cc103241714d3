//! Verifying what one already has: which data set it is, and whether every file is whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::catalogue::{DATA_SETS, DataSet, ExpectedFile};
use crate::error::DataError;
use crate::images::{Crop, FolderOptions, folder};
use crate::{files, sha256};

/// What was found out about a folder.
#[derive(Debug)]
pub struct CheckReport {
    /// Which data set it is.
    pub data_set: &'static DataSet,
    /// Every file of it, in the order of the table.
    pub files: Vec<Checked>,
}

/// One file.
#[derive(Debug)]
pub struct Checked {
    /// Its name, unpacked.
    pub name: &'static str,
    /// Where it was found, packed or not.
    pub path: Option<PathBuf>,
    /// How it is.
    pub state: FileState,
}

/// How a file is.
#[derive(Debug, PartialEq, Eq)]
pub enum FileState {
    /// Its content has the right checksum.
    Good,
    /// It is not there.
    Missing,
    /// Its content is not what it should be.
    Wrong(String),
}

impl CheckReport {
    /// Whether every file is there and good.
    pub fn is_good(&self) -> bool {
        self.files.iter().all(|file| file.state == FileState::Good)
    }
}

/// Finds out which data set a folder holds and verifies every file of it, unpacked in passing; or
/// the one file that `path` names. `progress` is told how many bytes were read. None if it is no
/// data set of the table.
pub fn check(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<Option<CheckReport>, DataError> {
    std::fs::metadata(path).map_err(DataError::reading(path))?;
    let inner = path.join("cifar-10-batches-bin");
    let folder = if path.is_file() {
        path.parent().unwrap_or(path)
    } else if inner.is_dir() {
        &inner
    } else {
        path
    };
    let is_meant = |file: &&ExpectedFile| {
        let found = files::find(folder, file.name);
        if path.is_file() { found.as_deref() == Some(path) } else { true }
    };
    let is_there = |file: &'static ExpectedFile| files::find(folder, file.name).is_some();
    let present = |set: &&DataSet| set.files().filter(is_meant).any(is_there);
    let mut best: Option<(usize, CheckReport)> = None;
    let mut known: Vec<(PathBuf, Sum)> = Vec::new();
    for data_set in DATA_SETS.iter().filter(present) {
        let mut sum = |path: PathBuf| {
            if let Some((_, sum)) = known.iter().find(|(other, _)| *other == path) {
                return sum.clone();
            }
            let sum = content_sum(&path, progress).map_err(|error| problem(&path, &error));
            known.push((path, sum.clone()));
            sum
        };
        let check = |file: &'static ExpectedFile| verify(folder, file, &mut sum);
        let report =
            CheckReport { data_set, files: data_set.files().filter(is_meant).map(check).collect() };
        let good = report.files.iter().filter(|file| file.state == FileState::Good).count();
        // Two data sets have files of the same names: the one whose checksums are right is meant.
        if best.as_ref().is_none_or(|(most, _)| good > *most) {
            best = Some((good, report));
        }
    }
    Ok(best.map(|(_, report)| report))
}

type Sum = Result<(String, u64), String>;

fn verify(
    folder: &Path,
    file: &'static ExpectedFile,
    sum: &mut dyn FnMut(PathBuf) -> Sum,
) -> Checked {
    let path = files::find(folder, file.name);
    let state = match path.clone().map(sum) {
        None => FileState::Missing,
        Some(Err(problem)) => FileState::Wrong(problem),
        Some(Ok((sum, bytes))) => compare(file, &sum, bytes),
    };
    Checked { name: file.name, path, state }
}

/// Decodes every picture of a folder of `train/CLASS/` and `val/CLASS/`, on all cores, and tells
/// those that are broken, in their order; `progress` is told of each picture.
pub fn check_pictures(
    root: &Path,
    progress: &(dyn Fn() + Sync),
) -> Result<(usize, Vec<DataError>), DataError> {
    let split = folder(root, FolderOptions { side: 1, resized: 1 })?;
    let sets = [split.train, split.test];
    let all: Vec<(usize, usize)> =
        (0..2).flat_map(|set| (0..sets[set].len()).map(move |index| (set, index))).collect();
    let (next, broken) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        let mut out = vec![0; sets[0].shape().len()];
        while let Some((set, index)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = sets[*set].pixels(*index, Crop::Centre, &mut out) {
                let mut broken = broken.lock().unwrap_or_else(PoisonError::into_inner);
                broken.insert((*set, *index), error);
            }
            progress();
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    let broken = broken.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((all.len(), broken.into_values().collect()))
}

/// Length and checksum of a file's content beside what they should be.
pub(crate) fn compare(file: &ExpectedFile, sum: &str, bytes: u64) -> FileState {
    if bytes != file.bytes {
        FileState::Wrong(format!("holds {bytes} bytes, not {}", file.bytes))
    } else if sum != file.sha256 {
        FileState::Wrong(format!("has the SHA-256 {sum}, not {}", file.sha256))
    } else {
        FileState::Good
    }
}

/// Checksum and length of the content of a file, packed or not.
pub(crate) fn content_sum(
    path: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<(String, u64), DataError> {
    let mut content = files::Content::open(path)?;
    sha256::of_reader(&mut content, progress).map_err(DataError::reading(path))
}

/// The error without the path, which stands beside it.
fn problem(path: &Path, error: &DataError) -> String {
    let text = error.to_string();
    let prefix = format!("{}: ", path.display());
    text.strip_prefix(&prefix).map_or(text.clone(), String::from)
}
