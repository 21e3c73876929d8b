//! The newest batches of all streams, encoded once for all who listen at the live edge.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tailwater_broadcast::message::FROM_NOW;
use tailwater_broadcast::{Batch, Position, Positions, Stream};

/// What came, and as listeners are sent it.
#[derive(Debug)]
pub enum RingItem {
    /// A batch, which is of this lineage of its stream's region.
    Events { stream: Stream, lineage: u64, batch: Batch, json: Bytes },
    /// A region has begun anew: what follows of its streams is of this lineage.
    Anew { region: String, lineage: u64 },
    /// What was of an earlier lineage than its region has now: nobody wants it any more.
    Gone,
}

/// A run of items. Older ones leave it, so that it holds at most `bytes_max`, or one item.
#[derive(Debug)]
pub struct EventRing {
    items: VecDeque<Arc<RingItem>>,
    /// The place of the first item; places are never reused.
    first: u64,
    bytes: usize,
    bytes_max: usize,
    spans: BTreeMap<Stream, Span>,
    /// The newest lineage of each region.
    lineages: BTreeMap<String, u64>,
    begun: bool,
}

/// What there is of a stream: the number before the first item of its newest lineage, and the last number.
#[derive(Debug)]
struct Span {
    lineage: u64,
    start: u64,
    end: u64,
}

impl Span {
    fn at(Position { lineage, seq }: Position) -> Self {
        Self { lineage, start: seq, end: seq }
    }

    /// Whether who is at a position misses nothing if it begins with the first item.
    fn has_what_follows(&self, position: Position) -> bool {
        let is_of_it = position.lineage == self.lineage || position == Position::START;
        position.seq == FROM_NOW || (is_of_it && position.seq >= self.start)
    }
}

impl EventRing {
    /// An empty one.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            items: VecDeque::new(),
            first: 0,
            bytes: 0,
            bytes_max,
            spans: BTreeMap::new(),
            lineages: BTreeMap::new(),
            begun: false,
        }
    }

    /// Streams begin here; from now on it can be joined.
    pub fn begin(&mut self, positions: &[(Stream, Position)]) {
        self.begun = true;
        for (stream, position) in positions {
            self.hear(stream.region(), position.lineage);
            self.spans.entry(stream.clone()).or_insert(Span::at(*position));
        }
    }

    fn hear(&mut self, region: &str, lineage: u64) {
        match self.lineages.get_mut(region) {
            Some(newest) => *newest = lineage.max(*newest),
            None => {
                self.lineages.insert(region.to_owned(), lineage);
            }
        }
    }

    /// Whether it can be joined.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// How many of the streams that somebody names it knows nothing of.
    pub fn absent(&self, positions: &Positions) -> usize {
        positions.streams.keys().filter(|stream| !self.spans.contains_key(*stream)).count()
    }

    /// The place behind the last item.
    pub fn end(&self) -> u64 {
        self.first + self.items.len() as u64
    }

    /// Adds what continues a stream, or that a region begins anew.
    pub fn push(&mut self, item: RingItem) {
        match &item {
            RingItem::Events { stream, lineage, batch, .. } => {
                self.hear(stream.region(), *lineage);
                let begins = Span::at(Position { lineage: *lineage, seq: batch.after });
                let span = self.spans.entry(stream.clone()).or_insert(begins);
                if span.lineage != *lineage {
                    *span = Span::at(Position { lineage: *lineage, seq: batch.after });
                }
                span.end = batch.last;
            }
            RingItem::Anew { region, lineage } => {
                self.hear(region, *lineage);
                self.spans.retain(|stream, _| stream.region() != region);
                let is_of = |item: &RingItem| matches!(item, RingItem::Events { stream, .. } if stream.region() == region);
                for old in self.items.iter_mut().filter(|item| is_of(item)) {
                    self.bytes -= size(old);
                    *old = Arc::new(RingItem::Gone);
                }
            }
            RingItem::Gone => {}
        }
        self.bytes += size(&item);
        self.items.push_back(Arc::new(item));
        while self.bytes > self.bytes_max && self.items.len() > 1 {
            let Some(old) = self.items.pop_front() else { return };
            self.first += 1;
            self.bytes -= size(&old);
            if let RingItem::Events { stream, lineage, batch, .. } = &*old
                && let Some(span) = self.spans.get_mut(stream).filter(|span| span.lineage == *lineage)
            {
                span.start = batch.last;
            }
        }
    }

    /// From which place on somebody at `positions` can read without a gap; `None` if it has to get closer first, or
    /// hear that a region has begun anew. What is wanted from now on begins at the end.
    pub fn join(&self, positions: &mut Positions) -> Option<u64> {
        let is_close = |(stream, span): (&Stream, &Span)| match positions.streams.get(stream) {
            Some(position) => span.has_what_follows(*position),
            None => !positions.others || span.start == 0,
        };
        let newest = |stream: &Stream| self.lineages.get(stream.region()).copied().unwrap_or(0);
        let is_new = |(stream, position): (&Stream, &Position)| {
            position.is_open() || position.lineage >= newest(stream)
        };
        if !self.begun || !self.spans.iter().all(is_close) || !positions.streams.iter().all(is_new) {
            return None;
        }
        for (stream, position) in &mut positions.streams {
            if position.seq == FROM_NOW {
                let at = |span: &Span| Position { lineage: span.lineage, seq: span.end };
                *position = self.spans.get(stream).map_or(Position::START, at);
            }
        }
        Some(self.first)
    }

    /// The items from a place on; `None` if some of them have left.
    pub fn read(&self, from: u64, count_max: usize) -> Option<Vec<Arc<RingItem>>> {
        let skipped = usize::try_from(from.checked_sub(self.first)?).ok()?;
        Some(self.items.iter().skip(skipped).take(count_max).cloned().collect())
    }
}

