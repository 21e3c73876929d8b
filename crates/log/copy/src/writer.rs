//! The lower end of a hop: an operation that copies the shards of one stream from the cluster above, for as long as the
//! plan says so.
//!
//! It asks for more before it has what it asked for, so that the link is never idle, and hands the entries to the log
//! in order. Where a session ends, by whichever end, it waits until the log has answered all that it took, and begins
//! again where the log ends.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesOrdered;
use tailwater_env::{BoxFuture, Env};
use tailwater_format::call::{
    CopiedShard, CopyEntries, CopyFrom, CopyNext, CopyOpen, CopyOpened, Method, decode_call, encode_call,
    stream_to_wire,
};
use tailwater_format::{
    ENTRY_HEADER_BYTES, Offset, ShardId, ShardNumber, StreamId, Tail, batches, parse_entry_header,
};
use tailwater_log::{AppendError, Log, StreamError};
use tailwater_rma::{CallError, Connection};
use tailwater_tls::Dialer;

use crate::ask::{ask_over, connect, in_words};
use crate::hop::{CopiedEntry, Hop};
use crate::limits::{BUSY_PAUSE, RETRY_MAX, RETRY_MIN, SILENCE_MAX, WINDOW};
use crate::reader::Sessions;

/// What an operation is made of.
pub(crate) struct CopyOperation {
    pub(crate) env: Env,
    pub(crate) log: Log,
    pub(crate) dialer: Dialer,
    pub(crate) stream: StreamId,
    /// The name of this cluster.
    pub(crate) cluster: String,
    /// Where the cluster above is reached.
    pub(crate) address: String,
    pub(crate) hop: Arc<Hop>,
    /// Those that other clusters have open here: they are told by which way this one has what it has.
    pub(crate) sessions: Arc<Sessions>,
}

/// How far a shard of the copy is.
struct CopyPlace {
    /// Offset after the last record that the log was given.
    next: Offset,
    /// Where it begins.
    start: Offset,
    /// Where the cluster above begins.
    wanted_start: Offset,
}

type NextAnswer = BoxFuture<'static, Result<Bytes, CallError>>;

