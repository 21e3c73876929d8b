//! The blocks of a stream, in order and without gaps: what is between two of them, if an empty one was taken
//! out, belongs to the one before.
//!
//! Small blocks are put together so that their number stays small, and each of their bytes is copied a few
//! times at most: 16 neighbours of one size class (up to 256 bytes, up to 4 KiB) become one of the next when they
//! are the last of the stream; and two that garbage collection left below 16 KiB become one.

use crate::batch::{Batch, EventRef, MalformedBatch, Writer};
use crate::limits::BATCH_BYTES_MAX;

use super::block::{BlockLook, HistoryBlock, Outcome, Spot};
use super::order::{Order, OrderPlace};

/// Bytes of the events below which garbage collection puts a block together with a neighbour.
const SMALL_BYTES: usize = 16 << 10;
/// Blocks of one class at the end of the stream that become one.
const RUN: usize = 16;
/// Bytes after which blocks that are put together become another one: with one event more it is still a batch.
const JOINED_BYTES_MAX: usize = BATCH_BYTES_MAX / 4;

/// Where an event is, if it is stored: it holds until blocks are added, taken out or put together.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockFound {
    seq: u64,
    block: OrderPlace,
    /// The mark before it in the block.
    mark: usize,
    spot: Option<Spot>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    /// By the number before their first.
    blocks: Order<Box<HistoryBlock>>,
    /// All events with at most this number are collected.
    floor: u64,
    /// Sums over all blocks.
    stored: u64,
    collected: u64,
    bytes: u64,
}

fn class(bytes: usize) -> u8 {
    match bytes {
        0..=0xff => 0,
        0x100..=0xfff => 1,
        _ => 2,
    }
}

impl Blocks {
    /// All events with at most this number are collected.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// How many blocks there are.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Events that are stored and not collected.
    pub(super) fn live(&self) -> u64 {
        let below = self.blocks.first().map_or(0, |(_, first)| {
            if self.floor > first.batch.after { u64::from(first.live_up_to(self.floor)) } else { 0 }
        });
        self.stored - self.collected - below
    }

    /// Events that are stored, collected ones among them.
    pub(super) fn stored(&self) -> u64 {
        self.stored
    }

    /// Bytes of the encoded events.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that the blocks take.
    pub(super) fn memory_bytes(&self) -> usize {
        self.blocks.iter().map(|(_, block)| block.memory_bytes() + 16).sum()
    }

    /// The block that covers a number.
    #[inline]
    pub(super) fn covering(&self, seq: u64) -> Option<&HistoryBlock> {
        let (_, block) = self.blocks.up_to(seq.checked_sub(1)?)?;
        (block.batch.last >= seq).then_some(&**block)
    }

    /// Where an event is, if it is stored.
    pub(super) fn find(&self, seq: u64) -> Option<BlockFound> {
        let place = self.blocks.place(seq.checked_sub(1)?)?;
        let block = self.blocks.at(place);
        let mark = block.mark_before(seq - 1);
        Some(BlockFound { seq, block: place, mark, spot: block.find(mark, seq) })
    }

    /// As [`find`](Self::find) for many. What has to be read lies anywhere in memory, and where the next of it lies is
    /// known when the one before has been read: so each step is done for all of them before the next, and has fetched
    /// what that reads.
    pub(super) fn find_all(&self, seqs: impl Iterator<Item = u64>) -> Vec<Option<BlockFound>> {
        let begin = |seq: u64| {
            let place = self.blocks.place(seq.checked_sub(1)?)?;
            self.blocks.at(place).fetch();
            Some(BlockFound { seq, block: place, mark: 0, spot: None })
        };
        let mut all: Vec<Option<BlockFound>> = seqs.map(begin).collect();
        for found in all.iter().flatten() {
            self.blocks.at(found.block).fetch_numbers(found.seq);
        }
        for found in all.iter_mut().flatten() {
            let block = self.blocks.at(found.block);
            found.mark = block.mark_before(found.seq - 1);
            block.fetch_mark(found.mark);
        }
        for found in all.iter_mut().flatten() {
            let block = self.blocks.at(found.block);
            found.spot = block.find(found.mark, found.seq);
            block.fetch_event(found.mark, found.spot);
        }
        all
    }

    /// The first block that covers a number greater than `after`.
    pub(super) fn following(&self, after: u64) -> Option<&HistoryBlock> {
        self.covering(after.checked_add(1)?).or_else(|| self.blocks.first().map(|(_, first)| &**first))
    }

