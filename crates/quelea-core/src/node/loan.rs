//! The vectors of a node, and the right of somebody else to compute on them.
//!
//! A node lends its parameters and its gradient to a [gradient source](crate::problems::GradientSource)
//! and gets them back from the front: every bucket that the source [hands over](Loan::hand_over)
//! is the node's from then on, all that follows is still the source's. One number, the boundary,
//! divides the two, so that both can work at the same time without copies: early buckets are sent
//! and mixed while later ones are computed.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::layout::Layout;

/// A flat vector whose memory stays where it is for as long as somebody holds a clone.
#[derive(Clone)]
pub struct SharedVector {
    memory: Arc<Memory>,
}

struct Memory {
    start: NonNull<f32>,
    len: usize,
    capacity: usize,
}

// SAFETY: plain numbers; who may touch which of them when is decided by the holders (see `Loan`).
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(vector: Vec<f32>) -> Memory {
        let mut vector = ManuallyDrop::new(vector);
        let start = NonNull::new(vector.as_mut_ptr()).expect("vectors are never at null");
        Memory { start, len: vector.len(), capacity: vector.capacity() }
    }

    fn take(self) -> Vec<f32> {
        let memory = ManuallyDrop::new(self);
        // SAFETY: these came from a vector in `new`, and `self` is gone.
        unsafe { Vec::from_raw_parts(memory.start.as_ptr(), memory.len, memory.capacity) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: as in `take`; this is the last holder.
        drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, self.capacity) });
    }
}

impl fmt::Debug for SharedVector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedVector({} elements)", self.len())
    }
}

impl Default for SharedVector {
    fn default() -> SharedVector {
        SharedVector::from(Vec::new())
    }
}

impl From<Vec<f32>> for SharedVector {
    fn from(vector: Vec<f32>) -> SharedVector {
        SharedVector { memory: Arc::new(Memory::new(vector)) }
    }
}

impl SharedVector {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.memory.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the memory begins, for holders outside Rust. They must keep a clone, and to the turns
    /// that the driver gives them.
    pub fn address(&self) -> *mut f32 {
        self.memory.start.as_ptr()
    }

    /// # Safety
    ///
    /// Nobody may write to the range while the slice lives.
    pub(super) unsafe fn slice(&self, range: Range<usize>) -> &[f32] {
        assert!(range.start <= range.end && range.end <= self.len(), "a slice outside the vector");
        // SAFETY: inside the allocation, which lives as long as `self`; the rest is the caller's.
        unsafe { std::slice::from_raw_parts(self.address().add(range.start), range.len()) }
    }

    /// # Safety
    ///
    /// Nobody may read or write the range by other means while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "the boundary of a loan decides, not the borrow")]
    pub(super) unsafe fn slice_mut(&self, range: Range<usize>) -> &mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len(), "a slice outside the vector");
        // SAFETY: as in `slice`.
        unsafe { std::slice::from_raw_parts_mut(self.address().add(range.start), range.len()) }
    }

    /// The vector itself, copied only if somebody else still holds it.
    pub(super) fn into_vec(self) -> Vec<f32> {
        match Arc::try_unwrap(self.memory) {
            Ok(memory) => memory.take(),
            // SAFETY: other holders only read it: nothing is lent any more.
            Err(memory) => unsafe { SharedVector { memory }.slice_whole().to_vec() },
        }
    }

    /// # Safety
    ///
    /// As [`slice`](SharedVector::slice), for all of it.
    unsafe fn slice_whole(&self) -> &[f32] {
        // SAFETY: handed on to the caller.
        unsafe { self.slice(0..self.len()) }
    }

    /// Shows the vector as one to `visit`, which may change its content, not its length.
    ///
    /// # Safety
    ///
    /// Nobody else may touch the vector meanwhile.
    pub(super) unsafe fn visit(&mut self, visit: impl FnOnce(&mut Vec<f32>)) {
        let len = self.len();
        if let Some(memory) = Arc::get_mut(&mut self.memory) {
            let mut vector = std::mem::replace(memory, Memory::new(Vec::new())).take();
            visit(&mut vector);
            assert_eq!(vector.len(), len, "a visitor keeps the length");
            *memory = Memory::new(vector);
        } else {
            // SAFETY: handed on to the caller.
            let whole = unsafe { self.slice_mut(0..len) };
            let mut copy = whole.to_vec();
            visit(&mut copy);
            whole.copy_from_slice(&copy);
        }
    }
}

/// The right to compute one gradient: parameters to read, a gradient to write.
///
/// It ends when it is dropped; whatever was not handed over until then is the node's again.
#[derive(Debug)]
pub struct Loan {
    params: SharedVector,
    grad: SharedVector,
    layout: Arc<Layout>,
    /// Which of the worker's gradients this is, from 0.
    step: u64,
    /// Which unit of the data that all workers share it is of, where they do.
    unit: Option<u64>,
    /// Buckets handed over.
    buckets: usize,
    /// Elements handed over; the boundary's copy at this side.
    start: usize,
    /// Whether buckets are handed over before the end.
    early: bool,
    boundary: Arc<AtomicUsize>,
}

impl Loan {
    pub(super) fn new(
        params: SharedVector,
        grad: SharedVector,
        layout: Arc<Layout>,
        step: u64,
        boundary: Arc<AtomicUsize>,
    ) -> Loan {
        boundary.store(0, Ordering::Release);
        let (unit, buckets, start, early) = (None, 0, 0, true);
        Loan { params, grad, layout, step, unit, buckets, start, early, boundary }
    }

