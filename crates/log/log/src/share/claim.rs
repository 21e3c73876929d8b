//! Claims: shards that nobody owns, or whose owner is gone, become this process's.
//!
//! 1. The record gets this process's number and a higher term, if it is what it was when it was read. From here on the
//!    last owner changes no metadata of the shard, and begins no segment.
//! 2. The shard's records are read, and its segments are looked for: those of all shards that are claimed together at
//!    once.
//! 3. It is confirmed that the claim still holds: a process that was away for long between leaves the segments of the
//!    next owner alone.
//! 4. The store shuts the last owner out of the segments that it left open. Each shard waits by itself for what this
//!    needs. A claim that waits is given up when another process should have the shard, or has claimed it.
//! 5. Both are brought together, as after a crash ([`recover`](crate::shard::recover)), and the shard is opened in the
//!    term that was claimed.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use tailwater_env::{HashMap, HashSet, Instant, TaskGroup};
use tailwater_format::{SegmentId, ShardId, Term};
use tailwater_meta::{Expect, MetaError, Op, Versioned};
use tailwater_store::ShardTakeOver;
use tokio::sync::{Semaphore, watch};

use super::{ShardOwner, unavailable};
use crate::error::StreamError;
use crate::limits::RECOVERY_PARALLEL;
use crate::log::{Damaged, Log};
use crate::open::{KnownLog, KnownShard, found_segment};
use crate::producer::Producers;
use crate::shard::Recovered;
use crate::stream::{
    ShardRecord, StreamRecordError, prefixes_of_shard, producers_key, shard_key, stream_key,
};

/// How long after a claim that led to nothing there is another one.
const CLAIM_AGAIN: Duration = Duration::from_millis(1_500);
/// How long after a shard turned out to be damaged it is looked at again: its bytes may be back. Twice as long after
/// each time, as far as to [`DAMAGED_AGAIN_MAX`].
const DAMAGED_AGAIN: Duration = Duration::from_secs(30);
/// How long after a shard turned out to be damaged it is looked at again, at most. From then on its segments are also
/// looked for anew among all that there are: one may be back that was gone.
const DAMAGED_AGAIN_MAX: Duration = Duration::from_secs(3_600);
/// How long a shard that is taken over keeps others waiting: one whose bookies do not answer takes nobody's turn.
const TAKE_OVER_PATIENCE: Duration = Duration::from_secs(2);

/// A shard whose claim is committed.
#[derive(Clone, Copy)]
struct ClaimedShard {
    shard: ShardId,
    record: ShardRecord,
    version: u64,
    /// Nobody ever had it.
    is_new: bool,
    /// It was this process's before, too: nobody else has had it since.
    was_own: bool,
}

/// Claims that are under way. Its drop ends them.
pub(super) struct ShardClaims {
    log: Log,
    state: Arc<ClaimsState>,
    batches: TaskGroup,
}

struct ClaimsState {
    shards: Mutex<ClaimedShards>,
    /// Held by shards that are being taken over.
    turns: Semaphore,
}

#[derive(Default)]
struct ClaimedShards {
    under_way: HashMap<ShardId, ClaimUnderWay>,
    /// Those of which a claim led to nothing.
    failed: HashMap<ShardId, FailedClaim>,
    /// A batch has yet to find out what it has claimed.
    is_looking: bool,
}

/// A claim that led to nothing.
#[derive(Clone, Copy)]
struct FailedClaim {
    /// When there may be another one.
    again: Instant,
    /// How often the shard turned out to be damaged, and nothing else since.
    damaged: u32,
}

/// A claim that is under way.
struct ClaimUnderWay {
    /// Whether the record names this process.
    is_committed: bool,
    /// Tells that it is to end.
    over: watch::Sender<bool>,
}

/// How a claim ended.
enum Opened {
    Yes,
    /// It is not this process's, or nobody's any more.
    Gone,
    Failed,
    Damaged,
}

impl ShardClaims {
    pub(super) fn new(log: &Log) -> Self {
        let state = ClaimsState { shards: Mutex::default(), turns: Semaphore::new(RECOVERY_PARALLEL) };
        Self { log: log.clone(), state: Arc::new(state), batches: TaskGroup::default() }
    }

    /// How many shards are claimed and not open yet.
    pub(super) fn under_way(&self) -> usize {
        self.state.shards.lock().under_way.len()
    }

