//! What an owner does, without input, output or clock: requests, durable rounds and passing time go in; journal
//! records and answers come out.
//!
//! Requests of one round become operations in one journal record. They take effect, in that order, when the record is
//! durable, and are answered then; if it is lost nothing has happened. So what a client was told, what is in memory
//! and what a recovery would find are the same. Receives alone take effect at once and are answered at once.

mod admin;
mod ahead;
mod messages;
mod receiving;
mod tasks;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::checkpoint::OwnerDelta;
use crate::deduplication::DeduplicationKey;
use crate::ids::{Number, QueueId, Sequence};
use crate::limits::{DEDUPLICATION_KEYS_MAX, MOVE_RETRY_MS};
use crate::queue::ReceiptError;
use crate::record::QueueOp;
use crate::request::{Admin, Figures, Outcomes, QueueError, QueueFound, QueueReply, QueueRequest, Sent};
use crate::shelf::Shelf;
use crate::view::QueueView;
pub(crate) use ahead::{Ahead, ReadAhead};
use receiving::Waiting;
use tasks::{Runs, TaskStep};
use tokio::sync::oneshot;

/// Numbers that all owners draw from.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// The next content.
    pub(crate) content: AtomicU64,
    /// The next queue, or move task.
    pub(crate) queue: AtomicU64,
}

/// What is answered when a round is durable.
enum Then {
    Sent(Vec<SentAs>, QueueReply<Vec<Sent>>),
    Outcomes(Outcomes, QueueReply<Outcomes>),
    Created(QueueId, QueueReply<Arc<QueueView>>),
    Done(QueueReply<()>),
    TaskStarted(u64, QueueReply<u64>),
    /// The task, and how many messages it has moved.
    TaskCancelled(u64, u64, QueueReply<u64>),
    /// Messages moved, by a step of a task if it was one.
    Moved(Option<TaskStep>),
    /// What a receive found, and moved others for. It has that whatever becomes of the moves.
    Received(QueueId, Vec<QueueFound>, QueueReply<Vec<QueueFound>>),
    TaskEnded(u64),
}

impl Then {
    /// Of the changes of visibility, the first after so many that have taken effect has none: its message's timeout
    /// ended while it was on its way to the disk, and somebody else has the message now.
    fn refuse_change(&mut self, changed: usize) {
        if let Self::Outcomes(outcomes, _) = self
            && let Some(outcome) = outcomes.iter_mut().filter(|outcome| outcome.is_ok()).nth(changed)
        {
            *outcome = Err(ReceiptError::Unavailable);
        }
    }
}

/// How a message of a send ends up.
enum SentAs {
    New(Sent),
    /// As the message that its deduplication id was taken with.
    Again(QueueId, DeduplicationKey),
}

/// Operations that wait to be durable, and the answer that waits for them.
struct Pending {
    ops: Vec<QueueOp>,
    then: Then,
    is_admin: bool,
    /// Whether it makes more to keep.
    is_growing: bool,
    /// Where it is in the round's bytes.
    place: Range<usize>,
}

/// The operations that become the next journal record.
#[derive(Default)]
pub(crate) struct QueueRound {
    pub(crate) bytes: Vec<u8>,
    pending: Vec<Pending>,
    /// Whether somebody waits for it to be durable.
    pub(crate) is_awaited: bool,
}

impl QueueRound {
    /// Whether something of it makes more to keep.
    pub(crate) fn is_growing(&self) -> bool {
        self.pending.iter().any(|pending| pending.is_growing)
    }
}

