//! The table of targets: everything that reads bytes or text from outside.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::corpus;
use crate::targets::{core, data, net, page, run, wire};

/// What an input looks like, which decides how it is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputFormat {
    /// Numbers of fixed width, lengths, checksums.
    Binary,
    /// Words, numbers and brackets.
    Text,
}

/// One reader, and what is known of its inputs.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// What `--target` takes, and the folder in the corpus.
    pub name: &'static str,
    /// The function that is called.
    pub function: &'static str,
    /// What inputs look like.
    pub format: InputFormat,
    /// Good inputs, of every kind.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Makes checksums and lengths right again after a change.
    pub repair: fn(&mut Vec<u8>),
    /// Reads an input. What must hold of a good one is asserted.
    pub read: fn(&[u8], &InputFolder),
    /// Of a campaign's inputs, so many parts go to this target: readers of files are slower.
    pub share: u64,
    /// What reading one input may hold at once, in bytes.
    pub memory_bytes: usize,
}

/// All targets, by crate.
pub const TARGETS: &[&[FuzzTarget]] =
    &[wire::TARGETS, core::TARGETS, net::TARGETS, data::TARGETS, run::TARGETS, page::TARGETS];

/// All targets.
pub fn all() -> impl Iterator<Item = &'static FuzzTarget> {
    TARGETS.iter().copied().flatten()
}

/// The target of this name.
pub fn find(name: &str) -> Option<&'static FuzzTarget> {
    all().find(|target| target.name == name)
}

impl FuzzTarget {
    /// Its seeds: those that are computed, then those of the corpus.
    pub fn all_seeds(&self) -> Vec<Vec<u8>> {
        let mut seeds = (self.seeds)();
        seeds.extend(corpus::inputs(self.name).into_iter().map(|(_, bytes)| bytes));
        seeds
    }
}

/// For targets whose inputs have no checksums.
pub fn as_it_is(_: &mut Vec<u8>) {}

/// A folder for inputs that are read from files, in memory where the system has such a place.
#[derive(Debug)]
pub struct InputFolder {
    folder: TempDir,
}

impl InputFolder {
    /// An empty one.
    pub fn new() -> std::io::Result<InputFolder> {
        let shared = Path::new("/dev/shm");
        let folder = if shared.is_dir() {
            tempfile::tempdir_in(shared).or_else(|_| tempfile::tempdir())
        } else {
            tempfile::tempdir()
        };
        Ok(InputFolder { folder: folder? })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, bytes).expect("a file can be written in a temporary folder");
        path
    }

    /// Writes the files of a set of which the input replaces one: its first byte says which.
    pub fn write_set(&self, files: &[(&str, Vec<u8>)], input: &[u8]) {
        let (which, replaced) = input
            .split_first()
            .map_or((0, input), |(first, rest)| (usize::from(*first) % files.len().max(1), rest));
        for (place, (name, good)) in files.iter().enumerate() {
            self.write(name, if place == which { replaced } else { good });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_target_has_a_name_of_its_own_and_seeds() {
        let names: Vec<&str> = all().map(|target| target.name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        for target in all() {
            assert!(!target.all_seeds().is_empty(), "{}", target.name);
            assert!(target.share > 0 && target.memory_bytes > 0, "{}", target.name);
        }
    }

    #[test]
    fn every_folder_of_the_corpus_is_of_a_target() {
        for name in corpus::folders() {
            assert!(find(&name).is_some(), "fuzz/corpus/{name} is of no target");
        }
    }
}
