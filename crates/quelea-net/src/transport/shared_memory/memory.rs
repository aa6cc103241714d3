//! Pages that two processes see. All `unsafe` of shared memory is in this file.
//!
//! Every process writes only to pages of its own, which others map for reading: nobody can change what
//! another has to say, only what it says itself. The pages are an anonymous file (`memfd_create`), which has
//! no name, so that nothing is left behind however a process ends. It is sealed against shrinking before
//! anybody maps it: reading beyond the end of a file that was cut would end the reader (SIGBUS).

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use quelea_core::payload::{ForeignMemory, MemorySource};

/// Bytes of a word.
pub(super) const WORD: usize = 8;
/// Where vectors begin in an arena; a page for its number lies before them.
const FIRST_VECTOR: usize = 4096;
/// Vectors begin at a line of the cache.
const ALIGNMENT: usize = 64;
/// The most that is believed of a peer's arena.
const MOST_BYTES: u64 = 1 << 46;

/// A mapped file.
#[derive(Debug)]
struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to no thread; who may read and write where is decided by its owners below.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    #[cfg(target_os = "linux")]
    fn new(file: &File, bytes: usize, protection: libc::c_int) -> io::Result<Mapping> {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { address, bytes })
    }

    /// A word that this or another process may be writing.
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.bytes / WORD, "inside the mapping");
        // SAFETY: inside the mapping, which lives as long as `self` and whose file cannot shrink; aligned,
        // because mappings begin at a page; and a number that others change is what an atomic is for.
        // Words of pages that are mapped for reading are only loaded: see `PeerPages`.
        unsafe { self.address.cast::<AtomicU64>().add(at).as_ref() }
    }

    /// Where `len` elements lie, if they lie inside.
    fn elements(&self, offset: usize, len: usize) -> Option<NonNull<f32>> {
        let end = len.checked_mul(4)?.checked_add(offset)?;
        if end > self.bytes || !offset.is_multiple_of(4) {
            return None;
        }
        // SAFETY: inside the mapping.
        Some(unsafe { self.address.add(offset) }.cast())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and whatever borrows from it has ended.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}

/// Pages of this process, which others may map for reading.
#[derive(Debug)]
pub(super) struct OwnPages {
    /// Until all who are to map it have.
    file: Option<File>,
    mapping: Mapping,
}

impl OwnPages {
    /// Takes address space; memory follows what is written.
    #[cfg(target_os = "linux")]
    pub(super) fn create(name: &CStr, bytes: usize) -> io::Result<OwnPages> {
        use std::os::fd::FromRawFd;
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name ends with a zero and lives until the call returns.
        let descriptor = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and nobody else has it.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len(bytes as u64)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: a call on an open descriptor with a number.
        if unsafe { libc::fcntl(descriptor, libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping::new(&file, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(OwnPages { file: Some(file), mapping })
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn create(_name: &CStr, _bytes: usize) -> io::Result<OwnPages> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Under which number others find the file at this process; nothing once it is closed.
    pub(super) fn descriptor(&self) -> Option<RawFd> {
        self.file.as_ref().map(File::as_raw_fd)
    }

    /// Nobody maps it any more; it stays as long as it is mapped.
    pub(super) fn close_file(&mut self) {
        self.file = None;
    }

    /// A word of it.
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        self.mapping.word(at)
    }

    /// Writes bytes, which others see when they are told.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at.checked_add(bytes.len());
        assert!(end.is_some_and(|end| end <= self.mapping.bytes), "inside the mapping");
        // SAFETY: inside the mapping, to which nobody else writes; `bytes` lie elsewhere, because what is
        // mapped is lent to nobody as bytes.
        unsafe {
            let target = self.mapping.address.add(at).as_ptr();
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
    }
}

/// Pages of another process, to be read. What is in them may change at any time.
#[derive(Debug)]
pub(super) struct PeerPages {
    mapping: Mapping,
}

impl PeerPages {
    /// Maps a file that cannot shrink.
    #[cfg(target_os = "linux")]
    pub(super) fn open(path: &Path) -> io::Result<PeerPages> {
        use std::os::unix::fs::OpenOptionsExt;
        // What is no such file, a pipe perhaps, is not even opened.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is no file of shared memory"));
        }
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        // SAFETY: a call on an open descriptor without arguments.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(io::Error::other("its file of shared memory is not sealed"));
        }
        let bytes = file.metadata()?.len();
        if bytes == 0 || bytes > MOST_BYTES {
            return Err(io::Error::other(format!("its file of shared memory has {bytes} bytes")));
        }
        Ok(PeerPages { mapping: Mapping::new(&file, bytes as usize, libc::PROT_READ)? })
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn open(_path: &Path) -> io::Result<PeerPages> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Its length.
    pub(super) fn bytes(&self) -> usize {
        self.mapping.bytes
    }

    /// What a word is now.
    pub(super) fn load(&self, at: usize, ordering: Ordering) -> u64 {
        self.mapping.word(at).load(ordering)
    }

    /// Copies bytes; if their owner changes them meanwhile, any mixture of them.
    pub(super) fn read(&self, at: usize, target: &mut [u8]) {
        let end = at.checked_add(target.len());
        assert!(end.is_some_and(|end| end <= self.mapping.bytes), "inside the mapping");
        // SAFETY: inside the mapping; `target` is memory of this process that nobody else has. Every byte
        // that is read is one that the peer chose.
        unsafe {
            let source = self.mapping.address.add(at).as_ptr();
            std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len());
        }
    }

    /// Values that their owner does not change before it has them back; none where they are said to lie
    /// outside.
    pub(super) fn values(&self, offset: usize, len: usize) -> Option<&[f32]> {
        let first = self.mapping.elements(offset, len)?;
        // SAFETY: inside the mapping and aligned; every pattern of bits is a number. The peer promises not
        // to write to what it has lent. One that breaks the promise changes the numbers that are read,
        // which it may choose as it likes anyway: nothing but arithmetic is done with them.
        Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), len) })
    }
}