/// All queues of one owner, and what is under way with them.
pub(crate) struct Core {
    pub(crate) shelf: Shelf,
    numbers: Arc<Numbers>,
    random: u64,
    round: QueueRound,
    /// Rounds in the journal, oldest first.
    in_journal: VecDeque<Vec<Pending>>,
    /// Deduplication ids of sends that are not durable yet.
    keys_pending: BTreeSet<(QueueId, DeduplicationKey)>,
    /// Receives that wait, by queue.
    waiting: BTreeMap<QueueId, Waiting>,
    /// When a queue with waiting receives wants to be looked at.
    wakes: BTreeSet<(u64, QueueId)>,
    admin_pending: usize,
    admin_held: VecDeque<Admin>,
    runs: Runs,
    /// To be read, once the owner looks.
    pub(crate) reads: Vec<ReadAhead>,
    closing: Option<oneshot::Sender<()>>,
    /// [`DEDUPLICATION_KEYS_MAX`], but in a test.
    keys_max: u64,
    /// When the keys of all queues were looked at last because there were too many.
    keys_looked_at: u64,
    /// [`crate::QueuesConfig::cooldowns`].
    pub(crate) cooldowns: bool,
}

impl Core {
    pub(crate) fn new(shelf: Shelf, numbers: Arc<Numbers>, seed: u64) -> Self {
        let mut core = Self {
            shelf,
            numbers,
            random: seed,
            round: QueueRound::default(),
            in_journal: VecDeque::new(),
            keys_pending: BTreeSet::new(),
            waiting: BTreeMap::new(),
            wakes: BTreeSet::new(),
            admin_pending: 0,
            admin_held: VecDeque::new(),
            runs: Runs::default(),
            reads: Vec::new(),
            closing: None,
            keys_max: DEDUPLICATION_KEYS_MAX,
            keys_looked_at: 0,
            cooldowns: true,
        };
        core.resume_tasks();
        core
    }

    /// Takes one request.
    pub(crate) fn take(&mut self, request: QueueRequest, now: u64) {
        if self.closing.is_some()
            && !matches!(request, QueueRequest::Delta(_) | QueueRequest::Stored(_) | QueueRequest::Ahead(..))
        {
            return refuse(request, QueueError::Closed);
        }
        match request {
            QueueRequest::Send(queue, sends, reply) => self.send(queue, sends, reply, now),
            QueueRequest::Receive(queue, receive, reply) => self.receive(queue, receive, reply, now),
            QueueRequest::Delete(queue, receipts, reply) => self.delete(queue, &receipts, reply, now),
            QueueRequest::ChangeVisibility(queue, changes, reply) => {
                self.change_visibility(queue, &changes, reply, now);
            }
            QueueRequest::GiveBack(queue, receipts) => self.give_back(queue, &receipts, now),
            QueueRequest::Peek(queue, from, count, reply) => self.peek(queue, from, count, reply, now),
            QueueRequest::Look(queue, reply) => {
                let _ = reply.send(self.look(queue, now));
            }
            QueueRequest::Admin(admin) => {
                self.admin_held.push_back(admin);
                self.take_admin(now);
            }
            QueueRequest::ListTasks(account, source, reply) => {
                let _ = reply.send(Ok(self.list_tasks(&account, &source)));
            }
            // Asked for by the owner itself, which knows the journal's position.
            QueueRequest::Delta(_) => {}
            QueueRequest::Stored(numbers) => self.shelf.contents.stored(numbers.into_iter()),
            QueueRequest::Ahead(queue, read) => self.have_read(queue, read),
            QueueRequest::Close(reply) => self.close(reply),
        }
    }

