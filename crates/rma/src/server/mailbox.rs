//! How other threads reach an engine: a list of messages, and a descriptor that wakes it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::event::EventfdFlags;

use crate::atomics::{AtomicBool, Ordering};
use crate::coalesce::Parking;
use crate::frame::CallAnswer;
use crate::server::listen::Accepted;

/// What other threads tell an engine.
#[derive(Debug)]
pub(crate) enum Message {
    /// Serve this connection.
    Serve(Accepted),
    /// The application answered.
    Answer { connection: u64, request: u64, answer: CallAnswer },
    /// End.
    Stop,
}

/// One engine's mailbox. What is in it is bounded by what else is: connections, and CALLs under way.
#[derive(Debug)]
pub(crate) struct Mailbox {
    messages: Mutex<Vec<Message>>,
    event: OwnedFd,
    /// The event was raised and not yet taken; spares the system call when many messages come at once. Set by
    /// senders, cleared by the engine.
    raised: AtomicBool,
    /// WATCHes that the engine has parked.
    pub(crate) parking: Parking,
}

impl Mailbox {
    pub(crate) fn new() -> std::io::Result<Self> {
        let event = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self {
            messages: Mutex::new(Vec::new()),
            event,
            raised: AtomicBool::new(false),
            parking: Parking::new(),
        })
    }

    pub(crate) fn send(&self, message: Message) {
        self.messages.lock().push(message);
        self.wake();
    }

    /// Makes the engine look at its messages and at the doorbell.
    pub(crate) fn wake(&self) {
        // AcqRel: if the engine has yet to clear the flag, then it will see, behind that, what we sent before.
        if !self.raised.swap(true, Ordering::AcqRel) {
            // The counter cannot overflow: it is raised once between two takings.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// The descriptor that becomes readable when there is something to look at.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// The engine's side: takes everything.
    pub(crate) fn take(&self) -> Vec<Message> {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        // AcqRel, and before the messages are taken: pairs with `wake`.
        self.raised.swap(false, Ordering::AcqRel);
        std::mem::take(&mut *self.messages.lock())
    }
}
