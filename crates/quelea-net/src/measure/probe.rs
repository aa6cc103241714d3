//! What a worker does when it is asked to measure.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quelea_core::layout::Layout;
use quelea_core::message::Rank;
use quelea_core::node::Loan;
use quelea_wire::control::{ControlError, Reader, Writer};

use crate::compute::Gradients;
use crate::transport::RankLinks;

/// Small words there and back: so many, but for no longer than this, and a few in any case.
const ROUND_TRIPS: usize = 64;
const ASKING: Duration = Duration::from_millis(300);
const ROUND_TRIPS_LEAST: usize = 5;
/// A word of them.
const WORD_BYTES: usize = 8;
/// A stream is not counted while it gets up to speed and takes what buffers have saved up; then
/// for so long; and goes on a little. Time runs from the request, which reaches all who stream
/// together at the same moment, so that they are counted together.
const WARM: Duration = Duration::from_millis(500);
const COUNTED: Duration = Duration::from_millis(1500);
const MORE: Duration = Duration::from_millis(100);
/// What a stream is made of; the first byte says whether another one follows.
const CHUNK_BYTES: usize = 256 << 10;
/// Gradients before the first that is timed, and then: at least, at most, and for how long.
const STEPS_WARM: u64 = 3;
const STEPS_LEAST: usize = 5;
const STEPS_MOST: usize = 200;
const COMPUTING: Duration = Duration::from_secs(2);
/// How long a peer may be silent. A write of which the system has taken a part waits again, so that
/// it can be some times as long.
const SILENCE: Duration = Duration::from_secs(10);

/// One thing to measure, at the same time as others do their part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// Send small words to this rank; time until each comes back.
    Ask(u32),
    /// Send back the small words of this rank.
    Answer(u32),
    /// Send to some without pause while others send here.
    Stream { to: Vec<u32>, from: Vec<u32> },
    /// Compute gradients.
    Compute,
}

impl Probe {
    /// How many numbers it comes to, where that is known.
    pub(super) fn values(&self) -> Option<usize> {
        match self {
            Probe::Ask(_) | Probe::Compute => None,
            Probe::Answer(_) => Some(0),
            Probe::Stream { from, .. } => Some(from.len()),
        }
    }

    pub(crate) fn write(&self, w: Writer) -> Writer {
        let ranks = |w: Writer, ranks: &[u32]| w.list(ranks, |w, rank| w.number(*rank));
        let (kind, to, from): (u64, &[u32], &[u32]) = match self {
            Probe::Ask(peer) => (0, std::slice::from_ref(peer), &[]),
            Probe::Answer(peer) => (1, &[], std::slice::from_ref(peer)),
            Probe::Stream { to, from } => (2, to, from),
            Probe::Compute => (3, &[], &[]),
        };
        ranks(ranks(w.number(kind), to), from)
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Probe, ControlError> {
        let kind = r.number()?;
        let (to, from) = (r.list(Reader::small)?, r.list(Reader::small)?);
        match (kind, to.as_slice(), from.as_slice()) {
            (0, [peer], []) => Ok(Probe::Ask(*peer)),
            (1, [], [peer]) => Ok(Probe::Answer(*peer)),
            (2, _, _) => Ok(Probe::Stream { to, from }),
            (3, [], []) => Ok(Probe::Compute),
            _ => Err(r.unknown()),
        }
    }
}

/// A worker that measures.
pub(crate) struct Prober<'a> {
    /// Its connections.
    pub(crate) links: &'a RankLinks,
    pub(crate) gradients: &'a Gradients,
    /// Where gradients are taken.
    pub(crate) initial: &'a [f32],
}

impl Prober<'_> {
    /// Does what is asked; the numbers, or why there are none.
    pub(crate) fn measure(&self, probe: &Probe) -> Result<Vec<f64>, String> {
        match probe {
            Probe::Ask(peer) => with(*peer, ask(self.link(*peer)?)),
            Probe::Answer(peer) => with(*peer, answer(self.link(*peer)?).map(|()| Vec::new())),
            Probe::Stream { to, from } => self.stream(to, from),
            Probe::Compute => self.compute(),
        }
    }

    fn link(&self, peer: u32) -> Result<&TcpStream, String> {
        let mut sockets = self.links.endpoints.iter().map(|endpoint| endpoint.socket(Rank(peer)));
        let socket = sockets.find_map(|socket| socket);
        let stream = socket.ok_or_else(|| format!("it is not connected to rank {peer}"))?;
        let limited = stream
            .set_read_timeout(Some(SILENCE))
            .and_then(|()| stream.set_write_timeout(Some(SILENCE)));
        limited.map_err(|error| error.to_string())?;
        Ok(stream)
    }

    /// Bytes per second from each of `from`.
    fn stream(&self, to: &[u32], from: &[u32]) -> Result<Vec<f64>, String> {
        let links = |ranks: &[u32]| -> Result<Vec<(u32, &TcpStream)>, String> {
            ranks.iter().map(|rank| Ok((*rank, self.link(*rank)?))).collect()
        };
        let (to, from, begun) = (links(to)?, links(from)?, Instant::now());
        std::thread::scope(|scope| {
            let start = |(peer, stream)| scope.spawn(move || with(peer, send(stream, begun)));
            let sending: Vec<_> = to.into_iter().map(start).collect();
            let start = |(peer, stream)| scope.spawn(move || with(peer, receive(stream, begun)));
            let receiving: Vec<_> = from.into_iter().map(start).collect();
            let sent = sending.into_iter().try_for_each(|thread| thread.join().expect("no panic"));
            let rates = receiving.into_iter().map(|thread| thread.join().expect("no panic"));
            let rates: Result<Vec<f64>, String> = rates.collect();
            sent.and(rates)
        })
    }

    /// Seconds of gradients.
    fn compute(&self) -> Result<Vec<f64>, String> {
        let rank = self.links.rank.index();
        let Gradients::Sources(make) = self.gradients else {
            return Err("its gradients are a script's, which cannot be asked for them".into());
        };
        let mut source = make(rank);
        let layout = Arc::new(Layout::plain(self.initial.len(), 0));
        let mut loan = Some(Loan::detached(self.initial.to_vec(), layout, 0));
        let mut time = |step: u64| {
            let mut lent = loan.take().expect("put back after every step").renewed(step);
            let begun = Instant::now();
            source.gradient(&mut lent, &mut |_| {});
            let took = begun.elapsed().as_secs_f64();
            loan = Some(lent);
            took
        };
        (0..STEPS_WARM).for_each(|step| {
            time(step);
        });
        let (mut seconds, begun) = (Vec::new(), Instant::now());
        while seconds.len() < STEPS_LEAST
            || (seconds.len() < STEPS_MOST && begun.elapsed() < COMPUTING)
        {
            seconds.push(time(STEPS_WARM + seconds.len() as u64));
        }
        Ok(seconds)
    }
}

