//! Bytes to messages and back: frame layout, limits, versions.
//!
//! A frame is a header of [`HEADER_BYTES`] bytes, then the vectors of the message, nothing else.

#![warn(clippy::disallowed_methods, clippy::disallowed_types)]

use murmura_core::message::Message;

/// Bytes of a frame before its vectors.
pub const HEADER_BYTES: usize = 80;

/// Bytes of `message` on the wire, header included.
pub fn frame_bytes(message: &Message) -> u64 {
    (HEADER_BYTES + message.payload_bytes()) as u64
}
