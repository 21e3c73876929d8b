//! The arenas and the notice: what is appended, and how far readers may look.

use std::io;
use std::os::fd::BorrowedFd;

use tailwater_env::Env;
use tailwater_rma::{ArenaWriter, NoticeWriter};
use tailwater_tail::window::ARENA_BYTES;
use tokio::sync::oneshot;

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
        let (notice, arena) = (NoticeWriter::create("window")?, create()?);
        Ok(Self { env: env.clone(), notice, arena, number: 0, next: prepare(env) })
    }

    /// Appends a message; whether it needed a new arena, which readers are to be told of before it is published.
    ///
    /// # Errors
    /// If there is no memory.
    ///
    /// # Panics
    /// If the message is longer than an arena.
    pub(crate) fn append(&mut self, pieces: &[&[u8]]) -> io::Result<bool> {
        if self.arena.append(pieces).is_some() {
            return Ok(false);
        }
        let prepared = std::mem::replace(&mut self.next, prepare(&self.env)).try_recv();
        // It is not there yet, or there was no memory then.
        self.arena = match prepared {
            Ok(Ok(arena)) => arena,
            _ => create()?,
        };
        self.number += 1;
        assert!(self.arena.append(pieces).is_some(), "no message is longer than an arena");
        Ok(true)
    }

    /// Shows readers everything that was appended, and wakes them.
    pub(crate) fn publish(&self) {
        self.notice.publish(self.number * ARENA_BYTES as u64 + self.arena.filled() as u64);
    }

    /// Says that the window is alive.
    pub(crate) fn beat(&self) {
        self.notice.beat();
    }

    /// Where a reader who comes now begins: what was appended and not published yet it sees, too.
    pub(crate) fn position(&self) -> u64 {
        self.number * ARENA_BYTES as u64 + self.arena.filled() as u64
    }

    /// The notice's page and its event.
    pub(crate) fn notice(&self) -> (BorrowedFd<'_>, BorrowedFd<'_>) {
        (self.notice.file(), self.notice.bell())
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
