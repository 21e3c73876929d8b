//! What carries mutations to one backend: a bounded queue, and a task that sends what has gathered in it.
//!
//! The entries of all concurrent tasks travel together: while a few CALLs are under way the queue gathers, and
//! what gathered leaves as the next CALL. An entry is answered exactly once: by the backend, or as not
//! answered when the CALL failed, the backend is not connected, its deadline passed in the queue, or the task
//! ended. Entries are refused at once when the queue is full.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use prost::Message;
use tailwater_env::{Env, Instant};
use tailwater_rma::CallError;
use tokio::sync::Notify;

use super::quorum::Ack;
use super::replica::Replica;
use super::set::Mutation;
use crate::limits::{MUTATE_BYTES_MAX, MUTATE_CALLS_IN_FLIGHT, MUTATE_ENTRIES_MAX};
use crate::protocol::{METHOD_MUTATE, MutateReply, Outcome, encode_mutate};

/// One entry on its way to one backend. Dropped unanswered, it answers [`Ack::None`].
pub(super) struct Waiting {
    pub(super) entry: Bytes,
    mutation: Option<Arc<Mutation>>,
    item: usize,
    deadline: Instant,
}

impl Waiting {
    pub(super) fn new(entry: Bytes, mutation: Arc<Mutation>, item: usize, deadline: Instant) -> Self {
        Self { entry, mutation: Some(mutation), item, deadline }
    }

    pub(super) fn answer(mut self, ack: Ack) {
        if let Some(mutation) = self.mutation.take() {
            mutation.count(self.item, ack);
        }
    }

    fn outcome(self, outcome: Outcome) {
        let mine = |version: crate::Version| {
            self.mutation.as_ref().is_some_and(|mutation| mutation.client_id() == version.client_id)
        };
        let ack = match outcome {
            Outcome::Applied => Ack::Applied,
            // Our own later SET of the same key was faster: it is as if ours had come just before it.
            Outcome::Superseded(version) if mine(version) => Ack::Applied,
            Outcome::Superseded(version) | Outcome::BelowSummary(version) => Ack::Superseded(version),
        };
        self.answer(ack);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(mutation) = self.mutation.take() {
            mutation.count(self.item, Ack::None);
        }
    }
}

/// The queue to one backend.
pub(super) struct Sender {
    queue: Mutex<Queue>,
    filled: Notify,
    bytes_max: usize,
    entries_max: usize,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    bytes: usize,
}

impl Sender {
    pub(super) fn new(bytes_max: usize, entries_max: usize) -> Self {
        Self { queue: Mutex::default(), filled: Notify::new(), bytes_max, entries_max }
    }

    /// Queues some entries. Those for which there is no room are answered [`Ack::Overloaded`].
    pub(super) fn send(&self, entries: impl Iterator<Item = Waiting>) {
        let mut refused = Vec::new();
        {
            let mut queue = self.queue.lock();
            for waiting in entries {
                let bytes = queue.bytes + waiting.entry.len();
                // An empty queue takes any entry: its bound may be below one entry's.
                let full = !queue.waiting.is_empty()
                    && (bytes > self.bytes_max || queue.waiting.len() >= self.entries_max);
                if full {
                    refused.push(waiting);
                } else {
                    queue.bytes = bytes;
                    queue.waiting.push_back(waiting);
                }
            }
        }
        self.filled.notify_one();
        for waiting in refused {
            waiting.answer(Ack::Overloaded);
        }
    }

