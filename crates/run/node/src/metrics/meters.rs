//! What the node counts itself while it answers calls; the rest of `/metrics` is read from the parts' own counters.
//!
//! Each counter stands for itself, so all accesses are relaxed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use tailwater_format::StreamId;
use tailwater_format::call::Method;

/// Powers of two of nanoseconds between which durations are told apart: from 33 microseconds to 17 seconds.
pub const POWERS: std::ops::RangeInclusive<u32> = 15..=34;

const BUCKETS: usize = (*POWERS.end() - *POWERS.start()) as usize + 2;

/// A histogram of durations, with a bucket for each power of two.
#[derive(Debug, Default)]
pub struct Times {
    /// The first holds what is below all powers, the last what is above them.
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// The same, read.
#[derive(Clone, Debug, PartialEq)]
pub struct TimesRead {
    /// For each bucket its end in seconds, which is not in it any more, and how many durations it holds; the last has
    /// no end.
    pub buckets: Vec<(f64, u64)>,
    /// The sum of all durations.
    pub sum: Duration,
}

impl Times {
    /// Counts one.
    pub fn add(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let power = ns.checked_ilog2().unwrap_or(0);
        let bucket = (power + 1).clamp(*POWERS.start(), POWERS.end() + 1) - POWERS.start();
        self.counts[bucket as usize].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// What was counted.
    pub fn read(&self) -> TimesRead {
        let ends = POWERS.map(seconds).chain([f64::INFINITY]);
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        TimesRead {
            buckets: ends.zip(counts).collect(),
            sum: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)),
        }
    }
}

impl TimesRead {
    /// The durations of the journal's syncs, in the same buckets.
    pub fn of_syncs(times: &tailwater_journal::SyncTimes) -> Self {
        let mut before = 0;
        let mut bucket = |end: f64, upto: u64| {
            let count = upto - before;
            before = upto;
            (end, count)
        };
        let mut buckets: Vec<_> =
            POWERS.map(|power| bucket(seconds(power), times.count_below(power))).collect();
        buckets.push(bucket(f64::INFINITY, times.count()));
        Self { buckets, sum: times.sum() }
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

fn seconds(power: u32) -> f64 {
    (1_u64 << power) as f64 / 1e9
}

/// Calls of one method.
#[derive(Debug, Default)]
pub struct CallMeter {
    /// All that arrived.
    pub calls: AtomicU64,
    /// Those that were answered with a refusal.
    pub refused: AtomicU64,
}

/// Appends to one stream that were acknowledged since the node started.
#[derive(Debug, Default)]
pub struct StreamMeter {
    /// Records in them.
    pub records: AtomicU64,
    /// Bytes of their record batches.
    pub bytes: AtomicU64,
}

/// Reads of those who catch up.
#[derive(Debug, Default)]
pub struct CatchUpMeter {
    /// How long each waited for its turn.
    pub waits: Times,
    /// Those whose turn did not come in time.
    pub refused: AtomicU64,
    /// Bytes that were read.
    pub bytes: AtomicU64,
}

/// All that the node counts.
#[derive(Debug, Default)]
pub struct Meters {
    calls: [CallMeter; Method::ALL.len()],
    /// From the arrival of an append to its acknowledgement. Refused ones are not in here.
    pub append_times: Times,
    /// Bytes answered to durable reads: what readers did not find in the cells.
    pub durable_read_bytes: AtomicU64,
    /// Of those, reads far from the tail.
    pub catch_up: CatchUpMeter,
    /// Only of streams that something was appended to.
    streams: RwLock<BTreeMap<StreamId, Arc<StreamMeter>>>,
}

impl Meters {
    /// The meter of a method.
    pub fn of(&self, method: Method) -> &CallMeter {
        let index = Method::ALL.iter().position(|known| *known == method).expect("it is one of all");
        &self.calls[index]
    }

    /// Counts acknowledged records of a stream.
    pub fn appended(&self, stream: StreamId, records: u64, bytes: u64) {
        let known = self.streams.read().get(&stream).cloned();
        let meter = known.unwrap_or_else(|| Arc::clone(self.streams.write().entry(stream).or_default()));
        meter.records.fetch_add(records, Ordering::Relaxed);
        meter.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Acknowledged records and bytes of a stream.
    pub fn stream(&self, stream: StreamId) -> (u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.streams.read().get(&stream).map_or((0, 0), |meter| (read(&meter.records), read(&meter.bytes)))
    }

    /// Forgets streams that do not exist any more.
    pub fn retain(&self, exists: impl Fn(StreamId) -> bool) {
        if self.streams.read().keys().any(|id| !exists(*id)) {
            self.streams.write().retain(|id, _| exists(*id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_in_the_bucket_that_ends_behind_it() {
        let times = Times::default();
        for took in [0, 1, (1 << 15) - 1, 1 << 15, 1 << 20, (1 << 34) - 1, 1 << 34, u64::MAX] {
            times.add(Duration::from_nanos(took));
        }
        let read = times.read();
        let filled: Vec<(f64, u64)> = read.buckets.iter().copied().filter(|(_, count)| *count > 0).collect();
        let expected =
            [(seconds(15), 3), (seconds(16), 1), (seconds(21), 1), (seconds(34), 1), (f64::INFINITY, 2)];
        assert_eq!(filled, expected);
        assert_eq!(read.count(), 8);
    }

    #[test]
    fn a_deleted_stream_is_forgotten() {
        let meters = Meters::default();
        let [kept, deleted] = [1, 2].map(|number| StreamId(uuid::Uuid::from_u128(number)));
        meters.appended(kept, 3, 30);
        meters.appended(deleted, 4, 40);
        meters.retain(|id| id == kept);
        assert_eq!((meters.stream(kept), meters.stream(deleted)), ((3, 30), (0, 0)));
    }
}
