//! Segments that no record names, in a store that several processes can reach: what a process leaves behind that ends
//! between two steps.
//!
//! | a segment | is left over if |
//! |---|---|
//! | of a stream that metadata has not | always: a stream's record is older than its segments, and its id is not used again |
//! | of the shard's recorded term, or of a later one | never: its owner writes it, or is about to delete it |
//! | whose number is not below the shard's next one | never: whoever has claimed the shard may have yet to record it |
//! | that the shard's records name | only if they say that cold storage alone has it |
//! | any other one | always: the shard went on without it |
//!
//! That a term is over does not suffice. A claim begins the next term before the segments of the last one are found:
//! they may be full of acknowledged records, and no record names them yet. What is recorded makes the shard's next
//! number go up in the same commit, so below that all is decided. A start goes by the same
//! ([`recover`](crate::shard::recover)).
//!
//! How old a segment is does not matter: a clock says nothing about who is at work.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tailwater_env::{BoxFuture, Env, Task};
use tailwater_format::{SegmentId, ShardId, StreamId};
use tailwater_meta::Meta;
use tailwater_store::{KeptWhy, LeftOverWhy, SegmentJudge, SegmentVerdict};
use uuid::Uuid;

use crate::limits::JUDGED_AT_A_TIME;
use crate::log::{Log, LogInner};
use crate::stream::{
    MOVING_KEY, SEGMENTS_KEY, SegmentRecord, SegmentsRecord, ShardRecord, StreamRecordError, segment_key,
    shard_key, stream_key,
};

/// What metadata says of a segment.
#[derive(Clone, Copy, Debug)]
struct SegmentFacts {
    /// Whether there is its stream.
    has_stream: bool,
    /// Its shard.
    shard: ShardRecord,
    /// The shard's segment of its number.
    named: Option<SegmentRecord>,
}

/// Whether the shard has got beyond a segment: its record says by now all that it will ever say of it.
fn is_decided(id: &SegmentId, shard: &ShardRecord) -> bool {
    id.term < shard.term && id.number < shard.next_segment
}

/// What becomes of a segment; see the module.
fn judged(id: &SegmentId, facts: &SegmentFacts) -> SegmentVerdict {
    let SegmentFacts { has_stream, shard, named } = facts;
    if !has_stream {
        return SegmentVerdict::LeftOver(LeftOverWhy::StreamGone);
    }
    let (term, next) = (shard.term, shard.next_segment);
    let is_named = named.filter(|named| named.term == id.term);
    match is_named {
        Some(named) if named.is_released() && is_decided(id, shard) => {
            SegmentVerdict::LeftOver(LeftOverWhy::Released)
        }
        Some(_) => SegmentVerdict::Kept(KeptWhy::Named),
        None if is_decided(id, shard) => SegmentVerdict::LeftOver(LeftOverWhy::NotNamed { term, next }),
        None if id.term < term => SegmentVerdict::Kept(KeptWhy::Undecided { next }),
        None => SegmentVerdict::Kept(KeptWhy::OwnersTerm { term }),
    }
}

/// Judges segments by what metadata says of streams, shards and segments.
pub struct SegmentRecords {
    meta: Arc<dyn Meta>,
}

impl std::fmt::Debug for SegmentRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SegmentRecords")
    }
}

impl SegmentRecords {
    /// By these metadata.
    pub fn new(meta: Arc<dyn Meta>) -> Self {
        Self { meta }
    }

    /// By which number a replicated store knows the segments of these metadata; `None` where there are none.
    ///
    /// # Errors
    /// In words: if metadata are not available, or can't be read; or if not all of them are there yet, as they are
    /// being moved here: of segments that are there already the records follow.
    pub async fn cluster(&self) -> Result<Option<Uuid>, String> {
        if self.meta.get(MOVING_KEY).await.map_err(|error| error.to_string())?.is_some() {
            let why = "not all metadata is there: run `tailwater migrate` on the data directory that is moved to its end";
            return Err(why.to_owned());
        }
        let record = self.record(SEGMENTS_KEY.to_owned(), SegmentsRecord::decode).await?;
        Ok(record.map(|record| record.cluster))
    }

