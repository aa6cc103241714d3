//! `part.json`: of which run a folder holds a part, where another process may take over and write the rest elsewhere.
//!
//! The coordinator writes it when its run begins and takes it away when the run has come to its end there; a process
//! that takes over writes its own and leaves it. [`merge`](crate::merge) puts the parts together by it.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::directory::Directory;
use super::limited::read_limited;

/// The file.
pub const PART: &str = "part.json";
/// What the names of the folders begin with that processes on the coordinator's machine write to after they have
/// taken over; their rank follows.
pub const TAKEN_OVER: &str = "taken-over-by-rank-";
/// The version of the format.
const FORMAT: u32 = 1;
/// The longest note that is read.
const NOTE_BYTES: u64 = 64 << 10;

/// What distinguishes a run from all others.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct RunId(String);

/// What a job begins with that names its run.
const JOB_PREFIX: &[u8] = b"run ";
/// Letters of a name.
const ID_CHARS: usize = 32;

impl RunId {
    /// A name that no other run has: 128 random bits.
    pub fn random() -> RunId {
        // The standard library takes its keys from the system's random numbers.
        let bits = || RandomState::new().build_hasher().finish();
        RunId(format!("{:016x}{:016x}", bits(), bits()))
    }

    /// The job with the name of its run before it.
    pub fn name_job(&self, job: &[u8]) -> Vec<u8> {
        [JOB_PREFIX, self.0.as_bytes(), b"\n", job].concat()
    }

    /// The name of the run, if the job has one, and the job itself.
    pub fn split_job(job: &[u8]) -> (Option<RunId>, &[u8]) {
        let named = job.strip_prefix(JOB_PREFIX).and_then(|rest| {
            let (name, rest) = (rest.get(..ID_CHARS)?, rest.get(ID_CHARS..)?);
            let name = std::str::from_utf8(name).ok().filter(|name| is_id(name))?;
            Some((RunId(name.to_string()), rest.strip_prefix(b"\n")?))
        });
        match named {
            Some((name, rest)) => (Some(name), rest),
            None => (None, job),
        }
    }
}

fn is_id(text: &str) -> bool {
    text.len() == ID_CHARS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl std::fmt::Display for RunId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which part of a run is in a folder.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct PartNote {
    /// The version of the format.
    pub format: u32,
    /// Of which run.
    pub run: RunId,
    /// The rank in whose process the run was controlled; `null` for a process without a worker.
    pub controller: Option<u32>,
    /// Who controlled it before; nobody, if the run began here.
    pub predecessor: Option<Predecessor>,
}

/// Who controlled a run before it was taken over.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Predecessor {
    /// Its rank; `null` for a process without a worker.
    pub controller: Option<u32>,
}

impl PartNote {
    /// Of the part that `controller` writes.
    pub fn new(run: RunId, controller: Option<u32>, predecessor: Option<Predecessor>) -> PartNote {
        PartNote { format: FORMAT, run, controller, predecessor }
    }

    /// Puts it in its place.
    pub fn write(&self, directory: &Directory) -> io::Result<()> {
        let mut draft = directory.redraft(PART)?;
        serde_json::to_writer_pretty(&mut draft, self)?;
        writeln!(draft)?;
        draft.replace()
    }

    /// Takes it away: the run has come to its end where it began.
    pub fn remove(folder: &Path) {
        // One that stays only says that this was the first part.
        let _ = fs::remove_file(folder.join(PART));
    }

    /// The note of this folder, or why there is none, in words that follow its name.
    pub fn read(folder: &Path) -> Result<PartNote, String> {
        let bytes = match read_limited(&folder.join(PART), NOTE_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(format!(
                    "holds no part of a run that was taken over: it has no {PART}"
                ));
            }
            Err(error) => return Err(format!("{PART}: {error}")),
        };
        let note: PartNote =
            serde_json::from_slice(&bytes).map_err(|error| format!("{PART}: {error}"))?;
        if note.format != FORMAT {
            return Err(format!(
                "{PART}: its format is {}, this version reads {FORMAT}",
                note.format
            ));
        }
        if !is_id(&note.run.0) {
            return Err(format!("{PART}: `run` is no name of a run"));
        }
        Ok(note)
    }

    /// Who wrote the part, in words.
    pub fn writer(&self) -> String {
        controller_words(self.controller)
    }
}

/// The process of this rank, in words.
pub fn controller_words(rank: Option<u32>) -> String {
    rank.map_or("the coordinator".to_string(), |rank| format!("the process of rank {rank}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_the_same_with_and_without_the_name_of_its_run() {
        let id = RunId::random();
        assert_ne!(id, RunId::random());
        let named = id.name_job(b"{\"steps\": 5}");
        assert_eq!(RunId::split_job(&named), (Some(id), &b"{\"steps\": 5}"[..]));
        for plain in [&b"{}"[..], b"", b"run ", b"run 0123\n{}", b"run \xff\xff"] {
            assert_eq!(RunId::split_job(plain), (None, plain));
        }
    }

    #[test]
    fn a_note_is_read_back_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let directory = Directory::claim(Some(folder.path()), false, "").expect("empty");
        let told = PartNote::read(folder.path()).expect_err("nothing is there");
        assert!(told.contains("it has no part.json"), "{told}");
        let before = Some(Predecessor { controller: None });
        let note = PartNote::new(RunId::random(), Some(3), before);
        note.write(&directory).expect("written");
        assert_eq!(PartNote::read(folder.path()), Ok(note));
        for (text, told) in [
            ("{", "part.json: "),
            (
                "{\"format\":2,\"run\":\"\",\"controller\":0,\"predecessor\":null}",
                "its format is 2",
            ),
            (
                "{\"format\":1,\"run\":\"../x\",\"controller\":0,\"predecessor\":null}",
                "no name of a run",
            ),
        ] {
            fs::write(folder.path().join(PART), text).expect("written");
            let error = PartNote::read(folder.path()).expect_err(text);
            assert!(error.contains(told), "{error}");
        }
    }
}