    pub(super) fn is_under_way(&self, shard: &ShardId) -> bool {
        self.state.shards.lock().under_way.contains_key(shard)
    }

    /// Ends a claim that is under way, and waits, unless the shard is this process's by now as far as its record is
    /// known, and is to be.
    pub(super) fn end_unless(&self, shard: &ShardId, is_to_be: bool, is_own: bool) {
        let shards = self.state.shards.lock();
        let Some(claim) = shards.under_way.get(shard) else { return };
        if !is_to_be || (claim.is_committed && !is_own) {
            claim.over.send_replace(true);
        }
    }

    /// Whether a claim of the shard may be tried: none has just failed.
    pub(super) fn may_try(&self, shard: &ShardId, now: Instant) -> bool {
        self.state.shards.lock().failed.get(shard).is_none_or(|failed| failed.again <= now)
    }

    /// Claims these shards, as far as nobody else has done so, and opens them. Waits for nothing. Where others are
    /// still looked for, nothing is done: the next look asks again.
    pub(super) fn begin(&mut self, shards: Vec<ShardId>) {
        let mut state = self.state.shards.lock();
        let now = self.log.inner.env.now();
        // What is tried again has failed before; what nobody tries any more is forgotten.
        state.failed.retain(|_, failed| failed.again + DAMAGED_AGAIN_MAX > now);
        if shards.is_empty() || std::mem::replace(&mut state.is_looking, true) {
            return;
        }
        let mut ends = ClaimEnds::default();
        for shard in &shards {
            let (over, is_over) = watch::channel(false);
            state.under_way.insert(*shard, ClaimUnderWay { is_committed: false, over });
            ends.0.insert(*shard, is_over);
        }
        drop(state);
        let (log, state) = (self.log.clone(), Arc::clone(&self.state));
        let batch = async move { log.claim_all(&state, shards, &ends).await };
        self.batches.spawn(&self.log.inner.env, "log-claims", batch);
    }
}

/// By which claims of a batch are told that they are to end.
#[derive(Default)]
struct ClaimEnds(HashMap<ShardId, watch::Receiver<bool>>);

impl ClaimEnds {
    /// Completes when the claim of this shard is to end.
    async fn of(&self, shard: &ShardId) {
        let Some(is_over) = self.0.get(shard) else { return std::future::pending().await };
        let told = is_over.clone().wait_for(|is_over| *is_over).await.is_ok();
        if !told {
            // Its claim has ended by itself.
            std::future::pending().await
        }
    }

    /// Completes when the claim of any of these is to end.
    async fn any_of(&self, shards: &BTreeSet<ShardId>) {
        let mut ends: FuturesUnordered<_> = shards.iter().map(|shard| self.of(shard)).collect();
        ends.next().await;
    }
}

impl ClaimsState {
    fn committed(&self, shard: &ShardId) {
        if let Some(claim) = self.shards.lock().under_way.get_mut(shard) {
            claim.is_committed = true;
        }
    }

    /// Whether the shard turned out to be damaged, and what was found of it is to be looked at again, and nothing else.
    fn is_looked_at_again(&self, shard: &ShardId) -> bool {
        let shards = self.shards.lock();
        let damaged = shards.failed.get(shard).map_or(0, |failed| failed.damaged);
        damaged > 0 && damaged_again(damaged) < DAMAGED_AGAIN_MAX
    }

    fn end(&self, shard: ShardId, opened: &Opened, now: Instant) {
        let mut shards = self.shards.lock();
        let before = shards.failed.remove(&shard).map_or(0, |failed| failed.damaged);
        let failed = match opened {
            Opened::Yes | Opened::Gone => None,
            Opened::Failed => Some(FailedClaim { again: now + CLAIM_AGAIN, damaged: before }),
            Opened::Damaged => {
                let damaged = before.saturating_add(1);
                Some(FailedClaim { again: now + damaged_again(damaged), damaged })
            }
        };
        shards.failed.extend(failed.map(|failed| (shard, failed)));
        shards.under_way.remove(&shard);
    }
}

/// How long a shard is left alone that turned out to be damaged so often.
fn damaged_again(times: u32) -> Duration {
    let doubled = 1_u32.checked_shl(times.saturating_sub(1)).unwrap_or(u32::MAX);
    DAMAGED_AGAIN.saturating_mul(doubled).min(DAMAGED_AGAIN_MAX)
}

