//! Frames from bytes that arrive in any pieces.

use quelea_core::message::{Message, MessageFields, Part};
use quelea_core::payload::Pool;
use quelea_core::vector;

use crate::frame::{FrameError, HEADER_BYTES, Header, Limits, bytes_mut, decode_header};

/// Takes bytes, gives frames. After an error the connection is of no use any more.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    pool: Pool,
    header: [u8; HEADER_BYTES],
    /// Bytes of the header that are there.
    filled: usize,
    body: Option<Body>,
}

#[derive(Debug)]
struct Body {
    header: Header,
    message: Message,
    /// The part that is being filled, and how many bytes of it are there.
    part: usize,
    filled: usize,
}

impl Decoder {
    /// For a connection with these limits.
    pub fn new(limits: Limits, pool: Pool) -> Decoder {
        Decoder { limits, pool, header: [0; HEADER_BYTES], filled: 0, body: None }
    }

    /// Takes what it can use from the front of `bytes`. `None` means that the frame is not
    /// complete yet; then all of `bytes` has been taken.
    pub fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<(Header, Message)>, FrameError> {
        if self.body.is_none() {
            self.filled += fill(&mut self.header[self.filled..], bytes);
            if self.filled < HEADER_BYTES {
                return Ok(None);
            }
            let header = decode_header(&self.header, &self.limits)?;
            let (bytes, held) = (header.payload_bytes(), self.pool.metered_bytes());
            if held + bytes > self.limits.held_bytes {
                let most = self.limits.held_bytes;
                return Err(FrameError::Budget { bytes, held, most });
            }
            let mut message = header.allocate(&self.pool);
            message.largest_bits = self.limits.inspects.then_some(0);
            self.body = Some(Body { header, message, part: 0, filled: 0 });
        }
        if self.body.as_mut().is_some_and(|body| !body.is_complete(bytes)) {
            return Ok(None);
        }
        self.filled = 0;
        Ok(self.body.take().map(|body| (body.header, body.message)))
    }

    /// Where the bytes to come may be written directly: the rest of the vector that is being
    /// filled. Empty between frames.
    pub fn spare(&mut self) -> &mut [u8] {
        match &mut self.body {
            Some(body) => &mut bytes_mut(&mut body.message.parts[body.part])[body.filled..],
            None => &mut [],
        }
    }

    /// Says that the first `count` bytes of [`spare`](Decoder::spare) were written.
    pub fn advance(&mut self, count: usize) {
        if let Some(body) = &mut self.body {
            body.came(count);
        }
    }
}

impl Body {
    fn is_complete(&mut self, bytes: &mut &[u8]) -> bool {
        loop {
            let target = bytes_mut(&mut self.message.parts[self.part]);
            let (length, count) = (target.len(), fill(&mut target[self.filled..], bytes));
            self.came(count);
            if self.filled < length {
                return false;
            }
            if self.part == 1 {
                return true;
            }
            (self.part, self.filled) = (1, 0);
        }
    }
}

impl Body {
    /// So many more bytes of the present part are there. Their values are looked at while they are in the
    /// cache: a pass over a whole vector would read it from memory once more.
    fn came(&mut self, count: usize) {
        let before = self.filled;
        self.filled += count;
        let MessageFields { largest_bits: Some(largest), parts, .. } = &mut *self.message else {
            return;
        };
        if let Part::Values(values) = &parts[self.part] {
            // A value of which a part was there counts when it is complete.
            *largest = (*largest).max(vector::largest_bits(&values[before / 4..self.filled / 4]));
        }
    }
}

/// Moves bytes from the front of `source` into `target`; gives how many.
fn fill(target: &mut [u8], source: &mut &[u8]) -> usize {
    let count = target.len().min(source.len());
    let (now, later) = source.split_at(count);
    target[..count].copy_from_slice(now);
    *source = later;
    count
}

#[cfg(test)]
mod tests {
    use quelea_core::message::Rank;
    use quelea_core::random::Rng;

    use super::*;
    use crate::frame::{Route, encode_header, slices};

    const ROUTE: Route = Route { from: Rank(0), to: Rank(1) };
    const LIMITS: Limits =
        Limits { route: ROUTE, part_bytes: 256, held_bytes: 1 << 20, inspects: true };

