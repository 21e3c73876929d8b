//! How a writer behaves.

use std::time::Duration;

use crate::limits::{
    CHUNK_REFRESH, PAGE_REFRESH, PUBLISH_DELAY, REFILL_BYTES_MAX, REFILL_BYTES_TOTAL_MAX, RETRY_DELAY,
    SHADOW_BYTES_MAX, SHADOW_BYTES_TOTAL_MAX, SHADOW_WRITES_PER_S,
};
use crate::lock::LockTiming;

/// How a writer behaves. The defaults suit cells with the paper's times to live.
#[derive(Clone, Copy, Debug)]
pub struct WriterConfig {
    /// How long a durable length waits for its bytes to be cached before it is published alone.
    pub publish_delay: Duration,
    /// After a failed write to a cell, how long until the next attempt.
    pub retry_delay: Duration,
    /// How often an idle shard's partial chunk is written again: well below the data cell's time to live.
    pub chunk_refresh: Duration,
    /// How often an idle page of tails is published again.
    pub page_refresh: Duration,
    /// Bytes of one shard that wait to be written; beyond it, its cached stream jumps.
    pub shadow_bytes_max: usize,
    /// The same for all shards together; beyond it, the one jumps that is extended.
    pub shadow_bytes_total_max: usize,
    /// Bytes of the end of one shard that are written to the data cell again after a start. They wait among those of
    /// `shadow_bytes_max`, of which they should be half at most.
    pub refill_bytes_max: u64,
    /// The same for all shards together, each of which has the same share: a part of what the cell holds.
    pub refill_bytes_total_max: u64,
    /// How often in a second some shard's chunks are written, for all shards together; beyond it what a shard has to
    /// write gathers until its turn comes.
    pub shadow_writes_per_s: u64,
    /// The locks' times.
    pub lock: LockTiming,
}

impl Default for WriterConfig {
    fn default() -> Self {
        Self {
            publish_delay: PUBLISH_DELAY,
            retry_delay: RETRY_DELAY,
            chunk_refresh: CHUNK_REFRESH,
            page_refresh: PAGE_REFRESH,
            shadow_bytes_max: SHADOW_BYTES_MAX,
            shadow_bytes_total_max: SHADOW_BYTES_TOTAL_MAX,
            refill_bytes_max: REFILL_BYTES_MAX,
            refill_bytes_total_max: REFILL_BYTES_TOTAL_MAX,
            shadow_writes_per_s: SHADOW_WRITES_PER_S,
            lock: LockTiming::default(),
        }
    }
}
