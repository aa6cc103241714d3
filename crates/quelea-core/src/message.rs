//! What travels between ranks.

use crate::payload::Payload;
use crate::time::Time;

/// The number of a participant: workers first, then servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl Rank {
    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl From<usize> for Rank {
    fn from(index: usize) -> Rank {
        Rank(u32::try_from(index).expect("fewer than 2^32 ranks"))
    }
}

impl std::fmt::Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// One message. Its meaning is the algorithm's; drivers and wire only carry it.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// What it is, in the numbering of the algorithm that sent it.
    pub kind: u8,
    /// The sender's view when it was sent; stamped by the node.
    pub view: u32,
    /// The sender's step that it belongs to.
    pub step: u64,
    /// The bucket that it belongs to.
    pub bucket: u32,
    /// The stage of a collective, or another small number.
    pub stage: u32,
    /// A sequence number where messages are acknowledged or deduplicated.
    pub seq: u64,
    /// How many gradients are folded into it.
    pub count: u32,
    /// One number: a learning rate, a push-sum weight, a loss.
    pub scalar: f64,
    /// When the latest computation that this message depends on was finished; stamped by the
    /// node. It separates waiting for a slow peer from waiting for the network.
    pub origin: Time,
    /// Whether it belongs to a collective; the virtual cluster may charge those differently.
    pub collective: bool,
    /// Bits of the largest magnitude among its plain values, where whoever received it has looked; it does
    /// not travel.
    pub largest_bits: Option<u32>,
    /// Up to two vectors.
    pub parts: [Part; 2],
}

impl Message {
    /// A message without vectors.
    pub fn new(kind: u8, step: u64, bucket: usize) -> Message {
        Message { kind, step, bucket: bucket as u32, ..Message::default() }
    }

    /// With `values` as its first vector.
    pub fn with(mut self, values: Payload) -> Message {
        self.parts[0] = Part::Values(values);
        self
    }

    /// With `values` as its second vector: the two arrive together or not at all.
    pub fn and(mut self, values: Payload) -> Message {
        self.parts[1] = Part::Values(values);
        self
    }

    /// The first vector, which the sender is known to have filled.
    pub fn into_values(self) -> Payload {
        match self.parts.into_iter().next() {
            Some(Part::Values(values)) => values,
            _ => Payload::from(Vec::new()),
        }
    }

    /// Panics unless its first vector has `len` elements and the second, if there is one, as many. Whoever
    /// keeps a message checks it on arrival: later nobody could tell whose it was.
    pub fn expect_length(&self, len: usize) {
        let has_length = |part: &Part| match part {
            Part::Values(values) => values.len() == len,
            // Its codec checks it.
            Part::Encoded { .. } => true,
            Part::Empty => false,
        };
        let [first, second] = &self.parts;
        let is_good = has_length(first) && (matches!(second, Part::Empty) || has_length(second));
        let (step, bucket) = (self.step, self.bucket);
        assert!(
            is_good,
            "its vectors of bucket {bucket} in step {step} do not have {len} elements"
        );
    }

    /// Bytes of all vectors, without any header.
    pub fn payload_bytes(&self) -> usize {
        self.parts.iter().map(Part::bytes).sum()
    }
}

/// One vector of a message.
#[derive(Clone, Debug, Default)]
pub enum Part {
    /// Nothing.
    #[default]
    Empty,
    /// Plain `f32` values.
    Values(Payload),
    /// The first `bytes` bytes of `data` are what a codec wrote.
    Encoded {
        /// Pooled memory, in words of four bytes.
        data: Payload,
        /// How many bytes of it are used.
        bytes: usize,
    },
}

impl Part {
    /// Bytes on the wire.
    pub fn bytes(&self) -> usize {
        match self {
            Part::Empty => 0,
            Part::Values(values) => values.len() * 4,
            Part::Encoded { bytes, .. } => *bytes,
        }
    }
}
