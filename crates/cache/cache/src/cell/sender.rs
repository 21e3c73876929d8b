//! What carries mutations to one backend: a bounded queue, and CALLs that take what has gathered in it.
//!
//! Whoever queues an item while few CALLs are under way starts the next one on the spot, so a lone SET leaves
//! without waiting for another task, and over a transport within the process is over at once. While the CALLs
//! that are allowed are under way the queue gathers, and what gathered leaves together when one returns. A task
//! sees the CALLs through that did not end at once.
//!
//! An item is answered exactly once: by the backend, or as not answered when the CALL failed, the backend is
//! not connected, its deadline passed in the queue, or the cell was dropped. Items are refused at once when
//! the queue is full.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use prost::Message;
use tailwater_env::{Env, Instant};
use tailwater_rma::CallError;
use tokio::sync::Notify;

use super::agreed::Agreed;
use super::quorum::{ReplicaAck, WriteQuorums};
use super::replica::Replica;
use super::set::Mutation;
use crate::layout::EncodedItem;
use crate::limits::{MUTATE_BYTES_MAX, MUTATE_CALLS_IN_FLIGHT, MUTATE_ITEMS_MAX};
use crate::protocol::{
    METHOD_MUTATE, MutateReply, Outcome, REFUSED_CONFIG, REFUSED_NO_ROOM, REFUSED_UNFILLED, REFUSED_VERSION,
    encode_mutate,
};

/// One item on its way to one backend. Dropped unanswered, it answers [`ReplicaAck::None`].
pub(super) struct SenderWaiting {
    pub(super) item: EncodedItem,
    mutation: Option<Arc<Mutation>>,
    /// Which part of that it is, and of which quorums the backend is one.
    part: (usize, WriteQuorums),
    deadline: Instant,
}

impl SenderWaiting {
    pub(super) fn new(
        item: EncodedItem,
        mutation: Arc<Mutation>,
        part: (usize, WriteQuorums),
        deadline: Instant,
    ) -> Self {
        Self { item, mutation: Some(mutation), part, deadline }
    }

    /// The configuration that it goes by.
    fn config_id(&self) -> u64 {
        self.mutation.as_ref().map_or(0, |mutation| mutation.config_id())
    }

    pub(super) fn answer(mut self, ack: ReplicaAck) {
        if let Some(mutation) = self.mutation.take() {
            mutation.count(self.part.0, self.part.1, ack);
        }
    }

    fn outcome(self, outcome: Outcome) {
        let mine = |version: crate::Version| {
            self.mutation.as_ref().is_some_and(|mutation| mutation.client_id() == version.client_id)
        };
        let ack = match outcome {
            Outcome::Applied => ReplicaAck::Applied,
            // Our own later SET of the same key was faster: it is as if ours had come just before it.
            Outcome::Superseded(version) if mine(version) => ReplicaAck::Applied,
            Outcome::Superseded(version) | Outcome::BelowSummary(version) => ReplicaAck::Superseded(version),
        };
        self.answer(ack);
    }
}

impl Drop for SenderWaiting {
    fn drop(&mut self) {
        if let Some(mutation) = self.mutation.take() {
            mutation.count(self.part.0, self.part.1, ReplicaAck::None);
        }
    }
}

/// The queue to one backend.
pub(super) struct Sender {
    queue: Mutex<Queue>,
    /// There is something for the task to do.
    wake: Notify,
    bytes_max: usize,
    items_max: usize,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<SenderWaiting>,
    bytes: usize,
    /// CALLs under way.
    calls: usize,
    /// Those of them that the task has not taken over yet.
    begun: Vec<BoxFuture<'static, ()>>,
}

/// What a CALL of mutations keeps to. Each CALL has a handle on it: all in it is counted by all threads.
#[derive(Clone)]
pub(super) struct SendConfig {
    pub(super) env: Env,
    pub(super) agreed: Arc<Agreed>,
    pub(super) call_deadline: Duration,
}

impl Sender {
    pub(super) fn new(bytes_max: usize, items_max: usize) -> Self {
        Self { queue: Mutex::default(), wake: Notify::new(), bytes_max, items_max }
    }

    /// Queues some items. Those for which there is no room are answered [`ReplicaAck::Overloaded`].
    pub(super) fn send(&self, items: impl Iterator<Item = SenderWaiting>) {
        let mut refused = Vec::new();
        {
            let mut queue = self.queue.lock();
            for waiting in items {
                let bytes = queue.bytes + waiting.item.len();
                // An empty queue takes any item: its bound may be below one item's.
                let full = !queue.waiting.is_empty()
                    && (bytes > self.bytes_max || queue.waiting.len() >= self.items_max);
                if full {
                    refused.push(waiting);
                } else {
                    queue.bytes = bytes;
                    queue.waiting.push_back(waiting);
                }
            }
        }
        for waiting in refused {
            waiting.answer(ReplicaAck::Overloaded);
        }
    }