    async fn record<T>(
        &self,
        key: String,
        decode: impl Fn(&str, &[u8]) -> Result<T, StreamRecordError>,
    ) -> Result<Option<T>, String> {
        let found = self.meta.get(&key).await.map_err(|error| error.to_string())?;
        found.map(|found| decode(&key, &found.value)).transpose().map_err(|error| error.to_string())
    }

    /// Whether there is a stream. One of a later version is there as well.
    async fn has_stream(&self, id: StreamId) -> Result<bool, String> {
        let found = self.meta.get(&stream_key(id)).await.map_err(|error| error.to_string())?;
        Ok(found.is_some())
    }

    async fn shard(&self, shard: ShardId) -> Result<(bool, ShardRecord), String> {
        let has_stream = self.has_stream(shard.stream).await?;
        let record = match has_stream {
            true => self.record(shard_key(shard), ShardRecord::decode).await?,
            false => None,
        };
        Ok((has_stream, record.unwrap_or_default()))
    }

    async fn judge_one(
        &self,
        id: &SegmentId,
        of_shard: &Result<(bool, ShardRecord), String>,
    ) -> SegmentVerdict {
        let unknown = |why: String| SegmentVerdict::Kept(KeptWhy::Unknown(why));
        let (has_stream, shard) = match of_shard {
            Ok((has_stream, shard)) => (*has_stream, *shard),
            Err(why) => return unknown(why.clone()),
        };
        let mut facts = SegmentFacts { has_stream, shard, named: None };
        if has_stream {
            // Behind the shard's record. The other way round a segment might be recorded between the two: it would not
            // be named, and the shard's next number would be beyond it.
            match self.record(segment_key(id.shard, id.number), SegmentRecord::decode).await {
                Ok(named) => facts.named = named,
                Err(why) => return unknown(why),
            }
        }
        judged(id, &facts)
    }
}

impl SegmentJudge for SegmentRecords {
    fn judge<'a>(&'a self, found: &'a [SegmentId]) -> BoxFuture<'a, Vec<SegmentVerdict>> {
        Box::pin(async move {
            let mut shards: Vec<ShardId> = found.iter().map(|id| id.shard).collect();
            shards.sort_unstable();
            shards.dedup();
            let reads = shards.into_iter().map(|shard| async move { (shard, self.shard(shard).await) });
            let reads: Vec<_> = reads.collect();
            let reads = stream::iter(reads).buffer_unordered(JUDGED_AT_A_TIME);
            let known: BTreeMap<ShardId, _> = reads.collect().await;
            let missing = Err("its shard was not looked at".to_owned());
            let judging = found.iter().map(|id| self.judge_one(id, known.get(&id.shard).unwrap_or(&missing)));
            let judging: Vec<_> = judging.collect();
            stream::iter(judging).buffered(JUDGED_AT_A_TIME).collect().await
        })
    }
}

/// By which the one of several processes is found that sweeps for all.
pub(crate) const SWEEPER: &[u8] = b"log/sweep";

/// What looks for segments that no record names.
pub(crate) struct LogSweeping {
    /// Whether this process is the one that looks. Of several ones it is not before they know of each other.
    pub(crate) is_mine: AtomicBool,
    pub(crate) task: Mutex<Option<Task>>,
}

impl LogSweeping {
    pub(crate) fn new(is_mine: bool) -> Self {
        Self { is_mine: AtomicBool::new(is_mine), task: Mutex::new(None) }
    }
}

impl Log {
    /// Begins what goes on beside everything else for as long as the log is open.
    pub(crate) fn start_tasks(&self, sweep_every: Duration) {
        self.start_copying();
        self.start_sweeping(sweep_every);
    }

    /// Begins to look, each time after `every`, for what no record names, if that is in a replicated store.
    fn start_sweeping(&self, every: Duration) {
        let inner = &self.inner;
        if self.is_replicated() && !every.is_zero() {
            let sweeping = sweep_again_and_again(inner.env.clone(), Arc::downgrade(inner), every);
            *inner.sweeping.task.lock() = Some(inner.env.spawn("log-sweep", sweeping));
        }
    }
}

