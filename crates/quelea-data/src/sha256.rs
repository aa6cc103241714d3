//! SHA-256 as hexadecimal text.

use std::io::{self, Read};

use sha2::{Digest, Sha256};

/// A checksum in the making.
#[derive(Clone, Default)]
pub(crate) struct Sum(Sha256);

impl Sum {
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn hex(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The checksum of these bytes.
pub(crate) fn of(bytes: &[u8]) -> String {
    let mut sum = Sum::default();
    sum.take(bytes);
    sum.hex()
}

/// The checksum and the length of everything that can be read; `each` is told of every part.
pub(crate) fn of_reader(
    reader: &mut dyn Read,
    mut each: impl FnMut(u64),
) -> io::Result<(String, u64)> {
    let (mut sum, mut len, mut buffer) = (Sum::default(), 0, vec![0; 1 << 16]);
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok((sum.hex(), len)),
            Ok(read) => {
                sum.take(&buffer[..read]);
                len += read as u64;
                each(read as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checksum_is_that_of_the_standard() {
        // FIPS 180-2, appendix B.1.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(super::of(b"abc"), expected);
        let read = super::of_reader(&mut &b"abc"[..], |_| {}).expect("memory");
        assert_eq!(read, (expected.to_string(), 3));
    }
}
