//! Files as they come: plain, gzip or xz, told apart by their first bytes.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;

use crate::error::DataError;

/// Endings of the names of packed files.
const PACKED: [&str; 2] = ["gz", "xz"];
/// Memory that an xz stream may ask for, in kB; `xz -9` needs 64 MiB of dictionary.
const XZ_MEMORY_KB: u32 = 256 * 1024;
/// The most memory that is taken on the word of a header alone.
const BELIEVED_BYTES: usize = 64 << 20;

/// The file `name` in this folder, or its packed form `name.gz` or `name.xz`.
pub fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let packed = PACKED.iter().map(|ending| folder.join(format!("{name}.{ending}")));
    std::iter::once(folder.join(name)).chain(packed).find(|path| path.is_file())
}

/// Like [`find`], or an error that names what is missing.
pub fn require(folder: &Path, name: &str) -> Result<PathBuf, DataError> {
    find(folder, name).ok_or_else(|| DataError::Missing {
        folder: folder.to_path_buf(),
        wanted: format!("{name} (nor {name}.gz or {name}.xz)"),
    })
}

/// The content of a file, unpacked while it is read.
pub struct Content {
    path: PathBuf,
    reader: Box<dyn Read + Send>,
}

impl Content {
    /// Opens a file, whatever it is packed with.
    pub fn open(path: &Path) -> Result<Content, DataError> {
        let wrong = DataError::reading(path);
        let mut file = File::open(path).map_err(&wrong)?;
        let mut magic = Vec::new();
        file.by_ref().take(6).read_to_end(&mut magic).map_err(&wrong)?;
        file.rewind().map_err(&wrong)?;
        let file = BufReader::with_capacity(1 << 16, file);
        let reader: Box<dyn Read + Send> = if magic.starts_with(&[0x1f, 0x8b]) {
            Box::new(MultiGzDecoder::new(file))
        } else if magic == *b"\xfd7zXZ\0" {
            Box::new(XzReader::new_mem_limit(file, true, XZ_MEMORY_KB))
        } else {
            Box::new(file)
        };
        Ok(Content { path: path.to_path_buf(), reader: Box::new(Fused(Some(reader))) })
    }

    /// All of a file that is not packed, at most `limit` bytes.
    pub(crate) fn plain(path: &Path, limit: u64) -> Result<Vec<u8>, DataError> {
        let file = File::open(path).map_err(DataError::reading(path))?;
        let mut plain = Content { path: path.to_path_buf(), reader: Box::new(file) };
        plain.rest(usize::try_from(limit).unwrap_or(usize::MAX))
    }

    /// Fills `out`, or says that the file ends too early.
    pub fn fill(&mut self, out: &mut [u8]) -> Result<(), DataError> {
        self.reader.read_exact(out).map_err(DataError::reading(&self.path))
    }

    /// Exactly `len` bytes. A header that lies about them costs no memory.
    pub fn take(&mut self, len: usize) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::with_capacity(len.min(BELIEVED_BYTES));
        let read = self.reader.by_ref().take(len as u64).read_to_end(&mut bytes);
        read.map_err(DataError::reading(&self.path))?;
        if bytes.len() < len {
            let problem = format!("ends {} bytes too early: it was cut off", len - bytes.len());
            return Err(DataError::damaged(&self.path, problem));
        }
        Ok(bytes)
    }

    /// Everything up to the end, at most `limit` bytes.
    pub fn rest(&mut self, limit: usize) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        let read = self.reader.by_ref().take(limit as u64 + 1).read_to_end(&mut bytes);
        read.map_err(DataError::reading(&self.path))?;
        if bytes.len() > limit {
            let problem = format!("is longer than {limit} bytes, the most that is read");
            return Err(DataError::damaged(&self.path, problem));
        }
        Ok(bytes)
    }

    /// Nothing may follow; reading to the end also checks the checksum of a packed file.
    pub fn end(mut self) -> Result<(), DataError> {
        let mut byte = [0];
        match self.reader.read(&mut byte).map_err(DataError::reading(&self.path))? {
            0 => Ok(()),
            _ => Err(DataError::damaged(&self.path, "is longer than its header says")),
        }
    }
}

/// Reads no more after an error: a decoder that goes on with damaged data may never end.
struct Fused<R>(Option<R>);

impl<R: Read> Read for Fused<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let Some(reader) = &mut self.0 else {
            return Err(std::io::Error::other("an earlier part is damaged"));
        };
        let read = reader.read(out);
        if read.as_ref().is_err_and(|error| error.kind() != std::io::ErrorKind::Interrupted) {
            self.0 = None;
        }
        read
    }
}

impl Read for Content {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.reader.read(out)
    }
}

/// Writes a file beside `path` and renames it, so that `path` is always whole.
pub(crate) fn write_beside(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let wrong = DataError::writing(path);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.new", std::process::id()));
    let beside = path.with_file_name(name);
    let written = std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written.map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_is_read_no_further() {
        // Fuzzing has found files whose decoder does not end when it is asked again after an error.
        let path =
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/packed/damaged.xz"));
        let mut content = Content::open(path).expect("it begins like xz");
        let told = content.rest(1 << 20).expect_err("damaged").to_string();
        assert!(told.contains("damaged.xz"), "{told}");
        let again = content.read(&mut [0]).expect_err("still").to_string();
        assert_eq!(again, "an earlier part is damaged");
    }
}
