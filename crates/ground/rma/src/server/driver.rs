//! What an engine needs of the kernel: waiting for many descriptors, and moving bytes between sockets and sessions.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::server::output::NextOutput;
use crate::server::secured::Cipher;
use crate::server::session::{Session, SessionEnded, World};
use crate::server::shared::EngineShared;
use crate::socket::send_with_files;

/// What ends a connection, for the log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Gone {
    #[error("closed by the peer")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Ended(#[from] SessionEnded),
    #[error("the server's buffers are full: {total} bytes, {memory} of them for this connection")]
    Memory { memory: usize, total: usize },
}

impl Gone {
    /// What lines in the log about it are bounded by, if it is worth one.
    pub(crate) fn complaint(&self) -> Option<&'static str> {
        match self {
            Self::Closed => None,
            Self::Io(_) => Some("failed"),
            Self::Ended(ended) => Some(ended.complaint()),
            Self::Memory { .. } => Some("too much memory"),
        }
    }
}

impl From<Errno> for Gone {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// A way to wait for descriptors and to serve sockets. Tokens are the engine's names for them.
pub(crate) trait Driver {
    /// Waits until something is ready or the time is over, and appends what is to `tokens`. A connection whose
    /// socket has bytes, takes bytes, or is broken is ready.
    fn wait(&mut self, timeout: Duration, tokens: &mut Vec<u64>) -> io::Result<()>;

    /// Includes a descriptor in the waiting, for as long as it is readable.
    fn watch(&mut self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()>;

    /// Leaves it out again.
    fn unwatch(&mut self, fd: BorrowedFd<'_>, token: u64);

    /// Takes a connected socket, with what is between it and its session.
    fn add(&mut self, id: u64, socket: OwnedFd, cipher: Option<Cipher>) -> io::Result<()>;

    /// Moves what can be moved between a socket and its session; `true` if there is more and only fairness
    /// stopped it.
    fn turn(&mut self, id: u64, turn: &mut DriverTurn<'_>) -> Result<bool, Gone>;

    /// Closes a socket.
    fn remove(&mut self, id: u64);
}

/// A connection's turn.
pub(crate) struct DriverTurn<'a> {
    pub(crate) shared: &'a Arc<EngineShared>,
    pub(crate) session: &'a mut Session,
    pub(crate) world: World<'a>,
    /// The connection was given the doorbell's page.
    pub(crate) mapped: &'a mut bool,
}

impl DriverTurn<'_> {
    /// Sends some of the output together with the descriptors that are due; `None` if none are due.
    pub(crate) fn send_files(&mut self, socket: impl AsFd) -> Option<io::Result<usize>> {
        let table = self.session.files_due()?;
        let doorbell = &self.shared.doorbell;
        // Counted before the page can be mapped, so that no wake is left out.
        if !*self.mapped {
            doorbell.mapped();
            *self.mapped = true;
        }
        let regions = table.regions().iter().filter_map(|region| region.file());
        let files: Vec<_> = std::iter::once(doorbell.file()).chain(regions).collect();
        let (NextOutput::Bytes(bytes) | NextOutput::LastBytes(bytes)) = self.session.next_output()? else {
            unreachable!("they go with the first bytes of a connection, which are a header's");
        };
        let sent = send_with_files(socket, bytes, &files);
        if sent.is_ok() {
            self.session.files_sent();
        }
        Some(sent)
    }
}
