//! A replica that follows this one: how far it was sent each stream, and how far it holds it.
//!
//! One that joins is sent no more than [`UNSETTLED_BYTES_MAX`] beyond what it holds, of all streams together: what its
//! disk does not have it keeps in memory, and a disk may stand still. What it had when it began to follow counts as
//! that much until it holds it, so that one that follows anew again and again is not sent as much each time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::limits::UNSETTLED_BYTES_MAX;
use crate::name::Stream;
use crate::positions::Position;
use crate::replica::greeting::Greeting;
use crate::replica::stream::UNSETTLED_BYTES;

/// A replica that follows this one.
#[derive(Debug)]
pub(super) struct StreamFollower {
    /// The epoch in which it does.
    pub(super) epoch: u64,
    /// The lineage of what it had when it began to.
    pub(super) lineage: u64,
    /// How far it was told of the publishers, once that began.
    pub(super) greeting: Option<Greeting>,
    /// What it, and all behind it, hold; if it joins, what it has and its disk as well.
    pub(super) held: BTreeMap<Stream, Position>,
    /// What it was told that is held without it, if it joins.
    pub(super) told_held: BTreeMap<Stream, Position>,
    /// Whether it was handed the token, if it is the tail.
    pub(super) token: bool,
    /// How far it was sent each stream, or had it.
    pub(super) sent: BTreeMap<Stream, Position>,
    /// The streams of which it was told how far the predicates are applied.
    pub(super) told_applied: BTreeSet<Stream>,
    /// Up to which number of each stream it was told that retention removed all.
    pub(super) told_removed: BTreeMap<Stream, u64>,
    /// The stream whose events filled the connection last.
    pub(super) filled: Option<Stream>,
    /// How far it had been sent each stream when that first was everything, if it joins.
    everything: Option<BTreeMap<Stream, Position>>,
    /// What it was sent of each stream and does not hold, if it joins: last numbers and bytes.
    ahead: BTreeMap<Stream, VecDeque<(Position, usize)>>,
    ahead_bytes: usize,
}

impl StreamFollower {
    /// One that follows in `epoch`, and got so far in each stream of `lineage`.
    pub(super) fn new(epoch: u64, lineage: u64, counts: BTreeMap<Stream, Position>) -> Self {
        let had = counts.iter().filter(|(_, count)| count.seq > 0);
        let ahead: BTreeMap<_, _> =
            had.map(|(stream, count)| (stream.clone(), [(*count, UNSETTLED_BYTES_MAX)].into())).collect();
        Self {
            epoch,
            lineage,
            greeting: None,
            held: BTreeMap::new(),
            told_held: BTreeMap::new(),
            token: false,
            sent: counts,
            told_applied: BTreeSet::new(),
            told_removed: BTreeMap::new(),
            filled: None,
            everything: None,
            ahead_bytes: ahead.len() * UNSETTLED_BYTES_MAX,
            ahead,
        }
    }

    /// It says how far it holds streams.
    pub(super) fn holds(&mut self, counts: Vec<(Stream, Position)>) {
        for (stream, held) in counts {
            if let Some(ahead) = self.ahead.get_mut(&stream) {
                while let Some((_, bytes)) = ahead.pop_front_if(|(last, _)| held.covers(*last)) {
                    self.ahead_bytes -= bytes;
                }
                if ahead.is_empty() {
                    self.ahead.remove(&stream);
                }
            }
            self.held.insert(stream, held);
        }
    }

    /// How far it was sent a stream whose events are of `lineage` here: not at all, if what it was sent or had is of
    /// another one.
    pub(super) fn sent_of(&mut self, stream: &Stream, lineage: u64) -> u64 {
        match self.sent.get(stream) {
            Some(sent) if sent.lineage == lineage => return sent.seq,
            Some(_) => self.forget(stream),
            // A new one: what it was sent of others, and when that was everything, is as it was.
            None => {}
        }
        self.sent.insert(stream.clone(), Position { lineage, seq: 0 });
        0
    }

    /// What it has, or was sent, of some streams counts no more.
    pub(super) fn forget_all(&mut self, is_of: impl Fn(&Stream, Position) -> bool) {
        let of = self.sent.iter().filter(|(stream, sent)| is_of(stream, **sent));
        let streams: Vec<Stream> = of.map(|(stream, _)| stream.clone()).collect();
        for stream in streams {
            self.forget(&stream);
            self.sent.remove(&stream);
        }
    }

    fn forget(&mut self, stream: &Stream) {
        let ahead = self.ahead.remove(stream).unwrap_or_default();
        self.ahead_bytes -= ahead.iter().map(|(_, bytes)| bytes).sum::<usize>();
        self.told_applied.remove(stream);
        self.told_removed.remove(stream);
        self.everything = None;
    }

    /// While it joins, it was sent events of a stream up to `last`.
    pub(super) fn sent_while_joining(&mut self, stream: &Stream, last: Position, bytes: usize) {
        let bytes = bytes + UNSETTLED_BYTES;
        match self.ahead.get_mut(stream) {
            Some(ahead) => ahead.push_back((last, bytes)),
            None => {
                self.ahead.insert(stream.clone(), [(last, bytes)].into());
            }
        }
        self.ahead_bytes += bytes;
    }

    /// Whether it may be sent more while it joins.
    pub(super) fn has_room(&self) -> bool {
        self.ahead_bytes < UNSETTLED_BYTES_MAX
    }

    /// It has been sent everything: whether it holds what that was when it was so first. Its disk goes on, then.
    pub(super) fn holds_everything(&mut self) -> bool {
        let everything = self.everything.get_or_insert_with(|| self.sent.clone());
        everything.iter().all(|(stream, sent)| {
            sent.seq == 0 || self.held.get(stream).is_some_and(|held| held.covers(*sent))
        })
    }
}
