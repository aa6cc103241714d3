//! Where a worker joins, and how it proves that it may.

use std::net::TcpStream;
use std::time::SystemTime;

use crate::error::NetError;
use crate::options::NetOptions;
use crate::protocol::Wait;
use crate::trust::{self, ControlStream, JoinToken, RunSecret, Security};

/// An address, with what opens it.
#[derive(Debug)]
pub(super) struct JoinTarget {
    address: String,
    secret: Option<RunSecret>,
    fingerprint: Option<[u8; 32]>,
}

impl JoinTarget {
    /// From a token, `HOST:PORT` or `file:PATH`. Plain connections to other machines must be asked for.
    pub(super) fn new(addr: &str, options: &NetOptions) -> Result<JoinTarget, NetError> {
        if JoinToken::is_token(addr) {
            let token: JoinToken = addr.parse()?;
            token.check_expiry(SystemTime::now())?;
            let (secret, fingerprint) = (Some(token.secret), Some(token.fingerprint));
            return Ok(JoinTarget { address: token.address, secret, fingerprint });
        }
        if !addr.starts_with("file:") {
            options.security.check_host(trust::host_of(addr))?;
        }
        let secret = match &options.security {
            Security::Secret(secret) => Some(secret.clone()),
            Security::Automatic | Security::Insecure => None,
        };
        Ok(JoinTarget { address: addr.to_string(), secret, fingerprint: None })
    }

    /// Where it is.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// A coordinator that closes a plain connection without an answer may want a token.
    pub(super) fn explain(&self, error: NetError) -> NetError {
        match error {
            NetError::Handshake { address, problem }
                if self.secret.is_none() && problem.contains("closed") =>
            {
                let hint = "a coordinator that prints a token accepts nothing else";
                NetError::Handshake { address, problem: format!("{problem} ({hint})") }
            }
            error => error,
        }
    }

    /// The connection, encrypted if there is a secret. The inner error is one that may pass.
    pub(super) fn enter(
        &self,
        stream: TcpStream,
        address: &str,
        options: &NetOptions,
    ) -> Result<Result<ControlStream, String>, NetError> {
        let Some(secret) = &self.secret else { return Ok(Ok(ControlStream::plain(stream))) };
        let wait = Wait::new(options.connect_seconds, "the coordinator's proof");
        match ControlStream::enter(stream, secret, self.fingerprint, wait) {
            Ok(stream) => Ok(Ok(stream)),
            Err(error) if error.may_pass() => Ok(Err(error.to_string())),
            Err(error) => {
                Err(NetError::Refused { address: address.into(), reason: error.to_string() })
            }
        }
    }
}
