//! Values that no honest rank sends: NaN, infinities and absurd magnitudes, and what is done about them.

use std::fmt;

use crate::message::{Message, Part, Rank};
use crate::vector;

/// Magnitudes beyond this are absurd: no parameter or gradient that can be trained with has them, and their
/// squares leave the range of `f32`.
pub const LARGEST: f32 = 1e18;

/// What a rank does about a message with such values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoisonPolicy {
    /// Takes it as any other.
    #[default]
    Ignore,
    /// Leaves the message out. Only where nobody waits for it.
    Refuse,
    /// Takes its sender for lost.
    Drop,
    /// Ends the run.
    Stop,
}

/// A message with such values, and who sent it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Poisoned {
    /// Who.
    pub from: Rank,
    /// The step of the message.
    pub step: u64,
    /// Its bucket.
    pub bucket: u32,
    /// The first element of that kind.
    pub element: usize,
    /// Its value.
    pub value: f32,
}

/// Whether messages are looked at before an algorithm gets them, and those that it did not get.
#[derive(Debug, Default)]
pub(crate) struct Inspection {
    pub(crate) is_on: bool,
    pub(crate) poisoned: Vec<Poisoned>,
}

impl fmt::Display for Poisoned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Poisoned { from, step, bucket, element, value } = self;
        write!(f, "{from} sent {value:e} as element {element} of bucket {bucket} in step {step}")
    }
}

/// The first such value of a message with plain vectors.
pub fn inspect(from: Rank, message: &Message) -> Option<Poisoned> {
    if message.largest_bits.is_some_and(|largest| largest <= LARGEST.to_bits()) {
        return None;
    }
    let found = message.parts.iter().find_map(|part| match part {
        Part::Values(values) => find(values),
        Part::Empty | Part::Encoded { .. } => None,
    });
    let (step, bucket) = (message.step, message.bucket);
    found.map(|(element, value)| Poisoned { from, step, bucket, element, value })
}

/// The first such value of a vector, and its place.
pub fn find(values: &[f32]) -> Option<(usize, f32)> {
    let limit = LARGEST.to_bits();
    if vector::largest_bits(values) <= limit {
        return None;
    }
    let is_absurd = |value: &f32| value.abs().to_bits() > limit;
    let element = values.iter().position(is_absurd)?;
    Some((element, values[element]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Pool;

    #[test]
    fn every_kind_of_poison_is_found_wherever_it_is_and_nothing_else() {
        let good: Vec<f32> = (0..1000).map(|i| (i as f32 - 500.0) * 1e15).collect();
        assert_eq!(find(&good), None);
        assert_eq!(find(&[0.0, -0.0, f32::MIN_POSITIVE, LARGEST, -LARGEST]), None);
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 2e18, -f32::MAX] {
            for place in [0, 1, 15, 16, 500, 983, 999] {
                let mut values = good.clone();
                values[place] = bad;
                let (element, value) = find(&values).expect("it is there");
                assert_eq!((element, value.to_bits()), (place, bad.to_bits()));
            }
        }
    }

    #[test]
    fn the_sentence_names_the_sender() {
        let values = Pool::new().copy(&[1.0, f32::NAN]);
        let message = Message::new(3, 7, 2).with(values);
        let told = inspect(Rank(5), &message).expect("poisoned").to_string();
        assert_eq!(told, "rank 5 sent NaN as element 1 of bucket 2 in step 7");
    }
}
