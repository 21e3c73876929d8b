//! Receives, and those that wait.
//!
//! A receive that finds nothing and may wait does, at no cost: it is looked at again when a message has become visible
//! (sent, given back, or its timeout over) and when its own time is over, and at no other time. One that may not wait
//! does so only while messages that it found first are moved to another queue, or those before what it is looking for,
//! and where such a move was lost they are looked at again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::messages::millis;
use super::{Core, Then, next_sequence, random_below};
use crate::ids::{QueueId, Receipt, Sequence, Token};
use crate::limits::{BATCH_MAX, MOVE_STEP, MOVE_WAIT_MS};
use crate::queue::{Taken, Want};
use crate::record::QueueOp;
use crate::request::{Message, QueueError, QueueFound, QueueReply, Receive};

/// A receive that waits.
struct Waiter {
    want: Want,
    /// Whether it may wait for messages, and until when.
    may_wait: bool,
    until: u64,
    /// How long it waits at most where there are moves under way.
    moves_until: u64,
    /// Which of the two holds.
    ends_at: u64,
    /// Whether messages were received so often by it that they are moved.
    has_moved: bool,
    reply: QueueReply<Vec<QueueFound>>,
}

/// The receives that wait at one queue, those that came first at the front.
#[derive(Default)]
pub(super) struct Waiting {
    waiters: BTreeMap<u64, Waiter>,
    /// When they have waited long enough.
    ends: BTreeSet<(u64, u64)>,
    ever: u64,
    /// When to look again because a move was lost.
    again_at: Option<u64>,
    /// In the core's set of times.
    pub(super) wake_at: Option<u64>,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn refuse(self, error: &QueueError) {
        for waiter in self.waiters.into_values() {
            let _ = waiter.reply.send(Err(error.clone()));
        }
    }

    fn push(&mut self, waiter: Waiter) {
        self.ever += 1;
        self.ends.insert((waiter.ends_at, self.ever));
        self.waiters.insert(self.ever, waiter);
    }

    fn pop(&mut self) -> Option<Waiter> {
        let (number, waiter) = self.waiters.pop_first()?;
        self.ends.remove(&(waiter.ends_at, number));
        Some(waiter)
    }
}

impl Core {
    pub(super) fn receive(
        &mut self,
        id: QueueId,
        receive: Receive,
        reply: QueueReply<Vec<QueueFound>>,
        now: u64,
    ) {
        let Some(hosted) = self.shelf.queues.get(&id) else {
            let _ = reply.send(Err(QueueError::NoQueue));
            return;
        };
        let settings = &hosted.record.settings;
        let of_seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let wait = receive.wait.unwrap_or(of_seconds(settings.wait_s));
        let want = Want {
            count: receive.count.clamp(1, BATCH_MAX),
            visibility_ms: millis(receive.visibility.unwrap_or(of_seconds(settings.visibility_s))),
            attempt: receive.attempt.filter(|_| settings.fifo.is_some()),
            may_redrive: false,
        };
        let until = now + millis(wait);
        let may_wait = until > now;
        let moves_until = now + MOVE_WAIT_MS;
        let waiter = Waiter { want, may_wait, until, moves_until, ends_at: until, has_moved: false, reply };
        if let Some(waiter) = self.try_receive(id, waiter, now, false)
            && self.shelf.queues.contains_key(&id)
        {
            self.waiting.entry(id).or_default().push(waiter);
            self.set_wake(id);
        }
    }

