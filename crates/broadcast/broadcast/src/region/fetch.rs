//! Which events a client asks of whom, and the order in which they are delivered.
//!
//! For each stream, numbers are *delivered* up to the client's count, or *early* (they came before their turn), or
//! *asked for*, or in a gap. What is in a gap is asked of one that says it keeps it: of the one that has just told
//! of it, or else of any other. Where nobody does, or nobody has answered, the proxy is asked. A member has at most
//! one request of each stream to answer, so that a client never waits for more than it has room for.
//!
//! One that the proxy tells lags behind it, but what it lags behind by is on its way among the others. So it asks the
//! proxy for the newest part only, which nobody else has yet, and leaves the rest to the others for a while: if each
//! one that is told asked for all, the proxy would send each event as often as clients are told while it is on its way.
//!
//! Once nothing is in a gap, one member [`feed`]s this client with what comes.
//!
//! All of that is of one lineage of the stream's region. When the proxy says something of a later one this client
//! begins anew with it. What another client says of a later one is not believed, as there is no way back, but makes
//! this client ask the proxy; what is said of an earlier one is left out.

mod feed;

use std::collections::BTreeMap;

use crate::batch::Batch;
use crate::name::Stream;
use crate::positions::Position;

use self::feed::{FetchDue, FetchFeed, take_back};
use super::message::{Message, RegionProgress, STANDING, UNFED, batch_size};
use super::options::{Begin, Options, Stats};
use super::peer::PeerOutput;
use super::recv::Recv;
use super::rng::RegionRng;
use super::serve::ServeSource;

/// Requests of one stream that are not answered.
const ASKS_MAX: usize = 8;
/// Requests that one member has not answered, over all streams.
const ASKS_OF_ONE_MAX: usize = 16;
/// Milliseconds after which somebody is looked for again where all that could be asked were busy.
const LOOK_AGAIN_MS: u64 = 50;
/// Milliseconds for which what others will have is not asked of the proxy.
const LEFT_MS: u64 = 100;
/// The newest part that the proxy is asked for has as many bytes as a request, divided by this.
const NEWEST_ONE_IN: usize = 4;
/// Milliseconds for which the proxy is not asked once more about lineages that others say there are.
const DOUBT_MS: u64 = 100;
/// Members whose progress is known.
const KNOWN_MAX: usize = 512;
/// Whoever brings something, but not yet what others have, has so many times as long as one that brings nothing; so has
/// everybody where this client itself is late. Where all have too much to do nobody else would be sooner, and what is
/// on its way would come twice.
const LATE_TIMES: u64 = 2;
/// So many milliseconds after what was due a client is late.
const LATE_MS: u64 = 50;
/// How often the time that others have to answer is doubled at most: as long as a request waits for its answer there.
const PATIENCE_MAX: u32 = 2;

#[derive(Debug)]
pub(super) struct RegionFetcher {
    pub(super) recv: Recv,
    streams: Vec<Fetch>,
    known: BTreeMap<u64, Known>,
    /// Where streams begin that were not told of yet.
    positions: BTreeMap<Stream, Position>,
    /// Streams that have begun anew, and nobody was told of that.
    pub(super) turned: Vec<Stream>,
    proxy: u64,
    /// When it may be asked again about a lineage.
    doubts_at_ms: u64,
    reading: bool,
    /// How often the time that others have to answer is doubled. Where all have too much to do, whoever gives up early
    /// and asks once more gives them more to do.
    patience: u32,
    /// When that may change again.
    patience_at_ms: u64,
    /// When to look again for somebody to ask: there are gaps for which nobody was free.
    look_again_ms: u64,
    options: Options,
    pub(super) stats: Stats,
}

/// What is asked for and early of one stream.
#[derive(Debug, Default)]
struct Fetch {
    asks: Vec<Ask>,
    early: BTreeMap<u64, Early>,
    early_bytes: usize,
    /// The greatest count that anybody has notified of: nothing beyond is asked for. An answer does not raise it, or
    /// whoever asks a busy member once would ask it for ever, and F would bound nothing.
    horizon: u64,
    feed: Option<FetchFeed>,
    /// One that has not said whether it will be the feed.
    wanted: Option<FetchFeed>,
    /// When the feed may be left for a better one.
    moves_at_ms: u64,
    /// Numbers up to here are left to others than the proxy, until then.
    left: (u64, u64),
}

