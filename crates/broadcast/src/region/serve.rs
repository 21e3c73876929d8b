//! Answers others' requests: one answer at a time to each in turn, within so many bytes a second for each and for all,
//! so that whoever asks for much gets it more slowly, and whoever reads slowly holds nobody up.
//!
//! What waits is bounded: one request for each stream and member (a later one replaces it), a limited number of them
//! for each member, a limited number of members. What waited for longer than its sender does is dropped.

use std::collections::{BTreeMap, VecDeque};

use crate::batch::Batch;
use crate::name::Stream;

use super::message::{BATCHES_MAX, Message, batch_size};
use super::options::Options;

/// Requests of one member that wait.
const REQUESTS_MAX: usize = 64;
/// Members whose requests wait.
const MEMBERS_MAX: usize = 1 << 16;
/// Bytes of one answer, if a single batch is not larger.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Where the answers come from: what a client keeps, or a proxy's histories.
pub trait Source {
    /// The numbers (held, count] that it has of a stream; `None` if it does not know the stream. A history has all
    /// from 0, as events or tombstones.
    fn held(&self, stream: &Stream) -> Option<(u64, u64)>;

    /// The first events of a stream with the numbers (`after`, `up_to`], beginning right after `after`: at least
    /// one event or tombstone, about `bytes_max` bytes at most (one stored batch may be more). `None` if it does not
    /// have the number after `after`.
    fn read(&self, stream: &Stream, after: u64, up_to: u64, bytes_max: usize) -> Option<Batch>;
}

#[derive(Debug)]
pub(super) struct Server {
    queues: BTreeMap<u64, Queue>,
    /// Those with requests that wait, in the order of their turns.
    turns: VecDeque<u64>,
    all: Budget,
    peer_bytes_s: u64,
    timeout_ms: u64,
    pub(super) served: u64,
    pub(super) dropped: u64,
}

#[derive(Debug)]
struct Queue {
    requests: VecDeque<Request>,
    budget: Budget,
    paused: bool,
    /// Whether it is in `turns`.
    waiting: bool,
}

#[derive(Debug)]
struct Request {
    stream: Stream,
    after: u64,
    up_to: u64,
    bytes_max: usize,
    at_ms: u64,
}

/// Bytes that may be sent, filled up as time passes; an answer may overdraw it once.
#[derive(Clone, Debug)]
struct Budget {
    bytes_s: u64,
    left: i64,
    at_ms: u64,
}

impl Budget {
    fn new(bytes_s: u64, now_ms: u64) -> Self {
        Self { bytes_s, left: Self::burst(bytes_s), at_ms: now_ms }
    }

    /// What can be saved up: 20 ms' worth.
    fn burst(bytes_s: u64) -> i64 {
        (bytes_s / 50).min(1 << 40) as i64
    }

    fn open(&mut self, now_ms: u64) -> bool {
        let passed = now_ms.saturating_sub(self.at_ms).min(1_000);
        self.at_ms = now_ms;
        let more = (u128::from(self.bytes_s) * u128::from(passed) / 1_000).min(1 << 40) as i64;
        self.left = (self.left + more).min(Self::burst(self.bytes_s).max(1));
        self.left > 0
    }

    fn spend(&mut self, bytes: usize) {
        self.left -= bytes as i64;
    }
}

