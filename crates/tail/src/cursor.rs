//! One consumer's place in one shard.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tailwater_format::{EntryHeader, Offset, SegmentId, ShardId};
use tokio::sync::Notify;

use crate::block::{Block, BlockBatch};
use crate::feed::{Look, Place, ReadError};
use crate::reader::{Inner, SharedFeed, TailReader};

/// Wakes one consumer, however many shards it waits for.
#[derive(Debug, Default)]
pub struct Waiter {
    waiting: AtomicBool,
    notify: Notify,
}

impl Waiter {
    pub(crate) fn wake(&self) {
        // A consumer that is polled from elsewhere does not wait, and costs this load only.
        if self.waiting.load(Ordering::Relaxed) && self.waiting.swap(false, Ordering::AcqRel) {
            self.notify.notify_one();
        }
    }

    /// Completes when one of the shards may have something. Call [`Waiter::arm`], then look, then wait.
    pub async fn woken(&self) {
        self.notify.notified().await;
    }

    /// From here on, something new completes [`Waiter::woken`].
    pub fn arm(&self) {
        self.waiting.store(true, Ordering::SeqCst);
    }
}

/// Entries of one block that come next in a shard; borrows the process's one copy of them.
#[derive(Clone, Debug)]
pub struct Entries {
    block: Arc<Block>,
    range: Range<usize>,
    /// Records before this offset are not asked for: the first entry may begin before it.
    pub from: Offset,
}

impl Entries {
    /// The block they are in.
    pub fn block(&self) -> &Arc<Block> {
        &self.block
    }

    /// Their headers.
    pub fn headers(&self) -> impl Iterator<Item = &EntryHeader> {
        self.block.entries()[self.range.clone()].iter().map(|entry| &entry.header)
    }

    /// Their record batches, in order.
    pub fn batches(&self) -> &[BlockBatch] {
        self.block.batches(self.range.clone())
    }

    /// The offset after the last record.
    pub fn next_offset(&self) -> Offset {
        self.headers().last().map_or(self.from, EntryHeader::next_offset)
    }
}

/// Reads one shard from one place on. Dropping it leaves nothing behind.
pub struct Cursor {
    reader: Arc<Inner>,
    shared: Arc<SharedFeed>,
    private: Option<Arc<SharedFeed>>,
    waiter: Arc<Waiter>,
    /// The last block that was taken from the feed that is read now.
    seen: Option<u64>,
    place: Place,
    next_offset: Offset,
}

impl Cursor {
    /// Reads `shard` from the record at `offset` on, whose entry begins at `place` (or whose segment ends
    /// there). `waiter` is woken when there is something.
    pub fn new(
        reader: &TailReader,
        shard: ShardId,
        place: Place,
        offset: Offset,
        waiter: Arc<Waiter>,
    ) -> Self {
        let reader = Arc::clone(&reader.inner);
        let shared = reader.shared_feed(shard);
        shared.join(&waiter);
        // The first consumer near the tail is where the shared feed begins; others of older places read by
        // themselves until they get there.
        {
            let mut feed = shared.feed.lock();
            let elsewhere = feed.end().map(|(end, _)| end).filter(|end| end.segment != place.segment);
            feed.start(elsewhere.unwrap_or(place));
        }
        reader.plan_again();
        Self { reader, shared, private: None, waiter, seen: None, place, next_offset: offset }
    }

    /// The shard.
    pub fn shard(&self) -> ShardId {
        self.shared.shard
    }

    /// The offset of the next record.
    pub fn next_offset(&self) -> Offset {
        self.next_offset
    }

    /// How many records are durable and not read yet, as far as is known.
    pub fn lag(&self) -> u64 {
        let end = self.shared.feed.lock().tail().map_or(Offset(0), |tail| tail.next_offset);
        end.0.saturating_sub(self.next_offset.0)
    }

    /// What comes next, if it is there. Never waits.
    pub fn poll(&mut self) -> Result<Option<Entries>, ReadError> {
        loop {
            let feed = self.private.as_ref().unwrap_or(&self.shared);
            let look = {
                let feed = feed.feed.lock();
                let log_start = feed.log_start();
                if self.next_offset < log_start {
                    return Err(ReadError::Truncated { log_start });
                }
                feed.look(self.seen, self.place)
            };
            match look {
                Look::Block(number, block) => {
                    if let Some(entries) = self.take(number, block)? {
                        return Ok(Some(entries));
                    }
                }
                Look::Front if self.private.is_some() => {
                    if !self.return_to_shared() {
                        return Ok(None);
                    }
                }
                Look::Front => return Ok(None),
                Look::Behind => self.read_alone(),
                Look::Failed(error) => return Err(error),
            }
        }
    }

    /// What comes next, as soon as it is there. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Result<Entries, ReadError> {
        loop {
            self.waiter.arm();
            if let Some(entries) = self.poll()? {
                return Ok(entries);
            }
            self.waiter.woken().await;
        }
    }

    /// Moves behind `block`; its entries from the next offset on, if there are any.
    fn take(&mut self, number: u64, block: Arc<Block>) -> Result<Option<Entries>, ReadError> {
        self.seen = Some(number);
        self.place = Place { segment: block.segment.number, position: block.end };
        if let Some(private) = &self.private {
            private.feed.lock().release(number);
            self.reader.plan_again();
            self.return_to_shared();
        }
        let from = self.next_offset;
        let first = block.entries().partition_point(|entry| entry.header.next_offset() <= from);
        let Some(entry) = block.entries().get(first) else { return Ok(None) };
        if entry.header.base_offset > from {
            return Err(gap(block.segment, &block, entry.header.base_offset, from));
        }
        let range = first..block.entries().len();
        self.next_offset = block.entries()[range.end - 1].header.next_offset();
        Ok(Some(Entries { block, range, from }))
    }

    /// Leaves the shared window behind and reads by itself from here.
    fn read_alone(&mut self) {
        let private = self.reader.private_feed(&self.shared);
        private.feed.lock().start(self.place);
        private.join(&self.waiter);
        self.private = Some(private);
        self.seen = None;
        self.reader.plan_again();
    }

    /// Goes back to the shared window if it has this place again.
    fn return_to_shared(&mut self) -> bool {
        let Some(private) = &self.private else { return false };
        // A private feed that has left a segment behind knows the place in the next one.
        if let Some(place) = private.feed.lock().place().filter(|place| *place > self.place) {
            let drained = private.feed.lock().last().is_none();
            if drained && place.segment > self.place.segment && place.position.0 == 0 {
                self.place = place;
            }
        }
        let back = !matches!(self.shared.feed.lock().look(None, self.place), Look::Behind);
        if back {
            self.private = None;
            self.seen = None;
        }
        back
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        if self.shared.leave(&self.waiter) == 0 {
            self.reader.unfollow(&self.shared);
        }
    }
}

fn gap(segment: SegmentId, block: &Block, found: Offset, expected: Offset) -> ReadError {
    let why = format!("offset {found} follows where {expected} is due");
    ReadError::Corrupt { segment, position: block.start, why }
}