impl Log {
    async fn claim_all(&self, state: &ClaimsState, shards: Vec<ShardId>, ends: &ClaimEnds) {
        let env = &self.inner.env;
        let known = self.claim_and_read(state, shards).await;
        let readable =
            known.iter().filter_map(|(claimed, known)| Some((claimed.shard, known.as_ref().ok()?)));
        let recorded: HashSet<SegmentId> =
            readable.flat_map(|(shard, known)| known.recorded(shard)).collect();
        let recorded = |id: &SegmentId| recorded.contains(id);
        let left = known.iter().filter(|(claimed, known)| !claimed.is_new && known.is_ok());
        let (again, anew): (Vec<_>, Vec<_>) = left
            .map(|(claimed, _)| claimed)
            .partition(|claimed| claimed.was_own && state.is_looked_at_again(&claimed.shard));
        let of = |claimed: Vec<&ClaimedShard>| claimed.iter().map(|claimed| claimed.shard).collect();
        let (again, anew): (BTreeSet<ShardId>, BTreeSet<ShardId>) = (of(again), of(anew));
        let left: BTreeSet<ShardId> = again.union(&anew).copied().collect();
        let found = async {
            let mut found = BTreeMap::new();
            if !anew.is_empty() {
                found = self.inner.segments.take_over(&anew, &recorded).await?;
            }
            if !again.is_empty() {
                found.extend(self.inner.segments.take_over_again(&again, &recorded).await?);
            }
            Ok::<_, String>(found)
        };
        let found = tokio::select! {
            biased;
            // All are looked for at once: if one of them is given up meanwhile, the others are claimed anew.
            () = ends.any_of(&left), if !left.is_empty() => Err("a claim is given up".to_owned()),
            found = found => found,
        };
        state.shards.lock().is_looking = false;
        let mut found = match found {
            Ok(found) => found,
            Err(why) => {
                tracing::warn!(why, "what was claimed is not opened yet");
                known.iter().for_each(|(claimed, _)| state.end(claimed.shard, &Opened::Failed, env.now()));
                return;
            }
        };
        let openings = known.into_iter().map(|(claimed, known)| {
            let taking = found.remove(&claimed.shard);
            self.open_claimed(state, claimed, known, taking, ends).map(move |opened| (claimed.shard, opened))
        });
        let mut openings: FuturesUnordered<_> = openings.collect();
        while let Some((shard, opened)) = openings.next().await {
            state.end(shard, &opened, env.now());
        }
    }

    /// Claims each of them, and reads what metadata has of those that are claimed.
    async fn claim_and_read(
        &self,
        state: &ClaimsState,
        shards: Vec<ShardId>,
    ) -> Vec<(ClaimedShard, Result<KnownShard, Damaged>)> {
        let claims = shards.into_iter().map(|shard| async move {
            let claimed = async {
                let Some(claimed) = self.claim(shard).await? else { return Ok(None) };
                Ok::<_, StreamError>(Some((claimed, self.known_of(&claimed).await?)))
            };
            (shard, claimed.await)
        });
        let claims: Vec<_> = claims.collect();
        let mut claims = stream::iter(claims).buffer_unordered(RECOVERY_PARALLEL);
        let mut known = Vec::new();
        while let Some((shard, claimed)) = claims.next().await {
            let now = self.inner.env.now();
            match claimed {
                Ok(Some(claimed)) => {
                    state.committed(&shard);
                    known.push(claimed);
                }
                Ok(None) => state.end(shard, &Opened::Gone, now),
                Err(StreamError::Damaged(why)) => {
                    tracing::error!(%shard, %why, "nobody owns the shard");
                    state.end(shard, &Opened::Damaged, now);
                }
                Err(error) => {
                    tracing::warn!(%shard, %error, "it is not this node's yet");
                    state.end(shard, &Opened::Failed, now);
                }
            }
        }
        known
    }

