//! `f32`: the values as they are, 4 bytes each.

use super::{Codec, CodecError, CodecProperties, CodecShape, Entry, VectorId, exact};
use crate::meta::Meta;

pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "f32",
        summary: "the values as they are",
        paper: "none",
        section: "the values as they are",
        file: file!(),
        options: &[],
    },
    wire: "4·d",
    shape: CodecShape::Plain,
    per_element: true,
    build: |_, _| Box::new(Plain),
};

struct Plain;

impl Codec for Plain {
    fn bytes(&self, len: usize) -> usize {
        len * 4
    }

    fn properties(&self, _: usize) -> CodecProperties {
        CodecProperties { lossless: true, unbiased: true, contraction: 1.0, typical: 1.0 }
    }

    fn encode(&mut self, _: VectorId, values: &[f32], out: &mut [u8]) -> usize {
        let out = &mut out[..values.len() * 4];
        for (out, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
            *out = value.to_le_bytes();
        }
        out.len()
    }

    fn decode(&mut self, _: VectorId, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        exact(ENTRY.meta.name, bytes, self.bytes(out.len()), out.len())?;
        for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
            *out = f32::from_le_bytes(*bytes);
        }
        Ok(())
    }
}
