//! What the processes of a group send each other.

use std::io::{self, ErrorKind, Read, Write};

use super::KeepWaiting;
use crate::trust::ControlStream;

/// The longest sentence about what went wrong.
const REASON_BYTES: u64 = 64 << 10;

/// What goes over a connection: whether it is good, of which call it is, and what it says.
pub(super) struct Frame {
    pub(super) good: bool,
    pub(super) what: String,
    pub(super) body: Vec<u8>,
}

pub(super) fn write(
    stream: &ControlStream,
    good: bool,
    what: &str,
    body: &[u8],
    keep_waiting: KeepWaiting<'_>,
) -> io::Result<()> {
    let mut head = vec![u8::from(good), what.len().min(255) as u8];
    head.extend_from_slice(&what.as_bytes()[..what.len().min(255)]);
    head.extend_from_slice(&(body.len() as u64).to_le_bytes());
    write_all(stream, &head, keep_waiting)?;
    write_all(stream, body, keep_waiting)
}

fn write_all(
    mut stream: &ControlStream,
    mut bytes: &[u8],
    keep_waiting: KeepWaiting<'_>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::BrokenPipe.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) => look_up(error, keep_waiting)?,
        }
    }
    while let Err(error) = stream.flush() {
        look_up(error, keep_waiting)?;
    }
    Ok(())
}

pub(super) fn read(stream: &ControlStream, keep_waiting: KeepWaiting<'_>) -> io::Result<Frame> {
    read_up_to(stream, u64::MAX, keep_waiting)
}

pub(super) fn read_up_to(
    stream: &ControlStream,
    most: u64,
    keep_waiting: KeepWaiting<'_>,
) -> io::Result<Frame> {
    let mut head = [0; 2];
    read_exact(stream, &mut head, keep_waiting)?;
    let mut what = vec![0; usize::from(head[1])];
    read_exact(stream, &mut what, keep_waiting)?;
    let mut len = [0; 8];
    read_exact(stream, &mut len, keep_waiting)?;
    let (good, len) = (head[0] == 1, u64::from_le_bytes(len));
    let most = if good { most } else { REASON_BYTES };
    if len > most {
        return Err(io::Error::other(format!("{len} bytes where at most {most} are allowed")));
    }
    // Memory follows what has really come, whatever was announced.
    let mut body = Vec::new();
    let mut part = vec![0; len.min(1 << 20) as usize];
    let mut left = len;
    while left > 0 {
        let take = left.min(part.len() as u64) as usize;
        read_exact(stream, &mut part[..take], keep_waiting)?;
        body.extend_from_slice(&part[..take]);
        left -= take as u64;
    }
    Ok(Frame { good, what: String::from_utf8_lossy(&what).into_owned(), body })
}

/// Whether what comes over a connection begins with a frame, for [`crate::untrusted`].
pub(crate) fn takes_frame(stream: &ControlStream) -> bool {
    let mut keep_waiting = || false;
    let limited = read_up_to(stream, REASON_BYTES, &mut keep_waiting).is_ok();
    read(stream, &mut keep_waiting).is_ok() && limited
}

fn read_exact(
    mut stream: &ControlStream,
    mut out: &mut [u8],
    keep_waiting: KeepWaiting<'_>,
) -> io::Result<()> {
    while !out.is_empty() {
        match stream.read(out) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                out = &mut out[count..];
                // However slowly bytes drip in, whoever waits is asked.
                if !out.is_empty() && !keep_waiting() {
                    return Err(ErrorKind::Interrupted.into());
                }
            }
            Err(error) => look_up(error, keep_waiting)?,
        }
    }
    Ok(())
}

/// Nothing has moved for a moment; whoever waits may have had enough.
fn look_up(error: io::Error, keep_waiting: KeepWaiting<'_>) -> io::Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {
            if keep_waiting() {
                Ok(())
            } else {
                Err(ErrorKind::Interrupted.into())
            }
        }
        _ => Err(error),
    }
}
