//! Collective calls on tensors, for the backend of `torch.distributed` in `quelea.c10d`.
//!
//! A tensor is an address and a number of bytes; `lender` is what keeps it alive.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use quelea_net::tensor_group::{
    ElementType, Listener, Operation, OwnResult, PeerTensor, Peers, Pending, Reach, Reducer,
    Reduction, TensorCall, TensorGroup, TensorMemory, WindowRequest,
};

use crate::run::start::asked_transport;
use crate::{Error, uninterrupted};

/// Where a tensor lies in memory.
#[pyclass(frozen, from_py_object, module = "quelea._core")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorAt {
    address: usize,
    bytes: usize,
}

#[pymethods]
impl TensorAt {
    #[new]
    fn new(address: usize, bytes: usize) -> TensorAt {
        TensorAt { address, bytes }
    }
}

impl TensorAt {
    /// A copy of the bytes.
    fn copied(self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        if self.bytes > 0 {
            // SAFETY: the package passes the address of a tensor that it holds during the call.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    self.address as *const u8,
                    bytes.as_mut_ptr(),
                    self.bytes,
                );
            }
        }
        bytes
    }

    /// Replaces the bytes by as many others.
    fn write(self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.bytes, "as many bytes as the tensor has");
        if self.bytes > 0 {
            // SAFETY: as above.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address as *mut u8, self.bytes);
            }
        }
    }

    fn lent(self) -> TensorMemory {
        // SAFETY: the package holds the tensor until the operation is complete, by `lender`.
        unsafe { TensorMemory::new(self.address, self.bytes) }
    }
}

/// A socket that waits for the other ranks of a group.
#[pyclass(frozen, name = "TensorListener", module = "quelea._core")]
pub(crate) struct PyListener(Mutex<Option<Listener>>);

#[pymethods]
impl PyListener {
    /// Listens on loopback; with `insecure`, on all addresses of this machine.
    #[new]
    #[pyo3(signature = (insecure=false))]
    fn new(insecure: bool) -> PyResult<PyListener> {
        let bound = Listener::bind(if insecure { Reach::Network } else { Reach::Loopback });
        let bound = bound.map_err(|error| Error::new_err(format!("cannot listen: {error}")))?;
        Ok(PyListener(Mutex::new(Some(bound.over(asked_transport()?)))))
    }

    /// Its port; 0 once a group has it.
    #[getter]
    fn port(&self) -> u16 {
        let listener = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listener.as_ref().map_or(0, Listener::port)
    }

    /// Whether it is reached from this machine only.
    #[getter]
    fn is_local(&self) -> bool {
        let listener = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listener.as_ref().is_none_or(|listener| listener.reach() == Reach::Loopback)
    }

    /// The address of this machine on the way to `host`.
    #[staticmethod]
    fn address_towards(host: &str) -> Option<String> {
        Listener::address_towards(host).map(|address| address.to_string())
    }
}

/// One rank of a group of processes that call collectives on tensors.
#[pyclass(frozen, name = "TensorGroup", module = "quelea._core")]
pub(crate) struct PyTensorGroup(TensorGroup);

#[pymethods]
impl PyTensorGroup {
    /// Connects to all ranks at their addresses. `names` are the ranks that errors name.
    #[new]
    fn new(
        py: Python<'_>,
        listener: &PyListener,
        rank: usize,
        addresses: Vec<Vec<String>>,
        token: [u8; 16],
        names: Vec<u32>,
        seconds: f64,
    ) -> PyResult<PyTensorGroup> {
        let listener = listener.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let listener = listener.ok_or_else(|| Error::new_err("the listener is used already"))?;
        if rank >= addresses.len() || names.len() != addresses.len() {
            return Err(PyValueError::new_err("rank, addresses and names do not fit together"));
        }
        let peers = Peers { rank, addresses, token };
        let limit = duration(seconds)?;
        let group = py.detach(|| TensorGroup::connect(listener, &peers, names, limit));
        Ok(PyTensorGroup(group.map_err(Error::new_err)?))
    }

    /// Every rank's tensor becomes the reduction over all.
    fn all_reduce(
        &self,
        tensor: TensorAt,
        element: &str,
        reduction: &str,
        seconds: f64,
        lender: Py<PyAny>,
    ) -> PyResult<PyPending> {
        let reducer = reducer(element, reduction)?;
        self.submit(Operation::AllReduce { memory: tensor.lent(), reducer }, seconds, lender)
    }

