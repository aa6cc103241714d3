//! The directory of a run: a place that no other run has, and files that appear whole.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::checkpoint;
use crate::error::RequestError;
use crate::files::aborted::ABORTED;
use crate::files::plots;
use crate::recorder::BEST;

/// The files of a run. A directory that has one of them holds a run.
pub const FILES: [&str; 8] = [
    "summary.json",
    "records.jsonl",
    "final.safetensors",
    "trace.json",
    BEST,
    ABORTED,
    plots::FOLDER,
    checkpoint::FOLDER,
];

/// Where a run's files go.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    force: bool,
    /// Held as long as the run lasts, where the system has locks on folders.
    _lock: Option<Arc<File>>,
}

impl Directory {
    /// Takes the directory that was asked for, or a new one under `runs/` named after the time
    /// and the algorithm. One that holds a run already is refused, unless by `force`.
    pub fn claim(
        asked: Option<&Path>,
        force: bool,
        algorithm: &str,
    ) -> Result<Directory, RequestError> {
        match asked {
            Some(path) => Directory::take(path, force),
            None => fresh(Path::new("runs"), algorithm, SystemTime::now()),
        }
    }

    fn take(path: &Path, force: bool) -> Result<Directory, RequestError> {
        if path.exists() && !path.is_dir() {
            return Err(RequestError::file(path, "is a file; --out names a folder"));
        }
        if let (false, Some(file)) = (force, held(path)) {
            let problem = format!(
                "holds an earlier run ({file}), which stays as it is; \
                 choose another --out, or replace it with --force"
            );
            return Err(RequestError::file(path, problem));
        }
        fs::create_dir_all(path).map_err(|error| unmade(path, &error))?;
        Directory::held(path.to_path_buf(), force)
    }

    /// Takes the directory of a run that is resumed: its files are replaced at the end.
    pub fn reopen(path: &Path) -> Result<Directory, RequestError> {
        Directory::held(path.to_path_buf(), true)
    }

