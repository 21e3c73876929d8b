//! Move tasks: messages of a dead-letter queue are brought back, some at a time.
//!
//! A task has one operation of its own under way at a time: a step, its end, or its cancellation. So what it says that
//! it has moved is what it has.

use std::collections::{BTreeMap, BTreeSet};

use super::admin::put_task;
use super::{Core, Then, next_sequence};
use crate::ids::{QueueId, Sequence};
use crate::limits::{MOVE_PAUSE_MS, MOVE_STEP};
use crate::record::QueueOp;
use crate::settings::{MoveStatus, MoveTask, NO_QUEUE, NO_SOURCE};

/// The tasks that run.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// When each one's next step is due; none while something of it is under way.
    next_at: BTreeMap<u64, Option<u64>>,
    due: BTreeSet<(u64, u64)>,
}

impl Runs {
    pub(super) fn set(&mut self, id: u64, next_at: Option<u64>) {
        self.remove(id);
        self.next_at.insert(id, next_at);
        self.due.extend(next_at.map(|at| (at, id)));
    }

    pub(super) fn remove(&mut self, id: u64) {
        if let Some(Some(at)) = self.next_at.remove(&id) {
            self.due.remove(&(at, id));
        }
    }

    pub(super) fn is_under_way(&self, id: u64) -> bool {
        self.next_at.get(&id) == Some(&None)
    }
}

/// A step that is not durable yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskStep {
    task: u64,
    moving: u64,
    /// When the next one is due.
    next_at: u64,
}

impl Core {
    /// Goes on with the tasks that ran when the store was closed, or crashed.
    pub(super) fn resume_tasks(&mut self) {
        for task in self.shelf.tasks.values().filter(|task| task.status == MoveStatus::Running) {
            self.runs.set(task.id, Some(0));
        }
    }

    pub(super) fn tasks_wake_at(&self) -> Option<u64> {
        if self.closing.is_some() {
            return None;
        }
        self.runs.due.first().map(|(at, _)| *at)
    }

    /// The tasks of a queue, newest first.
    pub(super) fn list_tasks(&self, account: &str, source: &str) -> Vec<MoveTask> {
        let tasks = self.shelf.tasks.values().rev();
        tasks.filter(|task| task.account == account && task.source == source).cloned().collect()
    }

    pub(super) fn run_tasks(&mut self, now: u64) {
        if self.closing.is_some() {
            return;
        }
        while let Some((_, id)) = self.runs.due.first().copied().filter(|(at, _)| *at <= now) {
            self.runs.set(id, None);
            self.step(id, now);
        }
    }

    /// One step of a task whose run counts as under way: until [`Core::task_moved`], or [`Core::task_ended`].
    fn step(&mut self, id: u64, now: u64) {
        let Some(task) = self.shelf.tasks.get(&id).filter(|task| task.status == MoveStatus::Running).cloned()
        else {
            return self.runs.remove(id);
        };
        let Some(source) = self.shelf.find(&task.account, &task.source) else {
            return self.end(task, Some(NO_QUEUE));
        };
        let count = task.rate_max.map_or(MOVE_STEP, |rate| {
            ((u64::from(rate) * MOVE_PAUSE_MS / 1_000) as usize).clamp(1, MOVE_STEP)
        });
        let hosted = self.shelf.queues.get_mut(&source).expect("it was found");
        let movable = hosted.queue.movable(Sequence(task.upto), count, now);
        if movable.is_empty() {
            return self.end(task, None);
        }
        let mut ops = Vec::with_capacity(movable.len());
        for sequence in movable {
            let Some(target) = self.task_target(&task, source, sequence) else {
                if ops.is_empty() {
                    let why = if task.target.is_some() { NO_QUEUE } else { NO_SOURCE };
                    return self.end(task, Some(why));
                }
                break;
            };
            let hosted = self.shelf.queues.get_mut(&source).expect("it was there");
            if hosted.queue.begin_move(sequence, now).is_none() {
                continue;
            }
            let other = self.shelf.queues.get_mut(&target).expect("it was looked for");
            let arrives = next_sequence(&mut other.queue);
            ops.push(QueueOp::Move {
                queue: source,
                sequence,
                to: target,
                arrives,
                sent_at: now,
                is_new: true,
                at: now,
            });
        }
        let pause =
            task.rate_max.map_or(MOVE_PAUSE_MS, |rate| ops.len() as u64 * 1_000 / u64::from(rate.max(1)));
        let step = TaskStep { task: id, moving: ops.len() as u64, next_at: now + pause };
        self.pend(ops, Then::Moved(Some(step)), false);
    }

    /// Where a message goes: where the task says, or where it came from.
    fn task_target(&self, task: &MoveTask, source: QueueId, sequence: Sequence) -> Option<QueueId> {
        let hosted = self.shelf.queues.get(&source)?;
        let name = match &task.target {
            Some(target) => target.clone(),
            None => hosted.queue.came_from(sequence)?.to_string(),
        };
        let target = self.shelf.find(&task.account, &name)?;
        let other = self.shelf.queues.get(&target)?;
        (target != source && other.queue.is_fifo() == hosted.queue.is_fifo()).then_some(target)
    }

    /// A step is durable, or was lost: then it is made again, at that time.
    pub(super) fn task_moved(&mut self, step: Option<TaskStep>, lost_until: Option<u64>) {
        let Some(TaskStep { task, moving, next_at }) = step else { return };
        if lost_until.is_none()
            && let Some(task) = self.shelf.tasks.get_mut(&task)
        {
            task.moved += moving;
        }
        self.runs.set(task, Some(lost_until.unwrap_or(next_at)));
    }

    fn end(&mut self, mut task: MoveTask, failure: Option<&str>) {
        task.status = if failure.is_some() { MoveStatus::Failed } else { MoveStatus::Completed };
        task.failure = failure.map(str::to_owned);
        self.pend(vec![put_task(&task)], Then::TaskEnded(task.id), false);
    }

    /// The end of a task is durable, or was lost: then it goes on at that time.
    pub(super) fn task_ended(&mut self, id: u64, lost_until: Option<u64>) {
        match lost_until {
            Some(until) => self.runs.set(id, Some(until)),
            None => self.runs.remove(id),
        }
    }
}
