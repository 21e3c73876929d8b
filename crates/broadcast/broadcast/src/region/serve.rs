//! Answers others' requests: one answer at a time to each in turn, within so many bytes a second for each and for all,
//! so that whoever asks for much gets it more slowly, and whoever reads slowly holds nobody up.
//!
//! What waits is bounded: one request for each stream and member (a later one replaces it), a limited number of them
//! for each member besides those that stand, a limited number of members. What waited for longer than its sender does
//! is dropped.
//!
//! A request may stand: whoever asked is fed, in rounds, with what comes, until it takes the request back or its
//! connection ends. A limited number of members is fed of each stream, and no more than the bytes a second allow: where
//! some still wait for the last round when the next one begins, the latest of them are left, and told so. They have
//! their turn before others, who can ask elsewhere: what they get is passed on.

use std::collections::{BTreeMap, VecDeque};

use crate::batch::Batch;
use crate::limits::STREAMS_MAX;
use crate::name::Stream;

use super::message::{BATCHES_MAX, Message, STANDING, UNFED, batch_size};
use super::options::Options;

/// Requests of one member that wait.
const REQUESTS_MAX: usize = 64;
/// Members whose requests wait.
const MEMBERS_MAX: usize = 1 << 16;
/// Bytes of one answer, if a single batch is not larger.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Bytes of answers to one member after which it gets none until the next tick: by then the shell has seen what waits
/// for its connection, and says if that takes no more.
const TICK_BYTES_MAX: usize = 256 << 10;
/// Bytes below which batches are put together, and what they make together at most: every listener that they get to
/// handles one in place of many.
const JOINED_BYTES: (usize, usize) = (4 << 10, 64 << 10);
/// Of the members that wait for the last round, one in so many is left.
const LEAVES_ONE_IN: usize = 2;
/// Members of a stream that have to be fed for what most of them lack to be said of all. A proxy keeps as many: if it
/// can't send as much as they want publishers are to slow down, as what only one of them is sent passes on slowly.
pub(super) const MOST_OF: usize = 3;
/// Milliseconds for which nobody new is fed after one was left.
const FULL_MS: u64 = 5_000;

/// Where the answers come from: what a client keeps, or a proxy's histories.
pub trait ServeSource {
    /// The lineage of a stream's region, of which it has the stream.
    fn lineage(&self, stream: &Stream) -> u64;

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
    /// Those with requests that wait, in the order of their turns: with requests that stand, and with others.
    fed_turns: VecDeque<u64>,
    turns: VecDeque<u64>,
    /// Requests that stand.
    standing: BTreeMap<Stream, ServeStanding>,
    /// When a stream with news may have a round.
    round_at_ms: u64,
    feed_ms: u64,
    keeps: usize,
    all: Budget,
    peer_bytes_s: u64,
    timeout_ms: u64,
    ticks: u64,
    pub(super) served: u64,
    pub(super) dropped: u64,
}

#[derive(Debug)]
struct Queue {
    requests: VecDeque<ServeRequest>,
    budget: Budget,
    /// Bytes of answers since that tick.
    answered: (u64, usize),
    paused: bool,
    /// Whether it is in `fed_turns`, and in `turns`.
    fed_waiting: bool,
    waiting: bool,
}

#[derive(Debug)]
struct ServeRequest {
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
struct ServeStanding {
    members: Vec<Fed>,
    news: bool,
    round_at_ms: u64,
    /// Until when nobody new is fed.
    full_until_ms: u64,
}

/// A request that stands.
#[derive(Debug)]
struct Fed {
    member: u64,
    /// Up to where it was answered.
    after: u64,
    /// Whether it has had all that there was at one time.
    has_caught_up: bool,
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
    /// One that has a round of each stream at most every `feed_ms`, and of those that are fed of one always keeps as
    /// many as `keeps`.
    pub(super) fn new(options: &Options, feed_ms: u64, keeps: usize) -> Self {
        Self {
            queues: BTreeMap::new(),
            fed_turns: VecDeque::new(),
            turns: VecDeque::new(),
            standing: BTreeMap::new(),
            round_at_ms: u64::MAX,
            feed_ms,
            keeps,
            all: Budget::new(options.upload_bytes_s, 0),
            peer_bytes_s: options.peer_bytes_s,
            // The proxy's clients wait for four times as long; a client gives its answer to whoever asks again.
            timeout_ms: options.request_timeout_ms.saturating_mul(4),
            ticks: 0,
            served: 0,
            dropped: 0,
        }
    }

    /// Whether requests wait for the budget of all, so that it is no time to invite more.
    pub(super) fn overloaded(&self) -> bool {
        self.waits() && self.all.left <= 0
    }

    fn waits(&self) -> bool {
        !self.turns.is_empty() || !self.fed_turns.is_empty()
    }

