//! Unpacking the archive of a data set, each file verified before it gets its name.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use flate2::read::GzDecoder;

use crate::catalogue::ExpectedFile;
use crate::check::{FileState, compare};
use crate::error::DataError;
use crate::sha256;

/// Unpacks the files of the table from an archive, whatever folder they lie in there; each is
/// verified before it gets its name. The inner result says what is wrong with the archive.
pub(crate) fn unpack(
    archive: &Path,
    folder: &Path,
    wanted: &[ExpectedFile],
) -> Result<Result<(), String>, DataError> {
    let file = File::open(archive).map_err(DataError::reading(archive))?;
    let mut archive = tar::Archive::new(GzDecoder::new(io::BufReader::new(file)));
    let entries = match archive.entries() {
        Ok(entries) => entries,
        Err(error) => return Ok(Err(format!("is no archive: {error}"))),
    };
    let mut done = Vec::new();
    for entry in entries {
        let mut entry = match entry {
            Ok(entry) => entry,
            Err(error) => return Ok(Err(format!("is damaged: {error}"))),
        };
        let name = entry.path().ok().and_then(|path| path.file_name().map(ToOwned::to_owned));
        let Some(file) = wanted.iter().find(|file| name.as_deref() == Some(file.name.as_ref()))
        else {
            continue;
        };
        if let Err(problem) = unpack_file(&mut entry, folder, file)? {
            return Ok(Err(format!("{}: {problem}", file.name)));
        }
        done.push(file.name);
    }
    let missing = wanted.iter().find(|file| !done.contains(&file.name));
    Ok(missing.map_or(Ok(()), |file| Err(format!("holds no {}", file.name))))
}

fn unpack_file(
    entry: &mut dyn Read,
    folder: &Path,
    file: &ExpectedFile,
) -> Result<Result<(), String>, DataError> {
    let (path, draft) = (folder.join(file.name), folder.join(format!("{}.new", file.name)));
    let wrong = DataError::writing(&draft);
    let mut out = File::create(&draft).map_err(&wrong)?;
    let mut sum = Copied { reader: entry.take(file.bytes + 1), out: &mut out, failed: None };
    let found = sha256::of_reader(&mut sum, |_| {});
    if let Some(error) = sum.failed.take() {
        let _ = fs::remove_file(&draft);
        return Err(wrong(error));
    }
    let problem = match found.map(|(sum, bytes)| compare(file, &sum, bytes)) {
        Ok(FileState::Good) => {
            let placed = out.sync_all().and_then(|()| fs::rename(&draft, &path));
            return placed.map(Ok).map_err(&wrong);
        }
        Ok(FileState::Wrong(problem)) => problem,
        Ok(FileState::Missing) => unreachable!("what was read is there"),
        Err(error) => format!("is damaged: {error}"),
    };
    let _ = fs::remove_file(&draft);
    Ok(Err(problem))
}

/// Writes down what is read, and remembers whether it was the writing that failed.
struct Copied<'a, R> {
    reader: R,
    out: &'a mut File,
    failed: Option<io::Error>,
}

impl<R: Read> Read for Copied<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        if let Err(error) = self.out.write_all(&buffer[..read]) {
            self.failed = Some(error);
            return Ok(0);
        }
        Ok(read)
    }
}
