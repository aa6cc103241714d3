//! WindowTable: tensors that other ranks write to, add to and read while their owner computes.
//!
//! A window has the owner's own tensor, which others may get, and one tensor per other rank,
//! which that rank puts or accumulates into. The owner combines them when it likes. A request is
//! complete when the other rank's thread has carried it out, so after a barrier that follows it
//! everybody sees it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::reduction::{ElementType, Reducer, Reduction};

/// All windows of one rank, by number.
#[derive(Debug, Default)]
pub struct WindowTable(Mutex<BTreeMap<u64, Window>>);

/// One window of one rank.
#[derive(Debug)]
struct Window {
    reducer: Reducer,
    own: Vec<u8>,
    /// What others have put, by rank.
    from: BTreeMap<usize, Vec<u8>>,
}

/// A request to the window of another rank.
#[derive(Clone, Debug)]
pub enum WindowRequest {
    /// Replace what the other rank has of mine.
    Put(Vec<u8>),
    /// Add to what the other rank has of mine.
    Accumulate(Vec<u8>),
    /// Replace what I have of the other rank by its own tensor.
    Get,
}

impl WindowTable {
    /// Makes a window whose tensors all have this value at first.
    pub fn create(
        &self,
        number: u64,
        element: ElementType,
        own: Vec<u8>,
        from: BTreeMap<usize, Vec<u8>>,
    ) -> Result<(), String> {
        let reducer = Reducer::new(element, Reduction::Sum)?;
        self.all().insert(number, Window { reducer, own, from });
        Ok(())
    }

    /// Forgets a window.
    pub fn free(&self, number: u64) {
        self.all().remove(&number);
    }

    /// Replaces the tensor that others get.
    pub fn publish(&self, number: u64, own: &[u8]) -> Result<(), String> {
        self.with(number, |window| {
            same_length(window.own.len(), own.len())?;
            window.own.copy_from_slice(own);
            Ok(())
        })
    }

    /// Copies what rank `from` has put into `out`; afterwards it is zero if `reset`.
    pub fn take(
        &self,
        number: u64,
        from: usize,
        out: &mut [u8],
        reset: bool,
    ) -> Result<(), String> {
        self.with(number, |window| {
            let tensor = tensor_of(window, from)?;
            same_length(tensor.len(), out.len())?;
            out.copy_from_slice(tensor);
            if reset {
                tensor.fill(0);
            }
            Ok(())
        })
    }

    /// Rank `from` has put a tensor, or adds it.
    pub(super) fn receive(
        &self,
        number: u64,
        from: usize,
        tensor: &[u8],
        adds: bool,
    ) -> Result<(), String> {
        self.with(number, |window| {
            let reducer = window.reducer;
            let into = tensor_of(window, from)?;
            same_length(into.len(), tensor.len())?;
            if adds {
                reducer.combine(into, tensor);
            } else {
                into.copy_from_slice(tensor);
            }
            Ok(())
        })
    }

    /// Whether a tensor of so many bytes can be one of this window.
    pub(super) fn check_length(&self, number: u64, bytes: u64) -> Result<(), String> {
        self.with(number, |window| {
            let lengths = window.from.values().map(Vec::len).chain([window.own.len()]);
            let longest = lengths.max().unwrap_or(0);
            if bytes <= longest as u64 {
                return Ok(());
            }
            same_length(longest, usize::try_from(bytes).unwrap_or(usize::MAX))
        })
    }

    /// The tensor that others get.
    pub(super) fn own(&self, number: u64) -> Result<Vec<u8>, String> {
        self.with(number, |window| Ok(window.own.clone()))
    }

    fn with<T>(
        &self,
        number: u64,
        work: impl FnOnce(&mut Window) -> Result<T, String>,
    ) -> Result<T, String> {
        let mut all = self.all();
        let window = all.get_mut(&number).ok_or("the window was freed, or never created there")?;
        work(window)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Window>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tensor_of(window: &mut Window, from: usize) -> Result<&mut Vec<u8>, String> {
    let tensor = window.from.get_mut(&from);
    tensor.ok_or_else(|| "the two ranks are not neighbours in the topology of the window".into())
}

fn same_length(here: usize, there: usize) -> Result<(), String> {
    if here == there {
        return Ok(());
    }
    Err(format!("the window has {here} bytes, the tensor {there}: they must be alike at all ranks"))
}
