//! What was committed: in memory to be answered, in metadata to be kept.
//!
//! One task writes everything, in the order in which it came. Whatever came while a commit of metadata was under way is
//! in the next one, all groups' together, so a thousand groups need no more syncs than one. Memory shows a change only
//! when it is durable, and before it is answered. Whoever is told that a change failed makes it again; a group's
//! record, of which nobody is told, goes into the next round instead, until it is written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tailwater_env::{Env, HashMap, Task};
use tailwater_format::StreamId;
use tailwater_meta::{Expect, Meta, MetaError, Op};
use tokio::sync::{mpsc, oneshot};

use super::records::{
    BlockId, Committed, GROUPS, GroupRecord, GroupRecordBlock, OFFSETS, decode_block, encode_block,
};

/// Changes that wait for the task, beyond which whoever brings one waits.
const QUEUE_MAX: usize = 1_024;
/// Partitions of the changes that go into one round.
const ROUND_PARTITIONS_MAX: usize = 16_384;
/// How long after a round that failed the records that nobody waits for are written again.
const RETRY: Duration = Duration::from_secs(1);
/// Operations and bytes of one commit of metadata: half of what it takes.
const COMMIT_OPS_MAX: usize = tailwater_meta::limits::OPS_MAX / 2;
const COMMIT_BYTES_MAX: usize = tailwater_meta::limits::COMMIT_BYTES_MAX / 2;

/// A partition.
pub(crate) type Partition = (StreamId, u32);
/// What a group committed.
pub(crate) type GroupOffsets = BTreeMap<Partition, Committed>;

