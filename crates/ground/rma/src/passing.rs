//! Memory that one process fills and others borrow from: append-only arenas, a page that tells how far they are filled,
//! and a bell that tells when.
//!
//! What holds:
//! - What was published is never written again: an [`ArenaWriter`] only appends, and a [`NoticeWriter`] publishes how
//!   far. So a reader borrows where a [`crate::Region`]'s reader has to copy and validate.
//! - No reader can write to an arena or change its size: the memory file is sealed against it, and a reader takes no
//!   file that is not.
//! - The kernel gives an arena's memory back when its writer and the last who borrows from it are gone. The end of the
//!   writer's process takes no byte away from who has mapped it.
//! - Files are passed over a Unix socket, and only between processes of the same user (or from root's): [`SameUser`] is
//!   the proof of it. What a process of another user says of memory is not believed.
//!
//! Nobody but the writer can keep the writer from breaking the first of these. It is a process of the same user, which
//! may write to any memory of the reader in any case (ptrace): to trust it gives nothing away.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rustix::event::EventfdFlags;
use rustix::fs::SealFlags;
use rustix::net::sockopt;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{UnixListener, UnixStream};

use crate::mapping::Mapping;
use crate::region::sealed_memory;
use crate::server::listen::{Listener, SocketFile};
use crate::socket::{receive_with_files, send_with_files};

/// What is appended begins at a multiple of this.
const ALIGN: usize = 8;

/// The page of a notice: two words of its owner's.
const NOTICE_BYTES: usize = 4096;
const AT_PUBLISHED: usize = 0;
const AT_BEAT: usize = 8;

/// Says that the process at the other end of a socket is of this process's user, or root's.
#[derive(Clone, Copy, Debug)]
pub struct SameUser(());

/// Memory that this process appends to, and that others map.
#[derive(Debug)]
pub struct ArenaWriter {
    memory: Mapping,
    file: OwnedFd,
    filled: usize,
}

impl ArenaWriter {
    /// `len` zeroed bytes in a sealed memory file; `name` shows in `/proc`.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn create(name: &str, len: usize) -> io::Result<Self> {
        let (memory, file) = sealed_memory(name, len)?;
        Ok(Self { memory, file, filled: 0 })
    }

    /// Appends `pieces`, one directly behind the other; what comes next begins at the next multiple of 8. Where they
    /// begin, or `None` if there is no room: then nothing was written. Nobody may look at them before the end of what
    /// is filled is published.
    pub fn append(&mut self, pieces: &[&[u8]]) -> Option<usize> {
        let start = self.filled;
        let len = pieces.iter().try_fold(0usize, |len, piece| len.checked_add(piece.len()))?;
        let end = start.checked_add(len)?.checked_next_multiple_of(ALIGN)?;
        if end > self.memory.len() {
            return None;
        }
        let mut at = start;
        for piece in pieces {
            self.memory.write(at, piece);
            at += piece.len();
        }
        self.filled = end;
        Some(start)
    }

    /// How many bytes were appended, with what lies between them.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// The memory file, to pass on.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// An arena of another process, to read only. Cheap to clone; what was borrowed of it keeps it mapped.
#[derive(Clone, Debug)]
pub struct ArenaReader {
    memory: Arc<Mapping>,
}

impl ArenaReader {
    /// Maps the first `len` bytes of what a process of the same user passed.
    ///
    /// # Errors
    /// Of kind `InvalidData` if the file is too short, or is not sealed as an [`ArenaWriter`]'s is: somebody else could
    /// write to it, or cut it off.
    pub fn open(_of: SameUser, file: &OwnedFd, len: usize) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(file)?;
        let is_readable_only = seals.intersects(SealFlags::FUTURE_WRITE | SealFlags::WRITE);
        if !is_readable_only || !seals.contains(SealFlags::GROW | SealFlags::SHRINK) {
            let why = format!("a memory file with the seals {seals:?}, which others could write to");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Self { memory: Arc::new(Mapping::reader(file.as_fd(), len)?) })
    }

    /// Size in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Bytes that were published, where they are; `None` if the range does not lie in the arena. Only what lies before
    /// what [`NoticeReader::published`] said is to be asked for.
    pub fn bytes(&self, range: Range<usize>) -> Option<Bytes> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        Some(Bytes::from_owner(ArenaSlice { memory: Arc::clone(&self.memory), range }))
    }
}

