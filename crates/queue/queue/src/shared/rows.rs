//! What the shared store stands on: rows in Cassandra, or a model of it.
//!
//! Cassandra's promises are few, and all that is used of them is here:
//! - A row is written and deleted whole. Of two writes of the same row the one with the later timestamp stays, and of a
//!   write and a delete with the same timestamp the delete. **Timestamps are not taken from clocks**: they follow from
//!   the row ([`stamp`]), so that a delete always has a later one than what it deletes, and doing anything twice is
//!   doing it once.
//! - With [`Consistency::Quorum`] a read sees every write that was answered before it began; with [`Consistency::One`]
//!   it may not see it yet.
//! - A call that fails may have been done, and may be done later.
//! - [`Rows::write_record`] and [`Rows::write_cells`] are the only ones that compare: each record, and each group, is
//!   linearizable, at a majority whatever the queue's level. One of them that fails may still be done later, as long as
//!   it compares well.
//!
//! Numbers of messages have the time of their sending in them ([`crate::shared::numbers`]); partitions, buckets and
//! timestamps follow from it.

use bytes::Bytes;
use tailwater_env::BoxFuture;

use crate::contract::FrontReport;
use crate::ids::{Number, QueueId};
use crate::settings::Consistency;

/// The store does not answer, or not in time, or not with enough replicas.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct RowsError(pub String);

/// What a call answers.
pub type Done<'a, T> = BoxFuture<'a, Result<T, RowsError>>;

/// Where a tuple or a body is: all rows of a queue, a span of time and a part are together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowPartition {
    /// The queue.
    pub queue: QueueId,
    /// The span of time: of a tuple's visible_at, or of when a body was sent.
    pub bucket: u64,
    /// The part, by the message's number.
    pub part: u16,
}

/// A tuple of the index (BDQS, section III.B.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// T: from when on the message can be received, in milliseconds since the epoch.
    pub visible_at: u64,
    /// The message, by its number in this queue.
    pub number: Number,
    /// How often the tuple was moved: its timestamp follows from it.
    pub moves: u32,
    /// How often the message was received.
    pub receives: u16,
    /// When it was received first; 0 for never.
    pub first_received_at: u64,
    /// When it was received last; 0 for never.
    pub received_at: u64,
}

impl Tuple {
    /// One of a message that was never received.
    pub fn new(visible_at: u64, number: Number, moves: u32) -> Self {
        Self { visible_at, number, moves, receives: 0, first_received_at: 0, received_at: 0 }
    }
}

/// A body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// What was sent.
    pub content: Bytes,
    /// The queue that the message was moved away from, if this is its dead-letter queue: its name, and the number that
    /// the message was first sent with.
    pub source: Option<(String, Number)>,
    /// The group that the message is in, in a FIFO queue.
    pub group: Option<GroupKey>,
}

/// A message in its dead-letter queue: where its body is, or is about to be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Letter {
    /// Where its body is.
    pub at: RowPartition,
    /// Its number there.
    pub number: Number,
}

/// A group of a FIFO queue, by a hash of its name. Two names that meet are one group: in order, and later than need be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey(pub u64);

/// A cell of a group: the smallest thing that is written there. What they say decides [`crate::shared`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowCell {
    /// Where it is in its group.
    pub key: Bytes,
    /// What it says.
    pub value: Bytes,
    /// Of a group's first cell, which changes with every change of the group, its version; otherwise 0.
    pub version: u64,
    /// It is gone so many seconds after it was written; not told when it is read.
    pub ttl_s: u32,
}

/// Which buckets are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowKind {
    /// Those with tuples.
    Tuples,
    /// Those with bodies.
    Bodies,
}

/// A record and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it is.
    pub value: Bytes,
    /// From 1; it grows with each write.
    pub version: u64,
}

/// The timestamp, in microseconds, of putting a tuple that was moved `moves` times, or with 0 a body; deleting it has
/// the next.
pub fn stamp(number: Number, moves: u32) -> i64 {
    let sent_us = super::numbers::sent_at(number) * 1_000;
    i64::try_from(sent_us).unwrap_or(i64::MAX / 2) + 2 * i64::from(moves)
}

