//! What was published, and what may be seen of it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tailwater_broadcast::checks::{Observer, Published};
use tailwater_broadcast::message::PublisherId;
use tailwater_broadcast::{Batch, Collect, Content, Event, Position, Stream};

use crate::checkers::{Violation, ensure};

/// What a stream's events collect.
pub(super) const KINDS: [&str; 4] = ["keys", "last", "old", "some"];
/// By key.
const KEYS: u128 = 0;
/// By number.
const LAST: u128 = 1;
/// By age, and by number.
const OLD: u128 = 2;
/// By predicate, and by key: some of these would undo others, and are refused.
const SOME: u128 = 3;
/// In the number of a publisher some of whose events are large.
const HEAVY: u128 = 1 << 100;
/// So large.
pub(super) const HEAVY_BYTES: usize = 100 << 10;

/// The number of a publisher, one of `random` ones.
pub(super) fn publisher_id(random: u64, kind: usize, is_heavy: bool) -> PublisherId {
    u128::from(random) * 4 + kind as u128 + if is_heavy { HEAVY } else { 0 }
}

/// Whether some of what a publisher's events collect may be refused.
pub(super) fn may_be_refused(publisher: PublisherId) -> bool {
    publisher % 4 == SOME
}

/// A publisher's event: everything about it follows from who published it and its number there, but for ages.
pub(super) fn content(publisher: PublisherId, number: u64, wall_ms: u64) -> (Content, Option<Collect>) {
    let mut payload = publisher.to_le_bytes().to_vec();
    payload.extend_from_slice(&number.to_le_bytes());
    if publisher & HEAVY != 0 && number % 12 == 5 {
        payload.resize(HEAVY_BYTES, 0);
    }
    let key = Bytes::from(format!("key-{}", (publisher as u64).wrapping_add(number * 7) % 5));
    let mut content = Content { payload: payload.into(), key: Some(key), ..Content::default() };
    let collect = match (publisher % 4, number % 4) {
        (_, 0) => None,
        (KEYS, _) | (SOME, 1) => Some(Collect::SameKey),
        (LAST, 1) => Some(Collect::KeepLast(20)),
        (OLD, 1) => Some(Collect::OlderThan(wall_ms.saturating_sub(1_000 + number * 37 % 4_000))),
        (OLD, 3) => Some(Collect::KeepLast(200)),
        (SOME, 3) => {
            // Of events with a key those would be undone that collect by it.
            content.key = None;
            Some(Collect::Matching(predicate(number / 4, wall_ms).into()))
        }
        _ => None,
    };
    if publisher % 4 == SOME && number.is_multiple_of(3) {
        content.headers = vec![(Bytes::from_static(b"kind"), Bytes::from_static(b"temp"))];
    }
    (content, collect)
}

fn predicate(number: u64, wall_ms: u64) -> String {
    match number % 6 {
        0 => format!("key = \"key-{}\"", number / 6 % 5),
        1 => "key in (\"key-0\", \"key-2\")".to_owned(),
        2 => format!("time < {}", wall_ms.saturating_sub(3_000)),
        3 => "header.kind = \"temp\"".to_owned(),
        4 => format!("key starts with \"key-\" and seq < {}", number * 2),
        _ => "key is missing and header.kind is missing".to_owned(),
    }
}

/// Who published an event, and under which number.
fn identity(event: &Event) -> Option<(PublisherId, u64)> {
    let (publisher, number) = event.content()?.payload.split_first_chunk()?;
    Some((u128::from_le_bytes(*publisher), u64::from_le_bytes(*number.first_chunk()?)))
}

/// One stream.
#[derive(Default)]
struct BroadcastTruth {
    published: Published,
    /// The last number of each publisher.
    publishers: BTreeMap<PublisherId, u64>,
    /// Which number an event got.
    seqs: BTreeMap<(PublisherId, u64), u64>,
    /// What publishers were told is refused.
    refused: BTreeSet<(PublisherId, u64)>,
    /// What publishers were answered: a number, and whether it was published earlier and so has that one or a smaller.
    acknowledged: BTreeMap<(PublisherId, u64), (u64, bool)>,
    /// When its head answered publishers, and up to which number.
    answered: Vec<(u64, u64)>,
}

/// All streams, and all who listen.
#[derive(Default)]
pub(super) struct Truths {
    streams: BTreeMap<Stream, BroadcastTruth>,
    /// What there was of regions before they began anew, and the last lineage of that.
    earlier: BTreeMap<Stream, BroadcastTruth>,
    lineages: BTreeMap<String, u64>,
    /// What each replica was given of each stream, before it is settled.
    tentative: BTreeMap<u64, BTreeMap<Stream, BTreeMap<u64, Event>>>,
}

