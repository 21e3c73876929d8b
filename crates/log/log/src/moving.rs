//! What becomes of a stream whose source moves between clusters: the cluster that had it keeps a copy, the one that
//! gets it leads from there, and what a copy has too much is cut off.
//!
//! Each of these is done alike. The owners give the stream's shards up once all that was accepted is recorded, as at a
//! log's end; metadata is changed; the owners get the shards as a start would find them. What holds:
//! - Nothing is accepted in between, and what was is answered before.
//! - A change takes effect with one commit. A crash before it leaves all as it was, one behind it as it is to be.
//! - A segment that is cut off loses its record first, and its bytes then. Its number is not used again.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tailwater_format::{Offset, SegmentId, SegmentNumber, ShardId, ShardNumber, StreamId, Term};
use tailwater_meta::{Expect, MetaError, Op};
use tokio::sync::oneshot;

use crate::error::StreamError;
use crate::limits::{COMMIT_OPS_MAX, RELEASE_MAX};
use crate::log::{Log, ShardHandle, Stream};
use crate::owner::{OwnerRequest, ReleasedShard};
use crate::producer::Producers;
use crate::shard::Recovered;
use crate::stream::{
    SegmentRecord, ShardRecord, StreamRecord, TRANSACTION_ID_NONE, TruncatedRecord, segment_key, shard_key,
    stream_key, truncated_key,
};

/// Pause between two looks whether shards are given up.
const RELEASE_LOOK: Duration = Duration::from_millis(5);

/// Where a shard ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardEnd {
    /// First offset that was not removed.
    pub log_start: Offset,
    /// Offset after its last record.
    pub next_offset: Offset,
    /// The highest term that was claimed in it.
    pub term: Term,
}

impl ShardEnd {
    fn of(recovered: &Recovered) -> Self {
        let last = recovered.completed.last().map_or(Offset(0), |last| last.next_offset);
        let ShardRecord { log_start, next_offset, term, .. } = recovered.record;
        Self { log_start, next_offset: last.max(next_offset), term }
    }
}

/// What is changed while nobody has the shards.
enum StreamMove {
    /// The source is in that cluster.
    HandOver(String),
    /// The source is here, in terms from this one on; with operations of others, which belong to the same commit.
    Lead(Term, Vec<Op>),
    /// Shards of a copy end there at most.
    Cut(Vec<Offset>),
}

impl Log {
    /// The stream is a copy of the one in `cluster` from here on: it takes no more records of producers. Answers where
    /// its shards end, once nothing is on its way any more. Cancelling it does not take it back.
    ///
    /// # Errors
    /// `NoStream`, `Damaged`, `NotOwner`, `Unavailable`, `Closed`.
    pub async fn hand_over(&self, stream: StreamId, cluster: &str) -> Result<Vec<ShardEnd>, StreamError> {
        self.move_stream(stream, StreamMove::HandOver(cluster.to_owned())).await
    }

    /// The copy is the source from here on, and its first append claims a term that is `term_min` at least, and higher
    /// than any before. It knows no producers: their ids are those of the source before. `with` takes place in the same
    /// commit. Answers where the shards end. Cancelling it does not take it back.
    ///
    /// # Errors
    /// As of [`Log::hand_over`].
    pub async fn lead(
        &self,
        stream: StreamId,
        term_min: Term,
        with: Vec<Op>,
    ) -> Result<Vec<ShardEnd>, StreamError> {
        self.move_stream(stream, StreamMove::Lead(term_min, with)).await
    }

    /// Cuts off what shards of a copy have from the offsets in `ends` on, one for each shard: whole segments, so that
    /// what was before such an offset may go too, and has to be copied again. Answers where the shards end. Cancelling
    /// it does not take it back.
    ///
    /// # Errors
    /// As of [`Log::hand_over`]; `Exists` for a stream that is no copy.
    pub async fn cut(&self, stream: StreamId, ends: Vec<Offset>) -> Result<Vec<ShardEnd>, StreamError> {
        self.move_stream(stream, StreamMove::Cut(ends)).await
    }

