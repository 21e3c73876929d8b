//! Shards that several processes share: each owns a part of them, which the others take over when it is gone.
//!
//! ```text
//!   nobody's --claim--> claimed --shut out, recover--> owned --release--> nobody's
//!                                                        \-- its process is gone: claimed by another one
//! ```
//!
//! Who owns a shard stands in the shard's record, beside its term, and both change in one commit. Every other commit
//! about the shard expects that record as its owner knows it. So of two that take themselves for the owner one changes
//! nothing. What a claim is followed by, the store's [`tailwater_store::StoreContract::take_over`], shuts the last
//! owner out of the segments.
//!
//! What holds:
//! - **A claim comes first.** Segments and records are read after it is committed: its last owner changes neither any
//!   more.
//! - **Deterministic.** Which of the processes should own a shard follows from the shard and the processes alone
//!   ([`heir`]). One that comes or goes moves about its own part, and nothing else.
//! - **In order.** A process that lives gives a shard up before another one claims it. One that is not seen for
//!   [`GONE_AFTER_MIN`] is taken for dead; if it is not, the claim shuts it out all the same.
//! - **Nothing waits for one shard.** What a claim has to wait for, such as bookies, it waits for by itself
//!   ([`ShardClaims`]); a look goes on.
//! - **Nothing is known by heart.** Streams, and who owns what, follow metadata's watches; what was missed is listed.

mod claim;
mod seen;
mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, FuturesUnordered};
use parking_lot::RwLock;
use tailwater_env::{BoxFuture, HashMap, Instant};
use tailwater_format::{ShardId, ShardNumber, StreamId, Term};
use tailwater_meta::{Event, Expect, MetaError, Op, Watch, WatchEnd};
use tokio::sync::oneshot;
use twox_hash::XxHash3_64;

use self::claim::ShardClaims;
pub use self::seen::{GONE_AFTER_MIN, MembersSeen};
use crate::error::StreamError;
use crate::log::{ClosedShard, Log, ShardHandle};
use crate::owner::OwnerRequest;
use crate::stream::{Key, ShardRecord, shard_key};
use crate::sweep::SWEEPER;

/// Prefixes of the keys that are followed.
const STREAMS: &str = "log/stream/";
const SHARDS: &str = "log/shard/";
/// Shards that one look gives up.
const RELEASES_AT_A_TIME: usize = 64;
/// How often it is looked whether somebody has removed what deleted streams have left.
const DELETED_LOOK: Duration = Duration::from_secs(5);
/// How long one look waits until shards are given up. It goes on with the next one.
const RELEASE_PATIENCE: Duration = Duration::from_millis(500);

/// A process that shares shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardMember {
    /// Its name for ever, which says what it should own.
    pub id: String,
    /// [`Log::owner_number`] of its log, by which records know it.
    pub owner: u64,
    /// Whether it is to own anything: one that is about to go is not.
    pub takes: bool,
}

/// Who owns a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardOwner {
    /// [`Log::owner_number`] of its owner; 0 is nobody.
    pub owner: u64,
    /// The highest term that was claimed.
    pub term: Term,
}

/// Who owns what, as far as is known.
#[derive(Debug, Default)]
pub(crate) struct SharedShards {
    owners: RwLock<HashMap<ShardId, ShardOwner>>,
}

impl SharedShards {
    pub(crate) fn get(&self, shard: &ShardId) -> Option<ShardOwner> {
        self.owners.read().get(shard).copied()
    }

    /// Takes note of what a record says; what is older than what is known is passed over.
    pub(crate) fn note(&self, shard: ShardId, now: ShardOwner) {
        let mut owners = self.owners.write();
        let known = owners.entry(shard).or_default();
        if known.term <= now.term {
            *known = now;
        }
    }

    pub(crate) fn remove(&self, shard: &ShardId) {
        self.owners.write().remove(shard);
    }

    fn retain(&self, is_kept: impl Fn(&ShardId) -> bool) {
        self.owners.write().retain(|shard, _| is_kept(shard));
    }
}

impl ShardOwner {
    pub(crate) fn of(record: &ShardRecord) -> Self {
        Self { owner: record.owner, term: record.term }
    }
}

/// Which of `members` should own what is called `key`; `None` if none of them takes anything. The others keep what they
/// have when one comes or goes (rendezvous hashing).
pub fn heir<'a>(members: &'a [ShardMember], key: &[u8]) -> Option<&'a ShardMember> {
    let takers = members.iter().filter(|member| member.takes);
    takers.max_by_key(|member| {
        let mut named = member.id.as_bytes().to_vec();
        named.push(0);
        named.extend_from_slice(key);
        (XxHash3_64::oneshot(&named), &member.id)
    })
}