impl Truths {
    /// A replica has got events, numbered by it or by the one before it.
    pub(super) fn stored(&mut self, replica: u64, stream: &Stream, batch: &Batch) {
        let events = self.tentative.entry(replica).or_default().entry(stream.clone()).or_default();
        for event in batch.events().flatten().filter(|event| !event.is_tombstone()) {
            events.insert(event.seq, event);
        }
    }

    /// A replica has each stream so far only, since it forgot what was on its way or has read its disk. One that was
    /// joining may hold what no tail has settled, and have collected some of that: that was published all the same.
    pub(super) fn holds(&mut self, replica: u64, last: impl Fn(&Stream) -> u64) {
        for (stream, events) in self.tentative.get_mut(&replica).into_iter().flatten() {
            let last = last(stream);
            while let Some(forgotten) = events.last_entry().filter(|event| *event.key() > last) {
                forgotten.remove();
            }
        }
    }

    /// A region begins anew: what there is of it counts no more from the lineages after this one on.
    pub(super) fn begin_anew(&mut self, region: &str, lineage: u64) {
        let (earlier, streams) =
            std::mem::take(&mut self.streams).into_iter().partition(|(stream, _)| stream.region() == region);
        (self.earlier, self.streams) = (earlier, streams);
        self.lineages.insert(region.to_owned(), lineage);
        for streams in self.tentative.values_mut() {
            streams.retain(|stream, _| stream.region() != region);
        }
    }

    /// Whether a lineage of a stream's region is one of before that began anew.
    pub(super) fn is_earlier(&self, stream: &Stream, lineage: u64) -> bool {
        self.lineages.get(stream.region()).is_some_and(|last| lineage <= *last)
    }

    fn of(&self, stream: &Stream, lineage: u64) -> Option<&BroadcastTruth> {
        if self.is_earlier(stream, lineage) { &self.earlier } else { &self.streams }.get(stream)
    }

    /// A replica is gone, with all it had.
    pub(super) fn gone(&mut self, replica: u64) {
        self.tentative.remove(&replica);
    }

    /// The tail of a stream's own chain holds it up to `last`: now it is published for good.
    pub(super) fn settled(&mut self, tail: u64, stream: &Stream, last: u64) -> Result<(), Violation> {
        if !self.streams.contains_key(stream) {
            self.streams.insert(stream.clone(), BroadcastTruth::default());
        }
        let Some(truth) = self.streams.get_mut(stream) else { return Ok(()) };
        let mut tentative = self.tentative.get_mut(&tail).and_then(|streams| streams.get_mut(stream));
        while let Some(entry) = tentative.as_mut().and_then(|events| events.first_entry())
            && *entry.key() <= last
        {
            let (seq, event) = entry.remove_entry();
            if let Some(known) = truth.published.get(seq) {
                ensure(*known == event, || format!("{stream}: two events were published as number {seq}"))?;
                continue;
            }
            let (publisher, number) =
                identity(&event).ok_or_else(|| Violation::new("an event that nobody published"))?;
            let before = truth.publishers.insert(publisher, number).unwrap_or(0);
            let is_next = (before + 1..number).all(|left| truth.refused.contains(&(publisher, left)));
            ensure(number > before && is_next, || {
                format!(
                    "{stream}: publisher {publisher}'s event {number} follows its event {before} (repeated, or out of order)"
                )
            })?;
            ensure(seq == truth.published.last() + 1, || {
                format!("{stream}: the tail {tail} has number {seq} after {}", truth.published.last())
            })?;
            let before_ms = truth.published.get(seq - 1).map_or(0, |before| before.time_ms);
            ensure(event.time_ms >= before_ms, || {
                format!(
                    "{stream}: event {seq} has the time {}, before that of the one before it",
                    event.time_ms
                )
            })?;
            truth.seqs.insert((publisher, number), seq);
            truth.published.push(event);
        }
        ensure(last <= truth.published.last(), || {
            format!("{stream}: the tail {tail} holds number {last}, which it was never given")
        })
    }

    /// A head of the stream's own region has removed all up to a number, as that is older than a time.
    pub(super) fn removed(&mut self, stream: &Stream, up_to: u64, older_ms: u64) -> Result<(), Violation> {
        let Some(truth) = self.streams.get_mut(stream) else { return Ok(()) };
        if up_to > truth.published.removed() {
            let last = truth.published.get(up_to);
            ensure(last.is_some_and(|event| event.time_ms < older_ms), || {
                format!(
                    "{stream}: retention removed event {up_to}, which is no older than {older_ms}: {last:?}"
                )
            })?;
            truth.published.remove(up_to);
        }
        Ok(())
    }