/// What a `Bytes` of an arena keeps.
struct ArenaSlice {
    memory: Arc<Mapping>,
    range: Range<usize>,
}

impl AsRef<[u8]> for ArenaSlice {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the file is sealed, so that its writer alone has a mapping that can be written to; that is a process
        // of the same user, whose `ArenaWriter` writes to each byte once and then publishes it, which the caller of
        // `ArenaReader::bytes` has seen.
        unsafe { self.memory.bytes(self.range.clone()) }.expect("the range was checked when it was borrowed")
    }
}

/// A page on which this process tells others how far it has come, and the bells by which it wakes them.
///
/// A bell is an event for many readers: each has it in the set that its runtime's thread sleeps on, so that one write
/// wakes that thread of each, and none in between. Nobody reads it, as it is the write that wakes, and not what it
/// holds. Several bells wake their readers at different times.
#[derive(Debug)]
pub struct NoticeWriter {
    page: Mapping,
    file: OwnedFd,
    bells: Vec<OwnedFd>,
}

impl NoticeWriter {
    /// A page that says 0, with so many bells.
    ///
    /// # Errors
    /// If there is not enough memory, or no descriptor left.
    pub fn create(name: &str, bells: usize) -> io::Result<Self> {
        let (page, file) = sealed_memory(name, NOTICE_BYTES)?;
        let bell = || rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let bells = (0..bells).map(|_| bell()).collect::<Result<_, _>>()?;
        Ok(Self { page, file, bells })
    }

    /// Publishes a number, with everything that this thread has written before. Wakes nobody.
    pub fn publish(&self, published: u64) {
        self.page.store_release(AT_PUBLISHED, published);
    }

    /// Wakes all who wait for this bell.
    ///
    /// # Panics
    /// If there is no such bell.
    pub fn ring(&self, bell: usize) {
        let bell = &self.bells[bell];
        let ring = || rustix::io::write(bell, &1u64.to_ne_bytes());
        if ring() == Err(rustix::io::Errno::AGAIN) {
            // Somebody of this user has written to it until it was full.
            let _ = rustix::io::read(bell, &mut [0; 8]);
            let _ = ring();
        }
    }

    /// Says that this process is alive, to whoever looks. Wakes nobody.
    pub fn beat(&self) {
        self.page.store_release(AT_BEAT, self.page.load_acquire(AT_BEAT).wrapping_add(1));
    }

    /// The memory file, to pass on.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// A bell, to pass on.
    ///
    /// # Panics
    /// If there is no such bell.
    pub fn bell(&self, bell: usize) -> BorrowedFd<'_> {
        self.bells[bell].as_fd()
    }
}

/// Such a page of another process, with one of its bells.
pub struct NoticeReader {
    page: Mapping,
    bell: AsyncFd<OwnedFd>,
}

impl NoticeReader {
    /// Maps what a process of the same user passed, and waits for its event on this runtime.
    ///
    /// # Errors
    /// Of kind `InvalidData` if it is no page, or could become shorter; if what was passed as the event is nothing that
    /// can be waited for.
    pub fn open(_of: SameUser, page: &OwnedFd, bell: OwnedFd) -> io::Result<Self> {
        let page = Mapping::reader(page.as_fd(), NOTICE_BYTES)?;
        // SAFETY: what an `OwnedFd` says of its descriptor never changes, and it is open for as long as it is owned,
        // which is here until the registration has ended.
        let bell = unsafe { AsyncFd::register_with_interest(bell, Interest::READABLE) };
        Ok(Self { page, bell: bell.map_err(io::Error::from)? })
    }