/// Whether the member of that number is about to go.
pub fn is_going(members: &[ShardMember], owner: u64) -> bool {
    members.iter().any(|member| member.owner == owner && !member.takes)
}

/// What a process does to own its part of the shards of all streams.
pub struct ShardSharing {
    log: Log,
    watches: Option<[Watch; 2]>,
    /// Streams are to be listed again.
    is_behind: bool,
    seen: MembersSeen,
    /// Shards that are being given up.
    leaving: BTreeMap<ShardId, ShardHandle>,
    /// How many of them the log was told of last.
    told_of: usize,
    /// Deleted streams of which something may be left that another process is to remove.
    deleted: BTreeSet<StreamId>,
    /// When it was looked at last what of them metadata still has.
    deleted_looked: Instant,
    claims: ShardClaims,
}

impl std::fmt::Debug for ShardSharing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShardSharing({} are given up)", self.leaving.len())
    }
}

/// What a look finds to be done.
#[derive(Default)]
struct SharingWork {
    lost: Vec<ShardId>,
    releases: Vec<ShardId>,
    disowned: Vec<ShardId>,
    claims: Vec<ShardId>,
}

impl ShardSharing {
    /// Of a log that was opened for several processes.
    ///
    /// # Errors
    /// `Refused` of any other log.
    pub fn new(log: &Log) -> Result<Self, StreamError> {
        if log.inner.sharing.is_none() {
            return Err(StreamError::Refused("the log is one process's at a time".to_owned()));
        }
        Ok(Self {
            log: log.clone(),
            watches: None,
            is_behind: true,
            seen: MembersSeen::default(),
            leaving: BTreeMap::new(),
            told_of: 0,
            deleted: BTreeSet::new(),
            deleted_looked: Instant::default(),
            claims: ShardClaims::new(log),
        })
    }

    /// Who was seen when. Whoever looks who is there tells it here, more often than this looks, which may take long.
    pub fn seen(&self) -> MembersSeen {
        self.seen.clone()
    }

    /// Completes when streams, or owners, may have changed. Dropping it loses nothing.
    pub async fn changed(&mut self) {
        let Some([streams, shards]) = &mut self.watches else { return std::future::pending().await };
        let me = self.log.inner.owner_number;
        loop {
            let event = tokio::select! {
                biased;
                event = streams.next() => event,
                event = shards.next() => event,
            };
            match event {
                Ok(event) if event.key.starts_with(STREAMS) => {
                    self.is_behind = true;
                    return;
                }
                Ok(event) => {
                    // Of what this process owns most is its own doing.
                    if note(&self.log, &event).is_some_and(|owner| owner.owner != me) {
                        return;
                    }
                }
                Err(WatchEnd::Lagged | WatchEnd::Closed) => {
                    self.watches = None;
                    return;
                }
            }
        }
    }

    /// Brings what this process owns closer to what it should own of what there is, beside `members`, of which it is
    /// one, and which were [seen](ShardSharing::seen). Answers how many shards it has still to give up.
    ///
    /// # Errors
    /// What metadata answers. The next call goes on.
    pub fn look<'a>(&'a mut self, members: &'a [ShardMember]) -> BoxFuture<'a, Result<usize, StreamError>> {
        Box::pin(self.look_once(members))
    }

    async fn look_once(&mut self, members: &[ShardMember]) -> Result<usize, StreamError> {
        self.follow(members).await?;
        // One sweeps for all. Where two take themselves for it, neither does harm.
        let sweeper = heir(members, SWEEPER).map(|heir| heir.owner);
        self.log.inner.sweeping.is_mine.store(sweeper == Some(self.log.owner_number()), Ordering::Relaxed);
        let work = self.work(members);
        for shard in work.lost {
            tracing::warn!(%shard, "another node owns the shard by now");
            _ = told(shard, self.give_away(shard).await);
        }
        for shard in work.releases {
            match self.log.take_away(shard).await {
                Ok(handle) => self.leaving.extend(handle.map(|handle| (shard, handle))),
                Err(error) => _ = told(shard, Err(error)),
            }
        }
        let undone = self.release().await + self.disown_all(work.disowned).await;
        self.claims.begin(work.claims);
        Ok(self.leaving.len() + undone + self.claims.under_way())
    }