    /// Shows the event with a number if it is stored and not collected.
    #[inline]
    pub(super) fn with<T>(&self, seq: u64, show: impl FnOnce(&EventRef<'_>) -> T) -> Option<T> {
        if seq <= self.floor {
            return None;
        }
        let block = self.covering(seq)?;
        block.with(seq, |place, event| (!block.is_collected(place)).then(|| show(event)))?
    }

    /// The last event before number `end` that has an earlier time than this one and is not collected.
    pub(super) fn last_older(&self, end: u64, time_ms: u64) -> Option<u64> {
        let blocks = self.blocks.iter().map(|(_, block)| block);
        let begun = blocks.take_while(|block| block.batch.after < end && block.batch.state.time_ms < time_ms);
        begun.filter_map(|block| block.last_older(self.floor, end, time_ms)).last()
    }

    /// Adds a block at the end.
    pub(super) fn push(&mut self, block: HistoryBlock) {
        let last = block.batch.last;
        if block.batch.count == 0 {
            // Only a tombstone: no block for it.
            match self.blocks.up_to_mut(u64::MAX) {
                Some((_, before)) => before.batch.last = last,
                None => self.floor = last,
            }
            return;
        }
        self.put(block);
        self.gather();
    }

    fn put(&mut self, block: HistoryBlock) {
        self.stored += u64::from(block.batch.count);
        self.collected += u64::from(block.collected());
        self.bytes += block.batch.bytes.len() as u64;
        self.blocks.insert(block.batch.after, Box::new(block));
    }

    fn take(&mut self, after: u64) -> Option<Box<HistoryBlock>> {
        let block = self.blocks.remove(after)?;
        self.stored -= u64::from(block.batch.count);
        self.collected -= u64::from(block.collected());
        self.bytes -= block.batch.bytes.len() as u64;
        Some(block)
    }

    /// Puts the last ones together as long as 16 of them are of one size class.
    fn gather(&mut self) {
        loop {
            let mut run = self.blocks.iter().rev();
            let Some((_, last)) = run.next() else { return };
            let size = class(last.batch.bytes.len());
            let first = run.take_while(|(_, block)| class(block.batch.bytes.len()) == size).nth(RUN - 2);
            let Some((first, _)) = first.filter(|_| size < 2) else { return };
            self.join(first, u64::MAX);
        }
    }

    /// Puts the blocks that begin in [`first`, `end`) together, without what is collected of them.
    fn join(&mut self, first: u64, end: u64) {
        let from = self.blocks.from(first).map(|(after, _)| after);
        let keys: Vec<u64> = from.take_while(|after| *after < end).collect();
        let blocks: Vec<Box<HistoryBlock>> = keys.into_iter().filter_map(|after| self.take(after)).collect();
        let Some(last) = blocks.last().map(|block| block.batch.last) else { return };
        let mut out = Writer::new(first);
        let mut joined = Vec::new();
        for block in &blocks {
            block.each_live(self.floor, |event| {
                if out.len() >= JOINED_BYTES_MAX {
                    let next = Writer::new(out.last());
                    joined.push(std::mem::replace(&mut out, next).finish(0));
                }
                out.push(event);
            });
        }
        joined.push(out.finish(last));
        for batch in joined {
            let (first, last) = (batch.after, batch.last);
            match HistoryBlock::new(batch, |_, _| {}) {
                Ok(block) if block.batch.count > 0 => self.put(block),
                _ => self.cover(first, last),
            }
        }
    }

    /// Nothing is left of the numbers (`after`, `last`].
    fn cover(&mut self, after: u64, last: u64) {
        match after.checked_sub(1).and_then(|before| self.blocks.up_to_mut(before)) {
            Some((_, before)) => before.batch.last = last,
            None => self.floor = self.floor.max(last),
        }
    }

    /// Collects everything up to a number.
    pub(super) fn raise_floor(&mut self, floor: u64) {
        if floor <= self.floor {
            return;
        }
        self.floor = floor;
        while let Some((after, block)) = self.blocks.first()
            && block.batch.last <= floor
        {
            self.take(after);
        }
    }

    /// Collects the event with a number if it is one to be collected; whether its block is then worth a
    /// [`compact`](Self::compact), and which one it is.
    #[inline]
    pub(super) fn collect_if(
        &mut self,
        seq: u64,
        wanted: impl FnOnce(&EventRef<'_>) -> bool,
    ) -> (Outcome, Option<u64>) {
        let place = seq.checked_sub(1).and_then(|before| self.blocks.place(before));
        self.collect_at(place, seq, |block| block.collect_if(seq, wanted))
    }

    /// As [`collect_if`](Self::collect_if), if it has a key.
    #[inline]
    pub(super) fn collect_key(&mut self, found: Option<BlockFound>, key: &[u8]) -> (Outcome, Option<u64>) {
        let Some(BlockFound { seq, block, spot, .. }) = found else { return (Outcome::Gone, None) };
        self.collect_at(Some(block), seq, |block| block.collect_key(spot, seq, key))
    }

    fn collect_at(
        &mut self,
        place: Option<OrderPlace>,
        seq: u64,
        collect: impl FnOnce(&mut HistoryBlock) -> Outcome,
    ) -> (Outcome, Option<u64>) {
        let Some(place) = place.filter(|_| seq > self.floor) else { return (Outcome::Gone, None) };
        let (after, block) = self.blocks.at_mut(place);
        let outcome = collect(block);
        if outcome != Outcome::Collected {
            return (outcome, None);
        }
        self.collected += 1;
        (outcome, is_thin(block).then_some(after))
    }

    /// Looks at the next block that covers a number greater than `after`, if it is `worth` it: collects those
    /// of its events with the numbers (`after`, `before`) that are to be collected, and looks at no more than
    /// about `most`. `None` if there is no such block.
    pub(super) fn collect_in_next(
        &mut self,
        after: u64,
        before: u64,
        most: u32,
        worth: impl FnOnce(&HistoryBlock) -> bool,
        wanted: impl FnMut(&EventRef<'_>) -> bool,
    ) -> Option<(BlockLook, Option<u64>)> {
        let key = self.following(after)?.batch.after;
        let after = after.max(self.floor);
        let (_, block) = self.blocks.up_to_mut(key)?;
        if block.batch.last <= after || block.batch.after + 1 >= before {
            return None;
        }
        if !worth(block) {
            return Some((BlockLook { reached: block.batch.last, events: 1, collected: 0 }, None));
        }
        let look = block.collect_all(after, before, most, wanted);
        self.collected += u64::from(look.collected);
        Some((look, is_thin(block).then_some(key)))
    }

    /// Shows the events with the numbers (`after`, `last`] that are not collected, as long as it answers true.
    /// Whether it did for all.
    pub(super) fn all(&self, after: u64, last: u64, mut show: impl FnMut(&EventRef<'_>) -> bool) -> bool {
        let mut at = after.max(self.floor);
        while at < last
            && let Some(block) = self.following(at)
        {
            if !block.all(at, last, &mut show) {
                return false;
            }
            if block.batch.last <= at {
                break;
            }
            at = block.batch.last;
        }
        true
    }

    /// Drops what is collected of a block if that is much, and puts the rest together with a neighbour if both
    /// are small. Answers how many events it went through.
    pub(super) fn compact(&mut self, after: u64) -> u32 {
        let Some((_, block)) = self.blocks.up_to(after).filter(|(found, _)| *found == after) else {
            return 0;
        };
        if !is_thin(block) {
            return 0;
        }
        let small = |block: &HistoryBlock| block.live_bytes() < SMALL_BYTES;
        let (mut first, mut last, mut count) = (after, after, block.batch.count);
        if small(block) {
            let before = after.checked_sub(1).and_then(|before| self.blocks.up_to(before));
            if let Some((next, block)) = self.blocks.from(after + 1).next().filter(|(_, block)| small(block))
            {
                last = next;
                count += block.batch.count;
            } else if let Some((before, block)) = before.filter(|(_, block)| small(block)) {
                first = before;
                count += block.batch.count;
            }
        }
        self.join(first, last + 1);
        count
    }

    /// What follows `after`; see [`super::History::read`].
    pub(super) fn read(
        &self,
        after: u64,
        up_to: u64,
        bytes_max: usize,
    ) -> Result<Option<Batch>, MalformedBatch> {
        self.read_with(after, up_to, |block| block.read(after, up_to, bytes_max))
    }

    /// What follows `after`; see [`super::History::read_live`].
    pub(super) fn read_live(
        &self,
        after: u64,
        up_to: u64,
        bytes_max: usize,
    ) -> Result<Option<Batch>, MalformedBatch> {
        self.read_with(after, up_to, |block| match block.collected() {
            0 => block.read(after, up_to, bytes_max),
            _ => Ok(Some(block.read_live(after, up_to, bytes_max))),
        })
    }

    fn read_with(
        &self,
        after: u64,
        up_to: u64,
        read: impl FnOnce(&HistoryBlock) -> Result<Option<Batch>, MalformedBatch>,
    ) -> Result<Option<Batch>, MalformedBatch> {
        if after < self.floor {
            return Ok(Some(Writer::new(after).finish(self.floor.min(up_to))));
        }
        self.covering(after + 1).map_or(Ok(None), read)
    }
}

/// Whether half of a block's events or more are collected.
fn is_thin(block: &HistoryBlock) -> bool {
    block.collected() > 0 && block.collected() * 2 >= block.batch.count
}
