//! Notifiers: how a loop that waits for file descriptors hears of operations that are done.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::limits::NOTIFIER_OPERATIONS_MAX;
use crate::runtime::free;
use crate::status::{NotDone, TailwaterStatus};

/// Says which operations are done. Opaque.
///
/// Any number of threads may start operations with it. One at a time takes what it says.
pub struct TailwaterNotifier {
    pub(crate) shared: Arc<NotifierShared>,
}

pub(crate) struct NotifierShared {
    /// Readable while there are tags to be taken.
    event: OwnedFd,
    state: Mutex<NotifierState>,
}

#[derive(Default)]
struct NotifierState {
    done: VecDeque<u64>,
    /// Operations that will be done; with those that are, [`NOTIFIER_OPERATIONS_MAX`] at most.
    expected: usize,
}

/// An operation that a notifier will say is done, unless it is cancelled.
pub(crate) struct ExpectedTag {
    notifier: Arc<NotifierShared>,
    tag: u64,
}

impl NotifierShared {
    /// Makes room for an operation.
    pub(crate) fn expect(self: &Arc<Self>, tag: u64) -> Result<ExpectedTag, NotDone> {
        let mut state = self.state.lock();
        if state.expected + state.done.len() >= NOTIFIER_OPERATIONS_MAX {
            let why = format!(
                "{NOTIFIER_OPERATIONS_MAX} operations of this notifier are under way, or done and not taken: take some \
                 before you start more"
            );
            return Err(NotDone::new(TailwaterStatus::Overloaded, why));
        }
        state.expected += 1;
        Ok(ExpectedTag { notifier: Arc::clone(self), tag })
    }
}

impl ExpectedTag {
    /// It is done.
    pub(crate) fn come(self) {
        let mut state = self.notifier.state.lock();
        state.done.push_back(self.tag);
        // Under the lock, so that whoever takes the last tag clears no event that came after it. It can't be full:
        // the count goes up by one for each tag, and is cleared when none is left.
        let _ = rustix::io::write(&self.notifier.event, &1_u64.to_ne_bytes());
    }
}

impl Drop for ExpectedTag {
    fn drop(&mut self) {
        self.notifier.state.lock().expected -= 1;
    }
}

/// A new notifier; null if the process has no file descriptor left.
#[unsafe(no_mangle)]
pub extern "C" fn tailwater_notifier_new() -> *mut TailwaterNotifier {
    match eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
        Ok(event) => {
            let shared = Arc::new(NotifierShared { event, state: Mutex::default() });
            Box::into_raw(Box::new(TailwaterNotifier { shared }))
        }
        Err(_) => std::ptr::null_mut(),
    }
}

/// A file descriptor that can be read from while there are tags to be taken: for `poll`, `epoll` and the like. It is
/// the notifier's: do not read, write or close it. -1 for a null pointer.
///
/// # Safety
/// `notifier` is null, or is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_notifier_fd(notifier: *const TailwaterNotifier) -> c_int {
    // SAFETY: as this function's.
    unsafe { notifier.as_ref() }.map_or(-1, |notifier| notifier.shared.event.as_raw_fd())
}

/// Writes the tags of operations that are done to `tags`, `capacity` of them at most, and answers how many. They are
/// the numbers that the operations were started with, in the order in which those ended. An operation that was done
/// when it was started has none. One that was freed meanwhile may have one.
///
/// # Safety
/// `notifier` is not freed, and there is room for so many numbers at `tags`. Null pointers take nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_notifier_take(
    notifier: *const TailwaterNotifier,
    tags: *mut u64,
    capacity: usize,
) -> usize {
    // SAFETY: as this function's.
    let Some(notifier) = (unsafe { notifier.as_ref() }).filter(|_| !tags.is_null()) else { return 0 };
    let mut state = notifier.shared.state.lock();
    let count = state.done.len().min(capacity);
    for (at, tag) in state.done.drain(..count).enumerate() {
        // SAFETY: `at` is below `capacity`, for which there is room. The caller's array need not be initialized.
        unsafe { tags.add(at).write_unaligned(tag) };
    }
    if state.done.is_empty() {
        // Clears the event. An error means that there was none.
        let _ = rustix::io::read(&notifier.shared.event, &mut [0_u8; 8]);
    }
    count
}

/// Frees the notifier. Operations that were started with it go on; nobody hears of them. A null pointer is nothing.
///
/// # Safety
/// `notifier` is null, or was made by this library and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_notifier_free(notifier: *mut TailwaterNotifier) {
    // SAFETY: as this function's.
    unsafe { free(notifier) }
}
