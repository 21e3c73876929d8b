//! What every store of queues provides: the seam between SQS's front and what is behind it.
//!
//! Two are behind it: [`crate::Queues`], in one process, and [`crate::shared::SharedQueues`], front ends without state
//! over a store that many processes share. What one promises beyond this it says itself.
//!
//! What both promise of a queue ([`crate::conformance`] tests it):
//! - A send, a delete, a change of visibility is done when it is answered. One that was not answered, or answered with
//!   [`QueueError::Unavailable`], may have been done.
//! - A message is received until its delete was answered, and not after that.
//! - A message of a standard queue is not received while it is invisible, but for what receivers that run at the same
//!   time at several front ends take from each other.
//! - In a FIFO queue the messages of a group are received in order, none while one before it is there and not in the
//!   same hand; a deduplication id is one message for five minutes; a receipt is refused when its message's timeout is
//!   over.
//! - Dropping a call leaves what it asks for done or not done, never half; a receive that is dropped while it waits
//!   receives nothing.

use std::sync::Arc;
use std::time::Duration;

use tailwater_env::BoxFuture;

use crate::ids::{Receipt, Secret, Sequence};
use crate::queue::ReceiptError;
use crate::request::{Figures, Message, QueueError, Receive, Send, Sent, VisibilityChange};
use crate::settings::{MoveTask, QueueRecord};
use crate::view::QueueView;

/// What a call answers.
pub type StoreAnswer<'a, T> = BoxFuture<'a, Result<T, QueueError>>;

/// For each receipt of a call, what became of it.
pub type Outcomes = Vec<Result<(), ReceiptError>>;

/// For each message of a call, what became of it.
pub type SentEach = Vec<Result<Sent, QueueError>>;

/// What a front end tells the others. Each is there for some minutes after its front end has put its last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontReport {
    /// The front end, by a number below 2^63 that it has chosen at random at its start.
    pub front: u64,
    /// It grows with each report of the same front end; from 1.
    pub number: u64,
    /// What it says: some KiB at most.
    pub value: bytes::Bytes,
}

/// A store of queues.
pub trait QueueStore: std::marker::Send + Sync + 'static {
    /// The key of receipts and message ids.
    fn secret(&self) -> &Secret;

    /// Puts what this front end tells the others that serve the same queues, in place of what it told last, and then
    /// reads what each of them told last, this one's among it. Of two that do so at the same time one at least reads
    /// what the other one put. Nothing if no other one can serve these queues.
    ///
    /// One that fails, or is dropped, may have put it, and may put it later; not over one with a greater number.
    fn exchange_reports(&self, report: FrontReport) -> StoreAnswer<'_, Option<Vec<FrontReport>>>;

    /// A queue, by its account and name.
    fn find<'a>(&'a self, account: &'a str, name: &'a str) -> StoreAnswer<'a, Option<Arc<QueueView>>>;

    /// Queues of an account whose names begin with `prefix` and are greater than `after`, by name; `most` of them.
    fn list<'a>(
        &'a self,
        account: &'a str,
        prefix: &'a str,
        after: Option<&'a str>,
        most: usize,
    ) -> StoreAnswer<'a, Vec<Arc<QueueView>>>;

    /// All queues, by account and name.
    fn all(&self) -> StoreAnswer<'_, Vec<Arc<QueueView>>>;

    /// Creates a queue; its times are filled in.
    fn create(&self, record: QueueRecord) -> StoreAnswer<'_, Arc<QueueView>>;

    /// Changes what is set for a queue. The change may be made more than once, on what there is then.
    fn update<'a>(&'a self, queue: &'a QueueView, change: VisibilityChange) -> StoreAnswer<'a, ()>;

    /// Deletes a queue and all its messages.
    fn delete_queue<'a>(&'a self, queue: &'a QueueView) -> StoreAnswer<'a, ()>;

    /// Deletes all messages of a queue.
    fn purge<'a>(&'a self, queue: &'a QueueView) -> StoreAnswer<'a, ()>;

    /// Sends messages. Dropping it, or an error, may leave some of them sent.
    fn send<'a>(&'a self, queue: &'a QueueView, sends: Vec<Send>) -> StoreAnswer<'a, Vec<Sent>>;

    /// Sends messages, and tells of each. Dropping it, or an error, may leave some of them sent.
    fn send_each<'a>(&'a self, queue: &'a QueueView, sends: Vec<Send>) -> StoreAnswer<'a, SentEach>;

    /// Receives messages; none when nothing is visible for as long as it may wait.
    fn receive<'a>(&'a self, queue: &'a QueueView, receive: Receive) -> StoreAnswer<'a, Vec<Message>>;

    /// Looks at messages from a number on, oldest first, visible or not, without receiving them.
    fn peek<'a>(
        &'a self,
        queue: &'a QueueView,
        from: Sequence,
        count: usize,
    ) -> StoreAnswer<'a, Vec<Message>>;

    /// Deletes the messages of receipts, also of ones of an earlier receive; an answer for each.
    fn delete<'a>(&'a self, queue: &'a QueueView, receipts: Vec<Receipt>) -> StoreAnswer<'a, Outcomes>;

    /// Makes the messages of receipts visible in so long from now; an answer for each.
    fn change_visibility<'a>(
        &'a self,
        queue: &'a QueueView,
        changes: Vec<(Receipt, Duration)>,
    ) -> StoreAnswer<'a, Outcomes>;

    /// What was received could not be handed out: it is visible again, and as if it had not been received. Without
    /// effect on what was received again since; if it fails, messages are visible when their timeout is over.
    fn give_back<'a>(&'a self, queue: &'a QueueView, receipts: Vec<Receipt>) -> StoreAnswer<'a, ()>;

    /// How a queue stands.
    fn figures<'a>(&'a self, queue: &'a QueueView) -> StoreAnswer<'a, Figures>;

    /// Begins to bring messages back; the task's number. Id, counts and times are filled in.
    fn start_move(&self, task: MoveTask) -> StoreAnswer<'_, u64>;

    /// Ends a move task; how many messages it has moved.
    fn cancel_move<'a>(&'a self, account: &'a str, task: u64) -> StoreAnswer<'a, u64>;

    /// The move tasks of a queue, newest first.
    fn list_moves<'a>(&'a self, account: &'a str, source: &'a str) -> StoreAnswer<'a, Vec<MoveTask>>;

    /// Takes nothing more and answers what is under way.
    fn close(&self) -> BoxFuture<'_, ()>;
}