    /// Tensors go to other ranks; `own` is reduced into `result` with what comes from all others.
    #[allow(clippy::too_many_arguments, reason = "a call of Python")]
    fn reduce_to(
        &self,
        call: &str,
        sends: Vec<(usize, TensorAt)>,
        own: Option<TensorAt>,
        result: Option<TensorAt>,
        element: &str,
        reduction: &str,
        seconds: f64,
        lender: Py<PyAny>,
    ) -> PyResult<PyPending> {
        let result = own.zip(result).map(|(own, result)| (own.lent(), result.lent()));
        let result = result.map(|(own, result)| OwnResult { own, result });
        if result.is_some_and(|both| both.own.bytes() != both.result.bytes()) {
            return Err(PyValueError::new_err("the result must be as large as each part"));
        }
        let (call, sends, reducer) = (named(call)?, parts(sends), reducer(element, reduction)?);
        self.submit(Operation::ReduceTo { call, sends, result, reducer }, seconds, lender)
    }

    /// The tensor of `root` goes to all.
    fn broadcast(
        &self,
        tensor: TensorAt,
        root: usize,
        seconds: f64,
        lender: Py<PyAny>,
    ) -> PyResult<PyPending> {
        self.submit(Operation::Broadcast { memory: tensor.lent(), root }, seconds, lender)
    }

    /// Tensors go to other ranks, come from them, and are copied here.
    fn exchange(
        &self,
        call: &str,
        sends: Vec<(usize, TensorAt)>,
        receives: Vec<(usize, TensorAt)>,
        copies: Vec<(TensorAt, TensorAt)>,
        seconds: f64,
        lender: Py<PyAny>,
    ) -> PyResult<PyPending> {
        if copies.iter().any(|(from, to)| from.bytes != to.bytes) {
            return Err(PyValueError::new_err("tensors that are copied must have the same size"));
        }
        let copies = copies.into_iter().map(|(from, to)| (from.lent(), to.lent())).collect();
        let (sends, receives) = (parts(sends), parts(receives));
        let operation = Operation::Exchange { call: named(call)?, sends, receives, copies };
        self.submit(operation, seconds, lender)
    }

    /// All wait for all.
    fn barrier(&self, py: Python<'_>, seconds: f64) -> PyResult<PyPending> {
        self.submit(Operation::Barrier, seconds, py.None())
    }

    /// One tensor to one rank.
    fn send(
        &self,
        to: usize,
        tensor: TensorAt,
        tag: u32,
        seconds: f64,
        lender: Py<PyAny>,
    ) -> PyResult<PyPending> {
        let part = PeerTensor { peer: to, memory: tensor.lent() };
        self.submit(Operation::Send { part, tag }, seconds, lender)
    }

    /// Receives one tensor from one rank, or from the first rank that sends.
    fn receive(
        &self,
        source: Option<usize>,
        tensor: TensorAt,
        tag: u32,
        seconds: f64,
        lender: Py<PyAny>,
    ) -> PyResult<PyPending> {
        let memory = tensor.lent();
        self.submit(Operation::Receive { from: source, memory, tag }, seconds, lender)
    }

    /// Makes window `number`, with a tensor for each of these ranks: zero or `own` at first.
    fn window_create(
        &self,
        number: u64,
        element: &str,
        own: TensorAt,
        neighbors: Vec<usize>,
        zero: bool,
    ) -> PyResult<()> {
        let own = own.copied();
        let each = |peer| (peer, if zero { vec![0; own.len()] } else { own.clone() });
        let from = neighbors.into_iter().map(each).collect();
        let created = self.0.windows().create(number, element_type(element)?, own, from);
        created.map_err(Error::new_err)
    }

    /// Forgets a window.
    fn window_free(&self, number: u64) {
        self.0.windows().free(number);
    }

    /// Replaces the tensor of a window that others get.
    fn window_publish(&self, number: u64, own: TensorAt) -> PyResult<()> {
        self.0.windows().publish(number, &own.copied()).map_err(Error::new_err)
    }

    /// Copies what rank `source` has put into `out`; afterwards it is zero if `reset`.
    fn window_take(&self, number: u64, source: usize, out: TensorAt, reset: bool) -> PyResult<()> {
        let mut bytes = vec![0; out.bytes];
        self.0.windows().take(number, source, &mut bytes, reset).map_err(Error::new_err)?;
        out.write(&bytes);
        Ok(())
    }

