//! The inner loops of direct convolutions, for the widest vectors of this machine.
//!
//! Both loops run along planes that lie in memory as one row of numbers, so that they know nothing
//! of images: a kernel's place is a shift. Written with the machine's own instructions, because the
//! compiler keeps sums of this many vectors in memory where they are plain arrays.

/// The loops at one width of vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels {
    /// Numbers of one vector.
    pub(super) lanes: usize,
    /// Results that are computed together.
    pub(super) outputs: usize,
    planes: unsafe fn(Planes<'_>, &mut [f32]),
    sums: [unsafe fn(Sums<'_>, &mut [f32]); 3],
}

/// Rows of shifted planes, weighted and added up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planes<'a> {
    /// One plane per channel, the next one `stride` further.
    pub(super) x: &'a [f32],
    pub(super) stride: usize,
    /// Where the plane is read for each weight.
    pub(super) shifts: &'a [usize],
    /// By channel, shift and result.
    pub(super) weights: &'a [f32],
    /// Numbers of one result, a multiple of the vectors'.
    pub(super) span: usize,
}

/// Products of a plane with others, summed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums<'a> {
    pub(super) x: &'a [f32],
    /// Where the plane is read; as many as one of [`SIZES`].
    pub(super) shifts: &'a [usize],
    /// [`ROWS`] planes, the next one `stride` further.
    pub(super) dy: &'a [f32],
    pub(super) stride: usize,
    /// Numbers of each plane, a multiple of the vectors'.
    pub(super) span: usize,
}

/// Planes that are multiplied together with one.
pub(super) const ROWS: usize = 4;
/// Widths of square kernels for which there are loops.
pub(super) const SIZES: [usize; 3] = [3, 5, 7];

impl Kernels {
    /// The widest that this machine has, if it has any.
    pub(super) fn best() -> Option<Kernels> {
        Kernels::all().next()
    }