    /// Records that shards are nobody's that are not open here. How many still are this process's.
    async fn disown_all(&self, shards: Vec<ShardId>) -> usize {
        let log = &self.log;
        let disowned = shards.into_iter().map(|shard| async move {
            // One that could not be opened is closed to everybody, with the reason. It is the next owner's to say.
            let disowned = match log.take_away(shard).await {
                Ok(_) => log.disown(shard).await,
                Err(error) => Err(error),
            };
            told(shard, disowned)
        });
        let disowned: Vec<_> = disowned.collect();
        let undone = stream::iter(disowned).buffer_unordered(RELEASES_AT_A_TIME);
        undone.filter(|is_done| std::future::ready(!is_done)).count().await
    }

    /// Follows metadata: lists anew where events were missed.
    async fn follow(&mut self, members: &[ShardMember]) -> Result<(), StreamError> {
        let log = self.log.clone();
        let mut is_lagging = self.watches.is_none();
        for watch in self.watches.iter_mut().flatten() {
            while let Some(event) = watch.try_next() {
                match event {
                    Ok(event) if event.key.starts_with(STREAMS) => self.is_behind = true,
                    Ok(event) => _ = note(&log, &event),
                    Err(_) => {
                        is_lagging = true;
                        break;
                    }
                }
            }
        }
        let meta = &log.inner.meta;
        if is_lagging {
            self.watches = None;
            // Before the list, so that nothing is missed between.
            let streams = meta.watch(STREAMS).await.map_err(unavailable)?;
            let shards = meta.watch(SHARDS).await.map_err(unavailable)?;
            for (key, found) in meta.list(SHARDS).await.map_err(unavailable)? {
                note(&log, &Event { key, value: Some(found) });
            }
            // Of what was deleted before this process came, or while it did not follow, it does not know otherwise.
            self.deleted.extend(log.deleted_streams().await?);
            (self.watches, self.is_behind) = (Some([streams, shards]), true);
        }
        if self.is_behind {
            log.follow_streams(&mut self.deleted).await?;
            log.forget_owners();
            self.is_behind = false;
        }
        self.remove_deleted(members).await
    }

    /// Removes what is left of deleted streams whose heir this process is. Whoever has deleted one does it, too, unless
    /// it has ended before. The heir may be gone before it has done it, or not know of it: so the others remember the
    /// stream for as long as metadata say that something may be left.
    async fn remove_deleted(&mut self, members: &[ShardMember]) -> Result<(), StreamError> {
        if self.deleted.is_empty() {
            return Ok(());
        }
        let log = self.log.clone();
        let is_mine = |stream: &StreamId| {
            heir(members, stream.0.as_bytes()).is_some_and(|heir| heir.owner == log.owner_number())
        };
        self.deleted.extract_if(.., is_mine).for_each(|stream| log.remove_left(stream));
        let now = log.inner.env.now();
        if !self.deleted.is_empty() && now.since(self.deleted_looked) >= DELETED_LOOK {
            let left = log.deleted_streams().await?;
            self.deleted.retain(|stream| left.contains(stream));
            self.deleted_looked = now;
        }
        Ok(())
    }

    fn work(&mut self, members: &[ShardMember]) -> SharingWork {
        let inner = &*self.log.inner;
        let (me, now) = (inner.owner_number, inner.env.now());
        // One that is about to go waits for nothing.
        let is_settled = self.seen.is_settled() || is_going(members, me);
        let Some(sharing) = &inner.sharing else { return SharingWork::default() };
        let mut work = SharingWork::default();
        let streams = inner.streams.read();
        for stream in streams.by_id.values() {
            for (number, handle) in (0..).map(ShardNumber).zip(stream.shards()) {
                let shard = ShardId { stream: stream.record.id, shard: number };
                let owner = sharing.get(&shard).unwrap_or_default().owner;
                let heir = heir(members, &key_of(shard));
                let is_heir = heir.is_some_and(|heir| heir.owner == me);
                let goes = !is_heir && heir.is_some() && is_settled;
                if self.claims.is_under_way(&shard) {
                    self.claims.end_unless(&shard, !goes, owner == me);
                    continue;
                }
                if self.leaving.contains_key(&shard) {
                    continue;
                }
                match handle.slot_or_closed() {
                    Ok(_) | Err(ClosedShard::Damaged(_)) if owner != me => work.lost.push(shard),
                    Ok(_) => {
                        if goes && work.releases.len() < RELEASES_AT_A_TIME {
                            work.releases.push(shard);
                        }
                    }
                    Err(_) if !is_heir && owner == me => work.disowned.push(shard),
                    Err(_) => {
                        let is_free = owner == me || self.seen.is_gone(owner);
                        if is_heir && is_free && self.claims.may_try(&shard, now) {
                            work.claims.push(shard);
                        }
                    }
                }
            }
        }
        work
    }

