//! What algorithms with servers share: which bucket a message means, and what codecs left out.
//!
//! A worker cuts each bucket into the [pieces](crate::contract::Piece) that servers hold
//! (`cx.pieces`) and sends one message per piece, named by the worker's bucket. A server holds the
//! part of some buckets that lies in its shard and numbers those by itself.
//!
//! ```text
//! worker, upon bucket b of g:     for each piece of cx.pieces[b]:  lane.load(…); send to piece.server
//! server, upon a message of b':   b = local_bucket(cx, b');  aggregate into bucket b of the shard
//! ```

use crate::codec::ErrorFeedback;
use crate::contract::Context;
use crate::state::Visitor;

/// The server's own number for the bucket that a worker's message names; `None` where the shard
/// holds nothing of it.
pub fn local_bucket(cx: &Context<'_>, id: u32) -> Option<usize> {
    cx.layout.buckets.binary_search_by_key(&(id as usize), |bucket| bucket.id).ok()
}

/// Lists what the codec has left out of each stream of vectors, one [`ErrorFeedback`] per stream.
/// Call it from [`Algorithm::state`](crate::contract::Algorithm::state).
pub fn feedback_state(lanes: &mut Vec<ErrorFeedback>, visitor: &mut dyn Visitor) {
    let mut count = lanes.len() as u64;
    visitor.number("lanes", &mut count);
    lanes.resize_with(count as usize, ErrorFeedback::default);
    for (index, lane) in lanes.iter_mut().enumerate() {
        lane.state(&format!("lane.{index}.error"), visitor);
    }
}
