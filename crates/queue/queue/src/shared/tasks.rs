//! Move tasks: bringing dead letters back.
//!
//! A task is a record, and whichever front end runs it notes in it how far it is. As long as it does there is a mark,
//! which ends by itself: a task without one has lost its front end, and another one goes on. A step receives messages,
//! sends them as new ones, and deletes them: a crash between leaves some of them twice. What a step could not move is
//! visible again, at once or when its timeout is over; a task ends when nothing is left of what it has to move, visible
//! or not.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};

use super::numbers::last_at;
use super::receiving::Want;
use super::rows::{Body, GroupKey, Record};
use super::search::{Search, SearchLooked, Witness};
use super::{KnownQueue, SharedFront};
use crate::ids::{Number, Receipt};
use crate::limits::{BATCH_MAX, MOVE_PAUSE_MS, MOVE_RETRY_MS, MOVE_TASKS_MAX};
use crate::request::{Message, QueueError};
use crate::settings::{MoveStatus, MoveTask, NO_QUEUE, NO_SOURCE};

/// Where the tasks are that run, by id, in the value of which is the account and source.
const RUNNING: &str = "moves";

/// How long a running task's mark stays without being renewed, in seconds.
const MARK_S: u32 = 15;

/// How often it is renewed while a step goes on, which may look at a whole queue: several times while it lasts.
const RENEW_EVERY: Duration = Duration::from_secs(MARK_S as u64 / 3);

/// How often a front end looks for tasks that nobody runs, in milliseconds.
const LOOK_MS: u64 = 10_000;

/// How long the messages of a step are invisible for others.
const STEP_VISIBILITY: Duration = Duration::from_secs(60);

fn space_of(account: &str, source: &str) -> String {
    format!("tasks/{account}/{source}")
}

fn key_of(id: u64) -> String {
    format!("{id:020}")
}

fn read(record: &Record) -> Result<MoveTask, QueueError> {
    serde_json::from_slice(&record.value)
        .map_err(|error| QueueError::Unavailable(format!("a move task's record makes no sense: {error}")))
}

fn write(task: &MoveTask) -> Option<Bytes> {
    Some(Bytes::from(serde_json::to_vec(task).expect("it is plain data")))
}

impl SharedFront {
    pub(super) async fn start_move(self: &Arc<Self>, mut task: MoveTask) -> Result<u64, QueueError> {
        let source = self.directory.find(self, &task.account, &task.source).await?;
        let (source, _) = source.ok_or(QueueError::NoQueue)?;
        let known = self.known(&source).await?;
        let space = space_of(&task.account, &task.source);
        let others = self.rows.records(&space).await?;
        for (_, other) in &others {
            if read(other)?.status == MoveStatus::Running {
                return Err(QueueError::TaskRuns);
            }
        }
        for (key, old) in others.iter().take((others.len() + 1).saturating_sub(MOVE_TASKS_MAX)) {
            self.rows.write_record(&space, key, None, Some(old.version), 0).await?;
        }
        let id = self.numbers.next(&self.env, self.now())?.0;
        task.total = self.figures(&known).await?.counts.visible;
        let now = self.now();
        // What was sent there by a clock that is ahead of this one is there, too.
        (task.id, task.upto, task.started_at) = (id, last_at(now + self.config.skew_ms).0, now);
        if !self.rows.write_record(&space, &key_of(id), write(&task), None, 0).await? {
            return Err(QueueError::TaskRuns);
        }
        // Of two that were begun at the same time the later one to look sees the other, whichever has the greater id.
        // Both may.
        for (key, other) in self.rows.records(&space).await? {
            if key != key_of(id) && read(&other)?.status == MoveStatus::Running {
                self.rows.write_record(&space, &key_of(id), None, Some(1), 0).await?;
                return Err(QueueError::TaskRuns);
            }
        }
        self.run_detached(task);
        Ok(id)
    }

    pub(super) async fn cancel_move(&self, account: &str, id: u64) -> Result<u64, QueueError> {
        for view in self.directory.list(self, account, "", None, usize::MAX).await? {
            let space = space_of(account, &view.name);
            while let Some(record) = self.rows.record(&space, &key_of(id)).await? {
                let mut task = read(&record)?;
                if task.status != MoveStatus::Running {
                    return Err(QueueError::NoTask);
                }
                task.status = MoveStatus::Cancelled;
                let version = Some(record.version);
                if self.rows.write_record(&space, &key_of(id), write(&task), version, 0).await? {
                    return Ok(task.moved);
                }
            }
        }
        Err(QueueError::NoTask)
    }

