//! The processes of one launch, and their collective calls outside a run.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use quelea_net::Security;
use quelea_net::launcher::{self, Launched, Rendezvous};
use quelea_net::process_group::{
    Given, GroupCall, GroupMembers, Participants, ProcessGroup, ProcessGroupError, RunUnderWay,
};

use crate::run::PyRun;
use crate::vectors::VectorAt;
use crate::{Error, uninterrupted};

/// All processes that were launched together.
#[pyclass(frozen, name = "Group", module = "quelea._core")]
pub(crate) struct PyGroup {
    assembly: Mutex<ProcessGroup>,
    launched: Launched,
    security: Security,
    members: GroupMembers,
    /// The run that a process which came late is to join, until it does.
    joinable: Mutex<Option<RunUnderWay>>,
}

/// How long the ranks may take to come to a call that has no limit of its own, in seconds.
const CALL_SECONDS: f64 = 1800.0;
/// How long the ranks may take to come to a call that makes smaller groups, and to find each other.
const SUBGROUP_LIMIT: Duration = Duration::from_secs(300);

#[pymethods]
impl PyGroup {
    /// Finds the other processes through the launcher's environment; all must be there within
    /// `seconds`. Beyond this machine, connections are encrypted with the secret in `QUELEA_SECRET` or in
    /// the file that `QUELEA_SECRET_FILE` names, unless they are to be `insecure`.
    #[new]
    #[pyo3(signature = (seconds, insecure=false))]
    fn new(py: Python<'_>, seconds: f64, insecure: bool) -> PyResult<PyGroup> {
        limit(seconds)?;
        let security = Security::from_env(|name| std::env::var(name).ok())
            .map_err(|error| Error::new_err(error.to_string()))?;
        let security = if insecure { Security::Insecure } else { security };
        let found = launcher::detect(|name| std::env::var(name).ok());
        let launched = found.map_err(|error| Error::new_err(error.to_string()))?;
        let launched = launched.unwrap_or_else(single_process);
        let assembly = py.detach(|| {
            interruptibly(&mut || false, |patience| {
                ProcessGroup::open(&launched, &security, seconds, patience)
            })
        })?;
        let (members, joinable) = (assembly.members().clone(), Mutex::new(assembly.joinable()));
        Ok(PyGroup { assembly: Mutex::new(assembly), launched, security, members, joinable })
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

    /// Whether plain connections between machines were asked for.
    #[getter]
    fn insecure(&self) -> bool {
        self.security == Security::Insecure
    }

    /// Where rank 0's machine is reached from here; at rank 0, the address that it listens on.
    #[getter]
    fn hub_address(&self) -> String {
        self.assembly().address().to_string()
    }

    /// Whether the others are in a run, which this process is to join.
    #[getter]
    fn is_late(&self) -> bool {
        self.joinable().is_some()
    }

    /// Waits until all ranks have called it, for `seconds` at most; raises if `run` ends before.
    #[pyo3(signature = (run=None, seconds=CALL_SECONDS))]
    fn barrier(&self, py: Python<'_>, run: Option<&PyRun>, seconds: f64) -> PyResult<()> {
        let participants = run.map_or(Participants::Remaining, PyRun::participants);
        let call = GroupCall { what: "barrier()", limit: limit(seconds)?, participants };
        self.within(py, call, Vec::new(), run, |_| Ok(Vec::new())).map(|_| ())
    }

    /// Raises if the lines are not the same at all ranks, and names the first that differs.
    fn agree(&self, py: Python<'_>, what: &str, lines: Vec<String>) -> PyResult<()> {
        let mine = lines.join("\n").into_bytes();
        self.together(py, what, mine, None, |all| compare(&all)).map(|_| ())
    }

    /// The bytes that rank 0 passed.
    fn broadcast(&self, py: Python<'_>, what: &str, mine: Vec<u8>) -> PyResult<Vec<u8>> {
        self.together(py, what, mine, None, first)
    }

    /// The bytes that every rank passed, by rank.
    fn gather(&self, py: Python<'_>, what: &str, mine: Vec<u8>) -> PyResult<Vec<Vec<u8>>> {
        if self.is_late() {
            let text = format!(
                "{what} needs processes that were started together, and this one came late"
            );
            return Err(Error::new_err(text));
        }
        let joined = self.together(py, what, mine, None, |all| {
            let framed = all.iter().flat_map(|given| {
                let length = (given.bytes.len() as u64).to_le_bytes();
                length.into_iter().chain(given.bytes.iter().copied())
            });
            Ok(framed.collect())
        })?;
        split(&joined)
            .ok_or_else(|| Error::new_err(format!("rank 0's answer to {what} is cut off")))
    }

    /// The ranks `members` of this group as a group of their own, numbered by their places in the list. All
    /// ranks of this group call it together, each with the list that it is in.
    fn subgroup(&self, py: Python<'_>, what: &str, members: Vec<u32>) -> PyResult<PyGroup> {
        let call = GroupCall { what, limit: SUBGROUP_LIMIT, participants: Participants::All };
        let assembly = py.detach(|| {
            interruptibly(&mut || false, |patience| {
                self.assembly().subgroup(call, &members, &self.security, patience)
            })
        })?;
        let rank = members.iter().position(|member| *member == self.launched.rank);
        let rank = rank.ok_or_else(|| Error::new_err("this rank is not one of the members"))?;
        let (rank, world) = (rank as u32, members.len() as u32);
        let launched = Launched { rank, world, ..self.launched.clone() };
        let members = assembly.members().clone();
        Ok(PyGroup {
            assembly: Mutex::new(assembly),
            launched,
            security: self.security.clone(),
            members,
            joinable: Mutex::new(None),
        })
    }

    /// Replaces the vector by rank 0's.
    fn broadcast_vector(&self, py: Python<'_>, what: &str, vector: VectorAt) -> PyResult<()> {
        // SAFETY: the package passes the address of a tensor that it holds during the call.
        let values = unsafe { vector.as_mut_slice() };
        let mine = if self.launched.rank == 0 { bytes(values) } else { Vec::new() };
        copy_back(&self.together(py, what, mine, None, first)?, values)
    }

    /// Replaces the vector by the mean over all ranks; raises if `run` ends before.
    fn mean(&self, py: Python<'_>, what: &str, vector: VectorAt, run: &PyRun) -> PyResult<()> {
        // SAFETY: as above.
        let values = unsafe { vector.as_mut_slice() };
        let answer = self.together(py, what, bytes(values), Some(run), |all| mean_of(&all))?;
        copy_back(&answer, values)
    }
}

impl PyGroup {
    fn joinable(&self) -> MutexGuard<'_, Option<RunUnderWay>> {
        self.joinable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run that this process joins now, if it came late.
    pub(crate) fn take_joinable(&self) -> Option<RunUnderWay> {
        self.joinable().take()
    }

