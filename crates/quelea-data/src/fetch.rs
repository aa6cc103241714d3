//! Downloading a data set: resumed where it was cut off, verified, and put in place at the end.
//!
//! A file that is under way is called `NAME.part`. It is renamed when its content has the right
//! checksum, and removed when it has not, so whatever has its final name is good.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::read::GzDecoder;
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::catalogue::{DataSet, Download, ExpectedFile};
use crate::check::{FileState, compare, content_sum};
use crate::error::DataError;
use crate::{files, sha256};

/// Where from and where to.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// The folder that the files go to; it is made if it is not there.
    pub to: PathBuf,
    /// An address under which all files lie by their names, instead of the original ones.
    pub mirror: Option<String>,
    /// How long to wait before another attempt; twice as long before the next.
    pub pause: Duration,
}

/// What is told while it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told<'a> {
    /// This file is there already, and good.
    Present(&'a str),
    /// A download begins, or goes on at a place behind its beginning.
    Begun {
        /// Its name.
        name: &'a str,
        /// Bytes that were there from before.
        from: u64,
        /// Bytes in all, where the server says so.
        total: Option<u64>,
    },
    /// So many bytes more.
    Bytes(u64),
    /// The connection was lost; another attempt follows.
    Again(&'a str),
    /// It is whole and is being verified.
    Verifying(&'a str),
}

/// Why a data set could not be downloaded.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The server said no.
    #[error("{address}: the server answered {status}")]
    Status {
        /// What was asked for.
        address: String,
        /// The answer.
        status: u16,
    },
    /// It could not be reached, or the connection was lost again and again.
    #[error("{address}: {problem}{}", kept(*bytes))]
    Lost {
        /// What was asked for.
        address: String,
        /// What happened last.
        problem: String,
        /// What has come so far.
        bytes: u64,
    },
    /// What came is not the data set.
    #[error("{address}: {problem}; what came was thrown away")]
    Wrong {
        /// What was asked for.
        address: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Another process writes the same file.
    #[error("{} is being written by another process", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] DataError),
}

fn kept(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        _ => format!("; {bytes} bytes have come and are kept: the same command goes on from there"),
    }
}

/// Attempts that bring nothing new, one after the other, before giving up.
const ATTEMPTS: u32 = 4;
/// The longest silence of a server.
const SILENCE: Duration = Duration::from_secs(60);
/// What a packed file may have beyond the length of its content.
const MARGIN_BYTES: u64 = 1 << 20;

/// Downloads what is missing of a data set and verifies all of it.
pub fn fetch(
    data_set: &'static DataSet,
    options: &Fetch,
    tell: &mut dyn FnMut(Told<'_>),
) -> Result<(), FetchError> {
    fs::create_dir_all(&options.to).map_err(DataError::writing(&options.to))?;
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .user_agent(concat!("quelea/", env!("CARGO_PKG_VERSION")))
        // A packed file shall come as it is.
        .accept_encoding("identity")
        .timeout_resolve(Some(SILENCE))
        .timeout_connect(Some(SILENCE))
        .timeout_recv_response(Some(SILENCE))
        .timeout_per_read(Some(SILENCE))
        .build();
    let agent = Agent::new_with_config(config);
    for download in data_set.downloads {
        if is_present(&options.to, download) {
            tell(Told::Present(download.name()));
            continue;
        }
        refuse_what_is_in_the_way(&options.to, download)?;
        let address = match &options.mirror {
            Some(mirror) => format!("{}/{}", mirror.trim_end_matches('/'), download.name()),
            None => download.address.to_string(),
        };
        let mut part = PartialFile::open(&options.to, download, address)?;
        part.complete(&agent, options.pause, tell)?;
        tell(Told::Verifying(download.name()));
        part.put_in_place(&options.to, download)?;
    }
    Ok(())
}

fn is_present(folder: &Path, download: &Download) -> bool {
    download.files.iter().all(|file| {
        let sum = files::find(folder, file.name).map(|path| content_sum(&path, &mut |_| {}));
        matches!(sum, Some(Ok((sum, bytes))) if compare(file, &sum, bytes) == FileState::Good)
    })
}

/// A wrong `train.en` would be read although a good `train.en.gz` came to lie beside it.
fn refuse_what_is_in_the_way(folder: &Path, download: &Download) -> Result<(), FetchError> {
    let found = download.files.iter().find_map(|file| files::find(folder, file.name));
    match found.filter(|path| !download.is_archive && *path != folder.join(download.name())) {
        Some(path) => {
            let problem = "is not what it should be, and is in the way: move or remove it";
            Err(DataError::damaged(&path, problem).into())
        }
        None => Ok(()),
    }
}

/// A file that is under way.
struct PartialFile {
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
    fn open(
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

    /// Asks until everything is there. An attempt that brought something new is no failure.
    fn complete(
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
    fn put_in_place(self, folder: &Path, download: &Download) -> Result<(), FetchError> {
        if download.is_archive {
            if let Err(problem) = unpack(&self.path, folder, download.files)? {
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

    /// Begins anew.
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

/// Unpacks the files of the table from an archive, whatever folder they lie in there; each is
/// verified before it gets its name. The inner result says what is wrong with the archive.
fn unpack(
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
