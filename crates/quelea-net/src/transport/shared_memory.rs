//! Shared memory between processes of one machine: frames in a ring of shared pages, vectors read where
//! their sender has them.
//!
//! ```text
//! sender                                        receiver
//! arena (its pool's vectors)  ◄── reads ──      a lent payload
//! ring of slots: header, where the vectors lie ──► takes a slot, gives the vector back when it is dropped
//! pipe: one byte if the receiver sleeps ──►     its runtime wakes
//! TCP connection: only its end is of interest ──► the peer is gone
//! ```
//!
//! A rank's pool takes its memory from the arena of its process. A vector that is sent is not copied: its
//! slot says where it lies, the sender keeps it unchanged until it is given back, and the receiver sums or
//! mixes straight out of the sender's pages. Nobody waits inside shared memory: a side that has nothing to
//! do looks for another frame for some microseconds if there are cores enough, sets a flag in its own pages
//! and sleeps in its runtime, with all its time limits, until a byte comes through the pipe or the connection ends. A peer
//! that is killed or paused leaves nothing locked, because there are no locks.
//!
//! | module | what is in it |
//! |---|---|
//! | `memory` | mapped pages and the arena; all that is `unsafe` |
//! | `segment` | the layout of the pages between two ranks |
//! | `offer` | how two processes find that they can share memory |
//! | `link` | frames out: slots, vectors that are lent, what waits |
//! | `reading` | frames in |
//! | `bytes` | a stream of bytes, for calls on tensors |

mod bytes;
mod link;
mod memory;
mod offer;
mod reading;
mod segment;

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use quelea_core::message::Rank;
use tokio::net::unix::pipe;

use super::tls::{LinkBytes, LinkSocket};
use super::{AttachContext, Attached, Link};
pub(crate) use bytes::{ByteOffer, PeerBytes, SharedBytes};
use link::{SharedLink, Ways};
use memory::ArenaSource;
pub(crate) use offer::{OpenOffer, SharedMemory, SharedOffer, SharedPair};
use reading::SharedReader;

/// Makes a link of two processes that share memory, on the rank's thread and inside its runtime. The
/// connection says by its end that the peer has gone.
pub(super) fn attach(
    pair: SharedPair,
    connection: LinkSocket,
    peer: Rank,
    context: &AttachContext<'_>,
    attached: &mut Attached,
) -> io::Result<()> {
    let SharedPair { memory, segment, woken, peer: pages } = pair;
    context.pool.take_from(Arc::new(ArenaSource(Arc::clone(&memory.arena))));
    let connection = LinkBytes::new(connection)?;
    let woken = pipe::Receiver::from_owned_fd(woken.into())?;
    let link = SharedLink::new(memory, Ways::new(segment, pages), peer, context);
    let reader = SharedReader::new(&link, peer, context);
    attached.links.push((peer, Rc::<SharedLink>::clone(&link) as Rc<dyn Link>));
    attached.tasks.push(Box::new(move |sink| {
        Box::pin(async move {
            let error = reader.run(&connection, &woken, &*sink).await;
            reader.end(&error);
            sink.ended(peer, error);
        })
    }));
    Ok(())
}

#[cfg(test)]
pub(super) mod tests;
