//! One file on its way from a server to its place: requested, resumed, verified, renamed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::http::Response;
use ureq::{Agent, Body};

use super::{FetchError, Told, archive};
use crate::catalogue::Download;
use crate::check::{FileState, compare, content_sum};
use crate::error::DataError;

/// Attempts that bring nothing new, one after the other, before giving up.
const ATTEMPTS: u32 = 4;
/// What a packed file may have beyond the length of its content.
const MARGIN_BYTES: u64 = 1 << 20;

/// A file that is being downloaded, called `NAME.part` until it is verified.
pub(super) struct PartialFile {
    path: PathBuf,
    file: File,
    address: String,
    name: &'static str,
    /// Bytes that are there.
    len: u64,
    /// More than that cannot be right.
    limit: u64,
}

/// How an attempt ended.
enum Ended {
    Whole,
    Cut(String),
}

impl PartialFile {
    /// Opens what an earlier attempt has left in `folder`, or an empty file.
    pub(super) fn open(
        folder: &Path,
        download: &Download,
        address: String,
    ) -> Result<PartialFile, FetchError> {
        let path = folder.join(format!("{}.part", download.name()));
        let opened = OpenOptions::new().append(true).create(true).open(&path);
        let file = opened.map_err(DataError::writing(&path))?;
        if file.try_lock().is_err() {
            return Err(FetchError::Busy { path });
        }
        let len = file.metadata().map_err(DataError::writing(&path))?.len();
        let limit = download.files.iter().map(|file| file.bytes).sum::<u64>() + MARGIN_BYTES;
        Ok(PartialFile { path, file, address, name: download.name(), len, limit })
    }

    /// Requests the file until all of it is there. An attempt that brought something new is no failure.
    pub(super) fn complete(
        &mut self,
        agent: &Agent,
        pause: Duration,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<(), FetchError> {
        let (mut farthest, mut failures) = (self.len, 0);
        loop {
            let problem = match self.attempt(agent, tell)? {
                Ended::Whole => return Ok(()),
                Ended::Cut(problem) => problem,
            };
            failures = if self.len > farthest { 0 } else { failures + 1 };
            farthest = farthest.max(self.len);
            if failures >= ATTEMPTS {
                self.discard_empty();
                let (address, bytes) = (self.address.clone(), self.len);
                return Err(FetchError::Lost { address, problem, bytes });
            }
            tell(Told::Again(&problem));
            std::thread::sleep(pause * 2u32.pow(failures));
        }
    }

    fn attempt(
        &mut self,
        agent: &Agent,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Ended, FetchError> {
        let mut request = agent.get(&self.address);
        if self.len > 0 {
            request = request.header("Range", format!("bytes={}-", self.len));
        }
        let response = match request.call() {
            Ok(response) => response,
            // Nothing that could get better by itself.
            Err(ureq::Error::BadUri(problem)) => return Err(self.refuse(problem)),
            Err(error) => return Ok(Ended::Cut(error.to_string())),
        };
        let total = match response.status().as_u16() {
            200 => {
                self.empty()?;
                length(&response)
            }
            206 => match range(&response) {
                Some((from, total)) if from == self.len => total,
                _ => {
                    self.empty()?;
                    return Ok(Ended::Cut(
                        "the server sent another part than it was asked for".into(),
                    ));
                }
            },
            // Nothing lies behind what is there: either that is all, or it is too much.
            416 if range_total(&response) == Some(self.len) => return Ok(Ended::Whole),
            416 => {
                self.empty()?;
                return Ok(Ended::Cut("what was there from before was too long".into()));
            }
            status @ (408 | 429 | 500..) => {
                return Ok(Ended::Cut(format!("the server answered {status}")));
            }
            status => {
                let address = self.address.clone();
                self.discard_empty();
                return Err(FetchError::Status { address, status });
            }
        };
        if let Some(total) = total.filter(|total| *total > self.limit) {
            return Err(self.refuse(format!("{total} bytes are more than the data set has")));
        }
        tell(Told::Begun { name: self.name, from: self.len, total });
        self.receive(response, total, tell)
    }

    fn receive(
        &mut self,
        response: Response<Body>,
        total: Option<u64>,
        tell: &mut dyn FnMut(Told<'_>),
    ) -> Result<Ended, FetchError> {
        let mut reader = response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Ok(Ended::Cut(error.to_string())),
            };
            self.file.write_all(&buffer[..read]).map_err(DataError::writing(&self.path))?;
            self.len += read as u64;
            if self.len > self.limit {
                return Err(self.refuse("more bytes came than the data set has".to_string()));
            }
            tell(Told::Bytes(read as u64));
        }
        match total {
            Some(total) if self.len < total => {
                Ok(Ended::Cut(format!("the connection ended after {} of {total} bytes", self.len)))
            }
            _ => Ok(Ended::Whole),
        }
    }

    /// Verifies, and gives the file or the files of the archive their names.
    pub(super) fn put_in_place(self, folder: &Path, download: &Download) -> Result<(), FetchError> {
        if download.is_archive {
            if let Err(problem) = archive::unpack(&self.path, folder, download.files)? {
                return Err(self.refuse(problem));
            }
            return Ok(fs::remove_file(&self.path).map_err(DataError::writing(&self.path))?);
        }
        let state = match content_sum(&self.path, &mut |_| {}) {
            Ok((sum, bytes)) => compare(&download.files[0], &sum, bytes),
            Err(error @ DataError::Damaged { .. }) => FileState::Wrong(error.to_string()),
            Err(error) => return Err(error.into()),
        };
        if let FileState::Wrong(problem) = state {
            return Err(self.refuse(problem));
        }
        self.file.sync_all().map_err(DataError::writing(&self.path))?;
        let path = folder.join(download.name());
        Ok(fs::rename(&self.path, &path).map_err(DataError::writing(&path))?)
    }

    /// Drops what is there, to start over.
    fn empty(&mut self) -> Result<(), FetchError> {
        self.file.set_len(0).map_err(DataError::writing(&self.path))?;
        self.len = 0;
        Ok(())
    }

    /// Throws away what came.
    fn refuse(&self, problem: String) -> FetchError {
        let _ = fs::remove_file(&self.path);
        FetchError::Wrong { address: self.address.clone(), problem }
    }

    fn discard_empty(&self) {
        if self.len == 0 {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}

fn length(response: &Response<Body>) -> Option<u64> {
    header(response, "content-length").and_then(|value| value.parse().ok())
}

/// First byte and whole length of `Content-Range: bytes 5-9/10`; the length may be `*`.
fn range(response: &Response<Body>) -> Option<(u64, Option<u64>)> {
    let (span, total) =
        header(response, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    Some((span.split_once('-')?.0.parse().ok()?, total.parse().ok()))
}

/// The whole length of `Content-Range: bytes */10`.
fn range_total(response: &Response<Body>) -> Option<u64> {
    header(response, "content-range")?.strip_prefix("bytes */")?.parse().ok()
}
