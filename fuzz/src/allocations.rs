//! The allocator of the fuzzed process: counts what is held, and refuses what no machine has.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A single block above this is refused, so that a mistake ends the process rather than the machine.
const REFUSED_BYTES: usize = 4 << 30;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator;

struct PeakAllocator;

/// Measures how much more is held than at its beginning, at most; of the whole process.
#[derive(Debug)]
pub struct PeakMeter {
    before: usize,
}

impl PeakMeter {
    /// Begins to measure.
    pub fn start() -> PeakMeter {
        let before = HELD.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        PeakMeter { before }
    }

    /// The most so far, in bytes.
    pub fn peak_bytes(&self) -> usize {
        PEAK.load(Ordering::Relaxed).saturating_sub(self.before)
    }
}

fn grown(bytes: usize) {
    let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(held, Ordering::Relaxed);
}

// SAFETY: every call is passed on unchanged to the system's allocator, or answered with null, which
// means that there is no memory.
unsafe impl GlobalAlloc for PeakAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > REFUSED_BYTES {
            return std::ptr::null_mut();
        }
        grown(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > REFUSED_BYTES {
            return std::ptr::null_mut();
        }
        grown(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > REFUSED_BYTES {
            return std::ptr::null_mut();
        }
        grown(size);
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`, which is the same.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(block, layout) }
    }
}