/// How it stands with a stream at a member, as it said itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Has {
    pub(super) held: u64,
    pub(super) count: u64,
    pub(super) hops: u8,
}

const NOTHING: Has = Has { held: 0, count: 0, hops: UNFED };

/// An answer to a request.
pub(super) struct FetchAnswer {
    pub(super) from: u64,
    pub(super) after: u64,
    pub(super) has: Has,
    pub(super) stands: bool,
    pub(super) batches: Vec<Batch>,
}

#[derive(Debug)]
struct Ask {
    of: u64,
    after: u64,
    up_to: u64,
    by: Deadline,
}

/// Until when a member has time.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    since_ms: u64,
    until_ms: u64,
    latest_ms: u64,
}

impl Deadline {
    fn new(now_ms: u64, timeout_ms: u64) -> Self {
        let latest_ms = now_ms + LATE_TIMES * timeout_ms;
        Self { since_ms: now_ms, until_ms: now_ms + timeout_ms, latest_ms }
    }

    /// It has so much longer from now on, within bounds.
    fn extend(&mut self, now_ms: u64, by_ms: u64) {
        self.until_ms = self.until_ms.max(self.latest_ms.min(now_ms + by_ms));
    }

    /// Whether less than half of the time has passed.
    fn is_early(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.since_ms) < (self.latest_ms - self.since_ms) / LATE_TIMES / 2
    }

    fn is_over(&self, now_ms: u64) -> bool {
        self.until_ms <= now_ms
    }
}

#[derive(Debug)]
struct Early {
    batch: Batch,
    from_proxy: bool,
}

/// What a member has said of itself.
#[derive(Debug, Default)]
struct Known {
    /// Of each stream.
    has: Vec<Has>,
    /// Requests it has not answered.
    asks: usize,
    heard_ms: u64,
    /// Until when it is not asked to feed this one.
    refuses_until_ms: u64,
}

impl Known {
    fn of(&self, index: usize) -> Has {
        self.has.get(index).copied().unwrap_or(NOTHING)
    }

    fn set(&mut self, index: usize, has: Has) {
        if self.has.len() <= index {
            self.has.resize(index + 1, NOTHING);
        }
        self.has[index] = has;
    }
}

impl RegionFetcher {
    pub(super) fn new(proxy: u64, positions: BTreeMap<Stream, Position>, options: &Options) -> Self {
        let mut recv = Recv::new(options.recv_bytes);
        for (stream, position) in &positions {
            if position.lineage > recv.lineage_of(stream.region()) {
                recv.turn(stream.region(), position.lineage);
            }
        }
        Self {
            recv,
            streams: Vec::new(),
            known: BTreeMap::new(),
            positions,
            turned: Vec::new(),
            proxy,
            doubts_at_ms: 0,
            reading: true,
            patience: 0,
            patience_at_ms: 0,
            look_again_ms: u64::MAX,
            options: options.clone(),
            stats: Stats::default(),
        }
    }

    /// What a member has said of its count.
    pub(super) fn known(&self, id: u64, index: usize) -> u64 {
        self.known.get(&id).map_or(0, |known| known.of(index).count)
    }

    /// A member tells how far it has come.
    pub(super) fn notified(
        &mut self,
        now_ms: u64,
        rng: &mut RegionRng,
        from: u64,
        streams: Vec<RegionProgress>,
        out: &mut Vec<PeerOutput>,
    ) {
        for RegionProgress { stream, lineage, held, count, hops } in streams {
            if !self.hears(now_ms, from, &stream, lineage, out) {
                continue;
            }
            let Some(index) = self.index(&stream, count) else { continue };
            self.hear(now_ms, from, index, Has { held, count, hops });
            let timeout_ms = self.timeout_ms();
            let fetch = &mut self.streams[index];
            fetch.horizon = count.min(STANDING - 1).max(fetch.horizon);
            if let Some(feed) = fetch.feed.as_mut().filter(|feed| feed.after < count) {
                feed.due.get_or_insert(FetchDue::new(count, now_ms, timeout_ms));
            }
            self.prefer(now_ms, index, from, hops, out);
            self.pursue(now_ms, rng, index, Some(from), out);
        }
    }

