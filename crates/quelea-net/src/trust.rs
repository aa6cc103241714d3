//! Who may take part in a run: its secret, its tokens, its certificates, and encrypted connections.
//!
//! ```text
//! coordinator: RunAuthority (key of the run) + RunSecret ──► JoinToken (host, port, fingerprint, secret, expiry)
//! worker:      JoinToken or secret ──► ControlStream: TLS 1.3, both sides prove that they know the secret
//!              ──► a certificate for its rank in this run ──► LinkIdentity: mutual TLS between ranks
//! ```
//!
//! Connections within one machine are plain unless a secret is given; beyond it they are encrypted unless
//! [`Security::Insecure`] is asked for.

mod authority;
mod control_stream;
mod published;
mod seats;
mod secret;
mod session;
mod token;

use std::net::IpAddr;
use std::path::Path;

#[cfg(test)]
pub(crate) use authority::RunAuthority;
pub(crate) use authority::{Credentials, LinkIdentity, RankKey};
pub(crate) use control_stream::{Access, ControlStream};
pub use published::PublishedToken;
pub(crate) use seats::{RankSeat, SEATS_POLL};
pub use secret::RunSecret;
pub(crate) use session::{TlsSession, seal_slices};
pub use token::JoinToken;

use crate::error::NetError;

/// Whether the connections of a run are encrypted, and who may take part.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Security {
    /// Plain within this machine. Beyond it, encrypted, for those who have a token of the coordinator.
    #[default]
    Automatic,
    /// Plain, and open to everybody who can connect.
    Insecure,
    /// Encrypted, for those who know this secret.
    Secret(RunSecret),
}

impl Security {
    /// What a launcher's environment says: `QUELEA_SECRET`, a file of mode 0600 that
    /// `QUELEA_SECRET_FILE` names, or `QUELEA_INSECURE=1`.
    pub fn from_env(env: impl Fn(&str) -> Option<String>) -> Result<Security, NetError> {
        let get = |name: &str| env(name).filter(|value| !value.is_empty());
        if let Some(text) = get("QUELEA_SECRET") {
            return Ok(Security::Secret(RunSecret::from_text("QUELEA_SECRET", &text)?));
        }
        if let Some(path) = get("QUELEA_SECRET_FILE") {
            let text = secret::read_private(Path::new(&path))?;
            return Ok(Security::Secret(RunSecret::from_text("QUELEA_SECRET_FILE", &text)?));
        }
        match get("QUELEA_INSECURE").as_deref() {
            Some("1") => Ok(Security::Insecure),
            Some(other) => Err(NetError::Setup(format!("QUELEA_INSECURE={other}: may only be 1"))),
            None => Ok(Security::Automatic),
        }
    }

    /// Refuses plain connections to `host`, unless it is this machine or they are asked for.
    pub(crate) fn check_host(&self, host: &str) -> Result<(), NetError> {
        if *self != Security::Automatic || is_own(host) {
            return Ok(());
        }
        Err(NetError::Setup(format!(
            "{host} is not this machine, and connections to it would be neither encrypted nor \
             authenticated: use the token that the coordinator prints (`quelea token`), set \
             QUELEA_SECRET to the same long random text for all processes, or ask for plain \
             connections with --insecure (QUELEA_INSECURE=1)"
        )))
    }
}

/// Whether a host's name says that it is this machine. Names that only resolve to a loopback address do
/// not: other machines resolve them differently.
pub(crate) fn is_own(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The host of `HOST:PORT`.
pub(crate) fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn security(name: &'static str, value: &'static str) -> Result<Security, String> {
        let env = |asked: &str| (asked == name).then(|| value.to_string());
        Security::from_env(env).map_err(|error| error.to_string())
    }

    #[test]
    fn a_launchers_secret_comes_from_the_environment_and_is_never_shown() {
        let long = "0123456789abcdef0123456789abcdef";
        let secret = security("QUELEA_SECRET", long).expect("long enough");
        assert!(matches!(secret, Security::Secret(_)));
        assert!(!format!("{secret:?}").contains("0123"), "{secret:?}");
        assert_eq!(security("QUELEA_INSECURE", "1"), Ok(Security::Insecure));
        assert_eq!(security("QUELEA_RANK", "1"), Ok(Security::Automatic));
        let short = security("QUELEA_SECRET", "hunter2").expect_err("too short");
        assert!(short.starts_with("QUELEA_SECRET: has 7 characters"), "{short}");
        assert!(!short.contains("hunter2"), "{short}");
    }

    #[test]
    fn only_this_machine_may_be_reached_over_plain_connections() {
        for own in ["localhost", "127.0.0.1", "127.1.2.3", "[::1]"] {
            Security::Automatic.check_host(own).expect("this machine");
        }
        for other in ["node1", "10.0.0.1", "0.0.0.0", "localhost.example"] {
            let told = Security::Automatic.check_host(other).expect_err("elsewhere").to_string();
            assert!(told.starts_with(&format!("{other} is not this machine")), "{told}");
            Security::Insecure.check_host(other).expect("asked for");
        }
    }
}
