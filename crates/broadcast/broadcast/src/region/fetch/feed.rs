//! Who feeds a client. Once it lacks nothing it looks for one with whom a request stands for all that comes, so
//! that an event costs one message where it takes three otherwise. That is one of those that have told of the stream,
//! the fewest hops away from the proxy that is free. A client moves when one with fewer hops tells of itself, when
//! its feeder is gone or leaves it, and when others have had for a while what the feeder did not bring. Members that
//! feed each other in a circle, which hops seldom let happen, find out by the last of these.

use crate::name::Stream;
use crate::region::message::{Message, STANDING, UNFED};
use crate::region::peer::PeerOutput;
use crate::region::rng::RegionRng;

use super::{Deadline, Fetch, NOTHING, RegionFetcher};

/// Milliseconds for which a member that did not want to feed this one, or stopped bringing anything, is not asked to.
const REFUSED_MS: u64 = 5_000;
/// Milliseconds between two moves to a better feeder.
const MOVE_MS: u64 = 500;
/// Whoever is so many hops away feeds nobody.
const HOPS_MAX: u8 = 32;

/// A request of this client that stands, or is to.
#[derive(Debug)]
pub(super) struct FetchFeed {
    pub(super) of: u64,
    /// Up to where it was answered.
    pub(super) after: u64,
    /// The feeder's.
    pub(super) hops: u8,
    pub(super) due: Option<FetchDue>,
}

/// What others have told of, and a feeder is to bring.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchDue {
    /// The last number of it.
    count: u64,
    /// Until when it may bring nothing of it, and at the latest, not all.
    pub(super) by: Deadline,
}

impl FetchDue {
    pub(super) fn new(count: u64, now_ms: u64, timeout_ms: u64) -> Self {
        Self { count, by: Deadline::new(now_ms, timeout_ms) }
    }
}

impl RegionFetcher {
    /// As above, for a request that stands: it was answered up to `last`.
    pub(super) fn fed(
        &mut self,
        now_ms: u64,
        index: usize,
        from: u64,
        last: u64,
        hops: u8,
        out: &mut Vec<PeerOutput>,
    ) -> u64 {
        let timeout_ms = self.timeout_ms();
        let (stream, lineage) = self.recv.named(index);
        let fetch = &mut self.streams[index];
        if let Some(wanted) = fetch.wanted.take_if(|wanted| wanted.of == from) {
            self.stats.moves += 1;
            if let Some(old) = fetch.feed.replace(FetchFeed { due: None, ..wanted }) {
                out.push(take_back(stream.clone(), lineage, old.of));
            }
        }
        let Some(feed) = fetch.feed.as_mut().filter(|feed| feed.of == from) else {
            out.push(take_back(stream, lineage, from));
            return 0;
        };
        feed.hops = hops;
        if last > feed.after {
            feed.after = last;
            feed.due.iter_mut().for_each(|due| due.by.extend(now_ms, timeout_ms));
        }
        if feed.due.take_if(|due| due.count <= last).is_some_and(|due| due.by.is_early(now_ms)) {
            self.change_patience(now_ms, self.patience.saturating_sub(1));
        }
        STANDING
    }

    /// A member answered what was to stand, or said that what stood has its end: it feeds enough others. Any other
    /// answer is one that comes late.
    pub(super) fn refused(&mut self, now_ms: u64, index: usize, from: u64, after: u64, is_end: bool) {
        let fetch = &mut self.streams[index];
        let wanted = fetch.wanted.take_if(|wanted| wanted.of == from && wanted.after == after);
        let is_left = is_end && wanted.is_none();
        let left = fetch.feed.take_if(|feed| is_left && feed.of == from && after >= feed.after);
        if (wanted.is_some() || left.is_some())
            && let Some(known) = self.known.get_mut(&from)
        {
            known.refuses_until_ms = now_ms + REFUSED_MS;
        }
    }

    /// Moves to a member that is closer to the proxy than what feeds this one; not where others have too much to do, as
    /// what is on its way would come twice.
    pub(super) fn prefer(&mut self, now_ms: u64, index: usize, to: u64, hops: u8, out: &mut Vec<PeerOutput>) {
        let fetch = &self.streams[index];
        let Some(feed) = &fetch.feed else { return };
        let refuses = self.known.get(&to).is_none_or(|known| now_ms < known.refuses_until_ms);
        if hops < feed.hops
            && feed.of != to
            && fetch.wanted.is_none()
            && !refuses
            && self.patience == 0
            && now_ms >= fetch.moves_at_ms
        {
            let after = feed.after;
            self.want(now_ms, index, to, after, out);
        }
    }

