//! The newest batches of all streams, encoded once for all who listen at the live edge.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tailwater_broadcast::message::FROM_NOW;
use tailwater_broadcast::{Batch, Positions, Stream};

/// One batch, as it came and as listeners are sent it.
#[derive(Debug)]
pub struct Item {
    pub stream: Stream,
    pub batch: Batch,
    pub json: Bytes,
}

/// A run of items. Older ones leave it, so that it holds at most `bytes_max`, or one item.
#[derive(Debug)]
pub struct Ring {
    items: VecDeque<Arc<Item>>,
    /// The place of the first item; places are never reused.
    first: u64,
    bytes: usize,
    bytes_max: usize,
    /// Of each stream: the number before the first item of it, and the last number.
    spans: BTreeMap<Stream, (u64, u64)>,
    begun: bool,
}

impl Ring {
    /// An empty one.
    pub fn new(bytes_max: usize) -> Self {
        Self { items: VecDeque::new(), first: 0, bytes: 0, bytes_max, spans: BTreeMap::new(), begun: false }
    }

    /// Streams begin here; from now on it can be joined.
    pub fn begin(&mut self, positions: &[(Stream, u64)]) {
        self.begun = true;
        for (stream, after) in positions {
            self.spans.entry(stream.clone()).or_insert((*after, *after));
        }
    }

    /// Whether it can be joined.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// The place behind the last item.
    pub fn end(&self) -> u64 {
        self.first + self.items.len() as u64
    }

    /// Adds what continues a stream.
    pub fn push(&mut self, item: Item) {
        let span = self.spans.entry(item.stream.clone()).or_insert((item.batch.after, item.batch.after));
        span.1 = item.batch.last;
        self.bytes += size(&item);
        self.items.push_back(Arc::new(item));
        while self.bytes > self.bytes_max && self.items.len() > 1 {
            let Some(old) = self.items.pop_front() else { return };
            self.first += 1;
            self.bytes -= size(&old);
            if let Some(span) = self.spans.get_mut(&old.stream) {
                span.0 = old.batch.last;
            }
        }
    }

    /// From which place on somebody at `positions` can read without a gap; `None` if it has to get closer first. What
    /// is wanted from now on begins at the end.
    pub fn join(&self, positions: &mut Positions) -> Option<u64> {
        let is_close = |(stream, (start, _)): (&Stream, &(u64, u64))| match positions.streams.get(stream) {
            Some(after) => after >= start,
            None => !positions.others || *start == 0,
        };
        if !self.begun || !self.spans.iter().all(is_close) {
            return None;
        }
        for (stream, after) in &mut positions.streams {
            if *after == FROM_NOW {
                *after = self.spans.get(stream).map_or(0, |(_, end)| *end);
            }
        }
        Some(self.first)
    }

    /// The items from a place on; `None` if some of them have left.
    pub fn read(&self, from: u64, count_max: usize) -> Option<Vec<Arc<Item>>> {
        let skipped = usize::try_from(from.checked_sub(self.first)?).ok()?;
        Some(self.items.iter().skip(skipped).take(count_max).cloned().collect())
    }
}

fn size(item: &Item) -> usize {
    item.batch.bytes.len() + item.json.len() + 256
}

#[cfg(test)]
mod tests {
    use tailwater_broadcast::{Content, Writer};

    use super::*;

    fn item(name: &str, after: u64, count: u64) -> Item {
        let mut writer = Writer::new(after);
        for _ in 0..count {
            writer.publish(&Content::default(), None).unwrap();
        }
        let stream = Stream::parse(name).unwrap();
        Item { stream, batch: writer.finish(0), json: Bytes::from_static(&[0; 744]) }
    }

    fn at(name: &str, after: u64) -> Positions {
        Positions { streams: [(Stream::parse(name).unwrap(), after)].into(), others: false }
    }

    #[test]
    fn who_is_too_far_behind_can_not_join_until_it_is_close() {
        let mut ring = Ring::new(3_500);
        assert_eq!(ring.join(&mut at("a/s", 0)), None);
        ring.begin(&[(Stream::parse("a/s").unwrap(), 10)]);
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
        let rest: Vec<u64> = ring.read(3, 10).unwrap().iter().map(|item| item.batch.last).collect();
        assert_eq!(rest, [18, 20]);
        assert!(ring.read(5, 10).unwrap().is_empty());
    }

    #[test]
    fn who_begins_now_begins_at_the_end_and_who_wants_all_has_to_have_all() {
        let mut ring = Ring::new(1 << 20);
        ring.begin(&[(Stream::parse("a/s").unwrap(), 10)]);
        ring.push(item("a/s", 10, 2));
        let mut now = at("a/s", FROM_NOW);
        now.streams.insert(Stream::parse("a/none").unwrap(), FROM_NOW);
        assert_eq!(ring.join(&mut now), Some(0));
        assert_eq!(now.streams.values().copied().collect::<Vec<_>>(), [0, 12]);
        assert_eq!(ring.join(&mut Positions::start()), None);
        let mut all = Positions { others: true, ..at("a/s", 11) };
        assert_eq!(ring.join(&mut all), Some(0));
    }
}
