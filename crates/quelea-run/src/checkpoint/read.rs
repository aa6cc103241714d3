//! Finds the newest checkpoint that is whole.

use std::fs;
use std::path::{Path, PathBuf};

use quelea_core::node::MODEL;
use quelea_record::{BUFFERS, RankCheckpoint};
use sha2::{Digest, Sha256};

use super::{FOLDER, FORMAT, MANIFEST, Manifest, SUMS, hex, membership, name, part, step_of};
use crate::config::source::ConfigSetting;
use crate::error::RequestError;
use crate::files::limited::read_limited;
use crate::memory;

/// Vectors of the model's length that a rank's state has at most.
const STATE_VECTORS: u64 = 96;
/// What all else in a rank's state may have, in bytes.
const STATE_NUMBERS: u64 = 16 << 20;
/// The longest manifest, and the longest list of sums.
pub(super) const TEXT_BYTES: u64 = 64 << 20;

/// A checkpoint that was found whole.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The folder of its run.
    pub run: PathBuf,
    /// What run it is of.
    pub manifest: Manifest,
    /// Every rank; those that were lost have their steps only.
    pub parts: Vec<RankCheckpoint>,
    /// The number of workers was asked for: those that were lost are replaced.
    pub refills: bool,
    /// Newer ones that could not be used, in sentences.
    pub notes: Vec<String>,
}

impl Checkpoint {
    /// As many workers as the configuration says, whoever was lost before.
    pub fn refilled(mut self, refills: bool) -> Checkpoint {
        self.refills = refills;
        self
    }

    /// The configuration of the run, to be read again with `settings` on top. What followed from
    /// the number of ranks is left out where that is another now.
    pub fn config(
        &self,
        settings: &[ConfigSetting],
        launched: Option<usize>,
    ) -> Result<toml::Table, RequestError> {
        let table = serde_json::from_value(self.manifest.config.clone());
        let mut table: toml::Table = table.map_err(|error| {
            RequestError::file(&self.run, format!("its configuration is no table: {error}"))
        })?;
        if launched.is_some() {
            table.remove("workers");
        }
        let is_set = |key: &str| settings.iter().any(|setting| setting.path.join(".") == key);
        let resized = launched.is_some() || is_set("workers") || is_set("cluster.servers");
        if let Some(toml::Value::Table(cluster)) = table.get_mut("cluster")
            && resized
        {
            cluster.remove("hosts");
            cluster.remove("server_hosts");
        }
        Ok(table)
    }
}

/// The newest whole checkpoint of the run in `path`, or the one that `path` is.
pub fn open(path: &Path) -> Result<Checkpoint, RequestError> {
    let refuse = |problem: &str| Err(RequestError::file(path, problem));
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return refuse("no such folder; --resume takes the folder of a run");
        }
        Err(error) => return Err(RequestError::file(path, error)),
        Ok(found) if !found.is_dir() => {
            return refuse("is a file; --resume takes the folder of a run");
        }
        Ok(_) => {}
    }
    if path.join(SUMS).is_file() || path.join(MANIFEST).is_file() {
        let run = path.parent().and_then(Path::parent).unwrap_or(path).to_path_buf();
        let (manifest, parts) = load(path).map_err(|why| {
            RequestError::file(path, format!("is damaged or half-written: {why}"))
        })?;
        return Ok(Checkpoint { run, manifest, parts, refills: false, notes: Vec::new() });
    }
    let (run, folder) = match path.join(FOLDER) {
        inside if inside.is_dir() => (path.to_path_buf(), inside),
        _ => (path.parent().unwrap_or(path).to_path_buf(), path.to_path_buf()),
    };
    let steps = steps(&folder).map_err(|error| RequestError::file(&folder, error))?;
    if steps.is_empty() {
        return refuse(
            "holds no checkpoint; runs make them with `checkpoint.every`, every ten minutes, and \
             when they are interrupted",
        );
    }
    let mut damaged = Vec::new();
    for step in &steps {
        match load(&folder.join(name(*step))) {
            Ok((manifest, parts)) => {
                let note = |why: String| format!("{why}; resuming from {} instead", name(*step));
                let notes = damaged.into_iter().map(note).collect();
                return Ok(Checkpoint { run, manifest, parts, refills: false, notes });
            }
            Err(why) => {
                damaged.push(format!("{FOLDER}/{} is damaged or half-written: {why}", name(*step)));
            }
        }
    }
    refuse(&format!("has no checkpoint that is whole: {}", damaged.join("; ")))
}

/// The steps of the checkpoints in a folder, newest first.
pub(crate) fn steps(folder: &Path) -> std::io::Result<Vec<u64>> {
    let mut steps = Vec::new();
    for entry in fs::read_dir(folder)? {
        steps.extend(entry?.file_name().to_str().and_then(step_of));
    }
    steps.sort_unstable_by(|a, b| b.cmp(a));
    Ok(steps)
}

