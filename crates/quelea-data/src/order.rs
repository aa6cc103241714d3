//! Which sample comes when: a function of seed, epoch and rank alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use quelea_core::random::Rng;

/// The endless sequence of one worker's samples: one epoch after the other, each in an order of
/// its own. Any place of it can be asked for, by any thread.
#[derive(Debug)]
pub struct SampleOrder {
    part: Arc<[u32]>,
    seed: u64,
    stream: String,
    epochs: Epochs,
}

impl SampleOrder {
    /// Of the samples `part`, which must not be empty.
    pub fn new(part: Arc<[u32]>, seed: u64, rank: usize) -> SampleOrder {
        assert!(!part.is_empty(), "a worker has at least one sample");
        SampleOrder { part, seed, stream: format!("order.{rank}"), epochs: Epochs::default() }
    }

    /// Samples of an epoch.
    pub fn epoch_len(&self) -> usize {
        self.part.len()
    }

    /// The samples at `position..position + count` of the sequence, into `out`.
    pub fn read(&self, position: u64, count: usize, out: &mut Vec<u32>) {
        out.clear();
        let len = self.part.len() as u64;
        let mut at = position;
        while out.len() < count {
            let (epoch, place) = (at / len, (at % len) as usize);
            let order = self.epochs.of(epoch, || self.epoch(epoch));
            let taken = (order.len() - place).min(count - out.len());
            out.extend_from_slice(&order[place..place + taken]);
            at += taken as u64;
        }
    }

    /// The samples of one epoch, in its order.
    pub(crate) fn epoch(&self, epoch: u64) -> Vec<u32> {
        let mut order = self.part.to_vec();
        Rng::new(self.seed, &self.stream, epoch).shuffle(&mut order);
        order
    }
}

/// The orders of the epoch that was asked for last and of its neighbours: batches that are made
/// at the same time may belong to different ones.
#[derive(Debug, Default)]
pub(crate) struct Epochs(Mutex<BTreeMap<u64, Arc<[u32]>>>);

impl Epochs {
    /// The order of an epoch, made if it is not known.
    pub(crate) fn of(&self, epoch: u64, make: impl FnOnce() -> Vec<u32>) -> Arc<[u32]> {
        let mut epochs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        epochs.retain(|known, _| known.abs_diff(epoch) <= 1);
        let order = epochs.entry(epoch).or_insert_with(|| make().into());
        Arc::clone(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(order: &SampleOrder, position: u64, count: usize) -> Vec<u32> {
        let mut out = Vec::new();
        order.read(position, count, &mut out);
        out
    }

    #[test]
    fn every_epoch_holds_every_sample_once_in_another_order() {
        let order = SampleOrder::new((10..30).collect(), 1, 0);
        let epochs: Vec<Vec<u32>> = (0..3).map(|epoch| read(&order, epoch * 20, 20)).collect();
        for epoch in &epochs {
            let mut sorted = epoch.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (10..30).collect::<Vec<u32>>());
        }
        assert_ne!(epochs[0], epochs[1]);
        assert_ne!(epochs[1], epochs[2]);
    }

    #[test]
    fn any_place_can_be_asked_for_in_any_order() {
        let whole = read(&SampleOrder::new((0..7).collect(), 5, 3), 0, 70);
        let order = SampleOrder::new((0..7).collect(), 5, 3);
        for position in [63, 0, 12, 13, 5, 40] {
            let expected = &whole[position..position + 7];
            assert_eq!(read(&order, position as u64, 7), expected, "from {position}");
        }
        assert_ne!(whole, read(&SampleOrder::new((0..7).collect(), 6, 3), 0, 70));
        assert_ne!(whole, read(&SampleOrder::new((0..7).collect(), 5, 2), 0, 70));
    }
}
