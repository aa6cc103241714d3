//! Files of others, read with a limit: one that is longer than any honest one costs no memory.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

/// The longest line of `records.jsonl` that is read; an account of all links of a large run is the longest.
pub const LINE_BYTES: usize = 16 << 20;

/// All of a file that has at most `most` bytes.
pub fn read_limited(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    // What is no file tells no length; then the limit is met while reading.
    let told = file.metadata().ok().filter(|found| found.is_file()).map_or(0, |found| found.len());
    if told > most {
        return Err(too_long(most));
    }
    read_to_limit(file, most)
}

/// All that a reader gives, at most `most` bytes.
pub fn read_to_limit(reader: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(too_long(most));
    }
    Ok(bytes)
}

fn too_long(most: u64) -> io::Error {
    let problem = format!("is longer than {most} bytes, the most that is read");
    io::Error::new(io::ErrorKind::FileTooLarge, problem)
}

/// The lines of a file that may still grow. A line that is too long is passed over.
#[derive(Debug)]
pub struct LimitedLines<R> {
    reader: R,
    /// The line that is being read.
    line: Vec<u8>,
    most: usize,
    /// The rest of a line that is too long is on its way.
    is_skipping: bool,
    /// The line was given and makes room for the next.
    is_given: bool,
}

impl<R: BufRead> LimitedLines<R> {
    /// Lines of at most `most` bytes.
    pub fn new(reader: R, most: usize) -> LimitedLines<R> {
        LimitedLines { reader, line: Vec::new(), most, is_skipping: false, is_given: false }
    }

    /// The next line that is whole, without its end; nothing where the file ends for now.
    pub fn next_line(&mut self) -> io::Result<Option<&[u8]>> {
        if std::mem::take(&mut self.is_given) {
            self.line.clear();
        }
        loop {
            let here = match self.reader.fill_buf() {
                Ok([]) => return Ok(None),
                Ok(here) => here,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let end = here.iter().position(|byte| *byte == b'\n');
            let piece = &here[..end.unwrap_or(here.len())];
            if !self.is_skipping && self.line.len() + piece.len() <= self.most {
                self.line.extend_from_slice(piece);
            } else {
                self.is_skipping = true;
                self.line = Vec::new();
            }
            let taken = piece.len() + usize::from(end.is_some());
            self.reader.consume(taken);
            if end.is_some() && !std::mem::take(&mut self.is_skipping) {
                self.is_given = true;
                return Ok(Some(&self.line));
            }
        }
    }

    /// The last line, which has no end yet.
    pub fn unfinished(&self) -> &[u8] {
        if self.is_given { &[] } else { &self.line }
    }

    /// What is below.
    pub fn reader_mut(&mut self) -> &mut R {
        &mut self.reader
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_beyond_the_limit_is_refused_without_being_read() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("file");
        std::fs::write(&path, b"12345").expect("written");
        assert_eq!(read_limited(&path, 5).expect("as long as allowed"), b"12345");
        let told = read_limited(&path, 4).expect_err("too long").to_string();
        assert_eq!(told, "is longer than 4 bytes, the most that is read");
        // Ten gigabytes that take no room on the disk would take it in memory.
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(10 << 30))
            .expect("sparse");
        assert!(read_limited(&path, 1 << 20).is_err());
        #[cfg(target_os = "linux")]
        assert!(
            read_limited(Path::new("/dev/zero"), 1 << 20).is_err(),
            "it has no length and no end"
        );
    }

    #[test]
    fn lines_are_given_as_they_are_and_those_that_are_too_long_left_out() {
        let text: &[u8] = b"one\n\nlonger than ten\nten bytes!\nrest";
        // Pieces of three bytes: lines are put together of several.
        let mut lines = LimitedLines::new(io::BufReader::with_capacity(3, text), 10);
        let mut found = Vec::new();
        while let Some(line) = lines.next_line().expect("memory can be read") {
            found.push(String::from_utf8(line.to_vec()).expect("text"));
        }
        assert_eq!(found, ["one", "", "ten bytes!"]);
        assert_eq!(lines.unfinished(), b"rest");
    }

    #[test]
    fn a_line_without_an_end_takes_no_more_memory_than_a_line_may_have() {
        let endless = io::BufReader::new(io::repeat(b'x').take(64 << 20));
        let mut lines = LimitedLines::new(endless, 1 << 10);
        assert_eq!(lines.next_line().expect("memory can be read"), None);
        assert!(lines.unfinished().is_empty() && lines.line.capacity() <= 1 << 10);
    }
}
