//! Mappings of memory, and bounds-checked copies in and out of them.
//!
//! The safe top over [`crate::copy`]: every range is checked against the mapping's length, and a mapping that
//! was made read-only panics on a write before the processor would fault.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::copy;

/// Mappings are rounded up to this; a multiple of every page size we run on is not needed, since the kernel
/// rounds as well, but the words of the last bytes have to exist under Miri too.
const ROUND: usize = 4096;

/// A large page, which one entry of the processor's tables maps, and whose bytes lie one behind the other in memory.
const LARGE_PAGE: usize = 2 << 20;

/// Cache lines of the next operation of a batch that are asked for while the one before is copied. More than a
/// few only displace each other.
const PREFETCH_LINES: usize = 8;
const LINE: usize = 64;

/// Who may do what with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    ReadWrite,
    ReadOnly,
}

/// Memory mapped into this process, unmapped on drop. Its bytes may change at any time.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    access: Access,
}

// SAFETY: the memory is reached through `copy` and atomics only, which other threads and processes may race
// with; unmapping needs the value itself.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of this process alone.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        let base = anonymous_memory(rounded(len)?)?;
        Ok(Self { base, len, access: Access::ReadWrite })
    }

    /// The first `len` bytes of `fd`, to read and write.
    pub(crate) fn owner(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let base = map_file(fd, len, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Self { base, len, access: Access::ReadWrite })
    }

    /// The first `len` bytes of a memory file that somebody else made, to read only.
    ///
    /// # Errors
    /// Of kind `InvalidData` if the file is shorter, or could become shorter: a read behind its end would end
    /// this process.
    pub(crate) fn reader(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(fd)?;
        let size = u64::try_from(rustix::fs::fstat(fd)?.st_size).unwrap_or(0);
        if !seals.contains(SealFlags::SHRINK) || size < len as u64 {
            let why = format!("a memory file of {size} bytes, seals {seals:?}, cannot back {len} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let base = map_file(fd, len, ProtFlags::READ)?;
        Ok(Self { base, len, access: Access::ReadOnly })
    }

    /// Makes all pages, zeroed and mapped, so that no later write waits for one; on a kernel that cannot (before
    /// 5.14) they are made when they are written.
    pub(crate) fn populate(&self) -> io::Result<()> {
        assert_eq!(self.access, Access::ReadWrite, "a reader maps what it reads");
        // SAFETY: the range is our own mapping, and no byte of it changes.
        let populated = unsafe {
            rustix::mm::madvise(self.base.as_ptr().cast(), rounded(self.len)?, Advice::LinuxPopulateWrite)
        };
        match populated {
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes large pages of what is there, as far as the kernel can (from 6.1 on, and whatever its settings say of
    /// pages that it makes large by itself). Whoever copies out of them looks up fewer addresses, and a socket that is
    /// sent what lies in them takes it in pieces of 64 KiB and not of 4.
    pub(crate) fn enlarge_pages(&self) {
        let len = self.len - self.len % LARGE_PAGE;
        if len > 0 {
            // SAFETY: the range is our own mapping, and no byte of it changes.
            unsafe { libc::madvise(self.base.as_ptr().cast(), len, libc::MADV_COLLAPSE) };
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where it begins, for what reads or writes it by its address as long as the mapping is there.
    #[cfg(feature = "ofi")]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Copies out of the mapping.
    ///
    /// # Panics
    /// If the range does not lie in the mapping.
    #[inline]
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) {
        let from = self.at(offset, out.len());
        // SAFETY: `at` checked the range; mappings are page-aligned and cover whole words; `out` is exclusively
        // borrowed, so it is no region memory.
        unsafe { copy::copy_out(from, out.as_mut_ptr(), out.len()) }
    }

    /// Copies `len` bytes out of the mapping to the end of `out`.
    ///
    /// # Panics
    /// If the range does not lie in the mapping.
    #[inline]
    pub(crate) fn append_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        let from = self.at(offset, len);
        out.reserve(len);
        let spare: &mut [MaybeUninit<u8>] = out.spare_capacity_mut();
        assert!(spare.len() >= len);
        // SAFETY: `at` checked the source; the spare capacity is at least `len` bytes and ours.
        unsafe { copy::copy_out(from, spare.as_mut_ptr().cast(), len) };
        let filled = out.len() + len;
        // SAFETY: the capacity is there, and the copy has initialised all bytes up to `filled`.
        unsafe { out.set_len(filled) };
    }

    /// A range's bytes where they are; `None` if it does not lie in the mapping.
    ///
    /// # Safety
    /// Nobody, in no process, writes to the range as long as the slice is there, and whoever wrote it last did so
    /// before something that this thread has seen with [`Mapping::load_acquire`].
    pub(crate) unsafe fn bytes(&self, range: std::ops::Range<usize>) -> Option<&[u8]> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        // SAFETY: the range lies in the mapping, which is there as long as `self` is borrowed; nobody writes to it.
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(range.start), range.len()) })
    }

    /// Puts the pages of a range into a pipe, as far as it has room for them without waiting; how many bytes.
    ///
    /// # Errors
    /// Of kind `WouldBlock` if there is no room.
    ///
    /// # Panics
    /// If the range does not lie in the mapping.
    pub(crate) fn put_into(&self, offset: usize, len: usize, pipe: BorrowedFd<'_>) -> io::Result<usize> {
        let range = libc::iovec { iov_base: self.at(offset, len).cast(), iov_len: len };
        // SAFETY: `at` checked that the range lies in the mapping, which is there until the call is over; from then on
        // the kernel holds pages, not addresses, and reads them only. Whoever reads the pipe expects any bytes.
        let put = unsafe { libc::vmsplice(pipe.as_raw_fd(), &range, 1, libc::SPLICE_F_NONBLOCK) };
        usize::try_from(put).map_err(|_| io::Error::last_os_error())
    }

    /// Copies into the mapping.
    ///
    /// # Panics
    /// If the range does not lie in the mapping, or the mapping is read-only.
    #[inline]
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert_eq!(self.access, Access::ReadWrite, "only its owner writes to a region");
        let to = self.at(offset, bytes.len());
        // SAFETY: `at` checked the range, and the mapping is writable; nothing that is borrowed as a slice is
        // region memory.
        unsafe { copy::copy_in(bytes.as_ptr(), to, bytes.len()) }
    }

    /// One word, ordered before everything that follows.
    ///
    /// # Panics
    /// If it does not lie in the mapping or is not 8-aligned.
    #[inline]
    pub(crate) fn load_acquire(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8), "offset {offset} is not aligned");
        // SAFETY: in the mapping, and aligned since mappings begin at pages.
        unsafe { copy::load_acquire(self.at(offset, 8)) }
    }

    /// One word, ordered behind everything before.
    ///
    /// # Panics
    /// If it does not lie in the mapping or is not 8-aligned, or the mapping is read-only.
    #[inline]
    pub(crate) fn store_release(&self, offset: usize, value: u64) {
        assert_eq!(self.access, Access::ReadWrite, "only its owner writes to a region");
        assert!(offset.is_multiple_of(8), "offset {offset} is not aligned");
        // SAFETY: in the mapping, writable, and aligned since mappings begin at pages.
        unsafe { copy::store_release(self.at(offset, 8), value) }
    }

    /// The first four bytes as an atomic. For doorbells only, whose word is accessed in no other way.
    pub(crate) fn word(&self) -> &AtomicU32 {
        let at = self.at(0, 4);
        // SAFETY: page-aligned and mapped for as long as `self` is borrowed; a doorbell's word is only ever
        // accessed as an `AtomicU32`, by its owner too, and read-only mappings are only ever loaded from.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// Asks the processor to fetch the first cache lines from `offset` on, for a copy that comes soon.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize) {
        for line in 0..PREFETCH_LINES {
            let at = offset.saturating_add(line * LINE);
            if at < self.len {
                copy::prefetch(self.base.as_ptr().wrapping_add(at));
            }
        }
    }

    /// Gives the memory behind the mapping back while others may still be reading: they read zeros from here
    /// on. The addresses are given back on drop.
    pub(crate) fn blank(&self) -> io::Result<()> {
        assert_eq!(self.access, Access::ReadOnly, "an owner drops its region instead");
        // SAFETY: replaces exactly our own mapping, in one step as seen by concurrent readers, by memory that is
        // readable as well; readers expect any bytes at any time.
        unsafe {
            rustix::mm::mmap_anonymous(
                self.base.as_ptr().cast(),
                rounded(self.len)?,
                ProtFlags::READ,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
            )?;
        }
        Ok(())
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "{len} bytes at {offset} do not lie in {} bytes",
            self.len
        );
        self.base.as_ptr().wrapping_add(offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let len = rounded(self.len).expect("it was rounded when it was mapped");
        unmap(self.base, len);
    }
}

