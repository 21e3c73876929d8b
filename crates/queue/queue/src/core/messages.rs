//! Sends, deletes and changes of visibility.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Core, SentAs, Then, next_sequence};
use crate::deduplication::DeduplicationKey;
use crate::ids::{QueueId, Receipt, Sequence};
use crate::limits::{DEDUPLICATION_LOOK_MS, MEMORY_BYTES_MAX};
use crate::queue::{Arrival, ReceiptError};
use crate::record::QueueOp;
use crate::request::{Outcomes, QueueError, QueueFound, QueueReply, Send, Sent};

impl Core {
    pub(super) fn send(&mut self, id: QueueId, sends: Vec<Send>, reply: QueueReply<Vec<Sent>>, now: u64) {
        if self.shelf.contents.bytes() > MEMORY_BYTES_MAX {
            let _ = reply.send(Err(QueueError::Overloaded("more is sent than the disk can take")));
            return;
        }
        let Some(hosted) = self.shelf.queues.get(&id) else {
            let _ = reply.send(Err(QueueError::NoQueue));
            return;
        };
        let settings = hosted.record.settings.clone();
        if settings.fifo.is_some() && self.has_too_many_keys(now) {
            let _ = reply.send(Err(QueueError::Overloaded("too many deduplication ids are remembered")));
            return;
        }
        let (mut ops, mut sent) = (Vec::with_capacity(sends.len()), Vec::with_capacity(sends.len()));
        for send in sends {
            let Send { content, delay, group, deduplication } = send;
            let key = settings.fifo.as_ref().zip(deduplication.as_ref()).map(|(fifo, id)| {
                DeduplicationKey::new(fifo.scope, group.as_deref().unwrap_or_default(), id)
            });
            let hosted = self.shelf.queues.get_mut(&id).expect("it was there");
            if let Some(key) = key {
                if let Some(seen) = hosted.queue.deduplication.get(&key, now) {
                    let again = Sent { number: seen.number, generation: 0, sequence: seen.sequence };
                    sent.push(SentAs::New(again));
                    continue;
                }
                if !self.keys_pending.insert((id, key)) {
                    sent.push(SentAs::Again(id, key));
                    continue;
                }
            }
            let delay = delay.filter(|_| settings.fifo.is_none());
            let delay = delay.unwrap_or(Duration::from_secs(settings.delay_s.into()));
            let arrival = Arrival {
                sequence: next_sequence(&mut hosted.queue),
                number: self.next_number(),
                sent_at: now,
                visible_at: now + millis(delay),
                group: group.filter(|_| settings.fifo.is_some()).map(Arc::from),
                deduplication: key,
            };
            sent.push(SentAs::New(Sent {
                number: arrival.number,
                generation: 0,
                sequence: arrival.sequence,
            }));
            ops.push(QueueOp::Send { queue: id, arrival, content });
        }
        // All were sent before, and that is durable: there is nothing to wait for.
        if ops.is_empty() && sent.iter().all(|sent| matches!(sent, SentAs::New(_))) {
            return self.answer(Then::Sent(sent, reply), now);
        }
        self.pend(ops, Then::Sent(sent, reply), false);
    }

    fn has_too_many_keys(&mut self, now: u64) -> bool {
        let is_over = self.shelf.keys.load(Ordering::Relaxed) >= self.keys_max;
        // Those of queues that nobody uses are forgotten here, or by the next checkpoint.
        if is_over && now >= self.keys_looked_at + DEDUPLICATION_LOOK_MS {
            self.keys_looked_at = now;
            self.shelf.expire_keys(now);
        }
        is_over && self.shelf.keys.load(Ordering::Relaxed) >= self.keys_max
    }

    pub(super) fn delete(
        &mut self,
        id: QueueId,
        receipts: &[Receipt],
        reply: QueueReply<Outcomes>,
        now: u64,
    ) {
        let Some(hosted) = self.shelf.queues.get_mut(&id) else {
            let _ = reply.send(Err(QueueError::NoQueue));
            return;
        };
        let (mut ops, mut outcomes) = (Vec::new(), Vec::with_capacity(receipts.len()));
        for Receipt { queue, sequence, token, place: _ } in receipts {
            let outcome = match *queue == id {
                true => hosted.queue.check_delete(*sequence, *token, now),
                false => Err(ReceiptError::Unavailable),
            };
            if outcome.is_ok() && hosted.queue.entry(*sequence).is_some() {
                ops.push(QueueOp::Delete { queue: id, sequence: *sequence });
            }
            outcomes.push(outcome);
        }
        self.settle_or_answer(ops, outcomes, reply);
    }

    pub(super) fn change_visibility(
        &mut self,
        id: QueueId,
        changes: &[(Receipt, Duration)],
        reply: QueueReply<Outcomes>,
        now: u64,
    ) {
        if !self.shelf.queues.contains_key(&id) {
            let _ = reply.send(Err(QueueError::NoQueue));
            return;
        }
        let (mut ops, mut outcomes) = (Vec::new(), Vec::with_capacity(changes.len()));
        for (Receipt { queue, sequence, token, place: _ }, visibility) in changes {
            let hosted = self.shelf.queues.get_mut(&id).expect("it was there");
            let outcome = match *queue == id {
                true => hosted.queue.check_change(*sequence, *token, millis(*visibility), now),
                false => Err(ReceiptError::Unavailable),
            };
            if outcome.is_ok() {
                let visible_at = now + millis(*visibility);
                let entry = hosted.queue.entry(*sequence).expect("it was checked");
                // The record of its receive may be lost: nobody waits for those. Without it a replay would not know the
                // token, and what is answered here would be forgotten. Behind this one in the journal is only what came
                // after.
                self.push(&QueueOp::receive(id, *sequence, &entry));
                ops.push(QueueOp::Change { queue: id, sequence: *sequence, token: *token, visible_at });
            }
            outcomes.push(outcome);
        }
        self.settle_or_answer(ops, outcomes, reply);
    }

    fn settle_or_answer(&mut self, ops: Vec<QueueOp>, outcomes: Outcomes, reply: QueueReply<Outcomes>) {
        match ops.is_empty() {
            true => drop(reply.send(Ok(outcomes))),
            false => self.pend(ops, Then::Outcomes(outcomes, reply), false),
        }
    }

    pub(super) fn peek(
        &mut self,
        id: QueueId,
        from: Sequence,
        count: usize,
        reply: QueueReply<Vec<QueueFound>>,
        now: u64,
    ) {
        let found = match self.shelf.queues.get_mut(&id) {
            None => Err(QueueError::NoQueue),
            Some(hosted) => {
                // Without what was kept for long enough.
                hosted.queue.advance(now);
                let taken = hosted.queue.peek(from, count);
                self.shelf.forget_dropped(id);
                Ok(taken.into_iter().map(|(taken, _)| self.found(id, &taken)).collect())
            }
        };
        let _ = reply.send(found);
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