    /// When something waits that a tick may answer.
    pub(super) fn due_ms(&self) -> u64 {
        if self.waits() { 0 } else { self.round_at_ms }
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

    /// How far the middle one is of those that are fed of a stream: more than half were answered up to there at most.
    /// Who has never had all that there was does not count, as it comes from behind. `None` if fewer than three count.
    pub(super) fn fed_up_to(&self, stream: &Stream) -> Option<u64> {
        let members = &self.standing.get(stream)?.members;
        let mut afters: Vec<u64> =
            members.iter().filter(|fed| fed.has_caught_up).map(|fed| fed.after).collect();
        if afters.len() < MOST_OF {
            return None;
        }
        let middle = afters.len() / 2;
        Some(*afters.select_nth_unstable(middle).1)
    }

    /// Requests that stand.
    pub(super) fn standing(&self) -> usize {
        self.standing.values().map(|standing| standing.members.len()).sum()
    }

    /// Takes a request. One that is to stand does if fewer than `feeds_max` others are fed of its stream, which has to
    /// be one that is here: whoever asks for others would take all room there is.
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
            self.stand(now_ms, from, &stream, after, bytes_max, feeds_max);
            if after == STANDING {
                return;
            }
        }
        self.enqueue(now_ms, from, ServeRequest { stream, after, up_to, bytes_max, at_ms: now_ms, stands });
    }

    /// A request stands from now on in place of the one that did, if there is room for it, or none does.
    fn stand(
        &mut self,
        now_ms: u64,
        from: u64,
        stream: &Stream,
        after: u64,
        bytes_max: usize,
        feeds_max: usize,
    ) {
        let known = self.standing.len();
        if after != STANDING && (known < STREAMS_MAX || self.standing.contains_key(stream)) {
            let standing = self.standing.entry(stream.clone()).or_default();
            let members = &mut standing.members;
            let before = members.len();
            let has_caught_up = members.iter().any(|fed| fed.member == from && fed.has_caught_up);
            members.retain(|fed| fed.member != from);
            let is_fed = members.len() < before;
            if members.len() < feeds_max && (is_fed || now_ms >= standing.full_until_ms) {
                members.push(Fed { member: from, after, has_caught_up, bytes_max });
            }
        } else if let Some(standing) = self.standing.get_mut(stream) {
            standing.members.retain(|fed| fed.member != from);
        }
        if self.standing.get(stream).is_some_and(|standing| standing.members.is_empty()) {
            self.standing.remove(stream);
        }
    }

    /// A stream begins anew: what was asked for of it is no more. Those that were fed of it are told that, and in which
    /// lineage it is now; they ask again.
    pub(super) fn end(&mut self, stream: &Stream, lineage: u64, mut send: impl FnMut(u64, Message)) {
        for queue in self.queues.values_mut() {
            queue.requests.retain(|request| request.stream != *stream);
        }
        let standing = self.standing.remove(stream).unwrap_or_default();
        for fed in standing.members {
            send(fed.member, empty(stream.clone(), lineage, fed.after));
        }
    }

    fn enqueue(&mut self, now_ms: u64, from: u64, request: ServeRequest) {
        let is_full = self.queue(now_ms, from).requests.len() >= REQUESTS_MAX;
        // One that stands has its place: of each stream there is one.
        let has_room = !is_full || (request.stands && self.feeds(from, &request.stream));
        let queue = self.queue(now_ms, from);
        let alike =
            |waiting: &ServeRequest| waiting.stream == request.stream && waiting.stands == request.stands;
        match queue.requests.iter().position(alike) {
            Some(at) => queue.requests[at] = request,
            None if has_room => queue.requests.push_back(request),
            None => self.dropped += 1,
        }
        self.wait(from);
    }

