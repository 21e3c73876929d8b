//! What the node counts itself while it answers calls; the rest of `/metrics` is read from the parts' own counters.
//!
//! Each counter stands for itself, so all accesses are relaxed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use tailwater_env::{TIMES_POWERS, Times, TimesRead, times_end};
use tailwater_format::StreamId;
use tailwater_format::call::Method;

/// The durations of the journal's syncs, in the buckets of all histograms.
pub fn times_of_syncs(times: &tailwater_journal::SyncTimes) -> TimesRead {
    let mut before = 0;
    let mut bucket = |end: f64, upto: u64| {
        let count = upto - before;
        before = upto;
        (end, count)
    };
    let mut buckets: Vec<_> =
        TIMES_POWERS.map(|power| bucket(times_end(power), times.count_below(power))).collect();
    buckets.push(bucket(f64::INFINITY, times.count()));
    TimesRead { buckets, sum: times.sum() }
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
    /// From a record's timestamp until a consumer was given it, as clients tell.
    pub delivery_times: Times,
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
    fn a_deleted_stream_is_forgotten() {
        let meters = Meters::default();
        let [kept, deleted] = [1, 2].map(|number| StreamId(uuid::Uuid::from_u128(number)));
        meters.appended(kept, 3, 30);
        meters.appended(deleted, 4, 40);
        meters.retain(|id| id == kept);
        assert_eq!((meters.stream(kept), meters.stream(deleted)), ((3, 30), (0, 0)));
    }
}
