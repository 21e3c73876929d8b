//! Offsets behind the end of a copy: whether they can be at its source already.
//!
//! A consumer that comes from another cluster may want what is on its way here: that is waited for. What its source
//! does not have either never comes under that offset, and whoever waits for it has to be told. Only the source knows,
//! so it is asked: here is who wants to know, and what was answered. The copying asks.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tailwater_env::Instant;
use tailwater_format::{Offset, ShardId, StreamId};
use tokio::sync::Notify;

use crate::log::Log;

/// What is known of the ends of sources.
#[derive(Debug, Default)]
pub(crate) struct SourceEnds {
    known: Mutex<BTreeMap<StreamId, KnownEnds>>,
    /// Somebody wants to know.
    wanted: Notify,
}

#[derive(Clone, Debug, Default)]
struct KnownEnds {
    is_wanted: bool,
    /// When the source was asked last that has answered, and what.
    told: Option<(Instant, Vec<Offset>)>,
}

impl Log {
    /// Whether the source of a copy ends before `offset`, as it was at `since` or later. `None` while that is unknown:
    /// then it is asked for.
    pub fn is_beyond_source(&self, shard: ShardId, offset: Offset, since: Instant) -> Option<bool> {
        let ends = &self.inner.source_ends;
        let mut known = ends.known.lock();
        let known = known.entry(shard.stream).or_default();
        if let Some((_, told)) = known.told.as_ref().filter(|(asked, _)| *asked >= since) {
            return told.get(shard.shard.0 as usize).map(|end| offset > *end);
        }
        known.is_wanted = true;
        ends.wanted.notify_one();
        None
    }

    /// Waits until somebody wants to know where the sources of some streams end: which.
    pub async fn source_ends_wanted(&self) -> Vec<StreamId> {
        loop {
            let wanted: Vec<StreamId> = {
                let mut known = self.inner.source_ends.known.lock();
                // Of those that are copies no more nobody asks.
                known.retain(|stream, _| self.is_copy(*stream));
                let taken = |(stream, of): (&StreamId, &mut KnownEnds)| {
                    std::mem::take(&mut of.is_wanted).then_some(*stream)
                };
                known.iter_mut().filter_map(taken).collect()
            };
            if !wanted.is_empty() {
                return wanted;
            }
            self.inner.source_ends.wanted.notified().await;
        }
    }

    /// The source of a stream has told where its shards end, when it was asked at `asked`.
    pub fn source_ends_told(&self, stream: StreamId, asked: Instant, ends: Vec<Offset>) {
        if let Some(known) = self.inner.source_ends.known.lock().get_mut(&stream) {
            known.told = Some((asked, ends));
        }
    }
}
