//! How a hot loop is run: with the widest instructions of this machine, on one core or several.
//!
//! A loop is written once, in plain Rust, inside [`kernel!`]; the compiler vectorises it once for
//! every [`Level`]. Rust never contracts a multiplication and an addition into one, so all levels
//! give the same bits. Which level is used is decided at run time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A set of instructions that loops are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// What every machine of this architecture has.
    Portable,
    /// 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2(Detected),
}

/// Proof that the processor was asked: only this file can make one.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Detected(());

impl Level {
    /// The best level of this machine.
    pub(crate) fn best() -> Level {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            return Level::Avx2(Detected(()));
        }
        Level::Portable
    }

    /// Every level that this machine has.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Level> {
        let mut all = vec![Level::Portable, Level::best()];
        all.dedup();
        all
    }
}

/// Defines a function whose first argument is the [`Level`] it runs at. Write the body so that it
/// vectorises: zipped slices, no early exit. Functions that it calls must be inlined.
macro_rules! kernel {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident $(<$(const $flag:ident: bool),+>)?
        ($($arg:ident: $type:ty),+ $(,)?) $(-> $result:ty)? $body:block
    ) => {
        $(#[$meta])*
        $vis fn $name $(<$(const $flag: bool),+>)?
        (level: $crate::vector::dispatch::Level, $($arg: $type),+) $(-> $result)? {
            #[inline(always)]
            fn body $(<$(const $flag: bool),+>)? ($($arg: $type),+) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2 $(<$(const $flag: bool),+>)? ($($arg: $type),+) $(-> $result)? {
                body $(::<$($flag),+>)? ($($arg),+)
            }

            match level {
                $crate::vector::dispatch::Level::Portable => body $(::<$($flag),+>)? ($($arg),+),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: this level exists only after the processor was asked for it.
                $crate::vector::dispatch::Level::Avx2(_) => unsafe {
                    avx2 $(::<$($flag),+>)? ($($arg),+)
                },
            }
        }
    };
}
pub(crate) use kernel;

/// Fewer elements than this are not worth a thread: one took about 30 µs to start and join, and
/// a pass over this many elements takes about 500 µs.
pub(crate) const PART_MIN: usize = 1 << 21;

/// 0 stands for "as many as the machine has".
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Lets the kernels use at most `threads` threads, in the whole process; 1 switches parallelism
/// off, 0 means as many as the machine has cores, which is where a process starts. Several ranks
/// on one machine should share its cores. Results do not depend on it.
pub fn set_threads(threads: usize) {
    THREADS.store(threads, Ordering::Relaxed);
}

/// How many threads the kernels may use.
pub fn threads() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    match THREADS.load(Ordering::Relaxed) {
        0 => *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from)),
        threads => threads,
    }
}

/// Cuts `vectors`, all of one length, into parts of at least `part_min` and calls `work` on each
/// with its offset: in parallel if there is more than one part.
pub(crate) fn in_parts<T: Send, const N: usize>(
    vectors: [&mut [T]; N],
    part_min: usize,
    work: impl Fn(usize, [&mut [T]; N]) + Sync,
) {
    let len = vectors[0].len();
    if len < 2 * part_min || threads() == 1 {
        return work(0, vectors);
    }
    // Whole cache lines, so that no two threads write to the same one.
    let part = len.div_ceil((len / part_min).min(threads())).next_multiple_of(16);
    std::thread::scope(|scope| {
        let (work, mut rest, mut offset) = (&work, vectors, 0);
        while rest[0].len() > part {
            let (first, others) = split(rest, part);
            scope.spawn(move || work(offset, first));
            (rest, offset) = (others, offset + part);
        }
        work(offset, rest);
    });
}

fn split<T, const N: usize>(vectors: [&mut [T]; N], at: usize) -> ([&mut [T]; N], [&mut [T]; N]) {
    let mut others = [const { None }; N];
    let mut slot = others.iter_mut();
    let first = vectors.map(|vector| {
        let (first, other) = vector.split_at_mut(at);
        *slot.next().expect("one slot per vector") = Some(other);
        first
    });
    (first, others.map(|other| other.expect("filled just now")))
}
