//! The calls of MPI that frames need, with errors as values.

use std::ffi::{c_char, c_int};
use std::io;
use std::mem::MaybeUninit;

use mpi::Threading;
use mpi::environment::Universe;
use mpi::ffi;
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::traits::AsRaw;

/// All processes of the job. It stays on the thread that has made it: MPI is initialized for calls from one
/// thread only.
pub(super) struct World {
    comm: SimpleCommunicator,
    /// Dropped after the communicator; ends MPI.
    _universe: Universe,
}

/// A message that has been matched and must be received.
#[derive(Debug)]
pub(super) struct Matched {
    pub(super) process: c_int,
    pub(super) tag: c_int,
    pub(super) bytes: usize,
    handle: ffi::MPI_Message,
}

/// A send or a receive that may not be complete. Until it is, MPI uses its memory.
#[derive(Debug)]
pub(super) struct MpiOperation(ffi::MPI_Request);

impl World {
    /// Begins MPI; waits for all processes of the job.
    pub(super) fn begin() -> io::Result<World> {
        let begun = mpi::initialize_with_threading(Threading::Funneled);
        let (universe, provided) = begun.ok_or_else(|| io::Error::other("MPI was begun before"))?;
        if provided < Threading::Funneled {
            return Err(io::Error::other("this MPI allows no calls beside other threads"));
        }
        let comm = universe.world().duplicate();
        // SAFETY: the communicator is open, and the handler is one of MPI's own.
        check(unsafe { ffi::MPI_Comm_set_errhandler(comm.as_raw(), ffi::RSMPI_ERRORS_RETURN) })?;
        Ok(World { comm, _universe: universe })
    }

    /// How many processes there are.
    pub(super) fn processes(&self) -> c_int {
        self.comm.size()
    }

    /// Which of them this is.
    pub(super) fn own(&self) -> c_int {
        self.comm.rank()
    }

    /// Whether all processes are on one machine; all must ask.
    pub(super) fn is_one_machine(&self) -> bool {
        self.comm.split_shared(0).size() == self.comm.size()
    }

    /// Begins to send; messages to one process with one tag arrive in their order.
    ///
    /// # Safety
    /// `bytes` must stay where they are, unchanged, until the operation is complete.
    pub(super) unsafe fn send(
        &self,
        bytes: &[u8],
        process: c_int,
        tag: c_int,
    ) -> io::Result<MpiOperation> {
        let mut request = MaybeUninit::uninit();
        let (data, comm) = (bytes.as_ptr().cast(), self.comm.as_raw());
        // SAFETY: the memory is readable and, as the caller promises, stays so until the operation is complete.
        let code = unsafe {
            let kind = ffi::RSMPI_UINT8_T;
            ffi::MPI_Isend(data, count(bytes)?, kind, process, tag, comm, request.as_mut_ptr())
        };
        check(code)?;
        // SAFETY: the call has succeeded and has written the request.
        Ok(MpiOperation(unsafe { request.assume_init() }))
    }

    /// The next message of anybody, if one is there.
    pub(super) fn next(&self) -> io::Result<Option<Matched>> {
        let (mut flag, mut bytes) = (0, 0);
        let (mut handle, mut status) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: all that is written lives until the call returns.
        check(unsafe {
            let (source, tag) = (ffi::RSMPI_ANY_SOURCE, ffi::RSMPI_ANY_TAG);
            let (handle, status) = (handle.as_mut_ptr(), status.as_mut_ptr());
            ffi::MPI_Improbe(source, tag, self.comm.as_raw(), &raw mut flag, handle, status)
        })?;
        if flag == 0 {
            return Ok(None);
        }
        // SAFETY: a message was found, so that both were written.
        let (handle, status) = unsafe { (handle.assume_init(), status.assume_init()) };
        // SAFETY: the status is that of a message of bytes.
        check(unsafe {
            ffi::MPI_Get_count(&raw const status, ffi::RSMPI_UINT8_T, &raw mut bytes)
        })?;
        let bytes = usize::try_from(bytes).unwrap_or(0);
        Ok(Some(Matched { process: status.MPI_SOURCE, tag: status.MPI_TAG, bytes, handle }))
    }
}

impl Matched {
    /// Begins to receive it.
    ///
    /// # Safety
    /// `target` must stay where it is, untouched, until the operation is complete.
    pub(super) unsafe fn receive(mut self, target: &mut [u8]) -> io::Result<MpiOperation> {
        let mut request = MaybeUninit::uninit();
        let (data, room) = (target.as_mut_ptr().cast(), count(target)?);
        // SAFETY: the memory is writable and, as the caller promises, is left alone until the operation is
        // complete; a message that is longer is an error.
        let code = unsafe {
            let kind = ffi::RSMPI_UINT8_T;
            ffi::MPI_Imrecv(data, room, kind, &raw mut self.handle, request.as_mut_ptr())
        };
        check(code)?;
        // SAFETY: the call has succeeded and has written the request.
        Ok(MpiOperation(unsafe { request.assume_init() }))
    }
}

impl MpiOperation {
    /// Whether it is complete. MPI moves all operations on meanwhile.
    pub(super) fn is_complete(&mut self) -> io::Result<bool> {
        let mut flag = 0;
        // SAFETY: the request is MPI's own; one that was found complete is null, and complete.
        check(unsafe { ffi::MPI_Test(&raw mut self.0, &raw mut flag, ffi::RSMPI_STATUS_IGNORE) })?;
        Ok(flag != 0)
    }
}

/// MPI counts with 31 bits.
fn count(bytes: &[u8]) -> io::Result<c_int> {
    c_int::try_from(bytes.len()).map_err(|_| io::Error::other("a message of 2 GiB or more"))
}

/// What MPI says of a call.
fn check(code: c_int) -> io::Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    // No implementation has longer texts.
    let mut text = [0 as c_char; 1024];
    let mut length = 0;
    // SAFETY: the text is as long as MPI's longest.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr(), &raw mut length) };
    let said = text[..usize::try_from(length).unwrap_or(0).min(text.len())].iter();
    let said: Vec<u8> = said.map(|letter| *letter as u8).collect();
    Err(io::Error::other(format!("MPI: {}", String::from_utf8_lossy(&said))))
}