    /// A shard that another process has claimed.
    async fn give_away(&mut self, shard: ShardId) -> Result<(), StreamError> {
        let Some(handle) = self.log.take_away(shard).await? else {
            // What was found of one that was damaged is of no use any more.
            self.log.inner.segments.forget(&shard);
            return Ok(());
        };
        self.log.abandon(shard, &handle).await
    }

    /// Goes on with what is being given up, all at once, and waits for some time. How many are given up, and their
    /// records still say that they are this process's.
    async fn release(&mut self) -> usize {
        let log = &self.log;
        let releases = self.leaving.iter().map(|(shard, handle)| async move {
            let released = log.release_whole(handle).await;
            (*shard, released.map(drop))
        });
        let mut releases: FuturesUnordered<_> = releases.collect();
        let mut over = Vec::new();
        let gather = async {
            while let Some(released) = releases.next().await {
                over.push(released);
            }
        };
        let all = log.inner.env.timeout(RELEASE_PATIENCE, gather).await;
        drop(releases);
        let mut disowned = FuturesUnordered::new();
        for (shard, released) in over {
            let Some(handle) = self.leaving.remove(&shard) else { continue };
            disowned.push(async move {
                let given_up = match released {
                    Ok(()) => {
                        log.inner.segments.forget(&shard);
                        log.disown(shard).await.inspect(|()| tracing::info!(%shard, "given up"))
                    }
                    Err(error) => {
                        tracing::warn!(%shard, %error, "it is not this node's any more");
                        log.abandon(shard, &handle).await
                    }
                };
                told(shard, given_up)
            });
        }
        let mut undone = 0;
        while let Some(is_done) = disowned.next().await {
            undone += usize::from(!is_done);
        }
        drop(disowned);
        let shards = if all.is_none() { self.leaving.len() } else { 0 };
        // Once for each number of them: a look is twice a second.
        if std::mem::replace(&mut self.told_of, shards) != shards && shards > 0 {
            tracing::warn!(shards, "not given up yet: what they have to write takes long");
        }
        undone
    }
}

/// Says why something is not done with a shard; whether it is. The next look goes on.
fn told(shard: ShardId, done: Result<(), StreamError>) -> bool {
    if let Err(error) = &done {
        tracing::warn!(%shard, %error, "its owner does not change yet");
    }
    done.is_ok()
}

/// By what a shard's owner is found.
fn key_of(shard: ShardId) -> Vec<u8> {
    let mut key = shard.stream.0.as_bytes().to_vec();
    key.extend_from_slice(&shard.shard.0.to_be_bytes());
    key
}

/// Takes note of what a shard's record says by now; who owns the shard, if it says so.
fn note(log: &Log, event: &Event) -> Option<ShardOwner> {
    let (Some(Key::Shard(shard)), Some(sharing)) = (Key::parse(&event.key), &log.inner.sharing) else {
        return None;
    };
    let Some(found) = &event.value else {
        // It is gone with its stream.
        sharing.remove(&shard);
        return None;
    };
    match ShardRecord::decode(&event.key, &found.value) {
        Ok(record) => {
            sharing.note(shard, ShardOwner::of(&record));
            Some(ShardOwner::of(&record))
        }
        Err(error) => {
            tracing::warn!(%error, "a shard's owner is not known");
            None
        }
    }
}

/// Who owns what.
impl Log {
    /// The number by which records know what is this log's, another one after each start.
    pub fn owner_number(&self) -> u64 {
        self.inner.owner_number
    }

    /// Whether several processes share the shards.
    pub fn is_shared(&self) -> bool {
        self.inner.sharing.is_some()
    }

    /// Who owns a shard, as far as is known; `None` where one process has all of them, and of a shard that nobody ever
    /// had.
    pub fn shard_owner(&self, shard: ShardId) -> Option<ShardOwner> {
        self.inner.sharing.as_ref()?.get(&shard)
    }

    /// The epoch in which a shard is led whose tail has this term. It never goes back: where several processes share
    /// the shards, or have shared them before, a claim began one that the tail need not show.
    pub fn leader_term(&self, shard: ShardId, tail: Term) -> Term {
        let claimed = self.shard_owner(shard).map_or(Term(0), |owner| owner.term);
        let streams = self.inner.streams.read();
        let opened = streams.by_id.get(&shard.stream).and_then(|stream| stream.shard(shard.shard));
        opened.map_or(Term(0), |shard| shard.opened).max(claimed).max(tail)
    }

