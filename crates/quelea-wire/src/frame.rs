//! One message as bytes: a header of fixed size, then its vectors as they are.
//!
//! All numbers are little endian.
//!
//! ```text
//!  0 magic "QLEA"   4 version u16   6 kind u8     7 flags u8 (bits 0-1, 2-3: tags of the parts; 4: collective)
//!  8 view u32      12 from u32     16 to u32     20 bucket u32
//! 24 step u64      32 stage u32    36 count u32  40 seq u64
//! 48 scalar f64    56 origin u64   64 sent u32 (microseconds, wrapping)
//! 68 length of part 0, u32   72 length of part 1, u32   (values: elements; encoded: bytes)
//! 76 CRC-32 of bytes 0 to 75
//! ```

use quelea_core::message::{Message, MessageFields, Part, Rank};
use quelea_core::payload::Pool;
use quelea_core::time::Time;

use crate::VERSION;

/// Bytes of a frame before its vectors.
pub const HEADER_BYTES: usize = 80;

/// The first bytes of every frame.
pub const MAGIC: [u8; 4] = *b"QLEA";

const CHECKED: usize = HEADER_BYTES - 4;
const COLLECTIVE: u8 = 1 << 4;

/// Bytes of `message` on the wire, header included.
pub fn frame_bytes(message: &Message) -> u64 {
    (HEADER_BYTES + message.payload_bytes()) as u64
}

/// From whom a frame comes and to whom it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
}

/// What a receiver is prepared to take, known before anything is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The only route that frames of this connection may have.
    pub route: Route,
    /// The largest vector that a message of this run can carry, in bytes.
    pub part_bytes: u64,
    /// What the vectors that have come over this connection and are still held may add up to, in bytes.
    pub held_bytes: u64,
    /// Whether values are looked at while they arrive: see [`MessageFields::largest_bits`](quelea_core::message::MessageFields).
    pub inspects: bool,
}

/// What a header says.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// From whom to whom.
    pub route: Route,
    /// When it was handed over, in microseconds of the run, wrapping after 71 minutes.
    pub sent_micros: u32,
    /// OptionKind, step and all else, except the vectors.
    fields: Fields,
    parts: [PartShape; 2],
}

/// The scalar fields of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Fields {
    kind: u8,
    collective: bool,
    view: u32,
    step: u64,
    bucket: u32,
    stage: u32,
    seq: u64,
    count: u32,
    scalar: f64,
    origin: Time,
}

/// What kind of vector follows, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartShape {
    Empty,
    Values(u32),
    Encoded(u32),
}

/// Why a frame was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not a frame of ours at all.
    #[error("not a quelea frame: it begins with {0:02x?}, not with \"QLEA\"")]
    Magic([u8; 4]),
    /// Another version of the program.
    #[error("frame version {0}, but this program speaks version {VERSION}")]
    Version(u16),
    /// Damaged on its way.
    #[error("the header's checksum is {given:08x}, but its bytes give {computed:08x}")]
    Checksum {
        /// What it says.
        given: u32,
        /// What it should be.
        computed: u32,
    },
    /// Not for this connection.
    #[error("a frame from rank {} to rank {} on the connection from rank {} to rank {}",
        .given.from.0, .given.to.0, .expected.from.0, .expected.to.0)]
    Route {
        /// What it says.
        given: Route,
        /// What the connection is for.
        expected: Route,
    },
    /// A tag of a part that does not exist.
    #[error("part {part} has tag {tag}; allowed are 0 (empty), 1 (values), 2 (encoded)")]
    Tag {
        /// Which part.
        part: usize,
        /// Its tag.
        tag: u8,
    },
    /// A flag that this version does not know.
    #[error("unknown flags {0:#04x}")]
    Flags(u8),
    /// An empty part with a length.
    #[error("part {part} is empty but has length {length}")]
    Empty {
        /// Which part.
        part: usize,
        /// Its length.
        length: u32,
    },
    /// More than the receiver keeps for one sender.
    #[error("{bytes} bytes after {held} that are not used up; one sender may have {most} here")]
    Budget {
        /// How many it says.
        bytes: u64,
        /// How many of its earlier ones are held.
        held: u64,
        /// How many there may be.
        most: u64,
    },
    /// Longer than anything in this run.
    #[error("part {part} has {bytes} bytes; the longest of this run has {most}")]
    Length {
        /// Which part.
        part: usize,
        /// How many it says.
        bytes: u64,
        /// How many there may be.
        most: u64,
    },
}

