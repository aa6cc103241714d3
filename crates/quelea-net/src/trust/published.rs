//! The token of a coordinator that runs, in a file that only its owner can read: `quelea token` prints it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::token::JoinToken;
use crate::trust::host_of;

const EXTENSION: &str = "token";

/// A token in a file of mode 0600, in a folder of mode 0700. Dropping it removes the file.
#[derive(Debug)]
pub struct PublishedToken {
    path: PathBuf,
}

impl PublishedToken {
    /// Writes the token of a coordinator of this user on this machine.
    pub fn new(token: &JoinToken) -> io::Result<PublishedToken> {
        PublishedToken::inside(&folder()?, token)
    }

    fn inside(folder: &Path, token: &JoinToken) -> io::Result<PublishedToken> {
        let name = format!("{}.{}", port_of(&token.address), std::process::id());
        let path = folder.join(name).with_extension(EXTENSION);
        // One that a dead process with this number has left is not ours.
        let _ = std::fs::remove_file(&path);
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&path)?.write_all(token.reveal().as_bytes())?;
        Ok(PublishedToken { path })
    }

    /// The tokens of this user's coordinators on this machine: of those at `address` (`HOST:PORT`, as
    /// workers reach it), or all.
    pub fn find(address: Option<&str>) -> io::Result<Vec<JoinToken>> {
        PublishedToken::find_inside(&folder()?, address)
    }

    fn find_inside(folder: &Path, address: Option<&str>) -> io::Result<Vec<JoinToken>> {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|found| found == EXTENSION))
            .collect();
        paths.sort();
        let mut tokens = Vec::new();
        for path in paths {
            // A file that vanishes or is damaged belongs to a coordinator that has ended.
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let Ok(mut token) = text.parse::<JoinToken>() else { continue };
            match address {
                Some(address) if port_of(address) != port_of(&token.address) => continue,
                Some(address) if !host_of(address).is_empty() => token.address = address.into(),
                _ => {}
            }
            tokens.push(token);
        }
        Ok(tokens)
    }
}

impl Drop for PublishedToken {
    fn drop(&mut self) {
        // Whoever reads it later can join nothing with it.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn port_of(address: &str) -> &str {
    address.rsplit_once(':').map_or("", |(_, port)| port)
}

/// This user's own folder.
#[cfg(unix)]
fn folder() -> io::Result<PathBuf> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    // SAFETY: it has no arguments and cannot fail.
    let user = unsafe { libc::geteuid() };
    let base = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
    let base = base.map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = base.join(format!("quelea-{user}"));
    match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = std::fs::symlink_metadata(&folder)?;
    if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        return Ok(folder);
    }
    let text = format!("{} is not a folder that only this user can read", folder.display());
    Err(io::Error::other(text))
}

#[cfg(not(unix))]
fn folder() -> io::Result<PathBuf> {
    Err(io::Error::other("tokens are kept on Unix only"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::RunSecret;

    #[cfg(unix)]
    #[test]
    fn a_token_is_found_while_its_coordinator_runs_and_only_its_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("quelea-published-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let token = JoinToken {
            address: "10.0.0.1:29470".into(),
            fingerprint: [1; 32],
            secret: RunSecret::random().expect("random numbers"),
            expires: 5,
        };
        let published = PublishedToken::inside(&folder, &token).expect("written");
        let mode = std::fs::metadata(&published.path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let find = |address| PublishedToken::find_inside(&folder, address).expect("a folder");
        assert_eq!(find(None), std::slice::from_ref(&token));
        let elsewhere = JoinToken { address: "node1:29470".into(), ..token };
        assert_eq!(find(Some("node1:29470")), [elsewhere]);
        assert_eq!(find(Some("node1:4000")), []);
        drop(published);
        assert_eq!(find(None), []);
        std::fs::remove_dir_all(&folder).expect("it is there");
    }
}
