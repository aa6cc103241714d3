//! The file in which rank 0 leaves its address, where the launcher names no host.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// No address is longer; the file is in a folder where everybody can write.
const ADDRESS_BYTES: u64 = 512;

fn key(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A meeting file that is there. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct PublishedAddress {
    path: PathBuf,
}

impl PublishedAddress {
    /// Writes `address` into the file, all at once. One that a dead run has left is replaced;
    /// whoever has read it finds nobody there, or somebody with another key, and reads again.
    pub(crate) fn new(path: &Path, address: SocketAddr) -> io::Result<PublishedAddress> {
        let beside = path.with_extension(std::process::id().to_string());
        std::fs::write(&beside, address.to_string())?;
        std::fs::rename(&beside, path)?;
        Ok(PublishedAddress { path: path.to_path_buf() })
    }

    /// What tells its run from others.
    pub(crate) fn key(&self) -> String {
        key(&self.path)
    }
}

impl Drop for PublishedAddress {
    fn drop(&mut self) {
        // Whoever comes later finds no run; that nothing is left behind is only tidiness.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// `HOST:PORT` and the run's key, from what [`join`](crate::join()) was given.
pub(crate) fn resolve(addr: &str) -> Result<(String, String), String> {
    let Some(path) = addr.strip_prefix("file:").map(Path::new) else {
        return Ok((addr.to_string(), String::new()));
    };
    let mut address = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(ADDRESS_BYTES).read_to_string(&mut address))
        .map_err(|error| format!("rank 0 has not left its address there: {error}; if it is on another machine, set QUELEA_RENDEZVOUS=HOST:PORT for all"))?;
    Ok((address.trim().to_string(), key(path)))
}
