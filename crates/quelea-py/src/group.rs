//! The processes of one launch, and what they do together outside a run.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use quelea_net::launcher::{self, Launched, Rendezvous};
use quelea_net::process_group::{ProcessGroup, ProcessGroupError};

use crate::run::Run;
use crate::{Error, undisturbed};

/// All processes that were launched together.
#[pyclass(frozen, module = "quelea._core")]
pub(crate) struct Group {
    assembly: Mutex<ProcessGroup>,
    launched: Launched,
}

#[pymethods]
impl Group {
    /// Finds the others, as the launcher's environment says, within so many seconds.
    #[new]
    fn new(py: Python<'_>, seconds: f64) -> PyResult<Group> {
        if !(seconds > 0.0 && seconds < 1e9) {
            return Err(PyValueError::new_err(format!(
                "timeout = {seconds}: must be a number of seconds above 0"
            )));
        }
        let found = launcher::detect(|name| std::env::var(name).ok());
        let launched = found.map_err(|error| Error::new_err(error.to_string()))?;
        let launched = launched.unwrap_or_else(alone);
        let assembly = py.detach(|| {
            with_patience(&mut || false, |patience| {
                ProcessGroup::open(&launched, seconds, patience)
            })
        })?;
        Ok(Group { assembly: Mutex::new(assembly), launched })
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.launched.rank
    }

    #[getter]
    fn world_size(&self) -> u32 {
        self.launched.world
    }

    #[getter]
    fn local_rank(&self) -> u32 {
        self.launched.local_rank.unwrap_or(0)
    }

    /// Waits until all ranks are here; not if `run` ends before.
    #[pyo3(signature = (run=None))]
    fn barrier(&self, py: Python<'_>, run: Option<&Run>) -> PyResult<()> {
        self.together(py, "barrier()", Vec::new(), run, |_| Ok(Vec::new())).map(|_| ())
    }

    /// Refuses lines that are not the same at all ranks, naming the first that differs.
    fn agree(&self, py: Python<'_>, what: &str, lines: Vec<String>) -> PyResult<()> {
        let mine = lines.join("\n").into_bytes();
        self.together(py, what, mine, None, |all| compare(&all)).map(|_| ())
    }

    /// The bytes that rank 0 gave.
    fn broadcast(&self, py: Python<'_>, what: &str, mine: Vec<u8>) -> PyResult<Vec<u8>> {
        self.together(py, what, mine, None, |mut all| Ok(all.swap_remove(0)))
    }

    /// Rank 0's vector for everybody: `len` numbers at `address`.
    fn broadcast_vector(
        &self,
        py: Python<'_>,
        what: &str,
        address: usize,
        len: usize,
    ) -> PyResult<()> {
        let first = |mut all: Vec<Vec<u8>>| Ok(all.swap_remove(0));
        // SAFETY: the package gives the address of a tensor that it holds during the call.
        let values = unsafe { vector(address, len) };
        let mine = if self.launched.rank == 0 { bytes(values) } else { Vec::new() };
        self.put(self.together(py, what, mine, None, first)?, values)
    }

    /// Replaces the vector by the mean over all ranks: `len` numbers at `address`; not if `run` ends
    /// before.
    fn mean(
        &self,
        py: Python<'_>,
        what: &str,
        address: usize,
        len: usize,
        run: &Run,
    ) -> PyResult<()> {
        // SAFETY: as above.
        let values = unsafe { vector(address, len) };
        let answer = self.together(py, what, bytes(values), Some(run), |all| mean_of(&all))?;
        self.put(answer, values)
    }
}

impl Group {
    pub(crate) fn launched(&self) -> &Launched {
        &self.launched
    }

    pub(crate) fn assembly(&self) -> MutexGuard<'_, ProcessGroup> {
        self.assembly.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `fold` makes of the words of all ranks; an error if `run` ends before they are here.
    pub(crate) fn together(
        &self,
        py: Python<'_>,
        what: &str,
        mine: Vec<u8>,
        run: Option<&Run>,
        fold: impl FnOnce(Vec<Vec<u8>>) -> Result<Vec<u8>, String> + Send,
    ) -> PyResult<Vec<u8>> {
        let gather = |is_there| run.into_iter().for_each(|run| run.gather(is_there));
        gather(true);
        let found = py.detach(|| {
            let mut over = || run.is_some_and(Run::is_over);
            with_patience(&mut over, |patience| {
                self.assembly().together(what, mine, fold, patience)
            })
        });
        gather(false);
        match run {
            Some(run) if found.is_err() && run.is_over() => Err(run.why(py)),
            _ => found,
        }
    }

    fn put(&self, answer: Vec<u8>, values: &mut [f32]) -> PyResult<()> {
        if answer.len() != 4 * values.len() {
            return Err(Error::new_err("rank 0 answered with a vector of another length"));
        }
        bytemuck::cast_slice_mut(values).copy_from_slice(&answer);
        Ok(())
    }
}

/// A process that was not launched by anybody is a group of one.
fn alone() -> Launched {
    Launched {
        rank: 0,
        world: 1,
        rendezvous: Rendezvous::Address("127.0.0.1:0".into()),
        local_rank: None,
        local_size: None,
        launcher: "nobody",
    }
}

/// Does `work` until somebody interrupts, or it is `over`.
fn with_patience<T>(
    over: &mut dyn FnMut() -> bool,
    work: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T, ProcessGroupError>,
) -> PyResult<T> {
    let mut raised = None;
    let done = work(&mut || undisturbed(&mut raised) && !over());
    done.map_err(|error| raised.unwrap_or_else(|| Error::new_err(error.to_string())))
}

unsafe fn vector<'a>(address: usize, len: usize) -> &'a mut [f32] {
    match len {
        0 => &mut [],
        // SAFETY: the caller holds `len` numbers at this address.
        _ => unsafe { std::slice::from_raw_parts_mut(address as *mut f32, len) },
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

fn compare(all: &[Vec<u8>]) -> Result<Vec<u8>, String> {
    let first = String::from_utf8_lossy(&all[0]);
    for (rank, other) in all.iter().enumerate().skip(1) {
        let other = String::from_utf8_lossy(other);
        let (mut ours, mut theirs) = (first.lines(), other.lines());
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => break,
                (a, b) if a == b => {}
                (a, b) => {
                    let (a, b) = (a.unwrap_or("nothing more"), b.unwrap_or("nothing more"));
                    return Err(format!(
                        "the ranks do not fit together: rank 0 has {a}, rank {rank} has {b}"
                    ));
                }
            }
        }
    }
    Ok(Vec::new())
}

/// The mean in the order of ranks.
fn mean_of(all: &[Vec<u8>]) -> Result<Vec<u8>, String> {
    let mut sum: Vec<f64> = vec![0.0; all[0].len() / 4];
    for (rank, vector) in all.iter().enumerate() {
        if vector.len() != all[0].len() {
            return Err(format!("rank {rank} gave a vector of another length than rank 0"));
        }
        for (sum, value) in sum.iter_mut().zip(vector.chunks_exact(4)) {
            *sum += f64::from(f32::from_ne_bytes(value.try_into().expect("four bytes")));
        }
    }
    let mean = sum.iter().map(|sum| (sum / all.len() as f64) as f32);
    Ok(bytemuck::cast_slice(&mean.collect::<Vec<f32>>()).to_vec())
}
