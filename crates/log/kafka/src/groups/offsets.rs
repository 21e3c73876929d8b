//! What was committed: in memory to be answered, in metadata to be kept. So are groups themselves, with their members.
//!
//! One task writes everything, in the order in which it came. Whatever came while a commit of metadata was under way is
//! in the next one, all groups' together, so a thousand groups need no more syncs than one. Memory shows a change only
//! when it is durable, and before it is answered. Whoever is told that a change failed makes it again; what groups are
//! goes into the next round instead, until it is written.
//!
//! What a group is by now replaces what it was before and is not written yet. All of it is in one commit, unless that
//! can't hold it. So what metadata has of a group is what it was at some time, and who waits until it is durable waits
//! for all that came before.
//!
//! An offset that is deleted is remembered as deleted, where other clusters have the stream, and they are told so as
//! they are told of offsets: else they would tell it here again. It is remembered for as long as offsets of groups that
//! nobody is in: by then others have none left that are older.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tailwater_env::{Env, HashMap, Task};
use tailwater_format::StreamId;
use tailwater_format::call::{CopiedOffset, CopiedOffsets};
use tailwater_format::limits::COPIED_OFFSETS_MAX;
use tailwater_meta::{Expect, Meta, MetaError, Op, Versioned};
use tokio::sync::{Notify, mpsc, oneshot};

use super::members::{MEMBERS, MemberPart, parse_member_key};
use super::records::{
    BlockId, Committed, GROUPS, GroupRecord, GroupRecordBlock, OFFSETS, decode_block, encode_block,
};

/// Changes that wait for the task, beyond which whoever brings one waits.
const QUEUE_MAX: usize = 1_024;
/// Partitions of the changes that go into one round.
const ROUND_PARTITIONS_MAX: usize = 16_384;
/// How long after a round that failed what groups are is written again.
const RETRY: Duration = Duration::from_secs(1);
/// Operations of one commit of metadata: half of what it takes.
const COMMIT_OPS_MAX: usize = tailwater_meta::limits::OPS_MAX / 2;
/// Bytes of their keys: half of what it takes.
const COMMIT_KEYS_BYTES_MAX: usize = tailwater_meta::limits::KEYS_BYTES_MAX / 2;
/// Bytes of their keys and values: few enough for one request to ZooKeeper.
const COMMIT_BYTES_MAX: usize = tailwater_meta::limits::COMMIT_BYTES_MAX / 8;

/// Deleted offsets that are remembered at most; of more than that other clusters are not told.
const DELETED_MAX: usize = 100_000;
/// How far the clock of another cluster may be ahead of this one's, in milliseconds, for times of commits to be taken
/// as they are told.
pub(super) const CLOCK_AHEAD_MS_MAX: i64 = 3_600_000;
/// Bytes of offsets that another cluster is told in one answer, about.
const TOLD_BYTES_MAX: usize = 1 << 20;

/// A partition.
pub(crate) type Partition = (StreamId, u32);
/// What a group committed.
pub(crate) type GroupOffsets = BTreeMap<Partition, Committed>;

/// What is to be changed.
#[derive(Debug)]
pub(crate) enum OffsetChange {
    Commit(GroupOffsets),
    /// What was committed in another cluster, where it is later than what is committed here by then.
    Follow(GroupOffsets),
    /// Offsets that are over, where they are still these: what was committed since then stays.
    Forget(GroupOffsets),
    /// Offsets that somebody deletes, where they are still these.
    DeleteOffsets(GroupOffsets),
    /// The group, with all that it committed.
    Delete,
    /// The group, if it has committed nothing, or nothing that is left.
    DeleteUnused,
}

/// Why a change was not made, or not said to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotKept {
    #[error("committed offsets take as much memory as they may")]
    Full,
    #[error(transparent)]
    Meta(#[from] MetaError),
}

struct OffsetRequest {
    group: Arc<str>,
    change: OffsetChange,
    reply: Option<OffsetReply>,
}

type OffsetReply = oneshot::Sender<Result<(), NotKept>>;

