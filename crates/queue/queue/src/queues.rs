//! The handle that everybody holds.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::RwLock;
use tailwater_env::{Env, Task};
use tailwater_journal::{Journal, JournalPosition};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::checkpoint::Checkpointer;
use crate::clock::QueueClock;
use crate::core::{Core, Numbers};
use crate::ids::{QueueId, Receipt, Secret, Sequence};
use crate::limits::{CHECKPOINT_BYTES, READS_AHEAD_MAX, READS_MAX};
use crate::owner::{self, QueueDependencies};
use crate::queue::ReceiptError;
use crate::reader::{Read, Reader};
use crate::request::{
    Admin, Figures, Message, QueueError, QueueFound, QueueReply, QueueRequest, Receive, Send, Sent,
};
use crate::settings::{MoveTask, QueueRecord};
use crate::shelf::{Shelf, ShelfDirectory};
use crate::tree::Tree;
use crate::view::QueueView;

/// How the queues work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuesConfig {
    /// Owner tasks that the accounts are spread over, at least 1.
    pub owners: usize,
    /// Bytes of an owner's journal records after which a checkpoint is taken.
    pub checkpoint_bytes: u64,
    /// Whether who reads contents waits for a checkpoint that is being written. redb keeps locks while it is at the
    /// disk, so where all tasks run on one thread that has to be.
    pub one_at_the_tree: bool,
    /// Whether a minute has to be between two purges of a queue, and between its deletion and its name's next use.
    pub cooldowns: bool,
}

impl Default for QueuesConfig {
    fn default() -> Self {
        Self { owners: 1, checkpoint_bytes: CHECKPOINT_BYTES, one_at_the_tree: false, cooldowns: true }
    }
}

/// All queues of a store; cheap to clone. They end with the last handle, as in a crash of the process.
#[derive(Clone)]
pub struct Queues {
    inner: Arc<QueuesInner>,
}

struct QueuesInner {
    secret: Secret,
    owners: Vec<mpsc::Sender<QueueRequest>>,
    directory: Arc<RwLock<ShelfDirectory>>,
    reads: mpsc::Sender<Read>,
    checkpoints: mpsc::Sender<oneshot::Sender<()>>,
    _tasks: Vec<Task>,
}

impl std::fmt::Debug for Queues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queues")
    }
}

impl Queues {
    /// Goes on from what recovery arrived at.
    pub(crate) fn start(
        env: &Env,
        journal: Journal,
        tree: Arc<Tree>,
        secret: Secret,
        mut shelf: Shelf,
        config: QueuesConfig,
    ) -> Self {
        let numbers = Arc::new(Numbers {
            content: AtomicU64::new(shelf.number_last.0 + 1),
            queue: AtomicU64::new(shelf.queue_last.0.max(shelf.task_last()) + 1),
        });
        shelf.forget_happened();
        let clock = QueueClock::start(env, shelf.newest_at());
        let directory = Arc::clone(&shelf.directory);
        let checkpoint_due = Arc::new(Notify::new());
        let count = config.owners.max(1);
        let mut tasks = Vec::new();
        let shelves = shelf.divide(count, |account| owner_of(account, count));
        let (aheads, aheads_asked) = mpsc::channel(READS_AHEAD_MAX);
        let owners = shelves.into_iter().enumerate().map(|(number, shelf)| {
            let dependencies = QueueDependencies {
                env: env.clone(),
                journal: journal.clone(),
                clock: clock.clone(),
                number,
                aheads: aheads.clone(),
                checkpoint_due: Arc::clone(&checkpoint_due),
                checkpoint_bytes: config.checkpoint_bytes,
            };
            let mut core = Core::new(shelf, Arc::clone(&numbers), env.random_u64());
            core.cooldowns = config.cooldowns;
            let (owner, task) = owner::start(dependencies, core);
            tasks.push(task);
            owner
        });
        let owners: Vec<_> = owners.collect();
        let (checkpoints, asked) = mpsc::channel(1);
        let gate = config.one_at_the_tree.then(|| Arc::new(tokio::sync::Mutex::new(())));
        let checkpointer = Checkpointer {
            env: env.clone(),
            journal,
            tree: Arc::clone(&tree),
            owners: owners.clone(),
            due: checkpoint_due,
            gate: gate.clone(),
            covered: JournalPosition::default(),
        };
        tasks.push(env.spawn_dedicated("queue-checkpoint", checkpointer.run(asked)));
        let (reads, queue) = mpsc::channel(READS_MAX);
        let reader = Reader { tree, owners: owners.clone(), gate };
        tasks.push(env.spawn_dedicated("queue-reader", reader.run(queue, aheads_asked)));
        Self { inner: Arc::new(QueuesInner { secret, owners, directory, reads, checkpoints, _tasks: tasks }) }
    }

    /// The key of receipts and message ids.
    pub fn secret(&self) -> &Secret {
        &self.inner.secret
    }

    /// A queue, by its account and name.
    pub fn find(&self, account: &str, name: &str) -> Option<Arc<QueueView>> {
        self.inner.directory.read().get(account)?.get(name).cloned()
    }

