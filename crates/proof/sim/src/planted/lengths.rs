//! Readers that ask the durable layer for lengths too seldom or too often, or in vain.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tailwater_cache::Lookup;
use tailwater_format::TailPage;
use tailwater_format::tails::{tail_page_key, tail_page_of};
use tailwater_format::{Offset, ShardId, ShardNumber, StreamId, Tail};
use tailwater_tail::testing::{DecoratedSource, SourceHooks};
use tailwater_tail::{Cells, DurableSource, ReaderConfig};

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
            Plant::LengthsToldOnce => Arc::new(DecoratedSource { inner: source, hooks: ToldOnce::default() }),
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

/// Says of each shard what it said first.
#[derive(Default)]
struct ToldOnce(Mutex<BTreeMap<ShardId, Option<Tail>>>);

impl SourceHooks for ToldOnce {
    fn told(&self, stream: StreamId, shards: &[ShardNumber], tails: &mut [Option<Tail>]) {
        let mut told = self.0.lock();
        for (shard, tail) in shards.iter().zip(tails) {
            *tail = *told.entry(ShardId { stream, shard: *shard }).or_insert(*tail);
        }
    }
}