    fn close(&mut self, reply: oneshot::Sender<()>) {
        self.closing = Some(reply);
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            waiting.refuse(&QueueError::Closed);
        }
        self.wakes.clear();
        for admin in std::mem::take(&mut self.admin_held) {
            refuse(QueueRequest::Admin(admin), QueueError::Closed);
        }
    }

    /// Whoever waits for the close is told, if nothing is under way any more.
    pub(crate) fn finish_close(&mut self) {
        if self.in_journal.is_empty()
            && self.round.pending.is_empty()
            && let Some(reply) = self.closing.take()
        {
            let _ = reply.send(());
            // Nothing is taken after it, either.
            self.closing = Some(oneshot::channel().0);
        }
    }

    fn look(&mut self, queue: QueueId, now: u64) -> Result<Figures, QueueError> {
        let waiting = self.waiting.get(&queue).map_or(0, Waiting::len);
        let hosted = self.shelf.queues.get_mut(&queue).ok_or(QueueError::NoQueue)?;
        hosted.queue.advance(now);
        self.shelf.forget_dropped(queue);
        let queue = &self.shelf.queues[&queue].queue;
        Ok(Figures {
            counts: queue.counts(),
            oldest_sent_at: queue.oldest_sent_at(),
            now,
            happened: queue.happened,
            waiting,
        })
    }

    /// The round, if there is something in it to be journalled.
    pub(crate) fn round(&mut self) -> Option<&mut QueueRound> {
        (!self.round.bytes.is_empty()).then_some(&mut self.round)
    }

    /// Bytes of the round so far.
    pub(crate) fn round_bytes(&self) -> usize {
        self.round.bytes.len()
    }

    /// The journal took the round. Whether somebody waits for it to be durable.
    pub(crate) fn appended(&mut self) -> bool {
        let mut round = std::mem::take(&mut self.round);
        let pending = std::mem::take(&mut round.pending);
        round.bytes.clear();
        self.round.bytes = round.bytes; // its memory serves the next one
        match pending.is_empty() {
            true => false,
            false => {
                self.in_journal.push_back(pending);
                true
            }
        }
    }

    /// The journal has no room for what makes more to keep: nothing of that happens. The rest of the round stays, in
    /// its order: what takes messages away makes room, and must not wait for those who bring more.
    pub(crate) fn refused_growing(&mut self, error: &QueueError, now: u64) {
        let round = std::mem::take(&mut self.round);
        let (growing, rest): (Vec<_>, Vec<_>) =
            round.pending.into_iter().partition(|pending| pending.is_growing);
        let mut from = 0;
        for Pending { place, .. } in &growing {
            self.round.bytes.extend_from_slice(&round.bytes[from..place.start]);
            from = place.end;
        }
        self.round.bytes.extend_from_slice(&round.bytes[from..]);
        self.round.is_awaited = !rest.is_empty();
        // Their places don't matter any more: only what grows is ever cut out.
        self.round.pending = rest;
        self.lose(growing, error, now);
    }

    /// The journal did not take the round: nothing of it happens.
    pub(crate) fn refused(&mut self, error: &QueueError, now: u64) {
        let round = std::mem::take(&mut self.round);
        self.lose(round.pending, error, now);
    }

    /// The oldest round in the journal is durable: its operations take effect and are answered.
    pub(crate) fn settle(&mut self, now: u64) {
        for Pending { ops, mut then, is_admin, .. } in self.in_journal.pop_front().expect("it is under way") {
            let mut touched = BTreeSet::new();
            let mut changed = 0;
            for op in ops {
                match &op {
                    QueueOp::Send { queue, arrival, .. } => {
                        if let Some(key) = arrival.deduplication {
                            self.keys_pending.remove(&(*queue, key));
                        }
                        touched.insert(*queue);
                    }
                    QueueOp::Move { queue, to, .. } => touched.extend([*queue, *to]),
                    // Less of a delay may make messages visible.
                    QueueOp::Put { queue, .. } => drop(touched.insert(*queue)),
                    QueueOp::Delete { queue, .. } => drop(touched.insert(*queue)),
                    QueueOp::Change { queue, sequence, token, .. } => {
                        touched.insert(*queue);
                        let hosted = self.shelf.queues.get(queue);
                        match hosted.is_some_and(|hosted| hosted.queue.is_last_receive(*sequence, *token)) {
                            true => changed += 1,
                            false => then.refuse_change(changed),
                        }
                    }
                    QueueOp::Drop { queue, .. } => self.forget_waiting(*queue),
                    _ => {}
                }
                self.shelf.apply(op, now);
            }
            self.admin_pending -= usize::from(is_admin);
            self.answer(then, now);
            for queue in touched {
                self.serve(queue, now);
            }
        }
        self.take_admin(now);
    }

    /// The oldest round in the journal is lost: nothing of it happens.
    pub(crate) fn lose_first(&mut self, error: &QueueError, now: u64) {
        let pending = self.in_journal.pop_front().expect("it is under way");
        self.lose(pending, error, now);
    }

    fn lose(&mut self, pending: Vec<Pending>, error: &QueueError, now: u64) {
        for Pending { ops, then, is_admin, .. } in pending {
            for op in ops {
                match op {
                    QueueOp::Send { queue, arrival, .. } => {
                        if let Some(key) = arrival.deduplication {
                            self.keys_pending.remove(&(queue, key));
                        }
                    }
                    QueueOp::Move { queue, sequence, .. } => {
                        if let Some(hosted) = self.shelf.queues.get_mut(&queue) {
                            hosted.queue.abort_move(sequence, now);
                        }
                        self.serve_later(queue, now + MOVE_RETRY_MS);
                    }
                    _ => {}
                }
            }
            self.admin_pending -= usize::from(is_admin);
            let error = error.clone();
            match then {
                Then::Sent(_, reply) => drop(reply.send(Err(error))),
                Then::Outcomes(_, reply) => drop(reply.send(Err(error))),
                Then::Created(_, reply) => drop(reply.send(Err(error))),
                Then::Done(reply) => drop(reply.send(Err(error))),
                Then::TaskStarted(_, reply) => drop(reply.send(Err(error))),
                Then::TaskCancelled(task, _, reply) => {
                    self.task_ended(task, Some(now));
                    let _ = reply.send(Err(error));
                }
                Then::Moved(step) => self.task_moved(step, Some(now + MOVE_RETRY_MS)),
                Then::Received(queue, found, reply) => self.hand_out(queue, found, reply, now),
                Then::TaskEnded(task) => self.task_ended(task, Some(now + MOVE_RETRY_MS)),
            }
        }
        self.take_admin(now);
    }

    fn answer(&mut self, then: Then, now: u64) {
        match then {
            Then::Sent(sent, reply) => {
                let sent = sent.into_iter().map(|sent| match sent {
                    SentAs::New(sent) => Ok(sent),
                    SentAs::Again(queue, key) => {
                        let hosted = self.shelf.queues.get(&queue).ok_or(QueueError::NoQueue)?;
                        let seen = hosted.queue.deduplication.get(&key, 0);
                        let unsent = || QueueError::Unavailable("the same message was lost".to_owned());
                        let seen = seen.ok_or_else(unsent)?;
                        Ok(Sent { number: seen.number, generation: 0, sequence: seen.sequence })
                    }
                });
                let _ = reply.send(sent.collect());
            }
            Then::Outcomes(outcomes, reply) => drop(reply.send(Ok(outcomes))),
            Then::Created(id, reply) => {
                let view = self.shelf.queues.get(&id).map(|hosted| Arc::clone(&hosted.view));
                let _ = reply.send(view.ok_or(QueueError::NoQueue));
            }
            Then::Done(reply) => drop(reply.send(Ok(()))),
            Then::TaskStarted(task, reply) => {
                self.runs.set(task, Some(0));
                let _ = reply.send(Ok(task));
            }
            Then::TaskCancelled(task, moved, reply) => {
                self.task_ended(task, None);
                let _ = reply.send(Ok(moved));
            }
            Then::Moved(step) => self.task_moved(step, None),
            Then::Received(queue, found, reply) => self.hand_out(queue, found, reply, now),
            Then::TaskEnded(task) => self.task_ended(task, None),
        }
    }

    /// Lets the time be `now`: receives that wait get what has become visible, or are told that there is nothing.
    pub(crate) fn tick(&mut self, now: u64) {
        while let Some((_, queue)) = self.wakes.first().copied().filter(|(at, _)| *at <= now) {
            self.wakes.pop_first();
            if let Some(waiting) = self.waiting.get_mut(&queue) {
                waiting.wake_at = None;
            }
            self.serve(queue, now);
        }
        self.run_tasks(now);
    }

    /// When [`Core::tick`] has something to do, if nothing else happens before.
    pub(crate) fn wake_at(&self) -> Option<u64> {
        let waiting = self.wakes.first().map(|(at, _)| *at);
        waiting.into_iter().chain(self.tasks_wake_at()).min()
    }

    /// What the next checkpoint writes of this owner, but for how far the journal is in it.
    pub(crate) fn take_delta(&mut self, now: u64) -> OwnerDelta {
        OwnerDelta {
            shelf: self.shelf.take_delta(now),
            next_number: Number(self.numbers.content.load(Ordering::Relaxed)),
            next_queue: QueueId(self.numbers.queue.load(Ordering::Relaxed)),
            ..OwnerDelta::default()
        }
    }

    fn push(&mut self, op: &QueueOp) {
        op.write(&mut self.round.bytes);
    }

    /// Puts operations into the round; they are answered when it is durable.
    fn pend(&mut self, ops: Vec<QueueOp>, then: Then, is_admin: bool) {
        let begin = self.round.bytes.len();
        for op in &ops {
            op.write(&mut self.round.bytes);
        }
        if ops.is_empty() {
            QueueOp::Nothing.write(&mut self.round.bytes);
        }
        let is_growing = ops.iter().any(|op| matches!(op, QueueOp::Send { .. } | QueueOp::Put { .. }));
        let place = begin..self.round.bytes.len();
        self.round.is_awaited = true;
        self.admin_pending += usize::from(is_admin);
        self.round.pending.push(Pending { ops, then, is_admin, is_growing, place });
    }

    fn next_number(&self) -> Number {
        Number(self.numbers.content.fetch_add(1, Ordering::Relaxed))
    }
}

