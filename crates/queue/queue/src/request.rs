//! What an owner is asked, and what it answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::checkpoint::OwnerDelta;
use crate::ids::{Number, QueueId, Receipt, Sequence};
use crate::queue::{Counts, Happened};
use crate::settings::{MoveTask, QueueRecord};
use crate::view::QueueView;

/// Why something was not done.
#[derive(Clone, Debug, thiserror::Error)]
pub enum QueueError {
    /// The queue was deleted.
    #[error("the queue does not exist")]
    NoQueue,
    /// A queue of that name exists.
    #[error("a queue of that name exists")]
    Exists(Arc<QueueView>),
    /// A queue of that name was deleted less than a minute ago.
    #[error("a queue of that name was deleted less than 60 seconds ago")]
    DeletedRecently,
    /// The queue was purged less than a minute ago.
    #[error("the queue was purged less than 60 seconds ago")]
    PurgedRecently,
    /// Too many messages are in flight.
    #[error("too many messages are in flight")]
    TooManyInFlight,
    /// A move task of that queue runs already.
    #[error("a move task of this queue runs already")]
    TaskRuns,
    /// There is no such move task, or it does not run any more.
    #[error("there is no such move task, or it has ended")]
    NoTask,
    /// The store does not do that; why, and what to do instead.
    #[error("{0}")]
    Unsupported(&'static str),
    /// Too much is waiting already: try again later.
    #[error("overloaded: {0}")]
    Overloaded(&'static str),
    /// The journal or the tree can't be used. Whether what was asked for is done shows the next start.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The store was closed.
    #[error("the queues are closed")]
    Closed,
}

/// A message to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Send {
    /// What is stored and handed out again; the queue does not look into it. At most
    /// [`crate::limits::CONTENT_BYTES_MAX`] bytes, and [`crate::limits::REQUEST_BYTES_MAX`] in one request.
    pub content: Bytes,
    /// How long it is invisible at first; the queue's if it does not say. Without effect in a FIFO queue.
    pub delay: Option<Duration>,
    /// Its group, in a FIFO queue; at most 255 bytes.
    pub group: Option<String>,
    /// Its deduplication id, in a FIFO queue.
    pub deduplication: Option<String>,
}

/// A message that was sent: it is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// With [`Sent::generation`], what its id is made of.
    pub number: Number,
    /// Always 0 here.
    pub generation: u8,
    /// Its number in the queue.
    pub sequence: Sequence,
}

/// What to receive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receive {
    /// Most messages, 1 to [`crate::limits::BATCH_MAX`].
    pub count: usize,
    /// How long they are invisible; the queue's if it does not say.
    pub visibility: Option<Duration>,
    /// How long to wait for a first one; the queue's if it does not say.
    pub wait: Option<Duration>,
    /// The receive's name, by which it can be asked for again, in a FIFO queue.
    pub attempt: Option<String>,
}

/// A message that was received, or looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What deletes it. Where it was only looked at it does not.
    pub receipt: Receipt,
    /// With [`Message::generation`], what its id is made of.
    pub number: Number,
    /// How often it was brought back as a new message.
    pub generation: u8,
    /// When it was sent, in milliseconds since the epoch.
    pub sent_at: u64,
    /// When it was received first.
    pub first_received_at: u64,
    /// When it is visible again.
    pub visible_at: u64,
    /// How often it was received.
    pub receives: u16,
    /// Name of the queue that it was moved away from, if this is its dead-letter queue.
    pub source: Option<Arc<str>>,
    /// What was sent.
    pub content: Bytes,
}

/// A message whose content may have to be read.
pub(crate) struct QueueFound {
    pub(crate) message: Message,
    pub(crate) is_here: bool,
}

/// How a queue stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Its messages.
    pub counts: Counts,
    /// When its oldest message was sent, in milliseconds since the epoch.
    pub oldest_sent_at: Option<u64>,
    /// What time it is for the queue.
    pub now: u64,
    /// What happened since the start.
    pub happened: Happened,
    /// Receives that wait.
    pub waiting: usize,
}

/// Where an answer goes. Whoever asked may be gone.
pub(crate) type QueueReply<T> = oneshot::Sender<Result<T, QueueError>>;

/// Answers for each of several receipts.
pub(crate) type Outcomes = crate::contract::Outcomes;

/// Changes a queue's record; the same each time it is called on the same.
pub type VisibilityChange = Box<dyn Fn(&mut QueueRecord) + std::marker::Send + Sync>;

/// What an owner is asked.
pub(crate) enum QueueRequest {
    Send(QueueId, Vec<Send>, QueueReply<Vec<Sent>>),
    Receive(QueueId, Receive, QueueReply<Vec<QueueFound>>),
    Delete(QueueId, Vec<Receipt>, QueueReply<Outcomes>),
    ChangeVisibility(QueueId, Vec<(Receipt, Duration)>, QueueReply<Outcomes>),
    /// What was received can't be handed out: it is visible again, and as if it had not been received.
    GiveBack(QueueId, Vec<Receipt>),
    Peek(QueueId, Sequence, usize, QueueReply<Vec<QueueFound>>),
    Look(QueueId, QueueReply<Figures>),
    Admin(Admin),
    ListTasks(String, String, QueueReply<Vec<MoveTask>>),
    /// What the next checkpoint writes.
    Delta(oneshot::Sender<OwnerDelta>),
    /// A checkpoint was written: the tree has these contents.
    Stored(Vec<Number>),
    /// What the owner wanted to be read has been.
    Ahead(QueueId, Vec<(Sequence, Number, Bytes)>),
    /// Take nothing more, and answer when everything is settled.
    Close(oneshot::Sender<()>),
}

/// What changes more than messages. One at a time: each sees what the one before it did.
pub(crate) enum Admin {
    Create(Box<QueueRecord>, QueueReply<Arc<QueueView>>),
    Update(QueueId, VisibilityChange, QueueReply<()>),
    Drop(QueueId, QueueReply<()>),
    Purge(QueueId, QueueReply<()>),
    StartTask(Box<MoveTask>, QueueReply<u64>),
    CancelTask(u64, String, QueueReply<u64>),
}
