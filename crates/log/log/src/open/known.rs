//! What metadata says of streams and shards, when a log is opened.

use std::collections::BTreeMap;

use tailwater_format::{SegmentId, ShardId, StreamId};
use tailwater_meta::Versioned;

use crate::stream::{
    ColdPlaceRecord, Key, ProducersRecord, SegmentRecord, SegmentsRecord, ShardRecord, StreamRecord,
    StreamRecordError, TruncatedRecord,
};

/// What metadata says of one shard.
#[derive(Default)]
pub(crate) struct KnownShard {
    pub(crate) record: ShardRecord,
    pub(crate) version: u64,
    pub(crate) segments: BTreeMap<u64, SegmentRecord>,
    pub(crate) producers: Option<ProducersRecord>,
    /// Removed segments whose cold copies are kept.
    pub(crate) truncated: BTreeMap<u64, TruncatedRecord>,
}

/// What it says of all.
#[derive(Default)]
pub(crate) struct KnownLog {
    pub(crate) streams: BTreeMap<StreamId, StreamRecord>,
    pub(crate) shards: BTreeMap<ShardId, KnownShard>,
    /// Where segments are, if not on this host's disk.
    pub(crate) segments: Option<SegmentsRecord>,
    /// By which number cold storage knows this data directory.
    pub(crate) cold: Option<ColdPlaceRecord>,
    /// Deleted streams of several processes, of which something may be left.
    pub(crate) deleted: Vec<StreamId>,
}

impl KnownShard {
    /// The names of its completed segments.
    pub(crate) fn recorded(&self, shard: ShardId) -> impl Iterator<Item = SegmentId> + '_ {
        let id =
            move |segment: &SegmentRecord| SegmentId { shard, number: segment.number, term: segment.term };
        self.segments.values().map(id)
    }
}

impl KnownLog {
    /// What these keys and values say.
    pub(crate) fn read(keys: &[(String, Versioned)]) -> Result<Self, StreamRecordError> {
        let mut known = Self::default();
        keys.iter().try_for_each(|(key, stored)| known.note(key, stored))?;
        Ok(known)
    }

    /// The same of those that can be read: of several processes each can do without the others' streams.
    pub(crate) fn read_what_can_be(keys: &[(String, Versioned)]) -> Self {
        let mut known = Self::default();
        for (key, stored) in keys {
            if let Err(error) = known.note(key, stored) {
                tracing::error!(
                    %error,
                    "it is passed over: a later version has written it, or it is damaged; upgrade this node, or delete the \
                     stream that it is of"
                );
            }
        }
        known
    }

    fn note(&mut self, key: &str, stored: &Versioned) -> Result<(), StreamRecordError> {
        let value = &stored.value;
        match Key::parse(key) {
            Some(Key::Stream(id)) => _ = self.streams.insert(id, StreamRecord::decode(key, value)?),
            Some(Key::Shard(shard)) => {
                let record = ShardRecord::decode(key, value)?;
                let known = self.shards.entry(shard).or_default();
                (known.record, known.version) = (record, stored.version);
            }
            Some(Key::Segment(shard, number)) => {
                let segment = SegmentRecord::decode(key, value)?;
                self.shards.entry(shard).or_default().segments.insert(number.0, segment);
            }
            Some(Key::Producers(shard)) => {
                let producers = ProducersRecord::decode(key, value)?;
                self.shards.entry(shard).or_default().producers = Some(producers);
            }
            Some(Key::Segments) => self.segments = Some(SegmentsRecord::decode(key, value)?),
            Some(Key::Truncated(shard, number)) => {
                let truncated = TruncatedRecord::decode(key, value)?;
                self.shards.entry(shard).or_default().truncated.insert(number.0, truncated);
            }
            Some(Key::ColdPlace) => self.cold = Some(ColdPlaceRecord::decode(key, value)?),
            Some(Key::Deleted(stream)) => self.deleted.push(stream),
            Some(Key::Name(_) | Key::ProducerIds | Key::ColdGone(_)) => {}
            None => tracing::warn!(key, "metadata has a key that is not known"),
        }
        Ok(())
    }

    /// Whether metadata has a completed segment of this name.
    pub(crate) fn is_recorded(&self, id: &SegmentId) -> bool {
        let segment = self.shards.get(&id.shard).and_then(|shard| shard.segments.get(&id.number.0));
        segment.is_some_and(|segment| segment.term == id.term)
    }
    /// How many segments are in cold storage alone.
    pub(crate) fn released(&self) -> usize {
        let segments = self.shards.values().flat_map(|shard| shard.segments.values());
        segments.filter(|segment| segment.is_released()).count()
    }
}