    /// Queues of an account whose names begin with `prefix` and are greater than `after`, by name; `most` of them.
    pub fn list(&self, account: &str, prefix: &str, after: Option<&str>, most: usize) -> Vec<Arc<QueueView>> {
        let directory = self.inner.directory.read();
        let Some(names) = directory.get(account) else { return Vec::new() };
        let from = after.map_or(std::ops::Bound::Included(prefix), |after| match after < prefix {
            true => std::ops::Bound::Included(prefix),
            false => std::ops::Bound::Excluded(after),
        });
        let queues = names.range::<str, _>((from, std::ops::Bound::Unbounded));
        let queues = queues.take_while(|(name, _)| name.starts_with(prefix));
        queues.take(most).map(|(_, view)| Arc::clone(view)).collect()
    }

    /// All queues.
    pub fn all(&self) -> Vec<Arc<QueueView>> {
        let directory = self.inner.directory.read();
        directory.values().flat_map(|names| names.values().cloned()).collect()
    }

    /// Creates a queue; its times are filled in. Answers when that is durable.
    pub async fn create(&self, record: QueueRecord) -> Result<Arc<QueueView>, QueueError> {
        let owner = self.owner(&record.account);
        self.ask(owner, |reply| QueueRequest::Admin(Admin::Create(Box::new(record), reply))).await
    }

    /// Changes what is set for a queue. Answers when that is durable.
    pub async fn update(
        &self,
        queue: &QueueView,
        change: impl Fn(&mut QueueRecord) + std::marker::Send + Sync + 'static,
    ) -> Result<(), QueueError> {
        let change = Box::new(change);
        self.ask(self.owner(&queue.account), |reply| {
            QueueRequest::Admin(Admin::Update(queue.id, change, reply))
        })
        .await
    }

    /// Deletes a queue and all its messages. Answers when that is durable.
    pub async fn delete_queue(&self, queue: &QueueView) -> Result<(), QueueError> {
        self.ask(self.owner(&queue.account), |reply| QueueRequest::Admin(Admin::Drop(queue.id, reply))).await
    }

    /// Deletes all messages of a queue. Answers when that is durable.
    pub async fn purge(&self, queue: &QueueView) -> Result<(), QueueError> {
        self.ask(self.owner(&queue.account), |reply| QueueRequest::Admin(Admin::Purge(queue.id, reply))).await
    }

    /// Sends messages, all or none. Answers when they are durable. Dropping it may leave them sent.
    pub async fn send(&self, queue: &QueueView, sends: Vec<Send>) -> Result<Vec<Sent>, QueueError> {
        self.ask(self.owner(&queue.account), |reply| QueueRequest::Send(queue.id, sends, reply)).await
    }

    /// Receives messages; none when nothing is visible for as long as it may wait. Dropping it while it waits receives
    /// nothing; what it had received just then is visible again.
    pub async fn receive(&self, queue: &QueueView, receive: Receive) -> Result<Vec<Message>, QueueError> {
        let owner = self.owner(&queue.account);
        let (reply, answer) = oneshot::channel();
        owner.try_send(QueueRequest::Receive(queue.id, receive, reply)).map_err(|error| not_taken(&error))?;
        let mut receiving = Receiving { owner, queue: queue.id, answer, receipts: Vec::new() };
        let found = (&mut receiving.answer).await.unwrap_or(Err(QueueError::Closed))?;
        receiving.receipts = found.iter().map(|found| found.message.receipt).collect();
        let messages = self.complete(found).await?;
        receiving.receipts.clear();
        Ok(messages)
    }

    /// Looks at messages from a number on, oldest first, visible or not, without receiving them.
    pub async fn peek(
        &self,
        queue: &QueueView,
        from: Sequence,
        count: usize,
    ) -> Result<Vec<Message>, QueueError> {
        let owner = self.owner(&queue.account);
        let found = self.ask(owner, |reply| QueueRequest::Peek(queue.id, from, count, reply)).await?;
        self.complete(found).await
    }

    /// Deletes the messages of receipts; an answer for each, when the deletes are durable.
    pub async fn delete(
        &self,
        queue: &QueueView,
        receipts: Vec<Receipt>,
    ) -> Result<Vec<Result<(), ReceiptError>>, QueueError> {
        self.ask(self.owner(&queue.account), |reply| QueueRequest::Delete(queue.id, receipts, reply)).await
    }

    /// Makes the messages of receipts visible in so long from now; an answer for each, when that is durable.
    pub async fn change_visibility(
        &self,
        queue: &QueueView,
        changes: Vec<(Receipt, Duration)>,
    ) -> Result<Vec<Result<(), ReceiptError>>, QueueError> {
        let owner = self.owner(&queue.account);
        self.ask(owner, |reply| QueueRequest::ChangeVisibility(queue.id, changes, reply)).await
    }

