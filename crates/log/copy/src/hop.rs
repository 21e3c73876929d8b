//! A hop as its lower end sees it: what is told of it.

use std::sync::Arc;

use parking_lot::Mutex;
use tailwater_format::Offset;
use tailwater_format::call::{CopiedShard, CopyHop};
use tailwater_log::AppendError;
use tokio::sync::Notify;

/// What is known of one shard.
#[derive(Clone, Copy, Debug, Default)]
struct ShardProgress {
    /// Offset after the last record that the upper end has.
    upper_next: Offset,
    /// Bytes that it has and has not sent.
    unsent_bytes: u64,
    /// Offset after the last record that is durable here.
    durable_next: Offset,
}

#[derive(Debug, Default)]
struct HopProgress {
    is_copying: bool,
    why: String,
    shards: Vec<ShardProgress>,
    /// Entries that the log has taken and not answered, and their bytes.
    appending: usize,
    appending_bytes: u64,
    /// Why one of this session's was not appended.
    failed: Option<AppendError>,
    delay_ms: Option<i64>,
    records: u64,
    bytes: u64,
    sessions: u64,
}

/// See the module. Written by the operation and by the log's answers; read by whoever shows it.
#[derive(Debug)]
pub(crate) struct Hop {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) plan: u64,
    progress: Mutex<HopProgress>,
    /// An entry was answered.
    pub(crate) answered: Notify,
}

/// An entry on its way to the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopiedEntry {
    pub(crate) shard: usize,
    pub(crate) next_offset: Offset,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// Timestamp of its last record, wall time in ms.
    pub(crate) timestamp_ms: i64,
}

impl Hop {
    pub(crate) fn new(from: &str, to: &str, plan: u64) -> Arc<Self> {
        let (from, to) = (from.to_owned(), to.to_owned());
        Arc::new(Self { from, to, plan, progress: Mutex::default(), answered: Notify::new() })
    }

    /// A session begins, with the copy's shards as far as they are durable.
    pub(crate) fn begin(&self, durable: &[Offset]) {
        let mut progress = self.progress.lock();
        let known = progress.shards.clone();
        progress.shards =
            durable.iter().map(|next| ShardProgress { durable_next: *next, ..Default::default() }).collect();
        // What the upper end had, it has.
        for (shard, known) in progress.shards.iter_mut().zip(known) {
            (shard.upper_next, shard.unsent_bytes) = (known.upper_next, known.unsent_bytes);
        }
        progress.failed = None;
        progress.sessions += 1;
        progress.is_copying = true;
    }

    /// It has ended, or did not begin.
    pub(crate) fn end(&self, why: &str) {
        let mut progress = self.progress.lock();
        progress.is_copying = false;
        progress.why = why.chars().take(512).collect();
    }

    /// What the upper end tells of a shard.
    pub(crate) fn told(&self, shard: usize, news: &CopiedShard) {
        if let Some(shard) = self.progress.lock().shards.get_mut(shard) {
            shard.upper_next = Offset(news.next_offset);
            shard.unsent_bytes = news.behind_bytes;
        }
    }

    /// A shard goes on behind a gap.
    pub(crate) fn begun(&self, shard: usize, next_offset: Offset) {
        if let Some(shard) = self.progress.lock().shards.get_mut(shard) {
            shard.durable_next = shard.durable_next.max(next_offset);
        }
    }

    /// An entry goes to the log.
    pub(crate) fn appending(&self, entry: &CopiedEntry) {
        let mut progress = self.progress.lock();
        progress.appending += 1;
        progress.appending_bytes += entry.bytes;
    }

    /// The log did not take it.
    pub(crate) fn not_taken(&self, entry: &CopiedEntry) {
        let mut progress = self.progress.lock();
        progress.appending -= 1;
        progress.appending_bytes -= entry.bytes;
    }

    /// The log has answered, at wall time `now_ms`.
    pub(crate) fn answer(&self, entry: &CopiedEntry, error: Option<AppendError>, now_ms: i64) {
        {
            let mut progress = self.progress.lock();
            progress.appending -= 1;
            progress.appending_bytes -= entry.bytes;
            match error {
                None => {
                    if let Some(shard) = progress.shards.get_mut(entry.shard) {
                        shard.durable_next = shard.durable_next.max(entry.next_offset);
                    }
                    progress.records += entry.records;
                    progress.bytes += entry.bytes;
                    progress.delay_ms = Some(now_ms.saturating_sub(entry.timestamp_ms));
                }
                Some(error) => progress.failed = progress.failed.take().or(Some(error)),
            }
        }
        self.answered.notify_one();
    }

    /// Entries that the log has not answered.
    pub(crate) fn under_way(&self) -> usize {
        self.progress.lock().appending
    }

    /// Why an entry of this session was not appended, if one was not.
    pub(crate) fn failure(&self) -> Option<AppendError> {
        self.progress.lock().failed.clone()
    }

    /// What is told of it.
    pub(crate) fn view(&self) -> CopyHop {
        let progress = self.progress.lock();
        let behind = |shard: &ShardProgress| shard.upper_next.0.saturating_sub(shard.durable_next.0);
        let unsent: u64 = progress.shards.iter().map(|shard| shard.unsent_bytes).sum();
        CopyHop {
            from: self.from.clone(),
            to: self.to.clone(),
            plan: self.plan,
            is_copying: progress.is_copying,
            why: progress.why.clone(),
            behind_records: progress.shards.iter().map(behind).sum(),
            behind_bytes: unsent + progress.appending_bytes,
            delay_ms: progress.delay_ms,
            records: progress.records,
            bytes: progress.bytes,
            sessions: progress.sessions,
        }
    }
}
