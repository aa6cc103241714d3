//! Shared vectors in pooled memory.
//!
//! One vector that goes to k neighbours is one allocation: a [`Payload`] is cloned by sharing.
//! When the last holder drops it, its memory returns to the [`Pool`] it came from, so that a
//! run in steady state allocates nothing of model size.
//!
//! That memory is the heap's, unless a driver says otherwise: it may have a pool take memory that other
//! processes can read ([`Pool::take_from`]), and hand on vectors that another process has lent for reading
//! ([`Pool::adopt`]).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::vector;

/// Memory of a vector outside the heap.
pub trait ForeignMemory: fmt::Debug + Send + Sync {
    /// The values.
    fn values(&self) -> &[f32];

    /// The values, to be written to; none where they are only lent for reading.
    fn values_mut(&mut self) -> Option<&mut [f32]>;
}

/// Where a pool finds memory outside the heap.
pub trait MemorySource: fmt::Debug + Send + Sync {
    /// Memory for `len` elements of any value that may be written to; none if there is no more, and the
    /// heap is to be asked.
    fn allocate(&self, len: usize) -> Option<Box<dyn ForeignMemory>>;
}

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
    free: BTreeMap<usize, Vec<Values>>,
    /// Asked before the heap.
    source: Option<Arc<dyn MemorySource>>,
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
    fn take(&mut self, len: usize) -> Values {
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
            let outside = self.source.as_ref().and_then(|source| source.allocate(len));
            return outside.map_or_else(|| Values::Heap(vec![0.0; len]), Values::Outside);
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

    /// From now on memory that the pool does not have is taken from `source`.
    pub fn take_from(&self, source: Arc<dyn MemorySource>) {
        self.shelves().source = Some(source);
    }

    /// A payload of `len` elements with unspecified contents, held by nobody else.
    pub fn take(&self, len: usize) -> Payload {
        let values = self.shelves().take(len);
        self.hold(values, len)
    }

    /// A payload of memory that is lent for reading and goes back when its last holder drops it. It counts
    /// as taken through this handle.
    pub fn adopt(&self, lent: Box<dyn ForeignMemory>) -> Payload {
        let len = lent.values().len();
        self.hold(Values::Lent(lent), len)
    }

    fn hold(&self, values: Values, len: usize) -> Payload {
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

/// Whose memory a vector is.
enum Values {
    Heap(Vec<f32>),
    /// Of a [`MemorySource`].
    Outside(Box<dyn ForeignMemory>),
    /// To be read, and given back.
    Lent(Box<dyn ForeignMemory>),
}

impl Values {
    fn as_slice(&self) -> &[f32] {
        match self {
            Values::Heap(values) => values,
            Values::Outside(memory) | Values::Lent(memory) => memory.values(),
        }
    }

    fn as_mut_slice(&mut self) -> Option<&mut [f32]> {
        match self {
            Values::Heap(values) => Some(values),
            Values::Outside(memory) => memory.values_mut(),
            Values::Lent(_) => None,
        }
    }

    fn len(&self) -> usize {
        self.as_slice().len()
    }
}

struct Buffer {
    values: Values,
    pool: Option<Pool>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            let values = std::mem::replace(&mut self.values, Values::Heap(Vec::new()));
            if let Some(meter) = &pool.meter {
                meter.fetch_sub(values.len() as u64 * 4, Ordering::Relaxed);
            }
            if matches!(values, Values::Lent(_)) {
                return;
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
    /// The values, if nobody else holds them: then they may be changed in place. Lent ones may not.
    pub fn try_mut(&mut self) -> Option<&mut [f32]> {
        let range = self.range.clone();
        let values = Arc::get_mut(&mut self.buffer)?.values.as_mut_slice()?;
        Some(&mut values[range])
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
        vector::sum_into(&self, other, out);
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
        &self.buffer.values.as_slice()[self.range.clone()]
    }
}

impl From<Vec<f32>> for Payload {
    fn from(values: Vec<f32>) -> Payload {
        let range = 0..values.len();
        Payload { buffer: Arc::new(Buffer { values: Values::Heap(values), pool: None }), range }
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

    /// Memory of a test, which tells when it is given back.
    #[derive(Debug)]
    struct Borrowed(Vec<f32>, Arc<AtomicU64>);

    impl ForeignMemory for Borrowed {
        fn values(&self) -> &[f32] {
            &self.0
        }
        fn values_mut(&mut self) -> Option<&mut [f32]> {
            Some(&mut self.0)
        }
    }

    impl Drop for Borrowed {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Gives memory for at most so many elements.
    #[derive(Debug)]
    struct Limited(usize, Arc<AtomicU64>);

    impl MemorySource for Limited {
        fn allocate(&self, len: usize) -> Option<Box<dyn ForeignMemory>> {
            let memory = || Box::new(Borrowed(vec![0.0; len], Arc::clone(&self.1))) as Box<_>;
            (len <= self.0).then(memory)
        }
    }

    #[test]
    fn what_is_lent_is_read_counted_and_given_back_but_never_written_or_kept() {
        let (pool, returned) = (Pool::new().metered(), Arc::<AtomicU64>::default());
        let mut lent = pool.adopt(Box::new(Borrowed(vec![1.0, 2.0], Arc::clone(&returned))));
        assert!(lent.try_mut().is_none(), "although nobody else holds it");
        assert_eq!((&*lent, pool.metered_bytes(), pool.outstanding()), (&[1.0, 2.0][..], 8, 0));
        let sum = lent.plus(&[10.0, 20.0], &pool);
        assert_eq!(&*sum, &[11.0, 22.0]);
        assert_eq!((returned.load(Ordering::Relaxed), pool.metered_bytes()), (1, 8));
        drop(sum);
        assert_eq!(pool.allocated(), 1, "only the sum was taken");
    }

    #[test]
    fn a_pool_takes_from_its_source_and_from_the_heap_when_that_has_no_more() {
        let (pool, dropped) = (Pool::new(), Arc::<AtomicU64>::default());
        pool.take_from(Arc::new(Limited(4, Arc::clone(&dropped))));
        let (outside, heap) = (pool.copy(&[1.0; 4]), pool.copy(&[2.0; 5]));
        assert_eq!((&*outside, &*heap), (&[1.0; 4][..], &[2.0; 5][..]));
        drop((outside, heap));
        assert_eq!(&*pool.copy(&[3.0; 4]), &[3.0; 4]);
        assert_eq!(
            (pool.allocated(), dropped.load(Ordering::Relaxed)),
            (2, 0),
            "kept and used again"
        );
        drop(pool);
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
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
