//! A listening socket whose visitors cannot disturb each other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::protocol::{self, SetupMessage};

/// Visitors that are being heard at one time.
pub(crate) const VISITORS: usize = 256;

/// What a visitor gets when too many are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenBusy {
    /// A refusal that asks it to come again.
    Refuse,
    /// Nothing: it speaks TLS, or gets no answer before it has shown who it is.
    Close,
}

impl WhenBusy {
    /// Where connections are encrypted, or not.
    pub(crate) fn of(is_encrypted: bool) -> WhenBusy {
        if is_encrypted { WhenBusy::Close } else { WhenBusy::Refuse }
    }
}

/// Accepts visitors and hears each on a thread of its own, so that one who says nothing holds
/// up nobody. Dropping it closes the socket.
#[derive(Debug)]
pub(crate) struct GuardedListener {
    address: SocketAddr,
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl GuardedListener {
    pub(crate) fn open(
        listener: TcpListener,
        when_busy: WhenBusy,
        hear: impl Fn(TcpStream, SocketAddr) + Send + Sync + 'static,
    ) -> std::io::Result<GuardedListener> {
        let address = listener.local_addr()?;
        let closing = Arc::new(AtomicBool::new(false));
        let (seen, hear, heard) =
            (Arc::clone(&closing), Arc::new(hear), Arc::new(AtomicUsize::new(0)));
        let thread = std::thread::Builder::new().name("listener".into()).spawn(move || {
            for visit in listener.incoming() {
                if seen.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = visit else {
                    // Out of descriptors: others may be given back soon.
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                };
                let Ok(peer) = stream.peer_addr() else { continue };
                if heard.fetch_add(1, Ordering::AcqRel) >= VISITORS {
                    heard.fetch_sub(1, Ordering::AcqRel);
                    if when_busy == WhenBusy::Refuse {
                        let reason = "too many visitors at one time".to_string();
                        // A new connection has room for so little.
                        let refused = SetupMessage::Refused { reason, elsewhere: true };
                        let _ = protocol::write(&stream, &refused);
                    }
                    continue;
                }
                let (hear, counted) = (Arc::clone(&hear), Arc::clone(&heard));
                let visit = std::thread::Builder::new().name("visitor".into()).spawn(move || {
                    hear(stream, peer);
                    counted.fetch_sub(1, Ordering::AcqRel);
                });
                if visit.is_err() {
                    heard.fetch_sub(1, Ordering::AcqRel);
                }
            }
        })?;
        Ok(GuardedListener { address, closing, thread: Some(thread) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for GuardedListener {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
        // The thread waits for a visitor; this is the last one.
        let last = TcpStream::connect_timeout(&reachable(self.address), Duration::from_secs(1));
        if let (Ok(_), Some(thread)) = (last, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

/// An address at which a socket that listens on `address` is reached from this machine.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}
