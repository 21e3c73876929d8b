//! Events, as an application sees them (section 2.1).

use bytes::Bytes;

/// One event of a stream. It covers the numbers (`seq - range`, `seq`]: one number, but for tombstones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number in its stream, from 1, without gaps.
    pub seq: u64,
    /// How many numbers it covers, from 1; for all but tombstones 1.
    pub range: u64,
    /// When the head of the stream's chain gave it its number, in milliseconds since 1970 by that head's clock;
    /// or the time of the event before it, if that is later.
    /// A tombstone has that of the event before it.
    pub time_ms: u64,
    /// What it says.
    pub kind: Kind,
}

/// The three types of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What an application published.
    Data(Content),
    /// The same, and it makes earlier events obsolete.
    Collection(Content, Collect),
    /// The place of `range` successive events that have been collected; a matching garbage-collection event
    /// follows later.
    Tombstone,
}

/// What an application publishes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// What it is about, if it says so; at most `KEY_BYTES_MAX` bytes.
    pub key: Option<Bytes>,
    /// Names and values; at most `HEADERS_MAX`, `HEADER_BYTES_MAX` bytes each.
    pub headers: Vec<(Bytes, Bytes)>,
    /// At most `PAYLOAD_BYTES_MAX` bytes.
    pub payload: Bytes,
}

/// Which earlier events of its stream a garbage-collection event makes obsolete (section 3.4). None matches an
/// event with the same or a greater number than the one that carries it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Collect {
    /// Those with its own key; none if it has no key.
    SameKey,
    /// Those more than so many numbers before it: an event at `i` collects all `seq < i - n`.
    KeepLast(u64),
    /// Those with a smaller number than this.
    Before(u64),
    /// Those given their number before this time, in milliseconds since 1970.
    OlderThan(u64),
    /// Those for which a predicate holds (docs/predicates.md); its text, at most `PREDICATE_BYTES_MAX` bytes.
    Matching(Bytes),
}

impl Event {
    /// The number before the first one that it covers.
    pub fn after(&self) -> u64 {
        self.seq - self.range
    }

    /// What it carries; a tombstone carries nothing.
    pub fn content(&self) -> Option<&Content> {
        match &self.kind {
            Kind::Data(content) | Kind::Collection(content, _) => Some(content),
            Kind::Tombstone => None,
        }
    }

    /// Whether it stands for collected events.
    pub fn is_tombstone(&self) -> bool {
        matches!(self.kind, Kind::Tombstone)
    }
}
