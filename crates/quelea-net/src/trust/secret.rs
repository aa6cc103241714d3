//! The secret of a run: knowing it is the right to take part.

use std::fmt;
use std::io::Read;
use std::path::Path;

use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac};

use crate::error::NetError;

/// The longest file with a secret.
const SECRET_BYTES: u64 = 64 << 10;
/// Fewer characters than this can be guessed.
const LEAST_CHARS: usize = 20;

/// What the processes of a run have in common and nobody else knows. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct RunSecret([u8; 32]);

/// One side of a connection, in what it proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Joins,
    Serves,
}

impl RunSecret {
    /// A new one.
    pub fn random() -> Result<RunSecret, NetError> {
        random_bytes().map(RunSecret)
    }

    /// From a text that all processes were given; `source` names where it came from.
    pub fn from_text(source: &str, text: &str) -> Result<RunSecret, NetError> {
        let text = text.trim();
        let count = text.chars().count();
        if count < LEAST_CHARS {
            return Err(NetError::Setup(format!(
                "{source}: has {count} characters; a secret needs at least {LEAST_CHARS} random \
                 ones (for example: openssl rand -hex 32)"
            )));
        }
        Ok(RunSecret(sha256(&[b"quelea secret 1", text.as_bytes()])))
    }

    pub(super) fn from_bytes(bytes: [u8; 32]) -> RunSecret {
        RunSecret(bytes)
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// What proves to the other side of the connection `binding` that this one knows the secret.
    pub(super) fn proof(&self, role: Role, binding: &Binding) -> [u8; 32] {
        let tag = hmac::sign(&self.key(), &binding.message(role));
        tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// Whether `proof` is one.
    pub(super) fn verify(&self, role: Role, binding: &Binding, proof: &[u8]) -> bool {
        hmac::verify(&self.key(), &binding.message(role), proof).is_ok()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

impl fmt::Debug for RunSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunSecret(…)")
    }
}

/// What tells one connection from all others: the certificate that the server has proved to own, and what
/// both sides have drawn. Somebody in between would have to present another certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) certificate: [u8; 32],
    pub(super) server_nonce: [u8; 32],
    pub(super) client_nonce: [u8; 32],
}

impl Binding {
    fn message(&self, role: Role) -> Vec<u8> {
        let role: &[u8] = match role {
            Role::Joins => b"quelea 1 joins",
            Role::Serves => b"quelea 1 serves",
        };
        [role, &self.certificate, &self.server_nonce, &self.client_nonce].concat()
    }
}

pub(super) fn random_bytes() -> Result<[u8; 32], NetError> {
    let mut bytes = [0; 32];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| NetError::Setup("the system gives no random numbers".into()))?;
    Ok(bytes)
}

pub(super) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    parts.iter().for_each(|part| context.update(part));
    context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The text of a file that nobody but its owner may read.
pub(super) fn read_private(path: &Path) -> Result<String, NetError> {
    let wrong = |problem: String| {
        NetError::Setup(format!("QUELEA_SECRET_FILE={}: {problem}", path.display()))
    };
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let found = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
        let mode = found.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(wrong(format!("others may read it (mode {mode:o}); chmod 600 it")));
        }
    }
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    let read = file.take(SECRET_BYTES + 1).read_to_string(&mut text);
    match read.map_err(|error| wrong(error.to_string()))? as u64 {
        0..=SECRET_BYTES => Ok(text),
        _ => Err(wrong(format!("is longer than {SECRET_BYTES} bytes"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_one_secret_one_side_and_one_connection() {
        let secret = RunSecret::from_bytes([7; 32]);
        let binding =
            Binding { certificate: [1; 32], server_nonce: [2; 32], client_nonce: [3; 32] };
        let proof = secret.proof(Role::Joins, &binding);
        assert!(secret.verify(Role::Joins, &binding, &proof));
        assert!(!secret.verify(Role::Serves, &binding, &proof));
        assert!(!RunSecret::from_bytes([8; 32]).verify(Role::Joins, &binding, &proof));
        for change in [
            Binding { certificate: [9; 32], ..binding.clone() },
            Binding { server_nonce: [9; 32], ..binding.clone() },
            Binding { client_nonce: [9; 32], ..binding.clone() },
        ] {
            assert!(!secret.verify(Role::Joins, &change, &proof), "{change:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_may_read_is_no_place_for_a_secret() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("quelea-secret-{}", std::process::id()));
        std::fs::write(&path, "x".repeat(40)).expect("a file");
        let set = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
        set(0o644).expect("its mode");
        let told = read_private(&path).expect_err("others may read it").to_string();
        assert!(told.ends_with("others may read it (mode 644); chmod 600 it"), "{told}");
        set(0o600).expect("its mode");
        assert_eq!(read_private(&path).expect("private").len(), 40);
        std::fs::remove_file(&path).expect("it is there");
    }
}
