//! What a worker pushes of an operation, and what the log makes of it: the lower end of an operation that another
//! process runs.
//!
//! What holds:
//! - **The log decides.** An entry is appended where the shard ends. What is there already is left out, so several
//!   workers may push the same shard, and so may the node's own operation.
//! - **A shard that can't go on is held**, as in `writer.rs`: the worker is told, and later from where it goes on.
//! - **Nothing after the end.** Once an intake is closed, nothing of it goes to the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::{Env, Instant};
use tailwater_format::call::{
    CallErrorCode, CallRefusal, CopiedShard, CopyFrom, CopyHeld, CopyPush, CopyPushed, CopyResume,
    offset_from_wire,
};
use tailwater_format::{
    ENTRY_HEADER_BYTES, Offset, ShardId, ShardNumber, StreamId, Tail, parse_entry_header,
};
use tailwater_log::{AppendError, Log};

use crate::follow::last_timestamp;
use crate::hop::{CopiedEntry, Hop};
use crate::limits::{BUSY_PAUSE, RETRY_MAX, RETRY_MIN, SHARD_BYTES_MAX, SHARD_PATIENCE};
use crate::schedule::OperationRun;
use crate::writer::HeldShard;

/// An operation at one worker, for as long as its session lasts.
pub(crate) struct CopyIntake {
    env: Env,
    log: Log,
    stream: StreamId,
    shards: BTreeSet<u32>,
    pub(crate) session: u64,
    pub(crate) lineage: u64,
    pub(crate) hop: Arc<Hop>,
    /// Held while an entry goes to the log.
    is_closed: Mutex<bool>,
    state: Mutex<IntakeState>,
    /// Shards of which what the cluster above has removed is being removed here, too.
    truncating: Arc<Mutex<BTreeSet<u32>>>,
    /// Held over a push.
    pushing: tokio::sync::Mutex<()>,
}

struct IntakeState {
    flows: bool,
    /// Since when it does, or does not.
    since: Instant,
    heard: Instant,
    held: BTreeMap<u32, HeldShard>,
    measured: IntakeMeasure,
}

/// What was found when it was measured last.
#[derive(Clone, Copy)]
struct IntakeMeasure {
    at: Instant,
    bytes: u64,
    /// When there was something last.
    progress_at: Instant,
    delay: Option<Duration>,
    bytes_per_s: u64,
}

impl CopyIntake {
    pub(crate) fn new(
        env: &Env,
        log: &Log,
        stream: StreamId,
        shards: BTreeSet<u32>,
        (session, lineage): (u64, u64),
        hop: Arc<Hop>,
    ) -> Arc<Self> {
        let now = env.now();
        Arc::new(Self {
            env: env.clone(),
            log: log.clone(),
            stream,
            shards,
            session,
            lineage,
            hop,
            is_closed: Mutex::new(false),
            state: Mutex::new(IntakeState {
                flows: false,
                since: now,
                heard: now,
                held: BTreeMap::new(),
                measured: IntakeMeasure { at: now, bytes: 0, progress_at: now, delay: None, bytes_per_s: 0 },
            }),
            truncating: Arc::default(),
            pushing: tokio::sync::Mutex::default(),
        })
    }

    /// Nothing more of it goes to the log from here on.
    pub(crate) fn close(&self) {
        *self.is_closed.lock() = true;
        self.set_flows(false);
    }

    /// Whether it has a session with the cluster above, and what came was taken.
    pub(crate) fn flows(&self) -> bool {
        self.state.lock().flows
    }

    /// When the worker pushed last.
    pub(crate) fn heard(&self) -> Instant {
        self.state.lock().heard
    }

    /// Takes note of whether it flows; whether that is news.
    pub(crate) fn set_flows(&self, flows: bool) -> bool {
        let mut state = self.state.lock();
        let is_news = state.flows != flows;
        if is_news {
            (state.flows, state.since) = (flows, self.env.now());
        }
        is_news
    }

    /// What the scheduler is told of it: measured anew after `every`.
    pub(crate) fn run(&self, every: Duration) -> OperationRun {
        let view = self.hop.view();
        let now = self.env.now();
        let mut state = self.state.lock();
        let (flows, since) = (state.flows, state.since);
        let last = &mut state.measured;
        let passed = now.since(last.at);
        if passed >= every {
            let copied = view.bytes.saturating_sub(last.bytes);
            if copied > 0 || view.behind_bytes == 0 {
                last.progress_at = now;
            }
            let told = view.delay_ms.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
            last.delay = if copied > 0 {
                told
            } else {
                Some(now.since(last.progress_at)).filter(|late| !late.is_zero())
            };
            // Smoothed, as what comes in one second says little.
            let rate =
                copied.saturating_mul(1_000) / u64::try_from(passed.as_millis()).unwrap_or(u64::MAX).max(1);
            last.bytes_per_s = last.bytes_per_s / 4 * 3 + rate / 4;
            (last.at, last.bytes) = (now, view.bytes);
        }
        let delay = if flows { last.delay } else { Some(now.since(since)) };
        OperationRun { flows, delay, bytes_per_s: last.bytes_per_s }
    }

