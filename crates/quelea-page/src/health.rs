//! What a cluster asks a process: whether it lives (`/healthz`), and whether its run has begun (`/readyz`). Nothing
//! about the run is told, so that nobody needs a token to ask.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use quelea_run::execute;

use crate::listener::ServeError;
use crate::server_thread::ServerThread;

/// Whether a process is ready for what it is there for.
pub type IsReady = Arc<dyn Fn() -> bool + Send + Sync>;

/// A server of these two questions alone; it ends when this is dropped.
pub struct HealthServer {
    address: SocketAddr,
    _thread: ServerThread,
}

impl HealthServer {
    /// Answers at `address`: a host and a port, or a port of all addresses. The process is ready when its run has
    /// begun.
    pub fn start(address: &str) -> Result<HealthServer, ServeError> {
        let failed = |source| ServeError::Bind { address: address.to_string(), source };
        let listener = listen(address).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let ready: IsReady = Arc::new(execute::has_begun);
        let thread =
            ServerThread::start("quelea-health", listener, routes(ready)).map_err(failed)?;
        Ok(HealthServer { address: bound, _thread: thread })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Containers have addresses of both families, or of one only.
fn listen(address: &str) -> std::io::Result<TcpListener> {
    match address.parse::<u16>() {
        Ok(port) => {
            TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))
        }
        Err(_) => TcpListener::bind(address),
    }
}

/// The two answers, for any server.
pub(crate) fn routes(is_ready: IsReady) -> Router {
    let ready = move || {
        let is_ready = is_ready();
        async move {
            if is_ready {
                (StatusCode::OK, "ready\n")
            } else {
                (StatusCode::SERVICE_UNAVAILABLE, "the run has not begun\n")
            }
        }
    };
    Router::new().route("/healthz", get(|| async { "ok\n" })).route("/readyz", get(ready))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("it hears");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    #[test]
    fn a_process_lives_before_it_is_ready() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let begun = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&begun);
        let routes = routes(Arc::new(move || seen.load(Ordering::SeqCst)));
        let server = ServerThread::start("health", listener, routes).expect("a thread");
        assert!(ask(address, "/healthz").starts_with("HTTP/1.0 200"));
        let waiting = ask(address, "/readyz");
        assert!(waiting.starts_with("HTTP/1.0 503"), "{waiting}");
        assert!(waiting.ends_with("the run has not begun\n"), "{waiting}");
        begun.store(true, Ordering::SeqCst);
        assert!(ask(address, "/readyz").starts_with("HTTP/1.0 200"));
        assert!(ask(address, "/metrics").starts_with("HTTP/1.0 404"), "nothing else is there");
        drop(server);
        TcpStream::connect(address).expect_err("it has ended");
    }

    #[test]
    fn an_address_that_cannot_be_used_is_named() {
        let error = HealthServer::start("nowhere").err().expect("no address");
        assert!(error.to_string().starts_with("cannot listen on nowhere: "), "{error}");
        let server = HealthServer::start("0").expect("any free port");
        assert_ne!(server.address().port(), 0);
    }
}