impl CopyOperation {
    /// Copies until it is dropped.
    pub(crate) async fn run(self) {
        let mut pause = RETRY_MIN;
        loop {
            let began = self.env.now();
            let Err(why) = self.session().await;
            self.hop.end(&why);
            tracing::info!(stream = %self.stream, from = self.hop.from, %why, "a copy's session ended");
            while self.hop.under_way() > 0 {
                self.hop.answered.notified().await;
            }
            // One that went well for a while begins again at once.
            if self.env.now().since(began) > RETRY_MAX * 2 {
                pause = RETRY_MIN;
            }
            let jitter = self.env.random_below(pause.as_micros() as u64 / 2 + 1);
            self.env.sleep(pause / 2 + Duration::from_micros(jitter)).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Copies until something ends it, which is what is answered.
    async fn session(&self) -> Result<std::convert::Infallible, String> {
        let shards = self.shards()?;
        let numbers: Vec<ShardNumber> = (0..shards).map(ShardNumber).collect();
        let tails = self.log.tails(self.stream, &numbers).map_err(|error| error.to_string())?;
        let next: Vec<Offset> = tails.iter().map(|tail| tail.next_offset).collect();
        let connection = connect(&self.env, &self.dialer, &self.address).await?;
        let from = (0..).zip(&next).map(|(shard, next)| CopyFrom { shard, next_offset: next.0 });
        let open = CopyOpen {
            stream: stream_to_wire(self.stream),
            cluster: self.cluster.clone(),
            plan: self.hop.plan,
            from: from.collect(),
        };
        let opened: CopyOpened = ask_over(&self.env, &*connection, Method::CopyOpen, &open).await?;
        self.take_way(opened.way)?;
        self.hop.begin(&next);
        tracing::info!(stream = %self.stream, from = self.hop.from, "a copy's session began");
        let place = |tail: &Tail| CopyPlace {
            next: tail.next_offset,
            start: tail.log_start,
            wanted_start: tail.log_start,
        };
        self.follow(connection, opened.session, tails.iter().map(place).collect()).await
    }

    async fn follow(
        &self,
        connection: Arc<dyn Connection>,
        session: u64,
        mut places: Vec<CopyPlace>,
    ) -> Result<std::convert::Infallible, String> {
        let ask = || -> NextAnswer {
            let connection = Arc::clone(&connection);
            let question = encode_call(&CopyNext { session });
            Box::pin(async move { connection.call(Method::CopyNext.number(), question).await })
        };
        let mut answers: FuturesOrdered<NextAnswer> = (0..WINDOW).map(|_| ask()).collect();
        for sequence in 0_u64.. {
            let answer = self.env.timeout(SILENCE_MAX, answers.next()).await;
            let silent = || format!("{} was silent for {} s", connection.peer(), SILENCE_MAX.as_secs());
            let answer = answer.flatten().ok_or_else(silent)?.map_err(|error| in_words(&error))?;
            let entries: CopyEntries = decode_call(answer).map_err(|error| error.to_string())?;
            if entries.sequence != sequence {
                return Err(format!("answer {} in place of answer {sequence}", entries.sequence));
            }
            answers.push_back(ask());
            self.take_way(entries.way)?;
            for news in &entries.shards {
                self.take(news, &mut places).await?;
            }
            self.truncate(&mut places).await?;
            if let Some(error) = self.hop.failure() {
                return Err(error.to_string());
            }
            if self.shards()? as usize != places.len() {
                return Err("the stream has more shards now".to_owned());
            }
        }
        unreachable!("a session has fewer answers than numbers")
    }

    /// Takes note of the clusters between the source and this one. A way that leads here carries nothing.
    fn take_way(&self, way: Vec<String>) -> Result<(), String> {
        if way.contains(&self.cluster) {
            self.sessions.set_way(self.stream, None);
            return Err(format!(
                "the copy in {} is made from the one here: it goes by an older plan, or this cluster does",
                self.hop.from
            ));
        }
        self.sessions.set_way(self.stream, Some(way));
        Ok(())
    }

    fn shards(&self) -> Result<u32, String> {
        let stream = self.log.stream_by_id(self.stream).map_err(|error| error.to_string())?;
        Ok(stream.config.shards)
    }

    /// Takes in the news of one shard.
    async fn take(&self, news: &CopiedShard, places: &mut [CopyPlace]) -> Result<(), String> {
        let index = news.shard as usize;
        let Some(place) = places.get_mut(index) else {
            return Err(format!("entries of shard {}, which was not asked for", news.shard));
        };
        let shard = ShardId { stream: self.stream, shard: ShardNumber(news.shard) };
        let log_start = Offset(news.log_start);
        self.hop.told(index, news);
        let mut rest = news.entries.clone();
        while !rest.is_empty() {
            let header = parse_entry_header(&rest).map_err(|error| error.to_string())?;
            if header.len as usize > rest.len() || (header.len as usize) < ENTRY_HEADER_BYTES {
                return Err(format!("an entry of {} bytes in {}", header.len, rest.len()));
            }
            let entry = rest.split_to(header.len as usize);
            if header.next_offset() <= place.next {
                continue;
            }
            if header.base_offset > place.next {
                if log_start <= place.next {
                    return Err(format!("offsets {} to {} are missing", place.next, header.base_offset));
                }
                self.begin(shard, index, header.base_offset).await?;
                place.next = header.base_offset;
            }
            let appending = CopiedEntry {
                shard: index,
                next_offset: header.next_offset(),
                records: u64::from(header.record_count),
                bytes: entry.len() as u64,
                timestamp_ms: last_timestamp(&entry),
            };
            self.append(shard, &entry, appending).await?;
            place.next = header.next_offset();
        }
        // All there ever was is removed.
        if log_start > place.next {
            self.begin(shard, index, log_start).await?;
            place.next = log_start;
        }
        place.wanted_start = place.wanted_start.max(log_start);
        Ok(())
    }

    /// Hands an entry to the log, which may have too much to do for a while.
    async fn append(&self, shard: ShardId, entry: &Bytes, appending: CopiedEntry) -> Result<(), String> {
        loop {
            self.hop.appending(&appending);
            let (hop, env) = (Arc::clone(&self.hop), self.env.clone());
            let answer =
                move |outcome: Result<_, AppendError>| hop.answer(&appending, outcome.err(), env.wall_ms());
            let Err(error) = self.log.append_copied(shard, entry, answer) else { return Ok(()) };
            self.hop.not_taken(&appending);
            if !matches!(error, AppendError::Overloaded(_)) {
                return Err(error.to_string());
            }
            if let Some(error) = self.hop.failure() {
                return Err(error.to_string());
            }
            self.env.timeout(BUSY_PAUSE, self.hop.answered.notified()).await;
        }
    }

    /// Waits for the log's answers, and has it go on behind a gap.
    async fn begin(&self, shard: ShardId, index: usize, offset: Offset) -> Result<(), String> {
        while self.hop.under_way() > 0 {
            self.hop.answered.notified().await;
        }
        if let Some(error) = self.hop.failure() {
            return Err(error.to_string());
        }
        tracing::warn!(%shard, %offset, "a copy goes on behind a gap: its source has removed records that it had not");
        self.log.begin_copy(shard, offset).await.map_err(|error| error.to_string())?;
        self.hop.begun(index, offset);
        Ok(())
    }

    /// Removes what the source has removed, as far as it is durable here: the rest goes with a later answer.
    async fn truncate(&self, places: &mut [CopyPlace]) -> Result<(), String> {
        for (number, place) in (0..).map(ShardNumber).zip(places) {
            if place.wanted_start <= place.start {
                continue;
            }
            let shard = ShardId { stream: self.stream, shard: number };
            match self.log.truncate_copy(shard, place.wanted_start).await {
                Ok(start) => place.start = start,
                Err(StreamError::BeyondEnd { .. } | StreamError::Overloaded) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }
}

/// Timestamp of the last batch of an entry, or 0.
fn last_timestamp(entry: &[u8]) -> i64 {
    let body = entry.get(ENTRY_HEADER_BYTES..).unwrap_or_default();
    batches(body).flatten().last().map_or(0, |batch| batch.header().max_timestamp_ms)
}
