//! How other threads reach an engine: a list of messages, and a descriptor that wakes it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::event::EventfdFlags;

use crate::coalesce::{Attention, Parking};
use crate::frame::CallAnswer;
use crate::server::listen::AcceptedConnection;
use crate::service::LoginTurn;

/// What other threads tell an engine.
#[derive(Debug)]
pub(crate) enum Message {
    /// Serve this connection.
    Serve(AcceptedConnection),
    /// The application answered.
    Answer { connection: u64, request: u64, answer: CallAnswer },
    /// What came of a message of a login.
    Login { connection: u64, request: u64, turn: LoginTurn },
    /// Who has logged in is that no more.
    LoggedOut { connection: u64 },
    /// Whom the service admitted it may not admit any more.
    AskAgain,
    /// The service's regions are at another place in memory.
    RegionsMoved {
        /// Whether those who have mapped them where they were are to go.
        hang_up: bool,
    },
    /// End.
    Stop,
}

/// One engine's mailbox. What is in it is bounded by what else is: connections, and CALLs under way.
#[derive(Debug)]
pub(crate) struct Mailbox {
    messages: Mutex<Vec<Message>>,
    event: OwnedFd,
    /// Spares senders the event's system call, and the engine the turn for it, while it is busy: with answers of its
    /// own thread always, and with those of others when many come at once.
    attention: Attention,
    /// WATCHes that the engine has parked.
    pub(crate) parking: Parking,
}

impl Mailbox {
    pub(crate) fn new() -> std::io::Result<Self> {
        let event = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self {
            messages: Mutex::new(Vec::new()),
            event,
            attention: Attention::new(),
            parking: Parking::new(),
        })
    }

    pub(crate) fn send(&self, message: Message) {
        self.messages.lock().push(message);
        self.wake();
    }

    /// Makes the engine look at its messages and at the doorbell.
    pub(crate) fn wake(&self) {
        if self.attention.ask() {
            // The counter cannot overflow: it is raised once between two rests.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// The descriptor that becomes readable when there is something to look at, until [`Mailbox::woken`].
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// The engine's side: it was woken by the event.
    pub(crate) fn woken(&self) {
        // Only empties it.
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }

    /// The engine's side: takes everything. Whatever comes behind this raises the event, until [`Mailbox::stay`].
    pub(crate) fn take(&self) -> Vec<Message> {
        self.attention.rest();
        std::mem::take(&mut *self.messages.lock())
    }

    /// The engine's side: it is busy, and looks here before it waits.
    pub(crate) fn stay(&self) {
        self.attention.stay();
    }
}