    /// Whether what a member says of a stream in a lineage is of what this client has, or begins anew with, and of no
    /// other one.
    pub(super) fn hears(
        &mut self,
        now_ms: u64,
        from: u64,
        stream: &Stream,
        lineage: u64,
        out: &mut Vec<PeerOutput>,
    ) -> bool {
        let own = self.recv.lineage(stream);
        if lineage <= own || !self.wants(stream) {
            return lineage >= own;
        }
        let region = stream.region();
        if from != self.proxy {
            self.doubt(now_ms, stream, own, out);
            return false;
        }
        if !self.recv.turn(region, lineage) {
            self.stats.left_out += 1;
            return false;
        }
        let mut had_any = own > 0;
        for index in 0..self.streams.len() {
            if self.recv.name(index).region() == region {
                had_any |= self.recv.count(index) > 0;
                self.restart(index, out);
            }
        }
        for (_, position) in self.positions.iter_mut().filter(|(stream, _)| stream.region() == region) {
            had_any |= position.seq > 0;
            *position = Position { lineage, seq: 0 };
        }
        if had_any {
            out.push(PeerOutput::Anew { region: region.to_owned(), lineage });
        }
        true
    }

    /// Asks the proxy whether there is another lineage than this client's: then it answers so, and with nothing
    /// otherwise.
    fn doubt(&mut self, now_ms: u64, stream: &Stream, lineage: u64, out: &mut Vec<PeerOutput>) {
        if now_ms < self.doubts_at_ms {
            return;
        }
        self.doubts_at_ms = now_ms + DOUBT_MS;
        let at = self.recv.index(stream).map_or(0, |index| self.recv.count(index));
        let message =
            Message::Request { stream: stream.clone(), lineage, after: at, up_to: at, bytes_max: 0 };
        self.stats.requests_to_proxy += 1;
        out.push(PeerOutput::Send { to: self.proxy, message });
    }

    /// A stream begins anew.
    fn restart(&mut self, index: usize, out: &mut Vec<PeerOutput>) {
        let (stream, lineage) = self.recv.named(index);
        let fetch = std::mem::take(&mut self.streams[index]);
        for ask in &fetch.asks {
            if let Some(known) = self.known.get_mut(&ask.of) {
                known.asks = known.asks.saturating_sub(1);
            }
        }
        out.extend(fetch.feeds().map(|feed| take_back(stream.clone(), lineage, feed.of)));
        self.known.values_mut().for_each(|known| known.set(index, NOTHING));
        self.recv.restart(index);
        self.turned.push(stream);
    }

    fn wants(&self, stream: &Stream) -> bool {
        self.options.streams.as_ref().is_none_or(|wanted| wanted.contains(stream))
    }

    /// The number of a stream; it begins now if it is a new one that this client wants.
    fn index(&mut self, stream: &Stream, count: u64) -> Option<usize> {
        if let Some(index) = self.recv.index(stream) {
            return Some(index);
        }
        if !self.wants(stream) {
            return None;
        }
        let from = match (self.positions.get(stream), self.options.begin) {
            // Where it was in an earlier lineage says nothing.
            (Some(at), _) if at.lineage < self.recv.lineage_of(stream.region()) => 0,
            (Some(at), _) => at.seq,
            (None, Begin::First) => 0,
            (None, Begin::Now) => count,
        };
        let Some(index) = self.recv.begin(stream, from) else {
            self.stats.left_out += 1;
            return None;
        };
        self.streams.push(Fetch::default());
        Some(index)
    }