    /// How many shards are open here.
    pub fn shards_owned(&self) -> usize {
        self.whole_shards().len()
    }

    /// Forgets who owns shards of streams that are not there: that their records went may have been missed. What is
    /// known of an owner is younger than what is known of streams: a stream is older than its shards' records.
    fn forget_owners(&self) {
        let streams = self.inner.streams.read();
        if let Some(sharing) = &self.inner.sharing {
            sharing.retain(|shard| streams.by_id.contains_key(&shard.stream));
        }
    }

    /// Closes a shard for everybody who comes; its handle, if it was open.
    async fn take_away(&self, shard: ShardId) -> Result<Option<ShardHandle>, StreamError> {
        let _naming = self.inner.naming.lock().await;
        let known = self.inner.streams.read().by_id.get(&shard.stream).cloned();
        let Some(known) = known else { return Ok(None) };
        let Some(handle) = known.shard(shard.shard).cloned() else { return Ok(None) };
        let closed = handle.closed_elsewhere();
        self.inner.streams.write().replace(known.with_shard(shard.shard, closed));
        handle.wake();
        Ok(handle.slot_or_closed().is_ok().then_some(handle))
    }

    /// Has the owner drop a shard that is somebody else's: nothing of it is touched.
    async fn abandon(&self, shard: ShardId, handle: &ShardHandle) -> Result<(), StreamError> {
        if let Ok(slot) = handle.slot_or_closed() {
            let (reply, done) = oneshot::channel();
            let request = OwnerRequest::Abandon(slot, reply);
            self.inner.owners[handle.owner].send(request).await.map_err(|_| StreamError::Closed)?;
            done.await.map_err(|_| StreamError::Closed)?;
        }
        self.inner.segments.forget(&shard);
        Ok(())
    }

    /// Records that a shard is nobody's, if it is this process's.
    async fn disown(&self, shard: ShardId) -> Result<(), StreamError> {
        let key = shard_key(shard);
        let Some(found) = self.inner.meta.get(&key).await.map_err(unavailable)? else { return Ok(()) };
        let record = ShardRecord::decode(&key, &found.value)
            .map_err(|error| StreamError::Unavailable(error.to_string()))?;
        let mut now = ShardOwner::of(&record);
        if record.owner == self.inner.owner_number {
            let value = ShardRecord { owner: 0, ..record }.encode();
            let put = Op::Put { key, value, expect: Expect::Version(found.version) };
            self.inner.meta.commit(vec![put]).await.map_err(unavailable)?;
            now.owner = 0;
        }
        if let Some(sharing) = &self.inner.sharing {
            sharing.note(shard, now);
        }
        Ok(())
    }
}

fn unavailable(error: MetaError) -> StreamError {
    StreamError::Unavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: u64) -> ShardMember {
        ShardMember { id: format!("node-{number}"), owner: number, takes: true }
    }

    fn owners(members: &[ShardMember]) -> Vec<u64> {
        (0..3_000_u32).map(|key| heir(members, &key.to_be_bytes()).expect("one takes").owner).collect()
    }

    #[test]
    fn each_gets_its_part_and_one_that_goes_moves_nothing_but_its_own() {
        let three = [member(1), member(2), member(3)];
        let before = owners(&three);
        for member in &three {
            let part = before.iter().filter(|owner| **owner == member.owner).count();
            assert!((800..1_200).contains(&part), "{part} of 3000");
        }
        let after = owners(&three[..2]);
        let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
        assert!(moved.clone().count() > 0 && moved.clone().all(|(before, _)| *before == 3));
        let drained = [member(1), member(2), ShardMember { takes: false, ..member(3) }];
        assert_eq!(owners(&drained), after);
        assert_eq!(heir(&drained[2..], b"key"), None);
    }

    #[test]
    fn what_is_older_than_what_is_known_of_an_owner_is_passed_over() {
        let shared = SharedShards::default();
        let shard =
            ShardId { stream: tailwater_format::StreamId(uuid::Uuid::from_u128(1)), shard: ShardNumber(0) };
        let owner = |owner, term| ShardOwner { owner, term: Term(term) };
        shared.note(shard, owner(1, 2));
        shared.note(shard, owner(2, 1));
        assert_eq!(shared.get(&shard), Some(owner(1, 2)));
        shared.note(shard, owner(0, 2));
        assert_eq!(shared.get(&shard), Some(owner(0, 2)), "it was given up");
        shared.remove(&shard);
        assert_eq!(shared.get(&shard), None);
    }
}