    /// Where the shards of a stream end that are not damaged, and the term of what is last in each.
    ///
    /// # Errors
    /// `NoStream`, `Damaged`.
    pub fn ends(&self, stream: StreamId) -> Result<Vec<ShardEnd>, StreamError> {
        let known = self.by_id(stream)?;
        let ends = known.shards().iter().map(|handle| {
            handle.slot::<StreamError>()?;
            let tail = handle.tail();
            Ok(ShardEnd { log_start: tail.log_start, next_offset: tail.next_offset, term: tail.term })
        });
        ends.collect()
    }

    pub(crate) fn by_id(&self, stream: StreamId) -> Result<Arc<Stream>, StreamError> {
        let known = self.inner.streams.read().by_id.get(&stream).cloned();
        known.ok_or_else(|| StreamError::NoStream(stream.to_string()))
    }

    async fn move_stream(&self, stream: StreamId, change: StreamMove) -> Result<Vec<ShardEnd>, StreamError> {
        let log = self.clone();
        self.to_the_end(async move { log.move_alone(stream, change).await }).await
    }

    async fn move_alone(&self, stream: StreamId, change: StreamMove) -> Result<Vec<ShardEnd>, StreamError> {
        let _naming = self.inner.naming.lock().await;
        self.check_open()?;
        let known = self.by_id(stream)?;
        if matches!(change, StreamMove::Cut(_)) && known.record.source.is_none() {
            return Err(StreamError::Exists(known.record.name.clone()));
        }
        if self.is_shared() {
            let why = "a stream does not move between clusters where several nodes are active";
            return Err(StreamError::Unavailable(why.to_owned()));
        }
        if let Some(damaged) = known.shards().iter().find_map(ShardHandle::damaged) {
            if let StreamMove::HandOver(cluster) = &change {
                self.take_no_more(&known, cluster).await?;
            }
            return Err(StreamError::Damaged(Arc::clone(&damaged.why)));
        }
        let released = self.release(&known).await?;
        let (mut released, producers): (Vec<Recovered>, Vec<Producers>) = released.into_iter().unzip();
        let mut record = known.record.clone();
        let changed = self.change_released(&mut record, &mut released, change).await;
        let ends = released.iter().map(ShardEnd::of).collect();
        // As it is now, also where the change has failed: nobody else has the shards. One that is still the source
        // knows its producers, or it would append again what they send again.
        let is_source_still = known.record.source.is_none() && record.source.is_none();
        let known_producers = |producers| if is_source_still { producers } else { Producers::default() };
        let shards = released.into_iter().zip(producers);
        let shards = shards.map(|(recovered, producers)| Some((recovered, known_producers(producers))));
        self.open_again(record, &known, shards.collect()).await?;
        changed.map(|()| ends)
    }

    /// A stream with a damaged shard, which can't be given up, takes no more records of producers all the same.
    async fn take_no_more(&self, known: &Stream, cluster: &str) -> Result<(), StreamError> {
        let record = StreamRecord { source: Some(cluster.to_owned()), ..known.record.clone() };
        let put = Op::Put { key: stream_key(record.id), value: record.encode(), expect: Expect::Present };
        self.inner.meta.commit(vec![put]).await.map_err(unavailable)?;
        self.inner.streams.write().replace(known.with_record(record));
        Ok(())
    }

    /// Takes the shards from their owners, when all is written, completed and recorded. Where that does not come about,
    /// they have them again.
    async fn release(&self, known: &Stream) -> Result<Vec<ReleasedShard>, StreamError> {
        let mut released: Vec<Option<ReleasedShard>> = known.shards().iter().map(|_| None).collect();
        let failed = self.release_into(known, &mut released).await.err();
        let Some(error) = failed else { return Ok(released.into_iter().flatten().collect()) };
        for (handle, _) in known.shards().iter().zip(&released).filter(|(_, released)| released.is_none()) {
            // It was told to take no more.
            if let Ok(slot) = handle.slot::<StreamError>() {
                let resume = OwnerRequest::Resume(slot);
                self.inner.owners[handle.owner].send(resume).await.map_err(|_| StreamError::Closed)?;
            }
        }
        self.open_again(known.record.clone(), known, released).await?;
        Err(error)
    }