    /// Takes in what the worker pushes.
    ///
    /// # Errors
    /// What ends the operation's session: bytes that are no entries, a stream that is gone, a push after the end.
    pub(crate) async fn take(&self, asked: &CopyPush) -> Result<CopyPushed, CallRefusal> {
        let _pushing = self.pushing.lock().await;
        self.state.lock().heard = self.env.now();
        let mut answer = CopyPushed::default();
        if asked.is_first {
            self.begin_session(&mut answer)?;
        }
        for CopyFrom { shard, next_offset } in &asked.begin {
            let offset = offset_from_wire(*next_offset).map_err(|error| malformed(error.to_string()))?;
            self.begin(self.shard(*shard)?, offset).await?;
        }
        for news in &asked.shards {
            self.take_shard(self.shard(news.shard)?, news).await?;
        }
        self.look_after_shards(&mut answer)?;
        self.state.lock().heard = self.env.now();
        Ok(answer)
    }

    fn shard(&self, number: u32) -> Result<ShardId, CallRefusal> {
        if self.shards.contains(&number) {
            return Ok(ShardId { stream: self.stream, shard: ShardNumber(number) });
        }
        Err(malformed(format!("the operation has no shard {number}")))
    }

    fn tail(&self, shard: u32) -> Result<Tail, String> {
        let view = self.log.view(ShardId { stream: self.stream, shard: ShardNumber(shard) });
        view.map(|view| view.tail).map_err(|error| error.to_string())
    }

    fn begin_session(&self, answer: &mut CopyPushed) -> Result<(), CallRefusal> {
        let stream = self.log.stream_by_id(self.stream).map_err(|error| gone(error.to_string()))?;
        let mut durable = vec![Offset(0); stream.config.shards as usize];
        for shard in &self.shards {
            match self.tail(*shard) {
                Ok(tail) => {
                    if let Some(durable) = durable.get_mut(*shard as usize) {
                        *durable = tail.next_offset;
                    }
                    answer.from.push(place(*shard, &tail));
                }
                Err(why) => self.hold(*shard, &why, true),
            }
        }
        self.hop.begin(&durable);
        Ok(())
    }

    async fn begin(&self, shard: ShardId, offset: Offset) -> Result<(), CallRefusal> {
        let number = shard.shard.0;
        if self.is_held(number) {
            return Ok(());
        }
        if self.hop.shard_under_way(number as usize).0 > 0 {
            self.hold(number, "it goes on behind a gap", false);
            return Ok(());
        }
        if *self.is_closed.lock() {
            return Err(over());
        }
        tracing::warn!(%shard, %offset, "a copy goes on behind a gap: its source has removed records that it had not");
        match self.log.begin_copy(shard, offset).await {
            Ok(()) => self.hop.begun(number as usize, offset),
            Err(error) => self.hold(number, &error.to_string(), true),
        }
        Ok(())
    }

    async fn take_shard(&self, shard: ShardId, news: &CopiedShard) -> Result<(), CallRefusal> {
        let index = news.shard as usize;
        self.hop.told(index, news);
        self.truncate(shard, Offset(news.log_start));
        let mut rest = news.entries.clone();
        while !rest.is_empty() && !self.is_held(news.shard) {
            let header = parse_entry_header(&rest).map_err(|error| malformed(error.to_string()))?;
            let len = header.len as usize;
            if len > rest.len() || len < ENTRY_HEADER_BYTES {
                return Err(malformed(format!("an entry of {len} bytes in {}", rest.len())));
            }
            let entry = rest.split_to(len);
            let copied = CopiedEntry {
                shard: index,
                next_offset: header.next_offset(),
                records: u64::from(header.record_count),
                bytes: len as u64,
                timestamp_ms: last_timestamp(&entry),
            };
            self.append(shard, &entry, copied).await?;
        }
        Ok(())
    }

    /// Hands an entry to the log, which may have too much to do for a while.
    async fn append(&self, shard: ShardId, entry: &Bytes, copied: CopiedEntry) -> Result<(), CallRefusal> {
        let began = self.env.now();
        loop {
            if let Some(error) = self.hop.failure(copied.shard) {
                self.hold(shard.shard.0, &error.to_string(), true);
                return Ok(());
            }
            let (entries, bytes, answered_at) = self.hop.shard_under_way(copied.shard);
            if entries > 0 && bytes + copied.bytes > SHARD_BYTES_MAX {
                if self.env.now().since(began.max(answered_at)) >= SHARD_PATIENCE {
                    let why = format!("its log has answered nothing of {entries} entries for a while");
                    self.hold(shard.shard.0, &why, false);
                    return Ok(());
                }
                self.env.timeout(BUSY_PAUSE, self.hop.answered.notified()).await;
                continue;
            }
            match self.submit(shard, entry, copied)? {
                Ok(()) => return Ok(()),
                Err(AppendError::Overloaded(_)) => {
                    self.env.timeout(BUSY_PAUSE, self.hop.answered.notified()).await;
                }
                Err(error @ (AppendError::NoStream | AppendError::NoShard { .. } | AppendError::Closed)) => {
                    return Err(gone(error.to_string()));
                }
                Err(error) => {
                    self.hold(shard.shard.0, &error.to_string(), true);
                    return Ok(());
                }
            }
        }
    }

