//! Removes offsets that nobody came back for, those of streams that are no more, and groups that have none left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tailwater_format::StreamId;
use tailwater_log::Log;

use super::coordinator::{CoordinatorShared, Snapshot};
use super::offsets::{GroupOffsets, OffsetChange, Partition};
use super::records::Committed;

pub(super) async fn run(shared: Arc<CoordinatorShared>) {
    let every = Duration::from_millis(shared.config.offsets_check_ms);
    loop {
        shared.env.sleep(every).await;
        sweep(&shared).await;
    }
}

async fn sweep(shared: &CoordinatorShared) {
    let now_ms = shared.env.wall_ms();
    let retention_ms = i64::try_from(shared.config.offsets_retention_ms).unwrap_or(i64::MAX);
    let streams: BTreeMap<_, _> =
        shared.log.list_streams().into_iter().map(|stream| (stream.id, stream)).collect();
    let mut unknown = UnknownStreams::default();
    for name in shared.names() {
        let Some(snapshot) = shared.group(&name) else { continue };
        let subscribed = snapshot.group.subscribed_topics(&shared.catalog(false));
        let is_over = |((stream, _), committed): &(Partition, Committed)| {
            // Of those that are not known it is asked below.
            let Some(stream) = streams.get(stream) else { return true };
            let is_read = subscribed.as_ref().is_none_or(|topics| topics.contains(&stream.name));
            let over_ms = committed
                .expires_ms
                .or_else(|| Some(kept_from(&snapshot, committed, is_read)?.saturating_add(retention_ms)));
            over_ms.is_some_and(|over_ms| over_ms <= now_ms)
        };
        let offsets = shared.offsets.of(&name).into_iter();
        let mut over: GroupOffsets = offsets.filter(is_over).collect();
        for stream in streams_of(&over) {
            if !streams.contains_key(&stream) && !unknown.is_over(&shared.log, stream).await {
                over.retain(|(of, _), _| *of != stream);
            }
        }
        if !over.is_empty() {
            tracing::info!(group = %name, partitions = over.len(), "committed offsets are over");
            let forget = OffsetChange::Forget(over);
            if let Err(error) = shared.offsets.change(Arc::clone(&name), forget).await {
                tracing::warn!(group = %name, %error, "they stay for now");
            }
        }
        shared.sweep(&name).await;
    }
    for (name, mut deleted) in shared.offsets.deleted() {
        // Others have none left by then that are older: those are over as well.
        for stream in streams_of(&deleted) {
            if streams.contains_key(&stream) || !unknown.is_over(&shared.log, stream).await {
                deleted.retain(|(of, _), at| {
                    *of != stream || at.committed_ms.saturating_add(retention_ms) <= now_ms
                });
            }
        }
        if !deleted.is_empty()
            && let Err(error) = shared.offsets.change(Arc::clone(&name), OffsetChange::Forget(deleted)).await
        {
            tracing::warn!(group = %name, %error, "that offsets were deleted is remembered for now");
        }
    }
}

fn streams_of(offsets: &GroupOffsets) -> BTreeSet<StreamId> {
    offsets.keys().map(|(stream, _)| *stream).collect()
}

/// Streams that the node does not know, and whether they are over: asked once in a sweep.
#[derive(Default)]
struct UnknownStreams(BTreeMap<StreamId, bool>);

impl UnknownStreams {
    async fn is_over(&mut self, log: &Log, stream: StreamId) -> bool {
        if let Some(is_over) = self.0.get(&stream) {
            return *is_over;
        }
        let is_over = match log.has_stream(stream).await {
            Ok(is_there) => !is_there,
            Err(error) => {
                tracing::warn!(%stream, %error, "whether it was deleted is not known: its offsets stay for now");
                false
            }
        };
        self.0.insert(stream, is_over);
        is_over
    }
}

/// From when on retention counts, wall time in ms; `None` while somebody reads there.
fn kept_from(snapshot: &Snapshot, committed: &Committed, is_read: bool) -> Option<i64> {
    let has_had_members = snapshot.group.protocol_type().is_some();
    match snapshot.empty_since_ms {
        Some(empty_since_ms) if has_had_members => Some(empty_since_ms.max(committed.committed_ms)),
        // Nobody ever was in it: somebody only keeps offsets here.
        Some(_) => Some(committed.committed_ms),
        // Its members read other topics now.
        None if !is_read => Some(committed.committed_ms),
        None => None,
    }
}
