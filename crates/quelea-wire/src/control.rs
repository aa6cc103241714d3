//! Small bounded packets beside the frames: handshake, rendezvous, conducting a run.
//!
//! ```text
//!  0 magic "QLEC"   4 version u16   6 kind u16   8 length of the body, u64   16 CRC-32 of bytes 0 to 15 and the body
//! ```
//!
//! What a body holds is written with a [`Writer`] and read back with a [`Reader`], field by
//! field; a reader never gives more than the body has.

use crate::VERSION;

/// Bytes of a packet before its body.
pub const HEAD_BYTES: usize = 20;

/// The first bytes of every packet.
pub const MAGIC: [u8; 4] = *b"QLEC";

const CHECKED: usize = HEAD_BYTES - 4;

/// Why a packet was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// Not one of ours.
    #[error("not a quelea handshake: it begins with {0:02x?}, not with \"QLEC\"")]
    Magic([u8; 4]),
    /// Another version of the program.
    #[error("it speaks version {0}, this program speaks version {VERSION}")]
    Version(u16),
    /// Longer than allowed here.
    #[error("a packet of {length} bytes where at most {most} are allowed")]
    Length {
        /// How many it says.
        length: u64,
        /// How many there may be.
        most: u64,
    },
    /// Damaged on its way.
    #[error("the packet's checksum is {given:08x}, but its bytes give {computed:08x}")]
    Checksum {
        /// What it says.
        given: u32,
        /// What it should be.
        computed: u32,
    },
    /// A kind that is not expected here.
    #[error("a packet of kind {0} where it means nothing")]
    Kind(u16),
    /// The body ends within a field, or goes on after the last.
    #[error("the body of a packet of kind {0} does not have the fields that it should have")]
    Body(u16),
}

/// What the head of a packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The kind, in the numbering of whoever uses it.
    pub kind: u16,
    /// Bytes of the body.
    pub length: usize,
    given: u32,
    partial: [u8; CHECKED],
}

/// A whole packet.
pub fn encode(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(HEAD_BYTES + body.len());
    packet.extend_from_slice(&encode_head(kind, &[body]));
    packet.extend_from_slice(body);
    packet
}

/// The head of a packet whose body is these pieces one after the other. A long body need not be copied
/// to be sent.
pub fn encode_head<P: AsRef<[u8]>>(kind: u16, pieces: &[P]) -> [u8; HEAD_BYTES] {
    let length: usize = pieces.iter().map(|piece| piece.as_ref().len()).sum();
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&MAGIC);
    head[4..6].copy_from_slice(&VERSION.to_le_bytes());
    head[6..8].copy_from_slice(&kind.to_le_bytes());
    head[8..CHECKED].copy_from_slice(&(length as u64).to_le_bytes());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head[..CHECKED]);
    pieces.iter().for_each(|piece| hasher.update(piece.as_ref()));
    head[CHECKED..].copy_from_slice(&hasher.finalize().to_le_bytes());
    head
}

/// Reads a head; a body of more than `most` bytes is refused before anything is allocated.
pub fn decode_head(bytes: &[u8; HEAD_BYTES], most: u64) -> Result<Head, ControlError> {
    let magic: [u8; 4] = bytes[..4].try_into().expect("four bytes");
    if magic != MAGIC {
        return Err(ControlError::Magic(magic));
    }
    let version = u16::from_le_bytes([bytes[4], bytes[5]]);
    if version != VERSION {
        return Err(ControlError::Version(version));
    }
    let length = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    if length > most {
        return Err(ControlError::Length { length, most });
    }
    Ok(Head {
        kind: u16::from_le_bytes([bytes[6], bytes[7]]),
        length: length as usize,
        given: u32::from_le_bytes(bytes[CHECKED..].try_into().expect("four bytes")),
        partial: bytes[..CHECKED].try_into().expect("the rest"),
    })
}

impl Head {
    /// Whether `body` is the one that was sent with this head.
    pub fn check(&self, body: &[u8]) -> Result<(), ControlError> {
        let (given, computed) = (self.given, checksum(&self.partial, body));
        if given == computed { Ok(()) } else { Err(ControlError::Checksum { given, computed }) }
    }
}

fn checksum(head: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(body);
    hasher.finalize()
}

/// Writes the fields of a body.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// A whole number.
    pub fn number(mut self, value: impl Into<u64>) -> Writer {
        self.bytes.extend_from_slice(&value.into().to_le_bytes());
        self
    }

    /// A real number.
    pub fn real(self, value: f64) -> Writer {
        self.number(value.to_bits())
    }

    /// Any bytes.
    pub fn bytes(mut self, value: &[u8]) -> Writer {
        self = self.number(value.len() as u64);
        self.bytes.extend_from_slice(value);
        self
    }

    /// Any text.
    pub fn text(self, value: &str) -> Writer {
        self.bytes(value.as_bytes())
    }

    /// A vector.
    pub fn values(self, value: &[f32]) -> Writer {
        self.bytes(bytemuck::cast_slice(value))
    }

    /// A list of anything.
    pub fn list<T>(mut self, items: &[T], write: impl Fn(Writer, &T) -> Writer) -> Writer {
        self = self.number(items.len() as u64);
        items.iter().fold(self, write)
    }

    /// The fields alone.
    pub fn body(self) -> Vec<u8> {
        self.bytes
    }

    /// The packet.
    pub fn packet(self, kind: u16) -> Vec<u8> {
        encode(kind, &self.bytes)
    }
}