    async fn release_into(
        &self,
        known: &Stream,
        released: &mut [Option<ReleasedShard>],
    ) -> Result<(), StreamError> {
        let env = &self.inner.env;
        let mut since = env.now();
        loop {
            let left = known.shards().iter().zip(&mut *released).filter(|(_, released)| released.is_none());
            let asked = left.map(|(handle, released)| async move {
                *released = self.release_one(handle).await?;
                Ok::<_, StreamError>(released.is_some())
            });
            let mut counts = [0, 0];
            for answer in join_all(asked).await {
                counts[usize::from(answer?)] += 1;
            }
            let [left, given_up] = counts;
            if left == 0 {
                return Ok(());
            }
            if given_up > 0 {
                since = env.now();
            }
            if env.now().since(since) >= RELEASE_MAX {
                return Err(StreamError::Unavailable(format!(
                    "for {} s nothing was recorded of what {left} shards have to record: the stream stays as it was, try again",
                    RELEASE_MAX.as_secs()
                )));
            }
            env.sleep(RELEASE_LOOK).await;
        }
    }

    /// Takes a shard from its owner, when all is written, completed and recorded. Cancelled, it is closed for appends.
    pub(crate) async fn release_whole(&self, handle: &ShardHandle) -> Result<ReleasedShard, StreamError> {
        loop {
            if let Some(released) = self.release_one(handle).await? {
                return Ok(released);
            }
            self.inner.env.sleep(RELEASE_LOOK).await;
        }
    }

    async fn release_one(&self, handle: &ShardHandle) -> Result<Option<ReleasedShard>, StreamError> {
        let slot = handle.slot::<StreamError>()?;
        let (reply, answer) = oneshot::channel();
        let request = OwnerRequest::Release(slot, reply);
        self.inner.owners[handle.owner].send(request).await.map_err(|_| StreamError::Closed)?;
        Ok(answer.await.map_err(|_| StreamError::Closed)??.map(|released| *released))
    }

    async fn change_released(
        &self,
        record: &mut StreamRecord,
        released: &mut [Recovered],
        change: StreamMove,
    ) -> Result<(), StreamError> {
        let (wanted, with) = match change {
            StreamMove::Cut(ends) => return self.cut_released(record.id, released, &ends).await,
            StreamMove::HandOver(cluster) => {
                (StreamRecord { source: Some(cluster), ..record.clone() }, Vec::new())
            }
            StreamMove::Lead(term_min, with) => {
                (StreamRecord { source: None, term_min, ..record.clone() }, with)
            }
        };
        let put = Op::Put { key: stream_key(record.id), value: wanted.encode(), expect: Expect::Present };
        let ops = std::iter::once(put).chain(with).collect();
        self.inner.meta.commit(ops).await.map_err(unavailable)?;
        *record = wanted;
        released.iter_mut().for_each(|recovered| recovered.lift_term(record));
        Ok(())
    }

    async fn cut_released(
        &self,
        stream: StreamId,
        released: &mut [Recovered],
        ends: &[Offset],
    ) -> Result<(), StreamError> {
        for ((number, recovered), end) in (0..).map(ShardNumber).zip(released).zip(ends) {
            let shard = ShardId { stream, shard: number };
            // The newest go first, so that what is left after each commit is a shard.
            while ShardEnd::of(recovered).next_offset > *end || recovered.record.term > last_term(recovered) {
                let cut = CutShard::of(recovered, *end);
                let key = shard_key(shard);
                let expect =
                    if recovered.version == 0 { Expect::Absent } else { Expect::Version(recovered.version) };
                let mut ops = vec![Op::Put { key, value: cut.record.encode(), expect }];
                let segments = &recovered.completed[cut.kept..];
                ops.extend(segments.iter().map(|segment| Op::Delete {
                    key: segment_key(shard, segment.number),
                    expect: Expect::Any,
                }));
                let version = self.commit_or_find(ops, shard, recovered.version, &cut.record).await?;
                let gone = recovered.completed.split_off(cut.kept);
                recovered.unsaved.retain(|unsaved| unsaved.base_offset < cut.record.next_offset);
                let id = |number: SegmentNumber, term| SegmentId { shard, number, term };
                recovered.deletes.extend(gone.iter().map(|segment| id(segment.number, segment.term)));
                (recovered.record, recovered.version) = (cut.record, version);
                self.remove_copies(shard, &gone);
            }
            self.cut_truncated(shard, recovered).await?;
        }
        Ok(())
    }

