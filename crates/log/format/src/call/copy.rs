//! The messages by which a stream is copied from cluster to cluster.
//!
//! Whoever copies opens a session, and then keeps several [`CopyNext`] under way: each is answered once, in order, as
//! soon as there is something. So many answers may be on their way at a time.

use bytes::Bytes;
use prost::Message;

/// Begins to copy shards of a stream.
#[derive(Clone, PartialEq, Message)]
pub struct CopyOpen {
    /// The stream's UUID, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub stream: Bytes,
    /// The cluster that copies.
    #[prost(string, tag = "2")]
    pub cluster: String,
    /// The number of the plan by which it does.
    #[prost(uint64, tag = "3")]
    pub plan: u64,
    /// Where to begin: each shard once.
    #[prost(message, repeated, tag = "4")]
    pub from: Vec<CopyFrom>,
    /// The lineage of the copy: the last forced move of the source that it knows of, and 0 before the first.
    #[prost(fixed64, tag = "5")]
    pub lineage: u64,
    /// Which of the cluster's operations of this stream it is for: the session takes the place of another one of this
    /// number. 0 is that of a node which copies all shards by itself.
    #[prost(fixed64, tag = "6")]
    pub operation: u64,
}

/// Where the copy of a shard ends.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CopyFrom {
    /// The shard.
    #[prost(uint32, tag = "1")]
    pub shard: u32,
    /// Offset of the next record.
    #[prost(uint64, tag = "2")]
    pub next_offset: u64,
}

/// A session.
#[derive(Clone, PartialEq, Message)]
pub struct CopyOpened {
    /// Its number, for [`CopyNext`].
    #[prost(uint64, tag = "1")]
    pub session: u64,
    /// The clusters on the way from the source to the one that answers, both included.
    #[prost(string, repeated, tag = "2")]
    pub way: Vec<String>,
}

/// Asks for the next entries.
#[derive(Clone, PartialEq, Message)]
pub struct CopyNext {
    /// [`CopyOpened::session`].
    #[prost(fixed64, tag = "1")]
    pub session: u64,
    /// Shards that go on from these places, with the answer to this question: each once.
    #[prost(message, repeated, tag = "2")]
    pub from: Vec<CopyFrom>,
    /// Shards that take no entries, from the answer to this question on until they are in a later `from`.
    #[prost(uint32, repeated, tag = "3")]
    pub hold: Vec<u32>,
}

/// Entries as they are stored. After a while without any the answer is empty: the one that asks knows that the session
/// lives.
#[derive(Clone, PartialEq, Message)]
pub struct CopyEntries {
    /// Counts the answers of a session from 0.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Shards with news.
    #[prost(message, repeated, tag = "2")]
    pub shards: Vec<CopiedShard>,
    /// As [`CopyOpened::way`], as it is by now.
    #[prost(string, repeated, tag = "3")]
    pub way: Vec<String>,
}

/// The news of a shard.
#[derive(Clone, PartialEq, Message)]
pub struct CopiedShard {
    /// The shard.
    #[prost(uint32, tag = "1")]
    pub shard: u32,
    /// Whole entries, one after the other: those that follow the ones that the session has sent before, or that the
    /// copy had. The first may begin before what was asked for, and begins later where the records between were
    /// removed.
    #[prost(bytes = "bytes", tag = "2")]
    pub entries: Bytes,
    /// First offset of the shard that was not removed.
    #[prost(uint64, tag = "3")]
    pub log_start: u64,
    /// Offset after the last record there is.
    #[prost(uint64, tag = "4")]
    pub next_offset: u64,
    /// Bytes of the shard that the session has not sent yet.
    #[prost(uint64, tag = "5")]
    pub behind_bytes: u64,
    /// Why it can't send more of this shard for now; empty if it can.
    #[prost(string, tag = "6")]
    pub why: String,
}

/// Tells of a stream's copy tree, and of the stream.
#[derive(Clone, PartialEq, Message)]
pub struct CopyPlan {
    /// The plan, as whoever copies stores it.
    #[prost(bytes = "bytes", tag = "1")]
    pub plan: Bytes,
}

/// A plan is stored.
#[derive(Clone, PartialEq, Message)]
pub struct CopyPlanKept {
    /// The number of the plan that is stored now: a later one, if that was known.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// The cluster that answers.
    #[prost(string, tag = "2")]
    pub cluster: String,
}

/// Asks how far the copy of a stream is.
#[derive(Clone, PartialEq, Message)]
pub struct CopyState {
    /// The stream's UUID, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub stream: Bytes,
}