    /// What goes with the next CALL; entries whose deadline has passed are answered instead.
    fn next_batch(&self, now: Instant) -> Vec<Waiting> {
        let mut batch = Vec::new();
        let mut late = Vec::new();
        let mut bytes = 0;
        let mut queue = self.queue.lock();
        while let Some(waiting) = queue.waiting.front() {
            let len = waiting.entry.len();
            if batch.len() == MUTATE_ENTRIES_MAX || (bytes > 0 && bytes + len > MUTATE_BYTES_MAX) {
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
        drop(queue);
        drop(late);
        batch
    }
}

/// Sends what is queued for `replica` until it is dropped. `call_deadline` bounds each CALL.
pub(super) async fn keep_sending(
    env: Env,
    config_id: u64,
    call_deadline: std::time::Duration,
    replica: Arc<Replica>,
) {
    let mut under_way = FuturesUnordered::new();
    loop {
        while under_way.len() < MUTATE_CALLS_IN_FLIGHT {
            let batch = replica.sender.next_batch(env.now());
            if batch.is_empty() {
                break;
            }
            under_way.push(send_batch(&env, config_id, call_deadline, &replica, batch));
        }
        tokio::select! {
            biased;
            Some(()) = under_way.next() => {}
            () = replica.sender.filled.notified(), if under_way.len() < MUTATE_CALLS_IN_FLIGHT => {}
        }
    }
}

async fn send_batch(
    env: &Env,
    config_id: u64,
    call_deadline: std::time::Duration,
    replica: &Replica,
    batch: Vec<Waiting>,
) {
    // Whatever ends this early drops the batch, which answers for it.
    let Some(live) = replica.live() else { return };
    let payload = encode_mutate(config_id, batch.iter().map(|waiting| &waiting.entry));
    let answer = env.timeout(call_deadline, live.connection.call(METHOD_MUTATE, payload)).await;
    match answer {
        Some(Ok(bytes)) => {
            let outcomes = MutateReply::decode(bytes).ok().and_then(|reply| reply.outcomes(batch.len()));
            match outcomes {
                Some(outcomes) => {
                    for (waiting, outcome) in batch.into_iter().zip(outcomes) {
                        waiting.outcome(outcome);
                    }
                }
                None => {
                    tracing::warn!(peer = live.connection.peer(), "cache backend answered nonsense to a SET");
                    replica.give_up(&live);
                }
            }
        }
        Some(Err(CallError::Overloaded { .. })) => {
            for waiting in batch {
                waiting.answer(Ack::Overloaded);
            }
        }
        Some(Err(error @ (CallError::Lost(_) | CallError::Refused { .. }))) => {
            tracing::debug!(peer = live.connection.peer(), %error, "cache SETs not taken");
            replica.give_up(&live);
        }
        None => tracing::debug!(peer = live.connection.peer(), "cache SETs not answered in time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::placement::Mode;
    use crate::cell::quorum::Settled;

    fn waiting(mutation: &Arc<Mutation>, item: usize, bytes: usize, deadline_ns: u64) -> Waiting {
        let deadline = Instant::from_ns(deadline_ns);
        Waiting::new(Bytes::from(vec![0; bytes]), Arc::clone(mutation), item, deadline)
    }

    #[test]
    fn a_full_queue_refuses_at_once_in_bytes_as_well_as_in_count() {
        let mutation = Mutation::new(Mode::R1, 1, 5);
        let sender = Sender::new(100, 3);
        sender.send(
            [80, 30, 10].into_iter().enumerate().map(|(item, bytes)| waiting(&mutation, item, bytes, 9)),
        );
        assert_eq!(mutation.settled(1), Settled::Overloaded, "80 + 30 bytes are more than 100");
        sender
            .send([1, 1].into_iter().enumerate().map(|(item, bytes)| waiting(&mutation, 3 + item, bytes, 9)));
        assert_eq!(mutation.settled(3), Settled::Wait);
        assert_eq!(mutation.settled(4), Settled::Overloaded, "three are enough");
    }

    #[test]
    fn an_entry_that_waited_too_long_is_answered_and_not_sent() {
        let mutation = Mutation::new(Mode::R1, 1, 2);
        let sender = Sender::new(1000, 1000);
        sender.send([10, 20].into_iter().enumerate().map(|(item, ns)| waiting(&mutation, item, 1, ns)));
        assert_eq!(sender.next_batch(Instant::from_ns(15)).len(), 1);
        assert_eq!(mutation.settled(0), Settled::Unreachable);
    }

    #[test]
    fn one_call_carries_no_more_than_it_may() {
        let mutation = Mutation::new(Mode::R1, 1, 6);
        let sender = Sender::new(usize::MAX, usize::MAX);
        let mib = 1 << 20;
        sender.send((0..6).map(|item| waiting(&mutation, item, mib, 9)));
        assert_eq!(sender.next_batch(Instant::default()).len(), 4);
        assert_eq!(sender.next_batch(Instant::default()).len(), 2);
    }
}
