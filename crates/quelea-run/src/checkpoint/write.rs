//! Takes the parts of a cut as they come and writes them, on a thread of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use quelea_core::message::Rank;
use quelea_core::time::Time;
use quelea_core::view::ViewChange;
use quelea_record::RankCheckpoint;
use sha2::{Digest, Sha256};

use super::membership::SavedChange;
use super::{BestModel, FOLDER, MANIFEST, Manifest, SUMS, hex, name, part, step_of};

/// Writes checkpoints while a run continues.
#[derive(Debug)]
pub struct Saver {
    /// Bounded: whoever saves faster than the disk takes it waits.
    parts: SyncSender<SaveMessage>,
    written: Receiver<Written>,
    thread: JoinHandle<()>,
}

/// Which checkpoints are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// So many of the newest ones.
    pub newest: usize,
    /// Those that were there before are of the same run.
    pub older: bool,
}

/// What became of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// After which step it is.
    pub step: u64,
    /// The run's clock at the cut.
    pub now: Time,
    /// Why it could not be written, if it could not.
    pub failure: Option<String>,
}

enum SaveMessage {
    View(SavedChange),
    Part { step: u64, now: Time, rank: Rank, part: Box<RankCheckpoint> },
    Best(BestModel),
}

impl Saver {
    /// Writes into the run's `folder`. `manifest` is what all checkpoints have in common.
    pub fn new(folder: &Path, manifest: Manifest, keep: Keep) -> Saver {
        let (parts, words) = sync_channel(3 * (manifest.seats() + manifest.servers) + 8);
        let (told, written) = channel();
        let folder = folder.join(FOLDER);
        let mut writer = CheckpointWriter {
            folder,
            manifest,
            keep,
            cuts: BTreeMap::new(),
            given_up: BTreeSet::new(),
        };
        let thread = std::thread::spawn(move || {
            for word in words {
                match word {
                    SaveMessage::Best(best) => writer.manifest.best = Some(best),
                    SaveMessage::View(change) => writer.change_view(change),
                    SaveMessage::Part { step, now, rank, part } => {
                        let done = writer.take(step, now, rank, &part);
                        done.into_iter().for_each(|written| drop(told.send(written)));
                    }
                }
            }
            writer.clean();
        });
        Saver { parts, written, thread }
    }

    /// Takes one rank's part of the cut after `step` steps.
    pub fn take(&self, step: u64, now: Time, rank: Rank, part: RankCheckpoint) {
        // The thread ends only after this does.
        let _ = self.parts.send(SaveMessage::Part { step, now, rank, part: Box::new(part) });
    }

    /// Membership has changed: checkpoints that are not whole never will be.
    pub fn change_view(&self, change: &ViewChange) {
        let _ = self.parts.send(SaveMessage::View(SavedChange::from(change)));
    }

    /// From now on this is the best model.
    pub fn set_best(&self, best: BestModel) {
        let _ = self.parts.send(SaveMessage::Best(best));
    }

    /// What has become of checkpoints since the last question.
    pub fn news(&self) -> Vec<Written> {
        self.written.try_iter().collect()
    }

    /// Waits until it is clear what has become of one more; nothing if no more can come.
    pub fn wait(&self) -> Option<Written> {
        self.written.recv().ok()
    }

    /// Waits until all is written; tells what has become of the rest.
    pub fn finish(self) -> Vec<Written> {
        drop(self.parts);
        // What it panics with would have been told where it was joined by the system.
        let _ = self.thread.join();
        self.written.try_iter().collect()
    }
}

struct CheckpointWriter {
    folder: PathBuf,
    manifest: Manifest,
    keep: Keep,
    /// Cuts that are not whole.
    cuts: BTreeMap<u64, OpenCheckpoint>,
    /// Those that could not be written; the rest of their parts is not.
    given_up: BTreeSet<u64>,
}

/// Cuts that may be incomplete at one time.
const OPEN_CUTS: usize = 8;

struct OpenCheckpoint {
    beside: PathBuf,
    now: Time,
    sums: BTreeMap<String, String>,
    parts: BTreeSet<Rank>,
}

impl CheckpointWriter {
    /// From now on a cut is whole when the ranks that are left have saved, in this view.
    fn change_view(&mut self, change: SavedChange) {
        for step in self.cuts.keys().copied().collect::<Vec<_>>() {
            self.forget(step);
        }
        self.manifest.changes.push(change);
    }