impl Server {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            queues: BTreeMap::new(),
            turns: VecDeque::new(),
            all: Budget::new(options.upload_bytes_s, 0),
            peer_bytes_s: options.peer_bytes_s,
            // The proxy's clients wait for four times as long; a client gives its answer to whoever asks again.
            timeout_ms: options.request_timeout_ms.saturating_mul(4),
            served: 0,
            dropped: 0,
        }
    }

    /// Whether requests wait for the budget of all, so that it is no time to invite more.
    pub(super) fn overloaded(&self) -> bool {
        !self.turns.is_empty() && self.all.left <= 0
    }

    /// Whether something waits that a tick may answer.
    pub(super) fn waits(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Takes a request.
    pub(super) fn request(&mut self, now_ms: u64, from: u64, message: (Stream, u64, u64, u32)) {
        let (stream, after, up_to, bytes_max) = message;
        if self.queues.len() >= MEMBERS_MAX && !self.queues.contains_key(&from) {
            self.dropped += 1;
            return;
        }
        let bytes_max = (bytes_max as usize).min(ANSWER_BYTES_MAX);
        let request = Request { stream, after, up_to, bytes_max, at_ms: now_ms };
        let queue = self.queue(now_ms, from);
        match queue.requests.iter().position(|waiting| waiting.stream == request.stream) {
            Some(at) => queue.requests[at] = request,
            None if queue.requests.len() >= REQUESTS_MAX => self.dropped += 1,
            None => queue.requests.push_back(request),
        }
        self.wait(from);
    }

    fn wait(&mut self, id: u64) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if !queue.waiting && !queue.paused && !queue.requests.is_empty() {
            queue.waiting = true;
            self.turns.push_back(id);
        }
    }

    /// Answers what may be answered now.
    pub(super) fn serve(&mut self, now_ms: u64, source: &impl Source, mut send: impl FnMut(u64, Message)) {
        // So many turns in a row without an answer mean that all wait for their own budget.
        let mut idle = 0;
        while idle < self.turns.len() && self.all.open(now_ms) {
            let Some(id) = self.turns.pop_front() else { return };
            let Some(queue) = self.queues.get_mut(&id) else { continue };
            if queue.paused || queue.requests.is_empty() {
                queue.waiting = false;
                continue;
            }
            if !queue.budget.open(now_ms) {
                self.turns.push_back(id);
                idle += 1;
                continue;
            }
            idle = 0;
            if let Some(request) = queue.requests.pop_front() {
                if now_ms.saturating_sub(request.at_ms) > self.timeout_ms {
                    self.dropped += 1;
                } else if let Some((message, events)) = answer(source, request) {
                    let bytes = message.size();
                    queue.budget.spend(bytes);
                    self.all.spend(bytes);
                    self.served += events;
                    send(id, message);
                }
            }
            queue.waiting = false;
            self.wait(id);
        }
    }

    /// A member's connection takes nothing more for now (`true`), or again.
    pub(super) fn pause(&mut self, now_ms: u64, id: u64, paused: bool) {
        self.queue(now_ms, id).paused = paused;
        self.wait(id);
    }

    /// Whether a member's connection takes nothing for now.
    pub(super) fn paused(&self, id: u64) -> bool {
        self.queues.get(&id).is_some_and(|queue| queue.paused)
    }

    fn queue(&mut self, now_ms: u64, id: u64) -> &mut Queue {
        let bytes_s = self.peer_bytes_s;
        self.queues.entry(id).or_insert_with(|| Queue {
            requests: VecDeque::new(),
            budget: Budget::new(bytes_s, now_ms),
            paused: false,
            waiting: false,
        })
    }

    /// A member has gone.
    pub(super) fn forget(&mut self, id: u64) {
        if self.queues.remove(&id).is_some_and(|queue| queue.waiting) {
            self.turns.retain(|waiting| *waiting != id);
        }
    }

    /// Forgets those that have asked for nothing in a while.
    pub(super) fn tidy(&mut self, now_ms: u64) {
        self.queues.retain(|_, queue| {
            queue.waiting || queue.paused || now_ms.saturating_sub(queue.budget.at_ms) < 60_000
        });
    }
}

/// The answer to a request, and how many events it has; `None` if the stream is not known here.
fn answer(source: &impl Source, request: Request) -> Option<(Message, u64)> {
    let Request { stream, after, up_to, bytes_max, .. } = request;
    let (held, count) = source.held(&stream)?;
    let mut batches = Vec::new();
    // What is kept no longer is left out: the answer says so by `held`.
    let (mut at, mut bytes, mut events) = (after.max(held), 0, 0);
    while at < up_to && batches.len() < BATCHES_MAX && (bytes < bytes_max || batches.is_empty()) {
        let Some(batch) = source.read(&stream, at, up_to, bytes_max - bytes.min(bytes_max)) else { break };
        let size = batch_size(&batch);
        if !batches.is_empty() && bytes + size > bytes_max {
            break;
        }
        (at, bytes, events) = (batch.last, bytes + size, events + u64::from(batch.count));
        batches.push(batch);
    }
    Some((Message::Events { stream, after, held, count, batches }, events))
}