    /// What goes with the next CALL, which counts as under way from now on; `None` if there is nothing to send,
    /// or enough is under way. Items whose deadline has passed are answered instead.
    fn next_batch(&self, now: Instant) -> Option<Vec<SenderWaiting>> {
        let mut batch = Vec::new();
        let mut late = Vec::new();
        let mut bytes = 0;
        let mut queue = self.queue.lock();
        if queue.calls >= MUTATE_CALLS_IN_FLIGHT {
            return None;
        }
        while let Some(waiting) = queue.waiting.front() {
            let len = waiting.item.len();
            // One CALL goes by one configuration.
            let is_other = |first: &SenderWaiting| first.config_id() != waiting.config_id();
            let full = batch.len() == MUTATE_ITEMS_MAX || (bytes > 0 && bytes + len > MUTATE_BYTES_MAX);
            if full || batch.first().is_some_and(is_other) {
                break;
            }
            let waiting = queue.waiting.pop_front().expect("there is a first one");
            queue.bytes -= len;
            if waiting.deadline <= now {
                late.push(waiting);
            } else {
                bytes += len;
                batch.push(waiting);
            }
        }
        let any = !batch.is_empty();
        queue.calls += usize::from(any);
        drop(queue);
        // Answering takes other locks.
        drop(late);
        any.then_some(batch)
    }

    /// Drops what waits and what was begun: the cell is gone. What was begun holds the replica, and so this.
    pub(super) fn close(&self) {
        let mut queue = self.queue.lock();
        let dropped = (std::mem::take(&mut queue.waiting), std::mem::take(&mut queue.begun));
        queue.bytes = 0;
        drop(queue);
        // Answering takes other locks.
        drop(dropped);
    }

    /// A CALL is over.
    fn call_over(&self) {
        let mut queue = self.queue.lock();
        queue.calls -= 1;
        if !queue.waiting.is_empty() {
            self.wake.notify_one();
        }
    }
}

/// Begins as many CALLs to `replica` as there is something to send and room for. Does not wait: what does not end
/// at once is left to the task.
pub(super) fn begin(config: &Arc<SendConfig>, replica: &Arc<Replica>) {
    while let Some(batch) = replica.sender.next_batch(config.env.now()) {
        let mut call: BoxFuture<'static, ()> = Box::pin(send(Arc::clone(config), Arc::clone(replica), batch));
        let mut context = Context::from_waker(Waker::noop());
        if call.as_mut().poll(&mut context).is_pending() {
            // The task polls it once more, which leaves a waker of its own with it.
            replica.sender.queue.lock().begun.push(call);
            replica.sender.wake.notify_one();
        }
    }
}

/// Sees the CALLs to `replica` through, until it is dropped.
pub(super) async fn keep_sending(config: Arc<SendConfig>, replica: Arc<Replica>) {
    let mut under_way = FuturesUnordered::new();
    loop {
        begin(&config, &replica);
        under_way.extend(std::mem::take(&mut replica.sender.queue.lock().begun));
        tokio::select! {
            biased;
            Some(()) = under_way.next() => {}
            () = replica.sender.wake.notified() => {}
        }
    }
}

/// Ends a CALL's being under way, however it ends.
struct UnderWay<'a>(&'a Sender);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.call_over();
    }
}

async fn send(config: Arc<SendConfig>, replica: Arc<Replica>, batch: Vec<SenderWaiting>) {
    let under_way = UnderWay(&replica.sender);
    let answers = call(&config, &replica, &batch).await;
    // Before the answers, so that whoever comes back with the next SET finds room.
    drop(under_way);
    for (waiting, answer) in batch.into_iter().zip(answers) {
        match answer {
            SenderAnswer::Outcome(outcome) => waiting.outcome(outcome),
            SenderAnswer::Overloaded => waiting.answer(ReplicaAck::Overloaded),
            SenderAnswer::NotYet => waiting.answer(ReplicaAck::NotYet),
            SenderAnswer::NoRoom => waiting.answer(ReplicaAck::NoRoom),
        }
    }
    // Whatever has no answer says so when it is dropped.
}

/// The backend's word on one item.
enum SenderAnswer {
    Outcome(Outcome),
    Overloaded,
    NotYet,
    NoRoom,
}

