//! Downloading a data set: resumed where it was cut off, verified, and put in place at the end.
//!
//! A file that is under way is called `NAME.part`. It is renamed when its content has the right
//! checksum, and removed when it has not, so whatever has its final name is good.

mod archive;
mod partial;

pub(crate) use archive::unpack;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::Agent;

use crate::catalogue::{DataSet, Download};
use crate::check::{FileState, compare, content_sum};
use crate::error::DataError;
use crate::files;
use partial::PartialFile;

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

/// Progress of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told<'a> {
    /// This file is there already, and good.
    Present(&'a str),
    /// A download begins, or resumes behind its beginning.
    Begun {
        /// Its name.
        name: &'a str,
        /// Bytes that were there from before.
        from: u64,
        /// Bytes in all, where the server says so.
        total: Option<u64>,
    },
    /// This many bytes more.
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

/// The longest silence of a server.
const SILENCE: Duration = Duration::from_secs(60);

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