/// What is to be changed.
#[derive(Debug)]
pub(crate) enum OffsetChange {
    Commit(GroupOffsets),
    /// Offsets that are given up, where they are still these: what was committed since then stays.
    Forget(GroupOffsets),
    /// What is kept of the group besides.
    Group(GroupRecord),
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

#[derive(Default)]
struct Memory {
    groups: HashMap<Arc<str>, GroupOffsets>,
    bytes: usize,
}

impl Memory {
    fn set(&mut self, group: &Arc<str>, partition: Partition, committed: Option<Committed>) {
        let offsets = self.groups.entry(Arc::clone(group)).or_default();
        self.bytes += committed.as_ref().map_or(0, Committed::bytes);
        let before = match committed {
            Some(committed) => offsets.insert(partition, committed),
            None => offsets.remove(&partition),
        };
        self.bytes -= before.map_or(0, |before| before.bytes());
        if offsets.is_empty() {
            self.groups.remove(group);
        }
    }
}

/// All groups' offsets.
pub(crate) struct Offsets {
    memory: Arc<RwLock<Memory>>,
    requests: mpsc::Sender<OffsetRequest>,
    _writer: Task,
}

impl Offsets {
    /// Reads what is kept; the groups' records too. Commits by which all that is committed would take more memory than
    /// `bytes_max` are refused.
    pub async fn open(
        env: &Env,
        meta: Arc<dyn Meta>,
        bytes_max: usize,
    ) -> Result<(Self, BTreeMap<Arc<str>, GroupRecord>), MetaError> {
        let mut memory = Memory::default();
        let mut groups = BTreeMap::new();
        for (key, value) in meta.list(GROUPS).await? {
            let Some(name) = key.strip_prefix(GROUPS) else { continue };
            match GroupRecord::decode(&value.value) {
                Ok(record) => _ = groups.insert(Arc::from(name), record),
                Err(error) => tracing::warn!(key, %error, "a group is passed over"),
            }
        }
        for (key, value) in meta.list(OFFSETS).await? {
            let Some((id, group)) = BlockId::parse(&key) else { continue };
            match decode_block(&value.value) {
                Ok(block) => {
                    for (partition, committed) in block {
                        memory.set(&Arc::from(group), (id.stream, partition), Some(committed));
                    }
                }
                Err(error) => tracing::warn!(key, %error, "committed offsets are passed over"),
            }
        }
        let memory = Arc::new(RwLock::new(memory));
        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        let writer = Writer { env: env.clone(), memory: Arc::clone(&memory), meta, bytes_max };
        let task = env.spawn("kafka-offsets", writer.run(queue));
        Ok((Self { memory, requests, _writer: task }, groups))
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

    /// Makes a group's record durable some time soon; whether there is room to wait for that.
    pub fn remember(&self, group: Arc<str>, record: GroupRecord) -> bool {
        let request = OffsetRequest { group, change: OffsetChange::Group(record), reply: None };
        self.requests.try_send(request).is_ok()
    }

    /// What a group committed of one partition.
    pub fn get(&self, group: &str, partition: Partition) -> Option<Committed> {
        self.memory.read().groups.get(group)?.get(&partition).cloned()
    }

    /// All that a group committed.
    pub fn of(&self, group: &str) -> GroupOffsets {
        self.memory.read().groups.get(group).cloned().unwrap_or_default()
    }

    /// Whether a group committed anything.
    pub fn has(&self, group: &str) -> bool {
        self.memory.read().groups.contains_key(group)
    }

    /// The groups that committed anything.
    pub fn groups(&self) -> Vec<Arc<str>> {
        self.memory.read().groups.keys().cloned().collect()
    }

    /// Memory that all of it takes, roughly.
    pub fn bytes(&self) -> usize {
        self.memory.read().bytes
    }
}

fn stopped() -> NotKept {
    MetaError::Unavailable("the node stops".to_owned()).into()
}

struct Writer {
    env: Env,
    memory: Arc<RwLock<Memory>>,
    meta: Arc<dyn Meta>,
    bytes_max: usize,
}

/// What one round changes.
#[derive(Default)]
struct OffsetRound {
    partitions: BTreeMap<(Arc<str>, Partition), Option<Committed>>,
    groups: BTreeMap<Arc<str>, Option<GroupRecord>>,
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
}

impl Writer {
    async fn run(self, mut queue: mpsc::Receiver<OffsetRequest>) {
        // Groups' records that could not be written, at most one for each group that there is.
        let mut unwritten = BTreeMap::new();
        loop {
            let first = match unwritten.is_empty() {
                true => queue.recv().await,
                false => tokio::select! {
                    biased;
                    first = queue.recv() => first,
                    () = self.env.sleep(RETRY) => None,
                },
            };
            if first.is_none() && queue.is_closed() {
                return;
            }
            // What comes now of one of these groups replaces what it was.
            let mut round = OffsetRound { groups: std::mem::take(&mut unwritten), ..OffsetRound::default() };
            if let Some(first) = first {
                self.add(&mut round, first);
            }
            while round.partitions.len() < ROUND_PARTITIONS_MAX
                && let Ok(next) = queue.try_recv()
            {
                self.add(&mut round, next);
            }
            let result = self.write(&round).await;
            match &result {
                Ok(()) => {}
                // Nor would it be taken the next time.
                Err(error @ MetaError::Invalid(_)) => {
                    tracing::error!(%error, "what is kept of groups is refused; report this as a defect");
                }
                Err(error) => {
                    tracing::warn!(%error, changes = round.replies.len(), "committed offsets can't be kept");
                    // A deletion was asked for by somebody who is told.
                    unwritten = std::mem::take(&mut round.groups);
                    unwritten.retain(|_, record| record.is_some());
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
        }
    }

    fn add(&self, round: &mut OffsetRound, request: OffsetRequest) {
        let OffsetRequest { group, change, reply } = request;
        match change {
            OffsetChange::Commit(offsets) => {
                let memory = self.memory.read();
                let growth = |(partition, offset): (&Partition, &Committed)| {
                    let before = round.now(&memory, &(Arc::clone(&group), *partition));
                    offset.bytes().saturating_sub(before.map_or(0, Committed::bytes))
                };
                let more: usize = offsets.iter().map(growth).sum();
                // What takes no more than before is always taken: who is there goes on.
                if more > 0 && memory.bytes + round.bytes + more > self.bytes_max {
                    let _ = reply.map(|reply| reply.send(Err(NotKept::Full)));
                    return;
                }
                round.bytes += more;
                let changes = offsets
                    .into_iter()
                    .map(|(partition, offset)| ((Arc::clone(&group), partition), Some(offset)));
                round.partitions.extend(changes);
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
            OffsetChange::Group(record) => _ = round.groups.insert(group, Some(record)),
            OffsetChange::DeleteUnused => {
                let memory = self.memory.read();
                let known = memory.groups.get(&group).into_iter().flat_map(BTreeMap::keys);
                let known = known.map(|partition| (Arc::clone(&group), *partition));
                let earlier = round.partitions.keys().filter(|(of, _)| *of == group).cloned();
                if known.chain(earlier).all(|key| round.now(&memory, &key).is_none()) {
                    round.groups.insert(group, None);
                }
            }
            OffsetChange::Delete => {
                let known = self
                    .memory
                    .read()
                    .groups
                    .get(&group)
                    .into_iter()
                    .flat_map(BTreeMap::keys)
                    .copied()
                    .collect::<Vec<_>>();
                let earlier = round.partitions.iter_mut().filter(|((of, _), _)| *of == group);
                earlier.for_each(|(_, committed)| *committed = None);
                for partition in known {
                    round.partitions.insert((Arc::clone(&group), partition), None);
                }
                round.groups.insert(group, None);
            }
        }
        round.replies.extend(reply);
    }

    /// Writes the blocks in which something changed, and the groups.
    async fn write(&self, round: &OffsetRound) -> Result<(), MetaError> {
        let (mut ops, mut bytes) = (Vec::new(), 0);
        for op in self.ops(round) {
            let more = op.key().len() + if let Op::Put { value, .. } = &op { value.len() } else { 0 };
            if ops.len() == COMMIT_OPS_MAX || bytes + more > COMMIT_BYTES_MAX {
                self.meta.commit(std::mem::take(&mut ops)).await?;
                bytes = 0;
            }
            bytes += more;
            ops.push(op);
        }
        if !ops.is_empty() {
            self.meta.commit(ops).await?;
        }
        Ok(())
    }

    fn ops(&self, round: &OffsetRound) -> Vec<Op> {
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
            match block.is_empty() {
                true => Op::Delete { key, expect },
                false => Op::Put { key, value: encode_block(&block).into(), expect },
            }
        });
        let groups = round.groups.iter().map(|(group, record)| {
            let key = format!("{GROUPS}{group}");
            match record {
                None => Op::Delete { key, expect },
                Some(record) => Op::Put { key, value: record.encode().into(), expect },
            }
        });
        blocks.chain(groups).collect()
    }
}