/// Reads a checkpoint; nothing is taken from a file whose sum is another than the listed one.
fn load(folder: &Path) -> Result<(Manifest, Vec<RankCheckpoint>), String> {
    let sums = text(&folder.join(SUMS)).map_err(|why| format!("{SUMS} {why}"))?;
    let sums: Vec<(&str, &str)> = sums
        .lines()
        .filter_map(|line| line.split_once("  "))
        .map(|(sum, name)| (name, sum))
        .collect();
    let checked = |name: &str, most: u64| -> Result<Vec<u8>, String> {
        let listed = sums.iter().find(|(listed, _)| *listed == name);
        let (_, sum) = listed.ok_or_else(|| format!("{SUMS} does not list {name}"))?;
        let bytes = read_limited(&folder.join(name), most);
        let bytes = bytes.map_err(|error| format!("{name}: {error}"))?;
        if hex(&Sha256::digest(&bytes)) == *sum {
            Ok(bytes)
        } else {
            Err(format!("{name} has another SHA-256 than {SUMS} says"))
        }
    };
    let manifest = checked(MANIFEST, TEXT_BYTES)?;
    let manifest: Manifest =
        serde_json::from_slice(&manifest).map_err(|error| format!("{MANIFEST}: {error}"))?;
    if manifest.format != FORMAT {
        let format = manifest.format;
        return Err(format!("its format is {format}, this version reads {FORMAT}"));
    }
    let listed = sums.iter().filter(|(name, _)| name.starts_with("rank-")).count();
    check_manifest(&manifest, listed).map_err(|why| format!("{MANIFEST}: {why}"))?;
    let lost = |rank: usize| manifest.departed().find(|departed| departed.rank as usize == rank);
    // What this machine cannot hold is refused before it is read, and what no rank has too.
    let available = memory::available().map_or(u64::MAX, |bytes| bytes as u64);
    let longest = (4 * STATE_VECTORS).saturating_mul(manifest.dimensions as u64);
    let longest = longest.saturating_add(STATE_NUMBERS).min(available);
    let part = |rank: usize| {
        if let Some(departed) = lost(rank) {
            return Ok(departed.part());
        }
        let name = format!("rank-{rank}.safetensors");
        let bytes = checked(&name, longest)?;
        let part = part::from_bytes(&bytes).and_then(|part| {
            check_part(&part, manifest.dimensions)?;
            Ok(part)
        });
        part.map_err(|why| format!("{name}: {why}"))
    };
    let parts = (0..manifest.seats() + manifest.servers).map(part).collect::<Result<_, _>>()?;
    Ok((manifest, parts))
}

/// More steps than any run takes, so that sums of them are numbers.
const STEPS_MAX: u64 = 1 << 48;
/// More samples or bytes than any run has; sums over all ranks are numbers.
const COUNT_MAX: u64 = 1 << 56;
/// More seconds than any run takes.
const SECONDS_MAX: f64 = 1e12;

/// Whether what a manifest says can be: sums only tell that it is what was written.
fn check_manifest(manifest: &Manifest, files: usize) -> Result<(), String> {
    let Manifest { workers, servers, step, clock_seconds, .. } = manifest;
    membership::check(manifest)?;
    let lost = manifest.departed().count();
    if *workers == 0 || manifest.seats().checked_add(*servers) != files.checked_add(lost) {
        return Err(format!(
            "`workers` = {workers} and `servers` = {servers}, but there are files of {files} ranks"
        ));
    }
    if *step > STEPS_MAX {
        return Err(format!("`step` = {step} is more than any run takes"));
    }
    if !(0.0..SECONDS_MAX).contains(clock_seconds) {
        return Err(format!("`clock_seconds` = {clock_seconds} is no time"));
    }
    Ok(())
}

/// Whether a rank's state can be one of a model with so many parameters.
fn check_part(part: &RankCheckpoint, dimensions: usize) -> Result<(), String> {
    for (name, values) in &part.state.vectors {
        if name != BUFFERS && values.len() > dimensions {
            let len = values.len();
            return Err(format!("`{name}` has {len} elements, the model has {dimensions}"));
        }
        let is_of_model = name == "params" || name == MODEL || name.starts_with("optimizer.");
        if is_of_model && let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(format!("`{name}` is {} at element {at}", values[at]));
        }
    }
    for (name, value) in &part.state.numbers {
        let counts = name == "step" || name.starts_with("optimized.");
        if counts && *value > STEPS_MAX {
            return Err(format!("`{name}` = {value} is more than any run takes"));
        }
    }
    let report = &part.report;
    let counts = [
        ("steps", report.steps),
        ("samples", report.samples),
        ("bytes_sent", report.bytes_sent),
        ("bytes_received", report.bytes_received),
        ("messages_sent", report.messages_sent),
    ];
    if let Some((name, value)) = counts.iter().find(|(_, value)| *value > COUNT_MAX) {
        return Err(format!("`report.{name}` = {value} is more than any run has"));
    }
    let seconds = [
        ("compute_seconds", report.compute_seconds),
        ("exposed_seconds", report.exposed_seconds),
        ("waiting_seconds", report.waiting_seconds),
    ];
    match seconds.iter().find(|(_, value)| !(0.0..SECONDS_MAX).contains(value)) {
        Some((name, value)) => Err(format!("`report.{name}` = {value} is no time")),
        None => Ok(()),
    }
}

