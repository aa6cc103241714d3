//! The state of the script's optimizer, as far as algorithms look at it.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quelea_core::node::MakeOptimizer;
use quelea_core::optim::{At, Optimizer};

/// What the vectors of an optimizer's state are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// How many there are.
    pub(crate) vectors: usize,
    /// Whether the first is the velocity of momentum.
    pub(crate) velocity: bool,
}

/// Where the vectors are, and those that are not in use any more: tensors may still look at them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    addresses: Vec<usize>,
    kept: Vec<Vec<f32>>,
}

impl Store {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Addresses of the vectors of the rank, once it has begun.
    pub(crate) fn addresses(&self) -> Vec<usize> {
        self.inner().addresses.clone()
    }

    /// Makes the state of the rank, whose model has `dimensions` elements.
    pub(crate) fn maker(&self, shape: Shape, dimensions: usize) -> MakeOptimizer {
        let store = self.clone();
        Arc::new(move |len| {
            let mut vectors = vec![vec![0.0; len]; shape.vectors];
            let mut inner = store.inner();
            if len == dimensions && inner.addresses.is_empty() {
                inner.addresses =
                    vectors.iter_mut().map(|vector| vector.as_mut_ptr() as usize).collect();
            }
            let velocity = shape.velocity && len > 0;
            Box::new(State { vectors, velocity, store: store.clone() })
        })
    }
}

struct State {
    vectors: Vec<Vec<f32>>,
    velocity: bool,
    store: Store,
}

impl Optimizer for State {
    fn apply(&mut self, _: At, _: Range<usize>, _: &mut [f32], _: &mut [f32]) {
        unreachable!("the script runs its own optimizer")
    }

    fn displace(&mut self, _: At, _: Range<usize>, _: &[f32], _: &mut [f32]) {
        unreachable!("the script runs its own optimizer")
    }

    fn vectors(&mut self) -> Vec<&mut Vec<f32>> {
        self.vectors.iter_mut().collect()
    }

    fn velocity(&mut self) -> Option<&mut [f32]> {
        self.vectors.first_mut().filter(|_| self.velocity).map(Vec::as_mut_slice)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.store.inner().kept.append(&mut self.vectors);
    }
}