    /// Answers a receive, unless it finds nothing and may wait, or has not seen everything yet and is not told to end.
    fn try_receive(&mut self, id: QueueId, mut waiter: Waiter, now: u64, is_last: bool) -> Option<Waiter> {
        let target = self.redrive_target(id);
        let hosted = self.shelf.queues.get_mut(&id)?;
        waiter.want.may_redrive = target.is_some();
        let random = &mut self.random;
        let received = hosted.queue.receive(now, &waiter.want, &mut |bound| random_below(random, bound));
        // As Amazon has it: who waits does so, and is answered with nothing in the end.
        if received.is_full && !hosted.queue.is_fifo() && !waiter.may_wait {
            let _ = waiter.reply.send(Err(QueueError::TooManyInFlight));
            return None;
        }
        self.shelf.forget_dropped(id);
        let moves = target.map(|target| self.moves(id, target, &received.overdue, now)).unwrap_or_default();
        if received.taken.is_empty() {
            if !moves.is_empty() {
                self.pend(moves, Then::Moved(None), false);
            }
            // Behind messages that are moved, of its group or as many of the dead-letter queue as are moved at once, it
            // goes on when these moves are durable: what is there is found, and however many there are, little is under
            // way at a time. Whoever is told that there is nothing finds what was moved for that in the dead-letter
            // queue.
            waiter.has_moved |= !received.overdue.is_empty();
            let hosted = self.shelf.queues.get(&id)?;
            let is_behind_moves = received.overdue.len() >= MOVE_STEP
                || hosted.queue.is_held()
                || waiter.has_moved && hosted.queue.is_moving();
            waiter.ends_at =
                if is_behind_moves { waiter.until.max(waiter.moves_until) } else { waiter.until };
            if waiter.ends_at > now && !is_last {
                return Some(waiter);
            }
            let _ = waiter.reply.send(Ok(Vec::new()));
            return None;
        }
        for Taken { sequence, entry, .. } in &received.taken {
            self.push(&QueueOp::receive(id, *sequence, entry));
        }
        let found: Vec<QueueFound> = received.taken.iter().map(|taken| self.found(id, taken)).collect();
        self.read_ahead(id, &received.taken, found.iter().any(|found| !found.is_here));
        match moves.is_empty() {
            true => self.hand_out(id, found, waiter.reply, now),
            // Whoever is told what there was finds what was moved before it in the dead-letter queue.
            false => self.pend(moves, Then::Received(id, found, waiter.reply), false),
        }
        None
    }

    pub(super) fn hand_out(
        &mut self,
        id: QueueId,
        found: Vec<QueueFound>,
        reply: QueueReply<Vec<QueueFound>>,
        now: u64,
    ) {
        // Whoever asked is gone: the next one gets them at once.
        if let Err(Ok(found)) = reply.send(Ok(found))
            && let Some(hosted) = self.shelf.queues.get_mut(&id)
        {
            for QueueFound { message: Message { receipt, .. }, .. } in found {
                hosted.queue.give_back(receipt.sequence, receipt.token, now);
            }
        }
    }

    /// What was received can't be handed out.
    pub(super) fn give_back(&mut self, id: QueueId, receipts: &[Receipt], now: u64) {
        let Some(hosted) = self.shelf.queues.get_mut(&id) else { return };
        for receipt in receipts {
            hosted.queue.give_back(receipt.sequence, receipt.token, now);
        }
        self.serve(id, now);
    }

    /// A message as it is answered.
    pub(super) fn found(&self, queue: QueueId, taken: &Taken) -> QueueFound {
        let Taken { sequence, entry, source } = taken;
        let content = self.shelf.contents.get(entry.number);
        let is_here = content.is_some();
        let message = Message {
            receipt: Receipt { queue, sequence: *sequence, token: Token(entry.token), place: 0 },
            number: entry.number,
            generation: entry.generation,
            sent_at: entry.sent_at,
            first_received_at: entry.sent_at + u64::from(entry.first_after),
            visible_at: entry.visible_at,
            receives: entry.receives,
            source: source.clone(),
            content: content.unwrap_or_default(),
        };
        QueueFound { message, is_here }
    }

    /// The dead-letter queue of a queue, if it has one that is there and of the same kind.
    fn redrive_target(&self, id: QueueId) -> Option<QueueId> {
        let hosted = self.shelf.queues.get(&id)?;
        let redrive = hosted.record.settings.redrive.as_ref()?;
        let target = self.shelf.find(&hosted.record.account, &redrive.target)?;
        let other = self.shelf.queues.get(&target)?;
        (target != id && other.queue.is_fifo() == hosted.queue.is_fifo()).then_some(target)
    }