/// A store of rows. Dropping a call leaves it done, not done, or done later.
pub trait Rows: Send + Sync + 'static {
    /// The tuples of a partition with `from <= visible_at <= upto`, by visible_at and number; `most` of them.
    fn tuples(
        &self,
        level: Consistency,
        at: RowPartition,
        from: u64,
        upto: u64,
        most: usize,
    ) -> Done<'_, Vec<Tuple>>;

    /// One tuple.
    fn tuple(
        &self,
        level: Consistency,
        at: RowPartition,
        visible_at: u64,
        number: Number,
    ) -> Done<'_, Option<Tuple>>;

    /// Puts a tuple.
    fn put_tuple(&self, level: Consistency, at: RowPartition, tuple: Tuple) -> Done<'_, ()>;

    /// Deletes a tuple, as it was put.
    fn delete_tuple(&self, level: Consistency, at: RowPartition, tuple: Tuple) -> Done<'_, ()>;

    /// A body.
    fn body(&self, level: Consistency, at: RowPartition, number: Number) -> Done<'_, Option<Body>>;

    /// Puts a body.
    fn put_body(&self, level: Consistency, at: RowPartition, number: Number, body: Body) -> Done<'_, ()>;

    /// Deletes a body.
    fn delete_body(&self, level: Consistency, at: RowPartition, number: Number) -> Done<'_, ()>;

    /// The numbers of a partition's bodies that are greater than `after`, ascending, and the groups that they are in;
    /// `most` of them.
    fn bodies(
        &self,
        level: Consistency,
        at: RowPartition,
        after: Number,
        most: usize,
    ) -> Done<'_, Vec<(Number, Option<GroupKey>)>>;

    /// Notes that a queue has such a bucket, before anything is put there.
    fn put_bucket(&self, level: Consistency, queue: QueueId, kind: RowKind, bucket: u64) -> Done<'_, ()>;

    /// A queue's buckets from `from` on, ascending; `most` of them.
    fn buckets(
        &self,
        level: Consistency,
        queue: QueueId,
        kind: RowKind,
        from: u64,
        most: usize,
    ) -> Done<'_, Vec<u64>>;

    /// Deletes all of a partition whose timestamp is `upto_us` or earlier.
    fn clear(&self, level: Consistency, kind: RowKind, at: RowPartition, upto_us: i64) -> Done<'_, ()>;

    /// Takes a bucket that is empty from the list.
    fn delete_bucket(&self, level: Consistency, queue: QueueId, kind: RowKind, bucket: u64) -> Done<'_, ()>;

    /// The bucket below which a queue has nothing; the greatest one that was ever put.
    fn floor(&self, level: Consistency, queue: QueueId, kind: RowKind) -> Done<'_, u64>;

    /// Moves the floor up; without effect if it is there already.
    fn put_floor(&self, level: Consistency, queue: QueueId, kind: RowKind, bucket: u64) -> Done<'_, ()>;

    /// Where a receipt's tuple is now, if its visibility was changed; kept for 12 hours.
    fn forward(
        &self,
        level: Consistency,
        queue: QueueId,
        number: Number,
        token: u32,
    ) -> Done<'_, Option<(u64, u32)>>;

    /// Notes where a receipt's tuple is now: its visible_at and moves.
    fn put_forward(
        &self,
        level: Consistency,
        queue: QueueId,
        number: Number,
        token: u32,
        place: (u64, u32),
    ) -> Done<'_, ()>;

    /// Notes that a message may also be there, as a dead letter; kept for 12 hours.
    fn put_letter(&self, level: Consistency, queue: QueueId, number: Number, letter: Letter) -> Done<'_, ()>;

    /// Where a message may also be, as a dead letter; `most` of them, in each queue the latest first: the others are as
    /// a rule from attempts that failed.
    fn letters(
        &self,
        level: Consistency,
        queue: QueueId,
        number: Number,
        most: usize,
    ) -> Done<'_, Vec<Letter>>;

    /// Puts a front end's report, at a majority; without effect if one with a greater number is there. It is gone after
    /// [`crate::limits::REPORT_S`] seconds.
    fn put_report(&self, report: FrontReport) -> Done<'_, ()>;

    /// The last report of each front end, at a majority, in any order.
    fn reports(&self) -> Done<'_, Vec<FrontReport>>;

    /// A record.
    fn record<'a>(&'a self, space: &'a str, key: &'a str) -> Done<'a, Option<Record>>;

    /// The records of a space, by key.
    fn records<'a>(&'a self, space: &'a str) -> Done<'a, Vec<(String, Record)>>;

    /// Writes a record, or with `None` deletes it, if its version is `expected`, or with `None` if it is not there;
    /// whether it was. It is gone after `ttl_s` seconds, if that is not 0.
    fn write_record<'a>(
        &'a self,
        space: &'a str,
        key: &'a str,
        value: Option<Bytes>,
        expected: Option<u64>,
        ttl_s: u32,
    ) -> Done<'a, bool>;

    /// The cells of a group that have one of these keys, by key; read together, so that no change is seen in part.
    fn cells(&self, queue: QueueId, group: GroupKey, keys: Vec<Bytes>) -> Done<'_, Vec<RowCell>>;

    /// The cells of a group with `from <= key < upto`, by key; `most` of them.
    fn cells_from(
        &self,
        queue: QueueId,
        group: GroupKey,
        from: Bytes,
        upto: Bytes,
        most: usize,
    ) -> Done<'_, Vec<RowCell>>;

    /// Writes and deletes cells of a group, all or none, if the version of its first cell is `expected`, or with 0 if
    /// it has none; whether it was. The first of `cells` is that one, with its next version.
    fn write_cells(
        &self,
        queue: QueueId,
        group: GroupKey,
        expected: u64,
        cells: Vec<RowCell>,
        gone: Vec<Bytes>,
    ) -> Done<'_, bool>;
}
