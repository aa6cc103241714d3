//! Two hosts measure the way between them: round trips, clocks, streams in both directions.
//!
//! ```text
//! client                               server
//! secret (64 letters) ─────────────►   closes the connection if it is another
//! 'p'                 ─────────────►
//!                     ◄─────────────   its clock, 8 bytes
//! 'u' n (4 bytes), n bytes ────────►
//!                     ◄─────────────   'k'
//! 'd' n (4 bytes)     ─────────────►
//!                     ◄─────────────   n bytes
//! ```

use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(4);
/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(10);
/// Round trips that are timed.
const ROUND_TRIPS: usize = 25;
/// Streams are lengthened until they take so long, or are so long.
const STREAM_SECONDS: f64 = 0.3;
const LEAST_BYTES: u32 = 64 << 10;
const MOST_BYTES: u32 = 64 << 20;
/// The letters of the secret.
const SECRET_BYTES: usize = 64;

/// What one host found out about the way to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probed {
    /// Why it could not be reached; nothing where it was.
    pub problem: Option<String>,
    /// Half of the median of round trips, in microseconds.
    pub latency_us: Option<f64>,
    /// How far the other's clock is ahead, in milliseconds.
    pub clock_ahead_ms: Option<f64>,
    /// Megabits per second to the other.
    pub up_mbit: Option<f64>,
    /// Megabits per second from it.
    pub down_mbit: Option<f64>,
}

impl Probed {
    /// The other could not be reached.
    pub fn unreached(problem: &str) -> Probed {
        Probed {
            problem: Some(problem.to_string()),
            latency_us: None,
            clock_ahead_ms: None,
            up_mbit: None,
            down_mbit: None,
        }
    }
}

/// Answers those who know the secret, until this process ends.
pub fn serve(port: u16, secret: &str) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
    let listener = listener.or_else(|_| TcpListener::bind(("0.0.0.0", port)))?;
    let secret = secret.to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            let secret = secret.clone();
            // One who hangs up has seen enough.
            std::thread::spawn(move || drop(answer(stream, &secret)));
        }
    });
    Ok(())
}

fn answer(mut stream: TcpStream, secret: &str) -> io::Result<()> {
    limit(&stream)?;
    let mut known = [0; SECRET_BYTES];
    stream.read_exact(&mut known)?;
    if known != secret.as_bytes() {
        return Ok(());
    }
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mut request = [0];
        stream.read_exact(&mut request)?;
        match request[0] {
            b'p' => stream.write_all(&clock_nanos().to_le_bytes())?,
            b'u' => {
                let mut left = length(&mut stream)?;
                while left > 0 {
                    let most = left.min(buffer.len());
                    let count = stream.read(&mut buffer[..most])?;
                    if count == 0 {
                        return Ok(());
                    }
                    left -= count;
                }
                stream.write_all(b"k")?;
            }
            b'd' => {
                let mut left = length(&mut stream)?;
                while left > 0 {
                    let most = left.min(buffer.len());
                    stream.write_all(&buffer[..most])?;
                    left -= most;
                }
            }
            _ => return Ok(()),
        }
    }
}

/// A length that is not too long.
fn length(stream: &mut TcpStream) -> io::Result<usize> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes)?;
    let length = u32::from_le_bytes(bytes);
    if length > MOST_BYTES {
        return Err(io::Error::other("too long"));
    }
    Ok(length as usize)
}

fn limit(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))
}

/// Measures the way to `target`, or only looks whether it is there.
pub fn measure(target: &str, secret: &str, only_reach: bool) -> Probed {
    let measured = connect(target, secret).and_then(|mut stream| {
        let trips = if only_reach { 1 } else { ROUND_TRIPS };
        let (latency_us, clock_ahead_ms) = round_trips(&mut stream, trips)?;
        let mut probed = Probed { problem: None, ..Probed::unreached("") };
        if !only_reach {
            probed.latency_us = Some(latency_us);
            probed.clock_ahead_ms = Some(clock_ahead_ms);
            probed.up_mbit = Some(rate(&mut stream, b'u')?);
            probed.down_mbit = Some(rate(&mut stream, b'd')?);
        }
        Ok(probed)
    });
    measured.unwrap_or_else(|error| Probed::unreached(&error.to_string()))
}

fn connect(target: &str, secret: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in target.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(mut stream) => {
                limit(&stream)?;
                stream.write_all(secret.as_bytes())?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Half of the median in microseconds, and how far the other's clock is ahead in milliseconds.
fn round_trips(stream: &mut TcpStream, count: usize) -> io::Result<(f64, f64)> {
    let (mut times, mut best) = (Vec::new(), (f64::INFINITY, 0.0));
    for _ in 0..count {
        let (begun, own) = (Instant::now(), clock_nanos());
        stream.write_all(b"p")?;
        let mut clock = [0; 8];
        stream.read_exact(&mut clock)?;
        let seconds = begun.elapsed().as_secs_f64();
        times.push(seconds);
        if seconds < best.0 {
            let ahead = u64::from_le_bytes(clock) as f64 - own as f64;
            best = (seconds, ahead / 1e6 - seconds * 1e3 / 2.0);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2] * 1e6 / 2.0, best.1))
}

/// Megabits per second of a stream that takes long enough.
fn rate(stream: &mut TcpStream, direction: u8) -> io::Result<f64> {
    let mut buffer = vec![0; 64 << 10];
    let mut bytes = LEAST_BYTES;
    loop {
        let begun = Instant::now();
        stream.write_all(&[direction])?;
        stream.write_all(&bytes.to_le_bytes())?;
        let mut left = bytes as usize;
        while left > 0 {
            let most = left.min(buffer.len());
            if direction == b'u' {
                stream.write_all(&buffer[..most])?;
            } else {
                stream.read_exact(&mut buffer[..most])?;
            }
            left -= most;
        }
        if direction == b'u' {
            stream.read_exact(&mut [0])?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        if seconds >= STREAM_SECONDS || bytes >= MOST_BYTES {
            return Ok(f64::from(bytes) * 8e-6 / seconds.max(1e-9));
        }
        bytes = bytes.saturating_mul(4).min(MOST_BYTES);
    }
}

fn clock_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_measures_itself_and_refuses_those_who_do_not_know_the_secret() {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("bound").port();
        drop(free);
        let secret = "s".repeat(SECRET_BYTES);
        serve(port, &secret).expect("it listens");
        let target = format!("127.0.0.1:{port}");
        let probed = measure(&target, &secret, false);
        assert_eq!(probed.problem, None, "{probed:?}");
        // One machine has one clock: it is ahead of itself by less than a round trip.
        let latency_ms = probed.latency_us.expect("measured") / 1e3;
        let ahead = probed.clock_ahead_ms.expect("measured").abs();
        assert!(ahead < 1000.0 + latency_ms, "{probed:?}");
        assert!(probed.up_mbit > Some(0.0) && probed.down_mbit > Some(0.0), "{probed:?}");
        let stranger = measure(&target, &"x".repeat(SECRET_BYTES), true);
        assert!(stranger.problem.is_some(), "{stranger:?}");
    }
}
