//! Shared vectors in pooled memory.
//!
//! One vector that goes to k neighbours is one allocation: a [`Payload`] is cloned by sharing.
//! When the last holder drops it, its memory returns to the [`Pool`] it came from, so that a
//! run in steady state allocates nothing of model size.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::vector;

/// Keeps the memory of dropped payloads for the next ones. Cloning shares the pool.
#[derive(Clone, Default)]
pub struct Pool {
    shelves: Arc<Mutex<Shelves>>,
    /// Bytes of what was taken through this handle and its clones and is still held, if they are counted.
    meter: Option<Arc<AtomicU64>>,
}

#[derive(Default)]
struct Shelves {
    /// Free buffers by capacity, in elements.
    free: BTreeMap<usize, Vec<Vec<f32>>>,
    /// Buffers handed out and not yet returned.
    out: usize,
    /// How many times the allocator had to be asked.
    allocated: usize,
}

/// So many shelves stay when they are empty: what was taken from them comes back. Where the sizes of
/// buffers are many, empty ones would be in the way.
const EMPTY_SHELVES: usize = 16;

impl Shelves {
    /// A buffer of at least `len` elements.
    fn take(&mut self, len: usize) -> Vec<f32> {
        self.out += 1;
        // A buffer up to an eighth larger than needed is good enough; a far larger one is not,
        // or a few small messages would hold the memory of the large ones.
        let mut near = self.free.range_mut(len..=len + len / 8 + 16);
        let found = near.find_map(|(key, shelf)| {
            let values = shelf.pop()?;
            Some((*key, values, shelf.is_empty()))
        });
        let Some((key, values, was_last)) = found else {
            self.allocated += 1;
            return vec![0.0; len];
        };
        if was_last && self.free.len() > EMPTY_SHELVES {
            self.free.remove(&key);
        }
        values
    }
}

impl Pool {
    /// An empty pool.
    pub fn new() -> Pool {
        Pool::default()
    }

    /// The same pool, through a handle of its own that counts what is taken through it: a budget for
    /// whoever fills those payloads.
    pub fn metered(&self) -> Pool {
        Pool { shelves: Arc::clone(&self.shelves), meter: Some(Arc::default()) }
    }

    /// Bytes of payloads that were taken through this handle and that somebody still holds; 0 where
    /// they are not counted.
    pub fn metered_bytes(&self) -> u64 {
        self.meter.as_ref().map_or(0, |meter| meter.load(Ordering::Relaxed))
    }

    /// A payload of `len` elements with unspecified contents, held by nobody else.
    pub fn take(&self, len: usize) -> Payload {
        let values = self.shelves().take(len);
        if let Some(meter) = &self.meter {
            meter.fetch_add(values.len() as u64 * 4, Ordering::Relaxed);
        }
        let buffer = Buffer { values, pool: Some(self.clone()) };
        Payload { buffer: Arc::new(buffer), range: 0..len }
    }

    /// A payload with a copy of `values`.
    pub fn copy(&self, values: &[f32]) -> Payload {
        let mut payload = self.take(values.len());
        payload.try_mut().expect("just taken, so held by nobody else").copy_from_slice(values);
        payload
    }

    /// Buffers handed out and not yet returned.
    pub fn outstanding(&self) -> usize {
        self.shelves().out
    }

    /// How many buffers were ever allocated.
    pub fn allocated(&self) -> usize {
        self.shelves().allocated
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        // A panic elsewhere cannot leave the shelves half changed in a way that matters.
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("outstanding", &self.outstanding()).finish()
    }
}

struct Buffer {
    values: Vec<f32>,
    pool: Option<Pool>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            let values = std::mem::take(&mut self.values);
            if let Some(meter) = &pool.meter {
                meter.fetch_sub(values.len() as u64 * 4, Ordering::Relaxed);
            }
            let mut shelves = pool.shelves();
            shelves.out -= 1;
            shelves.free.entry(values.len()).or_default().push(values);
        }
    }
}

/// A vector, or a part of one, that may have several holders.
#[derive(Clone)]
pub struct Payload {
    buffer: Arc<Buffer>,
    range: Range<usize>,
}

impl Payload {
    /// The values, if nobody else holds them: then they may be changed in place.
    pub fn try_mut(&mut self) -> Option<&mut [f32]> {
        let range = self.range.clone();
        Arc::get_mut(&mut self.buffer).map(|buffer| &mut buffer.values[range])
    }

    /// `self + other`, in place if nobody else holds these values. Addition commutes, so the
    /// bits do not depend on whose memory it is.
    pub fn plus(mut self, other: &[f32], pool: &Pool) -> Payload {
        if let Some(values) = self.try_mut() {
            vector::add(other, values);
            return self;
        }
        let mut sum = pool.take(self.len());
        let out = sum.try_mut().expect("just taken, so held by nobody else");
        out.copy_from_slice(&self);
        vector::add(other, out);
        sum
    }

    /// Shares a part of this payload; `range` is relative to it.
    pub fn slice(&self, range: Range<usize>) -> Payload {
        assert!(range.start <= range.end && range.end <= self.len(), "slice outside the payload");
        let start = self.range.start + range.start;
        Payload { buffer: Arc::clone(&self.buffer), range: start..start + range.len() }
    }
}

impl Deref for Payload {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.buffer.values[self.range.clone()]
    }
}

impl From<Vec<f32>> for Payload {
    fn from(values: Vec<f32>) -> Payload {
        let range = 0..values.len();
        Payload { buffer: Arc::new(Buffer { values, pool: None }), range }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} values)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_when_the_last_holder_drops_it() {
        let pool = Pool::new();
        let first = pool.copy(&[1.0, 2.0, 3.0]);
        let shared = first.slice(1..3);
        drop(first);
        assert_eq!((&*shared, pool.outstanding()), (&[2.0, 3.0][..], 1));
        drop(shared);
        assert_eq!(pool.outstanding(), 0);
        drop(pool.take(3));
        assert_eq!(pool.allocated(), 1);
    }

    #[test]
    fn a_meter_counts_what_is_held_and_shares_the_memory() {
        let pool = Pool::new();
        let (first, second) = (pool.metered(), pool.metered());
        let kept = first.take(10);
        let shared = kept.slice(0..2);
        drop(second.take(5));
        assert_eq!((first.metered_bytes(), second.metered_bytes()), (40, 0));
        drop(kept);
        assert_eq!(first.metered_bytes(), 40, "a part of it is still held");
        drop(shared);
        assert_eq!((first.metered_bytes(), pool.metered_bytes()), (0, 0));
        drop(second.take(10));
        assert_eq!(pool.allocated(), 2, "the first buffer was used again");
    }

    #[test]
    fn only_a_sole_holder_may_write() {
        let pool = Pool::new();
        let mut payload = pool.copy(&[1.0]);
        let other = payload.clone();
        assert!(payload.try_mut().is_none());
        drop(other);
        payload.try_mut().expect("sole holder")[0] = 2.0;
        assert_eq!(&*payload, &[2.0]);
    }
}
