//! Reads shards of a stream one-sidedly, in order for each shard.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use tailwater_format::batch::{Record, Records};
use tailwater_format::call::{
    DlsnInfo, Locate, LocateWhat, Location, Method, offset_from_wire, stream_to_wire,
};
use tailwater_format::{Dlsn, Offset, Position, SegmentNumber, Start, Tail, Term, TransactionId};
use tailwater_tail::{Block, BlockBatch, Cursor, Entries, FeedReadError, Place, Waiter};

use crate::limits::LOCATES_IN_FLIGHT_MAX;
use crate::{Client, Error, Stream};

/// What a consumer reads.
#[derive(Clone, Debug, Default)]
pub struct ConsumerConfig {
    /// Which shards; all of them if empty.
    pub shards: Vec<u32>,
    /// Where to begin in each.
    pub start: Start,
}

/// Reads some shards of a stream. Dropping it leaves nothing behind at the node: its position is its own.
pub struct Consumer {
    client: Client,
    stream: Stream,
    cursors: Vec<Cursor>,
    /// Timestamp of each cursor's last record, in ms since the epoch.
    read_ms: Vec<Option<i64>>,
    /// When it began, wall time in ms.
    began_ms: i64,
    waiter: Arc<Waiter>,
    /// Which cursor is asked first, so that a busy shard does not starve the others.
    turn: usize,
    /// A cursor whose next records were removed.
    moved: Option<usize>,
}

/// How far behind a consumer is in one shard: the difference to what is durable, which is to say readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    /// The shard.
    pub shard: u32,
    /// The offset of the record that is read next.
    pub next_offset: Offset,
    /// The offset after the last durable record, as far as is known; `None` in the first moments of a process.
    pub end_offset: Option<Offset>,
    /// How old the newest record is that was read, if there are others behind it; zero if there are none, and `None` if
    /// no record was read yet, or the last one had no timestamp. After a pause of the producers it is large for a
    /// moment.
    pub time: Option<Duration>,
}

impl Lag {
    /// Records that are durable and not read yet, as far as is known.
    pub fn records(&self) -> u64 {
        self.end_offset.map_or(0, |end| end.0.saturating_sub(self.next_offset.0))
    }
}

/// Records of one shard that come next; borrows the process's one validated copy of them.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The shard.
    pub shard: u32,
    entries: Entries,
}

impl Batch {
    /// The records, in order.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        BatchRecords { from: self.entries.from, batches: self.entries.batches().iter(), records: None }
    }

    /// The term in which the records were written.
    pub fn term(&self) -> Term {
        self.entries.block().segment.term
    }

    /// The offset after the last record.
    pub fn next_offset(&self) -> Offset {
        self.entries.next_offset()
    }

    /// The offset of the first record.
    pub(crate) fn first_offset(&self) -> Offset {
        let base =
            self.entries.headers().find(|header| !header.is_control()).map(|header| header.base_offset);
        base.map_or(self.entries.from, |base| base.max(self.entries.from))
    }

    /// Leaves out the records before an offset.
    pub(crate) fn skip_below(&mut self, offset: Offset) {
        self.entries.from = self.entries.from.max(offset);
    }

    /// The largest transaction id of the shard up to the end of the last record's entry.
    pub(crate) fn transaction_id(&self) -> Option<TransactionId> {
        self.entries.headers().last().map(|header| header.transaction_id)
    }

    /// Exact coordinates of one of its records.
    pub fn dlsn(&self, offset: Offset) -> Option<Dlsn> {
        self.entries.headers().find_map(|header| header.dlsn(offset))
    }
}

/// The records of a batch's record batches, one behind the other.
struct BatchRecords<'a> {
    from: Offset,
    batches: std::slice::Iter<'a, BlockBatch>,
    records: Option<Records<'a>>,
}

impl<'a> Iterator for BatchRecords<'a> {
    type Item = Record<'a>;

    #[inline]
    fn next(&mut self) -> Option<Record<'a>> {
        loop {
            if let Some(records) = &mut self.records {
                // Every record was read once when the block was made, so that none is bad here.
                if let Some(Ok(record)) = records.next() {
                    return Some(record);
                }
            }
            let batch = self.batches.next()?;
            let mut records = Records::new(&batch.header, &batch.records);
            // Only the first batch can begin below; that a record is bad shows when it is read.
            let _ = records.skip_below(self.from);
            self.records = Some(records);
        }
    }
}

