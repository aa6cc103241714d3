//! In steady state, a step allocates nothing of the model's size.
//!
//! A counting allocator watches whole runs of two lengths: the longer one must not have asked
//! for more large blocks than the shorter one.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use conformance::{ARMS, Arm, plan};
use quelea_core::algorithms::{ALGORITHMS, Entry};
use quelea_core::options::Options;

struct Counting;

static LARGE: AtomicUsize = AtomicUsize::new(0);

/// A quarter of a chunk of the model: smaller than anything of the model's size.
const LARGE_BYTES: usize = MODEL_BYTES / 16;
const MODEL_BYTES: usize = 4 * 100_000;

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
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

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller keeps the contract of `realloc`, which is the same.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(block, layout) }
    }
}

fn count(size: usize) {
    if size >= LARGE_BYTES {
        LARGE.fetch_add(1, Ordering::Relaxed);
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn large_blocks(entry: &Entry, steps: u64, arm: Arm) -> usize {
    let name = entry.meta.name;
    // Short rounds, so that the shorter run has some already.
    let rounds = entry.meta.options.iter().any(|key| key.name == "period");
    let period = if rounds { "period = 3\n" } else { "" };
    let refused = (entry.properties)(&Options::defaults(entry.meta.options)).optimizer_rule;
    let momentum = if refused.refused_options().is_empty() { 0.9 } else { 0.0 };
    let text = format!(
        "workers = 4\nsteps = {steps}\n[algorithm]\nname = \"{name}\"\n{period}[optimizer]\nlr = 0.01\n\
         momentum = {momentum}\n[buckets]\nsize_mb = 0.2\n[task]\nname = \"quadratic\"\ndimensions = 100000\n\
         curvature = [[1], [2], [3], [4]]\ntarget = [[1], [-2], [0.5], [3]]\n[cluster]\nservers = 2"
    );
    let plan = plan(&text);
    let before = LARGE.load(Ordering::Relaxed);
    arm.run(&plan);
    LARGE.load(Ordering::Relaxed) - before
}

/// One test only: the counter is the process's.
#[test]
fn a_longer_run_allocates_no_more_large_blocks_than_a_short_one() {
    for entry in ALGORITHMS {
        for arm in ARMS {
            let (short, long) = (large_blocks(entry, 30, arm), large_blocks(entry, 230, arm));
            // Real timing decides how many buffers are in use at once, so a few more may be
            // needed; 200 more steps of 4 workers would show as hundreds.
            let slack = if arm == Arm::Virtual { 4 } else { 40 };
            assert!(long <= short + slack, "{} {arm:?}: {short} then {long}", entry.meta.name);
        }
    }
}