fn size(item: &RingItem) -> usize {
    match item {
        RingItem::Events { batch, json, .. } => batch.bytes.len() + json.len() + 256,
        RingItem::Anew { region, .. } => region.len() + 256,
        RingItem::Gone => 0,
    }
}

#[cfg(test)]
mod tests {
    use tailwater_broadcast::{Content, Writer};

    use super::*;

    /// Of lineage 1.
    fn item(name: &str, after: u64, count: u64) -> RingItem {
        item_of(1, name, after, count)
    }

    fn item_of(lineage: u64, name: &str, after: u64, count: u64) -> RingItem {
        let mut writer = Writer::new(after);
        for _ in 0..count {
            writer.publish(&Content::default(), None).unwrap();
        }
        let stream = Stream::parse(name).unwrap();
        RingItem::Events { stream, lineage, batch: writer.finish(0), json: Bytes::from_static(&[0; 744]) }
    }

    fn at(name: &str, seq: u64) -> Positions {
        at_of(1, name, seq)
    }

    fn at_of(lineage: u64, name: &str, seq: u64) -> Positions {
        let position = Position { lineage, seq };
        Positions { streams: [(Stream::parse(name).unwrap(), position)].into(), others: false }
    }

    fn last(item: &RingItem) -> u64 {
        match item {
            RingItem::Events { batch, .. } => batch.last,
            RingItem::Anew { .. } | RingItem::Gone => 0,
        }
    }

    fn begin(name: &str, seq: u64) -> [(Stream, Position); 1] {
        [(Stream::parse(name).unwrap(), Position { lineage: 1, seq })]
    }

    #[test]
    fn who_is_too_far_behind_can_not_join_until_it_is_close() {
        let mut ring = EventRing::new(3_500);
        assert_eq!(ring.join(&mut at("a/s", 0)), None);
        ring.begin(&begin("a/s", 10));
        assert_eq!(ring.join(&mut at("a/s", 9)), None);
        assert_eq!(ring.join(&mut at("a/s", 10)), Some(0));
        assert_eq!(ring.join(&mut at("a/other", 0)), Some(0));
        for n in 0..5 {
            ring.push(item("a/s", 10 + 2 * n, 2));
        }
        // Three are left of five.
        assert_eq!((ring.join(&mut at("a/s", 13)), ring.join(&mut at("a/s", 14))), (None, Some(2)));
        assert_eq!(ring.end(), 5);
        assert!(ring.read(1, 10).is_none());
        let rest: Vec<u64> = ring.read(3, 10).unwrap().iter().map(|item| last(item)).collect();
        assert_eq!(rest, [18, 20]);
        assert!(ring.read(5, 10).unwrap().is_empty());
    }

    #[test]
    fn who_begins_now_begins_at_the_end_and_who_wants_all_has_to_have_all() {
        let mut ring = EventRing::new(1 << 20);
        ring.begin(&begin("a/s", 10));
        ring.push(item("a/s", 10, 2));
        let mut now = at("a/s", FROM_NOW);
        now.streams.insert(Stream::parse("a/none").unwrap(), Position::NOW);
        assert_eq!(ring.join(&mut now), Some(0));
        assert_eq!(now.streams.values().map(|position| position.seq).collect::<Vec<_>>(), [0, 12]);
        assert_eq!(ring.join(&mut Positions::start()), None);
        let mut all = Positions { others: true, ..at("a/s", 11) };
        assert_eq!(ring.join(&mut all), Some(0));
    }

    #[test]
    fn who_has_not_heard_that_a_region_began_anew_can_not_join_and_who_has_can_while_the_old_items_leave() {
        let mut ring = EventRing::new(3_500);
        ring.begin(&begin("a/s", 10));
        ring.push(item("a/s", 10, 2));
        ring.push(RingItem::Anew { region: "a".to_owned(), lineage: 2 });
        assert_eq!(ring.join(&mut at("a/s", 12)), None);
        assert_eq!(ring.join(&mut at("a/other", 12)), None, "it has heard of no event of that stream");
        assert_eq!(ring.join(&mut at_of(2, "a/s", 0)), Some(0));
        assert_eq!(ring.join(&mut Positions::of([Stream::parse("a/s").unwrap()])), Some(0));
        ring.push(item_of(2, "a/s", 0, 3));
        assert_eq!(ring.join(&mut at_of(2, "a/s", 0)), Some(0));
        assert_eq!(ring.join(&mut at("a/s", 12)), None);
        assert!(
            matches!(*ring.read(0, 1).unwrap()[0], RingItem::Gone),
            "what was before is not kept for anybody"
        );
        ring.push(item_of(2, "a/s", 3, 3));
        ring.push(item_of(2, "a/s", 6, 3));
        assert_eq!(ring.join(&mut at_of(2, "a/s", 0)), Some(0));
        // With what was before the first of these leaves.
        ring.push(item_of(2, "a/s", 9, 3));
        assert_eq!((ring.join(&mut at_of(2, "a/s", 2)), ring.join(&mut at_of(2, "a/s", 3))), (None, Some(3)));
    }
}
