//! Codecs turn a vector into bytes and back: the table. One file per codec.
//!
//! The number of bytes is a function of the codec's parameters and of the vector's length alone,
//! so that both ends, the wire and the virtual cluster know it beforehand. All numbers on the
//! wire are little-endian. The same input gives the same bytes on every machine.
//!
//! `power-sgd` is a protocol of two averages rather than a way to write down one vector: averages
//! run it (`collectives/low_rank.rs`); all else travels as it is.

mod bf16;
mod coder;
mod error_feedback;
mod f16;
mod levels;
mod plain;
mod power_sgd;
mod qsgd;
mod random_k;
mod share;
mod sign;
mod sparse;
mod tern_grad;
#[cfg(test)]
mod tests;
mod top_k;
mod unbiased_k;

use crate::message::Rank;
use crate::meta::Meta;
use crate::names;
use crate::options::Options;

pub use coder::Coder;
pub use error_feedback::ErrorFeedback;
pub(crate) use error_feedback::convert;
pub use power_sgd::RANK;

/// Turns vectors into bytes and back. Both ends build it from the same parameters and seed.
///
/// What it keeps between calls is scratch memory: the bytes depend on the arguments only.
pub trait Codec: Send {
    /// The exact bytes on the wire of a vector of `len` elements.
    fn bytes(&self, len: usize) -> usize;

    /// What may be relied on for vectors of `len` elements.
    fn properties(&self, len: usize) -> CodecProperties;

    /// Writes `values` to the front of `out` and returns how many bytes that took, which is
    /// `self.bytes(values.len())`. Panics if `out` is shorter.
    fn encode(&mut self, at: VectorId, values: &[f32], out: &mut [u8]) -> usize;

    /// Reads a whole vector; `at` is what its sender passed to `encode`. After an error the
    /// contents of `out` are unspecified.
    fn decode(&mut self, at: VectorId, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError>;
}

/// Which vector of the run it is; with the seed, this decides all random choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorId {
    /// Who encodes.
    pub rank: Rank,
    /// The encoder's step.
    pub step: u64,
    /// The bucket, or another number that tells the vectors of one step apart.
    pub bucket: u32,
}

/// What may be relied on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodecProperties {
    /// What is decoded is what was encoded, bit by bit.
    pub lossless: bool,
    /// The expectation of what is decoded is what was encoded.
    pub unbiased: bool,
    /// The largest known δ with `E‖C(v) − v‖² ≤ (1 − δ)‖v‖²` for every finite `v` whose elements
    /// are zero or normal numbers. Error feedback needs it above 0.
    pub contraction: f64,
    /// About the δ of the vectors that training meets; only to choose defaults by.
    pub typical: f64,
}

/// How a codec can be used, which decides the methods that it goes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecShape {
    /// Nothing is lost.
    Plain,
    /// Every element is kept, rounded. Encoding what was decoded changes nothing more, so
    /// a rank that forwards a vector forwards the same bits.
    Rounding,
    /// All ranks keep the same elements: their vectors of one step can be summed as they travel.
    Shared,
    /// Every sender decides by itself what to keep.
    Own,
    /// Matrices travel as two thin factors, each of which is averaged.
    LowRank,
}

/// One entry of the table of codecs.
pub struct Entry {
    /// Name, summary, paper and options.
    pub meta: Meta,
    /// What a vector of d elements becomes, in bytes.
    pub wire: &'static str,
    /// How it can be used.
    pub shape: CodecShape,
    /// Every element is encoded by itself: however a vector is cut, its elements become the same.
    pub per_element: bool,
    /// Makes it, for a run with this seed.
    pub build: fn(&Options, u64) -> Box<dyn Codec>,
}

/// All built-in codecs, by name.
pub const CODECS: &[Entry] = &[
    bf16::ENTRY,
    f16::ENTRY,
    plain::ENTRY,
    power_sgd::ENTRY,
    qsgd::ENTRY,
    random_k::ENTRY,
    sign::ENTRY,
    tern_grad::ENTRY,
    top_k::ENTRY,
    unbiased_k::ENTRY,
];

/// The codec that sends nothing but signs and one magnitude.
pub const SIGN: &str = sign::ENTRY.meta.name;

/// The built-in entry of this name, or the nearest name if there is one.
pub fn find(name: &str) -> Result<&'static Entry, Option<&'static str>> {
    names::find(CODECS, |entry| entry.meta.name, name)
}

impl Entry {
    /// The exact bytes on the wire of a vector of `len` elements.
    pub fn bytes(&self, options: &Options, len: usize) -> usize {
        (self.build)(options, 0).bytes(len)
    }

    /// What may be relied on for vectors of `len` elements.
    pub fn properties(&self, options: &Options, len: usize) -> CodecProperties {
        (self.build)(options, 0).properties(len)
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({})", self.meta.name)
    }
}

/// Why bytes are not what the codec wrote.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CodecError {
    /// Not even its length.
    #[error("an encoded vector of {0} bytes: its length alone takes 4")]
    Truncated(usize),
    /// A vector that is longer than any of this run.
    #[error("an encoded vector of {given} values, but the longest of this run has {most}")]
    TooLong {
        /// What it says.
        given: usize,
        /// What there is.
        most: usize,
    },
    /// Too few or too many bytes.
    #[error("{codec}: {given} bytes given, but {values} values take exactly {needed}")]
    Length {
        /// The codec's name.
        codec: &'static str,
        /// The bytes that there are.
        given: usize,
        /// The bytes that there should be.
        needed: usize,
        /// The length of the vector.
        values: usize,
    },
    /// A number that the codec never writes.
    #[error("{codec}: {what} is {given}, must be {allowed}")]
    Number {
        /// The codec's name.
        codec: &'static str,
        /// Which number.
        what: &'static str,
        /// What it is.
        given: f64,
        /// What it may be.
        allowed: String,
    },
    /// An index that does not follow the one before it.
    #[error("{codec}: index {index} follows index {before}, but indices must ascend")]
    Order {
        /// The codec's name.
        codec: &'static str,
        /// The index.
        index: usize,
        /// The one before it.
        before: usize,
    },
    /// Bits after the last value that are not zero.
    #[error("{codec}: the bits after the last value are not zero")]
    Padding {
        /// The codec's name.
        codec: &'static str,
    },
}

/// Refuses `bytes` unless there are exactly `needed` of them, for this many `values`.
fn exact(
    codec: &'static str,
    bytes: &[u8],
    needed: usize,
    values: usize,
) -> Result<(), CodecError> {
    if bytes.len() == needed {
        Ok(())
    } else {
        Err(CodecError::Length { codec, given: bytes.len(), needed, values })
    }
}

/// Splits off a leading `f32`.
fn leading(bytes: &[u8]) -> (f32, &[u8]) {
    let (first, rest) = bytes.split_first_chunk().expect("the length was checked");
    (f32::from_le_bytes(*first), rest)
}

/// Refuses a length that no vector has.
fn length(codec: &'static str, what: &'static str, given: f32) -> Result<f32, CodecError> {
    if given.is_finite() && given.is_sign_positive() {
        return Ok(given);
    }
    let allowed = "finite and not negative".to_string();
    Err(CodecError::Number { codec, what, given: given.into(), allowed })
}

/// The bits of the magnitude of a number: they are ordered like the magnitudes, with infinity
/// and what is not a number at the end.
#[inline(always)]
fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// The magnitude of infinity; finite numbers lie below.
const INFINITY: u32 = 0x7f80_0000;
