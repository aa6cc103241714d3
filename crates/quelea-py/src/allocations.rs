//! How much memory was allocated in large pieces: tests show with it that steps allocate none.

use pyo3::prelude::*;

/// Bytes that were allocated in pieces of at least `PIECE` since the module was loaded. Counted
/// only in builds for tests; other builds return None.
#[pyfunction]
pub(crate) fn large_allocations() -> Option<u64> {
    #[cfg(debug_assertions)]
    return Some(counting::BYTES.load(std::sync::atomic::Ordering::Relaxed));
    #[cfg(not(debug_assertions))]
    None
}

#[cfg(debug_assertions)]
mod counting {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// What counts as large: far above messages without a vector, far below any bucket.
    const PIECE: usize = 32 << 10;

    pub(super) static BYTES: AtomicU64 = AtomicU64::new(0);

    #[global_allocator]
    static COUNTING: CountingAllocator = CountingAllocator;

    struct CountingAllocator;

    fn count(size: usize) {
        if size >= PIECE {
            BYTES.fetch_add(size as u64, Ordering::Relaxed);
        }
    }

    // SAFETY: everything is passed on to the system's allocator as it is.
    unsafe impl GlobalAlloc for CountingAllocator {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            count(layout.size());
            // SAFETY: the caller keeps the contract of `alloc`, which is the same.
            unsafe { System.alloc(layout) }
        }

        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            count(layout.size());
            // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same.
            unsafe { System.alloc_zeroed(layout) }
        }

        unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            count(size);
            // SAFETY: the caller keeps the contract of `realloc`, which is the same.
            unsafe { System.realloc(pointer, layout, size) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            // SAFETY: the caller keeps the contract of `dealloc`, which is the same.
            unsafe { System.dealloc(pointer, layout) }
        }
    }
}
