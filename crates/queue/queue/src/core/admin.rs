//! Creation, change, deletion and purging of queues; the begin and end of move tasks.
//!
//! One at a time, and each only when the one before it is durable: so each sees what is, and nothing has to be undone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::{Core, Then};
use crate::ids::QueueId;
use crate::limits::{MOVE_TASKS_MAX, PURGE_PAUSE_MS};
use crate::record::QueueOp;
use crate::request::{Admin, QueueError, QueueReply};
use crate::settings::{MoveStatus, MoveTask, QueueRecord};
use crate::view::QueueView;

impl Core {
    /// Takes what was asked for, unless something before it is under way.
    pub(super) fn take_admin(&mut self, now: u64) {
        while self.admin_pending == 0
            && let Some(admin) = self.admin_held.pop_front()
        {
            match admin {
                // What it has moved is known when its step is durable, or lost: then this is looked at again.
                Admin::CancelTask(id, ..) if self.runs.is_under_way(id) => {
                    return self.admin_held.push_front(admin);
                }
                Admin::Create(record, reply) => self.create(*record, reply, now),
                Admin::Update(id, change, reply) => match self.shelf.queues.get(&id) {
                    None => drop(reply.send(Err(QueueError::NoQueue))),
                    Some(hosted) => {
                        let mut record = QueueRecord::clone(&hosted.record);
                        change(&mut record);
                        record.modified_at = now;
                        self.pend(vec![put(id, &record)], Then::Done(reply), true);
                    }
                },
                Admin::Drop(id, reply) => match self.shelf.queues.contains_key(&id) {
                    false => drop(reply.send(Err(QueueError::NoQueue))),
                    true => self.pend(vec![QueueOp::Drop { queue: id, at: now }], Then::Done(reply), true),
                },
                Admin::Purge(id, reply) => self.purge(id, reply, now),
                Admin::StartTask(task, reply) => self.start_task(*task, reply, now),
                Admin::CancelTask(id, account, reply) => self.cancel_task(id, &account, reply),
            }
        }
    }

    fn create(&mut self, mut record: QueueRecord, reply: QueueReply<Arc<QueueView>>, now: u64) {
        if let Some(id) = self.shelf.find(&record.account, &record.name) {
            let view = Arc::clone(&self.shelf.queues[&id].view);
            let _ = reply.send(Err(QueueError::Exists(view)));
            return;
        }
        let name = (record.account.clone(), record.name.clone());
        if self.cooldowns && self.shelf.deleted.is_held(&name, now) {
            let _ = reply.send(Err(QueueError::DeletedRecently));
            return;
        }
        (record.created_at, record.modified_at) = (now, now);
        let id = QueueId(self.numbers.queue.fetch_add(1, Ordering::Relaxed));
        self.pend(vec![put(id, &record)], Then::Created(id, reply), true);
    }

    fn purge(&mut self, id: QueueId, reply: QueueReply<()>, now: u64) {
        let Some(hosted) = self.shelf.queues.get(&id) else {
            let _ = reply.send(Err(QueueError::NoQueue));
            return;
        };
        if self.cooldowns && hosted.purged_at.is_some_and(|at| now < at + PURGE_PAUSE_MS) {
            let _ = reply.send(Err(QueueError::PurgedRecently));
            return;
        }
        let upto = hosted.queue.last();
        self.pend(vec![QueueOp::Purge { queue: id, upto, at: now }], Then::Done(reply), true);
    }

    fn start_task(&mut self, mut task: MoveTask, reply: QueueReply<u64>, now: u64) {
        let Some(id) = self.shelf.find(&task.account, &task.source) else {
            let _ = reply.send(Err(QueueError::NoQueue));
            return;
        };
        let mut others: Vec<u64> = Vec::new();
        for other in self.shelf.tasks.values() {
            if other.account == task.account && other.source == task.source {
                if other.status == MoveStatus::Running {
                    let _ = reply.send(Err(QueueError::TaskRuns));
                    return;
                }
                others.push(other.id);
            }
        }
        for old in others.iter().take(others.len().saturating_sub(MOVE_TASKS_MAX - 1)) {
            self.shelf.remove_task(*old);
        }
        let queue = &self.shelf.queues[&id].queue;
        (task.total, task.upto, task.started_at) = (queue.counts().visible, queue.last().0, now);
        task.id = self.numbers.queue.fetch_add(1, Ordering::Relaxed);
        let id = task.id;
        self.pend(vec![put_task(&task)], Then::TaskStarted(id, reply), true);
    }

    fn cancel_task(&mut self, id: u64, account: &str, reply: QueueReply<u64>) {
        let known = self.shelf.tasks.get(&id).filter(|task| task.account == account);
        let Some(task) = known.filter(|task| task.status == MoveStatus::Running) else {
            let _ = reply.send(Err(QueueError::NoTask));
            return;
        };
        let task = MoveTask { status: MoveStatus::Cancelled, ..task.clone() };
        // No step until that is durable, or lost.
        self.runs.set(id, None);
        self.pend(vec![put_task(&task)], Then::TaskCancelled(id, task.moved, reply), true);
    }
}

fn put(queue: QueueId, record: &QueueRecord) -> QueueOp {
    QueueOp::Put { queue, record: Bytes::from(serde_json::to_vec(record).expect("it is plain data")) }
}

pub(super) fn put_task(task: &MoveTask) -> QueueOp {
    QueueOp::Task { task: Bytes::from(serde_json::to_vec(task).expect("it is plain data")) }
}