/// A number below `bound`, not 0. Not for secrets: splitmix64 from a seed.
pub(crate) fn random_below(random: &mut u64, bound: u64) -> u64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *random;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    ((u128::from(mixed) * u128::from(bound)) >> 64) as u64
}

pub(crate) fn next_sequence(queue: &mut crate::queue::Queue) -> Sequence {
    let sequence = queue.next;
    queue.next.0 += 1;
    sequence
}

/// Answers a request that was not taken.
pub(crate) fn refuse(request: QueueRequest, error: QueueError) {
    match request {
        QueueRequest::Send(_, _, reply) => drop(reply.send(Err(error))),
        QueueRequest::Receive(_, _, reply) | QueueRequest::Peek(_, _, _, reply) => {
            drop(reply.send(Err(error)))
        }
        QueueRequest::Delete(_, _, reply) | QueueRequest::ChangeVisibility(_, _, reply) => {
            drop(reply.send(Err(error)))
        }
        QueueRequest::Look(_, reply) => drop(reply.send(Err(error))),
        QueueRequest::ListTasks(_, _, reply) => drop(reply.send(Err(error))),
        QueueRequest::Admin(admin) => match admin {
            Admin::Create(_, reply) => drop(reply.send(Err(error))),
            Admin::Update(_, _, reply) | Admin::Drop(_, reply) | Admin::Purge(_, reply) => {
                let _ = reply.send(Err(error));
            }
            Admin::StartTask(_, reply) | Admin::CancelTask(_, _, reply) => drop(reply.send(Err(error))),
        },
        QueueRequest::GiveBack(..)
        | QueueRequest::Delta(_)
        | QueueRequest::Stored(_)
        | QueueRequest::Ahead(..)
        | QueueRequest::Close(_) => {}
    }
}