/// How far it is.
#[derive(Clone, PartialEq, Message)]
pub struct CopyHops {
    /// The hop to the cluster that answers; none where that has no copy by any plan.
    #[prost(message, optional, tag = "1")]
    pub hop: Option<CopyHop>,
    /// Where the shards of the stream end there; none where it has none.
    #[prost(message, repeated, tag = "2")]
    pub ends: Vec<CopyEnd>,
    /// How often the source has moved by the plan that it knows.
    #[prost(uint64, tag = "3")]
    pub moves: u64,
}

/// Where a shard ends in a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CopyEnd {
    /// Offset after its last record.
    #[prost(uint64, tag = "1")]
    pub next_offset: u64,
    /// The term of that.
    #[prost(uint32, tag = "2")]
    pub term: u32,
    /// First offset that was not removed.
    #[prost(uint64, tag = "3")]
    pub log_start: u64,
}

/// Asks what groups have committed of a stream since it was asked last.
#[derive(Clone, PartialEq, Message)]
pub struct CopyOffsets {
    /// The stream's UUID, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub stream: Bytes,
    /// [`CopiedOffsets::life`] of the last answer; 0 before the first.
    #[prost(fixed64, tag = "2")]
    pub life: u64,
    /// [`CopiedOffsets::upto`] of that.
    #[prost(uint64, tag = "3")]
    pub after: u64,
}

/// What they have committed.
#[derive(Clone, PartialEq, Message)]
pub struct CopiedOffsets {
    /// A random number for each start of the node: what it counts begins anew.
    #[prost(fixed64, tag = "1")]
    pub life: u64,
    /// How far its count of commits is with these.
    #[prost(uint64, tag = "2")]
    pub upto: u64,
    /// Some of them; none if there is nothing new.
    #[prost(message, repeated, tag = "3")]
    pub offsets: Vec<CopiedOffset>,
}

/// What a group has committed of a shard.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CopiedOffset {
    /// The group.
    #[prost(string, tag = "1")]
    pub group: String,
    /// The shard.
    #[prost(uint32, tag = "2")]
    pub shard: u32,
    /// The offset; -1 where what was committed is deleted.
    #[prost(int64, tag = "3")]
    pub offset: i64,
    /// The term of the record before, or -1.
    #[prost(sint32, tag = "4")]
    pub leader_epoch: i32,
    /// When it was committed, or deleted, wall time in ms of the cluster where it was.
    #[prost(int64, tag = "5")]
    pub committed_ms: i64,
    /// When it is over, wall time in ms, where whoever committed it has said so.
    #[prost(int64, optional, tag = "6")]
    pub expires_ms: Option<i64>,
    /// What the group said with it.
    #[prost(string, tag = "7")]
    pub metadata: String,
}

/// Asks a cluster to be the source of a stream from here on. The one that asks was it, and takes no more records.
#[derive(Clone, PartialEq, Message)]
pub struct CopyLead {
    /// The plan by which it is, as it is stored.
    #[prost(bytes = "bytes", tag = "1")]
    pub plan: Bytes,
    /// Where each shard ended at the source before, and its term: the copy has to have all of it.
    #[prost(message, repeated, tag = "2")]
    pub ends: Vec<CopyEnd>,
}

/// A hop of a copy tree, as its lower end sees it.
#[derive(Clone, PartialEq, Message)]
pub struct CopyHop {
    /// The cluster that is copied from.
    #[prost(string, tag = "1")]
    pub from: String,
    /// The cluster that answers.
    #[prost(string, tag = "2")]
    pub to: String,
    /// The number of the plan.
    #[prost(uint64, tag = "3")]
    pub plan: u64,
    /// Whether a session is open.
    #[prost(bool, tag = "4")]
    pub is_copying: bool,
    /// Why not, or why the last one ended; empty if none did.
    #[prost(string, tag = "5")]
    pub why: String,
    /// Records that the upper end was last known to have and that are not durable here.
    #[prost(uint64, tag = "6")]
    pub behind_records: u64,
    /// Bytes of them.
    #[prost(uint64, tag = "7")]
    pub behind_bytes: u64,
    /// From the timestamp of the last record that became durable here until it did, in ms; none before the first.
    #[prost(int64, optional, tag = "8")]
    pub delay_ms: Option<i64>,
    /// Records that were copied since the node's start.
    #[prost(uint64, tag = "9")]
    pub records: u64,
    /// Bytes of entries that were.
    #[prost(uint64, tag = "10")]
    pub bytes: u64,
    /// Sessions that were opened since then.
    #[prost(uint64, tag = "11")]
    pub sessions: u64,
    /// Shards that are not copied for now, while the others are.
    #[prost(uint32, tag = "12")]
    pub waiting_shards: u32,
}

