//! Answers others' requests: one answer at a time to each in turn, within so many bytes a second for each and for all,
//! so that whoever asks for much gets it more slowly, and whoever reads slowly holds nobody up.
//!
//! What waits is bounded: one request for each stream and member (a later one replaces it), a limited number of them
//! for each member, a limited number of members. What waited for longer than its sender does is dropped.
//!
//! A request may stand: whoever asked is fed, in rounds, with what comes, until it takes the request back or its
//! connection ends. A limited number of members is fed of each stream.

use std::collections::{BTreeMap, VecDeque};

use crate::batch::Batch;
use crate::name::Stream;

use super::message::{BATCHES_MAX, Message, STANDING, STREAMS_MAX, batch_size};
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
    /// Requests that stand.
    standing: BTreeMap<Stream, Standing>,
    /// When a stream with news may have a round.
    round_at_ms: u64,
    feed_ms: u64,
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
    /// Whether it stands, or was to.
    stands: bool,
}

/// Who is fed of a stream.
#[derive(Debug, Default)]
struct Standing {
    members: Vec<Fed>,
    news: bool,
    round_at_ms: u64,
}

/// A request that stands.
#[derive(Debug)]
struct Fed {
    member: u64,
    /// Up to where it was answered.
    after: u64,
    bytes_max: usize,
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
    /// One that has a round of each stream at most every `feed_ms`.
    pub(super) fn new(options: &Options, feed_ms: u64) -> Self {
        Self {
            queues: BTreeMap::new(),
            turns: VecDeque::new(),
            standing: BTreeMap::new(),
            round_at_ms: u64::MAX,
            feed_ms,
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

    /// When something waits that a tick may answer.
    pub(super) fn due_ms(&self) -> u64 {
        if self.turns.is_empty() { self.round_at_ms } else { 0 }
    }

    /// There is more of a stream.
    pub(super) fn progressed(&mut self, stream: &Stream) {
        if let Some(standing) = self.standing.get_mut(stream) {
            standing.news = true;
            self.round_at_ms = self.round_at_ms.min(standing.round_at_ms);
        }
    }

    /// Whether a member is fed here with a stream.
    pub(super) fn feeds(&self, id: u64, stream: &Stream) -> bool {
        self.standing.get(stream).is_some_and(|standing| standing.members.iter().any(|fed| fed.member == id))
    }

    /// Whether a member is fed here.
    pub(super) fn feeds_any(&self, id: u64) -> bool {
        self.standing.values().any(|standing| standing.members.iter().any(|fed| fed.member == id))
    }

    /// Requests that stand.
    pub(super) fn standing(&self) -> usize {
        self.standing.values().map(|standing| standing.members.len()).sum()
    }

    /// Takes a request. One that is to stand does if fewer than `feeds_max` others are fed of its stream.
    pub(super) fn request(
        &mut self,
        now_ms: u64,
        from: u64,
        message: (Stream, u64, u64, u32),
        feeds_max: usize,
    ) {
        let (stream, after, up_to, bytes_max) = message;
        if self.queues.len() >= MEMBERS_MAX && !self.queues.contains_key(&from) {
            self.dropped += 1;
            return;
        }
        let bytes_max = (bytes_max as usize).min(ANSWER_BYTES_MAX);
        let stands = up_to == STANDING;
        if stands {
            self.stand(from, &stream, after, bytes_max, feeds_max);
            if after == STANDING {
                return;
            }
        }
        self.enqueue(now_ms, from, Request { stream, after, up_to, bytes_max, at_ms: now_ms, stands });
    }

    /// A request stands from now on in place of the one that did, if there is room for it, or none does.
    fn stand(&mut self, from: u64, stream: &Stream, after: u64, bytes_max: usize, feeds_max: usize) {
        let known = self.standing.len();
        if after != STANDING && (known < STREAMS_MAX || self.standing.contains_key(stream)) {
            let members = &mut self.standing.entry(stream.clone()).or_default().members;
            members.retain(|fed| fed.member != from);
            if members.len() < feeds_max {
                members.push(Fed { member: from, after, bytes_max });
            }
        } else if let Some(standing) = self.standing.get_mut(stream) {
            standing.members.retain(|fed| fed.member != from);
        }
        if self.standing.get(stream).is_some_and(|standing| standing.members.is_empty()) {
            self.standing.remove(stream);
        }
    }

    fn enqueue(&mut self, now_ms: u64, from: u64, request: Request) {
        let queue = self.queue(now_ms, from);
        let alike = |waiting: &Request| waiting.stream == request.stream && waiting.stands == request.stands;
        match queue.requests.iter().position(alike) {
            Some(at) => queue.requests[at] = request,
            None if queue.requests.len() >= REQUESTS_MAX && !request.stands => self.dropped += 1,
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

    /// Those that are fed get what they lack of the streams whose round it is.
    fn round(&mut self, now_ms: u64, source: &impl Source) {
        if now_ms < self.round_at_ms {
            return;
        }
        self.round_at_ms = u64::MAX;
        let mut lack = Vec::new();
        for (stream, standing) in self.standing.iter_mut().filter(|(_, standing)| standing.news) {
            if now_ms < standing.round_at_ms {
                self.round_at_ms = self.round_at_ms.min(standing.round_at_ms);
                continue;
            }
            (standing.news, standing.round_at_ms) = (false, now_ms + self.feed_ms);
            let count = source.held(stream).map_or(0, |(_, count)| count);
            let members = standing.members.iter().filter(|fed| fed.after < count);
            lack.extend(members.map(|fed| (fed.member, stream.clone(), fed.after, fed.bytes_max)));
        }
        for (member, stream, after, bytes_max) in lack {
            let request = Request { stream, after, up_to: STANDING, bytes_max, at_ms: now_ms, stands: true };
            self.enqueue(now_ms, member, request);
        }
    }

    /// Answers what may be answered now. `hops` is how far this member is from the proxy.
    pub(super) fn serve(
        &mut self,
        now_ms: u64,
        source: &impl Source,
        hops: impl Fn(&Stream) -> u8,
        mut send: impl FnMut(u64, Message),
    ) {
        self.round(now_ms, source);
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
            if let Some(mut request) = queue.requests.pop_front() {
                let fed = match request.stands {
                    true => self.standing.get_mut(&request.stream),
                    false => None,
                };
                let fed = fed.and_then(|standing| standing.members.iter_mut().find(|fed| fed.member == id));
                if let Some(fed) = &fed {
                    request.after = fed.after;
                }
                let late = now_ms.saturating_sub(request.at_ms) > self.timeout_ms;
                if late && fed.is_none() {
                    self.dropped += 1;
                } else if let Some(answer) = answer(source, &request, hops(&request.stream), fed.is_some()) {
                    let bytes = answer.message.size();
                    queue.budget.spend(bytes);
                    self.all.spend(bytes);
                    self.served += answer.events;
                    send(id, answer.message);
                    if let Some(fed) = fed {
                        fed.after = answer.last;
                        if answer.last > request.after && !answer.complete {
                            queue.requests.push_back(request);
                        }
                    }
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
        self.standing.retain(|_, standing| {
            standing.members.retain(|fed| fed.member != id);
            !standing.members.is_empty()
        });
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

struct Answer {
    message: Message,
    events: u64,
    /// The last number that it has or passes over.
    last: u64,
    /// Whether that is all there is.
    complete: bool,
}

/// The answer to a request; `None` if the stream is not known here.
fn answer(source: &impl Source, request: &Request, hops: u8, stands: bool) -> Option<Answer> {
    let Request { stream, after, up_to, bytes_max, .. } = request;
    let (held, count) = source.held(stream)?;
    let mut batches = Vec::new();
    // What is kept no longer is left out: the answer says so by `held`.
    let (mut last, mut bytes, mut events) = ((*after).max(held), 0, 0);
    while last < *up_to && batches.len() < BATCHES_MAX && (bytes < *bytes_max || batches.is_empty()) {
        let Some(batch) = source.read(stream, last, *up_to, bytes_max - bytes.min(*bytes_max)) else { break };
        let size = batch_size(&batch);
        if !batches.is_empty() && bytes + size > *bytes_max {
            break;
        }
        (last, bytes, events) = (batch.last, bytes + size, events + u64::from(batch.count));
        batches.push(batch);
    }
    let (stream, after, complete) = (stream.clone(), *after, last >= count);
    let message = Message::Events { stream, after, held, count, hops, stands, batches };
    Some(Answer { message, events, last, complete })
}
