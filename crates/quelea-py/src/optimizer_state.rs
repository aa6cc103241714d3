//! The state of the script's optimizer, as far as algorithms read or change it.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quelea_core::optim::{At, Optimizer};
use quelea_core::run_spec::MakeOptimizer;

/// What the vectors of an optimizer's state are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateLayout {
    /// How many there are.
    pub(crate) vectors: usize,
    /// Whether the first is the velocity of momentum.
    pub(crate) has_velocity: bool,
}

/// Where the vectors are, and those that are no longer in use: tensors may still look at them.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateVectors {
    inner: Arc<Mutex<StateMemory>>,
}

#[derive(Debug, Default)]
struct StateMemory {
    addresses: Vec<usize>,
    kept: Vec<Vec<f32>>,
}

impl StateVectors {
    fn inner(&self) -> MutexGuard<'_, StateMemory> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Addresses of the rank's vectors, once it has started.
    pub(crate) fn addresses(&self) -> Vec<usize> {
        self.inner().addresses.clone()
    }

    /// Makes the state of the rank, whose model has `dimensions` elements.
    pub(crate) fn maker(&self, layout: StateLayout, dimensions: usize) -> MakeOptimizer {
        let store = self.clone();
        Arc::new(move |len| {
            let mut vectors = vec![vec![0.0; len]; layout.vectors];
            let mut inner = store.inner();
            if len == dimensions && inner.addresses.is_empty() {
                inner.addresses =
                    vectors.iter_mut().map(|vector| vector.as_mut_ptr() as usize).collect();
            }
            let has_velocity = layout.has_velocity && len > 0;
            Box::new(ScriptOptimizer { vectors, has_velocity, store: store.clone() })
        })
    }
}

/// Stands for the optimizer of the script: its state is here, its steps are not.
struct ScriptOptimizer {
    vectors: Vec<Vec<f32>>,
    has_velocity: bool,
    store: StateVectors,
}

impl Optimizer for ScriptOptimizer {
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
        self.vectors.first_mut().filter(|_| self.has_velocity).map(Vec::as_mut_slice)
    }
}

impl Drop for ScriptOptimizer {
    fn drop(&mut self) {
        let mut store = self.store.inner();
        let is_known = |vector: &Vec<f32>| store.addresses.contains(&(vector.as_ptr() as usize));
        if self.vectors.iter().any(is_known) {
            store.kept.append(&mut self.vectors);
        }
    }
}