async fn sweep_again_and_again(env: Env, log: Weak<LogInner>, every: Duration) {
    loop {
        // Nodes that were started together do not all look at the same time, if one does not know of the others.
        let half = u64::try_from(every.as_millis() / 2).unwrap_or(u64::MAX).max(1);
        env.sleep(every / 2 + Duration::from_millis(env.random_u64() % half)).await;
        let Some(inner) = log.upgrade() else { return };
        if !inner.sweeping.is_mine.load(Relaxed) {
            continue;
        }
        let (segments, judge) = (Arc::clone(&inner.segments), SegmentRecords::new(Arc::clone(&inner.meta)));
        // A sweep may take long, and keeps no log open.
        drop(inner);
        if let Err(why) = segments.sweep(&judge).await {
            tracing::warn!(why, "what no record names is left for the next sweep");
        }
    }
}

#[cfg(test)]
mod tests {
    use tailwater_cold::ColdCopy;
    use tailwater_format::{Offset, Position, SegmentNumber, ShardNumber, Term, TransactionId};
    use tailwater_meta::{Expect, Op};

    use super::*;
    use crate::stream::SegmentCold;

    fn shard_id(stream: u128) -> ShardId {
        ShardId { stream: StreamId(Uuid::from_u128(stream)), shard: ShardNumber(0) }
    }

    fn id(number: u64, term: u32) -> SegmentId {
        SegmentId { shard: shard_id(1), number: SegmentNumber(number), term: Term(term) }
    }

    fn shard(term: u32, next: u64) -> ShardRecord {
        ShardRecord { term: Term(term), next_segment: SegmentNumber(next), ..ShardRecord::default() }
    }

    fn record(number: u64, term: u32) -> SegmentRecord {
        SegmentRecord {
            number: SegmentNumber(number),
            term: Term(term),
            base_offset: Offset(0),
            next_offset: Offset(1),
            length: Position(1),
            first_transaction_id: TransactionId(0),
            last_transaction_id: TransactionId(0),
            created_ms: 0,
            sealed_ms: 0,
            cold: None,
        }
    }

    fn cold(is_released: bool) -> Option<SegmentCold> {
        Some(SegmentCold { copy: ColdCopy(1), is_released, restored_ms: None })
    }

    fn of(id: SegmentId, shard: ShardRecord, named: Option<SegmentRecord>) -> SegmentVerdict {
        judged(&id, &SegmentFacts { has_stream: true, shard, named })
    }

    const KEPT: SegmentVerdict = SegmentVerdict::Kept(KeptWhy::Named);

    fn not_named(term: u32, next: u64) -> SegmentVerdict {
        let (term, next) = (Term(term), SegmentNumber(next));
        SegmentVerdict::LeftOver(LeftOverWhy::NotNamed { term, next })
    }

    fn undecided(next: u64) -> SegmentVerdict {
        SegmentVerdict::Kept(KeptWhy::Undecided { next: SegmentNumber(next) })
    }

    fn owners(term: u32) -> SegmentVerdict {
        SegmentVerdict::Kept(KeptWhy::OwnersTerm { term: Term(term) })
    }

    #[test]
    fn of_a_stream_that_is_gone_all_is_left_over() {
        for shard in [ShardRecord::default(), shard(9, 9)] {
            let facts = SegmentFacts { has_stream: false, shard, named: None };
            assert_eq!(judged(&id(5, 7), &facts), SegmentVerdict::LeftOver(LeftOverWhy::StreamGone));
        }
    }

    #[test]
    fn what_the_shard_went_on_without_is_left_over() {
        assert_eq!(of(id(4, 6), shard(7, 5), None), not_named(7, 5), "removed, or never recorded");
        let twin = Some(record(4, 5));
        assert_eq!(of(id(4, 6), shard(7, 5), twin), not_named(7, 5), "another term's has its number");
    }