impl Consumer {
    pub(crate) async fn start(client: Client, stream: Stream, config: ConsumerConfig) -> Result<Self, Error> {
        let shards = if config.shards.is_empty() { (0..stream.shards).collect() } else { config.shards };
        let starts = shards.into_iter().map(|shard| (shard, config.start));
        Self::start_at(client, stream, starts.collect()).await
    }

    /// Begins in each shard at a place of its own.
    pub(crate) async fn start_at(
        client: Client,
        stream: Stream,
        starts: Vec<(u32, Start)>,
    ) -> Result<Self, Error> {
        let waiter = Arc::new(Waiter::default());
        let read_ms = vec![None; starts.len()];
        let (cursors, began_ms) = (Vec::new(), client.node().env().wall_ms());
        let mut consumer = Self { client, stream, cursors, read_ms, began_ms, waiter, turn: 0, moved: None };
        let cursors = futures::stream::iter(starts).map(|(shard, start)| consumer.locate(shard, start));
        consumer.cursors = cursors.buffered(LOCATES_IN_FLIGHT_MAX).try_collect().await?;
        Ok(consumer)
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The next records of any of the shards, as soon as there are some; never `Ok(None)`. Cancelling it loses
    /// nothing.
    ///
    /// After [`Error::Truncated`] it goes on with the oldest records that are left, for which it asks the node, so
    /// that it may fail with an error for which [`Error::is_retriable`] holds. Other errors are final for their
    /// shard.
    ///
    /// Offsets of a shard go up by one, but for one case: records of a stream with durability `interval` that were
    /// delivered and then lost come again as others, in a higher [`Batch::term`].
    pub async fn next(&mut self) -> Result<Option<Batch>, Error> {
        loop {
            self.resume().await?;
            self.waiter.arm();
            if let Some(batch) = self.poll()? {
                return Ok(Some(batch));
            }
            self.waiter.woken().await;
        }
    }

    /// The same, but waits no longer than `limit`: `Ok(None)` says that nothing came.
    pub async fn next_within(&mut self, limit: Duration) -> Result<Option<Batch>, Error> {
        let env = self.client.node().env().clone();
        env.timeout(limit, self.next()).await.unwrap_or(Ok(None))
    }

    /// The next records, if they are there. Never waits; for threads that poll many consumers. After
    /// [`Error::Truncated`], [`Consumer::resume`] goes on.
    pub fn poll(&mut self) -> Result<Option<Batch>, Error> {
        for _ in 0..self.cursors.len() {
            let index = self.turn;
            self.turn = (self.turn + 1) % self.cursors.len();
            let cursor = &mut self.cursors[index];
            match cursor.poll() {
                Ok(Some(entries)) => {
                    let last = entries.batches().last().map(|batch| batch.header.max_timestamp_ms);
                    self.read_ms[index] = last.filter(|ms| *ms >= 0);
                    if let Some(first) = entries.batches().first() {
                        let now_ms = self.client.node().env().wall_ms();
                        self.client.delays().delivered(&first.header, self.began_ms, now_ms);
                    }
                    return Ok(Some(Batch { shard: cursor.shard().shard.0, entries }));
                }
                Ok(None) => {}
                Err(error) => {
                    let (shard, from) = (cursor.shard().shard.0, cursor.next_offset());
                    if let FeedReadError::Truncated { .. } = error {
                        self.moved = Some(index);
                    }
                    return Err(Error::from_read(&self.stream.name, shard, from, error));
                }
            }
        }
        Ok(None)
    }

    /// How far a shard reaches, and where its cursor is, for who hands blocks on; `None` if it does not read the shard.
    pub fn reach(&self, shard: u32) -> Option<(Place, Option<Tail>)> {
        let cursor = self.cursors.iter().find(|cursor| cursor.shard().shard.0 == shard)?;
        Some((cursor.place(), cursor.tail()))
    }

    /// The next block of a shard, if it is there and the shard is read: as [`Consumer::poll`], for who hands blocks on.
    pub fn poll_block(&mut self, shard: u32) -> Result<Option<Arc<Block>>, FeedReadError> {
        let cursor = self.cursors.iter_mut().find(|cursor| cursor.shard().shard.0 == shard);
        cursor.map_or(Ok(None), Cursor::poll_block)
    }

    /// After [`Error::Truncated`]: moves to the oldest record that is left. Does nothing otherwise. Cancelling it
    /// loses nothing.
    pub async fn resume(&mut self) -> Result<(), Error> {
        if let Some(index) = self.moved {
            let shard = self.cursors[index].shard().shard.0;
            // Not the offset that the error named: that may be removed by now, too.
            self.cursors[index] = self.locate(shard, Start::Beginning).await?;
            self.moved = None;
        }
        Ok(())
    }

    /// Where each shard is read next: what to store in order to go on from here.
    pub fn offsets(&self) -> impl Iterator<Item = (u32, Offset)> {
        self.cursors.iter().map(|cursor| (cursor.shard().shard.0, cursor.next_offset()))
    }

    /// How far behind it is in each shard. Nobody else knows: readers ask no broker.
    pub fn lags(&self) -> impl Iterator<Item = Lag> {
        let now_ms = self.client.node().env().wall_ms();
        self.cursors.iter().zip(&self.read_ms).map(move |(cursor, read_ms)| {
            let (next_offset, end_offset) = (cursor.next_offset(), cursor.end_offset());
            let lag = Lag { shard: cursor.shard().shard.0, next_offset, end_offset, time: None };
            let age =
                read_ms.map(|ms| Duration::from_millis(now_ms.saturating_sub(ms).max(0).unsigned_abs()));
            Lag {
                time: if end_offset.is_some() && lag.records() == 0 { Some(Duration::ZERO) } else { age },
                ..lag
            }
        })
    }

    async fn locate(&self, shard: u32, start: Start) -> Result<Cursor, Error> {
        let found = find_place(&self.client, &self.stream, shard, start).await?;
        self.cursor_at(shard, &found)
    }

    fn cursor_at(&self, shard: u32, found: &Location) -> Result<Cursor, Error> {
        let place = Place { segment: SegmentNumber(found.segment), position: Position(found.position) };
        let (shard, waiter) = (self.stream.shard(shard), Arc::clone(&self.waiter));
        Ok(Cursor::new(self.client.reader(), shard, place, offset_from_wire(found.offset)?, waiter))
    }

    /// Reads one more shard, from a place that was found in it.
    pub(crate) fn join(&mut self, shard: u32, found: &Location) -> Result<(), Error> {
        let cursor = self.cursor_at(shard, found)?;
        self.leave(shard);
        self.cursors.push(cursor);
        self.read_ms.push(None);
        Ok(())
    }

    /// Reads a shard no more.
    pub(crate) fn leave(&mut self, shard: u32) {
        if let Some(index) = self.cursors.iter().position(|cursor| cursor.shard().shard.0 == shard) {
            // The one whose records were removed is among those behind it, or is this one.
            self.moved = match self.moved {
                Some(moved) if moved == index => None,
                Some(moved) if moved > index => Some(moved - 1),
                moved => moved,
            };
            self.cursors.remove(index);
            self.read_ms.remove(index);
            self.turn = 0;
        }
    }
}

/// Where reading a shard begins, as a node says.
pub(crate) async fn find_place(
    client: &Client,
    stream: &Stream,
    shard: u32,
    start: Start,
) -> Result<Location, Error> {
    let what = match start {
        Start::Beginning => LocateWhat::Start(()),
        Start::End => LocateWhat::End(()),
        Start::Offset(offset) => LocateWhat::Offset(offset.0),
        Start::Last(count) => LocateWhat::Last(count),
        Start::TimeMs(ms) => LocateWhat::TimeMs(ms),
        Start::TransactionId(id) => LocateWhat::TransactionId(id),
        Start::Dlsn(dlsn) => LocateWhat::Dlsn(DlsnInfo::from(dlsn)),
    };
    let request = Locate { stream: stream_to_wire(stream.id), shard, what: Some(what) };
    client.find(Method::Locate, &request).await
}