fn rounded(len: usize) -> io::Result<usize> {
    let rounded = len.max(1).checked_next_multiple_of(ROUND);
    rounded.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

/// Maps a file so that the kernel can make large pages of it: what is large begins at a multiple of one.
fn map_file(fd: impl AsFd, len: usize, protection: ProtFlags) -> io::Result<NonNull<u8>> {
    let len = rounded(len)?;
    let base = if len < LARGE_PAGE {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours.
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0)? }
    } else {
        let addresses = Addresses::reserve(len.checked_add(LARGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?)?;
        let before = addresses.base.addr().next_multiple_of(LARGE_PAGE) - addresses.base.addr();
        let base = addresses.base.wrapping_byte_add(before);
        // SAFETY: replaces addresses that were reserved for this alone.
        unsafe { rustix::mm::mmap(base, len, protection, MapFlags::SHARED | MapFlags::FIXED, fd, 0)? };
        addresses.give_back_around(before, len);
        base
    };
    Ok(NonNull::new(base.cast()).expect("mmap answers no null pointer"))
}

/// Addresses with nothing behind them.
struct Addresses {
    base: *mut c_void,
    len: usize,
}

impl Addresses {
    fn reserve(len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags)? };
        Ok(Self { base, len })
    }

    /// Gives back those that are not `len` from `before` on, which something is mapped at.
    fn give_back_around(self, before: usize, len: usize) {
        let behind = self.base.wrapping_byte_add(before + len);
        let parts = [(self.base, before), (behind, self.len - before - len)];
        for (base, len) in parts.into_iter().filter(|(_, len)| *len > 0) {
            // SAFETY: these were reserved here, and nobody uses them.
            let unmapped = unsafe { rustix::mm::munmap(base, len) };
            unmapped.expect("addresses of our own can be given back");
        }
        std::mem::forget(self);
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: nothing was mapped there.
        let unmapped = unsafe { rustix::mm::munmap(self.base, self.len) };
        unmapped.expect("addresses of our own can be given back");
    }
}

#[cfg(not(miri))]
fn anonymous_memory(len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours.
    let base = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )?
    };
    Ok(NonNull::new(base.cast()).expect("mmap answers no null pointer"))
}

#[cfg(not(miri))]
fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: mapped with this length, and the owner of the mapping is being dropped, so nobody uses it.
    let unmapped = unsafe { rustix::mm::munmap(base.as_ptr().cast(), len) };
    unmapped.expect("a mapping of our own can be unmapped");
}

#[cfg(miri)]
fn layout(len: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(len, ROUND).expect("lengths were rounded")
}

#[cfg(miri)]
fn anonymous_memory(len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: the length is not 0, since it is rounded up.
    let base = unsafe { std::alloc::alloc_zeroed(layout(len)) };
    NonNull::new(base).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

#[cfg(miri)]
fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: allocated with this layout by `anonymous_memory`, the only mapping there is under Miri.
    unsafe { std::alloc::dealloc(base.as_ptr(), layout(len)) };
}