    /// The number that was published last; what its writer had written before is visible behind this.
    pub fn published(&self) -> u64 {
        self.page.load_acquire(AT_PUBLISHED)
    }

    /// How often the writer has said that it is alive.
    pub fn beats(&self) -> u64 {
        self.page.load_acquire(AT_BEAT)
    }

    /// Completes when something was published since this has completed last, or was created: to be followed by
    /// [`NoticeReader::published`]. Cancelling it loses nothing.
    ///
    /// # Errors
    /// If the runtime ends.
    pub async fn rung(&self) -> io::Result<()> {
        self.bell.readable().await?.clear_ready();
        Ok(())
    }
}

/// A Unix socket at a path.
#[derive(Debug)]
pub struct PassingListener {
    listener: UnixListener,
    _name: SocketFile,
}

impl PassingListener {
    /// Listens at `path`. A socket file that nobody listens at any more is replaced.
    ///
    /// # Errors
    /// Of kind `AddrInUse` if somebody listens there, or what is there is no socket.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let (socket, name) = Listener::unix(path)?.into_unix().expect("it is one");
        Ok(Self { listener: UnixListener::from_std(socket.into())?, _name: name })
    }

    /// The next connection, whoever made it.
    ///
    /// # Errors
    /// As the system has them, such as that no more files can be opened: a pause helps.
    pub async fn accept(&self) -> io::Result<PassingSocket> {
        let (socket, _) = self.listener.accept().await?;
        Ok(PassingSocket { socket })
    }
}

/// A connection over which bytes go, and files with them.
#[derive(Debug)]
pub struct PassingSocket {
    socket: UnixStream,
}

impl PassingSocket {
    /// Connects to who listens at `path`.
    ///
    /// # Errors
    /// As the system has them.
    pub async fn connect(path: &Path) -> io::Result<Self> {
        Ok(Self { socket: UnixStream::connect(path).await? })
    }

    /// That the other end is of this process's user.
    ///
    /// # Errors
    /// Of kind `PermissionDenied` if it is not.
    pub fn same_user(&self) -> io::Result<SameUser> {
        let peer = sockopt::socket_peercred(&self.socket)?;
        if peer.uid.is_root() || peer.uid == rustix::process::geteuid() {
            return Ok(SameUser(()));
        }
        let why = format!("a process of user {} at the other end, who is another one", peer.uid.as_raw());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    /// Sends all of `bytes`, which are not none, with `files` beside the first of them. Cancelling it leaves it unknown
    /// how much was sent.
    ///
    /// # Errors
    /// As the system has them: the connection is over.
    pub async fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            self.socket.writable().await?;
            sent += match self.try_send(&bytes[sent..], if sent == 0 { files } else { &[] }) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                taken => taken?,
            };
        }
        Ok(())
    }

    /// Ends the connection in both directions, whoever else has it.
    pub fn hang_up(&self) {
        // It fails where it has ended.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Sends as much of `bytes` as there is room for, with `files` beside the first of them; how many.
    ///
    /// # Errors
    /// Of kind `WouldBlock` if there is no room, and others: the connection is over.
    pub fn try_send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<usize> {
        self.socket.try_io(Interest::WRITABLE, || send_with_files(&self.socket, bytes, files))
    }

    /// Receives into `buffer`, and appends the files that came along; how many bytes, and 0 at the end. Cancelling it
    /// loses nothing.
    ///
    /// # Errors
    /// As the system has them, and of kind `InvalidData` if there were too many files: the connection is over.
    pub async fn receive(&self, buffer: &mut [u8], files: &mut Vec<OwnedFd>) -> io::Result<usize> {
        loop {
            self.socket.readable().await?;
            let received =
                self.socket.try_io(Interest::READABLE, || receive_with_files(&self.socket, buffer, files));
            match received {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }
}

#[cfg(test)]
mod tests;