/// What is to be kept of a group by now, by keys of metadata; `None` for what goes.
pub(crate) type GroupChanges = BTreeMap<String, Option<Bytes>>;

/// What metadata has of a group besides offsets.
#[derive(Debug)]
pub(crate) struct KeptGroup {
    pub record: GroupRecord,
    pub members: BTreeMap<MemberPart, Bytes>,
}

/// What of groups is not written yet: at most what is kept of them.
#[derive(Default)]
struct Unkept {
    changes: BTreeMap<Arc<str>, GroupChanges>,
    /// How often something was to be kept.
    count: u64,
    /// Who waits until it is.
    replies: Vec<OffsetReply>,
}

/// What groups are, on its way to the task.
#[derive(Default)]
struct GroupsToKeep {
    unkept: Mutex<Unkept>,
    /// How much of it is durable, as [`Unkept::count`] counts.
    kept: AtomicU64,
    wake: Notify,
}

/// Bytes that committed offsets take in memory: of all groups of the node, whichever of its coordinators has them.
pub(crate) type OffsetBytes = Arc<AtomicUsize>;

/// What metadata has of all groups.
pub(crate) struct StoredGroups {
    groups: Vec<(String, Versioned)>,
    offsets: Vec<(String, Versioned)>,
    members: Vec<(String, Versioned)>,
}

impl StoredGroups {
    /// Reads it.
    pub async fn read(meta: &dyn Meta) -> Result<Self, MetaError> {
        let groups = meta.list(GROUPS).await?;
        Ok(Self { groups, offsets: meta.list(OFFSETS).await?, members: meta.list(MEMBERS).await? })
    }
}

#[derive(Default)]
struct Memory {
    groups: HashMap<Arc<str>, GroupOffsets>,
    bytes: usize,
    /// With those of others.
    all_bytes: OffsetBytes,
    /// How many of the offsets are only remembered as deleted.
    deleted: usize,
    /// How often an offset was committed since the start.
    count: u64,
    /// For each offset that is there, that count when it was: by stream, so that other clusters are told what is new.
    changed: BTreeMap<(StreamId, u64), (Arc<str>, u32)>,
    counts: HashMap<(Arc<str>, Partition), u64>,
}

impl Memory {
    fn of(all_bytes: OffsetBytes) -> Self {
        let mut memory = Self::default();
        memory.all_bytes = all_bytes;
        memory
    }

    fn set(&mut self, group: &Arc<str>, partition: Partition, committed: Option<Committed>) {
        self.note(group, partition, committed.is_some());
        let offsets = self.groups.entry(Arc::clone(group)).or_default();
        let now = committed.as_ref().map_or(0, Committed::bytes);
        self.deleted += usize::from(committed.as_ref().is_some_and(Committed::is_deleted));
        let before = match committed {
            Some(committed) => offsets.insert(partition, committed),
            None => offsets.remove(&partition),
        };
        self.deleted -= usize::from(before.as_ref().is_some_and(Committed::is_deleted));
        let before = before.map_or(0, |before| before.bytes());
        self.bytes = self.bytes + now - before;
        self.all_bytes.fetch_add(now, Ordering::Relaxed);
        self.all_bytes.fetch_sub(before, Ordering::Relaxed);
        if offsets.is_empty() {
            self.groups.remove(group);
        }
    }

