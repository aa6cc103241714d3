//! One visitor for saving, loading and comparing the state of an algorithm.

use std::collections::BTreeMap;

use crate::message::Rank;
use crate::payload::Payload;

/// Walks over the named parts of a state. Saving reads them, loading writes them, a digest
/// hashes them; an algorithm lists them once.
pub trait Visitor {
    /// A whole number.
    fn number(&mut self, name: &str, value: &mut u64);
    /// A vector, whose length may change when loading.
    fn vector(&mut self, name: &str, value: &mut Vec<f32>);

    /// A real number.
    fn real(&mut self, name: &str, value: &mut f64) {
        let mut bits = value.to_bits();
        self.number(name, &mut bits);
        *value = f64::from_bits(bits);
    }

    /// A yes or no.
    fn flag(&mut self, name: &str, value: &mut bool) {
        let mut bit = u64::from(*value);
        self.number(name, &mut bit);
        *value = bit != 0;
    }

    /// Whole numbers, whose count may change when loading.
    fn numbers(&mut self, name: &str, values: &mut Vec<u64>) {
        let mut count = values.len() as u64;
        self.number(&format!("{name}.count"), &mut count);
        values.resize(count as usize, 0);
        for (index, value) in values.iter_mut().enumerate() {
            self.number(&format!("{name}.{index}"), value);
        }
    }

    /// A whole number for each of some ranks, which may change when loading.
    fn by_rank(&mut self, name: &str, values: &mut BTreeMap<Rank, u64>) {
        let pairs = std::mem::take(values).into_iter();
        let mut pairs: Vec<u64> = pairs.flat_map(|(rank, value)| [rank.0.into(), value]).collect();
        self.numbers(name, &mut pairs);
        let (pairs, _) = pairs.as_chunks::<2>();
        values.extend(pairs.iter().map(|[rank, value]| (Rank(*rank as u32), *value)));
    }

    /// A whole number for each of some ranks and buckets, which may change when loading.
    fn by_bucket(&mut self, name: &str, values: &mut BTreeMap<(Rank, usize), u64>) {
        let flat = std::mem::take(values).into_iter();
        let flat = flat.flat_map(|((rank, b), value)| [rank.0.into(), b as u64, value]);
        let mut flat: Vec<u64> = flat.collect();
        self.numbers(name, &mut flat);
        let (triples, _) = flat.as_chunks::<3>();
        let entry = |[rank, b, value]: &[u64; 3]| ((Rank(*rank as u32), *b as usize), *value);
        values.extend(triples.iter().map(entry));
    }

    /// A vector that may be absent.
    fn payload(&mut self, name: &str, value: &mut Option<Payload>) {
        let mut present = value.is_some();
        self.flag(name, &mut present);
        let mut values = value.take().map(|payload| payload.to_vec()).unwrap_or_default();
        if present {
            self.vector(name, &mut values);
            *value = Some(Payload::from(values));
        }
    }
}

/// A state that was saved: what a visitor saw, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Saved {
    /// Whole numbers; real ones are kept as their bits.
    pub numbers: BTreeMap<String, u64>,
    /// Vectors.
    pub vectors: BTreeMap<String, Vec<f32>>,
}

impl Visitor for Saved {
    fn number(&mut self, name: &str, value: &mut u64) {
        self.numbers.insert(name.to_string(), *value);
    }

    fn vector(&mut self, name: &str, value: &mut Vec<f32>) {
        self.vectors.insert(name.to_string(), value.clone());
    }
}

/// Writes a saved state back. What was not saved stays as it is, and is reported
/// by [`finish`](Load::finish).
#[derive(Debug)]
pub struct Load<'a> {
    saved: &'a Saved,
    missing: Option<String>,
}

impl<'a> Load<'a> {
    /// From what was saved.
    pub fn new(saved: &'a Saved) -> Load<'a> {
        Load { saved, missing: None }
    }

    /// The first name that was asked for and is not there, as an error.
    pub fn finish(self) -> Result<(), String> {
        match self.missing {
            Some(name) => Err(format!("`{name}` is missing, or has another length")),
            None => Ok(()),
        }
    }

    fn miss(&mut self, name: &str) {
        self.missing.get_or_insert_with(|| name.to_string());
    }
}

impl Visitor for Load<'_> {
    fn number(&mut self, name: &str, value: &mut u64) {
        match self.saved.numbers.get(name) {
            Some(saved) => *value = *saved,
            None => self.miss(name),
        }
    }

    fn vector(&mut self, name: &str, value: &mut Vec<f32>) {
        match self.saved.vectors.get(name) {
            // A vector that has its length before loading keeps it.
            Some(saved) if value.is_empty() || value.len() == saved.len() => {
                value.clone_from(saved)
            }
            _ => self.miss(name),
        }
    }

    /// As many as are there: a wrong count asks for no memory.
    fn numbers(&mut self, name: &str, values: &mut Vec<u64>) {
        let mut count = 0;
        self.number(&format!("{name}.count"), &mut count);
        values.clear();
        for index in 0..count {
            match self.saved.numbers.get(&format!("{name}.{index}")) {
                Some(value) => values.push(*value),
                None => return self.miss(&format!("{name}.{index}")),
            }
        }
    }
}

/// Hashes a state (FNV-1a over names and bits), so that two states can be compared.
#[derive(Debug)]
pub struct Digest(pub u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Takes in some bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

impl Visitor for Digest {
    fn number(&mut self, name: &str, value: &mut u64) {
        self.bytes(name.as_bytes());
        self.bytes(&value.to_le_bytes());
    }

    fn vector(&mut self, name: &str, value: &mut Vec<f32>) {
        self.bytes(name.as_bytes());
        self.bytes(&(value.len() as u64).to_le_bytes());
        self.bytes(bytemuck::cast_slice(value));
    }
}
