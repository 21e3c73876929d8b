//! Streams: created, changed, deleted, listed, truncated. Metadata comes first: what is answered is durable there.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::future::join_all;
use tailwater_format::{Offset, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Term};
use tailwater_meta::{Expect, Meta, MetaError, Op};
use tailwater_store::{DecidedCopies, SegmentCopies, StoreError};
use tokio::sync::oneshot;

use super::{
    ClosedShard, Damaged, Log, LogStreamInfo, ShardDescription, ShardHandle, Stream, StreamDescription,
    describe_segments,
};
use crate::cold::LogCold;
use crate::config::{ConfigError, FlushPolicy, StreamConfig, StreamDurability, check_name};
use crate::error::{AppendError, StreamError};
use crate::limits::{COMMIT_OPS_MAX, REMOVAL_RETRY, REMOVALS_MAX};
use crate::owner::{OwnerRequest, ReleasedShard};
use crate::producer::Producers;
use crate::shard::{Recovered, Shard, Truncation};
use crate::stream::{StreamRecord, cold_gone_key, deleted_key, name_key, prefixes_of_parts, stream_key};
use crate::view::{SharedView, View};

impl Log {
    /// Creates a stream. Cancelling it does not take it back.
    pub async fn create_stream(
        &self,
        name: &str,
        config: StreamConfig,
    ) -> Result<LogStreamInfo, StreamError> {
        let (log, name) = (self.clone(), name.to_owned());
        self.to_the_end(async move { log.create(&name, config).await }).await
    }

    /// Whether a stream may be created at this moment.
    pub fn check_create(&self, name: &str, config: &StreamConfig) -> Result<(), StreamError> {
        check_name(name)?;
        config.check()?;
        if self.is_replicated() && config.durability == StreamDurability::Interval {
            return Err(ConfigError::IntervalReplicated.into());
        }
        self.check_cold(config)?;
        self.check_open()?;
        let streams = self.inner.streams.read();
        if streams.by_name.contains_key(name) {
            return Err(StreamError::Exists(name.to_owned()));
        }
        streams.check_room(config.shards)
    }

    /// Whether there is cold storage, if a stream wants it.
    fn check_cold(&self, config: &StreamConfig) -> Result<(), ConfigError> {
        if config.cold && self.inner.cold.is_none() { Err(ConfigError::NoCold) } else { Ok(()) }
    }

    /// Whether the store can keep the copies that a stream wants at this moment. Asks whoever keeps them, unless the
    /// stream leaves that to the store: then it has as many as there can be.
    pub async fn check_copies(&self, config: &StreamConfig) -> Result<(), StreamError> {
        if config.copies() == SegmentCopies::default() {
            return Ok(());
        }
        let checked = self.inner.segments.check_copies(config.copies()).await;
        checked.map_err(|error| match error {
            StoreError::Copies(why) => ConfigError::Copies { why }.into(),
            error => StreamError::Unavailable(error.to_string()),
        })
    }

    /// How many copies the segments have that a stream which behaves like this begins.
    pub fn decided_copies(&self, config: &StreamConfig) -> DecidedCopies {
        self.inner.segments.decided(config.copies())
    }

    /// How many places take entries where segments are in a replicated store, as far as that is known.
    pub fn places(&self) -> Option<u32> {
        self.inner.segments.places()
    }

    /// How many copies of what is appended to a shard now are at places that live: those of its open segment, if this
    /// process has one. Otherwise its next segment begins on whichever places take entries. `None` where that is not
    /// known, or segments are not in a replicated store.
    pub fn living_copies(&self, shard: &ShardId) -> Option<u32> {
        self.inner.segments.living_copies(shard).or_else(|| self.places())
    }