/// One CALL; as many answers as items, or none if there is none to be had.
async fn call(config: &SendConfig, replica: &Replica, batch: &[SenderWaiting]) -> Vec<SenderAnswer> {
    let Some(live) = replica.live() else { return Vec::new() };
    let config_id = batch.first().map_or(0, SenderWaiting::config_id);
    let pieces = encode_mutate(config_id, batch.iter().flat_map(|waiting| waiting.item.pieces()));
    let call = live.connection.call_with_pieces(METHOD_MUTATE, pieces);
    match config.env.timeout(config.call_deadline, call).await {
        Some(Ok(bytes)) => {
            let outcomes = MutateReply::decode(bytes).ok().and_then(|reply| reply.outcomes(batch.len()));
            if outcomes.is_none() {
                tracing::warn!(peer = live.connection.peer(), "cache backend answered nonsense to a SET");
                replica.give_up(&live);
            }
            outcomes.unwrap_or_default().into_iter().map(SenderAnswer::Outcome).collect()
        }
        Some(Err(CallError::Overloaded { .. })) => batch.iter().map(|_| SenderAnswer::Overloaded).collect(),
        Some(Err(error @ (CallError::Lost(_) | CallError::Refused { .. }))) => {
            match &error {
                CallError::Refused { code: REFUSED_VERSION, .. } => {
                    tracing::warn!(peer = live.connection.peer(), %error, "cache SETs not taken: set the clock");
                }
                CallError::Refused { code: REFUSED_CONFIG, .. } => {
                    config.agreed.doubt();
                    replica.doubt();
                }
                CallError::Refused { code: REFUSED_UNFILLED, .. } => {
                    return batch.iter().map(|_| SenderAnswer::NotYet).collect();
                }
                CallError::Refused { code: REFUSED_NO_ROOM, .. } => {
                    return batch.iter().map(|_| SenderAnswer::NoRoom).collect();
                }
                _ => {
                    tracing::debug!(peer = live.connection.peer(), %error, "cache SETs not taken");
                    replica.give_up(&live);
                }
            }
            Vec::new()
        }
        None => {
            tracing::debug!(peer = live.connection.peer(), "cache SETs not answered in time");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cell::placement::Mode;
    use crate::cell::quorum::Settled;
    use crate::layout::{ITEM_HEADER_BYTES, ItemExtras};

    fn waiting(mutation: &Arc<Mutation>, part: usize, bytes: usize, deadline_ns: u64) -> SenderWaiting {
        let (deadline, version) = (Instant::from_ns(deadline_ns), crate::Version::default());
        // So many bytes with its header.
        let item = EncodedItem::new(
            b"",
            version,
            Some(&Bytes::from(vec![0; bytes - ITEM_HEADER_BYTES])),
            ItemExtras::default(),
        );
        SenderWaiting::new(item, Arc::clone(mutation), (part, WriteQuorums::READ), deadline)
    }

    #[test]
    fn a_full_queue_refuses_at_once_in_bytes_as_well_as_in_count() {
        let mutation = Mutation::new(Mode::R1, false, 1, 7, 5);
        let sender = Sender::new(300, 3);
        sender.send(
            [180, 130, 40].into_iter().enumerate().map(|(part, bytes)| waiting(&mutation, part, bytes, 9)),
        );
        assert_eq!(mutation.settled(1), Settled::Overloaded, "180 + 130 bytes are more than 300");
        sender.send(
            [32, 32].into_iter().enumerate().map(|(part, bytes)| waiting(&mutation, 3 + part, bytes, 9)),
        );
        assert_eq!(mutation.settled(3), Settled::Wait);
        assert_eq!(mutation.settled(4), Settled::Overloaded, "three are enough");
    }

    #[test]
    fn an_item_that_waited_too_long_is_answered_and_not_sent() {
        let mutation = Mutation::new(Mode::R1, false, 1, 7, 2);
        let sender = Sender::new(1000, 1000);
        sender.send([10, 20].into_iter().enumerate().map(|(part, ns)| waiting(&mutation, part, 32, ns)));
        assert_eq!(sender.next_batch(Instant::from_ns(15)).expect("the second one").len(), 1);
        assert_eq!(mutation.settled(0), Settled::Unreachable);
    }

    #[test]
    fn one_call_carries_no_more_than_it_may_and_few_are_under_way() {
        let mutation = Mutation::new(Mode::R1, false, 1, 7, 9);
        let sender = Sender::new(usize::MAX, usize::MAX);
        let mib = 1 << 20;
        sender.send((0..9).map(|part| waiting(&mutation, part, mib, 9)));
        let next = || sender.next_batch(Instant::default()).map(|batch| batch.len());
        assert_eq!((next(), next(), next()), (Some(4), Some(4), None));
        sender.call_over();
        assert_eq!((next(), next()), (Some(1), None));
    }
}
