//! Streams that other processes create, alter and delete.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tailwater_format::{ShardId, ShardNumber, StreamId};
use tailwater_meta::Versioned;
use tokio::sync::oneshot;

use super::{STREAMS, unavailable};
use crate::error::{AppendError, StreamError};
use crate::log::{ClosedShard, Log, Stream};
use crate::owner::OwnerRequest;
use crate::stream::{DELETED_PREFIX, Key, StreamRecord, stream_key};

impl Log {
    /// Has the streams that metadata has, as they are there. New ones, and new shards of one, are nobody's here. Those
    /// that were deleted come to `deleted`, also where this fails behind them.
    pub(super) async fn follow_streams(&self, deleted: &mut BTreeSet<StreamId>) -> Result<(), StreamError> {
        let inner = &*self.inner;
        // Over the list, so that a stream that is created here meanwhile is not taken for one that was deleted.
        let _naming = inner.naming.lock().await;
        let (mut listed, mut there) = (BTreeMap::new(), BTreeSet::new());
        for (key, found) in inner.meta.list(STREAMS).await.map_err(unavailable)? {
            let Some(Key::Stream(id)) = Key::parse(&key) else { continue };
            there.insert(id);
            // One of a later version is there all the same: it stays as it is known.
            match StreamRecord::decode(&key, &found.value) {
                Ok(record) => _ = listed.insert(id, record),
                Err(error) => tracing::error!(
                    %error,
                    "the stream stays as it is known here: a later version has written this, or it is damaged; upgrade this \
                     node, or delete the stream"
                ),
            }
        }
        let known: Vec<Arc<Stream>> = inner.streams.read().by_id.values().cloned().collect();
        for stream in known.iter().filter(|stream| !there.contains(&stream.record.id)) {
            deleted.insert(stream.record.id);
            self.drop_deleted(stream).await?;
        }
        for (id, record) in listed {
            let known = inner.streams.read().by_id.get(&id).cloned();
            match known {
                None => {
                    tracing::info!(stream = record.name, %id, "another node has created it");
                    let shards = (0..record.config.shards).map(|_| Err(ClosedShard::Elsewhere)).collect();
                    self.adopt(record, shards).await?;
                }
                Some(known) if known.record != record => {
                    tracing::info!(stream = record.name, %id, "another node has changed it");
                    self.reconfigure(record, &known).await?;
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// The deleted streams of which something may be left, as metadata has them.
    pub(super) async fn deleted_streams(&self) -> Result<BTreeSet<StreamId>, StreamError> {
        let listed = self.inner.meta.list(DELETED_PREFIX).await.map_err(unavailable)?;
        let deleted = |(key, _): (String, Versioned)| match Key::parse(&key) {
            Some(Key::Deleted(stream)) => Some(stream),
            _ => None,
        };
        Ok(listed.into_iter().filter_map(deleted).collect())
    }

    /// Whether there is a stream of that id. Where several processes share the shards metadata says so: what is known
    /// here of streams may be behind, or one may be of a later version.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn has_stream(&self, id: StreamId) -> Result<bool, StreamError> {
        if self.inner.streams.read().by_id.contains_key(&id) {
            return Ok(true);
        }
        if !self.is_shared() {
            return Ok(false);
        }
        let found = self.inner.meta.get(&stream_key(id)).await.map_err(unavailable)?;
        Ok(found.is_some())
    }

    /// Gives a stream up that is deleted, and deletes the segments that are this process's.
    pub(crate) async fn drop_deleted(&self, stream: &Stream) -> Result<(), StreamError> {
        let inner = &*self.inner;
        let id: StreamId = stream.record.id;
        inner.streams.write().remove(id);
        // Whoever waits for records has to hear that there will be none.
        stream.shards().iter().for_each(|shard| shard.wake());
        for (number, owner) in inner.owners.iter().enumerate() {
            let owned = stream.shards().iter().filter(|shard| shard.owner == number);
            let slots = owned.filter_map(|shard| shard.slot_or_closed().ok());
            let (reply, done) = oneshot::channel();
            let closed = |_: AppendError| StreamError::Closed;
            owner.send(OwnerRequest::Delete(slots.collect(), reply)).await.map_err(closed)?;
            done.await.map_err(|_| StreamError::Closed)?;
        }
        inner.tail.delete_stream(id);
        for number in 0..stream.record.config.shards {
            let shard = ShardId { stream: id, shard: ShardNumber(number) };
            inner.sharing.iter().for_each(|sharing| sharing.remove(&shard));
        }
        Ok(())
    }
}
