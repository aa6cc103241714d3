//! Runs on the disk: opening one, listing those of a folder, following one that is being written.

use std::fs::{self, File};
use std::io::{self, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use quelea_record::Record;
use quelea_run::files::directory::records_of;
use quelea_run::files::limited::{LINE_BYTES, LimitedLines, read_limited};
use quelea_run::files::read_records::read_line;
use serde_json::{Value, json};

use crate::advice::Adviser;
use crate::description::RunDescription;
use crate::log::{LogPhase, RunLog};

/// How often a run that is being written is looked at.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);
/// The longest summary or description.
const JSON_BYTES: u64 = 64 << 20;
/// Records that are taken at once.
const BATCH: usize = 4096;
/// The file in which a run that is being written describes itself.
pub const DESCRIPTION: &str = "run.json";

/// Why a folder cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// There is no run in it.
    #[error("{path} holds no run: neither summary.json nor records.jsonl is there")]
    NoRun {
        /// The folder.
        path: PathBuf,
    },
    /// Something in it cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Whether this folder holds a run, finished or being written.
pub fn holds_run(path: &Path) -> bool {
    path.join("summary.json").is_file() || records_of(path).is_some()
}

/// Opens a run. One without a summary is followed by a thread of its own until there is one, as long
/// as the log is used.
pub fn open(path: &Path, adviser: Option<Adviser>) -> Result<Arc<RunLog>, FolderError> {
    let summary = summary(path)?;
    let records = records_of(path);
    if summary.is_none() && records.is_none() {
        return Err(FolderError::NoRun { path: path.to_path_buf() });
    }
    let config = match &summary {
        Some(summary) => summary["config"].clone(),
        None => written_config(path),
    };
    let stride = summary.as_ref().and_then(|summary| summary["records_stride"].as_u64());
    let description = RunDescription::of_config(config, &name(path));
    let mut log = RunLog::recorded(description, stride.unwrap_or(1));
    if let Some(adviser) = adviser {
        log = log.with_adviser(adviser);
    }
    let log = Arc::new(log);
    let mut tail = records.map(|records| RecordTail::open(&records)).transpose()?;
    if let Some(tail) = &mut tail {
        tail.read_into(&log);
    }
    match summary {
        Some(summary) => log.finish(summary),
        None => follow(&log, path, tail),
    }
    Ok(log)
}

/// The last part of a path, or the whole where it has none.
pub fn name(path: &Path) -> String {
    let absolute = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let last = absolute.file_name().map(|name| name.to_string_lossy().into_owned());
    last.unwrap_or_else(|| path.display().to_string())
}

/// The summary of a run, if it has ended well.
pub fn summary(path: &Path) -> Result<Option<Value>, FolderError> {
    let path = path.join("summary.json");
    let failed = |source| FolderError::Read { path: path.clone(), source };
    match read_limited(&path, JSON_BYTES) {
        Ok(bytes) => {
            let read = serde_json::from_slice(&bytes);
            read.map(Some).map_err(|error| failed(io::Error::other(error)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// The configuration of a run that has not ended: what it wrote beside its records, or that of its
/// newest checkpoint.
fn written_config(path: &Path) -> Value {
    let read = |path: PathBuf| {
        let bytes = read_limited(&path, JSON_BYTES).ok()?;
        serde_json::from_slice(&bytes).ok()
    };
    if let Some(config) = read(path.join(DESCRIPTION)) {
        return config;
    }
    let checkpoints = fs::read_dir(path.join("checkpoints")).into_iter().flatten().flatten();
    let mut manifests: Vec<PathBuf> =
        checkpoints.map(|entry| entry.path().join("manifest.json")).collect();
    manifests.sort();
    let manifest: Option<Value> = manifests.pop().and_then(read);
    manifest.map_or(Value::Null, |manifest| manifest["config"].clone())
}

/// The end of a file that may still grow.
struct RecordTail {
    lines: LimitedLines<BufReader<File>>,
}

impl RecordTail {
    fn open(path: &Path) -> Result<RecordTail, FolderError> {
        let file =
            File::open(path).map_err(|source| FolderError::Read { path: path.into(), source })?;
        let reader = BufReader::with_capacity(1 << 18, file);
        Ok(RecordTail { lines: LimitedLines::new(reader, LINE_BYTES) })
    }

    /// Reads to the end; whether there was anything.
    fn read_into(&mut self, log: &RunLog) -> bool {
        let mut any = false;
        loop {
            let batch = self.batch();
            if batch.is_empty() {
                return any;
            }
            any = true;
            log.take_all(batch);
        }
    }

    fn batch(&mut self) -> Vec<Record> {
        let mut records = Vec::new();
        while records.len() < BATCH {
            match self.lines.next_line() {
                Ok(None) | Err(_) => break,
                Ok(Some(line)) => records.extend(str::from_utf8(line).ok().and_then(read_line)),
            }
        }
        records
    }

    /// How far whole lines were read.
    fn position(&mut self) -> u64 {
        let unfinished = self.lines.unfinished().len() as u64;
        self.lines.reader_mut().stream_position().unwrap_or(0).saturating_sub(unfinished)
    }
}

/// Follows a run in a thread, until it has ended or nobody looks at it.
fn follow(log: &Arc<RunLog>, path: &Path, tail: Option<RecordTail>) {
    let (log, path) = (Arc::downgrade(log), path.to_path_buf());
    let follower = Follower { log, path, tail };
    let thread = std::thread::Builder::new().name("quelea-follow".into());
    // Without the thread the page shows the run as it is now.
    let _ = thread.spawn(move || follower.run());
}

struct Follower {
    log: Weak<RunLog>,
    path: PathBuf,
    tail: Option<RecordTail>,
}

impl Follower {
    fn run(mut self) {
        loop {
            std::thread::sleep(FOLLOW_INTERVAL);
            let Some(log) = self.log.upgrade() else { return };
            if self.tail.is_none() {
                self.tail = records_of(&self.path).and_then(|path| RecordTail::open(&path).ok());
            }
            // The summary comes last: what is read after it was seen is complete.
            let summary = summary(&self.path).ok().flatten();
            if summary.is_some() {
                self.reopen();
            }
            if let Some(tail) = &mut self.tail {
                tail.read_into(&log);
            }
            if let Some(summary) = summary {
                log.finish(summary);
                return;
            }
        }
    }

    /// The draft has its name now; on some systems the open file is another one.
    fn reopen(&mut self) {
        let Some(tail) = &mut self.tail else { return };
        let position = tail.position();
        let Some(path) = records_of(&self.path) else { return };
        if let Ok(mut fresh) = RecordTail::open(&path)
            && fresh.lines.reader_mut().seek(SeekFrom::Start(position)).is_ok()
        {
            self.tail = Some(fresh);
        }
    }
}

/// A run of a folder, as the list shows it.
pub fn entry_json(path: &Path) -> Value {
    let summary = summary(path).ok().flatten().unwrap_or(Value::Null);
    let has_ended = !summary.is_null();
    let config = if has_ended { summary["config"].clone() } else { written_config(path) };
    let about = RunDescription::of_config(config.clone(), &name(path));
    json!({
        "name": about.name,
        "algorithm": config["algorithm"]["name"],
        "topology": about.topology.map(|topology| topology.name),
        "task": config["task"]["name"],
        "workers": config["workers"],
        "steps": summary["steps"],
        "samples": summary["samples"],
        "clock": summary["clock"],
        "clock_seconds": summary["clock_seconds"],
        "samples_per_second": summary["samples_per_second"],
        "loss": summary["loss"],
        "accuracy": summary["accuracy"],
        "bytes_sent": summary["total"]["bytes_sent"],
        "has_ended": has_ended,
        "config": flat(&config),
    })
}

/// `{"optimizer": {"lr": 0.1}}` → `{"optimizer.lr": 0.1}`, for filters.
pub fn flat(config: &Value) -> Value {
    let mut out = serde_json::Map::new();
    flatten("", config, &mut out);
    Value::Object(out)
}

fn flatten(prefix: &str, value: &Value, out: &mut serde_json::Map<String, Value>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&path, value, out);
            }
        }
        Value::Null => {}
        other => {
            out.insert(prefix.to_string(), other.clone());
        }
    }
}

/// The runs in a folder, by name.
pub fn runs_of(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut runs: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.is_dir() && holds_run(path)).collect();
    runs.sort();
    runs
}

/// Whether a log will still change.
pub fn is_open(log: &RunLog) -> bool {
    log.phase() == LogPhase::Open
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_configuration_become_paths() {
        let config = json!({ "seed": 1, "optimizer": { "lr": 0.1, "schedule": { "name": "x" } } });
        let expected = json!({ "seed": 1, "optimizer.lr": 0.1, "optimizer.schedule.name": "x" });
        assert_eq!(flat(&config), expected);
    }

    #[test]
    fn a_folder_without_a_run_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let refused = open(folder.path(), None).err().expect("no run").to_string();
        assert!(refused.contains("holds no run"), "{refused}");
        assert!(runs_of(folder.path()).is_empty());
    }

    #[test]
    fn half_a_line_waits_for_its_other_half() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("records.jsonl");
        fs::write(&path, "{\"t\":1,\"rank\":0,\"step\":3,\"ki").expect("written");
        let log = RunLog::recorded(RunDescription::default(), 1);
        let mut tail = RecordTail::open(&path).expect("it is there");
        assert!(!tail.read_into(&log));
        let mut file = fs::OpenOptions::new().append(true).open(&path).expect("there");
        io::Write::write_all(&mut file, b"nd\":\"lost\"}\n").expect("written");
        assert!(tail.read_into(&log));
        assert_eq!(log.read(|state, _| state.ranks[0].lost), Some(1.0));
    }
}