    pub(super) async fn list_moves(&self, account: &str, source: &str) -> Result<Vec<MoveTask>, QueueError> {
        let records = self.rows.records(&space_of(account, source)).await?;
        records.iter().rev().map(|(_, record)| read(record)).collect()
    }

    /// Ends and forgets the tasks of a queue that is deleted: another one of its name has none.
    pub(super) async fn drop_tasks(&self, account: &str, source: &str) -> Result<(), QueueError> {
        let space = space_of(account, source);
        for (key, _) in self.rows.records(&space).await? {
            // Whoever runs it may note how far it is meanwhile.
            while let Some(record) = self.rows.record(&space, &key).await? {
                if self.rows.write_record(&space, &key, None, Some(record.version), 0).await? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Looks for tasks whose front end died, again and again.
    pub(super) async fn adopt_tasks(self: Arc<Self>) {
        loop {
            self.env.sleep(Duration::from_millis(LOOK_MS / 2 + self.env.random_below(LOOK_MS))).await;
            let Ok(all) = self.directory.all(&self).await else { continue };
            for view in all {
                let Ok(tasks) = self.list_moves(&view.account, &view.name).await else { continue };
                tasks
                    .into_iter()
                    .filter(|task| task.status == MoveStatus::Running)
                    .for_each(|task| self.run_detached(task));
            }
        }
    }

    fn run_detached(self: &Arc<Self>, task: MoveTask) {
        let front = Arc::downgrade(self);
        let run = async move {
            let Some(front) = front.upgrade() else { return };
            if let Err(error) = front.run(task).await {
                tracing::info!(%error, "a move task stopped; a front end will go on with it");
            }
        };
        self.env.spawn("queue-moves", run).detach();
    }

    /// Runs a task, unless another front end does.
    async fn run(self: &Arc<Self>, task: MoveTask) -> Result<(), QueueError> {
        let (mark, mine) = (key_of(task.id), Bytes::copy_from_slice(&self.env.random_u64().to_le_bytes()));
        if !self.rows.write_record(RUNNING, &mark, Some(mine.clone()), None, MARK_S).await? {
            return Ok(());
        }
        let source = self.directory.find(self, &task.account, &task.source).await?;
        let space = space_of(&task.account, &task.source);
        let mut search = Search::default();
        loop {
            let Some(record) = self.rows.record(&space, &key_of(task.id)).await? else { return Ok(()) };
            let mut task = read(&record)?;
            if task.status != MoveStatus::Running {
                return Ok(());
            }
            if !self.renew_mark(&mark, &mine).await? {
                return Ok(());
            }
            let before = task.moved;
            let stepped = match &source {
                None => {
                    (task.status, task.failure) = (MoveStatus::Failed, Some(NO_QUEUE.to_owned()));
                    Ok(())
                }
                Some((source, _)) => {
                    let known = self.known(source).await?;
                    let step = pin!(self.step(&known, &mut task, &mut search));
                    let stepped = match select(step, pin!(self.keep_mark(&mark, &mine))).await {
                        Either::Left((stepped, _)) => stepped,
                        // What it has received it moves, or gives back: nobody else has that.
                        Either::Right(((), step)) => step.await,
                    };
                    // Otherwise each look at what is left goes through all that was there.
                    self.drop_buckets(&known);
                    stepped
                }
            };
            let is_over = task.status != MoveStatus::Running;
            // If that is lost somebody cancelled it: what was moved is moved.
            self.rows.write_record(&space, &key_of(task.id), write(&task), Some(record.version), 0).await?;
            stepped?;
            if is_over {
                return Ok(());
            }
            let pause = match task.rate_max {
                // What is left is invisible.
                _ if task.moved == before => MOVE_RETRY_MS,
                Some(rate) => 1_000 * step_size(rate) as u64 / u64::from(rate.max(1)),
                None => MOVE_PAUSE_MS,
            };
            self.env.sleep(Duration::from_millis(pause)).await;
        }
    }

    /// Renews a task's mark; `false` if it is another front end's, or nobody's.
    async fn renew_mark(&self, mark: &str, mine: &Bytes) -> Result<bool, QueueError> {
        // Where the version is another one, this front end has changed it: by a call that was thought lost.
        while let Some(record) = self.rows.record(RUNNING, mark).await?.filter(|record| record.value == *mine)
        {
            let version = Some(record.version);
            if self.rows.write_record(RUNNING, mark, Some(mine.clone()), version, MARK_S).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Renews a task's mark again and again, until it is lost.
    async fn keep_mark(&self, mark: &str, mine: &Bytes) {
        loop {
            self.env.sleep(RENEW_EVERY).await;
            // After an error it may still be there.
            if let Ok(false) = self.renew_mark(mark, mine).await {
                return;
            }
        }
    }

    /// Moves some messages. After an error those of them are moved that the task says.
    async fn step(
        &self,
        known: &KnownQueue,
        task: &mut MoveTask,
        search: &mut Search,
    ) -> Result<(), QueueError> {
        let (upto, count) = (Number(task.upto), task.rate_max.map_or(BATCH_MAX, step_size));
        let messages = self.receive_step(known, upto, count, search).await?;
        // What came after the task's start stays. By its number here: it may have been sent long before.
        let is_old = |message: &Message| message.receipt.sequence.0 <= task.upto;
        let (old, new): (Vec<Message>, Vec<Message>) = messages.into_iter().partition(is_old);
        self.give_back_step(known, &new).await;
        for (at, message) in old.iter().enumerate() {
            match self.move_one(known, task, message).await {
                Ok(true) => task.moved += 1,
                Ok(false) => {
                    self.give_back_step(known, &old[at..]).await;
                    let why = if task.target.is_some() { NO_QUEUE } else { NO_SOURCE };
                    (task.status, task.failure) = (MoveStatus::Failed, Some(why.to_owned()));
                    return Ok(());
                }
                Err(error) => {
                    self.give_back_step(known, &old[at..]).await;
                    return Err(error);
                }
            }
        }
        if known.is_fifo() {
            match old.is_empty() {
                true => self.look_for_a_group(known, upto, search).await?,
                false => search.found(),
            }
        }
        if search.is_over() {
            task.status = MoveStatus::Completed;
        }
        Ok(())
    }

    /// Moves a message; `false` if it is not known where it goes.
    async fn move_one(
        &self,
        known: &KnownQueue,
        task: &MoveTask,
        message: &Message,
    ) -> Result<bool, QueueError> {
        let target = match (&task.target, &message.source) {
            (Some(target), _) => target.as_str(),
            (None, Some(source)) => source,
            (None, None) => return Ok(false),
        };
        let found = self.directory.find(self, &task.account, target).await?;
        let Some((target, _)) = found else { return Ok(false) };
        let target = self.known(&target).await?;
        let body = Body { content: message.content.clone(), source: None, group: None };
        let Receipt { sequence, place, .. } = message.receipt;
        if target.is_fifo() {
            let mark = format!("from {}/{}", known.id, sequence.0);
            self.put_in_group(&target, GroupKey(place), body, &mark).await?;
        } else {
            self.put_copy_in_time(&target, &body).await?;
        }
        let _ = self.delete(known, vec![message.receipt]).await?;
        Ok(true)
    }

    async fn receive_step(
        &self,
        known: &KnownQueue,
        upto: Number,
        count: usize,
        search: &mut Search,
    ) -> Result<Vec<Message>, QueueError> {
        if !known.is_fifo() {
            return self.receive_upto(known, upto, count, STEP_VISIBILITY, search).await;
        }
        let visibility_ms = u64::try_from(STEP_VISIBILITY.as_millis()).unwrap_or(u64::MAX);
        self.receive_fifo(known, Want { count, visibility_ms }).await
    }

    /// Makes messages of a step visible again. What fails is visible when its timeout is over.
    async fn give_back_step(&self, known: &KnownQueue, messages: &[Message]) {
        if !messages.is_empty() {
            let receipts = messages.iter().map(|message| message.receipt);
            let _ = self.give_back(known, receipts.collect()).await;
        }
    }

    /// Looks for a group that has something up to a number, visible or not.
    async fn look_for_a_group(
        &self,
        known: &KnownQueue,
        upto: Number,
        search: &mut Search,
    ) -> Result<(), QueueError> {
        let is_hidden = match search.witness() {
            Some(Witness::Group(at)) => self.group_has_upto(known, at, upto).await?,
            _ => false,
        };
        // What becomes visible is received, whatever else there is: as long as this one has something there is nothing
        // to look for.
        if is_hidden || !search.is_due(self.env.now(), false) {
            return Ok(());
        }
        let (found, read) = self.group_with_upto(known, upto).await?;
        let looked = found.map_or(SearchLooked::Nothing, |at| SearchLooked::Hidden(Witness::Group(at)));
        search.looked(self.env.now(), read, looked);
        Ok(())
    }
}

/// Messages of one step at so many a second.
fn step_size(rate: u32) -> usize {
    ((u64::from(rate) * MOVE_PAUSE_MS / 1_000) as usize).clamp(1, BATCH_MAX)
}
