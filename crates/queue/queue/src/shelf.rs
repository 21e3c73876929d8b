//! All queues of one owner, and what a durable operation does to them.
//!
//! [`Shelf::apply`] is the one place where operations take effect: on the way, once the journal has made them durable;
//! and at recovery, when it hands them out again. A receive is the exception: its effect is there at once, and its
//! operation rides on the next sync. What a crash undoes of it is a redelivery.

mod deleted;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use parking_lot::RwLock;

use crate::contents::Contents;
use crate::core::Ahead;
use crate::ids::{Number, QueueId, Sequence};
use crate::queue::{Delta, Queue};
use crate::record::QueueOp;
use crate::settings::{MoveTask, QueueRecord};
use crate::view::QueueView;
use deleted::Deleted;

/// A queue at its owner.
pub(crate) struct Hosted {
    pub(crate) id: QueueId,
    pub(crate) record: Arc<QueueRecord>,
    pub(crate) view: Arc<QueueView>,
    pub(crate) queue: Queue,
    /// When it was purged last.
    pub(crate) purged_at: Option<u64>,
    /// How far its contents were read ahead.
    pub(crate) ahead: Ahead,
    /// The record is not as the checkpoint has it.
    is_changed: bool,
}

impl Hosted {
    pub(crate) fn new(id: QueueId, record: QueueRecord, is_changed: bool) -> Self {
        let record = Arc::new(record);
        let view = QueueView::new(id, Arc::clone(&record));
        let queue = Queue::new(record.settings.clone());
        Self { id, record, view: Arc::new(view), queue, purged_at: None, ahead: Ahead::default(), is_changed }
    }
}

/// What a checkpoint writes of one owner.
#[derive(Default)]
pub(crate) struct ShelfDelta {
    pub(crate) queues: Vec<(QueueId, Option<Arc<QueueRecord>>, Delta)>,
    pub(crate) contents: Vec<(Number, Bytes)>,
    pub(crate) dropped: Vec<ShelfDropped>,
    pub(crate) tasks: Vec<MoveTask>,
    pub(crate) tasks_removed: Vec<u64>,
}

/// A queue that is gone. What the tree has of it is swept, with the contents: so what has left it since the last
/// checkpoint has to be out of there before.
pub(crate) struct ShelfDropped {
    pub(crate) id: QueueId,
    /// As in [`Delta`]. A message that was moved away has its content in another queue now.
    pub(crate) removed: Vec<(Sequence, Option<Number>)>,
    /// As in [`Delta`]: contents that only this queue knows of.
    pub(crate) contents_removed: Vec<Number>,
}

/// Names of queues: by account, and there by name.
pub(crate) type ShelfDirectory = BTreeMap<String, BTreeMap<String, Arc<QueueView>>>;

/// All queues of one owner.
#[derive(Default)]
pub(crate) struct Shelf {
    pub(crate) queues: BTreeMap<QueueId, Hosted>,
    pub(crate) contents: Contents,
    pub(crate) tasks: BTreeMap<u64, MoveTask>,
    tasks_changed: BTreeSet<u64>,
    tasks_removed: Vec<u64>,
    pub(crate) deleted: Deleted,
    /// How many deduplication keys all queues remember.
    pub(crate) keys: Arc<AtomicU64>,
    dropped: Vec<ShelfDropped>,
    /// Shared with everybody who looks for a queue.
    pub(crate) directory: Arc<RwLock<ShelfDirectory>>,
    /// The largest content number that was seen.
    pub(crate) number_last: Number,
    /// The largest queue id that was seen.
    pub(crate) queue_last: QueueId,
}

impl Shelf {
    pub(crate) fn find(&self, account: &str, name: &str) -> Option<QueueId> {
        self.directory.read().get(account)?.get(name).map(|view| view.id)
    }

    /// Puts a queue in that the checkpoint has.
    pub(crate) fn restore(&mut self, id: QueueId, record: QueueRecord) -> &mut Queue {
        self.put(id, record, false, 0);
        &mut self.queues.get_mut(&id).expect("it was put there").queue
    }

