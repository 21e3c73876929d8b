//! The disk as Tailwater uses it: files read and written by position, and explicit syncs.
//!
//! What survives a crash of the machine, in every world:
//! - bytes of a file: those written before a [`File::sync_data`] that returned `Ok`, if the length that
//!   covers them was synced too (which `sync_data` does where the file grew);
//! - a name: once [`Disk::sync_dir`] of its directory returned `Ok`;
//! - anything else may survive whole, in part, or not at all.
//!
//! After a failed sync nothing may be assumed of the file's unsynced bytes, and a later sync that succeeds
//! does not bring them back.

use std::io;
use std::path::Path;
use std::sync::Arc;

/// How [`Disk::open`] opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Existing, to read only.
    Read,
    /// Existing, to read and write.
    ReadWrite,
    /// To read and write; created empty, and an error of kind `AlreadyExists` if the name is taken.
    CreateNew,
}

/// Held as long as a lock file is ours; dropping it gives the lock up.
pub type LockGuard = Box<dyn Send + Sync>;

/// A file system. All calls block.
pub trait Disk: Send + Sync + 'static {
    /// Opens `path`.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;
    /// Creates a directory and its parents; no error if it is there. Does not sync them.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// The names in `dir`, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Renames atomically, replacing `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory and everything in it.
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Makes the names in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Bytes that an unprivileged process may still write below `dir`.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
    /// Takes the exclusive lock of `path` (created if missing); an error of kind `WouldBlock` if another
    /// process or handle holds it. A lock ends with its guard or its process.
    fn lock(&self, path: &Path) -> io::Result<LockGuard>;
}

/// An open file. All calls block; calls on different ranges may run at the same time.
#[allow(clippy::len_without_is_empty)] // nobody asks whether a file is empty
pub trait File: Send + Sync + 'static {
    /// Reads into `buffer` from `position`; less than its length only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;
    /// Writes all of `bytes` at `position`, growing the file where needed. After an error any part of the
    /// range may hold old or new bytes.
    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()>;
    /// Writes all of `pieces`, one behind the other, at `position`: as [`File::write_all_at`], by a file that can from
    /// where they are.
    fn write_pieces_at(&self, pieces: &[&[u8]], position: u64) -> io::Result<()> {
        self.write_all_at(&pieces.concat(), position)
    }
    /// The file's length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Cuts or (with zeros) grows the file.
    fn set_len(&self, length: u64) -> io::Result<()>;
    /// Makes all written bytes durable, and the length if it grew.
    fn sync_data(&self) -> io::Result<()>;
    /// Says that what is durable of the file will hardly be read soon: the system may forget its copy in memory, but
    /// for that of the last block while it is not full. What is appended next is written into that.
    fn drop_cached(&self) {}
    /// Says that the system should read what is asked for and nothing ahead of it.
    fn read_nothing_ahead(&self) {}
    /// Says that what was written in a range will be synced soon: the system may begin with it. Nothing is durable, and
    /// nothing waits.
    fn begin_sync(&self, _position: u64, _len: u64) {}
}