    /// A loan of these vectors outside any node, for trying gradient sources.
    pub fn detached(params: Vec<f32>, layout: Arc<Layout>, step: u64) -> Loan {
        // Not zeros: a source that leaves something out is noticed.
        let grad = vec![f32::NAN; params.len()];
        Loan::new(params.into(), grad.into(), layout, step, Arc::default())
    }

    /// A loan of the same vectors for another step: for computing gradients outside any node.
    pub fn renewed(self, step: u64) -> Loan {
        let (params, grad) = self.shared();
        let (layout, boundary) = (Arc::clone(&self.layout), Arc::clone(&self.boundary));
        drop(self);
        Loan::new(params, grad, layout, step, boundary)
    }

    /// The same loan, of which nothing is handed over before it ends: for drivers that decide by
    /// themselves when a bucket is ready.
    pub fn whole(mut self) -> Loan {
        self.hold();
        self
    }

    /// From now on nothing is handed over before the end: for sources that change what another
    /// source has computed.
    pub fn hold(&mut self) {
        self.early = false;
    }

    /// Which of the worker's gradients this is, from 0.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The same loan, for a gradient of this unit of the data that all workers share.
    pub fn of_unit(mut self, unit: Option<u64>) -> Loan {
        self.unit = unit;
        self
    }

    /// Which batch of its data a source takes: that of the unit where workers share the data, otherwise
    /// that of the worker's step.
    pub fn batch(&self) -> u64 {
        self.unit.unwrap_or(self.step)
    }

    /// Length of the flat vectors.
    pub fn len(&self) -> usize {
        self.grad.len()
    }

    /// Whether the model has no parameters.
    pub fn is_empty(&self) -> bool {
        self.grad.is_empty()
    }

    /// How the flat vectors are cut into buckets.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The parameters, and the gradient to be written, both whole. Before anything is handed over.
    pub fn vectors(&mut self) -> (&[f32], &mut [f32]) {
        assert_eq!(self.start, 0, "the whole vectors are only here until the first hand-over");
        self.vectors_at(0..self.len())
    }

    /// A part of the parameters and the same part of the gradient, not handed over yet.
    pub fn vectors_at(&mut self, range: Range<usize>) -> (&[f32], &mut [f32]) {
        assert!(range.start >= self.start, "{range:?} begins in what was handed over");
        // SAFETY: at and beyond the boundary all is this loan's, the only one; `&mut self` keeps it
        // from giving the same part out twice. Parameters and gradient are different memory.
        unsafe { (self.params.slice(range.clone()), self.grad.slice_mut(range)) }
    }

    /// A part of the parameters that was not handed over yet.
    pub fn params(&self, range: Range<usize>) -> &[f32] {
        assert!(range.start >= self.start, "{range:?} begins in what was handed over");
        // SAFETY: as in `vectors_at`; nobody writes parameters beyond the boundary.
        unsafe { self.params.slice(range) }
    }

    /// All elements of the gradient before `end` are final, and neither they nor the parameters
    /// there are needed any more: hands over the buckets that are complete with that, and calls
    /// `ready` with each, in order.
    pub fn hand_over(&mut self, end: usize, ready: &mut dyn FnMut(usize)) {
        while self.early
            && let Some(bucket) = self.layout.buckets.get(self.buckets)
            && bucket.range.end <= end
        {
            self.start = bucket.range.end;
            self.boundary.store(self.start, Ordering::Release);
            ready(self.buckets);
            self.buckets += 1;
        }
    }

    /// The gradient, of a loan outside any node.
    pub fn into_gradient(self) -> Vec<f32> {
        let grad = self.grad.clone();
        drop(self);
        grad.into_vec()
    }

    /// The vectors themselves, for holders outside Rust; see [`SharedVector::address`].
    pub fn shared(&self) -> (SharedVector, SharedVector) {
        (self.params.clone(), self.grad.clone())
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.boundary.store(self.grad.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loan() -> Loan {
        Loan::detached(vec![1.0, 2.0, 3.0, 4.0, 5.0], Arc::new(Layout::plain(5, 8)), 7)
    }

    #[test]
    fn buckets_are_handed_over_in_order_once_all_of_them_is_final() {
        let mut loan = loan();
        let mut ready = Vec::new();
        loan.hand_over(1, &mut |b| ready.push(b));
        assert_eq!(ready, [0; 0]);
        loan.hand_over(4, &mut |b| ready.push(b));
        assert_eq!(ready, [0, 1]);
        assert_eq!(loan.boundary.load(Ordering::Acquire), 4);
        assert_eq!(loan.vectors_at(4..5).0, [5.0]);
        loan.hand_over(5, &mut |b| ready.push(b));
        assert_eq!(ready, [0, 1, 2]);
    }

    #[test]
    fn the_end_of_a_loan_gives_everything_back() {
        let loan = loan();
        let boundary = Arc::clone(&loan.boundary);
        assert_eq!(boundary.load(Ordering::Acquire), 0);
        drop(loan);
        assert_eq!(boundary.load(Ordering::Acquire), 5);
    }

    #[test]
    #[should_panic(expected = "begins in what was handed over")]
    fn what_was_handed_over_is_out_of_reach() {
        let mut loan = loan();
        loan.hand_over(2, &mut |_| {});
        loan.params(0..1);
    }

    #[test]
    fn memory_outlives_the_node_while_a_clone_is_held() {
        let loan = loan();
        let (params, _) = loan.shared();
        drop(loan);
        // SAFETY: nobody else has it.
        assert_eq!(unsafe { params.slice(0..5) }, [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(params.into_vec(), [1.0, 2.0, 3.0, 4.0, 5.0]);
    }
}