    fn hear(&mut self, now_ms: u64, from: u64, index: usize, has: Has) {
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&from) {
            return;
        }
        let known = self.known.entry(from).or_default();
        known.heard_ms = now_ms;
        known.set(index, has);
    }

    /// A request is answered, or one that stands is again.
    pub(super) fn answered(
        &mut self,
        now_ms: u64,
        rng: &mut RegionRng,
        stream: &Stream,
        answer: FetchAnswer,
        out: &mut Vec<PeerOutput>,
    ) {
        let Some(index) = self.recv.index(stream) else { return };
        let FetchAnswer { from, after, mut has, stands, batches } = answer;
        let room = if stands {
            let last = batches.last().map_or(0, |batch| batch.last).max(after).max(has.held.min(has.count));
            self.fed(now_ms, index, from, last, has.hops, out)
        } else {
            let is_end = has.hops == UNFED && batches.is_empty();
            self.answered_once(now_ms, index, from, after, is_end)
        };
        if batches.is_empty() && has.count > after && has.held <= after {
            // It says that it has what it does not give: as good as if it had nothing.
            has = NOTHING;
        }
        if from == self.proxy && batches.is_empty() && has.count <= after {
            // Nobody can have more than the proxy, unless this client was with another one before.
            self.streams[index].horizon = has.count;
        }
        self.hear(now_ms, from, index, has);
        let refused = self.stats.refused;
        for batch in batches {
            self.arrived(index, from == self.proxy, room, batch, out);
        }
        if stands && self.stats.refused > refused {
            // There is no room for so much so early.
            self.leave_if(now_ms, index, |_| true, out);
        }
        // Whoever else has the rest is asked before the proxy.
        let hint = (from != self.proxy).then_some(from);
        self.pursue(now_ms, rng, index, hint, out);
    }

    /// Up to where what comes with an answer was asked for.
    fn answered_once(&mut self, now_ms: u64, index: usize, from: u64, after: u64, is_end: bool) -> u64 {
        let fetch = &mut self.streams[index];
        let ask = fetch.asks.iter().position(|ask| ask.of == from && ask.after == after);
        let known = self.known.get_mut(&from);
        if let Some(at) = ask {
            if let Some(known) = known {
                known.asks = known.asks.saturating_sub(1);
            }
            let ask = fetch.asks.swap_remove(at);
            if from != self.proxy && ask.by.is_early(now_ms) {
                self.change_patience(now_ms, self.patience.saturating_sub(1));
            }
            return ask.up_to;
        }
        self.refused(now_ms, index, from, after, is_end);
        0
    }

    /// A batch came. It is delivered, or kept if it is early and among what was asked for, up to `room`.
    fn arrived(
        &mut self,
        index: usize,
        from_proxy: bool,
        room: u64,
        batch: Batch,
        out: &mut Vec<PeerOutput>,
    ) {
        let count = self.recv.count(index);
        let fetch = &mut self.streams[index];
        if batch.last <= count {
            self.stats.duplicates += u64::from(batch.count);
        } else if batch.after <= count {
            self.deliver(index, from_proxy, batch, out);
            self.deliver_early(index, out);
        } else if batch.last <= room && fetch.early_bytes < 2 * self.options.early_bytes {
            let size = batch_size(&batch);
            if fetch.early.get(&batch.after).is_none_or(|known| known.batch.last < batch.last) {
                fetch.early_bytes += size;
                if let Some(old) = fetch.early.insert(batch.after, Early { batch, from_proxy }) {
                    fetch.early_bytes -= batch_size(&old.batch);
                }
            } else {
                self.stats.duplicates += u64::from(batch.count);
            }
        } else {
            self.stats.refused += 1;
        }
    }

    fn deliver_early(&mut self, index: usize, out: &mut Vec<PeerOutput>) {
        while let Some(entry) = self.streams[index].early.first_entry() {
            if *entry.key() > self.recv.count(index) {
                return;
            }
            let early = entry.remove();
            self.streams[index].early_bytes -= batch_size(&early.batch);
            self.deliver(index, early.from_proxy, early.batch, out);
        }
    }

    /// Delivers what of a batch follows the count.
    fn deliver(&mut self, index: usize, from_proxy: bool, batch: Batch, out: &mut Vec<PeerOutput>) {
        let count = self.recv.count(index);
        let whole = u64::from(batch.count);
        let Ok(Some(batch)) = batch.rest(count) else {
            self.stats.duplicates += whole;
            return;
        };
        let events = u64::from(batch.count);
        self.stats.duplicates += whole - events;
        self.stats.delivered += events;
        *(if from_proxy { &mut self.stats.from_proxy } else { &mut self.stats.from_peers }) += events;
        let (stream, lineage) = self.recv.named(index);
        out.push(PeerOutput::Deliver { stream, lineage, batch: batch.clone() });
        self.recv.push(index, batch);
    }

    /// Asks for what is in gaps, as far as somebody can be asked; first of all `hint`.
    fn pursue(
        &mut self,
        now_ms: u64,
        rng: &mut RegionRng,
        index: usize,
        hint: Option<u64>,
        out: &mut Vec<PeerOutput>,
    ) {
        if !self.reading {
            return;
        }
        let mut position = self.recv.count(index);
        for _ in 0..2 * ASKS_MAX {
            let fetch = &self.streams[index];
            let (after, up_to) = match fetch.gap(position) {
                Ok(gap) => gap,
                Err(covered) => return self.seek(now_ms, rng, index, covered, out),
            };
            let full = fetch.early_bytes >= self.options.early_bytes || fetch.asks.len() >= ASKS_MAX;
            if full && (after > self.recv.count(index) || fetch.asks.len() > ASKS_MAX) {
                return;
            }
            let up_to = match self.source(rng, index, after, hint) {
                Some(of) if of == self.proxy => {
                    let (left, up_to) = self.leave(now_ms, index, after, up_to, hint == Some(of));
                    if left < up_to { self.ask(now_ms, index, of, left, up_to, out) } else { up_to }
                }
                Some(of) => self.ask(now_ms, index, of, after, up_to, out),
                None => {
                    self.look_again_ms = self.look_again_ms.min(now_ms + LOOK_AGAIN_MS);
                    up_to
                }
            };
            position = up_to;
        }
    }

    /// Of a gap (after, up_to] what the proxy is asked for now; nothing of it, up to where all is left to others.
    fn leave(&mut self, now_ms: u64, index: usize, after: u64, up_to: u64, is_told: bool) -> (u64, u64) {
        let event_bytes = self.recv.event_bytes(index);
        let fetch = &mut self.streams[index];
        let (left, until_ms) = fetch.left;
        if after < left {
            if now_ms >= until_ms {
                return (after, up_to);
            }
            self.look_again_ms = self.look_again_ms.min(until_ms);
            let up_to = up_to.min(left);
            return (up_to, up_to);
        }
        let Some(event_bytes) = event_bytes.filter(|_| is_told) else { return (after, up_to) };
        let newest = (self.options.request_bytes / NEWEST_ONE_IN / event_bytes).max(1) as u64;
        if up_to - after <= newest {
            return (after, up_to);
        }
        fetch.left = (up_to - newest, now_ms + LEFT_MS);
        self.look_again_ms = self.look_again_ms.min(now_ms + LEFT_MS);
        (fetch.left.0, up_to)
    }

    /// Whom to ask for what follows `after`.
    fn source(&self, rng: &mut RegionRng, index: usize, after: u64, hint: Option<u64>) -> Option<u64> {
        let fetch = &self.streams[index];
        let free = |id: u64, known: &Known| {
            known.asks < ASKS_OF_ONE_MAX && fetch.asks.iter().all(|ask| ask.of != id)
        };
        let has = |known: &Known| {
            let Has { held, count, .. } = known.of(index);
            held <= after && after < count
        };
        let free_and_has = |id: &u64| self.known.get(id).is_some_and(|known| has(known) && free(*id, known));
        if let Some(id) = hint.filter(free_and_has) {
            return Some(id);
        }
        let mut waiting = false;
        let mut chosen = None;
        let mut choices = 0;
        for (&id, known) in self.known.iter().filter(|(id, known)| **id != self.proxy && has(known)) {
            if free(id, known) {
                choices += 1;
                if rng.below(choices) == 0 {
                    chosen = Some(id);
                }
            }
            waiting = true;
        }
        if chosen.is_some() {
            return chosen;
        }
        // A busy one that has it will be asked when it has answered, or given up.
        let proxy_free = fetch.asks.iter().all(|ask| ask.of != self.proxy);
        (!waiting && proxy_free).then_some(self.proxy)
    }

    /// Asks; the last number that was asked for.
    fn ask(
        &mut self,
        now_ms: u64,
        index: usize,
        of: u64,
        after: u64,
        up_to: u64,
        out: &mut Vec<PeerOutput>,
    ) -> u64 {
        let proxy = of == self.proxy;
        let timeout_ms = match proxy {
            true => self.options.request_timeout_ms.saturating_mul(4),
            false => self.timeout_ms(),
        };
        let fetch = &mut self.streams[index];
        let known = self.known.entry(of).or_default();
        known.asks += 1;
        let has = known.of(index).count;
        // The proxy may have more than it has told of, but nobody else is asked for what it has not.
        let up_to = if proxy { up_to } else { up_to.min(has) };
        fetch.asks.push(Ask { of, after, up_to, by: Deadline::new(now_ms, timeout_ms) });
        *(if proxy { &mut self.stats.requests_to_proxy } else { &mut self.stats.requests_to_peers }) += 1;
        let (stream, lineage) = self.recv.named(index);
        let bytes_max = self.options.request_bytes.min(u32::MAX as usize) as u32;
        let message = Message::Request { stream, lineage, after, up_to, bytes_max };
        out.push(PeerOutput::Send { to: of, message });
        up_to
    }

    /// When a request is given up next.
    pub(super) fn due_ms(&self) -> u64 {
        let mut due_ms = self.look_again_ms;
        for fetch in &self.streams {
            let asks = fetch.asks.iter().map(|ask| ask.by.until_ms);
            let feeds = fetch.feeds().filter_map(|feed| Some(feed.due?.by.until_ms));
            due_ms = asks.chain(feeds).fold(due_ms, u64::min);
        }
        due_ms
    }

    /// Gives up requests that are not answered, and asks others. Whether there was something to do.
    pub(super) fn tick(&mut self, now_ms: u64, rng: &mut RegionRng, out: &mut Vec<PeerOutput>) -> bool {
        let Some(late_ms) = now_ms.checked_sub(self.due_ms()) else { return false };
        if late_ms >= LATE_MS {
            self.postpone(now_ms, late_ms);
        }
        let look_again = self.look_again_ms <= now_ms;
        if look_again {
            self.look_again_ms = u64::MAX;
        }
        for index in 0..self.streams.len() {
            let due = |ask: &Ask| ask.by.is_over(now_ms);
            let given_up = self.streams[index].asks.iter().any(due);
            let left =
                self.leave_if(now_ms, index, |feed| feed.due.is_some_and(|due| due.by.is_over(now_ms)), out);
            if given_up || left {
                self.change_patience(now_ms, (self.patience + 1).min(PATIENCE_MAX));
            }
            if look_again || given_up || left {
                self.give_up(index, due);
                self.pursue(now_ms, rng, index, None, out);
            }
        }
        true
    }

    /// This client itself is late by so much: others have as much longer, as what they sent may not have been read yet.
    fn postpone(&mut self, now_ms: u64, late_ms: u64) {
        for fetch in &mut self.streams {
            let feeds = fetch.feed.iter_mut().chain(&mut fetch.wanted);
            let dues = feeds.filter_map(|feed| feed.due.as_mut()).map(|due| &mut due.by);
            let deadlines = fetch.asks.iter_mut().map(|ask| &mut ask.by).chain(dues);
            deadlines.filter(|by| by.is_over(now_ms)).for_each(|by| by.extend(now_ms, late_ms));
        }
    }

    /// Milliseconds after which others than the proxy are given up.
    fn timeout_ms(&self) -> u64 {
        self.options.request_timeout_ms.saturating_mul(1 << self.patience)
    }

    /// One step for as long as others have to answer, or each of many answers would be one.
    fn change_patience(&mut self, now_ms: u64, patience: u32) {
        if now_ms >= self.patience_at_ms {
            self.patience = patience;
            self.patience_at_ms = now_ms + self.timeout_ms();
        }
    }

    fn give_up(&mut self, index: usize, which: impl Fn(&Ask) -> bool) {
        let fetch = &mut self.streams[index];
        for at in (0..fetch.asks.len()).rev() {
            if which(&fetch.asks[at]) {
                let ask = fetch.asks.swap_remove(at);
                self.stats.timeouts += 1;
                if let Some(known) = self.known.get_mut(&ask.of) {
                    known.asks = known.asks.saturating_sub(1);
                    // Until it tells again, it is taken to have nothing.
                    known.set(index, NOTHING);
                }
            }
        }
    }

    /// A member's connection ended: what it was asked is asked of others.
    pub(super) fn lost(&mut self, now_ms: u64, rng: &mut RegionRng, id: u64, out: &mut Vec<PeerOutput>) {
        self.known.remove(&id);
        for index in 0..self.streams.len() {
            let fetch = &mut self.streams[index];
            let fed = fetch.take_feeds(|feed| feed.of == id).count() > 0;
            let asked = fetch.asks.iter().any(|ask| ask.of == id);
            if asked || fed {
                self.give_up(index, |ask| ask.of == id);
                if id != self.proxy {
                    self.pursue(now_ms, rng, index, None, out);
                }
            }
        }
    }

    /// Another member is the proxy now, or the connection to it is a new one: what is in a gap is asked again.
    pub(super) fn proxy_is(&mut self, now_ms: u64, rng: &mut RegionRng, id: u64, out: &mut Vec<PeerOutput>) {
        let old = std::mem::replace(&mut self.proxy, id);
        for index in 0..self.streams.len() {
            self.give_up(index, |ask| ask.of == old);
            self.streams[index].take_feeds(|feed| feed.of == old).for_each(drop);
            self.pursue(now_ms, rng, index, None, out);
        }
    }

    /// Whether events are wanted. While they are not, nothing is asked for.
    pub(super) fn reading(
        &mut self,
        now_ms: u64,
        rng: &mut RegionRng,
        reading: bool,
        out: &mut Vec<PeerOutput>,
    ) {
        let was = std::mem::replace(&mut self.reading, reading);
        if reading && !was {
            (0..self.streams.len()).for_each(|index| self.pursue(now_ms, rng, index, None, out));
        }
        if was && !reading {
            self.take_back_all(out);
        }
    }

    /// Forgets those that have not been heard in a while.
    pub(super) fn tidy(&mut self, now_ms: u64) {
        let proxy = self.proxy;
        self.known.retain(|id, known| {
            *id == proxy || known.asks > 0 || now_ms.saturating_sub(known.heard_ms) < 60_000
        });
    }
}

impl Fetch {
    /// The first numbers (after, up to] from `position` on, up to the horizon, that are neither early nor asked for;
    /// if there are none, up to where all are.
    fn gap(&self, mut position: u64) -> Result<(u64, u64), u64> {
        loop {
            let before = position;
            if let Some((_, early)) = self.early.range(..=position).next_back() {
                position = position.max(early.batch.last);
            }
            for ask in &self.asks {
                if ask.after <= position {
                    position = position.max(ask.up_to);
                }
            }
            if position == before {
                break;
            }
        }
        let fed = self.feeds().map(|feed| feed.after).min().unwrap_or(u64::MAX);
        if position >= self.horizon || position >= fed {
            return Err(position);
        }
        let asked = self.asks.iter().map(|ask| ask.after).filter(|after| *after > position).min();
        let early = self.early.range(position + 1..).next().map(|(after, _)| *after);
        let end = asked.into_iter().chain(early).min().unwrap_or(u64::MAX);
        Ok((position, end.min(self.horizon).min(fed)))
    }
}