/// All memory of this machine.
pub(super) fn machine_bytes() -> usize {
    // SAFETY: calls with a number that return one.
    let (pages, page) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let bytes = usize::try_from(pages).ok().zip(usize::try_from(page).ok());
    bytes.map_or(1 << 34, |(pages, page)| pages * page)
}

/// The vectors of this process that others may read: memory for its pools.
#[derive(Debug)]
pub(super) struct Arena {
    pages: OwnPages,
    space: Mutex<Space>,
}

/// Which memory of an arena nobody has.
#[derive(Debug)]
struct Space {
    /// Where the memory begins that nobody ever had.
    unused: usize,
    /// What was given back: where, by bytes.
    free: BTreeMap<usize, Vec<usize>>,
}

impl Arena {
    /// With address space for `bytes`.
    pub(super) fn create(bytes: usize) -> io::Result<Arena> {
        let pages = OwnPages::create(c"quelea-vectors", bytes.max(2 * FIRST_VECTOR))?;
        let space = Mutex::new(Space { unused: FIRST_VECTOR, free: BTreeMap::new() });
        Ok(Arena { pages, space })
    }

    /// The pages; the first belongs to whoever made the arena.
    pub(super) fn pages(&self) -> &OwnPages {
        &self.pages
    }

    /// Where in the arena these values lie, if they do.
    pub(super) fn offset_of(&self, values: &[f32]) -> Option<usize> {
        let offset = values.as_ptr().addr().checked_sub(self.pages.mapping.address.addr().get())?;
        let end = offset.checked_add(size_of_val(values))?;
        (offset >= FIRST_VECTOR && end <= self.pages.mapping.bytes).then_some(offset)
    }

    /// Memory that nobody has.
    fn reserve(&self, bytes: usize) -> Option<usize> {
        let mut space = self.space.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(offset) = space.free.get_mut(&bytes).and_then(Vec::pop) {
            return Some(offset);
        }
        let offset = space.unused;
        space.unused = offset.checked_add(bytes).filter(|end| *end <= self.pages.mapping.bytes)?;
        Some(offset)
    }

    /// Nobody has it any more.
    fn give_back(&self, offset: usize, bytes: usize) {
        let mut space = self.space.lock().unwrap_or_else(PoisonError::into_inner);
        space.free.entry(bytes).or_default().push(offset);
    }
}

/// The arena as a pool sees it.
#[derive(Debug)]
pub(super) struct ArenaSource(pub(super) Arc<Arena>);

impl MemorySource for ArenaSource {
    fn allocate(&self, len: usize) -> Option<Box<dyn ForeignMemory>> {
        let bytes = len.checked_mul(4)?.max(1).next_multiple_of(ALIGNMENT);
        let offset = self.0.reserve(bytes)?;
        Some(Box::new(ArenaVector { arena: Arc::clone(&self.0), offset, len, bytes }))
    }
}

/// A part of an arena.
#[derive(Debug)]
struct ArenaVector {
    arena: Arc<Arena>,
    offset: usize,
    len: usize,
    /// What it takes, with what fills it up to the next line.
    bytes: usize,
}

impl ArenaVector {
    fn first(&self) -> NonNull<f32> {
        let first = self.arena.pages.mapping.elements(self.offset, self.len);
        first.expect("it was reserved inside the arena")
    }
}

impl ForeignMemory for ArenaVector {
    fn values(&self) -> &[f32] {
        // SAFETY: inside the mapping, which the arena keeps; reserved for this vector alone, and other
        // processes can only read it.
        unsafe { std::slice::from_raw_parts(self.first().as_ptr(), self.len) }
    }

    fn values_mut(&mut self) -> Option<&mut [f32]> {
        // SAFETY: as above, and `self` is held by nobody else.
        Some(unsafe { std::slice::from_raw_parts_mut(self.first().as_ptr(), self.len) })
    }
}

impl Drop for ArenaVector {
    fn drop(&mut self) {
        self.arena.give_back(self.offset, self.bytes);
    }
}