    /// Commits; the version of what it wrote. A commit that was not answered may have taken place: then the shard's
    /// record, which had version `before`, is what this one writes.
    async fn commit_or_find(
        &self,
        ops: Vec<Op>,
        shard: ShardId,
        before: u64,
        wanted: &ShardRecord,
    ) -> Result<u64, StreamError> {
        let conflict = match self.inner.meta.commit(ops).await {
            Err(MetaError::Conflict { key }) => MetaError::Conflict { key },
            answer => return answer.map_err(unavailable),
        };
        let key = shard_key(shard);
        let stored = self.inner.meta.get(&key).await.map_err(unavailable)?;
        let is_written = |value: &[u8]| ShardRecord::decode(&key, value).as_ref() == Ok(wanted);
        match stored.filter(|stored| stored.version != before && is_written(&stored.value)) {
            Some(stored) => Ok(stored.version),
            None => Err(unavailable(conflict)),
        }
    }

    /// Copies in cold storage of segments that are cut off are not read any more, and are removed.
    fn remove_copies(&self, shard: ShardId, gone: &[SegmentRecord]) {
        let Some(cold) = &self.inner.cold else { return };
        for segment in gone {
            if let Some(copied) = segment.cold {
                let id = SegmentId { shard, number: segment.number, term: segment.term };
                cold.tier.remove(&id, copied.copy);
            }
        }
    }

    /// Forgets removed segments that could be restored, as far as they lie behind the end of a shard that was cut.
    async fn cut_truncated(&self, shard: ShardId, recovered: &mut Recovered) -> Result<(), StreamError> {
        let end = recovered.record.next_offset;
        let is_gone = |truncated: &&TruncatedRecord| truncated.segment.next_offset > end;
        loop {
            let gone = recovered.truncated.iter().rev().take_while(is_gone).take(COMMIT_OPS_MAX);
            let delete = |truncated: &TruncatedRecord| Op::Delete {
                key: truncated_key(shard, truncated.segment.number),
                expect: Expect::Any,
            };
            let ops: Vec<Op> = gone.map(delete).collect();
            if ops.is_empty() {
                return Ok(());
            }
            let left = recovered.truncated.len() - ops.len();
            self.inner.meta.commit(ops).await.map_err(unavailable)?;
            let gone = recovered.truncated.split_off(left).into_iter().map(|truncated| truncated.segment);
            self.remove_copies(shard, &gone.collect::<Vec<_>>());
        }
    }
}

/// The term of the last record of a shard; 0 where there is none.
fn last_term(recovered: &Recovered) -> Term {
    recovered.completed.last().map_or(Term(0), |last| last.term)
}

/// What one commit cuts off a shard.
struct CutShard {
    /// Completed segments that are left.
    kept: usize,
    record: ShardRecord,
}

impl CutShard {
    /// Some of the newest segments of a shard that ends behind `end`.
    fn of(recovered: &Recovered, end: Offset) -> Self {
        let completed = &recovered.completed;
        let surplus = completed.iter().rev().take_while(|segment| segment.next_offset > end).count();
        let kept = completed.len() - surplus.min(COMMIT_OPS_MAX / 2);
        // Where a copy began behind a gap there may be no segment at all.
        let next_offset = match completed.get(kept) {
            Some(first) if first.base_offset > end && surplus <= COMMIT_OPS_MAX / 2 => end,
            Some(first) => first.base_offset,
            None => end.min(ShardEnd::of(recovered).next_offset),
        };
        let last = kept.checked_sub(1).map(|index| completed[index]);
        let before = &recovered.record;
        let numbers = completed.iter().map(|segment| segment.number.next());
        let record = ShardRecord {
            // What is copied in its place may be of an earlier term than what was cut off, or was claimed for nothing.
            term: last.map_or(Term(0), |last| last.term),
            log_start: before.log_start.min(next_offset),
            next_offset,
            next_segment: numbers.max().unwrap_or_default().max(before.next_segment).max(recovered.unused),
            transaction_id: last.map_or(TRANSACTION_ID_NONE, |last| last.last_transaction_id),
            ..*before
        };
        Self { kept, record }
    }
}

fn unavailable(error: MetaError) -> StreamError {
    StreamError::Unavailable(error.to_string())
}
