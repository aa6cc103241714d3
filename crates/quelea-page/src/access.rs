//! Who may see a page: on loopback everybody of this machine, elsewhere those who have the token.

use std::net::SocketAddr;

use axum::body::Body;
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, Request, Response, StatusCode};

/// The cookie that carries the token after the first visit.
const TOKEN_COOKIE: &str = "quelea_token";
/// A token that is shorter can be guessed.
const TOKEN_LENGTH_MIN: usize = 16;

/// Why a page cannot be offered like this.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Anybody who reaches the address could see and stop the run.
    #[error(
        "{address} can be reached from other machines; give a token of at least {TOKEN_LENGTH_MIN} \
         characters in QUELEA_PAGE_TOKEN, or use an address of loopback such as 127.0.0.1:8600"
    )]
    NoToken {
        /// The address.
        address: SocketAddr,
    },
    /// The page and its token can be read on the network between.
    #[error(
        "{address} can be reached from other machines, and the page is not encrypted: its token could be \
         read on the way. Use an address of loopback and a tunnel (ssh -L 8600:127.0.0.1:8600 HOST), or ask \
         for it: `--insecure` of `quelea page`, `--page-insecure` of a run, QUELEA_PAGE_INSECURE=1 for a script"
    )]
    NotEncrypted {
        /// The address.
        address: SocketAddr,
    },
    /// It can be guessed.
    #[error(
        "the token in QUELEA_PAGE_TOKEN has {length} characters; it needs at least {TOKEN_LENGTH_MIN}"
    )]
    ShortToken {
        /// Its length.
        length: usize,
    },
}

/// How a page is protected.
#[derive(Clone, Debug, Default)]
pub struct PageProtection {
    /// Who has it may see the page; on loopback none is needed.
    pub token: Option<String>,
    /// Other machines may see it over a connection that is not encrypted.
    pub is_insecure: bool,
}

impl PageProtection {
    /// The token in `QUELEA_PAGE_TOKEN`. Beyond this machine, `is_insecure` or `QUELEA_PAGE_INSECURE=1` is
    /// needed as well: token and page could be read on the way.
    pub fn from_environment(is_insecure: bool) -> PageProtection {
        let value = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let is_insecure = is_insecure || value("QUELEA_PAGE_INSECURE").as_deref() == Some("1");
        PageProtection { token: value("QUELEA_PAGE_TOKEN"), is_insecure }
    }
}

/// Decides about each request.
#[derive(Clone, Debug)]
pub struct AccessPolicy {
    token: Option<String>,
}

/// What becomes of a request.
pub enum AccessDecision {
    /// It is answered.
    Granted,
    /// This is the answer.
    Answered(Box<Response<Body>>),
}

impl AccessPolicy {
    /// For a server at this address. One that is not of loopback needs a token, and somebody who has said
    /// that it may travel unencrypted.
    pub fn new(
        address: SocketAddr,
        protection: PageProtection,
    ) -> Result<AccessPolicy, AccessError> {
        let token = protection.token.filter(|token| !token.is_empty());
        let is_open = !address.ip().is_loopback();
        match &token {
            None if is_open => Err(AccessError::NoToken { address }),
            Some(token) if token.len() < TOKEN_LENGTH_MIN => {
                Err(AccessError::ShortToken { length: token.len() })
            }
            Some(_) if is_open && !protection.is_insecure => {
                Err(AccessError::NotEncrypted { address })
            }
            _ => Ok(AccessPolicy { token }),
        }
    }

    /// Judges a request. With a token: `Authorization: Bearer TOKEN`, the cookie, or `/?token=TOKEN`,
    /// which sets the cookie. Without one: the request must name this machine itself, so that a page
    /// of somebody else's that resolves its name to loopback learns nothing.
    pub fn judge(&self, request: &Request<Body>) -> AccessDecision {
        let Some(token) = &self.token else {
            let named = host(request.headers());
            let is_own = named.is_some_and(is_loopback_name);
            return if is_own { AccessDecision::Granted } else { refused(StatusCode::FORBIDDEN) };
        };
        if carried(request.headers()).iter().any(|given| is_same(given, token)) {
            return AccessDecision::Granted;
        }
        match query_token(request.uri().query().unwrap_or_default()) {
            Some(given) if is_same(given, token) => welcomed(token),
            _ => refused(StatusCode::UNAUTHORIZED),
        }
    }
}

/// An answer that says nothing.
fn refused(status: StatusCode) -> AccessDecision {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    AccessDecision::Answered(Box::new(response))
}

