//! Operations: whatever may fail or take time.
//!
//! An operation begins in the call that starts it, on the caller's thread. What needs no waiting, as a lookup in mapped
//! memory, is done there and then. What needs some goes on in one of two ways:
//! - with a notifier, on the library's threads. The notifier says when it is done;
//! - without one, on the thread that waits for it. Nobody else is woken then, and while nobody waits it stands still.

use std::ffi::{CString, c_char};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tailwater_cache::{Cell, Lookup};
use tailwater_client::Client;
use tailwater_env::{Task, panics};
use tokio::sync::oneshot;

use crate::cell::{ChangesMade, LookupsTold};
use crate::consumer::{ConsumerShared, PolledBatch};
use crate::notifier::{NotifierShared, TailwaterNotifier};
use crate::runtime::{LibraryRuntime, free, library};
use crate::status::{NotDone, TailwaterStatus, c_text};

/// What an operation brings.
pub(crate) enum Brought {
    Client(Client),
    Cell(Cell),
    Consumer(Arc<ConsumerShared>),
    /// `None`: nothing came in time.
    Batch(Option<PolledBatch>),
    Lookups(Vec<Lookup>),
    Changes(ChangesMade),
    /// It was taken.
    Taken,
}

pub(crate) type OperationEnd = Result<Brought, NotDone>;
pub(crate) type OperationDoing = BoxFuture<'static, OperationEnd>;

/// Something that was asked for. Opaque.
///
/// Calls about one operation must not overlap. Different operations are independent of each other.
pub struct TailwaterOperation {
    /// As long as it is not done.
    doing: Option<OperationDoing>,
    pub(crate) outcome: OperationEnd,
    /// Why it was not done, for C.
    why: CString,
    /// What was asked of its results, for C.
    pub(crate) lookups: Option<LookupsTold>,
    pub(crate) changes: Option<Vec<crate::cell::TailwaterChange>>,
    /// Carries it out, if it has a notifier. Cancelled when dropped.
    _task: Option<Task>,
}

impl TailwaterOperation {
    fn new(doing: Option<OperationDoing>, outcome: OperationEnd, task: Option<Task>) -> *mut Self {
        let why = why_not(&outcome);
        let operation = Self { doing, outcome, why, lookups: None, changes: None, _task: task };
        Box::into_raw(Box::new(operation))
    }

    fn failed(why: NotDone) -> *mut Self {
        Self::new(None, Err(why), None)
    }

    fn end(&mut self, outcome: OperationEnd) {
        self.doing = None;
        self.why = why_not(&outcome);
        self.outcome = outcome;
    }

    fn status(&self) -> TailwaterStatus {
        match (&self.doing, &self.outcome) {
            (Some(_), _) => TailwaterStatus::Pending,
            (None, Ok(_)) => TailwaterStatus::Ok,
            (None, Err(not_done)) => not_done.status,
        }
    }

    /// Goes on with it on this thread, for so long at most; `None` is as long as it takes.
    fn go_on(&mut self, within: Option<Duration>) -> TailwaterStatus {
        let Some(doing) = &mut self.doing else { return self.status() };
        let outcome = library().and_then(|library| {
            let run = || match within {
                Some(Duration::ZERO) => {
                    let _within = library.runtime.enter();
                    doing.now_or_never()
                }
                Some(within) => library.runtime.block_on(library.env.timeout(within, doing)),
                None => Some(library.runtime.block_on(doing)),
            };
            panics::catch(run).unwrap_or_else(|_| Some(Err(defect()))).transpose()
        });
        match outcome {
            Ok(None) => {}
            Ok(Some(brought)) => self.end(Ok(brought)),
            Err(why) => self.end(Err(why)),
        }
        self.status()
    }
}

fn why_not(outcome: &OperationEnd) -> CString {
    outcome.as_ref().err().map(|not_done| c_text(&not_done.why)).unwrap_or_default()
}

fn defect() -> NotDone {
    NotDone::new(
        TailwaterStatus::Internal,
        "libtailwater panicked: a defect of the library; standard error has what it says",
    )
}