/// A worker of the cluster tells what it runs. It is answered when that is not what it is to run, and after a while
/// otherwise.
#[derive(Clone, PartialEq, Message)]
pub struct CopyReport {
    /// Its name, which no other worker of the cluster has.
    #[prost(string, tag = "1")]
    pub worker: String,
    /// A random number of its start.
    #[prost(fixed64, tag = "2")]
    pub start: u64,
    /// It is to end, and waits until it may.
    #[prost(bool, tag = "3")]
    pub is_leaving: bool,
    /// What it runs.
    #[prost(message, repeated, tag = "4")]
    pub running: Vec<CopyRunning>,
    /// [`CopyTasks::number`] of the answer by which it goes, and 0 before the first.
    #[prost(fixed64, tag = "5")]
    pub number: u64,
}

/// An operation that a worker runs.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CopyRunning {
    /// The stream's UUID, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub stream: Bytes,
    /// The part of its shards.
    #[prost(uint32, tag = "2")]
    pub part: u32,
}

/// What a worker is to run, and nothing else.
#[derive(Clone, PartialEq, Message)]
pub struct CopyTasks {
    /// Another one with each change.
    #[prost(fixed64, tag = "1")]
    pub number: u64,
    /// The operations.
    #[prost(message, repeated, tag = "2")]
    pub tasks: Vec<CopyTask>,
    /// A worker that is to end may do so: others run what it ran.
    #[prost(bool, tag = "3")]
    pub may_go: bool,
}

/// An operation as a worker is to run it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CopyTask {
    /// The stream's UUID, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub stream: Bytes,
    /// The part of its shards.
    #[prost(uint32, tag = "2")]
    pub part: u32,
    /// These shards.
    #[prost(uint32, repeated, tag = "3")]
    pub shards: Vec<u32>,
    /// The cluster to which they are copied.
    #[prost(string, tag = "4")]
    pub cluster: String,
    /// The cluster from which they are.
    #[prost(string, tag = "5")]
    pub above: String,
    /// Where that is reached.
    #[prost(string, tag = "6")]
    pub address: String,
    /// The number of the plan.
    #[prost(uint64, tag = "7")]
    pub plan: u64,
    /// The last forced move of the source, and 0 before the first.
    #[prost(fixed64, tag = "8")]
    pub lineage: u64,
    /// How many answers may be under way.
    #[prost(uint32, tag = "9")]
    pub window: u32,
}

/// What an operation has copied: in its order, and one message at a time.
#[derive(Clone, PartialEq, Message)]
pub struct CopyPush {
    /// The stream's UUID, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub stream: Bytes,
    /// The part of its shards.
    #[prost(uint32, tag = "2")]
    pub part: u32,
    /// The worker.
    #[prost(string, tag = "3")]
    pub worker: String,
    /// A random number of the operation's session.
    #[prost(fixed64, tag = "4")]
    pub session: u64,
    /// The lineage by which it was copied.
    #[prost(fixed64, tag = "5")]
    pub lineage: u64,
    /// The session begins: it asks where the shards end, and copies nothing yet.
    #[prost(bool, tag = "6")]
    pub is_first: bool,
    /// The clusters on the way from the source to the one above. With the one that it is pushed to, it leads back.
    #[prost(string, repeated, tag = "7")]
    pub way: Vec<String>,
    /// Shards that go on behind a gap, before what follows of them.
    #[prost(message, repeated, tag = "8")]
    pub begin: Vec<CopyFrom>,
    /// News of shards, with the entries that follow those that were pushed before.
    #[prost(message, repeated, tag = "9")]
    pub shards: Vec<CopiedShard>,
    /// Why the session has ended; empty if it has not.
    #[prost(string, tag = "10")]
    pub ended: String,
    /// The number of the plan by which it was copied.
    #[prost(uint64, tag = "11")]
    pub plan: u64,
    /// The cluster that it was copied from.
    #[prost(string, tag = "12")]
    pub above: String,
}

/// How an operation goes on.
#[derive(Clone, PartialEq, Message)]
pub struct CopyPushed {
    /// Shards that go on from these places.
    #[prost(message, repeated, tag = "1")]
    pub from: Vec<CopyResume>,
    /// Shards of which nothing is taken until they are in a later `from`.
    #[prost(message, repeated, tag = "2")]
    pub hold: Vec<CopyHeld>,
}

/// Where a shard of a copy begins and ends.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CopyResume {
    /// The shard.
    #[prost(uint32, tag = "1")]
    pub shard: u32,
    /// Offset of the next record.
    #[prost(uint64, tag = "2")]
    pub next_offset: u64,
    /// First offset that was not removed.
    #[prost(uint64, tag = "3")]
    pub log_start: u64,
}

/// A shard that is not copied for now.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CopyHeld {
    /// The shard.
    #[prost(uint32, tag = "1")]
    pub shard: u32,
    /// Why.
    #[prost(string, tag = "2")]
    pub why: String,
}
