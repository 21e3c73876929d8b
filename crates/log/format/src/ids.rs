//! Names of things in a log, as types: a shard's number can't be passed where a segment's is meant.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number after this one.
            ///
            /// # Panics
            /// At the end of the number range, which no log reaches.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.checked_add(1).expect("numbers of a log do not run out"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// A stream, for ever: a stream that is deleted and created again under the same name has another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StreamId(pub Uuid);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

number!(
    /// A shard of a stream, counted from 0.
    ShardNumber(u32)
);
number!(
    /// A segment of a shard, counted from 0; dense.
    SegmentNumber(u64)
);
number!(
    /// Grows with every change of a shard's owner; Kafka's leader epoch, so it stays below 2^31.
    Term(u32)
);
number!(
    /// An entry of a segment, counted from 0; dense, control entries included.
    EntryId(u64)
);
number!(
    /// A record of an entry, counted from 0.
    SlotId(u32)
);
number!(
    /// A record of a shard, counted from 0; dense, control entries take none.
    Offset(u64)
);
number!(
    /// Non-decreasing number of a record; by default the running maximum of the shard's timestamps in ms.
    TransactionId(i64)
);
number!(
    /// A byte position in a segment, from its start.
    Position(u64)
);

/// One shard of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId {
    /// The stream.
    pub stream: StreamId,
    /// Its shard.
    pub shard: ShardNumber,
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.stream, self.shard)
    }
}

/// One segment: the pair of number and term is never used again in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId {
    /// Its shard.
    pub shard: ShardId,
    /// Its place in the shard's sequence of segments.
    pub number: SegmentNumber,
    /// The term of the owner that wrote it.
    pub term: Term,
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}.{}", self.shard, self.number, self.term)
    }
}

/// A record's exact coordinates in its shard (DistributedLog's sequence number).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dlsn {
    /// The segment.
    pub segment: SegmentNumber,
    /// The entry in the segment.
    pub entry: EntryId,
    /// The record in the entry.
    pub slot: SlotId,
}

impl fmt::Display for Dlsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.segment, self.entry, self.slot)
    }
}