    /// Up to which number heads have removed a stream.
    pub(super) fn removed_of(&self, stream: &Stream) -> u64 {
        self.streams.get(stream).map_or(0, |truth| truth.published.removed())
    }

    /// A listener is told that events were removed before it got them.
    pub(super) fn told_removed(
        &self,
        (stream, lineage): (&Stream, u64),
        observer: &mut Observer,
        up_to: u64,
    ) -> Result<(), Violation> {
        let nothing = Published::default();
        let published = self.of(stream, lineage).map_or(&nothing, |truth| &truth.published);
        let told = observer.told_removed(published, up_to);
        told.map_err(|error| Violation::new(format!("{stream}: {error}")))
    }

    /// A head tells a publisher that its event is published.
    pub(super) fn answered(&mut self, now_ms: u64, stream: &Stream, seq: u64) {
        let truth = self.streams.entry(stream.clone()).or_default();
        if truth.answered.last().is_none_or(|(_, last)| *last < seq) {
            truth.answered.push((now_ms, seq));
        }
    }

    /// A tail says that it held a stream up to `count` and the stream's own region had acknowledged no more before
    /// `as_of_ms`.
    pub(super) fn told(&self, stream: &Stream, count: Position, as_of_ms: u64) -> Result<(), Violation> {
        let answered = self.of(stream, count.lineage).map_or(&[][..], |truth| &truth.answered);
        let count = count.seq;
        let before = answered.partition_point(|(at_ms, _)| *at_ms < as_of_ms);
        let last = before.checked_sub(1).map_or(0, |at| answered[at].1);
        ensure(last <= count, || {
            format!(
                "{stream}: {count} was told as of {as_of_ms}, and {last} had been acknowledged before then"
            )
        })
    }

    /// A publisher was told that its event is published.
    pub(super) fn acknowledged(
        &mut self,
        stream: &Stream,
        publisher: PublisherId,
        number: u64,
        told: (u64, bool),
    ) {
        let truth = self.streams.entry(stream.clone()).or_default();
        let known = truth.acknowledged.entry((publisher, number)).or_insert(told);
        // One that forgot this may publish it again, and is told how far the stream is.
        if known.1 {
            *known = told;
        }
    }

    /// A publisher was told that its event is refused.
    pub(super) fn refused(&mut self, stream: &Stream, publisher: PublisherId, number: u64) {
        self.streams.entry(stream.clone()).or_default().refused.insert((publisher, number));
    }

    /// A listener was delivered an event.
    pub(super) fn delivered(
        &self,
        (stream, lineage): (&Stream, u64),
        observer: &mut Observer,
        event: &Event,
    ) -> Result<(), Violation> {
        let nothing = Published::default();
        let published = self.of(stream, lineage).map_or(&nothing, |truth| &truth.published);
        observer.deliver(published, event).map_err(|error| Violation::new(format!("{stream}: {error}")))
    }

    /// How far a stream is published.
    pub(super) fn last(&self, stream: &Stream) -> u64 {
        self.streams.get(stream).map_or(0, |truth| truth.published.last())
    }

    /// All streams.
    pub(super) fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.streams.keys()
    }

    /// That an observer who got everything got it as promised.
    pub(super) fn finish(&self, stream: &Stream, observer: &Observer) -> Result<(), Violation> {
        let truth = &self.streams[stream];
        observer.finish(&truth.published).map_err(|error| Violation::new(format!("{stream}: {error}")))
    }

    /// That garbage collection was final.
    pub(super) fn check_final(&self) -> Result<(), Violation> {
        for (stream, truth) in &self.streams {
            let checked = truth.published.check_final(truth.published.last());
            checked.map_err(|error| Violation::new(format!("{stream}: {error}")))?;
        }
        Ok(())
    }

    /// That what was acknowledged is there, under the number that was told.
    pub(super) fn check_acknowledged(&self) -> Result<u64, Violation> {
        let mut count = 0;
        for (stream, truth) in &self.streams {
            for ((publisher, number), (told, repeated)) in &truth.acknowledged {
                let seq = truth.seqs.get(&(*publisher, *number));
                ensure(seq.is_some_and(|seq| told == seq || (*repeated && told > seq)), || {
                    format!(
                        "{stream}: publisher {publisher}'s event {number} was acknowledged as number {told}, and is not there ({seq:?})"
                    )
                })?;
                count += 1;
            }
        }
        Ok(count)
    }
}