    #[test]
    fn what_records_name_stays_unless_only_cold_storage_has_it() {
        for term in [6, 7, 8] {
            assert_eq!(of(id(4, 6), shard(term, 5), Some(record(4, 6))), KEPT);
        }
        let copied = |is_released| Some(SegmentRecord { cold: cold(is_released), ..record(4, 6) });
        assert_eq!(of(id(4, 6), shard(7, 5), copied(false)), KEPT);
        let released = of(id(4, 6), shard(7, 5), copied(true));
        assert_eq!(released, SegmentVerdict::LeftOver(LeftOverWhy::Released));
        assert_eq!(of(id(4, 6), shard(6, 5), copied(true)), KEPT, "its owner deletes it");
    }

    #[test]
    fn what_a_claim_has_yet_to_find_stays_although_its_term_is_over() {
        // Claimed in term 7: what the owner of term 6 wrote last is recorded later.
        assert_eq!(of(id(5, 6), shard(7, 5), None), undecided(5));
        assert_eq!(of(id(9, 1), shard(7, 5), None), undecided(5));
    }

    #[test]
    fn what_is_of_the_owner_s_term_or_a_later_one_stays() {
        assert_eq!(of(id(5, 7), shard(7, 5), None), owners(7), "it is being written");
        assert_eq!(of(id(4, 7), shard(7, 5), None), owners(7), "it was removed: the owner deletes it");
        assert_eq!(of(id(5, 8), shard(7, 9), None), owners(7), "of a term that is not known here");
        assert_eq!(of(id(0, 1), ShardRecord::default(), None), owners(0), "no owner is recorded");
        let twin = Some(record(4, 5));
        assert_eq!(of(id(4, 7), shard(7, 5), twin), owners(7));
    }

    #[tokio::test]
    async fn what_metadata_say_is_put_together_and_what_can_t_be_read_stays() {
        let (env, dir) = (Env::real(), tempfile::tempdir().expect("a directory"));
        let (_journal, meta) = tailwater_meta::testing::open(&env, dir.path());
        let judge = SegmentRecords::new(Arc::clone(&meta));
        assert_eq!(judge.cluster().await, Ok(None));
        let damaged = SegmentId { shard: shard_id(2), ..id(0, 1) };
        let gone = SegmentId { shard: shard_id(3), ..id(0, 1) };
        let put = |key: String, value: &[u8]| Op::Put {
            key,
            value: bytes::Bytes::copy_from_slice(value),
            expect: Expect::Absent,
        };
        let cluster = Uuid::from_u128(8);
        let ops = vec![
            put(SEGMENTS_KEY.to_owned(), &SegmentsRecord { cluster }.encode()),
            // What a later version has written is a stream all the same.
            put(stream_key(shard_id(1).stream), b"\xff\xff"),
            put(shard_key(shard_id(1)), &shard(7, 5).encode()),
            put(segment_key(shard_id(1), SegmentNumber(4)), &record(4, 6).encode()),
            put(segment_key(shard_id(1), SegmentNumber(3)), b"\xff\xff"),
            put(stream_key(shard_id(2).stream), b""),
            put(shard_key(shard_id(2)), b"\xff\xff"),
        ];
        meta.commit(ops).await.expect("written");
        assert_eq!(judge.cluster().await, Ok(Some(cluster)));
        let found = [id(4, 6), gone, id(2, 6), damaged, id(5, 6), id(3, 6), id(5, 7), id(4, 5)];
        let verdicts = judge.judge(&found).await;
        let is_unknown =
            |verdict: &SegmentVerdict| matches!(verdict, SegmentVerdict::Kept(KeptWhy::Unknown(_)));
        assert!(is_unknown(&verdicts[3]) && is_unknown(&verdicts[5]), "{verdicts:?}");
        assert_eq!(verdicts[..3], [KEPT, SegmentVerdict::LeftOver(LeftOverWhy::StreamGone), not_named(7, 5)]);
        assert_eq!(verdicts[4], undecided(5));
        assert_eq!(verdicts[6..], [owners(7), not_named(7, 5)]);
    }
}