    fn wait(&mut self, id: u64) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if queue.paused {
            return;
        }
        if !queue.fed_waiting && queue.requests.iter().any(|request| request.stands) {
            queue.fed_waiting = true;
            self.fed_turns.push_back(id);
        }
        if !queue.waiting && queue.requests.iter().any(|request| !request.stands) {
            queue.waiting = true;
            self.turns.push_back(id);
        }
    }

    /// Those that are fed get what they lack of the streams whose round it is. Those that are left are told.
    fn round(&mut self, now_ms: u64, source: &impl ServeSource, send: &mut impl FnMut(u64, Message)) {
        if now_ms < self.round_at_ms {
            return;
        }
        self.round_at_ms = u64::MAX;
        let overloaded = self.overloaded();
        let mut lack = Vec::new();
        for (stream, standing) in self.standing.iter_mut().filter(|(_, standing)| standing.news) {
            if now_ms < standing.round_at_ms {
                self.round_at_ms = self.round_at_ms.min(standing.round_at_ms);
                continue;
            }
            (standing.news, standing.round_at_ms) = (false, now_ms + self.feed_ms);
            let (held, count) = source.held(stream).unwrap_or((0, 0));
            if overloaded {
                for fed in standing.leave(now_ms, stream, &self.queues, self.keeps) {
                    if let Some(queue) = self.queues.get_mut(&fed.member) {
                        queue.requests.retain(|request| !request.stands || request.stream != *stream);
                    }
                    let (stream, after, batches) = (stream.clone(), fed.after, Vec::new());
                    // Whoever was fed from here and is not any more looks for another one.
                    let (lineage, hops, stands) = (source.lineage(&stream), UNFED, false);
                    let end = Message::Events { stream, lineage, after, held, count, hops, stands, batches };
                    send(fed.member, end);
                }
            }
            let members = standing.members.iter().filter(|fed| fed.after < count);
            lack.extend(members.map(|fed| (fed.member, stream.clone(), fed.after, fed.bytes_max)));
        }
        for (member, stream, after, bytes_max) in lack {
            let request =
                ServeRequest { stream, after, up_to: STANDING, bytes_max, at_ms: now_ms, stands: true };
            self.enqueue(now_ms, member, request);
        }
    }

    /// What was answered has left, or waits for connections of which the shell says if they take no more.
    pub(super) fn tick(&mut self) {
        self.ticks += 1;
    }

    /// Answers what may be answered now. `hops` is how far this member is from the proxy.
    pub(super) fn serve(
        &mut self,
        now_ms: u64,
        source: &impl ServeSource,
        hops: impl Fn(&Stream) -> u8,
        mut send: impl FnMut(u64, Message),
    ) {
        self.round(now_ms, source, &mut send);
        self.serve_turns(true, now_ms, source, &hops, &mut send);
        self.serve_turns(false, now_ms, source, &hops, &mut send);
    }

    /// The turns of those with requests that stand (`fed`), or with others.
    fn serve_turns(
        &mut self,
        fed: bool,
        now_ms: u64,
        source: &impl ServeSource,
        hops: &impl Fn(&Stream) -> u8,
        send: &mut impl FnMut(u64, Message),
    ) {
        // Those that are fed lack the same, most of them.
        let mut gathered = None;
        // So many turns in a row without an answer mean that all wait for their own budget, or for a tick.
        let mut idle = 0;
        while idle < self.turns_of(fed).len() && self.all.open(now_ms) {
            let Some(id) = self.turns_of(fed).pop_front() else { return };
            let Some(queue) = self.queues.get_mut(&id) else { continue };
            let at = queue.requests.iter().position(|request| request.stands == fed);
            let Some(at) = at.filter(|_| !queue.paused) else {
                *queue.waits_in(fed) = false;
                continue;
            };
            if queue.answered.0 != self.ticks {
                queue.answered = (self.ticks, 0);
            }
            if queue.answered.1 >= TICK_BYTES_MAX || !queue.budget.open(now_ms) {
                self.turns_of(fed).push_back(id);
                idle += 1;
                continue;
            }
            idle = 0;
            *queue.waits_in(fed) = false;
            if let Some(mut request) = queue.requests.remove(at) {
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
                } else if let Some(answer) =
                    answer(source, &request, hops(&request.stream), fed.is_some(), &mut gathered)
                {
                    let bytes = answer.message.size();
                    queue.budget.spend(bytes);
                    queue.answered.1 += bytes;
                    self.all.spend(bytes);
                    self.served += answer.events;
                    send(id, answer.message);
                    if let Some(fed) = fed {
                        fed.after = answer.last;
                        fed.has_caught_up |= answer.complete;
                        if answer.last > request.after && !answer.complete {
                            queue.requests.push_back(request);
                        }
                    }
                }
            }
            self.wait(id);
        }
    }

    fn turns_of(&mut self, fed: bool) -> &mut VecDeque<u64> {
        if fed { &mut self.fed_turns } else { &mut self.turns }
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
            answered: (0, 0),
            paused: false,
            fed_waiting: false,
            waiting: false,
        })
    }

    /// A member has gone.
    pub(super) fn forget(&mut self, id: u64) {
        self.standing.retain(|_, standing| {
            standing.members.retain(|fed| fed.member != id);
            !standing.members.is_empty()
        });
        if self.queues.remove(&id).is_some() {
            self.fed_turns.retain(|waiting| *waiting != id);
            self.turns.retain(|waiting| *waiting != id);
        }
    }

    /// Forgets those that have asked for nothing in a while.
    pub(super) fn tidy(&mut self, now_ms: u64) {
        self.queues.retain(|_, queue| {
            queue.fed_waiting
                || queue.waiting
                || queue.paused
                || now_ms.saturating_sub(queue.budget.at_ms) < 60_000
        });
    }
}