    /// Writes a part; says what became of the cut, once that is clear.
    fn take(&mut self, step: u64, now: Time, rank: Rank, part: &RankCheckpoint) -> Option<Written> {
        if self.given_up.contains(&step) {
            return None;
        }
        let beside = self.folder.join(format!(".{}.{}.partial", name(step), std::process::id()));
        let ranks = self.manifest.living();
        let fresh =
            || OpenCheckpoint { beside, now, sums: BTreeMap::new(), parts: BTreeSet::new() };
        let cut = self.cuts.entry(step).or_insert_with(fresh);
        cut.now = cut.now.max(now);
        if !cut.parts.insert(rank) {
            return None;
        }
        let (now, is_whole) = (cut.now, cut.parts.len() == ranks);
        let mut result = fs::create_dir_all(&cut.beside).and_then(|()| cut.write_part(rank, part));
        if result.is_ok() && is_whole {
            result = self.commit(step);
        }
        let failure = result.err().map(|error| error.to_string());
        if failure.is_some() || is_whole {
            self.forget(step);
            self.given_up.extend(failure.is_some().then_some(step));
        }
        // Ranks are at most two cuts apart; more are of somebody who does not speak the truth.
        while self.cuts.len() > OPEN_CUTS {
            let oldest = *self.cuts.keys().next().expect("there are several");
            self.forget(oldest);
            self.given_up.insert(oldest);
        }
        (failure.is_some() || is_whole).then_some(Written { step, now, failure })
    }

    /// Takes away what is left of a cut.
    fn forget(&mut self, step: u64) {
        if let Some(cut) = self.cuts.remove(&step) {
            let _ = fs::remove_dir_all(&cut.beside);
        }
    }

    /// All parts are there: the rest, then the name.
    fn commit(&mut self, step: u64) -> io::Result<()> {
        let cut = self.cuts.get_mut(&step).expect("its parts were just written");
        let manifest = Manifest { step, clock_seconds: cut.now.seconds(), ..self.manifest.clone() };
        let text = serde_json::to_string_pretty(&manifest)?;
        cut.write(MANIFEST, text.as_bytes())?;
        let sums: String = cut.sums.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
        write_file(&cut.beside.join(SUMS), sums.as_bytes())?;
        flush(&cut.beside)?;
        let place = self.folder.join(name(step));
        let away = self.folder.join(format!(".{}.{}.old", name(step), std::process::id()));
        // One of an earlier attempt at the same steps gives way; it is never half there.
        if place.exists() {
            fs::rename(&place, &away)?;
        }
        fs::rename(&cut.beside, &place)?;
        flush(&self.folder)?;
        let _ = fs::remove_dir_all(&away);
        self.prune(step);
        Ok(())
    }

    /// Takes away those of another run, and all but the newest ones. What cannot be taken away does
    /// no harm.
    fn prune(&mut self, latest: u64) {
        let is_ours = std::mem::replace(&mut self.keep.older, true);
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut steps: Vec<u64> = names.filter_map(|name| step_of(&name)).collect();
        steps.sort_unstable_by(|a, b| b.cmp(a));
        // What lies ahead of this run was left behind by one that took another way.
        let ours = |step: &u64| *step == latest || (is_ours && *step < latest);
        let kept: Vec<u64> = steps.iter().copied().filter(ours).take(self.keep.newest).collect();
        for step in steps.into_iter().filter(|step| !kept.contains(step)) {
            let _ = fs::remove_dir_all(self.folder.join(name(step)));
        }
    }

    /// Takes away what did not become whole, and the folder if there is nothing in it.
    fn clean(&mut self) {
        for cut in std::mem::take(&mut self.cuts).into_values() {
            let _ = fs::remove_dir_all(&cut.beside);
        }
        let _ = fs::remove_dir(&self.folder);
    }
}

impl OpenCheckpoint {
    fn write_part(&mut self, rank: Rank, part: &RankCheckpoint) -> io::Result<()> {
        let bytes = part::to_bytes(part).map_err(io::Error::other)?;
        self.write(&format!("rank-{}.safetensors", rank.0), &bytes)
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        write_file(&self.beside.join(name), bytes)?;
        self.sums.insert(name.to_string(), hex(&Sha256::digest(bytes)));
        Ok(())
    }
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes sure that the names in a folder are on the disk.
fn flush(folder: &Path) -> io::Result<()> {
    match File::open(folder).and_then(|file| file.sync_all()) {
        // Not every system can open a folder.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && cfg!(windows) => Ok(()),
        result => result,
    }
}
