//! Where a page is reached before it is served, and which other pages may show it inside themselves.

use std::net::{SocketAddr, TcpListener};

use crate::access::{AccessError, AccessPolicy, PageProtection};

/// Nothing is loaded from elsewhere, no script stands in a page, and no other page shows this one.
const ALONE: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The same, but pages of this machine may show it: a notebook's.
const FRAMED: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors \
                      http://localhost:* http://127.0.0.1:* https://localhost:* https://127.0.0.1:*";

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It may not be offered like this.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The address cannot be used.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: String,
        /// Why.
        source: std::io::Error,
    },
}

/// Which other pages may show a page inside themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageFraming {
    /// None: nobody can be led to press its buttons unseen.
    #[default]
    Nowhere,
    /// Those that this machine serves, such as notebooks.
    Loopback,
}

impl PageFraming {
    /// What a browser is told about the content of the page.
    pub(crate) fn content_policy(self) -> &'static str {
        match self {
            PageFraming::Nowhere => ALONE,
            PageFraming::Loopback => FRAMED,
        }
    }
}

/// An address where a page will be: connections wait until it is served.
#[derive(Debug)]
pub struct PageListener {
    pub(crate) listener: TcpListener,
    pub(crate) address: SocketAddr,
    pub(crate) policy: AccessPolicy,
    pub(crate) framing: PageFraming,
}

impl PageListener {
    /// Listens at `address`; one that is not of loopback needs a token, and the word that it may be read on
    /// the way.
    pub fn bind(address: &str, protection: PageProtection) -> Result<PageListener, ServeError> {
        let failed = |source| ServeError::Bind { address: address.to_string(), source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let policy = AccessPolicy::new(address, protection)?;
        Ok(PageListener { listener, address, policy, framing: PageFraming::Nowhere })
    }

    /// The same, for a page that may be shown inside these.
    pub fn with_framing(self, framing: PageFraming) -> PageListener {
        PageListener { framing, ..self }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