/// Starts an operation. `prepare` looks at the caller's arguments, and copies what it needs of them.
///
/// # Safety
/// `notifier` is null, or is one of ours that is not freed.
pub(crate) unsafe fn start(
    notifier: *const TailwaterNotifier,
    tag: u64,
    prepare: impl FnOnce(&'static LibraryRuntime) -> Result<OperationDoing, NotDone>,
) -> *mut TailwaterOperation {
    // SAFETY: as this function's.
    let notifier = unsafe { notifier.as_ref() }.map(|notifier| Arc::clone(&notifier.shared));
    let begun = library().and_then(|library| {
        let begin = || {
            let _within = library.runtime.enter();
            let mut doing = prepare(library)?;
            // What needs no waiting is done now, without another thread.
            Ok((doing.as_mut().now_or_never(), doing))
        };
        let (outcome, doing) = panics::catch(begin).unwrap_or_else(|_| Err(defect()))?;
        Ok((library, outcome, doing))
    });
    match (begun, notifier) {
        (Err(why), _) => TailwaterOperation::failed(why),
        (Ok((_, Some(outcome), _)), _) => TailwaterOperation::new(None, outcome, None),
        (Ok((_, None, doing)), None) => TailwaterOperation::new(Some(doing), Ok(Brought::Taken), None),
        (Ok((library, None, doing)), Some(notifier)) => hand_over(library, doing, notifier, tag),
    }
}

/// Has the library's threads carry an operation out, and the notifier say when it is done.
fn hand_over(
    library: &'static LibraryRuntime,
    doing: OperationDoing,
    notifier: Arc<NotifierShared>,
    tag: u64,
) -> *mut TailwaterOperation {
    let expected = match notifier.expect(tag) {
        Ok(expected) => expected,
        Err(why) => return TailwaterOperation::failed(why),
    };
    let (done, is_done) = oneshot::channel();
    let task = library.env.spawn("capi-operation", async move {
        let outcome = AssertUnwindSafe(doing).catch_unwind().await.unwrap_or_else(|_| Err(defect()));
        // Nobody wants it any more if that fails. Records that it has go back to their consumer.
        let _ = done.send(outcome);
        expected.come();
    });
    // An error would mean that the task panicked where nothing can.
    let waiting = async move { is_done.await.unwrap_or_else(|_| Err(defect())) };
    TailwaterOperation::new(Some(waiting.boxed()), Ok(Brought::Taken), Some(task))
}

/// What an operation brought, if it is of the kind that `pick` takes; it is gone from the operation then.
///
/// # Safety
/// `operation` is null, or is one of ours that is not freed, and that no other call is about.
pub(crate) unsafe fn take<T>(
    operation: *mut TailwaterOperation,
    pick: impl FnOnce(Brought) -> Result<T, Brought>,
) -> Option<T> {
    // SAFETY: as this function's.
    let operation = unsafe { operation.as_mut() }?;
    if operation.go_on(Some(Duration::ZERO)) != TailwaterStatus::Ok {
        return None;
    }
    match std::mem::replace(&mut operation.outcome, Ok(Brought::Taken)).map(pick) {
        Ok(Ok(picked)) => Some(picked),
        Ok(Err(other)) => {
            operation.outcome = Ok(other);
            None
        }
        Err(_) => None,
    }
}

/// Waits until the operation is done, for `timeout_ms` milliseconds at most; a negative number is as long as it takes.
/// Answers how it stands: `Pending` if it is not done. It may be waited for again.
///
/// An operation without a notifier is carried out in here.
///
/// # Safety
/// `operation` is not freed, and no other call is about it meanwhile. A null pointer is an invalid argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_operation_wait(
    operation: *mut TailwaterOperation,
    timeout_ms: i64,
) -> TailwaterStatus {
    // SAFETY: as this function's.
    match unsafe { operation.as_mut() } {
        Some(operation) => operation.go_on(u64::try_from(timeout_ms).ok().map(Duration::from_millis)),
        None => TailwaterStatus::InvalidArgument,
    }
}

/// How the operation stands. Never waits.
///
/// # Safety
/// As `tailwater_operation_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_operation_status(operation: *mut TailwaterOperation) -> TailwaterStatus {
    // SAFETY: as this function's.
    unsafe { tailwater_operation_wait(operation, 0) }
}

/// Why the operation was not done, in words and in UTF-8; an empty text if there is nothing to say. Good until the
/// operation is freed, or is waited for again.
///
/// # Safety
/// As `tailwater_operation_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_operation_error(operation: *const TailwaterOperation) -> *const c_char {
    // SAFETY: as this function's.
    unsafe { operation.as_ref() }.map_or(c"a null pointer".as_ptr(), |operation| operation.why.as_ptr())
}

/// Frees the operation, and what it brought and was not taken. One that is not done is cancelled: a change of a key
/// may have been made all the same. Records that a poll brought come with the next poll. A null pointer is nothing.
///
/// # Safety
/// `operation` is null, or was made by this library and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_operation_free(operation: *mut TailwaterOperation) {
    // SAFETY: as this function's.
    unsafe { free(operation) }
}