    /// Those that this machine has, the widest first.
    pub(super) fn all() -> impl Iterator<Item = Kernels> {
        #[cfg(target_arch = "x86_64")]
        let known = [
            std::arch::is_x86_feature_detected!("avx512f").then_some(avx512::KERNELS),
            (std::arch::is_x86_feature_detected!("avx2")
                && std::arch::is_x86_feature_detected!("fma"))
            .then_some(avx2::KERNELS),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let known: [Option<Kernels>; 0] = [];
        known.into_iter().flatten()
    }

    /// Result o at p is the sum over channels and shifts of `weight · plane[p + shift]`; the results
    /// are `span` apart in `out`.
    pub(super) fn planes(&self, planes: Planes<'_>, out: &mut [f32]) {
        assert!(planes.span.is_multiple_of(self.lanes), "whole vectors");
        // SAFETY: a `Kernels` is only made after the processor was asked for what it uses.
        unsafe { (self.planes)(planes, out) }
    }

    /// Adds to `out[r * shifts + k]` the sum over p of `dy[r][p] · x[p + shifts[k]]`, for each of
    /// [`ROWS`] rows r and each shift k.
    pub(super) fn sums(&self, sums: Sums<'_>, out: &mut [f32]) {
        let size = sums.shifts.len();
        let place = SIZES.iter().position(|known| *known == size).expect("a known size");
        let furthest = sums.shifts.iter().max().expect("a known size");
        assert!(sums.span.is_multiple_of(self.lanes), "whole vectors");
        assert!(sums.x.len() >= sums.span + furthest, "the shifted plane is there");
        assert!(sums.dy.len() >= (ROWS - 1) * sums.stride + sums.span, "the planes are there");
        // SAFETY: as above; and the planes are as long as the loop takes for granted.
        unsafe { (self.sums[place])(sums, out) }
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! kernels {
    ($name:ident, $features:literal, $lanes:literal, $outputs:literal,
     $zero:ident, $load:ident, $splat:ident, $fma:ident, $store:ident, $sum:path) => {
        mod $name {
            use std::arch::x86_64::*;

            use super::{Kernels, Planes, ROWS, Sums};

            const LANES: usize = $lanes;
            const OUTPUTS: usize = $outputs;

            pub(super) const KERNELS: Kernels = Kernels {
                lanes: LANES,
                outputs: OUTPUTS,
                planes,
                sums: [sums::<3>, sums::<5>, sums::<7>],
            };

            #[target_feature(enable = $features)]
            fn planes(planes: Planes<'_>, out: &mut [f32]) {
                let vectors = planes.span / LANES;
                let mut at = 0;
                while at < vectors {
                    // As many together as there are registers for; a last one alone is slow.
                    let width = match vectors - at {
                        1 => tile::<1>(planes, at * LANES, out),
                        2 | 4 => tile::<2>(planes, at * LANES, out),
                        _ => tile::<3>(planes, at * LANES, out),
                    };
                    at += width;
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn tile<const V: usize>(planes: Planes<'_>, at: usize, out: &mut [f32]) -> usize {
                let Planes { x, stride, shifts, weights, span } = planes;
                let mut sums = [[$zero(); V]; OUTPUTS];
                for (channel, weights) in weights.chunks_exact(shifts.len() * OUTPUTS).enumerate() {
                    let plane = &x[channel * stride + at..];
                    for (shift, weights) in shifts.iter().zip(weights.chunks_exact(OUTPUTS)) {
                        let from = &plane[*shift..*shift + V * LANES];
                        let mut numbers = [$zero(); V];
                        for v in 0..V {
                            // SAFETY: `from` has V vectors.
                            numbers[v] = unsafe { $load(from.as_ptr().add(v * LANES)) };
                        }
                        for o in 0..OUTPUTS {
                            let weight = $splat(weights[o]);
                            for v in 0..V {
                                sums[o][v] = $fma(weight, numbers[v], sums[o][v]);
                            }
                        }
                    }
                }
                for o in 0..OUTPUTS {
                    let to = &mut out[o * span + at..][..V * LANES];
                    for v in 0..V {
                        // SAFETY: `to` has V vectors.
                        unsafe { $store(to.as_mut_ptr().add(v * LANES), sums[o][v]) };
                    }
                }
                V
            }

            #[target_feature(enable = $features)]
            fn sums<const K: usize>(planes: Sums<'_>, out: &mut [f32]) {
                let Sums { x, shifts, dy, stride, span } = planes;
                let mut from = [x.as_ptr(); K];
                for k in 0..K {
                    // SAFETY: the caller has checked that x has span numbers from every shift on.
                    from[k] = unsafe { from[k].add(shifts[k]) };
                }
                let mut sums = [[$zero(); K]; ROWS];
                for at in (0..span).step_by(LANES) {
                    let mut numbers = [$zero(); K];
                    for k in 0..K {
                        // SAFETY: as above.
                        numbers[k] = unsafe { $load(from[k].add(at)) };
                    }
                    for r in 0..ROWS {
                        // SAFETY: the caller has checked that every row has span numbers.
                        let row = unsafe { $load(dy.as_ptr().add(r * stride + at)) };
                        for k in 0..K {
                            sums[r][k] = $fma(row, numbers[k], sums[r][k]);
                        }
                    }
                }
                for (row, out) in sums.iter().zip(out.chunks_exact_mut(K)) {
                    for (vector, out) in row.iter().zip(out) {
                        *out += $sum(*vector);
                    }
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
kernels!(
    avx512,
    "avx512f",
    16,
    8,
    _mm512_setzero_ps,
    _mm512_loadu_ps,
    _mm512_set1_ps,
    _mm512_fmadd_ps,
    _mm512_storeu_ps,
    super::sum_of_16
);
#[cfg(target_arch = "x86_64")]
kernels!(
    avx2,
    "avx2,fma",
    8,
    4,
    _mm256_setzero_ps,
    _mm256_loadu_ps,
    _mm256_set1_ps,
    _mm256_fmadd_ps,
    _mm256_storeu_ps,
    super::sum_of_8
);

/// The sum of a vector's numbers, by halves.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
fn sum_of_16(vector: std::arch::x86_64::__m512) -> f32 {
    use std::arch::x86_64::*;
    let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(vector)));
    sum_of_8(_mm256_add_ps(_mm512_castps512_ps256(vector), upper))
}

/// The sum of a vector's numbers, by halves.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum_of_8(vector: std::arch::x86_64::__m256) -> f32 {
    use std::arch::x86_64::*;
    let four = _mm_add_ps(_mm256_castps256_ps128(vector), _mm256_extractf128_ps::<1>(vector));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}
