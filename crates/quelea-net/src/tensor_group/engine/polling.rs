//! What the thread of a group waits for.

use std::os::fd::AsRawFd;

use super::super::link::Link;
use super::Engine;

impl Engine {
    /// All connections by rank, those that are gone ignored, then what wakes the thread, then the sockets
    /// beside shared memory.
    pub(super) fn poll_list(&self) -> Vec<libc::pollfd> {
        let readable = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let ignored = libc::pollfd { fd: -1, events: 0, revents: 0 };
        let open = |link: &'_ Option<Link>| link.as_ref().is_some_and(|link| !link.is_lost());
        let of_link = |link: &Option<Link>| match link {
            Some(link) if !link.is_lost() => link.wire().polled(link.wants_to_write()),
            _ => ignored,
        };
        let beside = |link: &Option<Link>| {
            let socket = link.as_ref().filter(|_| open(link)).and_then(|link| link.wire().beside());
            socket.map_or(ignored, readable)
        };
        let mut polled: Vec<libc::pollfd> = self.links.iter().map(of_link).collect();
        polled.push(readable(self.woken.as_raw_fd()));
        polled.extend(self.links.iter().map(beside));
        polled
    }
}