    fn put(&mut self, id: QueueId, record: QueueRecord, is_changed: bool, now: u64) {
        self.queue_last = self.queue_last.max(id);
        match self.queues.get_mut(&id) {
            Some(hosted) => {
                hosted.queue.set(record.settings.clone(), now);
                hosted.record = Arc::new(record);
                hosted.view.set(Arc::clone(&hosted.record));
                hosted.is_changed |= is_changed;
            }
            None => {
                let mut hosted = Hosted::new(id, record, is_changed);
                hosted.queue.deduplication.count_in(&self.keys);
                let mut directory = self.directory.write();
                let names = directory.entry(hosted.record.account.clone()).or_default();
                names.insert(hosted.record.name.clone(), Arc::clone(&hosted.view));
                self.queues.insert(id, hosted);
            }
        }
    }

    /// What happened before is not counted.
    pub(crate) fn forget_happened(&mut self) {
        self.queues.values_mut().for_each(|hosted| hosted.queue.happened = Default::default());
    }

    /// When the newest message was sent.
    pub(crate) fn newest_at(&self) -> u64 {
        self.queues.values().map(|hosted| hosted.queue.newest_sent_at()).max().unwrap_or(0)
    }

    /// The largest number of a move task.
    pub(crate) fn task_last(&self) -> u64 {
        self.tasks.keys().next_back().copied().unwrap_or(0)
    }

    /// Divides everything into shelves of owners, by account. The first one gets what belongs to no queue.
    pub(crate) fn divide(&mut self, count: usize, owner_of: impl Fn(&str) -> usize) -> Vec<Shelf> {
        if count == 1 {
            return vec![std::mem::take(self)];
        }
        let shelf = || Shelf { directory: Arc::clone(&self.directory), ..Shelf::default() };
        let mut shelves: Vec<Shelf> = (0..count).map(|_| shelf()).collect();
        let mut contents: BTreeMap<Number, usize> = BTreeMap::new();
        for (id, mut hosted) in std::mem::take(&mut self.queues) {
            let owner = owner_of(&hosted.record.account);
            hosted.queue.deduplication.count_in(&shelves[owner].keys);
            contents.extend(hosted.queue.contents_in_memory().map(|number| (number, owner)));
            shelves[owner].queues.insert(id, hosted);
        }
        for (number, content) in self.contents.drain() {
            if let Some(owner) = contents.get(&number) {
                shelves[*owner].contents.insert(number, content);
            }
        }
        for (id, task) in std::mem::take(&mut self.tasks) {
            let owner = owner_of(&task.account);
            if self.tasks_changed.contains(&id) {
                shelves[owner].tasks_changed.insert(id);
            }
            shelves[owner].tasks.insert(id, task);
        }
        for (name, at) in self.deleted.drain() {
            shelves[owner_of(&name.0)].deleted.insert(name, at);
        }
        shelves[0].dropped = std::mem::take(&mut self.dropped);
        shelves[0].tasks_removed = std::mem::take(&mut self.tasks_removed);
        shelves
    }

    /// Whether the queue is there that a task takes messages from.
    pub(crate) fn has_source(&self, task: &MoveTask) -> bool {
        self.find(&task.account, &task.source).is_some()
    }

    pub(crate) fn put_task(&mut self, task: MoveTask, is_changed: bool) {
        if is_changed {
            self.tasks_changed.insert(task.id);
        }
        self.tasks.insert(task.id, task);
    }

    pub(crate) fn remove_task(&mut self, id: u64) {
        self.tasks.remove(&id);
        self.tasks_changed.remove(&id);
        self.tasks_removed.push(id);
    }