    /// Carries out a change of streams although nobody may wait for it any more: metadata and memory would differ
    /// if it ended between the two.
    pub(crate) async fn to_the_end<T: Send + 'static, E: From<StreamError> + Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E> {
        let (reply, outcome) = oneshot::channel();
        let task = async move {
            let _ = reply.send(change.await);
        };
        self.inner.env.spawn("log-streams", task).detach();
        outcome.await.unwrap_or_else(|_| Err(StreamError::Closed.into()))
    }

    async fn create(&self, name: &str, config: StreamConfig) -> Result<LogStreamInfo, StreamError> {
        let inner = &*self.inner;
        // It may have to wait for others, and nobody has to wait for that.
        self.check_copies(&config).await?;
        let _naming = inner.naming.lock().await;
        self.check_create(name, &config)?;
        let random = (u128::from(inner.env.random_u64()) << 64) | u128::from(inner.env.random_u64());
        let id = StreamId(uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid());
        let created_ms = inner.env.wall_ms();
        let record = StreamRecord {
            id,
            name: name.to_owned(),
            created_ms,
            config,
            source: None,
            term_min: Term(0),
            numbers_from: SegmentNumber(0),
        };
        self.create_as(record).await
    }

    /// Creates a stream that this record describes, while names are taken.
    pub(crate) async fn create_as(&self, record: StreamRecord) -> Result<LogStreamInfo, StreamError> {
        let (inner, id, name) = (&*self.inner, record.id, &*record.name);
        let ops = vec![
            Op::Put { key: stream_key(id), value: record.encode(), expect: Expect::Absent },
            Op::Put {
                key: name_key(name),
                value: Bytes::copy_from_slice(id.0.as_bytes()),
                expect: Expect::Absent,
            },
            // A copy that is made again has the same id: what it puts into cold storage is not what was deleted.
            Op::Delete { key: cold_gone_key(id), expect: Expect::Any },
        ];
        inner.meta.commit(ops).await.map_err(|error| match error {
            // Another node has created it, and this one has yet to hear of it.
            MetaError::Conflict { .. } => StreamError::Exists(name.to_owned()),
            error => unavailable(error),
        })?;
        let fresh = || match inner.sharing {
            Some(_) => Err(ClosedShard::Elsewhere),
            None => Ok((Recovered::fresh(&record), Producers::default())),
        };
        let shards = (0..record.config.shards).map(|_| fresh()).collect();
        self.adopt(record.clone(), shards).await?;
        tracing::info!(stream = name, %id, shards = record.config.shards, "created");
        self.stream(name)
    }

    /// Hands a stream's shards to their owners, but for the damaged ones, and makes it known.
    pub(crate) async fn adopt(
        &self,
        record: StreamRecord,
        shards: Vec<Result<(Recovered, Producers), ClosedShard>>,
    ) -> Result<(), StreamError> {
        let shards = self.open_shards(&record, 0, shards, &[]).await?;
        self.inner.streams.write().insert(Stream { record, shards });
        Ok(())
    }

    /// The same with those shards of a stream that their owners have given up; whoever listens to one goes on
    /// listening.
    pub(crate) async fn open_again(
        &self,
        record: StreamRecord,
        known: &Stream,
        released: Vec<Option<ReleasedShard>>,
    ) -> Result<(), StreamError> {
        let mut shards = known.shards.clone();
        for (number, released) in (0..).zip(released) {
            let Some(released) = released else { continue };
            let opened = self.open_shards(&record, number, vec![Ok(released)], &known.shards).await?;
            shards[number as usize] = opened.into_iter().next().ok_or(StreamError::Closed)?;
        }
        self.inner.streams.write().replace(Stream { record, shards });
        known.shards.iter().for_each(|shard| shard.view.wake());
        Ok(())
    }

    /// Hands shards from number `first` on to their owners, but for the damaged ones. Those that were open before are
    /// seen where they were in `before`.
    async fn open_shards(
        &self,
        record: &StreamRecord,
        first: u32,
        shards: Vec<Result<(Recovered, Producers), ClosedShard>>,
        before: &[ShardHandle],
    ) -> Result<Vec<ShardHandle>, StreamError> {
        let inner = &*self.inner;
        let config = shard_config(record);
        let mut opening = Vec::with_capacity(shards.len());
        for (number, shard) in (first..).zip(shards) {
            let id = ShardId { stream: record.id, shard: ShardNumber(number) };
            let (closed, (recovered, producers)) = match shard {
                Ok(shard) => (None, shard),
                Err(closed) => (Some(closed), Default::default()),
            };
            if record.source.is_some() && closed.is_none() {
                let last = recovered.completed.last().map_or(Term(0), |last| last.term);
                inner.segments.lower_fence(&id, last);
            }
            let opened = recovered.record.term;
            let shard = Shard::new(id, Arc::clone(&config), inner.owner_number, recovered, producers);
            let shard = if record.source.is_some() { shard.of_copy() } else { shard };
            let shard = match inner.sharing {
                // Its term was claimed before it was recovered.
                Some(_) => shard.claimed(),
                None => shard,
            };
            let shard = shard.with_cold(inner.cold.as_ref().map(LogCold::of_shards));
            let view = View::of(&shard);
            let view = match before.get(number as usize) {
                Some(before) => before.view.begin_anew(view),
                None => SharedView::new(view),
            };
            let refused = Arc::clone(shard.refused());
            let owner = (record.id.0.as_u128() as usize ^ number as usize) % inner.owners.len();
            let (reply, slot) = oneshot::channel();
            if closed.is_none() {
                let request = OwnerRequest::Open(Box::new(shard), Arc::clone(&view), reply);
                inner.owners[owner].send(request).await.map_err(|_| StreamError::Closed)?;
            }
            opening.push(async move {
                let slot = match closed {
                    Some(closed) => Err(closed),
                    None => Ok(slot.await?),
                };
                Ok::<_, oneshot::error::RecvError>(ShardHandle { owner, slot, opened, view, refused })
            });
        }
        let shards: Result<Vec<ShardHandle>, _> = join_all(opening).await.into_iter().collect();
        shards.map_err(|_| StreamError::Closed)
    }

    /// Changes how a stream behaves: `change` gets its configuration as it is and answers what it is to be. More
    /// shards than before begin empty. When this is answered the change is durable, and what is accepted from then
    /// on is treated by it. Changes are made one at a time, and cancelling one does not take it back.
    ///
    /// # Errors
    /// What `change` answers; [`StreamConfig::may_become`]; `TooManyShards`; `Unavailable`, after which the change may
    /// come with the next one or the next start.
    pub async fn alter_stream<E: From<StreamError> + Send + 'static>(
        &self,
        name: &str,
        change: impl FnOnce(&StreamConfig) -> Result<StreamConfig, E> + Send + 'static,
    ) -> Result<LogStreamInfo, E> {
        let (log, name) = (self.clone(), name.to_owned());
        self.to_the_end(async move { log.alter(&name, None, change).await }).await
    }

    /// The same of a stream; of a copy, whose source is in the cluster `source`.
    pub(crate) async fn alter<E: From<StreamError>>(
        &self,
        name: &str,
        source: Option<String>,
        change: impl FnOnce(&StreamConfig) -> Result<StreamConfig, E>,
    ) -> Result<LogStreamInfo, E> {
        let inner = &*self.inner;
        let mut naming = inner.naming.lock().await;
        self.check_open()?;
        let mut stream = self.find(name)?;
        let key = stream_key(stream.record.id);
        // As stored: of an earlier change it may not be known here whether it took place.
        let stored = inner.meta.get(&key).await.map_err(unavailable)?;
        let stored = stored.ok_or_else(|| StreamError::NoStream(name.to_owned()))?;
        let mut record = StreamRecord::decode(&key, &stored.value)
            .map_err(|error| StreamError::Unavailable(error.to_string()))?;
        if let Some(known) = &mut record.source {
            // What its source is changed to, a copy follows, and where that is.
            *known = source.ok_or_else(|| StreamError::Copy(known.clone()))?;
        }
        let config = change(&record.config)?;
        record.config.may_become(&config).map_err(StreamError::from)?;
        // A copy follows its source's configuration where its own cluster has no cold storage, too.
        if !record.config.cold && record.source.is_none() {
            self.check_cold(&config).map_err(StreamError::from)?;
        }
        if record.config.copies() != config.copies() && record.source.is_none() {
            // It may have to wait for others, and nobody has to wait for that. What is changed meanwhile is a conflict.
            drop(naming);
            self.check_copies(&config).await?;
            naming = inner.naming.lock().await;
            self.check_open()?;
            stream = self.find(name)?;
        }
        let old = stream.shards.len() as u32;
        // If somebody has raised them meanwhile, the commit is a conflict.
        inner.streams.read().check_room(config.shards.saturating_sub(old))?;
        record.config = config;
        let expect = Expect::Version(stored.version);
        let put = Op::Put { key, value: record.encode(), expect };
        inner.meta.commit(vec![put]).await.map_err(|error| match error {
            MetaError::Conflict { .. } => {
                StreamError::Unavailable(format!("somebody else has just changed {name}: try it again"))
            }
            error => unavailable(error),
        })?;
        self.reconfigure(record, &stream).await?;
        drop(naming);
        tracing::info!(stream = name, "reconfigured");
        Ok(self.stream(name)?)
    }

    /// Has a stream behave as `record` says, which metadata has.
    pub(crate) async fn reconfigure(&self, record: StreamRecord, known: &Stream) -> Result<(), StreamError> {
        let inner = &*self.inner;
        let old = known.shards.len() as u32;
        let config = shard_config(&record);
        for (number, owner) in inner.owners.iter().enumerate() {
            let owned = known.shards.iter().filter(|shard| shard.owner == number);
            let slots = owned.filter_map(|shard| shard.slot.as_ref().ok().copied()).collect();
            let (reply, done) = oneshot::channel();
            let request = OwnerRequest::Configure(slots, Arc::clone(&config), reply);
            owner.send(request).await.map_err(|_| StreamError::Closed)?;
            done.await.map_err(|_| StreamError::Closed)?;
        }
        let fresh = || match inner.sharing {
            Some(_) => Err(ClosedShard::Elsewhere),
            None => Ok((Recovered::fresh(&record), Producers::default())),
        };
        let new = (old..config.shards).map(|_| fresh()).collect();
        let mut shards = known.shards.clone();
        shards.extend(self.open_shards(&record, old, new, &[]).await?);
        inner.streams.write().replace(Stream { record, shards });
        Ok(())
    }

    /// Opens a shard that was claimed in `term`, or says why not; whether its stream is still there.
    pub(crate) async fn open_shard(
        &self,
        shard: ShardId,
        recovered: Result<(Recovered, Producers), Damaged>,
    ) -> Result<bool, StreamError> {
        let _naming = self.inner.naming.lock().await;
        self.check_open()?;
        let known = self.inner.streams.read().by_id.get(&shard.stream).cloned();
        let Some(known) = known else { return Ok(false) };
        let opened = vec![recovered.map_err(ClosedShard::Damaged)];
        // Whoever listened to it when it was another one's was told to look again.
        let handles = self.open_shards(&known.record, shard.shard.0, opened, &[]).await?;
        for handle in handles {
            self.inner.streams.write().replace(known.with_shard(shard.shard, handle));
        }
        Ok(true)
    }

    /// Deletes a stream. When this is answered its name is free, its id will never exist again, and readers of it
    /// are told; its files go a little later. Cancelling it does not take it back.
    pub async fn delete_stream(&self, name: &str) -> Result<(), StreamError> {
        let (log, name) = (self.clone(), name.to_owned());
        self.to_the_end(async move { log.delete(&name).await }).await
    }

    async fn delete(&self, name: &str) -> Result<(), StreamError> {
        let inner = &*self.inner;
        let _naming = inner.naming.lock().await;
        self.check_open()?;
        let stream = self.find(name)?;
        let id = stream.record.id;
        let ops = vec![
            Op::Delete { key: stream_key(id), expect: Expect::Present },
            Op::Delete { key: name_key(name), expect: Expect::Any },
        ];
        // What a copy that is under way leaves behind is found by that.
        let cold_gone = inner.cold.as_ref().map(|_| Op::Put {
            key: cold_gone_key(id),
            value: Bytes::new(),
            expect: Expect::Any,
        });
        // What is left if this process ends before it is removed is found by that, whichever process looks.
        let deleted = inner.sharing.as_ref().map(|_| Op::Put {
            key: deleted_key(id),
            value: Bytes::new(),
            expect: Expect::Any,
        });
        let ops = ops.into_iter().chain(cold_gone).chain(deleted).collect();
        inner.meta.commit(ops).await.map_err(unavailable)?;
        self.drop_deleted(&stream).await?;
        let damaged = stream.shards.iter().filter_map(ShardHandle::damaged);
        let segments = damaged.flat_map(|damaged| &damaged.segments).copied().collect();
        self.remove(segments).await?;
        tracing::info!(stream = name, %id, "deleted");
        // What is left if this fails is removed in a while, or at the next start of the one process.
        if let Err(error) = remove_leftovers(&*inner.meta, id).await {
            tracing::warn!(%id, %error, "metadata of a deleted stream is left for now");
        }
        if inner.sharing.is_some() {
            self.remove_left(id);
        }
        Ok(())
    }

    /// Removes what is left of a deleted stream where several processes share the shards: its metadata, and the
    /// segments of shards that nobody owned, or whose owner is gone. Each owner deletes those of its own.
    pub(crate) fn remove_left(&self, stream: StreamId) {
        let (env, meta) = (self.inner.env.clone(), Arc::clone(&self.inner.meta));
        let segments = Arc::clone(&self.inner.segments);
        let removing = async move {
            for _ in 0..REMOVALS_MAX {
                let removed = async {
                    remove_leftovers(&*meta, stream).await.map_err(|error| error.to_string())?;
                    // Behind the shards' records, without which nobody begins a segment.
                    segments.delete_stream(stream).await?;
                    remove_deleted(&*meta, stream).await.map_err(|error| error.to_string())
                };
                match removed.await {
                    Ok(()) => return,
                    Err(why) => {
                        tracing::warn!(%stream, why, "what a deleted stream has left is not removed yet")
                    }
                }
                env.sleep(REMOVAL_RETRY).await;
            }
        };
        self.inner.env.spawn("log-removal", removing).detach();
    }

    /// Deletes segments that no shard has that was opened.
    pub(crate) async fn remove(&self, segments: Vec<SegmentId>) -> Result<(), StreamError> {
        let request = OwnerRequest::Remove(segments);
        self.inner.owners[0].send(request).await.map_err(|_| StreamError::Closed)
    }

    /// All streams, by name.
    pub fn list_streams(&self) -> Vec<LogStreamInfo> {
        let streams = self.inner.streams.read();
        streams.by_name.values().filter_map(|id| streams.by_id.get(id)).map(|stream| stream.info()).collect()
    }

    /// A number that is another one when a stream was created, altered or deleted since: what was listed before that is
    /// as it was.
    pub fn streams_changes(&self) -> u64 {
        self.inner.streams.read().changes
    }

    /// How many shards were not opened because bytes of them are missing.
    pub fn shards_damaged(&self) -> u64 {
        let streams = self.inner.streams.read();
        let shards = streams.by_id.values().flat_map(|stream| &stream.shards);
        shards.filter(|shard| shard.damaged().is_some()).count() as u64
    }

    /// The stream of that name.
    pub fn stream(&self, name: &str) -> Result<LogStreamInfo, StreamError> {
        self.find(name).map(|stream| stream.info())
    }

    /// The stream of that id.
    pub fn stream_by_id(&self, id: StreamId) -> Result<LogStreamInfo, StreamError> {
        let stream = self.inner.streams.read().by_id.get(&id).cloned();
        stream.map(|stream| stream.info()).ok_or_else(|| StreamError::NoStream(id.to_string()))
    }

    /// The stream of that name, with shards and segments.
    pub fn describe(&self, name: &str) -> Result<StreamDescription, StreamError> {
        let stream = self.find(name)?;
        let shards = (0..).map(ShardNumber).zip(&stream.shards).map(|(shard, handle)| {
            let view = handle.view.get();
            let damaged = handle.damaged().map(|damaged| Arc::clone(&damaged.why));
            let is_elsewhere = matches!(handle.slot_or_closed(), Err(ClosedShard::Elsewhere));
            let segments = describe_segments(&view, 0);
            ShardDescription { shard, tail: view.tail, segments, damaged, is_elsewhere }
        });
        Ok(StreamDescription { stream: stream.info(), shards: shards.collect() })
    }

    /// Removes the records of a shard before an offset; answers the first offset that is left, which is later
    /// than `before` if more was removed already. Segments wholly before it are deleted.
    pub async fn truncate(
        &self,
        name: &str,
        shard: ShardNumber,
        before: Offset,
    ) -> Result<Offset, StreamError> {
        let stream = self.find(name)?;
        if let Some(source) = &stream.record.source {
            return Err(StreamError::Copy(source.clone()));
        }
        self.truncate_shard(&stream, shard, before).await
    }

    pub(crate) async fn truncate_shard(
        &self,
        stream: &Stream,
        shard: ShardNumber,
        before: Offset,
    ) -> Result<Offset, StreamError> {
        let handle = stream
            .shard(shard)
            .ok_or(StreamError::NoShard { shard: shard.0, shards: stream.record.config.shards })?;
        let slot = handle.slot::<StreamError>()?;
        let (reply, answer) = oneshot::channel();
        let request = OwnerRequest::Truncate(slot, Truncation { before, reply });
        self.inner.owners[handle.owner].try_send(request, false).map_err(|error| match error {
            AppendError::Closed => StreamError::Closed,
            _ => StreamError::Overloaded,
        })?;
        answer.await.unwrap_or(Err(StreamError::Closed))
    }

    pub(crate) fn find(&self, name: &str) -> Result<Arc<Stream>, StreamError> {
        let streams = self.inner.streams.read();
        let id = streams.by_name.get(name);
        let stream = id.and_then(|id| streams.by_id.get(id)).cloned();
        stream.ok_or_else(|| StreamError::NoStream(name.chars().take(64).collect()))
    }

    pub(crate) fn check_open(&self) -> Result<(), StreamError> {
        if self.inner.closed.load(Ordering::Acquire) { Err(StreamError::Closed) } else { Ok(()) }
    }
}

