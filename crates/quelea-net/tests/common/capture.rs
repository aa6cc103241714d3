//! Records what travels over the network of this machine, as somebody in between would see it.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// An address at which other machines reach this one, if it has any.
pub fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Connecting a datagram socket sends nothing; it only chooses the way out.
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

/// How long nothing must have come before a recording ends.
const QUIET: Duration = Duration::from_millis(200);

/// A recording of all packets from or to one address.
pub struct Capture {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<u8>>,
}

impl Capture {
    /// Begins to record; nothing where this process may not.
    pub fn start(ip: IpAddr) -> Option<Capture> {
        let IpAddr::V4(ip) = ip else { return None };
        // SAFETY: a plain system call.
        let socket = unsafe {
            let all = i32::from((libc::ETH_P_ALL as u16).to_be());
            libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, all)
        };
        if socket < 0 {
            return None;
        }
        let set = |name: libc::c_int, value: *const libc::c_void, size: usize| {
            // SAFETY: the value lives until the call returns.
            unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, name, value, size as u32) }
        };
        let (memory, limit) = (256 << 20, libc::timeval { tv_sec: 0, tv_usec: 50_000 });
        set(libc::SO_RCVBUFFORCE, (&raw const memory).cast(), size_of::<libc::c_int>());
        set(libc::SO_RCVTIMEO, (&raw const limit).cast(), size_of::<libc::timeval>());
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let (mut all, mut packet) = (Vec::new(), vec![0u8; 1 << 17]);
            let mut last = Instant::now();
            loop {
                // SAFETY: the buffer is as long as it is said to be.
                let count =
                    unsafe { libc::recv(socket, packet.as_mut_ptr().cast(), packet.len(), 0) };
                let packet = &packet[..usize::try_from(count).unwrap_or(0)];
                if packet.len() >= 20
                    && (packet[12..16] == ip.octets() || packet[16..20] == ip.octets())
                {
                    all.extend_from_slice(&packet[20..]);
                    last = Instant::now();
                }
                // Others may use the network all the time.
                if last.elapsed() > QUIET && seen.load(Ordering::Acquire) {
                    // SAFETY: it was opened above and is used nowhere else.
                    unsafe { libc::close(socket) };
                    return all;
                }
            }
        });
        Some(Capture { is_over, thread })
    }

    /// What was recorded, up to the first moment without any traffic of that address.
    pub fn finish(self) -> Vec<u8> {
        self.is_over.store(true, Ordering::Release);
        self.thread.join().expect("it records")
    }
}

/// Whether `bytes` has `part` in it.
pub fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