struct ServeAnswer {
    message: Message,
    events: u64,
    /// The last number that it has or passes over.
    last: u64,
    /// Whether that is all there is.
    complete: bool,
}

impl Queue {
    fn waits_in(&mut self, fed: bool) -> &mut bool {
        if fed { &mut self.fed_waiting } else { &mut self.waiting }
    }
}

impl ServeStanding {
    /// Takes away some of those that still wait for the last round, the latest first, so that what can be sent suffices
    /// for the others. Of all the first `keeps` are kept.
    fn leave(
        &mut self,
        now_ms: u64,
        stream: &Stream,
        queues: &BTreeMap<u64, Queue>,
        keeps: usize,
    ) -> Vec<Fed> {
        let waits = |fed: &Fed| {
            queues.get(&fed.member).is_some_and(|queue| {
                let of = |request: &ServeRequest| request.stands && request.stream == *stream;
                !queue.paused && queue.requests.iter().any(of)
            })
        };
        let waiting: Vec<usize> =
            (keeps..self.members.len()).filter(|at| waits(&self.members[*at])).collect();
        let count = waiting.len().div_ceil(LEAVES_ONE_IN);
        if count > 0 {
            self.full_until_ms = now_ms + FULL_MS;
        }
        waiting.into_iter().rev().take(count).map(|at| self.members.remove(at)).collect()
    }
}

/// What is sent of a stream.
struct ServeGathered {
    stream: Stream,
    after: u64,
    up_to: u64,
    bytes_max: usize,
    batches: Vec<Batch>,
    last: u64,
    events: u64,
}

/// Says nothing but of which lineage a stream is.
pub(super) fn empty(stream: Stream, lineage: u64, after: u64) -> Message {
    let (held, count, hops, stands, batches) = (0, 0, UNFED, false, Vec::new());
    Message::Events { stream, lineage, after, held, count, hops, stands, batches }
}

/// The answer to a request; `None` if the stream is not known here. What the one before was is used again if it is the
/// same.
fn answer(
    source: &impl ServeSource,
    request: &ServeRequest,
    hops: u8,
    stands: bool,
    before: &mut Option<ServeGathered>,
) -> Option<ServeAnswer> {
    let (held, count) = source.held(&request.stream)?;
    let same = |gathered: &ServeGathered| {
        gathered.stream == request.stream
            && (gathered.after, gathered.up_to) == (request.after, request.up_to)
            && gathered.bytes_max == request.bytes_max
    };
    let gathered = match before.take().filter(same) {
        Some(gathered) => gathered,
        None => gather(source, request, held),
    };
    let ServeGathered { last, events, .. } = gathered;
    let (stream, after, complete) = (request.stream.clone(), request.after, last >= count);
    let batches = gathered.batches.clone();
    *before = Some(gathered);
    let lineage = source.lineage(&stream);
    let message = Message::Events { stream, lineage, after, held, count, hops, stands, batches };
    Some(ServeAnswer { message, events, last, complete })
}

/// Reads what is asked for. What is kept no longer is left out: the answer says so by `held`.
fn gather(source: &impl ServeSource, request: &ServeRequest, held: u64) -> ServeGathered {
    let ServeRequest { ref stream, after, up_to, bytes_max, .. } = *request;
    let mut batches: Vec<Batch> = Vec::new();
    let (mut last, mut bytes, mut events) = (after.max(held), 0, 0);
    while last < up_to && batches.len() < BATCHES_MAX && (bytes < bytes_max || batches.is_empty()) {
        let Some(batch) = source.read(stream, last, up_to, bytes_max - bytes.min(bytes_max)) else { break };
        let size = batch_size(&batch);
        if !batches.is_empty() && bytes + size > bytes_max {
            break;
        }
        (last, bytes, events) = (batch.last, bytes + size, events + u64::from(batch.count));
        batches.push(batch);
    }
    ServeGathered { stream: stream.clone(), after, up_to, bytes_max, batches: join(batches), last, events }
}

/// Puts small batches together.
fn join(batches: Vec<Batch>) -> Vec<Batch> {
    let (small, most) = JOINED_BYTES;
    let mut out: Vec<Batch> = Vec::with_capacity(batches.len());
    let mut run: Vec<Batch> = Vec::new();
    let mut bytes = 0;
    let mut finish = |run: &mut Vec<Batch>| match run.len() {
        0 | 1 => out.append(run),
        _ => match Batch::joined(run) {
            Ok(joined) => {
                run.clear();
                out.push(joined);
            }
            // They were checked when they came.
            Err(_) => out.append(run),
        },
    };
    for batch in batches {
        let size = batch_size(&batch);
        if size > small || bytes + size > most {
            finish(&mut run);
            bytes = 0;
        }
        bytes += size;
        run.push(batch);
        if size > small {
            finish(&mut run);
            bytes = 0;
        }
    }
    finish(&mut run);
    out
}