/// Reads the fields of a body, in the order in which they were written.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    kind: u16,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Over the body of a packet of this kind.
    pub fn new(kind: u16, body: &'a [u8]) -> Reader<'a> {
        Reader { kind, rest: body }
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], ControlError> {
        let count = usize::try_from(count).map_err(|_| ControlError::Body(self.kind))?;
        let (now, rest) = self.rest.split_at_checked(count).ok_or(ControlError::Body(self.kind))?;
        self.rest = rest;
        Ok(now)
    }

    /// A whole number.
    pub fn number(&mut self) -> Result<u64, ControlError> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }

    /// A whole number that fits a smaller type.
    pub fn small<T: TryFrom<u64>>(&mut self) -> Result<T, ControlError> {
        T::try_from(self.number()?).map_err(|_| ControlError::Body(self.kind))
    }

    /// A yes or no.
    pub fn flag(&mut self) -> Result<bool, ControlError> {
        Ok(self.number()? != 0)
    }

    /// A real number.
    pub fn real(&mut self) -> Result<f64, ControlError> {
        Ok(f64::from_bits(self.number()?))
    }

    /// Any bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8], ControlError> {
        let count = self.number()?;
        self.take(count)
    }

    /// Any text.
    pub fn text(&mut self) -> Result<String, ControlError> {
        let bytes = self.bytes()?.to_vec();
        String::from_utf8(bytes).map_err(|_| ControlError::Body(self.kind))
    }

    /// A vector.
    pub fn values(&mut self) -> Result<Vec<f32>, ControlError> {
        let bytes = self.bytes()?;
        if bytes.len() % 4 != 0 {
            return Err(ControlError::Body(self.kind));
        }
        let value = |four: &[u8]| f32::from_le_bytes(four.try_into().expect("four bytes"));
        Ok(bytes.chunks_exact(4).map(value).collect())
    }

    /// A list of anything.
    pub fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, ControlError>,
    ) -> Result<Vec<T>, ControlError> {
        let count = self.number()?;
        // The count is not trusted with memory: items are pushed as they are read.
        let mut items = Vec::new();
        for _ in 0..count {
            if self.rest.is_empty() {
                return Err(ControlError::Body(self.kind));
            }
            items.push(read(self)?);
        }
        Ok(items)
    }

    /// Says that nothing may follow.
    pub fn end(self) -> Result<(), ControlError> {
        if self.rest.is_empty() { Ok(()) } else { Err(ControlError::Body(self.kind)) }
    }

    /// The error for a kind that means nothing here.
    pub fn unknown(&self) -> ControlError {
        ControlError::Kind(self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(packet: &[u8], most: u64) -> Result<Head, ControlError> {
        decode_head(packet[..HEAD_BYTES].try_into().expect("a head"), most)
    }

    #[test]
    fn fields_come_back_in_order() {
        let packet = Writer::default()
            .number(7u32)
            .real(-0.5)
            .text("ring")
            .values(&[1.0, 2.0])
            .list(&[3u64, 4], |w, item| w.number(*item))
            .packet(9);
        let head = head(&packet, 1000).expect("a good head");
        let body = &packet[HEAD_BYTES..];
        assert_eq!((head.kind, head.length), (9, body.len()));
        head.check(body).expect("undamaged");
        let mut reader = Reader::new(9, body);
        assert_eq!(reader.small::<u32>(), Ok(7));
        assert_eq!(reader.real(), Ok(-0.5));
        assert_eq!(reader.text().as_deref(), Ok("ring"));
        assert_eq!(reader.values(), Ok(vec![1.0, 2.0]));
        assert_eq!(reader.list(Reader::number), Ok(vec![3, 4]));
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn every_way_of_being_wrong_has_its_own_error() {
        let good = encode(3, b"abc");
        let changed = |at: usize| {
            let mut packet = good.clone();
            packet[at] ^= 0x40;
            packet
        };
        assert!(matches!(head(&changed(0), 9), Err(ControlError::Magic(_))));
        assert!(matches!(head(&changed(4), 9), Err(ControlError::Version(_))));
        assert_eq!(head(&good, 2), Err(ControlError::Length { length: 3, most: 2 }));
        let damaged = changed(HEAD_BYTES + 1);
        let damaged = head(&good, 9).expect("good").check(&damaged[HEAD_BYTES..]);
        assert!(matches!(damaged, Err(ControlError::Checksum { .. })));
        assert_eq!(Reader::new(3, b"abc").number(), Err(ControlError::Body(3)));
        assert_eq!(Reader::new(3, b"abc").end(), Err(ControlError::Body(3)));
        let endless = u64::MAX.to_le_bytes();
        assert_eq!(Reader::new(3, &endless).bytes(), Err(ControlError::Body(3)));
        assert_eq!(Reader::new(3, &endless).list(Reader::number), Err(ControlError::Body(3)));
    }
}
