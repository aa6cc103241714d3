//! The codec of a run in the hands of one rank: vectors of messages to bytes and back.
//!
//! ```text
//! bytes 0..4   d, the number of elements: u32
//! then         what the codec writes
//! ```

use super::{Codec, CodecError, CodecShape, Entry, VectorId};
use crate::message::{Message, Part, Rank};
use crate::options::Options;
use crate::payload::{Payload, Pool};

/// Encodes what this rank sends and decodes what it receives.
pub struct Coder {
    shape: CodecShape,
    codec: Box<dyn Codec>,
    /// The rank of factors, where matrices travel as such.
    factors: usize,
}

/// Bytes before those of the codec: the number of elements.
const PREFIX: usize = size_of::<f32>();

impl Coder {
    /// For a run with this codec and this seed.
    pub fn new(entry: &Entry, options: &Options, seed: u64) -> Coder {
        let factors = match entry.shape {
            CodecShape::LowRank => options.whole(super::RANK.name) as usize,
            _ => 0,
        };
        Coder { shape: entry.shape, codec: (entry.build)(options, seed), factors }
    }

    /// How the codec can be used.
    pub fn shape(&self) -> CodecShape {
        self.shape
    }

    /// Columns of the factors that matrices travel as.
    pub fn factors(&self) -> usize {
        self.factors
    }

    /// Whether what it leaves out may be added to the next vector of `len` elements.
    pub fn feeds_back(&self, len: usize) -> bool {
        self.codec.properties(len).contraction > 0.0
    }

    /// About how much of a vector of `len` elements survives, from 0 to 1: δ.
    pub fn typical(&self, len: usize) -> f64 {
        self.codec.properties(len).typical
    }

    /// Where a vector of `message` stands in the run.
    pub fn place(rank: Rank, message: &Message, part: usize) -> VectorId {
        VectorId { rank, step: message.step, bucket: message.bucket << 1 | part as u32 }
    }

    /// Encodes `values` into memory of the pool, ready to be a part of a message.
    pub fn pack(&mut self, at: VectorId, values: &[f32], pool: &Pool) -> Part {
        let needed = self.codec.bytes(values.len());
        let mut data = pool.take(1 + needed.div_ceil(size_of::<f32>()));
        let out = data.try_mut().expect("just taken, so held by nobody else");
        let len = u32::try_from(values.len()).expect("a bucket has fewer than 2^32 elements");
        let (prefix, rest) = bytemuck::cast_slice_mut::<f32, u8>(out).split_at_mut(PREFIX);
        prefix.copy_from_slice(&len.to_le_bytes());
        let bytes = PREFIX + self.codec.encode(at, values, rest);
        Part::Encoded { data, bytes }
    }

    /// Decodes what [`pack`](Coder::pack) made at the other end; `most` is the length of the
    /// longest vector of the run.
    pub fn unpack(
        &mut self,
        at: VectorId,
        part: &Part,
        most: usize,
        pool: &Pool,
    ) -> Result<Payload, CodecError> {
        let bytes = encoded(part);
        let Some((prefix, bytes)) = bytes.split_first_chunk() else {
            return Err(CodecError::Truncated(bytes.len()));
        };
        let len = u32::from_le_bytes(*prefix) as usize;
        if len > most {
            return Err(CodecError::TooLong { given: len, most });
        }
        let mut values = pool.take(len);
        let out = values.try_mut().expect("just taken, so held by nobody else");
        self.codec.decode(at, bytes, out)?;
        Ok(values)
    }

    /// Writes what the receivers of `part` will decode.
    pub fn read_back(&mut self, at: VectorId, part: &Part, out: &mut [f32]) {
        let decoded = self.codec.decode(at, &encoded(part)[PREFIX..], out);
        decoded.expect("a codec reads what it wrote");
    }

    /// How many elements of a vector of `len` travel, where a codec is [`CodecShape::Shared`].
    pub fn kept_len(&self, len: usize) -> usize {
        self.codec.bytes(len) / size_of::<f32>()
    }

    /// The elements that travel, of a part that a [`CodecShape::Shared`] codec packed.
    pub fn kept(part: &Part) -> Payload {
        match part {
            Part::Encoded { data, .. } => data.slice(1..data.len()),
            _ => Payload::from(Vec::new()),
        }
    }

    /// The vector whose elements that travel are `kept`, where a codec is [`CodecShape::Shared`].
    pub fn spread(&mut self, at: VectorId, kept: &[f32], out: &mut [f32]) {
        let decoded = self.codec.decode(at, bytemuck::cast_slice(kept), out);
        decoded.expect("as many as this codec keeps");
    }

    /// What receivers get of `values` where models travel: rounded, if the codec rounds.
    pub fn round(&mut self, values: &mut [f32], pool: &Pool) {
        if self.shape == CodecShape::Rounding {
            let part = self.pack(VectorId::default(), values, pool);
            self.read_back(VectorId::default(), &part, values);
        }
    }
}

/// The bytes of an encoded part; none of any other.
fn encoded(part: &Part) -> &[u8] {
    match part {
        Part::Encoded { data, bytes } => {
            let all: &[u8] = bytemuck::cast_slice(data);
            all.get(..*bytes).unwrap_or(all)
        }
        Part::Values(_) | Part::Empty => &[],
    }
}