    /// The claim of one shard; `None` if it is not what it was thought to be.
    async fn claim(&self, shard: ShardId) -> Result<Option<ClaimedShard>, StreamError> {
        let (inner, key) = (&*self.inner, shard_key(shard));
        let Some(sharing) = &inner.sharing else { return Ok(None) };
        let thought = sharing.get(&shard).unwrap_or_default();
        let found = inner.meta.get(&key).await.map_err(unavailable)?;
        let decode = |found: &Versioned| ShardRecord::decode(&key, &found.value);
        let record = found.as_ref().map(decode).transpose();
        let before = record.map_err(|error| StreamError::Damaged(unreadable(&error)))?.unwrap_or_default();
        if before.owner != thought.owner && before.owner != inner.owner_number {
            sharing.note(shard, ShardOwner::of(&before));
            return Ok(None);
        }
        // Of a stream that was moved here the first term is a later one. The record has to have what entries will have.
        let stream = self.by_id(shard.stream)?;
        let term_min = if stream.record.source.is_none() { stream.record.term_min } else { Term(0) };
        let term = before.term.next().max(term_min);
        let record = ShardRecord { owner: inner.owner_number, term, ..before };
        let expect = found.map_or(Expect::Absent, |found| Expect::Version(found.version));
        let ops = vec![
            Op::Check { key: stream_key(shard.stream), expect: Expect::Present },
            Op::Put { key, value: record.encode(), expect },
        ];
        match inner.meta.commit(ops).await {
            Ok(version) => {
                sharing.note(shard, ShardOwner::of(&record));
                let (is_new, was_own) = (before.term == Term(0), before.owner == inner.owner_number);
                Ok(Some(ClaimedShard { shard, record, version, is_new, was_own }))
            }
            // Somebody else has claimed it, or its stream is deleted: both are told.
            Err(MetaError::Conflict { .. }) => Ok(None),
            Err(error) => Err(unavailable(error)),
        }
    }

    /// Has what is to be had of a claimed shard, and opens it, unless the claim is told to end before.
    async fn open_claimed(
        &self,
        state: &ClaimsState,
        claimed: ClaimedShard,
        known: Result<KnownShard, Damaged>,
        taking: Option<ShardTakeOver<'_>>,
        ends: &ClaimEnds,
    ) -> Opened {
        let ClaimedShard { shard, record, .. } = claimed;
        let recovered = match known {
            Err(damaged) => Ok(Err(damaged)),
            Ok(known) => tokio::select! {
                biased;
                () = ends.of(&shard) => {
                    tracing::info!(%shard, "what it waits for is another node's to wait for");
                    Err(Opened::Gone)
                }
                recovered = self.take_claimed(state, claimed, known, taking) => recovered,
            },
        };
        let opened = match recovered {
            Ok(recovered) => self.open_taken(shard, record, recovered).await,
            Err(opened) => opened,
        };
        if matches!(opened, Opened::Gone | Opened::Failed) {
            // Another process may write them from here on.
            self.inner.segments.forget(&shard);
        }
        opened
    }

    /// Shuts the last owner out, and recovers the shard. Nothing that it does is undone where it is dropped: the next
    /// owner does it again.
    async fn take_claimed(
        &self,
        state: &ClaimsState,
        claimed: ClaimedShard,
        known: KnownShard,
        taking: Option<ShardTakeOver<'_>>,
    ) -> Result<Result<(Recovered, Producers), Damaged>, Opened> {
        let ClaimedShard { shard, record, version, .. } = claimed;
        let (inner, key) = (&*self.inner, shard_key(shard));
        let mut found = Vec::new();
        if let Some(taking) = taking {
            // Never closed.
            let turn = state.turns.acquire().await;
            let check = Op::Check { key, expect: Expect::Version(version) };
            match inner.meta.commit(vec![check]).await {
                Ok(_) => {}
                // Its stream was deleted, or another process has claimed it: both are told.
                Err(MetaError::Conflict { .. }) => return Err(Opened::Gone),
                Err(error) => {
                    tracing::warn!(%shard, %error, "it can't be opened yet");
                    return Err(Opened::Failed);
                }
            }
            let mut taking = pin!(taking);
            let taken = inner.env.timeout(TAKE_OVER_PATIENCE, taking.as_mut()).await;
            drop(turn);
            let taken = match taken {
                Some(taken) => taken,
                None => {
                    tracing::warn!(%shard, "what the last owner left open is not closed yet");
                    taking.await
                }
            };
            found.extend(taken.iter().map(found_segment));
        }
        // Of a stream that was deleted meanwhile there is nothing to open.
        let stream = self.by_id(shard.stream).map_err(|_| Opened::Gone)?;
        let known = KnownShard { record, version, ..known };
        self.recover_or_refuse(&stream.record, shard, known, found).await.map_err(|error| {
            tracing::warn!(%shard, %error, "it can't be opened yet");
            Opened::Failed
        })
    }