    fn held(path: PathBuf, force: bool) -> Result<Directory, RequestError> {
        let lock = File::open(&path).ok();
        if let Some(file) = &lock
            && let Err(fs::TryLockError::WouldBlock) = file.try_lock()
        {
            return Err(RequestError::file(&path, "another run is writing there now"));
        }
        Ok(Directory { path, force, _lock: lock.map(Arc::new) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins the file `name`; it appears when it is [committed](Draft::commit).
    pub fn draft(&self, name: &'static str) -> io::Result<Draft> {
        self.begin(name, self.force)
    }

    /// As [`draft`](Directory::draft), of a file that this run has written before.
    pub fn redraft(&self, name: &'static str) -> io::Result<Draft> {
        self.begin(name, true)
    }

    fn begin(&self, name: &'static str, force: bool) -> io::Result<Draft> {
        let place = self.path.join(name);
        let beside = self.path.join(format!(".{name}.{}.partial", std::process::id()));
        drafts().insert(beside.clone());
        let file = File::create(&beside)?;
        let writer = BufWriter::new(file);
        Ok(Draft { name, writer, beside, place, force, done: false })
    }

    /// Takes back the directory of a run that came to nothing, if there is nothing in it.
    pub fn abandon(&self) {
        // It fails where there is something in it, and then it must stay.
        let _ = fs::remove_dir(&self.path);
    }
}

fn unmade(path: &Path, error: &io::Error) -> RequestError {
    RequestError::file(path, format!("cannot be made: {error}"))
}

/// The first of the run's files that is there.
fn held(path: &Path) -> Option<&'static str> {
    FILES.into_iter().find(|file| path.join(file).exists())
}

fn fresh(parent: &Path, algorithm: &str, now: SystemTime) -> Result<Directory, RequestError> {
    let stem = format!("{}-{algorithm}", stamp(now));
    fs::create_dir_all(parent).map_err(|error| unmade(parent, &error))?;
    for number in 1.. {
        let name = if number == 1 { stem.clone() } else { format!("{stem}-{number}") };
        let path = parent.join(name);
        match fs::create_dir(&path) {
            Ok(()) => return Directory::held(path, false),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(unmade(&path, &error)),
        }
    }
    unreachable!("numbers do not run out")
}

/// Date and time in UTC, as `2026-11-15-091500`.
fn stamp(now: SystemTime) -> String {
    utc(now).replace([':', 'Z'], "").replace('T', "-")
}

/// Date and time in UTC as RFC 3339 has them, as `2026-11-15T09:15:00Z`.
pub fn utc(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The date of a day counted from 1970-01-01 (Hinnant's algorithm; years begin in March).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// The drafts that this process has begun and not yet ended.
static DRAFTS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn drafts() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    DRAFTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The records of a run that did not come to its end: those in their place, or else the longest
/// draft.
pub fn records_of(run: &Path) -> Option<PathBuf> {
    let whole = run.join("records.jsonl");
    if whole.is_file() {
        return Some(whole);
    }
    let drafts = leftovers(run, ".records.jsonl.").into_iter();
    drafts.max_by_key(|path| fs::metadata(path).map_or(0, |found| found.len()))
}

/// Takes away what runs that were killed have left half-written.
pub fn sweep(run: &Path) {
    let own = format!(".{}.", std::process::id());
    let beside = [(run.to_path_buf(), "."), (run.join(checkpoint::FOLDER), ".step-")];
    for (folder, prefix) in beside {
        for path in leftovers(&folder, prefix) {
            if !path.to_string_lossy().contains(&own) {
                let _ =
                    if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            }
        }
    }
}

fn leftovers(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let is_left = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(prefix) && (name.ends_with(".partial") || name.ends_with(".old"))
    };
    entries.flatten().map(|entry| entry.path()).filter(is_left).collect()
}

/// Takes away every draft of this process, and the directories that are empty then; for a
/// process that is about to end. Where there are checkpoints, drafts stay: they may be gone on
/// from. Records that were written are kept under their name.
pub fn abandon_drafts() {
    for beside in std::mem::take(&mut *drafts()) {
        if beside.parent().is_some_and(checkpoint::exist) {
            continue;
        }
        let has_records = leftover_records(&beside);
        let place = beside.with_file_name("records.jsonl");
        if has_records && !place.exists() && fs::rename(&beside, &place).is_ok() {
            continue;
        }
        let _ = fs::remove_file(&beside);
        if let Some(directory) = beside.parent() {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Whether this draft is of records, and some have reached it.
fn leftover_records(beside: &Path) -> bool {
    let name = beside.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let len = fs::metadata(beside).map_or(0, |found| found.len());
    name.starts_with(".records.jsonl.") && len > 0
}

/// A file being written, under another name; dropped without a commit, it leaves nothing.
#[derive(Debug)]
pub struct Draft {
    name: &'static str,
    writer: BufWriter<File>,
    beside: PathBuf,
    place: PathBuf,
    force: bool,
    done: bool,
}

impl Draft {
    /// The name that the file will have.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// As [`commit`](Draft::commit), in place of any that is there.
    pub fn replace(mut self) -> io::Result<()> {
        self.force = true;
        self.commit()
    }

    /// Puts the file in its place.
    pub fn commit(mut self) -> io::Result<()> {
        self.writer.flush()?;
        self.writer.get_ref().sync_all()?;
        if self.force {
            fs::rename(&self.beside, &self.place)?;
        } else {
            // A link, unlike a renaming, never replaces what another run has put there meanwhile.
            fs::hard_link(&self.beside, &self.place).or_else(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => Err(error),
                _ => fs::rename(&self.beside, &self.place),
            })?;
            let _ = fs::remove_file(&self.beside);
        }
        drafts().remove(&self.beside);
        self.done = true;
        Ok(())
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.done {
            drafts().remove(&self.beside);
            let _ = fs::remove_file(&self.beside);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn stamps_are_dates() {
        let at = |seconds| stamp(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01-000000");
        assert_eq!(at(951_782_400 + 3661), "2000-02-29-010101");
        assert_eq!(at(1_794_733_200), "2026-11-15-090000");
        assert_eq!(at(4_107_542_399), "2100-02-28-235959");
    }

    #[test]
    fn two_runs_of_one_second_get_two_directories() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let now = UNIX_EPOCH + Duration::from_secs(5);
        let one = fresh(parent.path(), "asp", now).expect("first");
        let two = fresh(parent.path(), "asp", now).expect("second");
        assert!(one.path().ends_with("1970-01-01-000005-asp"));
        assert!(two.path().ends_with("1970-01-01-000005-asp-2"));
    }

    #[test]
    fn an_earlier_run_stays_unless_forced() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let write = |force| -> Result<(), String> {
            let directory = Directory::take(parent.path(), force).map_err(|e| e.to_string())?;
            let mut draft = directory.draft("summary.json").map_err(|e| e.to_string())?;
            write!(draft, "{force}").map_err(|e| e.to_string())?;
            draft.commit().map_err(|e| e.to_string())
        };
        write(false).expect("an empty folder");
        assert!(write(false).expect_err("taken").contains("holds an earlier run (summary.json)"));
        write(true).expect("forced");
        let text = fs::read_to_string(parent.path().join("summary.json")).expect("there");
        assert_eq!(text, "true");
    }

    #[test]
    fn a_run_that_appeared_meanwhile_is_not_replaced() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let directory = Directory::take(parent.path(), false).expect("empty");
        let draft = directory.draft("trace.json").expect("begun");
        fs::write(parent.path().join("trace.json"), "theirs").expect("written");
        assert_eq!(draft.commit().expect_err("taken").kind(), io::ErrorKind::AlreadyExists);
        let names: Vec<_> = fs::read_dir(parent.path()).expect("there").collect();
        assert_eq!(names.len(), 1, "the draft is gone: {names:?}");
    }
}