    /// Who takes part, as rank 0 knows.
    pub(crate) fn members(&self) -> &GroupMembers {
        &self.members
    }

    pub(crate) fn launched(&self) -> &Launched {
        &self.launched
    }

    pub(crate) fn assembly(&self) -> MutexGuard<'_, ProcessGroup> {
        self.assembly.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether connections of this group's runs are encrypted, and with which secret.
    pub(crate) fn security(&self) -> Security {
        self.security.clone()
    }

    /// What `fold` makes of the bytes of all ranks; an error if `run` ends before they are here.
    pub(crate) fn together(
        &self,
        py: Python<'_>,
        what: &str,
        mine: Vec<u8>,
        run: Option<&PyRun>,
        fold: impl FnOnce(Vec<Given>) -> Result<Vec<u8>, String> + Send,
    ) -> PyResult<Vec<u8>> {
        let participants = run.map_or(Participants::All, PyRun::participants);
        let limit = Duration::from_secs_f64(CALL_SECONDS);
        self.within(py, GroupCall { what, limit, participants }, mine, run, fold)
    }

    /// As [`together`](PyGroup::together), within the time limit of `call`.
    fn within(
        &self,
        py: Python<'_>,
        call: GroupCall<'_>,
        mine: Vec<u8>,
        run: Option<&PyRun>,
        fold: impl FnOnce(Vec<Given>) -> Result<Vec<u8>, String> + Send,
    ) -> PyResult<Vec<u8>> {
        // The others made the calls that come before its first step when they were there.
        if self.is_late() || run.is_some_and(PyRun::has_just_joined) {
            let own = Given { rank: self.launched.rank, bytes: mine };
            return fold(vec![own]).map_err(Error::new_err);
        }
        let gather = |is_there| run.into_iter().for_each(|run| run.gather(is_there));
        gather(true);
        let found = py.detach(|| {
            let mut over = || run.is_some_and(PyRun::is_over);
            interruptibly(&mut over, |patience| {
                self.assembly().together(call, mine, fold, patience)
            })
        });
        gather(false);
        match run {
            Some(run) if found.is_err() && run.is_over() => Err(run.failure(py)),
            _ => found,
        }
    }
}

/// A time limit that was given in Python.
fn limit(seconds: f64) -> PyResult<Duration> {
    if seconds > 0.0 && seconds < 1e9 {
        return Ok(Duration::from_secs_f64(seconds));
    }
    let text = format!("timeout = {seconds}: must be a number of seconds above 0");
    Err(PyValueError::new_err(text))
}

/// A process without a launcher is a group of one.
fn single_process() -> Launched {
    Launched {
        rank: 0,
        world: 1,
        rendezvous: Rendezvous::Address("127.0.0.1:0".into()),
        local_rank: None,
        local_size: None,
        launcher: "nobody",
    }
}

/// Does `work` until it is done, Python is interrupted, or the run is `over`.
fn interruptibly<T>(
    over: &mut dyn FnMut() -> bool,
    work: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T, ProcessGroupError>,
) -> PyResult<T> {
    let mut raised = None;
    let done = work(&mut || uninterrupted(&mut raised) && !over());
    done.map_err(|error| raised.unwrap_or_else(|| Error::new_err(error.to_string())))
}

/// Copies a vector that came as bytes into `values`.
fn copy_back(answer: &[u8], values: &mut [f32]) -> PyResult<()> {
    if answer.len() != 4 * values.len() {
        return Err(Error::new_err(format!(
            "rank 0 sent a vector of {} elements, this rank has {}",
            answer.len() / 4,
            values.len()
        )));
    }
    bytemuck::cast_slice_mut(values).copy_from_slice(answer);
    Ok(())
}

/// What `gather` has joined.
fn split(mut joined: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut parts = Vec::new();
    while let Some((length, rest)) = joined.split_first_chunk() {
        let (part, rest) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
        parts.push(part.to_vec());
        joined = rest;
    }
    joined.is_empty().then_some(parts)
}

fn bytes(values: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// What rank 0 passed.
pub(crate) fn first(mut all: Vec<Given>) -> Result<Vec<u8>, String> {
    Ok(all.swap_remove(0).bytes)
}

fn compare(all: &[Given]) -> Result<Vec<u8>, String> {
    let first = String::from_utf8_lossy(&all[0].bytes);
    for Given { rank, bytes } in &all[1..] {
        if let Some([a, b]) = difference(&first, &String::from_utf8_lossy(bytes)) {
            return Err(format!("the ranks disagree: rank 0 has {a}, rank {rank} has {b}"));
        }
    }
    Ok(Vec::new())
}

/// The first lines in which two texts differ.
pub(crate) fn difference(one: &str, other: &str) -> Option<[String; 2]> {
    let (mut ours, mut theirs) = (one.lines(), other.lines());
    loop {
        match (ours.next(), theirs.next()) {
            (None, None) => return None,
            (a, b) if a == b => {}
            (a, b) => return Some([a, b].map(|line| line.unwrap_or("nothing more").to_string())),
        }
    }
}

/// The mean in the order of ranks.
fn mean_of(all: &[Given]) -> Result<Vec<u8>, String> {
    let length = all[0].bytes.len();
    let mut sum: Vec<f64> = vec![0.0; length / 4];
    for Given { rank, bytes } in all {
        if bytes.len() != length {
            return Err(format!("rank {rank} passed a vector of another length than rank 0"));
        }
        for (sum, value) in sum.iter_mut().zip(bytes.chunks_exact(4)) {
            *sum += f64::from(f32::from_ne_bytes(value.try_into().expect("four bytes")));
        }
    }
    let mean = sum.iter().map(|sum| (sum / all.len() as f64) as f32);
    Ok(bytemuck::cast_slice(&mean.collect::<Vec<f32>>()).to_vec())
}