/// Keeps the token in a cookie and takes it out of the address.
fn welcomed(token: &str) -> AccessDecision {
    let cookie = format!("{TOKEN_COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/");
    let response = Response::builder()
        .status(StatusCode::SEE_OTHER)
        .header(LOCATION, "/")
        .header(SET_COOKIE, cookie)
        .body(Body::empty());
    match response {
        Ok(response) => AccessDecision::Answered(Box::new(response)),
        // A token with characters that no header takes cannot be in a cookie.
        Err(_) => refused(StatusCode::UNAUTHORIZED),
    }
}

fn host(headers: &HeaderMap) -> Option<&str> {
    headers.get(HOST)?.to_str().ok()
}

fn is_loopback_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// The tokens that a request's headers carry.
fn carried(headers: &HeaderMap) -> Vec<&str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer "));
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let cookies = cookies.flat_map(|value| value.split(';')).filter_map(|cookie| {
        let (name, value) = cookie.trim().split_once('=')?;
        (name == TOKEN_COOKIE).then_some(value)
    });
    bearer.into_iter().chain(cookies).collect()
}

fn query_token(query: &str) -> Option<&str> {
    query.split('&').find_map(|part| part.strip_prefix("token="))
}

/// Compares without telling by its time where the first difference is.
fn is_same(given: &str, token: &str) -> bool {
    let (given, token) = (given.as_bytes(), token.as_bytes());
    let difference = given.iter().zip(token).fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == token.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn status(policy: &AccessPolicy, uri: &str, header: Option<(&str, &str)>) -> u16 {
        let request = Request::builder().uri(uri);
        let request = header.into_iter().fold(request, |r, (name, value)| r.header(name, value));
        match policy.judge(&request.body(Body::empty()).expect("a request")) {
            AccessDecision::Granted => 200,
            AccessDecision::Answered(response) => response.status().as_u16(),
        }
    }

    fn protection(token: Option<&str>, is_insecure: bool) -> PageProtection {
        PageProtection { token: token.map(str::to_string), is_insecure }
    }

    fn policy(token: Option<&str>) -> AccessPolicy {
        let address = "127.0.0.1:8600".parse().expect("an address");
        AccessPolicy::new(address, protection(token, false)).expect("allowed")
    }

    #[test]
    fn another_address_than_loopback_needs_a_token_that_cannot_be_guessed() {
        let open: SocketAddr = "0.0.0.0:8600".parse().expect("an address");
        let at = |address, token, insecure| AccessPolicy::new(address, protection(token, insecure));
        for insecure in [false, true] {
            assert!(matches!(at(open, None, insecure), Err(AccessError::NoToken { .. })));
            assert!(matches!(at(open, Some(""), insecure), Err(AccessError::NoToken { .. })));
            let short = at(open, Some("secret"), insecure);
            assert!(matches!(short, Err(AccessError::ShortToken { length: 6 })));
        }
        let readable = at(open, Some(TOKEN), false);
        assert!(matches!(readable, Err(AccessError::NotEncrypted { .. })));
        assert!(at(open, Some(TOKEN), true).is_ok());
        let near: SocketAddr = "[::1]:8600".parse().expect("an address");
        assert!(at(near, Some(TOKEN), false).is_ok() && at(near, None, false).is_ok());
    }

    #[test]
    fn a_token_comes_in_a_header_a_cookie_or_once_in_the_address() {
        let policy = policy(Some(TOKEN));
        assert_eq!(status(&policy, "/api/state", None), 401);
        assert_eq!(status(&policy, "/api/state", Some(("authorization", "Bearer wrong"))), 401);
        let right = format!("Bearer {TOKEN}");
        assert_eq!(status(&policy, "/api/state", Some(("authorization", &right))), 200);
        let cookie = format!("a=b; quelea_token={TOKEN}");
        assert_eq!(status(&policy, "/", Some(("cookie", &cookie))), 200);
        assert_eq!(status(&policy, &format!("/?token={TOKEN}"), None), 303);
        assert_eq!(status(&policy, "/?token=0123456789abcdeg", None), 401);
        assert_eq!(status(&policy, &format!("/?token={TOKEN}x"), None), 401);
    }

    #[test]
    fn without_a_token_only_names_of_this_machine_are_answered() {
        let policy = policy(None);
        for good in ["127.0.0.1:8600", "localhost:1", "localhost", "[::1]:80", "127.8.9.1"] {
            assert_eq!(status(&policy, "/", Some(("host", good))), 200, "{good}");
        }
        for bad in ["example.org", "example.org:8600", "127.0.0.1.example.org", ""] {
            assert_eq!(status(&policy, "/", Some(("host", bad))), 403, "{bad}");
        }
        assert_eq!(status(&policy, "/", None), 403);
    }
}