/// An error with whom it happened.
fn with<T>(peer: u32, done: io::Result<T>) -> Result<T, String> {
    done.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("waited {} s for rank {peer} to measure with it", SILENCE.as_secs())
        }
        _ => format!("lost the connection with rank {peer}: {error}"),
    })
}

/// Seconds of round trips. The last word says so.
fn ask(mut stream: &TcpStream) -> io::Result<Vec<f64>> {
    let (mut seconds, begun) = (Vec::new(), Instant::now());
    loop {
        let enough = seconds.len() + 1 >= ROUND_TRIPS || begun.elapsed() > ASKING;
        let is_last = seconds.len() + 1 >= ROUND_TRIPS_LEAST && enough;
        let mut word = [u8::from(!is_last); WORD_BYTES];
        let sent = Instant::now();
        stream.write_all(&word)?;
        stream.read_exact(&mut word)?;
        seconds.push(sent.elapsed().as_secs_f64());
        if is_last {
            return Ok(seconds);
        }
    }
}

fn answer(mut stream: &TcpStream) -> io::Result<()> {
    let mut word = [1; WORD_BYTES];
    while word[0] == 1 {
        stream.read_exact(&mut word)?;
        stream.write_all(&word)?;
    }
    Ok(())
}

/// Sends chunks until everybody has had time to count.
fn send(mut stream: &TcpStream, begun: Instant) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let until = begun + WARM + COUNTED + MORE;
    chunk[0] = 1;
    while chunk[0] == 1 {
        chunk[0] = u8::from(Instant::now() < until);
        stream.write_all(&chunk)?;
    }
    Ok(())
}

/// Takes chunks until the last; bytes per second while they counted.
fn receive(mut stream: &TcpStream, begun: Instant) -> io::Result<f64> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut count = Count::default();
    loop {
        stream.read_exact(&mut chunk[..1])?;
        let is_last = chunk[0] == 0;
        let mut left = CHUNK_BYTES - 1;
        while left > 0 {
            match stream.read(&mut chunk[..left])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                taken => {
                    left -= taken;
                    count.take(begun.elapsed(), taken);
                }
            }
        }
        if is_last {
            return Ok(count.rate());
        }
    }
}

/// Bytes of a stream.
#[derive(Default)]
struct Count {
    all: usize,
    /// Those that came while they counted.
    counted: usize,
    /// How long all took.
    age: Duration,
}

impl Count {
    fn take(&mut self, age: Duration, bytes: usize) {
        self.age = age;
        self.all += bytes;
        if (WARM..WARM + COUNTED).contains(&age) {
            self.counted += bytes;
        }
    }

    /// Of a stream that came at another time, all count.
    fn rate(&self) -> f64 {
        match self.counted {
            0 => self.all as f64 / self.age.as_secs_f64().max(1e-9),
            counted => counted as f64 / COUNTED.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(taken: &[(u64, usize)]) -> f64 {
        let mut count = Count::default();
        for (ms, megabytes) in taken {
            count.take(Duration::from_millis(*ms), megabytes * 1_000_000);
        }
        count.rate()
    }

    #[test]
    fn only_what_comes_after_warming_up_and_in_time_counts() {
        // A burst, then 15 MB in the 1.5 s that count; what is late does not.
        assert_eq!(rate(&[(0, 50), (499, 3), (500, 5), (1200, 5), (1999, 5), (3000, 9)]), 10e6);
    }

    #[test]
    fn a_stream_that_never_comes_in_time_counts_as_a_whole() {
        assert_eq!(rate(&[(100, 1), (200, 1)]), 10e6);
        assert_eq!(rate(&[(4000, 2)]), 0.5e6);
    }

    #[test]
    fn probes_come_back_as_they_were_and_mixtures_of_them_do_not() {
        for probe in [
            Probe::Ask(3),
            Probe::Answer(0),
            Probe::Stream { to: vec![1, 2], from: vec![] },
            Probe::Compute,
        ] {
            let bytes = probe.write(Writer::default()).packet(14);
            let body = &bytes[quelea_wire::control::HEAD_BYTES..];
            assert_eq!(Probe::read(&mut Reader::new(14, body)).expect("its own"), probe);
        }
        let body = Writer::default().number(3u64).list(&[1u32], |w, r| w.number(*r));
        let bytes = body.list(&[0u32; 0], |w, r| w.number(*r)).packet(14);
        let body = &bytes[quelea_wire::control::HEAD_BYTES..];
        assert!(Probe::read(&mut Reader::new(14, body)).is_err());
    }
}
