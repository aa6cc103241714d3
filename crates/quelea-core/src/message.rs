//! What travels between ranks.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

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
///
/// It is passed on many times between the algorithm that sends it and the one that reads it, so it is a
/// pointer to its [fields](MessageFields). Where it goes to several receivers, they [share](Message::share)
/// them; who changes a field gets a copy of its own.
#[derive(Clone, Debug, Default)]
pub struct Message {
    fields: Holding,
}

/// How a message holds its fields.
#[derive(Clone, Debug)]
enum Holding {
    /// Alone: they are changed without asking who else reads them.
    Own(Box<MessageFields>),
    /// With others.
    Shared(Arc<MessageFields>),
}

impl Default for Holding {
    fn default() -> Holding {
        Holding::Own(Box::default())
    }
}

/// What a message consists of.
#[derive(Clone, Debug, Default)]
pub struct MessageFields {
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
        MessageFields { kind, step, bucket: bucket as u32, ..MessageFields::default() }.into()
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
        let [first, _] = self.into_parts();
        match first {
            Part::Values(values) => values,
            _ => Payload::from(Vec::new()),
        }
    }

    /// Panics unless its first vector has `len` elements and the second, if there is one, as many. Whoever
    /// keeps a message checks it on arrival: later nobody could tell whose it was.
    pub fn expect_length(&self, len: usize) {
        let (step, bucket) = (self.step, self.bucket);
        assert!(
            self.has_length(len),
            "its vectors of bucket {bucket} in step {step} do not have {len} elements"
        );
    }

    /// Whether its first vector has `len` elements and the second, if there is one, as many.
    pub fn has_length(&self, len: usize) -> bool {
        let has_length = |part: &Part| match part {
            Part::Values(values) => values.len() == len,
            // Its codec checks it.
            Part::Encoded { .. } => true,
            Part::Empty => false,
        };
        let [first, second] = &self.parts;
        has_length(first) && (matches!(second, Part::Empty) || has_length(second))
    }

    /// Its vectors.
    pub fn into_parts(self) -> [Part; 2] {
        match self.fields {
            Holding::Own(fields) => fields.parts,
            Holding::Shared(fields) => match Arc::try_unwrap(fields) {
                Ok(fields) => fields.parts,
                Err(shared) => shared.parts.clone(),
            },
        }
    }

    /// The same message; clones of it share their fields.
    pub fn share(self) -> Message {
        match self.fields {
            Holding::Own(fields) => Message { fields: Holding::Shared(Arc::new(*fields)) },
            Holding::Shared(_) => self,
        }
    }

    /// Stamps it with the sender's view and the origin of what it contains.
    pub fn stamp(&mut self, view: u32, origin: Time) {
        // What is stamped already may be shared.
        if (self.view, self.origin) != (view, origin) {
            let fields = &mut **self;
            (fields.view, fields.origin) = (view, origin);
        }
    }

    /// Bytes of all vectors, without any header.
    pub fn payload_bytes(&self) -> usize {
        self.parts.iter().map(Part::bytes).sum()
    }
}

impl From<MessageFields> for Message {
    fn from(fields: MessageFields) -> Message {
        Message { fields: Holding::Own(Box::new(fields)) }
    }
}

impl Deref for Message {
    type Target = MessageFields;
    fn deref(&self) -> &MessageFields {
        match &self.fields {
            Holding::Own(fields) => fields,
            Holding::Shared(fields) => fields,
        }
    }
}

impl DerefMut for Message {
    fn deref_mut(&mut self) -> &mut MessageFields {
        match &mut self.fields {
            Holding::Own(fields) => fields,
            Holding::Shared(fields) => Arc::make_mut(fields),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_one_clone_is_not_seen_by_another() {
        let values = Payload::from(vec![1.0, 2.0]);
        let message = Message::new(3, 4, 5).with(values).share();
        let mut changed = message.clone();
        changed.stamp(7, Time(9));
        changed.parts[0] = Part::Empty;
        assert_eq!((message.view, message.origin, message.payload_bytes()), (0, Time(0), 8));
        assert_eq!((changed.view, changed.origin, changed.payload_bytes()), (7, Time(9), 0));
        assert_eq!((changed.kind, changed.step, changed.bucket), (3, 4, 5));
    }

    #[test]
    fn the_vectors_of_a_shared_message_come_out_of_each_clone() {
        let message = Message::new(1, 0, 0).with(Payload::from(vec![1.0]));
        let message = message.and(Payload::from(vec![2.0])).share();
        let first = message.clone().into_values();
        let [_, second] = message.into_parts();
        assert_eq!(&*first, &[1.0]);
        assert!(matches!(second, Part::Values(values) if *values == [2.0]));
    }
}
