//! The receiving side: frames as they come.

use std::io;
use std::os::fd::AsRawFd;

use quelea_core::message::Message;
use quelea_core::payload::Pool;
use quelea_wire::decoder::Decoder;
use quelea_wire::frame::{FrameError, Header, Limits};
use tokio::net::tcp::OwnedReadHalf;

use crate::mesh::is_near;

/// A vector with more than this missing is read into directly.
const DIRECT_BYTES: usize = 16 << 10;
/// What is waited for of a long vector from another machine.
const PATIENT_BYTES: usize = 256 << 10;
/// What is read at once otherwise.
const BUFFER_BYTES: usize = 64 << 10;

/// Why no more frames come in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the connection was closed")]
    Closed,
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    #[error("it sent a bad frame: {0}")]
    Frame(#[from] FrameError),
    #[error("it sent a message that could not be taken: {0}")]
    Message(String),
}

/// Reads frames and hands each to `deliver`, which may refuse it; ends only with an error.
pub(crate) async fn read_frames(
    stream: OwnedReadHalf,
    limits: Limits,
    pool: Pool,
    mut deliver: impl FnMut(Header, Message) -> Result<(), String>,
) -> ReadError {
    let mut decoder = Decoder::new(limits, pool);
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut threshold = WakeThreshold::new(&stream);
    loop {
        threshold.set(&stream, decoder.spare().len());
        match read_some(&stream, &mut decoder, &mut buffer, &mut deliver).await {
            Ok(()) => {}
            Err(error) => return error,
        }
    }
}

/// How much of a long vector has to be there before the reader is woken: a network brings it in
/// hundreds of pieces, and nobody can use a part of it.
#[derive(Debug)]
struct WakeThreshold {
    most: usize,
    set: usize,
}

impl WakeThreshold {
    /// Within one machine pieces are read while they are in the cache.
    fn new(stream: &OwnedReadHalf) -> WakeThreshold {
        let is_near = is_near(stream.peer_addr(), stream.local_addr()).unwrap_or(true);
        WakeThreshold { most: if is_near { 1 } else { PATIENT_BYTES }, set: 1 }
    }

    /// `missing` bytes will come for certain. The kernel wakes earlier if its buffer is full.
    fn set(&mut self, stream: &OwnedReadHalf, missing: usize) {
        let wanted = if missing < DIRECT_BYTES { 1 } else { missing.min(self.most) };
        if wanted != self.set {
            wake_from(stream, wanted);
            self.set = wanted;
        }
    }
}

/// Says from how many bytes on a waiting reader is woken.
fn wake_from(stream: &OwnedReadHalf, bytes: usize) {
    let bytes = bytes as libc::c_int;
    let (address, length) = ((&raw const bytes).cast(), size_of_val(&bytes) as libc::socklen_t);
    let socket = stream.as_ref().as_raw_fd();
    // SAFETY: the socket is open, and the option is a number that lives until the call returns.
    // Should it be refused, the reader is woken more often.
    unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, address, length) };
}

/// Reads once: the rest of a long vector directly, anything else through `buffer`.
async fn read_some(
    stream: &OwnedReadHalf,
    decoder: &mut Decoder,
    buffer: &mut [u8],
    deliver: &mut impl FnMut(Header, Message) -> Result<(), String>,
) -> Result<(), ReadError> {
    let spare = decoder.spare();
    let direct = spare.len() >= DIRECT_BYTES;
    let target = if direct { spare } else { &mut *buffer };
    let count = loop {
        stream.readable().await?;
        match stream.try_read(target) {
            Ok(0) => return Err(ReadError::Closed),
            Ok(count) => break count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    };
    let mut bytes = &buffer[..if direct { 0 } else { count }];
    if direct {
        decoder.advance(count);
    }
    while let Some((header, message)) = decoder.take(&mut bytes)? {
        deliver(header, message).map_err(ReadError::Message)?;
    }
    Ok(())
}
