//! A hop as its lower end sees it: what is told of it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tailwater_env::Instant;
use tailwater_format::call::{CopiedShard, CopyHop};
use tailwater_format::{Offset, ShardNumber};
use tailwater_log::AppendError;
use tokio::sync::Notify;

/// What is known of one shard.
#[derive(Clone, Debug, Default)]
struct ShardProgress {
    /// Offset after the last record that the upper end has.
    upper_next: Offset,
    /// Bytes that it has and has not sent.
    unsent_bytes: u64,
    /// Offset after the last record that is durable here.
    durable_next: Offset,
    /// Entries that the log has taken and not answered, and their bytes.
    appending: usize,
    appending_bytes: u64,
    /// When it has answered last.
    answered_at: Instant,
    /// Offset after the last record that another operation had appended before, and when that turned out.
    elsewhere: Option<(Offset, Instant)>,
    /// Why one of them was not appended, since the shard went on last.
    failed: Option<AppendError>,
    /// Why the upper end sends nothing of it.
    why: String,
    /// Why it is not copied for now.
    held: Option<String>,
}

#[derive(Debug, Default)]
struct HopProgress {
    is_copying: bool,
    why: String,
    shards: Vec<ShardProgress>,
    delay_ms: Option<i64>,
    records: u64,
    bytes: u64,
    sessions: u64,
}

/// Longest text that says why something is not copied.
const WHY_CHARS_MAX: usize = 512;

/// How long what another operation has appended may take until it is durable.
const ELSEWHERE_MAX: Duration = Duration::from_secs(3);

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
        progress.sessions += 1;
        progress.is_copying = true;
    }

    /// It has ended, or did not begin.
    pub(crate) fn end(&self, why: &str) {
        let mut progress = self.progress.lock();
        progress.is_copying = false;
        progress.why = why.chars().take(WHY_CHARS_MAX).collect();
    }

    /// What the upper end tells of a shard.
    pub(crate) fn told(&self, shard: usize, news: &CopiedShard) {
        if let Some(shard) = self.progress.lock().shards.get_mut(shard) {
            shard.upper_next = Offset(news.next_offset);
            shard.unsent_bytes = news.behind_bytes;
            shard.why = news.why.chars().take(WHY_CHARS_MAX).collect();
        }
    }

    /// A shard is not copied for now, or is again.
    pub(crate) fn hold(&self, shard: usize, why: Option<String>) {
        if let Some(shard) = self.progress.lock().shards.get_mut(shard) {
            shard.held = why;
            shard.failed = None;
            shard.elsewhere = None;
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
        if let Some(shard) = self.progress.lock().shards.get_mut(entry.shard) {
            shard.appending += 1;
            shard.appending_bytes += entry.bytes;
        }
    }

    /// The log did not take it.
    pub(crate) fn not_taken(&self, entry: &CopiedEntry) {
        if let Some(shard) = self.progress.lock().shards.get_mut(entry.shard) {
            shard.appending -= 1;
            shard.appending_bytes -= entry.bytes;
        }
    }

    /// The log has answered, at `now`, which is `now_ms` of wall time.
    pub(crate) fn answer(&self, entry: &CopiedEntry, error: Option<AppendError>, now: Instant, now_ms: i64) {
        {
            let mut progress = self.progress.lock();
            let is_appended = error.is_none();
            if let Some(shard) = progress.shards.get_mut(entry.shard) {
                shard.appending -= 1;
                shard.appending_bytes -= entry.bytes;
                shard.answered_at = now;
                match error {
                    None => shard.durable_next = shard.durable_next.max(entry.next_offset),
                    // Another operation of the shard was first.
                    Some(AppendError::NotNext { next, .. }) if entry.next_offset <= next => {
                        shard.elsewhere = Some((entry.next_offset, now));
                    }
                    Some(error) => shard.failed = shard.failed.take().or(Some(error)),
                }
            }
            if is_appended {
                progress.records += entry.records;
                progress.bytes += entry.bytes;
                progress.delay_ms = Some(now_ms.saturating_sub(entry.timestamp_ms));
            }
        }
        self.answered.notify_one();
    }

    /// Entries that the log has not answered.
    pub(crate) fn under_way(&self) -> usize {
        self.progress.lock().shards.iter().map(|shard| shard.appending).sum()
    }

    /// Entries of a shard that the log has not answered, their bytes, and when it answered last.
    pub(crate) fn shard_under_way(&self, shard: usize) -> (usize, u64, Instant) {
        let progress = self.progress.lock();
        let of = |shard: &ShardProgress| (shard.appending, shard.appending_bytes, shard.answered_at);
        progress.shards.get(shard).map_or((0, 0, Instant::default()), of)
    }

    /// Why an entry of a shard was not appended, if one was not since it went on last.
    pub(crate) fn failure(&self, shard: usize) -> Option<AppendError> {
        self.progress.lock().shards.get(shard)?.failed.clone()
    }

    /// The shards of which another operation had appended what is not durable after a while. It may have failed, and
    /// who appended it may be gone: it has to come again. `durable` says where shards end.
    pub(crate) fn overdue(
        &self,
        now: Instant,
        durable: impl Fn(ShardNumber) -> Option<Offset>,
    ) -> Vec<ShardNumber> {
        let progress = self.progress.lock();
        let elsewhere = (0..).map(ShardNumber).zip(progress.shards.iter().map(|shard| shard.elsewhere));
        let late = elsewhere.filter_map(|(shard, elsewhere)| {
            let (next, at) = elsewhere?;
            (now.since(at) >= ELSEWHERE_MAX).then_some((shard, next))
        });
        late.filter(|(shard, next)| durable(*shard).is_some_and(|end| end < *next))
            .map(|(shard, _)| shard)
            .collect()
    }

    /// The shards of which an entry was not appended.
    pub(crate) fn failures(&self) -> Vec<(usize, AppendError)> {
        let progress = self.progress.lock();
        let failed = progress.shards.iter().enumerate();
        failed.filter_map(|(shard, progress)| Some((shard, progress.failed.clone()?))).collect()
    }

    /// What is told of it.
    pub(crate) fn view(&self) -> CopyHop {
        let progress = self.progress.lock();
        let behind = |shard: &ShardProgress| shard.upper_next.0.saturating_sub(shard.durable_next.0);
        let unsent: u64 =
            progress.shards.iter().map(|shard| shard.unsent_bytes + shard.appending_bytes).sum();
        let waiting = |(shard, progress): (usize, &ShardProgress)| {
            let why = progress.held.as_ref().or(Some(&progress.why).filter(|why| !why.is_empty()))?;
            Some(format!("shard {shard} waits: {why}"))
        };
        let waiting: Vec<String> = progress.shards.iter().enumerate().filter_map(waiting).collect();
        let first = waiting.first().filter(|_| progress.is_copying);
        CopyHop {
            from: self.from.clone(),
            to: self.to.clone(),
            plan: self.plan,
            is_copying: progress.is_copying,
            why: first.unwrap_or(&progress.why).clone(),
            behind_records: progress.shards.iter().map(behind).sum(),
            behind_bytes: unsent,
            delay_ms: progress.delay_ms,
            records: progress.records,
            bytes: progress.bytes,
            sessions: progress.sessions,
            waiting_shards: u32::try_from(waiting.len()).unwrap_or(u32::MAX),
        }
    }
}
