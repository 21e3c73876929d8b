//! Readers that ask the durable layer for lengths too seldom or too often, or in vain.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_cache::Lookup;
use tailwater_env::BoxFuture;
use tailwater_format::TailPage;
use tailwater_format::tails::{tail_page_key, tail_page_of};
use tailwater_format::{Offset, Position, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Tail};
use tailwater_tail::{Cells, DurableSource, ReaderConfig, SourceError, SourceSegment};

use super::Plant;

impl Plant {
    /// How a process reads.
    pub fn reader_config(self) -> ReaderConfig {
        let config = ReaderConfig::default();
        let every = config.durable_lengths_every;
        match self {
            Plant::LengthsAskedSeldom => ReaderConfig { durable_lengths_every: every * 4, ..config },
            Plant::LengthsAskedOften => ReaderConfig { durable_lengths_every: every / 4, ..config },
            _ => config,
        }
    }

    /// `source`, with the bug in front of it if it is one of what it tells.
    pub fn source(self, source: Arc<dyn DurableSource>) -> Arc<dyn DurableSource> {
        match self {
            Plant::LengthsToldOnce => Arc::new(ToldOnce { source, told: Mutex::default() }),
            _ => source,
        }
    }

    /// How far a shard reaches by any one replica of its page, if that is less than a reader has: with the bug it goes
    /// back to there.
    pub async fn back_to(self, cells: &Cells, shard: ShardId, next: Offset) -> Option<Offset> {
        if self != Plant::LengthGoesBack {
            return None;
        }
        let (page, slot) = tail_page_of(shard.shard);
        let looked = cells.metadata.get_relaxed(&[tail_page_key(shard.stream, page)]).await;
        let Some(Lookup::Hit { value, .. }) = looked.into_iter().next() else { return None };
        let told = TailPage::decode(&value).ok()?.tails.get(slot).copied()??.next_offset;
        (told < next).then_some(told)
    }
}

/// A source that says of each shard what it said first.
struct ToldOnce {
    source: Arc<dyn DurableSource>,
    told: Mutex<BTreeMap<ShardId, Option<Tail>>>,
}

impl DurableSource for ToldOnce {
    fn read(
        &self,
        segment: SegmentId,
        from: Position,
        len: u32,
    ) -> BoxFuture<'_, Result<Bytes, SourceError>> {
        self.source.read(segment, from, len)
    }

    fn tails<'a>(
        &'a self,
        stream: StreamId,
        shards: &'a [ShardNumber],
    ) -> BoxFuture<'a, Result<Vec<Option<Tail>>, SourceError>> {
        Box::pin(async move {
            let tails = self.source.tails(stream, shards).await?;
            let mut told = self.told.lock();
            let of = shards.iter().map(|shard| ShardId { stream, shard: *shard });
            Ok(of.zip(tails).map(|(shard, tail)| *told.entry(shard).or_insert(tail)).collect())
        })
    }

    fn segments(
        &self,
        shard: ShardId,
        from: SegmentNumber,
    ) -> BoxFuture<'_, Result<Vec<SourceSegment>, SourceError>> {
        self.source.segments(shard, from)
    }
}
