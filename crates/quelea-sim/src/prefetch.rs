//! Asking the processor for memory that is needed soon.
//!
//! With thousands of ranks their states do not fit into the near caches, and every event is of another rank.
//! The queue knows which ranks come next: what they need is asked for while earlier events are handled.

/// Bytes that travel between memory and caches at a time.
const LINE: usize = 64;

/// Asks for the memory of `value`. It changes nothing but how long it takes to read it.
#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..size_of::<T>()).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let line = std::ptr::from_ref(value).cast::<i8>().wrapping_byte_add(offset);
        // SAFETY: a prefetch is a hint: it reads nothing that the program could see, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (value, LINE);
}
