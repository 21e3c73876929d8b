//! Move tasks: messages of a dead-letter queue are brought back, some at a time.

use super::admin::put_task;
use super::{Core, Then, next_sequence};
use crate::ids::{QueueId, Sequence};
use crate::limits::{MOVE_PAUSE_MS, MOVE_STEP};
use crate::record::Op;
use crate::settings::{MoveStatus, MoveTask};

/// A task that runs.
#[derive(Debug, Default)]
pub(super) struct TaskRun {
    /// When its next step is due.
    next_at: u64,
    /// Moves of it that are not durable yet.
    moving: usize,
}

impl Core {
    /// Goes on with the tasks that ran when the store was closed, or crashed.
    pub(super) fn resume_tasks(&mut self) {
        let running = self.shelf.tasks.values().filter(|task| task.status == MoveStatus::Running);
        self.runs = running.map(|task| (task.id, TaskRun::default())).collect();
    }

    pub(super) fn tasks_wake_at(&self) -> Option<u64> {
        if self.closing.is_some() {
            return None;
        }
        self.runs.values().filter(|run| run.moving == 0).map(|run| run.next_at).min()
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
        for task in self.shelf.tasks.values().filter(|task| task.status == MoveStatus::Running) {
            self.runs.entry(task.id).or_default();
        }
        let due = self.runs.iter().filter(|(_, run)| run.moving == 0 && run.next_at <= now);
        for id in due.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.step(id, now);
        }
    }

    fn step(&mut self, id: u64, now: u64) {
        let Some(task) = self.shelf.tasks.get(&id).filter(|task| task.status == MoveStatus::Running).cloned()
        else {
            self.runs.remove(&id);
            return;
        };
        let Some(source) = self.shelf.find(&task.account, &task.source) else {
            return self.end(task, Some("the source queue does not exist"));
        };
        let count = task.rate_max.map_or(MOVE_STEP, |rate| {
            ((u64::from(rate) * MOVE_PAUSE_MS / 1_000) as usize).clamp(1, MOVE_STEP)
        });
        let Some(hosted) = self.shelf.queues.get_mut(&source) else { return };
        let movable = hosted.queue.movable(Sequence(task.upto), count, now);
        if movable.is_empty() {
            return self.end(task, None);
        }
        let mut ops = Vec::with_capacity(movable.len());
        for sequence in movable {
            let Some(target) = self.task_target(&task, source, sequence) else {
                if ops.is_empty() {
                    return self.end(task, Some("the queue that a message goes to is not known"));
                }
                break;
            };
            let hosted = self.shelf.queues.get_mut(&source).expect("it was there");
            if hosted.queue.begin_move(sequence, now).is_none() {
                continue;
            }
            let other = self.shelf.queues.get_mut(&target).expect("it was looked for");
            let arrives = next_sequence(&mut other.queue);
            ops.push(Op::Move {
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
        let run = self.runs.entry(id).or_default();
        (run.moving, run.next_at) = (ops.len(), now + pause);
        self.pend(ops, Then::Moved(Some(id)), false);
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

    /// A step is durable, or was lost.
    pub(super) fn task_moved(&mut self, id: Option<u64>, is_durable: bool, now: u64) {
        let Some(id) = id else { return };
        let Some(run) = self.runs.get_mut(&id) else { return };
        let moved = std::mem::take(&mut run.moving);
        if is_durable && let Some(task) = self.shelf.tasks.get_mut(&id) {
            task.moved += moved as u64;
        }
        if !is_durable {
            run.next_at = now + 1_000;
        }
    }

    fn end(&mut self, mut task: MoveTask, failure: Option<&str>) {
        task.status = if failure.is_some() { MoveStatus::Failed } else { MoveStatus::Completed };
        task.failure = failure.map(str::to_owned);
        // No further step until that is durable.
        self.runs.entry(task.id).or_default().moving = 1;
        self.pend(vec![put_task(&task)], Then::TaskEnded(task.id), false);
    }

    /// The end of a task is durable, or was lost.
    pub(super) fn task_ended(&mut self, id: u64, is_durable: bool, now: u64) {
        match self.runs.get_mut(&id) {
            Some(run) if !is_durable => (run.moving, run.next_at) = (0, now + 1_000),
            _ => drop(self.runs.remove(&id)),
        }
    }
}
