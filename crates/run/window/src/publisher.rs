//! The arenas and the notice: what is appended, and how far readers may look.

use std::io;
use std::os::fd::BorrowedFd;

use tailwater_env::Env;
use tailwater_rma::{ArenaWriter, NoticeWriter};
use tailwater_tail::window::ARENA_BYTES;
use tokio::sync::oneshot;

use crate::limits::BELLS;

/// Writes one arena after the other; the next one is made while this one is filled.
pub(crate) struct ArenaPublisher {
    env: Env,
    notice: NoticeWriter,
    arena: ArenaWriter,
    number: u64,
    next: oneshot::Receiver<io::Result<ArenaWriter>>,
}

impl ArenaPublisher {
    pub(crate) fn create(env: &Env) -> io::Result<Self> {
        let (notice, arena) = (NoticeWriter::create("window", BELLS)?, create()?);
        Ok(Self { env: env.clone(), notice, arena, number: 0, next: prepare(env) })
    }

    /// Appends a message, if the arena has room for it.
    #[must_use]
    pub(crate) fn append(&mut self, pieces: &[&[u8]]) -> bool {
        self.arena.append(pieces).is_some()
    }

    /// Begins another arena: a message has no room in this one. Readers have to have this one by then.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn begin_arena(&mut self) -> io::Result<()> {
        let prepared = std::mem::replace(&mut self.next, prepare(&self.env)).try_recv();
        // It is not there yet, or there was no memory then.
        self.arena = match prepared {
            Ok(Ok(arena)) => arena,
            _ => create()?,
        };
        self.number += 1;
        Ok(())
    }

    /// Shows readers everything that was appended. Who sleeps sees it when its bell rings.
    pub(crate) fn publish(&self) {
        self.notice.publish(self.position());
    }

    /// Wakes the readers who have this bell.
    pub(crate) fn ring(&self, bell: usize) {
        self.notice.ring(bell);
    }

    /// Says that the window is alive.
    pub(crate) fn beat(&self) {
        self.notice.beat();
    }

    /// Where a reader who comes now begins: what was appended and not published yet it sees, too.
    pub(crate) fn position(&self) -> u64 {
        self.number * ARENA_BYTES as u64 + self.arena.filled() as u64
    }

    /// The notice's page and one of its bells.
    pub(crate) fn notice(&self, bell: usize) -> (BorrowedFd<'_>, BorrowedFd<'_>) {
        (self.notice.file(), self.notice.bell(bell))
    }

    /// The number and the file of the arena that is filled now.
    pub(crate) fn arena(&self) -> (u64, BorrowedFd<'_>) {
        (self.number, self.arena.file())
    }
}

fn create() -> io::Result<ArenaWriter> {
    ArenaWriter::create("window-arena", ARENA_BYTES)
}

/// Making an arena writes to all of its pages, which takes milliseconds.
fn prepare(env: &Env) -> oneshot::Receiver<io::Result<ArenaWriter>> {
    let (made, next) = oneshot::channel();
    let make = async move {
        // Nobody waits for it when the window ends.
        let _ = made.send(create());
    };
    env.spawn_dedicated("window-arena", make).detach();
    next
}
