//! One consumer's place in one shard.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tailwater_format::{EntryHeader, Offset, Position, SegmentId, ShardId, Tail};
use tokio::sync::Notify;

use crate::block::{Block, BlockBatch};
use crate::feed::{Feed, FeedReadError, Look, Place};
use crate::reader::{SharedFeed, TailReader};

/// Wakes one consumer, however many shards it waits for.
#[derive(Debug, Default)]
pub struct Waiter {
    waiting: AtomicBool,
    notify: Notify,
}

impl Waiter {
    pub(crate) fn wake(&self) {
        // A consumer that is polled from elsewhere does not wait, and costs this load only.
        if self.waiting.load(Ordering::SeqCst) && self.waiting.swap(false, Ordering::AcqRel) {
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

/// A block, and its entries that come next, if it has some.
type CursorStep = (Arc<Block>, Option<Entries>);

/// Reads one shard from one place on. Dropping it leaves nothing behind.
pub struct Cursor {
    reader: TailReader,
    shared: Arc<SharedFeed>,
    /// Of its own, while it is not in the shared window.
    private: Option<Arc<SharedFeed>>,
    waiter: Arc<Waiter>,
    /// The last block that was taken from the feed that is read now.
    seen: Option<u64>,
    /// What [`SharedFeed::changes`] said when the shared feed had nothing more.
    front_at: Option<u64>,
    /// The block that the shared feed knows this as a reader of.
    counted: Option<u64>,
    /// The segment of the last block.
    segment: Option<SegmentId>,
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
        let reader = reader.clone();
        let shared = reader.inner.follow(shard, &waiter);
        // Counted from here on and not from its first look, which may come late where many begin at once.
        let counted = shared.feed.lock().joined(place);
        let (private, seen, front_at, segment) = (None, None, None, None);
        Self { reader, shared, private, waiter, seen, front_at, counted, segment, place, next_offset: offset }
    }

    /// The shard.
    pub fn shard(&self) -> ShardId {
        self.shared.shard
    }

    /// The offset of the next record.
    pub fn next_offset(&self) -> Offset {
        self.next_offset
    }

    /// The offset after the last durable record; `None` until the process has heard of the shard.
    pub fn end_offset(&self) -> Option<Offset> {
        self.shared.feed.lock().tail().map(|tail| tail.next_offset)
    }

    /// How far the shard reaches, as far as is known.
    pub fn tail(&self) -> Option<Tail> {
        self.shared.feed.lock().tail()
    }

    /// Where the next entry begins.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The next block, if it is there, whether it has entries or not. For who hands blocks on; it begins at the place
    /// before, or earlier.
    ///
    /// # Errors
    /// As those of [`Cursor::poll`].
    pub fn poll_block(&mut self) -> Result<Option<Arc<Block>>, FeedReadError> {
        Ok(self.step()?.map(|(block, _)| block))
    }

    /// What comes next, if it is there. Never waits.
    ///
    /// Offsets go up by one, but for one case: where records that were delivered turn out to be lost (durability
    /// `interval`), those that took their offsets come next, in a higher term.
    pub fn poll(&mut self) -> Result<Option<Entries>, FeedReadError> {
        while let Some((_, entries)) = self.step()? {
            if entries.is_some() {
                return Ok(entries);
            }
        }
        Ok(None)
    }

    /// Moves behind the next block, if it is there: the block, and its entries that come next, if it has some.
    fn step(&mut self) -> Result<Option<CursorStep>, FeedReadError> {
        loop {
            let changes = self.shared.changes();
            if self.front_at == Some(changes) {
                // Most polls of a thread with many consumers end here.
                return Ok(None);
            }
            let look = match &self.private {
                Some(private) => self.look(&private.feed.lock()),
                None => self.look_at_shared(),
            };
            match look? {
                Look::Block(number, block) => {
                    let entries = self.take(number, Arc::clone(&block))?;
                    return Ok(Some((block, entries)));
                }
                Look::Front if self.private.is_some() && self.return_to_shared() => {}
                Look::Front => {
                    // A shared feed that has not begun, or does not count this cursor, is looked at again.
                    self.front_at = self.counted.filter(|_| self.private.is_none()).map(|_| changes);
                    return Ok(None);
                }
                Look::Behind => self.read_alone(),
                Look::Failed(error) => return Err(error),
            }
        }
    }

    /// What comes next, as soon as it is there. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Result<Entries, FeedReadError> {
        loop {
            self.waiter.arm();
            if let Some(entries) = self.poll()? {
                return Ok(entries);
            }
            self.waiter.woken().await;
        }
    }

    fn look(&self, feed: &Feed) -> Result<Look, FeedReadError> {
        let log_start = feed.log_start();
        match feed.look(self.seen, self.place) {
            // The stream is gone, which is more than that a part of it is.
            Look::Failed(error) => Err(error),
            _ if self.next_offset < log_start => Err(FeedReadError::Truncated { log_start }),
            look => Ok(look),
        }
    }

    /// Begins the shared feed, if it has not begun and this is near the tail.
    fn look_at_shared(&mut self) -> Result<Look, FeedReadError> {
        let (look, is_waited_for) = {
            let mut feed = self.shared.feed.lock();
            let began = feed.begin_near(self.place);
            self.counted = self.counted.or_else(|| feed.joined(self.place));
            let look = self.look(&feed);
            let mut released = false;
            if let Ok(Look::Block(number, _)) = look {
                released = feed.took(self.counted, number);
                self.counted = Some(number + 1);
                if feed.has_one_reader() && self.shared.is_followed_by_one() {
                    feed.release(number);
                }
            }
            (look, began || released)
        };
        if is_waited_for {
            self.reader.inner.plan_again(&self.shared);
        }
        look
    }

    /// Moves behind `block`; its entries from the next offset on, if there are any.
    fn take(&mut self, number: u64, block: Arc<Block>) -> Result<Option<Entries>, FeedReadError> {
        assert!(self.seen.is_none_or(|seen| seen < number), "a block is taken once");
        assert!(block.start < block.end, "{}: a block has bytes", block.segment);
        self.seen = Some(number);
        self.place = Place { segment: block.segment.number, position: block.end };
        let begins_segment =
            block.start == Position(0) && self.segment.is_some_and(|last| last.term != block.segment.term);
        self.segment = Some(block.segment);
        if let Some(private) = &self.private {
            private.feed.lock().release(number);
            self.reader.inner.plan_again(private);
            self.return_to_shared();
        }
        let mut from = self.next_offset;
        if let Some(first) = block.entries().first().filter(|_| begins_segment) {
            // Whoever has read the segment before to its end is here; if this one begins earlier, the last
            // records of that one were never made durable, and these have their offsets. In the same term they are the
            // same ones: a copy had shown them before it had them on its disk, and got them again.
            from = from.min(first.header.base_offset);
        }
        let first = block.entries().partition_point(|entry| entry.header.next_offset() <= from);
        let Some(entry) = block.entries().get(first) else { return Ok(None) };
        if entry.header.base_offset > from {
            return Err(gap(&block, entry.header.base_offset, from));
        }
        let range = first..block.entries().len();
        self.next_offset = block.entries()[range.end - 1].header.next_offset();
        Ok(Some(Entries { block, range, from }))
    }

    /// Leaves the shared window behind and reads by itself from here.
    fn read_alone(&mut self) {
        let read_term = self.segment.filter(|last| last.number == self.place.segment).map(|last| last.term);
        if self.private.is_none() {
            self.shared.feed.lock().left(self.counted.take());
            // It may have waited for this one.
            self.reader.inner.plan_again(&self.shared);
        }
        self.front_at = None;
        let (reader, place, offset) = (&self.reader.inner, self.place, self.next_offset);
        self.private = Some(reader.read_alone(&self.shared, place, offset, read_term, &self.waiter));
        self.seen = None;
    }

    /// Goes back to the shared window if it has this place, or is going to have it.
    fn return_to_shared(&mut self) -> bool {
        let Some(private) = &self.private else { return false };
        let (drained_at, log_start) = {
            let feed = private.feed.lock();
            (feed.place().filter(|_| feed.is_drained()), feed.log_start())
        };
        // A private feed that has left a segment behind knows the place in the next one.
        self.place = self.place.max(drained_at.unwrap_or(self.place));
        let (began, back) = {
            let mut feed = self.shared.feed.lock();
            feed.observe_log_start(log_start);
            let began = feed.begin_near(self.place);
            (began, !matches!(feed.look(None, self.place), Look::Behind))
        };
        if began {
            self.reader.inner.plan_again(&self.shared);
        }
        if back {
            self.private = None;
            self.seen = None;
        }
        back
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        if self.private.is_none() {
            self.shared.feed.lock().left(self.counted);
            self.reader.inner.plan_again(&self.shared);
        }
        self.reader.inner.unfollow(&self.shared, &self.waiter);
    }
}

fn gap(block: &Block, found: Offset, expected: Offset) -> FeedReadError {
    let why = format!("offset {found} follows where {expected} is due");
    FeedReadError::Corrupt { segment: block.segment, position: block.start, why }
}