    fn note(&mut self, group: &Arc<str>, (stream, shard): Partition, is_there: bool) {
        let key = (Arc::clone(group), (stream, shard));
        let before = match is_there {
            true => {
                self.count += 1;
                self.changed.insert((stream, self.count), (Arc::clone(group), shard));
                self.counts.insert(key, self.count)
            }
            false => self.counts.remove(&key),
        };
        if let Some(before) = before {
            self.changed.remove(&(stream, before));
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.all_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Whether other clusters are told what groups commit of a stream.
pub(crate) type IsCopied = Box<dyn Fn(StreamId) -> bool + Send + Sync>;

/// All groups' offsets.
pub(crate) struct Offsets {
    memory: Arc<RwLock<Memory>>,
    /// A random number for this start.
    life: u64,
    groups: Arc<GroupsToKeep>,
    copied: Arc<OnceLock<IsCopied>>,
    requests: mpsc::Sender<OffsetRequest>,
    _writer: Task,
}

impl Offsets {
    /// Has what is `stored` of those groups that belong to it; of their members too. Commits by which all that is
    /// committed, in `all_bytes` of memory so far, would take more than `bytes_max` are refused.
    pub fn open(
        env: &Env,
        meta: Arc<dyn Meta>,
        (all_bytes, bytes_max): (OffsetBytes, usize),
        stored: &StoredGroups,
        belongs: &dyn Fn(&str) -> bool,
    ) -> (Self, BTreeMap<Arc<str>, KeptGroup>) {
        let mut memory = Memory::of(all_bytes);
        let (mut groups, mut unread) = (BTreeMap::new(), BTreeSet::new());
        for (key, value) in &stored.groups {
            let Some(name) = key.strip_prefix(GROUPS).filter(|name| belongs(name)) else { continue };
            match GroupRecord::decode(&value.value) {
                Ok(record) => {
                    let members = BTreeMap::new();
                    groups.insert(Arc::from(name), KeptGroup { record, members });
                }
                Err(error) => {
                    unread.insert(name);
                    tracing::warn!(key, %error, "the group is passed over: upgrade this node, or delete the group");
                }
            }
        }
        for (key, value) in &stored.offsets {
            let Some((id, group)) = BlockId::parse(key).filter(|(_, group)| belongs(group)) else {
                continue;
            };
            match decode_block(&value.value) {
                Ok(block) => {
                    for (partition, committed) in block {
                        memory.set(&Arc::from(group), (id.stream, partition), Some(committed));
                    }
                }
                Err(error) => tracing::warn!(
                    key, %error,
                    "committed offsets are passed over: upgrade this node, or commit them anew"
                ),
            }
        }
        let to_keep = Arc::new(GroupsToKeep::default());
        for (key, value) in &stored.members {
            let Some((part, name)) = parse_member_key(key).filter(|(_, name)| belongs(name)) else {
                continue;
            };
            match groups.get_mut(name) {
                Some(group) => _ = group.members.insert(part, value.value.clone()),
                // A later version has written its group.
                None if unread.contains(name) => {}
                // Its group was removed.
                None => {
                    let mut unkept = to_keep.unkept.lock();
                    unkept.changes.entry(name.into()).or_default().insert(key.clone(), None);
                }
            }
        }
        let memory = Arc::new(RwLock::new(memory));
        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        let copied = Arc::<OnceLock<IsCopied>>::default();
        let writer = Writer {
            copied: Arc::clone(&copied),
            env: env.clone(),
            memory: Arc::clone(&memory),
            groups: Arc::clone(&to_keep),
            meta,
            bytes_max,
        };
        let task = env.spawn("kafka-offsets", writer.run(queue));
        let life = env.random_u64().max(1);
        (Self { memory, life, groups: to_keep, copied, requests, _writer: task }, groups)
    }

    /// Has what is deleted be remembered for other clusters, in the streams of which that says so.
    pub fn are_copied(&self, is_copied: IsCopied) {
        // The first one counts.
        let _ = self.copied.set(is_copied);
    }

    /// Makes a change durable; after a failure of metadata it may become so later.
    ///
    /// # Errors
    /// `Full` of a commit that needs more memory than is left.
    pub async fn change(&self, group: Arc<str>, change: OffsetChange) -> Result<(), NotKept> {
        let (reply, done) = oneshot::channel();
        let request = OffsetRequest { group, change, reply: Some(reply) };
        self.requests.send(request).await.map_err(|_| stopped())?;
        done.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Makes durable soon what a group is by now. Answers what [`Offsets::is_kept`] is to be asked for.
    pub fn keep(&self, group: &Arc<str>, changes: GroupChanges) -> u64 {
        let mut unkept = self.groups.unkept.lock();
        unkept.changes.entry(Arc::clone(group)).or_default().extend(changes);
        unkept.count += 1;
        self.groups.wake.notify_one();
        unkept.count
    }

    /// Whether so much of what groups are is durable.
    pub fn is_kept(&self, count: u64) -> bool {
        self.groups.kept.load(Ordering::Acquire) >= count
    }

    /// Is answered when all that was to be kept of groups before this is durable, or could not be written for now.
    pub fn kept(&self) -> oneshot::Receiver<Result<(), NotKept>> {
        let (reply, done) = oneshot::channel();
        self.groups.unkept.lock().replies.push(reply);
        self.groups.wake.notify_one();
        done
    }

    /// What a group committed of one partition.
    pub fn get(&self, group: &str, partition: Partition) -> Option<Committed> {
        self.newest(group, partition).filter(|committed| !committed.is_deleted())
    }

    /// The same, also that it is deleted.
    pub fn newest(&self, group: &str, partition: Partition) -> Option<Committed> {
        self.memory.read().groups.get(group)?.get(&partition).cloned()
    }

    /// All that a group committed.
    pub fn of(&self, group: &str) -> GroupOffsets {
        let memory = self.memory.read();
        let offsets = memory.groups.get(group).into_iter().flatten();
        let there = offsets.filter(|(_, committed)| !committed.is_deleted());
        there.map(|(partition, committed)| (*partition, committed.clone())).collect()
    }

    /// What is remembered as deleted, by group.
    pub fn deleted(&self) -> Vec<(Arc<str>, GroupOffsets)> {
        let memory = self.memory.read();
        if memory.deleted == 0 {
            return Vec::new();
        }
        let of_group = |(group, offsets): (&Arc<str>, &GroupOffsets)| {
            let deleted = offsets.iter().filter(|(_, committed)| committed.is_deleted());
            let deleted: GroupOffsets = deleted.map(|(partition, at)| (*partition, at.clone())).collect();
            (!deleted.is_empty()).then(|| (Arc::clone(group), deleted))
        };
        memory.groups.iter().filter_map(of_group).collect()
    }

    /// What was committed of a stream since another cluster asked: what that was answered has `life` and `after`. So
    /// many that they are one answer.
    pub fn since(&self, stream: StreamId, life: u64, after: u64) -> CopiedOffsets {
        let memory = self.memory.read();
        // It counts from its start.
        let after = if life == self.life { after } else { 0 };
        let mut told = CopiedOffsets { life: self.life, upto: after, offsets: Vec::new() };
        let mut bytes = 0;
        let changed = memory.changed.range((stream, after.saturating_add(1))..=(stream, u64::MAX));
        for ((_, count), (group, shard)) in changed.take(COPIED_OFFSETS_MAX) {
            let committed = memory.groups.get(group).and_then(|offsets| offsets.get(&(stream, *shard)));
            let Some(committed) = committed.cloned() else { continue };
            bytes += committed.bytes() + group.len();
            if bytes > TOLD_BYTES_MAX && !told.offsets.is_empty() {
                break;
            }
            told.upto = *count;
            told.offsets.push(CopiedOffset {
                group: (**group).to_owned(),
                shard: *shard,
                offset: committed.offset,
                leader_epoch: committed.leader_epoch,
                committed_ms: committed.committed_ms,
                expires_ms: committed.expires_ms,
                metadata: committed.metadata,
            });
        }
        told
    }

    /// Whether a group committed anything.
    pub fn has(&self, group: &str) -> bool {
        self.memory.read().groups.get(group).is_some_and(has_any)
    }

    /// The groups that committed anything.
    pub fn groups(&self) -> Vec<Arc<str>> {
        let memory = self.memory.read();
        memory
            .groups
            .iter()
            .filter(|(_, offsets)| has_any(offsets))
            .map(|(name, _)| Arc::clone(name))
            .collect()
    }

    /// Memory that all of it takes, roughly.
    pub fn bytes(&self) -> usize {
        self.memory.read().bytes
    }
}

/// Whether some are there.
fn has_any(offsets: &GroupOffsets) -> bool {
    offsets.values().any(|committed| !committed.is_deleted())
}

fn stopped() -> NotKept {
    MetaError::Unavailable("the node stops".to_owned()).into()
}

/// Operations that are to be committed together.
#[derive(Default)]
struct NextCommit {
    ops: Vec<Op>,
    keys_bytes: usize,
    bytes: usize,
}

impl NextCommit {
    fn bytes_of(op: &Op) -> usize {
        op.key().len() + if let Op::Put { value, .. } = op { value.len() } else { 0 }
    }

    /// Whether these may be in it, too.
    fn has_room(&self, more: &[Op]) -> bool {
        let keys_bytes: usize = more.iter().map(|op| op.key().len()).sum();
        let bytes: usize = more.iter().map(Self::bytes_of).sum();
        self.ops.len() + more.len() <= COMMIT_OPS_MAX
            && self.keys_bytes + keys_bytes <= COMMIT_KEYS_BYTES_MAX
            && self.bytes + bytes <= COMMIT_BYTES_MAX
    }

    fn push(&mut self, op: Op) {
        self.keys_bytes += op.key().len();
        self.bytes += Self::bytes_of(&op);
        self.ops.push(op);
    }

    fn take(&mut self) -> Vec<Op> {
        std::mem::take(self).ops
    }
}

struct Writer {
    env: Env,
    memory: Arc<RwLock<Memory>>,
    groups: Arc<GroupsToKeep>,
    meta: Arc<dyn Meta>,
    copied: Arc<OnceLock<IsCopied>>,
    bytes_max: usize,
}

/// What one round changes.
#[derive(Default)]
struct OffsetRound {
    partitions: BTreeMap<(Arc<str>, Partition), Option<Committed>>,
    groups: BTreeMap<Arc<str>, GroupChanges>,
    /// Groups that are deleted, whatever was to be kept of them before.
    deleted: BTreeSet<Arc<str>>,
    /// [`Unkept::count`] when what groups are was taken.
    count: u64,
    /// How much more memory its commits take than what they replace.
    bytes: usize,
    replies: Vec<OffsetReply>,
}

impl OffsetRound {
    /// What is committed once what is in the round so far is.
    fn now<'a>(&'a self, memory: &'a Memory, key: &(Arc<str>, Partition)) -> Option<&'a Committed> {
        match self.partitions.get(key) {
            Some(changed) => changed.as_ref(),
            None => memory.groups.get(&key.0)?.get(&key.1),
        }
    }

    /// What is there of a group, then.
    fn there(&self, memory: &Memory, group: &Arc<str>) -> Vec<((Arc<str>, Partition), Committed)> {
        let known = memory.groups.get(group).into_iter().flat_map(BTreeMap::keys).copied();
        let changed = self.partitions.keys().filter(|(of, _)| of == group).map(|(_, partition)| *partition);
        let all: BTreeSet<Partition> = known.chain(changed).collect();
        let there = all.into_iter().filter_map(|partition| {
            let key = (Arc::clone(group), partition);
            let committed = self.now(memory, &key).filter(|committed| !committed.is_deleted())?.clone();
            Some((key, committed))
        });
        there.collect()
    }
}

impl Writer {
    async fn run(self, mut queue: mpsc::Receiver<OffsetRequest>) {
        let mut is_behind = false;
        loop {
            let first = tokio::select! {
                biased;
                first = queue.recv() => first,
                () = self.groups.wake.notified() => None,
                () = self.env.sleep(RETRY), if is_behind => None,
            };
            let is_last = first.is_none() && queue.is_closed();
            let mut round = OffsetRound::default();
            if let Some(first) = first {
                self.add(&mut round, first);
            }
            while round.partitions.len() < ROUND_PARTITIONS_MAX
                && let Ok(next) = queue.try_recv()
            {
                self.add(&mut round, next);
            }
            // Behind what was in the queue: a deletion that is there is of a group as it was before.
            {
                let mut unkept = self.groups.unkept.lock();
                round.groups = std::mem::take(&mut unkept.changes);
                round.count = unkept.count;
                round.replies.append(&mut unkept.replies);
            }
            let result = self.write(&round).await;
            is_behind = false;
            match &result {
                Ok(()) => self.groups.kept.store(round.count, Ordering::Release),
                // Nor would it be taken the next time.
                Err(error @ MetaError::Invalid(_)) => {
                    tracing::error!(%error, "what is kept of groups is refused; report this as a defect");
                }
                Err(error) => {
                    tracing::warn!(%error, changes = round.replies.len(), "committed offsets can't be kept");
                    self.give_back(std::mem::take(&mut round.groups));
                    is_behind = true;
                }
            }
            if result.is_ok() {
                let mut memory = self.memory.write();
                for ((group, partition), committed) in round.partitions {
                    memory.set(&group, partition, committed);
                }
            }
            for reply in round.replies {
                // Whoever asked may have gone.
                let _ = reply.send(result.clone().map_err(NotKept::from));
            }
            if is_last {
                return;
            }
        }
    }

    /// Has what could not be written of groups be in the next round, unless there is something newer by then.
    fn give_back(&self, groups: BTreeMap<Arc<str>, GroupChanges>) {
        let mut unkept = self.groups.unkept.lock();
        for (group, mut changes) in groups {
            let newer = unkept.changes.entry(group).or_default();
            changes.append(newer);
            *newer = changes;
        }
    }

    /// Takes in what is committed, if there is memory for it.
    fn commit(
        &self,
        round: &mut OffsetRound,
        group: &Arc<str>,
        offsets: GroupOffsets,
        reply: Option<OffsetReply>,
    ) {
        let memory = self.memory.read();
        let growth = |(partition, offset): (&Partition, &Committed)| {
            let before = round.now(&memory, &(Arc::clone(group), *partition));
            offset.bytes().saturating_sub(before.map_or(0, Committed::bytes))
        };
        let more: usize = offsets.iter().map(growth).sum();
        // What takes no more than before is always taken: who is there goes on.
        let all_bytes = memory.all_bytes.load(Ordering::Relaxed);
        if more > 0 && all_bytes + round.bytes + more > self.bytes_max {
            let _ = reply.map(|reply| reply.send(Err(NotKept::Full)));
            return;
        }
        round.bytes += more;
        let changes =
            offsets.into_iter().map(|(partition, offset)| ((Arc::clone(group), partition), Some(offset)));
        round.partitions.extend(changes);
        round.replies.extend(reply);
    }

    /// What a deletion leaves of what was committed.
    fn deleted(&self, memory: &Memory, (stream, _): Partition, before: &Committed) -> Option<Committed> {
        let is_copied = self.copied.get().is_some_and(|is_copied| is_copied(stream));
        let is_remembered = is_copied && memory.deleted < DELETED_MAX;
        is_remembered.then(|| before.deleted(self.env.wall_ms()))
    }

    fn add(&self, round: &mut OffsetRound, request: OffsetRequest) {
        let OffsetRequest { group, change, reply } = request;
        match change {
            OffsetChange::Commit(mut offsets) => {
                let memory = self.memory.read();
                let newest_ms = self.env.wall_ms().saturating_add(CLOCK_AHEAD_MS_MAX);
                for (partition, committed) in &mut offsets {
                    // Clusters go by what is later: each commit is later than what was there, also where the clock that
                    // it came from is ahead. The clock here may have been set back since; that counts for deletions.
                    let now = round.now(&memory, &(Arc::clone(&group), *partition));
                    if let Some(before) = now.filter(|now| now.is_deleted() || now.committed_ms <= newest_ms)
                    {
                        let later_ms = before.committed_ms.saturating_add(1);
                        committed.committed_ms = committed.committed_ms.max(later_ms);
                    }
                }
                drop(memory);
                return self.commit(round, &group, offsets, reply);
            }
            OffsetChange::Follow(mut offsets) => {
                let memory = self.memory.read();
                offsets.retain(|partition, theirs| {
                    let ours = round.now(&memory, &(Arc::clone(&group), *partition));
                    let has_room = !theirs.is_deleted() || ours.is_some() || memory.deleted < DELETED_MAX;
                    has_room && ours.is_none_or(|ours| ours.committed_ms < theirs.committed_ms)
                });
                drop(memory);
                return self.commit(round, &group, offsets, reply);
            }
            OffsetChange::Forget(offsets) => {
                let memory = self.memory.read();
                for (partition, seen) in offsets {
                    let key = (Arc::clone(&group), partition);
                    if round.now(&memory, &key) == Some(&seen) {
                        round.partitions.insert(key, None);
                    }
                }
            }
            OffsetChange::DeleteOffsets(offsets) => {
                let memory = self.memory.read();
                for (partition, seen) in offsets {
                    let key = (Arc::clone(&group), partition);
                    if round.now(&memory, &key) == Some(&seen) {
                        round.partitions.insert(key, self.deleted(&memory, partition, &seen));
                    }
                }
            }
            OffsetChange::DeleteUnused => {
                if round.there(&self.memory.read(), &group).is_empty() {
                    round.deleted.insert(group);
                }
            }
            OffsetChange::Delete => {
                let memory = self.memory.read();
                for (key, committed) in round.there(&memory, &group) {
                    let left = self.deleted(&memory, key.1, &committed);
                    round.partitions.insert(key, left);
                }
                round.deleted.insert(group);
            }
        }
        round.replies.extend(reply);
    }

    /// Writes the blocks in which something changed, and the groups.
    async fn write(&self, round: &OffsetRound) -> Result<(), MetaError> {
        let mut next = NextCommit::default();
        for together in self.ops(round) {
            if !next.has_room(&together) && !next.ops.is_empty() {
                self.meta.commit(next.take()).await?;
            }
            for op in together {
                if !next.has_room(std::slice::from_ref(&op)) && !next.ops.is_empty() {
                    self.meta.commit(next.take()).await?;
                }
                next.push(op);
            }
        }
        if !next.ops.is_empty() {
            self.meta.commit(next.ops).await?;
        }
        Ok(())
    }

    /// What is to be written; what belongs together is in one commit, if that can hold it.
    fn ops(&self, round: &OffsetRound) -> Vec<Vec<Op>> {
        let mut blocks: BTreeMap<(&Arc<str>, BlockId), GroupRecordBlock> = BTreeMap::new();
        let memory = self.memory.read();
        for ((group, (stream, partition)), committed) in &round.partitions {
            let id = BlockId::of(*stream, *partition);
            let block = blocks.entry((group, id.clone())).or_insert_with(|| {
                let (first, last) = id.partitions().into_inner();
                let range = (*stream, first)..=(*stream, last);
                let known =
                    memory.groups.get(group).into_iter().flat_map(|offsets| offsets.range(range.clone()));
                known.map(|((_, partition), committed)| (*partition, committed.clone())).collect()
            });
            match committed {
                Some(committed) => _ = block.insert(*partition, committed.clone()),
                None => _ = block.remove(partition),
            }
        }
        // This task alone writes these keys.
        let expect = Expect::Any;
        let blocks = blocks.into_iter().map(|((group, id), block)| {
            let key = id.key(group);
            vec![match block.is_empty() {
                true => Op::Delete { key, expect },
                false => Op::Put { key, value: encode_block(&block).into(), expect },
            }]
        });
        let groups = round.groups.iter().map(|(group, changes)| {
            let is_deleted =
                |key: &str| round.deleted.contains(group) && key.strip_prefix(GROUPS) == Some(&**group);
            let changes = changes.iter().filter(|(key, _)| !is_deleted(key));
            let ops = changes.map(|(key, value)| match value.clone() {
                None => Op::Delete { key: key.clone(), expect },
                Some(value) => Op::Put { key: key.clone(), value, expect },
            });
            ops.collect()
        });
        let deleted = round.deleted.iter();
        let deleted = deleted.map(|group| vec![Op::Delete { key: format!("{GROUPS}{group}"), expect }]);
        blocks.chain(groups).chain(deleted).collect()
    }
}