    /// Lets a durable operation take effect. Without effect on what is gone.
    pub(crate) fn apply(&mut self, op: QueueOp, now: u64) {
        match op {
            QueueOp::Send { queue, arrival, content } => {
                self.number_last = self.number_last.max(arrival.number);
                let Some(hosted) = self.queues.get_mut(&queue) else { return };
                self.contents.insert(arrival.number, content);
                hosted.queue.apply_arrival(&arrival, now);
            }
            QueueOp::Receive { queue, sequence, token, receives, at, visible_at } => {
                let Some(hosted) = self.queues.get_mut(&queue) else { return };
                hosted.queue.apply_receive(sequence, token, receives, at, visible_at, now);
            }
            QueueOp::Delete { queue, sequence } => {
                let Some(hosted) = self.queues.get_mut(&queue) else { return };
                hosted.queue.apply_delete(sequence, now);
                self.forget_dropped(queue);
            }
            QueueOp::Change { queue, sequence, token, visible_at } => {
                let Some(hosted) = self.queues.get_mut(&queue) else { return };
                hosted.queue.apply_change(sequence, token, visible_at, now);
            }
            QueueOp::Move { queue, sequence, to, arrives, sent_at, is_new, at } => {
                let Some(mut source) = self.queues.remove(&queue) else { return };
                match self.queues.get_mut(&to) {
                    // A message stays where it is rather than nowhere.
                    None => source.queue.abort_move(sequence, now),
                    Some(target) => {
                        if let Some(carried) = source.queue.finish_move(sequence, now) {
                            let name: Arc<str> = source.record.name.as_str().into();
                            let name = (!is_new).then_some(&name);
                            target.queue.apply_moved(arrives, &carried, sent_at, name, is_new, (at, now));
                            source.queue.happened.redriven += u64::from(!is_new);
                        }
                    }
                }
                self.queues.insert(queue, source);
            }
            QueueOp::Purge { queue, upto, at } => {
                let Some(hosted) = self.queues.get_mut(&queue) else { return };
                hosted.purged_at = Some(at);
                hosted.queue.apply_purge(upto, now);
                self.forget_dropped(queue);
            }
            QueueOp::Put { queue, record } => match serde_json::from_slice(&record) {
                Ok(record) => self.put(queue, record, true, now),
                Err(error) => tracing::error!(%queue, %error, "a queue's record makes no sense"),
            },
            QueueOp::Drop { queue, at } => self.drop_queue(queue, at, now),
            QueueOp::Task { task } => match serde_json::from_slice(&task) {
                // A task ends when its queue is deleted, whatever was on its way.
                Ok(task) if !self.has_source(&task) => {}
                Ok(task) => self.put_task(task, true),
                Err(error) => tracing::error!(%error, "a move task's record makes no sense"),
            },
            QueueOp::Nothing => {}
        }
    }

    fn drop_queue(&mut self, id: QueueId, at: u64, now: u64) {
        let Some(mut hosted) = self.queues.remove(&id) else { return };
        let (account, name) = (hosted.record.account.clone(), hosted.record.name.clone());
        let mut directory = self.directory.write();
        if let Some(names) = directory.get_mut(&account)
            && names.get(&name).is_some_and(|view| view.id == id)
        {
            names.remove(&name);
            self.deleted.insert((account, name), at);
        }
        drop(directory);
        let tasks = self.tasks.values();
        let of_it =
            tasks.filter(|task| task.account == hosted.record.account && task.source == hosted.record.name);
        for task in of_it.map(|task| task.id).collect::<Vec<_>>() {
            self.remove_task(task);
        }
        let last = hosted.queue.last();
        hosted.queue.apply_purge(last, now);
        for number in hosted.queue.take_dropped() {
            self.contents.remove(number);
        }
        let Delta { removed, contents_removed, .. } = hosted.queue.take_delta();
        self.dropped.push(ShelfDropped { id, removed, contents_removed });
    }

    /// Forgets the deduplication keys that are too old, of all queues.
    pub(crate) fn expire_keys(&mut self, now: u64) {
        self.queues.values_mut().for_each(|hosted| hosted.queue.deduplication.expire(now));
    }

    /// Forgets contents in memory that nobody will ask for.
    pub(crate) fn forget_dropped(&mut self, queue: QueueId) {
        let Some(hosted) = self.queues.get_mut(&queue) else { return };
        for number in hosted.queue.take_dropped() {
            self.contents.remove(number);
        }
    }

    /// What the next checkpoint writes; as of now it counts as written.
    pub(crate) fn take_delta(&mut self, now: u64) -> ShelfDelta {
        let mut delta = ShelfDelta::default();
        let Self { queues, contents, .. } = self;
        for hosted in queues.values_mut() {
            hosted.queue.advance(now);
            for number in hosted.queue.take_dropped() {
                contents.remove(number);
            }
            if hosted.queue.is_clean() && !hosted.is_changed {
                continue;
            }
            let record = std::mem::take(&mut hosted.is_changed).then(|| Arc::clone(&hosted.record));
            let queue = hosted.queue.take_delta();
            for number in queue.upserts.iter().filter_map(|upsert| upsert.content) {
                // A content that is nowhere belongs to a message that was purged while it moved.
                delta.contents.extend(contents.get(number).map(|content| (number, content)));
            }
            delta.queues.push((hosted.id, record, queue));
        }
        delta.dropped = std::mem::take(&mut self.dropped);
        let changed = std::mem::take(&mut self.tasks_changed);
        delta.tasks = changed.into_iter().filter_map(|id| self.tasks.get(&id).cloned()).collect();
        delta.tasks_removed = std::mem::take(&mut self.tasks_removed);
        delta
    }
}
