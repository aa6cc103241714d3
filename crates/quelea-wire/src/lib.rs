//! Bytes to messages and back: frame layout, limits, versions. No sockets, no clock.
//!
//! | module | what is in it |
//! |---|---|
//! | [`frame`] | one message: a header of [`HEADER_BYTES`] bytes, then its vectors as they are |
//! | [`decoder`] | frames from bytes that arrive in any pieces |
//! | [`control`] | handshake, rendezvous and what a run is conducted with: small, bounded |

#![warn(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod control;
pub mod decoder;
pub mod frame;

pub use frame::{HEADER_BYTES, frame_bytes};

/// The version of everything that is sent. Both ends must have the same.
pub const VERSION: u16 = 1;