fn text(path: &Path) -> Result<String, String> {
    let bytes =
        read_limited(path, TEXT_BYTES).map_err(|error| format!("cannot be read: {error}"))?;
    String::from_utf8(bytes).map_err(|_| "is not text".to_string())
}

#[cfg(test)]
mod tests {
    use super::super::membership::{SavedChange, SavedDeparture};
    use super::*;
    use quelea_record::RankReport;

    /// A checkpoint of one rank with four parameters, whose sums are right.
    fn written(change: impl FnOnce(&mut Manifest, &mut RankCheckpoint)) -> Result<(), String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut manifest = Manifest {
            format: FORMAT,
            version: String::new(),
            step: 3,
            clock_seconds: 1.5,
            workers: 1,
            seats: 0,
            servers: 0,
            changes: Vec::new(),
            dimensions: 4,
            epochs: None,
            config: serde_json::Value::Null,
            best: None,
        };
        let mut part = RankCheckpoint::default();
        part.state.vectors.insert("params".to_string(), vec![1.0; 4]);
        part.state.numbers.insert("step".to_string(), 3);
        change(&mut manifest, &mut part);
        let files = [
            (MANIFEST, serde_json::to_vec(&manifest).expect("JSON")),
            ("rank-0.safetensors", part::to_bytes(&part).expect("tensors")),
        ];
        let mut sums = String::new();
        for (name, bytes) in files {
            fs::write(folder.path().join(name), &bytes).expect("written");
            sums += &format!("{}  {name}\n", hex(&Sha256::digest(&bytes)));
        }
        fs::write(folder.path().join(SUMS), sums).expect("written");
        load(folder.path()).map(drop)
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_field_although_the_sums_are_right() {
        written(|_, _| {}).expect("a good one");
        let refused = |change: fn(&mut Manifest, &mut RankCheckpoint), field: &str| {
            let why = written(change).expect_err(field);
            assert!(why.contains(field), "{why}");
        };
        refused(|manifest, _| manifest.workers = usize::MAX, "`workers` = ");
        refused(|manifest, _| manifest.servers = usize::MAX, "`servers` = ");
        refused(|manifest, _| manifest.workers = 0, "`workers` = 0");
        let departed = vec![SavedDeparture { rank: 0, steps: 1, left: false }];
        let change = SavedChange { number: 1, from_step: 4, departed, joined: Vec::new() };
        let with = |change: SavedChange| {
            written(|manifest, _| manifest.changes = vec![change]).expect_err("no such membership")
        };
        assert_eq!(with(change.clone()), "manifest.json: `changes` leaves no worker");
        let unknown = vec![SavedDeparture { rank: 7, steps: 1, left: false }];
        let why = with(SavedChange { departed: unknown, ..change.clone() });
        assert!(why.contains("`changes` names rank 7 of 1"), "{why}");
        let why = with(SavedChange { number: 2, ..change });
        assert!(why.contains("`changes` has view 2 at place 1"), "{why}");
        refused(|manifest, _| manifest.step = u64::MAX, "`step` = ");
        refused(|manifest, _| manifest.clock_seconds = -1.0, "`clock_seconds` = -1");
        refused(|manifest, _| manifest.dimensions = 3, "`params` has 4 elements");
        let params = |part: &mut RankCheckpoint, values: Vec<f32>| {
            part.state.vectors.insert("params".to_string(), values);
        };
        let why = written(|_, part| params(part, vec![1.0, f32::NAN, 1.0, 1.0]));
        assert_eq!(why, Err("rank-0.safetensors: `params` is NaN at element 1".to_string()));
        let why = written(|_, part| params(part, vec![f32::INFINITY; 4]));
        assert_eq!(why, Err("rank-0.safetensors: `params` is inf at element 0".to_string()));
        refused(
            |_, part| {
                part.state.numbers.insert("step".to_string(), u64::MAX);
            },
            "`step` = ",
        );
        refused(
            |_, part| part.report = RankReport { exposed_seconds: -1.0, ..RankReport::default() },
            "`report.exposed_seconds` = -1",
        );
        refused(
            |_, part| part.report = RankReport { steps: u64::MAX, ..RankReport::default() },
            "`report.steps` = 18446744073709551615",
        );
    }
}