    /// Asks a member to feed this one with what comes after a number.
    fn want(&mut self, now_ms: u64, index: usize, of: u64, after: u64, out: &mut Vec<PeerOutput>) {
        let due = Some(FetchDue::new(STANDING, now_ms, self.timeout_ms()));
        let fetch = &mut self.streams[index];
        fetch.moves_at_ms = now_ms + MOVE_MS;
        fetch.wanted = Some(FetchFeed { of, after, hops: UNFED, due });
        *(if of == self.proxy {
            &mut self.stats.requests_to_proxy
        } else {
            &mut self.stats.requests_to_peers
        }) += 1;
        let (stream, lineage) = self.recv.named(index);
        let bytes_max = self.options.request_bytes.min(u32::MAX as usize) as u32;
        let message = Message::Request { stream, lineage, after, up_to: STANDING, bytes_max };
        out.push(PeerOutput::Send { to: of, message });
    }

    /// Looks for one that feeds this client with what comes after a number: there is no gap before.
    pub(super) fn seek(
        &mut self,
        now_ms: u64,
        rng: &mut RegionRng,
        index: usize,
        after: u64,
        out: &mut Vec<PeerOutput>,
    ) {
        let fetch = &self.streams[index];
        if self.options.feeds == 0 || fetch.feed.is_some() || fetch.wanted.is_some() {
            return;
        }
        let mut chosen = None;
        let (mut least, mut choices) = (HOPS_MAX, 0);
        for (&id, known) in self.known.iter().filter(|(_, known)| now_ms >= known.refuses_until_ms) {
            let hops = known.of(index).hops;
            if hops < least {
                (least, choices) = (hops, 0);
            }
            if hops < HOPS_MAX && hops == least {
                choices += 1;
                if rng.below(choices) == 0 {
                    chosen = Some(id);
                }
            }
        }
        if let Some(of) = chosen {
            self.want(now_ms, index, of, after, out);
        }
    }

    /// Through how many members events of a stream come here.
    pub(in crate::region) fn hops_of(&self, index: usize) -> u8 {
        self.streams[index].feed.as_ref().map_or(UNFED, |feed| feed.hops.saturating_add(1))
    }

    /// The same of all streams.
    pub(in crate::region) fn hops(&self) -> impl Iterator<Item = u8> {
        (0..self.streams.len()).map(|index| self.hops_of(index))
    }

    /// Whether a member feeds this one.
    pub(in crate::region) fn fed_by(&self, id: u64) -> bool {
        self.streams.iter().any(|fetch| fetch.feeds().any(|feed| feed.of == id))
    }

    /// Leaves those feeders that bring nothing.
    pub(super) fn leave_if(
        &mut self,
        now_ms: u64,
        index: usize,
        which: impl Fn(&FetchFeed) -> bool,
        out: &mut Vec<PeerOutput>,
    ) -> bool {
        let mut any = false;
        for feed in self.streams[index].take_feeds(which) {
            any = true;
            self.stats.timeouts += 1;
            let (stream, lineage) = self.recv.named(index);
            out.push(take_back(stream, lineage, feed.of));
            if let Some(known) = self.known.get_mut(&feed.of) {
                known.refuses_until_ms = now_ms + REFUSED_MS;
                known.set(index, NOTHING);
            }
        }
        any
    }

    /// What was on its way from a member may be lost: if it feeds this one, it is asked to again.
    pub(in crate::region) fn reconnected(&mut self, now_ms: u64, id: u64, out: &mut Vec<PeerOutput>) {
        for index in 0..self.streams.len() {
            let fetch = &mut self.streams[index];
            let feed = fetch.take_feeds(|feed| feed.of == id).next();
            if let Some(feed) = feed {
                if fetch.wanted.is_none() {
                    self.want(now_ms, index, id, feed.after, out);
                } else {
                    let (stream, lineage) = self.recv.named(index);
                    out.push(take_back(stream, lineage, id));
                }
            }
        }
    }

    /// Takes back all requests that stand.
    pub(super) fn take_back_all(&mut self, out: &mut Vec<PeerOutput>) {
        for index in 0..self.streams.len() {
            for feed in self.streams[index].take_feeds(|_| true) {
                let (stream, lineage) = self.recv.named(index);
                out.push(take_back(stream, lineage, feed.of));
            }
        }
    }
}

impl Fetch {
    pub(super) fn feeds(&self) -> impl Iterator<Item = &FetchFeed> {
        self.feed.iter().chain(&self.wanted)
    }

    /// Forgets those that match.
    pub(super) fn take_feeds(
        &mut self,
        which: impl Fn(&FetchFeed) -> bool,
    ) -> impl Iterator<Item = FetchFeed> {
        let taken = [self.feed.take_if(|feed| which(feed)), self.wanted.take_if(|feed| which(feed))];
        taken.into_iter().flatten()
    }
}

/// Takes back the request that stands with a member.
pub(super) fn take_back(stream: Stream, lineage: u64, to: u64) -> PeerOutput {
    let message = Message::Request { stream, lineage, after: STANDING, up_to: STANDING, bytes_max: 0 };
    PeerOutput::Send { to, message }
}
