//! Bytes to messages and back: frame layout, limits, versions. No sockets, no clock.
//!
//! ```
//! use quelea_core::message::{Message, Rank};
//! use quelea_core::payload::Pool;
//! use quelea_wire::decoder::Decoder;
//! use quelea_wire::frame::{Limits, Route, encode_header, slices};
//!
//! let (pool, route) = (Pool::new(), Route { from: Rank(0), to: Rank(1) });
//! let message = Message::new(1, 7, 0).with(pool.copy(&[1.0, 2.0]));
//! let header = encode_header(route, 0, &message);
//! let [first, second] = slices(&message);
//! let frame = [&header[..], first, second].concat();
//!
//! let limits = Limits { route, part_bytes: 8, held_bytes: 64, inspects: false };
//! let mut decoder = Decoder::new(limits, pool);
//! let (_, decoded) = decoder.take(&mut &frame[..]).unwrap().expect("a whole frame");
//! assert_eq!((decoded.step, &decoded.into_values()[..]), (7, &[1.0, 2.0][..]));
//! ```
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
pub const VERSION: u16 = 3;
