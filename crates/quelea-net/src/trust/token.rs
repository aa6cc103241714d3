//! Join tokens: where a run is coordinated and the right to take part in it, as one printable string.
//!
//! ```text
//! quelea:HOST:PORT:BASE64   with   version 1 | expiry, u64 | fingerprint, 32 | secret, 32 | check, 4
//! ```

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::secret::{RunSecret, sha256};
use crate::error::NetError;

const PREFIX: &str = "quelea:";
const VERSION: u8 = 1;
const BODY_BYTES: usize = 1 + 8 + 32 + 32;
const CHECK_BYTES: usize = 4;

/// The right to take part in a run, until it expires. Its text form contains the secret: whoever reads it
/// can join. `Debug` does not show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    /// `HOST:PORT` of the coordinator.
    pub address: String,
    /// SHA-256 of the coordinator's certificate.
    pub fingerprint: [u8; 32],
    /// The run's secret.
    pub secret: RunSecret,
    /// Seconds since 1970 after which nobody may join with it.
    pub expires: u64,
}

impl JoinToken {
    /// Whether a text is meant to be one.
    pub fn is_token(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    /// Refuses a token whose time is over.
    pub fn check_expiry(&self, now: SystemTime) -> Result<(), NetError> {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        if since < self.expires {
            return Ok(());
        }
        let ago = since - self.expires;
        Err(NetError::Setup(format!("the token expired {ago} s ago; ask for a new one")))
    }

    /// The text form, with the secret in it.
    pub fn reveal(&self) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.expires.to_le_bytes());
        bytes.extend_from_slice(&self.fingerprint);
        bytes.extend_from_slice(self.secret.bytes());
        let check = sha256(&[&bytes]);
        bytes.extend_from_slice(&check[..CHECK_BYTES]);
        format!("{PREFIX}{}:{}", self.address, to_base64(&bytes))
    }
}

impl JoinToken {
    /// A token's text with the check that its other bytes need, if it has the length of one: for fuzzing, which would
    /// not get past the check.
    pub(crate) fn with_check(text: &str) -> Option<String> {
        let (before, coded) = text.rsplit_once(':')?;
        let mut bytes =
            from_base64(coded).filter(|bytes| bytes.len() == BODY_BYTES + CHECK_BYTES)?;
        let check = sha256(&[&bytes[..BODY_BYTES]]);
        bytes[BODY_BYTES..].copy_from_slice(&check[..CHECK_BYTES]);
        Some(format!("{before}:{}", to_base64(&bytes)))
    }
}

impl FromStr for JoinToken {
    type Err = NetError;

    /// An error never quotes the token.
    fn from_str(text: &str) -> Result<JoinToken, NetError> {
        let wrong = |problem: &str| NetError::Setup(format!("the join token {problem}"));
        let rest = text.trim().strip_prefix(PREFIX);
        let rest = rest.ok_or_else(|| wrong("must begin with `quelea:`"))?;
        let parts = rest.rsplit_once(':');
        let (address, coded) = parts.ok_or_else(|| wrong("is cut off"))?;
        let named = address.rsplit_once(':');
        if !named.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) {
            return Err(wrong("has no HOST:PORT"));
        }
        let bytes = from_base64(coded).ok_or_else(|| wrong("is damaged"))?;
        if bytes.first().is_some_and(|version| *version != VERSION) {
            return Err(wrong("is of another version of quelea"));
        }
        if bytes.len() != BODY_BYTES + CHECK_BYTES {
            return Err(wrong("is cut off"));
        }
        let (body, check) = bytes.split_at(BODY_BYTES);
        if sha256(&[body])[..CHECK_BYTES] != *check {
            return Err(wrong("is damaged"));
        }
        let thirty_two = |at: usize| -> [u8; 32] {
            body[at..at + 32].try_into().expect("the body has this length")
        };
        Ok(JoinToken {
            address: address.to_string(),
            expires: u64::from_le_bytes(body[1..9].try_into().expect("eight bytes")),
            fingerprint: thirty_two(9),
            secret: RunSecret::from_bytes(thirty_two(41)),
        })
    }
}

impl fmt::Display for JoinToken {
    /// Where it leads, without what it proves.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}:…", self.address)
    }
}

/// The alphabet of RFC 4648 for names, which no shell changes.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - three.len()));
        for place in 0..=three.len() {
            text.push(ALPHABET[(word >> (18 - 6 * place) & 63) as usize].into());
        }
    }
    text
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    let value = |byte: &u8| ALPHABET.iter().position(|letter| letter == byte);
    let mut bytes = Vec::new();
    for four in text.as_bytes().chunks(4) {
        if four.len() == 1 {
            return None;
        }
        let mut word = 0u32;
        for byte in four {
            word = word << 6 | value(byte)? as u32;
        }
        word <<= 6 * (4 - four.len());
        bytes.extend_from_slice(&word.to_be_bytes()[1..four.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        JoinToken {
            address: "[fd00::1]:29470".into(),
            fingerprint: std::array::from_fn(|i| i as u8),
            secret: RunSecret::from_bytes(std::array::from_fn(|i| 255 - i as u8)),
            expires: 1_800_000_000,
        }
    }

    #[test]
    fn a_token_comes_back_from_its_text() {
        let text = token().reveal();
        assert!(text.chars().all(|c| c.is_ascii_graphic()), "{text}");
        assert_eq!(text.parse::<JoinToken>().expect("its own text"), token());
    }

    #[test]
    fn base64_has_the_values_of_rfc_4648() {
        for (plain, coded) in
            [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg")]
        {
            assert_eq!(to_base64(plain.as_bytes()), coded);
            assert_eq!(from_base64(coded).as_deref(), Some(plain.as_bytes()));
        }
    }

    #[test]
    fn a_token_that_was_changed_or_cut_is_refused_without_being_quoted() {
        let text = token().reveal();
        for at in 24..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("letters");
            // The last letter has bits that mean nothing.
            if at + 1 < text.len() {
                let told = changed.parse::<JoinToken>().expect_err("changed").to_string();
                assert!(!told.contains(&text[24..40]), "{told}");
            }
            assert!(text[..at].parse::<JoinToken>().is_err(), "{at}");
        }
    }

    #[test]
    fn neither_debug_nor_display_shows_the_secret() {
        let (shown, text) = (format!("{:?} {}", token(), token()), token().reveal());
        assert!(!shown.contains(&text[text.len() - 20..]), "{shown}");
        assert!(!shown.contains("255, 254"), "{shown}");
    }

    #[test]
    fn an_expired_token_says_since_when() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        token().check_expiry(at(1_799_999_999)).expect("not yet");
        let told = token().check_expiry(at(1_800_000_005)).expect_err("over").to_string();
        assert_eq!(told, "the token expired 5 s ago; ask for a new one");
    }
}
