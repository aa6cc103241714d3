//! Weighted sums of tensors and messages, in one pass over the memory.

use std::collections::BTreeMap;
use std::ops::Range;

use pyo3::prelude::*;
use quelea_core::contract::Context;
use quelea_core::payload::Payload;
use quelea_core::vector;

use super::memory::{OwnedVector, Place};
use super::message::PyMessage;
use crate::Error;

/// A vector that is added, held while it is read.
enum Term<'py> {
    /// Of a message that Python code has not looked at: it may be shared, and is only read.
    Unseen(Payload),
    /// Of a message that Python code has looked at.
    Seen(Py<OwnedVector>),
    /// A tensor or an array.
    Tensor(Place, #[expect(dead_code, reason = "held, not read")] Bound<'py, PyAny>),
}

impl<'py> Term<'py> {
    /// The first vector of a message, or a tensor.
    fn of(rank: u32, given: &Bound<'py, PyAny>) -> PyResult<Term<'py>> {
        let Ok(message) = given.cast::<PyMessage>() else {
            return Ok(Term::Tensor(Place::of_tensor(given)?, given.clone()));
        };
        let term = message.get().first(given.py());
        term.ok_or_else(|| {
            Error::new_err(format!("cx.mix(…): the message of rank {rank} has no vector"))
        })
    }

    fn addresses(&self) -> Range<usize> {
        let (start, length) = match self {
            Term::Unseen(values) => (values.as_ptr() as usize, values.len()),
            Term::Seen(owned) => (owned.get().place().address, owned.get().place().length),
            Term::Tensor(place, _) => (place.address, place.length),
        };
        start..start + size_of::<f32>() * length
    }

    /// # Safety
    ///
    /// Nobody may write to it while the slice is used.
    unsafe fn values(&self) -> &[f32] {
        match self {
            Term::Unseen(values) => values,
            Term::Seen(owned) => owned.get().values(),
            // SAFETY: the caller promises it, and the tensor is held.
            Term::Tensor(place, _) => unsafe { place.as_mut_slice() },
        }
    }
}

impl PyMessage {
    /// Its first vector, to be read only.
    fn first<'py>(&self, py: Python<'py>) -> Option<Term<'py>> {
        self.read(py, |unseen| Term::Unseen(unseen.clone()), Term::Seen)
    }
}

/// Every vector that has a weight, in the order of ranks, and how many come before this worker's own.
pub(super) struct Mixture<'py> {
    own_weight: f32,
    place: usize,
    terms: Vec<(u32, f32, Term<'py>)>,
}

impl<'py> Mixture<'py> {
    /// Of the worker `me`; vectors of ranks without a weight are left out.
    pub(super) fn new(
        me: u32,
        weights: &BTreeMap<u32, f64>,
        vectors: &BTreeMap<u32, Bound<'py, PyAny>>,
    ) -> PyResult<Mixture<'py>> {
        let mut terms = Vec::with_capacity(weights.len());
        for (rank, weight) in weights.iter().filter(|(rank, _)| **rank != me) {
            let given = vectors.get(rank).ok_or_else(|| {
                let there: Vec<&u32> = vectors.keys().collect();
                Error::new_err(format!(
                    "cx.mix(…): rank {rank} has a weight and no vector; there are vectors of {there:?}"
                ))
            })?;
            terms.push((*rank, *weight as f32, Term::of(*rank, given)?));
        }
        let own_weight = weights.get(&me).copied().unwrap_or_default() as f32;
        let place = terms.iter().filter(|(rank, ..)| *rank < me).count();
        Ok(Mixture { own_weight, place, terms })
    }

    /// `own ← Σ_j w_j·v_j`, where this worker's own vector is `own`.
    pub(super) fn write(&self, cx: &mut Context<'_>, own: Place) -> PyResult<()> {
        let range = own.address..own.address + size_of::<f32>() * own.length;
        for (rank, _, term) in &self.terms {
            let theirs = term.addresses();
            if theirs.len() != range.len() {
                let (length, expected) = (theirs.len() / size_of::<f32>(), own.length);
                return Err(Error::new_err(format!(
                    "cx.mix(…): the vector of rank {rank} has {length} elements, and this worker's own \
                     {expected}"
                )));
            }
            if theirs.start < range.end && range.start < theirs.end {
                return Err(Error::new_err(format!(
                    "cx.mix(…): the vector of rank {rank} lies in the memory that is written: pass a clone"
                )));
            }
        }
        // SAFETY: all are held, none of them is part of the memory that is written, and Python's lock is
        // held.
        let terms = self.terms.iter().map(|(_, weight, term)| (*weight, unsafe { term.values() }));
        let terms: Vec<(f32, &[f32])> = terms.collect();
        if !terms.is_empty() {
            cx.outbox.work(size_of::<f32>() * own.length * terms.len());
        }
        // SAFETY: as above.
        vector::mix(self.own_weight, self.place, unsafe { own.as_mut_slice() }, &terms);
        Ok(())
    }
}
