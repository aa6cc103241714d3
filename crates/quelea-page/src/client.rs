//! A client of the API, for terminals: one request, one answer.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::Value;

/// How long a server may take.
const LIMIT: Duration = Duration::from_secs(10);
/// The longest answer that is read.
const ANSWER_MAX: u64 = 64 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server cannot be reached, or broke off.
    #[error("cannot ask {address}: {source}")]
    Io {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// It needs another token.
    #[error("{address} refused the request (401): set QUELEA_PAGE_TOKEN to its token")]
    Unauthorized {
        /// Where.
        address: String,
    },
    /// It answered something else.
    #[error("{address} answered {status}, not what the API of a page answers")]
    Unexpected {
        /// Where.
        address: String,
        /// The status line, or what was wrong.
        status: String,
    },
}

/// Asks the server at `address` for `path`.
pub fn get(address: &str, path: &str, token: Option<&str>) -> Result<Value, ClientError> {
    let failed = |source| ClientError::Io { address: address.to_string(), source };
    let answer = exchange(address, path, token).map_err(failed)?;
    parse(address, &answer)
}

/// What a server has answered.
pub(crate) fn parse(address: &str, answer: &[u8]) -> Result<Value, ClientError> {
    let text = String::from_utf8_lossy(answer);
    let unexpected = |status: &str| ClientError::Unexpected {
        address: address.to_string(),
        status: status.to_string(),
    };
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| unexpected("half an answer"))?;
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("200") => {
            let answer =
                serde_json::from_str(body).map_err(|error| unexpected(&error.to_string()))?;
            Ok(plain(answer))
        }
        Some("401") => Err(ClientError::Unauthorized { address: address.to_string() }),
        _ => Err(unexpected(&plain_text(status))),
    }
}

/// What another process says is shown in a terminal: its texts without control characters.
fn plain(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(plain_text(&text)),
        Value::Array(items) => Value::Array(items.into_iter().map(plain).collect()),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| (plain_text(&key), plain(value)));
            Value::Object(fields.collect())
        }
        other => other,
    }
}

fn plain_text(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn exchange(address: &str, path: &str, token: Option<&str>) -> io::Result<Vec<u8>> {
    let mut addresses = address.to_socket_addrs()?;
    let first = addresses.next().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let mut stream = TcpStream::connect_timeout(&first, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
    // HTTP/1.0: the answer comes whole, and the connection ends with it.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n{token}\r\n")?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_that_a_terminal_would_obey_is_left_in_an_answer() {
        let said = json!({ "na\u{1b}me": ["\u{1b}[2J\u{9b}31mred", 7, { "text": "a\nb" }] });
        let told = plain(said);
        assert_eq!(
            told,
            json!({ "na\u{fffd}me": ["\u{fffd}[2J\u{fffd}31mred", 7, { "text": "a\u{fffd}b" }] })
        );
    }
}