    /// Asks rank `peer` to `put` or `accumulate` a tensor into its window, or to let it `get` one.
    fn window_request(
        &self,
        py: Python<'_>,
        kind: &str,
        peer: usize,
        number: u64,
        tensor: Option<TensorAt>,
        seconds: f64,
    ) -> PyResult<PyPending> {
        let request = match (kind, tensor) {
            ("put", Some(tensor)) => WindowRequest::Put(tensor.copied()),
            ("accumulate", Some(tensor)) => WindowRequest::Accumulate(tensor.copied()),
            ("get", None) => WindowRequest::Get,
            _ => return Err(PyValueError::new_err(format!("no request `{kind}` to a window"))),
        };
        self.submit(Operation::Window { peer, window: number, request }, seconds, py.None())
    }

    /// Fails everything that is pending and everything to come, at all ranks.
    fn abort(&self, reason: &str) {
        self.0.abort(reason);
    }

    /// Fails everything that is pending and everything to come, here only.
    fn abandon(&self, reason: &str) {
        self.0.abandon(reason);
    }

    /// Takes leave after everything that is pending; waits for so many seconds at most.
    fn leave(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let limit = duration(seconds)?;
        py.detach(|| self.0.leave(limit));
        Ok(())
    }
}

impl PyTensorGroup {
    fn submit(&self, operation: Operation, seconds: f64, lender: Py<PyAny>) -> PyResult<PyPending> {
        Ok(PyPending(self.0.submit(operation, duration(seconds)?, Box::new(lender))))
    }
}

/// An operation that runs or has ended.
#[pyclass(frozen, name = "PendingCall", module = "quelea._core")]
pub(crate) struct PyPending(Arc<Pending>);

#[pymethods]
impl PyPending {
    /// Waits for the end, for at most so many seconds, and raises what went wrong. Returns the
    /// rank that a receive has received from.
    fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<usize>> {
        let limit = seconds.map(duration).transpose()?;
        let mut raised = None;
        let outcome = py.detach(|| self.0.wait(limit, &mut || uninterrupted(&mut raised)));
        match outcome {
            Some(Ok(outcome)) => Ok(outcome.source),
            Some(Err(reason)) => Err(Error::new_err(reason)),
            None => Err(raised
                .unwrap_or_else(|| Error::new_err("timed out: the operation has not ended yet"))),
        }
    }

    /// Whether it has ended, well or not.
    #[getter]
    fn is_done(&self) -> bool {
        self.0.outcome().is_some()
    }
}

/// The element types and reductions that are supported, by PyTorch's names.
#[pyfunction]
pub(crate) fn tensor_types() -> (Vec<&'static str>, Vec<&'static str>) {
    (
        ElementType::ALL.iter().map(|(name, _)| *name).collect(),
        Reduction::ALL.iter().map(|(name, _)| *name).collect(),
    )
}

fn parts(given: Vec<(usize, TensorAt)>) -> Vec<PeerTensor> {
    given.into_iter().map(|(peer, tensor)| PeerTensor { peer, memory: tensor.lent() }).collect()
}

fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds.min(1e9))
        .map_err(|_| PyValueError::new_err(format!("{seconds} is no time limit in seconds")))
}

fn named(call: &str) -> PyResult<TensorCall> {
    let found = TensorCall::ALL.iter().find(|(_, name)| *name == call);
    found.map(|(call, _)| *call).ok_or_else(|| PyValueError::new_err(format!("no call `{call}`")))
}

fn element_type(element: &str) -> PyResult<ElementType> {
    let found = ElementType::ALL.iter().find(|(name, _)| *name == element).ok_or_else(|| {
        let names: Vec<_> = ElementType::ALL.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        PyValueError::new_err(format!("tensors of {element} cannot be reduced, only of {names}"))
    });
    found.map(|(_, element)| *element)
}

fn reducer(element: &str, reduction: &str) -> PyResult<Reducer> {
    let element = element_type(element)?;
    let reduction =
        Reduction::ALL.iter().find(|(name, _)| *name == reduction).ok_or_else(|| {
            let names: Vec<_> = Reduction::ALL.iter().map(|(name, _)| *name).collect();
            let names = names.join(", ");
            PyValueError::new_err(format!(
                "the reduction {reduction} is not supported, only {names}"
            ))
        })?;
    Reducer::new(element, reduction.1).map_err(PyValueError::new_err)
}