/// The header of `message`. Its vectors follow as [`slices`] gives them.
///
/// # Panics
/// If a vector has 2^32 elements or more; a run checks its largest bucket before it starts.
pub fn encode_header(route: Route, sent_micros: u32, message: &Message) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    let shapes = [PartShape::of(&message.parts[0]), PartShape::of(&message.parts[1])];
    let collective = if message.collective { COLLECTIVE } else { 0 };
    let flags = shapes[0].tag() | shapes[1].tag() << 2 | collective;
    put(0, &MAGIC);
    put(4, &VERSION.to_le_bytes());
    put(6, &[message.kind, flags]);
    put(8, &message.view.to_le_bytes());
    put(12, &route.from.0.to_le_bytes());
    put(16, &route.to.0.to_le_bytes());
    put(20, &message.bucket.to_le_bytes());
    put(24, &message.step.to_le_bytes());
    put(32, &message.stage.to_le_bytes());
    put(36, &message.count.to_le_bytes());
    put(40, &message.seq.to_le_bytes());
    put(48, &message.scalar.to_le_bytes());
    put(56, &message.origin.0.to_le_bytes());
    put(64, &sent_micros.to_le_bytes());
    put(68, &shapes[0].length().to_le_bytes());
    put(72, &shapes[1].length().to_le_bytes());
    let checksum = crc32fast::hash(&header[..CHECKED]);
    header[CHECKED..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// The vectors of `message` as bytes, borrowed: this is what follows the header.
pub fn slices(message: &Message) -> [&[u8]; 2] {
    let bytes = |part: usize| match &message.parts[part] {
        Part::Empty => &[][..],
        Part::Values(values) => bytemuck::cast_slice(values),
        Part::Encoded { data, bytes } => &bytemuck::cast_slice(data)[..*bytes],
    };
    [bytes(0), bytes(1)]
}

/// Reads a header and checks everything about it; allocates nothing.
pub fn decode_header(bytes: &[u8; HEADER_BYTES], limits: &Limits) -> Result<Header, FrameError> {
    let four = |at: usize| -> [u8; 4] { bytes[at..at + 4].try_into().expect("four bytes") };
    let word = |at: usize| u32::from_le_bytes(four(at));
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    if four(0) != MAGIC {
        return Err(FrameError::Magic(four(0)));
    }
    let version = u16::from_le_bytes([bytes[4], bytes[5]]);
    if version != VERSION {
        return Err(FrameError::Version(version));
    }
    let (given, computed) = (word(CHECKED), crc32fast::hash(&bytes[..CHECKED]));
    if given != computed {
        return Err(FrameError::Checksum { given, computed });
    }
    let route = Route { from: Rank(word(12)), to: Rank(word(16)) };
    if route != limits.route {
        return Err(FrameError::Route { given: route, expected: limits.route });
    }
    let flags = bytes[7];
    if flags & !(0b1111 | COLLECTIVE) != 0 {
        return Err(FrameError::Flags(flags));
    }
    let fields = Fields {
        kind: bytes[6],
        collective: flags & COLLECTIVE != 0,
        view: word(8),
        step: long(24),
        bucket: word(20),
        stage: word(32),
        seq: long(40),
        count: word(36),
        scalar: f64::from_bits(long(48)),
        origin: Time(long(56)),
    };
    let part = |part: usize| PartShape::decode(part, flags >> (2 * part) & 3, word(68 + 4 * part));
    let parts = [part(0)?, part(1)?];
    for (part, shape) in parts.iter().enumerate() {
        if shape.bytes() > limits.part_bytes {
            let most = limits.part_bytes;
            return Err(FrameError::Length { part, bytes: shape.bytes(), most });
        }
    }
    Ok(Header { route, sent_micros: word(64), fields, parts })
}

impl Header {
    /// The message that it announces, with vectors from `pool` whose contents are still to be
    /// read: part after part, into [`bytes_mut`].
    pub fn allocate(&self, pool: &Pool) -> Message {
        let fields = self.fields;
        let part = |shape: PartShape| match shape {
            PartShape::Empty => Part::Empty,
            PartShape::Values(len) => Part::Values(pool.take(len as usize)),
            PartShape::Encoded(bytes) => Part::Encoded {
                data: pool.take((bytes as usize).div_ceil(4)),
                bytes: bytes as usize,
            },
        };
        let parts = self.parts.map(part);
        let fields = MessageFields {
            kind: fields.kind,
            view: fields.view,
            step: fields.step,
            bucket: fields.bucket,
            stage: fields.stage,
            seq: fields.seq,
            count: fields.count,
            scalar: fields.scalar,
            origin: fields.origin,
            collective: fields.collective,
            largest_bits: None,
            parts,
        };
        fields.into()
    }

    /// Bytes of the vectors that follow.
    pub fn payload_bytes(&self) -> u64 {
        self.parts.iter().map(|shape| shape.bytes()).sum()
    }
}

/// Where the bytes of a part that was just allocated are to be read into.
pub fn bytes_mut(part: &mut Part) -> &mut [u8] {
    let sole = "just allocated, so held by nobody else";
    match part {
        Part::Empty => &mut [],
        Part::Values(values) => bytemuck::cast_slice_mut(values.try_mut().expect(sole)),
        Part::Encoded { data, bytes } => {
            &mut bytemuck::cast_slice_mut(data.try_mut().expect(sole))[..*bytes]
        }
    }
}

impl PartShape {
    fn of(part: &Part) -> PartShape {
        let length = |length| u32::try_from(length).expect("a part has fewer than 2^32 elements");
        match part {
            Part::Empty => PartShape::Empty,
            Part::Values(values) => PartShape::Values(length(values.len())),
            Part::Encoded { bytes, .. } => PartShape::Encoded(length(*bytes)),
        }
    }

    fn decode(part: usize, tag: u8, length: u32) -> Result<PartShape, FrameError> {
        match tag {
            0 if length == 0 => Ok(PartShape::Empty),
            0 => Err(FrameError::Empty { part, length }),
            1 => Ok(PartShape::Values(length)),
            2 => Ok(PartShape::Encoded(length)),
            _ => Err(FrameError::Tag { part, tag }),
        }
    }

    fn tag(self) -> u8 {
        match self {
            PartShape::Empty => 0,
            PartShape::Values(_) => 1,
            PartShape::Encoded(_) => 2,
        }
    }

    fn length(self) -> u32 {
        match self {
            PartShape::Empty => 0,
            PartShape::Values(length) | PartShape::Encoded(length) => length,
        }
    }

    fn bytes(self) -> u64 {
        match self {
            PartShape::Empty => 0,
            PartShape::Values(length) => u64::from(length) * 4,
            PartShape::Encoded(length) => u64::from(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: Route = Route { from: Rank(3), to: Rank(5) };
    const LIMITS: Limits =
        Limits { route: ROUTE, part_bytes: 64, held_bytes: 256, inspects: false };

    fn sample() -> Message {
        let pool = Pool::new();
        let fields = MessageFields {
            kind: 7,
            view: 2,
            step: 1 << 40,
            bucket: 9,
            stage: 11,
            seq: 13,
            count: 17,
            scalar: -0.25,
            origin: Time(19),
            collective: true,
            largest_bits: None,
            parts: [
                Part::Values(pool.copy(&[1.0, -2.5])),
                Part::Encoded { data: pool.copy(&[3.0, 4.0]), bytes: 7 },
            ],
        };
        fields.into()
    }

    fn refused(change: impl Fn(&mut [u8; HEADER_BYTES])) -> FrameError {
        let mut header = encode_header(ROUTE, 0, &sample());
        change(&mut header);
        decode_header(&header, &LIMITS).expect_err("refused")
    }

    /// As [`refused`], with a checksum that fits.
    fn refused_whole(change: impl Fn(&mut [u8; HEADER_BYTES])) -> FrameError {
        refused(|header| {
            change(header);
            let checksum = crc32fast::hash(&header[..CHECKED]);
            header[CHECKED..].copy_from_slice(&checksum.to_le_bytes());
        })
    }

    #[test]
    fn a_frame_comes_back_as_it_was_and_has_the_bytes_it_is_said_to_have() {
        let message = sample();
        let header = encode_header(ROUTE, 23, &message);
        let decoded = decode_header(&header, &LIMITS).expect("its own header");
        let mut back = decoded.allocate(&Pool::new());
        let mut written = header.len();
        for (part, bytes) in back.parts.iter_mut().zip(slices(&message)) {
            bytes_mut(part).copy_from_slice(bytes);
            written += bytes.len();
        }
        assert_eq!(written as u64, frame_bytes(&message));
        assert_eq!(decoded.payload_bytes() as usize, message.payload_bytes());
        assert_eq!((decoded.route, decoded.sent_micros), (ROUTE, 23));
        assert_eq!(slices(&back), slices(&message));
        assert_eq!(encode_header(ROUTE, 23, &back), header);
    }

    #[test]
    fn every_way_of_being_wrong_has_its_own_error() {
        assert_eq!(refused(|h| h[0] = b'X'), FrameError::Magic(*b"XLEA"));
        assert_eq!(refused(|h| h[4] = 9), FrameError::Version(9));
        assert!(matches!(refused(|h| h[30] ^= 1), FrameError::Checksum { .. }));
        assert!(matches!(refused_whole(|h| h[12] = 4), FrameError::Route { .. }));
        assert!(matches!(refused_whole(|h| h[16] = 200), FrameError::Route { .. }));
        assert_eq!(refused_whole(|h| h[7] |= 1 << 7), FrameError::Flags(1 << 7 | 0b1_1001));
        assert_eq!(refused_whole(|h| h[7] |= 3), FrameError::Tag { part: 0, tag: 3 });
        assert_eq!(refused_whole(|h| h[7] = 8), FrameError::Empty { part: 0, length: 2 });
        let most = LIMITS.part_bytes;
        assert_eq!(refused_whole(|h| h[68] = 17), FrameError::Length { part: 0, bytes: 68, most });
        assert_eq!(
            refused_whole(|h| h[72..76].fill(255)),
            FrameError::Length { part: 1, bytes: u64::from(u32::MAX), most }
        );
    }
}