    fn drawn(rng: &mut Rng, pool: &Pool) -> Message {
        let mut message = Message::new(rng.below(256) as u8, rng.below(1 << 40), 3);
        message.scalar = rng.normal();
        for part in &mut message.parts {
            let values: Vec<f32> = (0..rng.below(64)).map(|_| rng.normal() as f32).collect();
            *part = match rng.below(3) {
                0 => Part::Empty,
                1 => Part::Values(pool.copy(&values)),
                _ => Part::Encoded {
                    bytes: rng.below(4 * values.len() as u64 + 1) as usize,
                    data: pool.copy(&values),
                },
            };
        }
        message
    }

    #[test]
    fn a_sender_whose_vectors_are_not_used_up_reaches_its_budget() {
        let limits = Limits { held_bytes: 600, ..LIMITS };
        let (pool, own) = (Pool::new().metered(), Pool::new());
        let frame = bytes_of(&Message::new(1, 0, 0).with(own.copy(&[1.0; 64])));
        let mut decoder = Decoder::new(limits, pool.clone());
        let take = |decoder: &mut Decoder| decoder.take(&mut &frame[..]);
        let mut kept = Vec::new();
        for _ in 0..5 {
            // What is dropped is used up.
            take(&mut decoder).expect("within the budget");
        }
        for _ in 0..2 {
            kept.push(take(&mut decoder).expect("within the budget").expect("whole").1);
        }
        let refused = take(&mut decoder).expect_err("256 + 256 + 256 > 600");
        assert_eq!(refused, FrameError::Budget { bytes: 256, held: 512, most: 600 });
    }

    fn bytes_of(message: &Message) -> Vec<u8> {
        let [first, second] = slices(message);
        [&encode_header(ROUTE, 0, message)[..], first, second].concat()
    }

    #[test]
    fn frames_come_out_whole_however_the_bytes_arrive() {
        let (mut rng, pool) = (Rng::new(1, "pieces", 0), Pool::new());
        for _ in 0..2_000 {
            let sent: Vec<Message> = (0..rng.below(4)).map(|_| drawn(&mut rng, &pool)).collect();
            let stream: Vec<u8> = sent.iter().flat_map(bytes_of).collect();
            let mut decoder = Decoder::new(LIMITS, pool.clone());
            let (mut rest, mut got) = (&stream[..], Vec::new());
            while !rest.is_empty() {
                let (mut piece, later) = rest.split_at(rng.below(rest.len() as u64 + 1) as usize);
                rest = later;
                while let Some((_, message)) = decoder.take(&mut piece).expect("good frames") {
                    got.push(message);
                }
                assert!(piece.is_empty());
            }
            let bytes =
                |messages: &[Message]| -> Vec<u8> { messages.iter().flat_map(bytes_of).collect() };
            assert_eq!(bytes(&got), bytes(&sent));
            for message in got {
                let values = |part: &Part| match part {
                    Part::Values(values) => values.to_vec(),
                    _ => Vec::new(),
                };
                let all = message.parts.iter().flat_map(values);
                let largest = all.map(|value| value.abs().to_bits()).max().unwrap_or(0);
                assert_eq!(message.largest_bits, Some(largest));
            }
        }
    }

    /// Damages a good stream, or invents one, 100 000 times: nothing panics, nothing larger than
    /// the limit is allocated, and a frame that is accepted is one that could have been sent.
    #[test]
    fn no_bytes_make_the_decoder_panic_or_allocate_beyond_its_limit() {
        let (mut rng, pool) = (Rng::new(2, "fuzz", 0), Pool::new());
        for round in 0..100_000 {
            let mut stream = bytes_of(&drawn(&mut rng, &pool));
            match round % 4 {
                0 => stream.iter_mut().for_each(|byte| *byte = rng.below(256) as u8),
                1 => stream.truncate(rng.below(stream.len() as u64) as usize),
                _ => {
                    for _ in 0..=rng.below(3) {
                        let at = rng.below(stream.len() as u64) as usize;
                        stream[at] ^= 1 << rng.below(8);
                    }
                    if round % 4 == 3 && stream.len() >= HEADER_BYTES {
                        let checksum = crc32fast::hash(&stream[..HEADER_BYTES - 4]);
                        stream[HEADER_BYTES - 4..HEADER_BYTES]
                            .copy_from_slice(&checksum.to_le_bytes());
                    }
                }
            }
            let mut decoder = Decoder::new(LIMITS, pool.clone());
            let mut rest = &stream[..];
            while let Ok(Some((header, message))) = decoder.take(&mut rest) {
                assert!(message.parts.iter().all(|part| part.bytes() as u64 <= LIMITS.part_bytes));
                let again = encode_header(header.route, header.sent_micros, &message);
                assert!(decode_header(&again, &LIMITS).is_ok());
            }
        }
    }
}
