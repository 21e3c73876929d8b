//! A memory region: written by its owner only, read by anybody who was given it.
//!
//! What holds:
//! - A region has its full size from the start; writing to it never fails for want of memory.
//! - Readers in other processes can map it read-only and in no other way, and cannot change its size: its
//!   memory file is sealed against future writable mappings, writes, growing and shrinking, and against the
//!   removal of these seals.
//! - A region is never opened again: each start of an owner makes regions of other generations. An owner can move a
//!   region to another place in memory; that has the same generation, as the same is read at it.
//! - Nobody holds a Rust reference to its memory; see [`crate::copy`].

use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use crate::connection::{RegionId, RegionInfo};
use crate::mapping::Mapping;
use crate::room;

/// What a region's memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A sealed memory file, which other processes can map.
    Shared,
    /// Anonymous memory of this process, which others can read through a server only. For simulation, tests
    /// and use within one process.
    Private,
}

/// Memory that others read one-sidedly. All methods may be called from several threads at once.
#[derive(Debug)]
pub struct Region {
    memory: Mapping,
    file: Option<OwnedFd>,
    generation: u64,
    kind: u16,
}

impl Region {
    /// Reserves a zeroed region of `len` bytes under a random generation. `name` shows in `/proc`; `kind` is
    /// the application's own numbering of its regions.
    ///
    /// # Errors
    /// If there is not enough memory, or `len` is 0.
    pub fn create(name: &str, len: u64, kind: u16, backing: Backing) -> io::Result<Region> {
        // The standard library keys each of its hash maps from the system's randomness; this asks for one key.
        #[allow(clippy::disallowed_types)]
        let generation = std::hash::RandomState::new().build_hasher().finish();
        Self::create_with_generation(name, len, kind, backing, generation)
    }

    /// As [`Region::create`], with a generation of the caller's choice: a simulated world has to be the same
    /// in every run, and a region that moves to another place in memory is the same region. Everywhere else two
    /// regions must never share one.
    ///
    /// # Errors
    /// As for [`Region::create`].
    pub fn create_with_generation(
        name: &str,
        len: u64,
        kind: u16,
        backing: Backing,
        generation: u64,
    ) -> io::Result<Region> {
        let size = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        if size == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a region of no bytes"));
        }
        let (memory, file) = match backing {
            Backing::Private => (Mapping::anonymous(size)?, None),
            Backing::Shared => {
                let (memory, file) = sealed_memory(name, size)?;
                (memory, Some(file))
            }
        };
        Ok(Self { memory, file, generation, kind })
    }

    /// Size in bytes; never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.memory.len() as u64
    }

    /// The generation that reads of it have to name.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What the application keeps in it.
    pub fn kind(&self) -> u16 {
        self.kind
    }

    /// What a server that lists it as `id` says of it.
    pub fn info(&self, id: RegionId) -> RegionInfo {
        RegionInfo { id, generation: self.generation, len: self.len(), kind: self.kind }
    }

    /// The memory file, if there is one. Passing it on gives read access, and no more.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Writes `bytes` at `offset`. Concurrent readers may see any part of them, in any order, until a later
    /// [`Region::store_release_u64`] publishes them.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.memory.write(place(offset), bytes);
    }

    /// Reads at `offset`; what a concurrent writer changes meanwhile may arrive in part.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        self.memory.read(place(offset), out);
    }

    /// What is at `offset` is about to be read.
    #[inline]
    pub(crate) fn prefetch(&self, offset: u64) {
        self.memory.prefetch(place(offset));
    }

    /// As [`Region::read`], to the end of `out`.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    #[inline]
    pub fn append_to(&self, offset: u64, len: u32, out: &mut Vec<u8>) {
        self.memory.append_to(place(offset), len as usize, out);
    }

    /// Puts the pages with `len` bytes from `offset` on into a pipe, as far as it has room for them without waiting;
    /// how many bytes. What is taken out of the pipe is what is there then.
    ///
    /// # Errors
    /// Of kind `WouldBlock` if there is no room.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    pub(crate) fn put_into(&self, offset: u64, len: usize, pipe: BorrowedFd<'_>) -> io::Result<usize> {
        self.memory.put_into(place(offset), len, pipe)
    }

    /// Stores a word in one piece, visible only together with everything written before it.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8 or the word does not lie in the region.
    #[inline]
    pub fn store_release_u64(&self, offset: u64, value: u64) {
        self.memory.store_release(place(offset), value);
    }

    /// Loads a word in one piece; what its writer had written before is visible to later reads.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8 or the word does not lie in the region.
    #[inline]
    pub fn load_acquire_u64(&self, offset: u64) -> u64 {
        self.memory.load_acquire(place(offset))
    }

    /// Its memory, for what reads it by its address.
    #[cfg(feature = "ofi")]
    pub(crate) fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Whether `len` bytes from `offset` lie in the region.
    #[inline]
    pub fn contains(&self, offset: u64, len: u32) -> bool {
        offset.checked_add(u64::from(len)).is_some_and(|end| end <= self.len())
    }
}

/// An offset as an index; one that this machine cannot address is out of every region's bounds.
#[inline]
fn place(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// A memory file of `len` bytes with all its pages there, mapped writable here and by nobody ever again.
pub(crate) fn sealed_memory(name: &str, len: usize) -> io::Result<(Mapping, OwnedFd)> {
    refuse_what_does_not_fit(len as u64)?;
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, len as u64)?;
    // A hole would get its page when somebody first reads it: somebody else's read would then run into our
    // memory limit.
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64)?;
    let memory = Mapping::owner(file.as_fd(), len)?;
    // Before all pages are mapped, which large ones are at once.
    memory.enlarge_pages();
    // Here and not at the first write of each page, which would take ten times as long as the copy.
    memory.populate()?;
    // FUTURE_WRITE, since WRITE is refused while we have it mapped writable ourselves.
    let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok((memory, file))
}

/// Reserving pages of a memory file does not fail when memory runs out: the kernel ends processes instead, ours
/// or another. So what is certain not to fit is refused beforehand.
fn refuse_what_does_not_fit(len: u64) -> io::Result<()> {
    match room::bytes_left() {
        Some(left) if len > left => {
            let why = format!("{len} bytes of shared memory do not fit in the {left} that are left");
            Err(io::Error::new(io::ErrorKind::OutOfMemory, why))
        }
        // Without the kernel's word for it there is nothing to go by.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