    /// What was received could not be handed out: it is visible again, and as if it had not been received. Does not
    /// wait: an error says that messages are visible when their timeout is over.
    pub fn give_back(&self, queue: &QueueView, receipts: Vec<Receipt>) -> Result<(), QueueError> {
        let given = self.owner(&queue.account).try_send(QueueRequest::GiveBack(queue.id, receipts));
        given.map_err(|error| not_taken(&error))
    }

    /// How a queue stands.
    pub async fn figures(&self, queue: &QueueView) -> Result<Figures, QueueError> {
        self.ask(self.owner(&queue.account), |reply| QueueRequest::Look(queue.id, reply)).await
    }

    /// Begins to bring messages back; the task's number. Id, counts and times are filled in.
    pub async fn start_move(&self, task: MoveTask) -> Result<u64, QueueError> {
        let owner = self.owner(&task.account);
        self.ask(owner, |reply| QueueRequest::Admin(Admin::StartTask(Box::new(task), reply))).await
    }

    /// Ends a move task; how many messages it has moved.
    pub async fn cancel_move(&self, account: &str, task: u64) -> Result<u64, QueueError> {
        let of = account.to_owned();
        self.ask(self.owner(account), |reply| QueueRequest::Admin(Admin::CancelTask(task, of, reply))).await
    }

    /// The move tasks of a queue, newest first.
    pub async fn list_moves(&self, account: &str, source: &str) -> Result<Vec<MoveTask>, QueueError> {
        let (of, source) = (account.to_owned(), source.to_owned());
        self.ask(self.owner(account), |reply| QueueRequest::ListTasks(of, source, reply)).await
    }

    /// Takes a checkpoint and waits for it.
    pub async fn checkpoint(&self) {
        let (reply, done) = oneshot::channel();
        if self.inner.checkpoints.send(reply).await.is_ok() {
            let _ = done.await;
        }
    }

    /// Takes nothing more, answers what is under way, and takes a checkpoint, so that the next start has nothing to
    /// replay. The journal is closed by whoever opened it, after this.
    pub async fn close(&self) {
        for owner in &self.inner.owners {
            let (reply, done) = oneshot::channel();
            if owner.send(QueueRequest::Close(reply)).await.is_ok() {
                let _ = done.await;
            }
        }
        self.checkpoint().await;
    }

    fn owner(&self, account: &str) -> &mpsc::Sender<QueueRequest> {
        &self.inner.owners[owner_of(account, self.inner.owners.len())]
    }

    async fn ask<T>(
        &self,
        owner: &mpsc::Sender<QueueRequest>,
        request: impl FnOnce(QueueReply<T>) -> QueueRequest,
    ) -> Result<T, QueueError> {
        let (reply, answer) = oneshot::channel();
        owner.try_send(request(reply)).map_err(|error| not_taken(&error))?;
        answer.await.unwrap_or(Err(QueueError::Closed))
    }

    /// Reads what is not in memory.
    async fn complete(&self, found: Vec<QueueFound>) -> Result<Vec<Message>, QueueError> {
        let missing = found.iter().filter(|found| !found.is_here);
        let numbers: Vec<_> = missing.map(|found| found.message.number).collect();
        if numbers.is_empty() {
            return Ok(found.into_iter().map(|found| found.message).collect());
        }
        let (reply, read) = oneshot::channel();
        let read_error = |error: &dyn std::fmt::Display| QueueError::Unavailable(error.to_string());
        self.inner.reads.send(Read { numbers, reply }).await.map_err(|_| QueueError::Closed)?;
        let contents = read.await.map_err(|_| QueueError::Closed)?.map_err(|error| read_error(&error))?;
        let mut contents = contents.into_iter();
        let complete = found.into_iter().filter_map(|found| {
            let mut message = found.message;
            if !found.is_here {
                // None of it: it was deleted since.
                message.content = contents.next().flatten()?;
            }
            Some(message)
        });
        Ok(complete.collect())
    }
}

/// A receive until its messages are handed out. Dropped before, as whoever asked is gone, or one of them can't be read,
/// it gives them back.
struct Receiving<'a> {
    owner: &'a mpsc::Sender<QueueRequest>,
    queue: QueueId,
    answer: oneshot::Receiver<Result<Vec<QueueFound>, QueueError>>,
    receipts: Vec<Receipt>,
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        // What is answered after this the owner takes back itself.
        self.answer.close();
        if let Ok(Ok(found)) = self.answer.try_recv() {
            self.receipts.extend(found.iter().map(|found| found.message.receipt));
        }
        if !self.receipts.is_empty() {
            // If there is no room for that either, they are visible again when their timeout is over.
            let given = QueueRequest::GiveBack(self.queue, std::mem::take(&mut self.receipts));
            let _ = self.owner.try_send(given);
        }
    }
}

fn not_taken<T>(error: &mpsc::error::TrySendError<T>) -> QueueError {
    match error {
        mpsc::error::TrySendError::Full(_) => QueueError::Overloaded("too many requests are queued"),
        mpsc::error::TrySendError::Closed(_) => QueueError::Closed,
    }
}

/// The owner of an account's queues: the same after every start with as many owners.
fn owner_of(account: &str, owners: usize) -> usize {
    let sum = account.bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    sum % owners
}