    /// Opens a shard that is taken over, if it is still this process's.
    async fn open_taken(
        &self,
        shard: ShardId,
        record: ShardRecord,
        recovered: Result<(Recovered, Producers), Damaged>,
    ) -> Opened {
        let is_owner = |owner: ShardOwner| (owner.owner, owner.term) == (record.owner, record.term);
        if !self.shard_owner(shard).is_some_and(is_owner) {
            return Opened::Gone;
        }
        let is_damaged = recovered.is_err();
        match self.open_shard(shard, recovered).await {
            Ok(true) if is_damaged => Opened::Damaged,
            Ok(true) => {
                tracing::info!(%shard, term = %record.term, "it is this node's");
                Opened::Yes
            }
            Ok(false) => Opened::Gone,
            Err(error) => {
                tracing::warn!(%shard, %error, "it can't be opened");
                Opened::Failed
            }
        }
    }

    /// What metadata has of the shard's segments and producers: nobody else changes it any more.
    async fn known_of(&self, claimed: &ClaimedShard) -> Result<Result<KnownShard, Damaged>, StreamError> {
        let (meta, shard) = (&self.inner.meta, claimed.shard);
        let mut keys = Vec::new();
        if !claimed.is_new {
            for prefix in prefixes_of_shard(shard) {
                keys.extend(meta.list(&prefix).await.map_err(unavailable)?);
            }
            let key = producers_key(shard);
            keys.extend(meta.get(&key).await.map_err(unavailable)?.map(|found| (key, found)));
        }
        Ok(match KnownLog::read(&keys) {
            Ok(mut known) => Ok(known.shards.remove(&shard).unwrap_or_default()),
            Err(error) => {
                let why = unreadable(&error);
                tracing::error!(%shard, %why, "the shard is damaged and is not opened; the others are");
                Err(Damaged { why: format!("shard {shard}: {why}").into(), segments: Vec::new() })
            }
        })
    }
}

/// What is said of metadata that can't be read, and what to do.
fn unreadable(error: &StreamRecordError) -> Arc<str> {
    format!(
        "{error}: a later version has written it, or it is damaged; upgrade this node, or delete the stream"
    )
    .into()
}

#[cfg(test)]
mod tests {
    use tailwater_format::{ShardNumber, StreamId};

    use super::*;

    #[test]
    fn a_damaged_shard_is_left_alone_longer_each_time_and_its_segments_are_looked_for_anew_once_an_hour() {
        let state = ClaimsState { shards: Mutex::default(), turns: Semaphore::new(1) };
        let shard = ShardId { stream: StreamId(uuid::Uuid::from_u128(1)), shard: ShardNumber(0) };
        let mut now = Instant::default();
        let may_try = |now: Instant| {
            let shards = state.shards.lock();
            shards.failed.get(&shard).is_none_or(|failed| failed.again <= now)
        };
        let mut pauses = Vec::new();
        for _ in 0..9 {
            state.end(shard, &Opened::Damaged, now);
            let begun = now;
            while !may_try(now) {
                now = now + Duration::from_secs(30);
            }
            pauses.push((now.since(begun).as_secs(), state.is_looked_at_again(&shard)));
        }
        let seen = [30, 60, 120, 240, 480, 960, 1_920].map(|pause| (pause, true));
        assert_eq!(pauses[..7], seen);
        assert_eq!(pauses[7..], [(3_600, false); 2]);
        state.end(shard, &Opened::Failed, now);
        assert!(!may_try(now) && may_try(now + CLAIM_AGAIN), "metadata was away");
        state.end(shard, &Opened::Damaged, now);
        assert!(!may_try(now + Duration::from_secs(60)), "it was damaged before");
        state.end(shard, &Opened::Gone, now);
        state.end(shard, &Opened::Damaged, now);
        assert!(may_try(now + DAMAGED_AGAIN), "another one had it meanwhile");
    }
}