    fn submit(
        &self,
        shard: ShardId,
        entry: &Bytes,
        copied: CopiedEntry,
    ) -> Result<Result<(), AppendError>, CallRefusal> {
        let is_closed = self.is_closed.lock();
        if *is_closed {
            return Err(over());
        }
        self.hop.appending(&copied);
        let (hop, env) = (Arc::clone(&self.hop), self.env.clone());
        let answer = move |outcome: Result<_, AppendError>| {
            hop.answer(&copied, outcome.err(), env.now(), env.wall_ms());
        };
        let submitted = self.log.append_copied(shard, entry, answer);
        if submitted.is_err() {
            self.hop.not_taken(&copied);
        }
        Ok(submitted)
    }

    fn is_held(&self, shard: u32) -> bool {
        self.state.lock().held.get(&shard).is_some_and(|held| !held.is_over)
    }

    /// Takes nothing of a shard until the log has answered all that it took, and after an error for a while longer.
    fn hold(&self, shard: u32, why: &str, is_error: bool) {
        let now = self.env.now();
        {
            let mut state = self.state.lock();
            let before = state.held.get(&shard).map_or(RETRY_MIN, |held| held.pause);
            let (until, pause) =
                if is_error { (now + before, (before * 2).min(RETRY_MAX)) } else { (now, before) };
            state.held.insert(shard, HeldShard { until, pause, is_over: false });
        }
        self.hop.hold(shard as usize, Some(why.to_owned()));
        tracing::info!(stream = %self.stream, shard, why, "a shard of a copy waits");
    }

    /// Holds shards that have failed since, has those go on that may, and tells of both.
    fn look_after_shards(&self, answer: &mut CopyPushed) -> Result<(), CallRefusal> {
        for (index, error) in self.hop.failures() {
            let shard = index as u32;
            match error {
                AppendError::NoStream | AppendError::Closed => return Err(gone(error.to_string())),
                error if !self.is_held(shard) => self.hold(shard, &error.to_string(), true),
                _ => {}
            }
        }
        let now = self.env.now();
        for shard in self.hop.overdue(now, |shard| Some(self.tail(shard.0).ok()?.next_offset)) {
            if !self.is_held(shard.0) {
                self.hold(shard.0, "what another operation has appended is not there", false);
            }
        }
        let held: Vec<(u32, HeldShard)> = {
            let mut state = self.state.lock();
            // One that went well for a while is forgotten.
            state.held.retain(|_, held| !held.is_over || now.since(held.until) < RETRY_MAX * 2);
            state.held.iter().filter(|(_, held)| !held.is_over).map(|(shard, held)| (*shard, *held)).collect()
        };
        for (shard, held) in held {
            let is_due = held.until <= now && self.hop.shard_under_way(shard as usize).0 == 0;
            match self.tail(shard) {
                Ok(tail) if is_due => {
                    let over = HeldShard { is_over: true, until: now, ..held };
                    self.state.lock().held.insert(shard, over);
                    self.hop.hold(shard as usize, None);
                    answer.from.push(place(shard, &tail));
                    continue;
                }
                Err(why) if is_due => self.hold(shard, &why, true),
                _ => {}
            }
            answer.hold.push(CopyHeld { shard, why: String::new() });
        }
        Ok(())
    }

    /// Removes what the cluster above has removed, as far as it is durable: the rest goes with later news.
    fn truncate(&self, shard: ShardId, start: Offset) {
        let number = shard.shard.0;
        let is_behind = self.tail(number).is_ok_and(|tail| tail.log_start < start.min(tail.next_offset));
        if !is_behind || *self.is_closed.lock() || !self.truncating.lock().insert(number) {
            return;
        }
        let (log, truncating) = (self.log.clone(), Arc::clone(&self.truncating));
        let removal = async move {
            if let Err(error) = log.truncate_copy(shard, start).await {
                tracing::debug!(%shard, %error, "a copy keeps what its source has removed, and tries again");
            }
            truncating.lock().remove(&number);
        };
        self.env.spawn("copy-truncation", removal).detach();
    }
}

fn place(shard: u32, tail: &Tail) -> CopyResume {
    CopyResume { shard, next_offset: tail.next_offset.0, log_start: tail.log_start.0 }
}

/// What is said of a message of a worker's that makes no sense.
pub(crate) fn malformed(why: String) -> CallRefusal {
    CallRefusal::new(CallErrorCode::Malformed, why)
}

fn gone(why: String) -> CallRefusal {
    CallRefusal::new(CallErrorCode::Unavailable, why)
}

/// What is said of an intake that is closed.
pub(crate) fn over() -> CallRefusal {
    gone("the operation is over here: begin it anew".to_owned())
}
