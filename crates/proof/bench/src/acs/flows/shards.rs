//! Shards as their readers see them: flushes, and how many read which chunk.

use std::collections::VecDeque;

/// What a producer wrote at once into one shard.
#[derive(Clone, Copy, Debug)]
pub struct FlowFlush {
    /// When.
    pub at_us: u64,
    /// When readers are told of it.
    pub visible_us: u64,
    /// Where it ends in the shard.
    pub end: u64,
    /// Readers take it from the durable layer.
    pub is_durable: bool,
}

/// One shard.
#[derive(Default)]
pub struct FlowShard {
    flushes: VecDeque<FlowFlush>,
    /// Number of the oldest flush that is kept.
    first: u64,
    /// Where the oldest one begins.
    begin: u64,
    /// Bytes that were written.
    pub end: u64,
    /// When readers are told of the newest flush that is in the cells.
    pub told_us: u64,
    /// Flushes that are not in the cells, by their numbers: they wait for the next one that is.
    pub unshadowed: Vec<u64>,
    /// Of each chunk from `counted_from` on: what it has more readers in this interval than the one before it, and what
    /// its readers got less than a full chunk.
    counts: Vec<(i64, u64)>,
    counted_from: u64,
    /// How long reads of the newest chunks wait in this interval.
    pub wait_us: u64,
}

impl FlowShard {
    /// Number behind the newest flush.
    pub fn next(&self) -> u64 {
        self.first + self.flushes.len() as u64
    }

    /// A flush by its number.
    #[inline]
    pub fn flush(&self, number: u64) -> &FlowFlush {
        &self.flushes[(number - self.first) as usize]
    }

    pub fn flush_mut(&mut self, number: u64) -> &mut FlowFlush {
        &mut self.flushes[(number - self.first) as usize]
    }

    /// Where a flush begins.
    pub fn begin_of(&self, number: u64) -> u64 {
        if number == self.first { self.begin } else { self.flush(number - 1).end }
    }

    pub fn push(&mut self, flush: FlowFlush) {
        self.end = flush.end;
        self.flushes.push_back(flush);
    }

    /// Forgets what was written before `at_us`.
    pub fn forget(&mut self, at_us: u64) {
        while self.flushes.front().is_some_and(|flush| flush.at_us < at_us) {
            self.begin = self.flushes.pop_front().map_or(self.begin, |flush| flush.end);
            self.first += 1;
        }
    }

    /// Number behind the newest flush that readers know at `at_us`.
    #[inline]
    pub fn visible(&self, at_us: u64) -> u64 {
        let behind = self.flushes.iter().rev().take_while(|flush| flush.visible_us > at_us).count();
        self.next() - behind as u64
    }

    /// Number of the first flush that was written at `at_us` or later.
    pub fn since(&self, at_us: u64) -> u64 {
        self.first + self.flushes.partition_point(|flush| flush.at_us < at_us) as u64
    }

    /// Somebody reads the chunks from `from` to `to`, of which the last one has `last` bytes.
    #[inline]
    pub fn count(&mut self, from: u64, to: u64, last: u64, chunk_bytes: u64) {
        if self.counts.is_empty() {
            self.counted_from = from;
        }
        if from < self.counted_from {
            let more = (self.counted_from - from) as usize;
            self.counts.splice(0..0, std::iter::repeat_n((0, 0), more));
            self.counted_from = from;
        }
        let (first, behind) = ((from - self.counted_from) as usize, (to + 1 - self.counted_from) as usize);
        if self.counts.len() <= behind {
            self.counts.resize(behind + 1, (0, 0));
        }
        self.counts[first].0 += 1;
        self.counts[behind].0 -= 1;
        self.counts[behind - 1].1 += chunk_bytes - last;
    }

    /// Hands each chunk that was read in this interval to `read`, with its readers and the bytes that each of them got
    /// on average.
    pub fn take_counts(&mut self, chunk_bytes: u64, mut read: impl FnMut(u64, f64, f64)) {
        let mut readers = 0;
        for (number, (step, missing)) in (self.counted_from..).zip(self.counts.drain(..)) {
            readers += step;
            if readers > 0 {
                let readers = readers as f64;
                read(number, readers, chunk_bytes as f64 - missing as f64 / readers);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_is_counted_as_often_as_it_is_read() {
        let mut shard = FlowShard::default();
        shard.count(5, 7, 1_000, 4_096);
        shard.count(4, 7, 4_096, 4_096);
        let mut told = Vec::new();
        shard.take_counts(4_096, |number, readers, bytes| told.push((number, readers, bytes)));
        assert_eq!(told, [(4, 1.0, 4_096.0), (5, 2.0, 4_096.0), (6, 2.0, 4_096.0), (7, 2.0, 2_548.0)]);
        shard.take_counts(4_096, |_, _, _| panic!("they were taken"));
    }

    #[test]
    fn readers_know_what_is_visible_to_them() {
        let mut shard = FlowShard::default();
        for at_us in [100, 200, 300] {
            let flush = FlowFlush { at_us, visible_us: at_us + 50, end: at_us, is_durable: false };
            shard.push(flush);
        }
        assert_eq!((shard.visible(149), shard.visible(150), shard.visible(999)), (0, 1, 3));
        assert_eq!((shard.since(0), shard.since(101)), (0, 1));
        shard.forget(150);
        assert_eq!((shard.visible(149), shard.begin_of(1), shard.begin_of(2)), (1, 100, 200));
    }
}
