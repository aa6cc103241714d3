//! Puts the parts of a run together whose controlling process was lost: one folder as that of any other run.
//!
//! Each part says in `part.json` of which run it is, who wrote it and who wrote the one before. The parts stay as they
//! are; the new folder is written beside and appears whole.
//!
//! | module | what is in it |
//! |---|---|
//! | `parts` | finds the parts and puts them in order, or says what is wrong with them |
//! | `lines` | the records of all parts, in order and without doubles |
//! | `models` | checkpoints and the best model |

mod lines;
mod models;
mod parts;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::checkpoint::BestModel;
use crate::error::{RequestError, RunError};
use crate::files::delivery::FINAL;
use crate::files::limited::read_limited;
use crate::files::plots::Curves;
use crate::files::summary::Summary;
use crate::recorder::BEST;

use lines::MergedLines;
use models::MergedModels;
use parts::RunPart;

/// The longest summary that is read.
const SUMMARY_BYTES: u64 = 64 << 20;

/// What to put together.
#[derive(Clone, Copy, Debug)]
pub struct MergeRequest<'a> {
    /// The folder of the run; parts below it are found.
    pub run: &'a Path,
    /// Folders of other parts.
    pub others: &'a [PathBuf],
    /// The folder to make; without it, that of the run with `-merged` after its name.
    pub out: Option<&'a Path>,
}

/// A run that was put together.
#[derive(Clone, Debug, PartialEq)]
pub struct MergedRun {
    /// Where it is.
    pub folder: PathBuf,
    /// The folders of its parts, in order.
    pub parts: Vec<PathBuf>,
    /// Records of all parts.
    pub records: u64,
    /// Records that were in two parts.
    pub doubles: u64,
    /// Checkpoints.
    pub checkpoints: usize,
    /// What was left out, in sentences.
    pub notes: Vec<String>,
}

/// Puts the parts of a run together in a new folder.
pub fn merge(request: &MergeRequest<'_>) -> Result<MergedRun, RunError> {
    let parts = parts::find(request.run, request.others)?;
    let out = match request.out {
        Some(out) => out.to_path_buf(),
        None => beside(request.run)?,
    };
    if out.exists() {
        let problem = "is there already, and stays as it is; choose another --out";
        return Err(RequestError::file(out, problem).into());
    }
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(failed(parent))?;
    let name = out.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.ok_or_else(|| RequestError::file(&out, "is no name of a folder"))?;
    let draft = parent.join(format!(".{name}.{}.partial", std::process::id()));
    fs::create_dir(&draft).map_err(failed(&draft))?;
    let merged = fill(&parts, &draft).and_then(|mut merged| {
        sync(&draft).and_then(|()| fs::rename(&draft, &out)).map_err(failed(&out))?;
        merged.folder = out;
        Ok(merged)
    });
    if merged.is_err() {
        let _ = fs::remove_dir_all(&draft);
    }
    merged
}

/// `runs/first` → `runs/first-merged`.
fn beside(run: &Path) -> Result<PathBuf, RequestError> {
    let whole = run.canonicalize().map_err(|error| RequestError::file(run, error))?;
    let name = whole.file_name().ok_or_else(|| RequestError::file(run, "needs an --out"))?;
    let mut name = name.to_os_string();
    name.push("-merged");
    let is_named = run.file_name().is_some();
    Ok(if is_named { run.with_file_name(name) } else { whole.with_file_name(name) })
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> RunError + use<> {
    let path = path.to_path_buf();
    move |source| RunError::Write { path, source }
}

/// Writes all files of the run into `folder`.
fn fill(parts: &[RunPart], folder: &Path) -> Result<MergedRun, RunError> {
    let last = parts.last().expect("there are parts");
    let text = read_limited(&last.folder.join("summary.json"), SUMMARY_BYTES);
    let place = last.folder.join("summary.json");
    let text = text.map_err(|error| RequestError::file(&place, error))?;
    let unreadable = |error: serde_json::Error| RequestError::file(&place, error);
    let mut page: Value = serde_json::from_slice(&text).map_err(unreadable)?;
    let summary: Summary = serde_json::from_value(page.clone()).map_err(unreadable)?;
    copy(&last.folder, folder, FINAL).map_err(failed(&folder.join(FINAL)))?;
    let mut curves = Curves::new(summary.config["steps"].as_u64().unwrap_or(1).max(1));
    let lines = write_records(parts, folder, &mut curves)?;
    let models = models::take(parts, &summary, &lines, folder)?;
    for name in ["trace.json"].into_iter().filter(|name| last.folder.join(name).is_file()) {
        copy(&last.folder, folder, name).map_err(failed(&folder.join(name)))?;
    }
    let merged = MergedRun {
        folder: folder.to_path_buf(),
        parts: parts.iter().map(|part| part.folder.clone()).collect(),
        records: lines.records,
        doubles: lines.doubles,
        checkpoints: models.checkpoints,
        notes: lines.notes.iter().chain(&models.notes).cloned().collect(),
    };
    let summary = amend(&mut page, &models, &merged).map_err(unreadable)?;
    if summary.config["plots"].as_bool().unwrap_or(false) {
        curves.write(folder, &summary).map_err(failed(folder))?;
    }
    write_page(&folder.join("summary.json"), &page).map_err(failed(folder))?;
    Ok(merged)
}

fn write_records(
    parts: &[RunPart],
    folder: &Path,
    curves: &mut Curves,
) -> Result<MergedLines, RunError> {
    let place = folder.join("records.jsonl");
    let file = File::create(&place).map_err(failed(&place))?;
    let mut writer = BufWriter::new(file);
    let lines = lines::merge(parts, &mut writer, curves)?;
    let written = writer.flush().and_then(|()| writer.get_ref().sync_all());
    written.map_err(failed(&place))?;
    Ok(lines)
}

/// The last part's summary counts the whole run; it gets the best model of all parts, and says what it was made of.
fn amend(
    page: &mut Value,
    models: &MergedModels,
    merged: &MergedRun,
) -> Result<Summary, serde_json::Error> {
    if let Some(best) = models.best {
        let BestModel { step, loss, accuracy } = best;
        page["best"] = json!({ "step": step, "loss": loss, "accuracy": accuracy });
    }
    let names: Vec<String> = merged.parts.iter().map(|part| part.display().to_string()).collect();
    let of = format!("merged from {}", names.join(", "));
    if let Some(warnings) = page["warnings"].as_array_mut() {
        warnings.extend(merged.notes.iter().cloned().chain([of]).map(Value::from));
    }
    serde_json::from_value(page.clone())
}

fn write_page(place: &Path, page: &Value) -> io::Result<()> {
    let mut file = File::create(place)?;
    serde_json::to_writer_pretty(&mut file, page)?;
    writeln!(file)?;
    file.sync_all()
}

/// Copies one file, which must be a file itself and no link.
fn copy(from: &Path, to: &Path, name: &str) -> io::Result<()> {
    let source = from.join(name);
    if !fs::symlink_metadata(&source)?.is_file() {
        let problem = format!("{} is no plain file", source.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    fs::copy(source, to.join(name))?;
    File::open(to.join(name))?.sync_all()
}

fn sync(folder: &Path) -> io::Result<()> {
    // Where folders cannot be flushed, the system does that by itself.
    File::open(folder).and_then(|folder| folder.sync_all()).or(Ok(()))
}

/// The model that was best, if there is a file of it.
fn has_best(folder: &Path) -> bool {
    fs::symlink_metadata(folder.join(BEST)).is_ok_and(|found| found.is_file())
}