/// How the shards of a stream behave. Those of a copy are durable before anybody sees them, as what is sealed after a
/// crash goes on in the same term; what they keep is what their source keeps.
fn shard_config(record: &StreamRecord) -> Arc<StreamConfig> {
    let mut config = record.config.clone();
    if record.source.is_some() {
        config.durability = StreamDurability::Fsync;
        config.flush = FlushPolicy::Immediate;
        (config.retention_ms, config.retention_bytes) = (None, None);
    }
    Arc::new(config)
}

fn unavailable(error: MetaError) -> StreamError {
    match error {
        MetaError::Invalid(_) => StreamError::Refused(error.to_string()),
        error => StreamError::Unavailable(error.to_string()),
    }
}

/// Removes the note that something may be left of a deleted stream.
pub(crate) async fn remove_deleted(meta: &dyn Meta, stream: StreamId) -> Result<(), MetaError> {
    meta.commit(vec![Op::Delete { key: deleted_key(stream), expect: Expect::Any }]).await.map(drop)
}

/// Removes what metadata still has of a stream that has no record any more.
pub(crate) async fn remove_leftovers(meta: &dyn Meta, stream: StreamId) -> Result<(), MetaError> {
    for prefix in prefixes_of_parts(stream) {
        let found = meta.list(&prefix).await?;
        for some in found.chunks(COMMIT_OPS_MAX) {
            let delete = |(key, _): &(String, _)| Op::Delete { key: key.clone(), expect: Expect::Any };
            meta.commit(some.iter().map(delete).collect()).await?;
        }
    }
    Ok(())
}