    /// What moves messages that were received too often to the dead-letter queue.
    fn moves(&mut self, id: QueueId, target: QueueId, overdue: &[Sequence], now: u64) -> Vec<QueueOp> {
        let mut ops = Vec::with_capacity(overdue.len());
        for sequence in overdue {
            let entry = self.shelf.queues.get(&id).and_then(|hosted| hosted.queue.entry(*sequence));
            let (Some(entry), Some(other)) = (entry, self.shelf.queues.get_mut(&target)) else { continue };
            // As Amazon has it: in a FIFO queue the message counts as sent now.
            let sent_at = if other.queue.is_fifo() { now } else { entry.sent_at };
            let arrives = next_sequence(&mut other.queue);
            ops.push(QueueOp::Move {
                queue: id,
                sequence: *sequence,
                to: target,
                arrives,
                sent_at,
                is_new: false,
                at: now,
            });
        }
        ops
    }

    /// Gives the receives that wait at a queue what there is.
    pub(super) fn serve(&mut self, id: QueueId, now: u64) {
        let Some(mut waiting) = self.waiting.remove(&id) else { return };
        if let Some(at) = waiting.wake_at.take() {
            self.wakes.remove(&(at, id));
        }
        waiting.again_at = None;
        while let Some((until, number)) = waiting.ends.first().copied().filter(|(until, _)| *until <= now) {
            waiting.ends.remove(&(until, number));
            if let Some(waiter) = waiting.waiters.remove(&number) {
                // One last look: what became visible in the same instant is for it.
                let is_answered = self.try_receive(id, waiter, now, true).is_none();
                debug_assert!(is_answered, "its time is over");
            }
        }
        while let Some(waiter) = waiting.pop() {
            if waiter.reply.is_closed() {
                continue;
            }
            if let Some(waiter) = self.try_receive(id, waiter, now, false) {
                // Back to the front: it came first.
                let number = waiting.waiters.keys().next().map_or(waiting.ever + 1, |first| first - 1);
                waiting.ends.insert((waiter.ends_at, number));
                waiting.waiters.insert(number, waiter);
                break;
            }
        }
        if waiting.len() > 0 && self.shelf.queues.contains_key(&id) {
            waiting.ever = waiting.ever.max(*waiting.waiters.keys().next_back().expect("there is one"));
            self.waiting.insert(id, waiting);
            self.set_wake(id);
        }
    }

    /// A move was lost: its message, and what is behind it, is there for the receives that wait. Not at once: while the
    /// journal takes nothing, they would be moved and lost over and over.
    pub(super) fn serve_later(&mut self, id: QueueId, at: u64) {
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.again_at = Some(at);
            self.set_wake(id);
        }
    }

    fn set_wake(&mut self, id: QueueId) {
        let (Some(waiting), Some(hosted)) = (self.waiting.get_mut(&id), self.shelf.queues.get(&id)) else {
            return;
        };
        let end = waiting.ends.first().map(|(until, _)| *until);
        let wake_at = end.into_iter().chain(waiting.again_at).chain(hosted.queue.next_at()).min();
        if wake_at != waiting.wake_at {
            if let Some(at) = waiting.wake_at {
                self.wakes.remove(&(at, id));
            }
            self.wakes.extend(wake_at.map(|at| (at, id)));
            waiting.wake_at = wake_at;
        }
    }

    /// The queue is gone, and with it what those who wait there wait for.
    pub(super) fn forget_waiting(&mut self, id: QueueId) {
        let Some(waiting) = self.waiting.remove(&id) else { return };
        if let Some(at) = waiting.wake_at {
            self.wakes.remove(&(at, id));
        }
        waiting.refuse(&QueueError::NoQueue);
    }
}
