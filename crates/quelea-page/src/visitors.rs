//! Connections to the page's server: so many at once, and none that only stays.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Connections at once; others wait until one of them ends.
const VISITORS: usize = 128;
/// Until then a visitor must have asked something that can be answered.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// One that is sent nothing for this long may ask again on another connection.
const IDLE: Duration = Duration::from_secs(300);
/// How long to wait where the system gives no connections, as when it is out of descriptors.
const RETRY: Duration = Duration::from_millis(100);

/// A listener whose visitors cannot take all descriptors of the run's process.
#[derive(Debug)]
pub(crate) struct Visitors {
    listener: TcpListener,
    free: Arc<Semaphore>,
    /// How long a visitor may take until it is answered.
    patience: Duration,
}

impl Visitors {
    pub(crate) fn new(listener: TcpListener) -> Visitors {
        Visitors { listener, free: Arc::new(Semaphore::new(VISITORS)), patience: FIRST_ANSWER }
    }
}

impl Listener for Visitors {
    type Io = PageVisitor;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (PageVisitor, SocketAddr) {
        loop {
            let permit = Arc::clone(&self.free).acquire_owned().await;
            let permit = permit.expect("nobody closes it");
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    let deadline = Box::pin(sleep(self.patience));
                    return (PageVisitor { stream, deadline, _permit: permit }, address);
                }
                Err(_) => sleep(RETRY).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that is closed when its time is over.
#[derive(Debug)]
pub(crate) struct PageVisitor {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl AsyncRead for PageVisitor {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for PageVisitor {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.deadline.as_mut().reset(Instant::now() + IDLE);
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_visitor_that_asks_nothing_is_sent_away_and_others_are_heard_meanwhile() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it listens");
        listener.set_nonblocking(true).expect("a socket");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let server = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = TcpListener::from_std(listener).expect("in a runtime");
                let patience = Duration::from_secs(1);
                let visitors = Visitors { patience, ..Visitors::new(listener) };
                let router =
                    axum::Router::new().route("/", axum::routing::get(|| async { "the page" }));
                tokio::select! {
                    _ = axum::serve(visitors, router) => {}
                    _ = stopped => {}
                }
            });
        });
        let mut silent: Vec<std::net::TcpStream> = (0..VISITORS - 1)
            .map(|_| std::net::TcpStream::connect(address).expect("it listens"))
            .collect();
        let mut asking = std::net::TcpStream::connect(address).expect("it listens");
        asking.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("it hears");
        let mut answer = String::new();
        asking.read_to_string(&mut answer).expect("it answers");
        assert!(answer.ends_with("the page"), "{answer}");
        // The silent ones are closed without a word.
        let last = silent.last_mut().expect("there are some");
        assert_eq!(last.read(&mut [0; 16]).expect("it is closed"), 0);
        drop((silent, stop));
        server.join().expect("no panic");
    }
}
